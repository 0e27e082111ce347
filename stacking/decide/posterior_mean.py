"""From a posterior over the bins of a target to an estimate and its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class PosteriorMean:
    """Mean and width of a posterior over bins, each of which has a mean and a variance of its own."""

    mean: np.ndarray
    """(C,) mean of each bin."""
    variance: np.ndarray
    """(C,) variance inside each bin."""
    scale: float = 1.0
    """Errors are this times the posterior's width: the open bins at both ends make it too wide."""

    @classmethod
    def of(cls, values: np.ndarray, bins: np.ndarray, n_bins: int) -> Self:
        """Learn means and variances from values (N,) and their bins (N,), none of which is empty."""
        count = np.bincount(bins, minlength=n_bins)
        mean = np.bincount(bins, values, minlength=n_bins) / count
        return cls(mean, np.bincount(bins, (values - mean[bins]) ** 2, minlength=n_bins) / count)

    def __call__(self, log_proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and standard deviation, (N,) each, of log-posteriors (N, C)."""
        share = np.exp(log_proba)
        share /= share.sum(axis=1, keepdims=True)
        estimate = share @ self.mean
        square = share @ (self.variance + self.mean**2)
        return estimate, self.scale * np.sqrt(np.maximum(square - estimate**2, 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        mean, variance = (np.array(content[name], float) for name in ("mean", "variance"))
        return cls(mean, variance, float(content["scale"]))
