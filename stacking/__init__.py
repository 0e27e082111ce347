"""Folds, out-of-fold predictions, calibration, meta-learner, decision, saved bundle."""
