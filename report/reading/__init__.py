"""Finished runs read for a report, and whether predictions, run and test set belong together."""
