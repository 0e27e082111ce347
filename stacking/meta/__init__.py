"""From out-of-fold posteriors to one posterior: calibration, meta-learners, nested choice, gate."""
