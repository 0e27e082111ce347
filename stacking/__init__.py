"""Folds, out-of-fold predictions, calibration, meta-learner, decision, saved bundle."""

from stacking.bundle import Bundle, load
from stacking.predict.chain import Predictions

__all__ = ["Bundle", "Predictions", "load"]
