"""Physics on predictions: unfolding, composition and spectra, limits on photons, data checks, sky maps."""
