"""Sums over the stations of a shower, in its own frame and in rings about its core."""
