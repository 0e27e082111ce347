"""Whether analyses of predictions find what is known to be there."""
