"""Intervals of one system, paired comparisons of two."""
