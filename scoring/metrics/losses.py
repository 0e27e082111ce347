"""The loss of each event, and the error of a mean."""

from __future__ import annotations

import numpy as np


def event_losses(log_proba: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return ``-log p`` of the true class, (N,), of log-probabilities (N, C) and class numbers (N,)."""
    return np.asarray(-log_proba[np.arange(len(labels)), labels])


def error_of_mean(values: np.ndarray, ddof: int = 0) -> float:
    """Return the standard error of the mean of independent values (N,)."""
    return float(values.std(ddof=ddof) / np.sqrt(len(values)))
