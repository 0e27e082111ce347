"""From posteriors to what ships: composition labels, gamma scores and cuts, and the response by which spectra unfold."""
