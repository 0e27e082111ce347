"""From learners to predictions: folds, out-of-fold fits, pool, calibration, gate, finished runs."""
