"""Metrics, their intervals, and comparisons: pure functions on arrays, and the scoring of files."""

from scoring.metric import Metric, metric_for

__all__ = ["Metric", "metric_for"]
