"""From out-of-fold posteriors to one posterior: samples, pools, calibration, gate."""
