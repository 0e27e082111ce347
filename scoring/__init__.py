"""Metrics, their intervals, and comparisons: pure functions on arrays, and the scoring of files."""
