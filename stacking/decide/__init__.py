"""From posteriors to what ships: composition labels, gamma scores and cuts, unfolded fractions."""
