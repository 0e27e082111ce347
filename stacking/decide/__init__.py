"""From posteriors to what ships: composition labels, gamma scores and cuts, the response by which spectra unfold."""
