"""Fits of the knees."""
