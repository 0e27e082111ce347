"""The embedded simulation: spectrum, cascade, detector, reconstruction."""
