"""What spectra are made of: events, their predictions, response, exposure."""
