"""The simulated world beside what is known of the real data, and the fit of its constants."""
