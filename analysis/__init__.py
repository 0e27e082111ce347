"""Physics on predictions: unfolding, composition and spectra, limits on photons, tests of robustness."""
