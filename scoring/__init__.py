"""Metrics, their intervals, and comparisons: pure functions on arrays, and the scoring of files."""

from showerstack.scoring.tasks.base import Metric, metric_for, scoring_of

__all__ = ["Metric", "metric_for", "scoring_of"]
