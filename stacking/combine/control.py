"""Means on the outer holdout, sharpened by what is known from many more out-of-fold events.

The average of fits can be judged on the outer holdout alone. Single fits can be judged there *and* out-of-fold, on many
more events, and event by event their losses move with those of the average: they are a control variate. Where single
fits happen to do better on the holdout than out-of-fold, the average was lucky too, and the luck is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SingleFits:
    """Log-losses per event of single fits, by system: nats."""

    outer: Mapping[str, np.ndarray]
    """(m,) on the outer holdout, mean over the fits."""
    inner: Mapping[str, np.ndarray]
    """(n,) out-of-fold."""
    inner_groups: np.ndarray | None = None
    """(n,) or None: out-of-fold events of one group are one observation."""

    def gain(self, of: str, over: str) -> tuple[np.ndarray, np.ndarray]:
        """Return loss(over) - loss(of) on the outer holdout (m,) and out-of-fold (n,)."""
        return self.outer[over] - self.outer[of], self.inner[over] - self.inner[of]


def standard_error(values: np.ndarray, groups: np.ndarray | None) -> float:
    """Return the standard error of the mean of (N,) values; those of one group (N,) are one observation."""
    if groups is None:
        return float(values.std() / np.sqrt(len(values)))
    _, member = np.unique(groups, return_inverse=True)
    sums = np.bincount(member, values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))


def mean_and_error(
    values: np.ndarray,
    groups: np.ndarray | None,
    control: tuple[np.ndarray, np.ndarray] | None = None,
    inner_groups: np.ndarray | None = None,
) -> tuple[float, float]:
    """Return the mean of (m,) values and its standard error, by the control where there is one.

    Parameters
    ----------
    values
        (m,) of the outer holdout.
    groups
        (m,) or None.
    control
        The same quantity of single fits: (m,) on the same events, (n,) on others.
    inner_groups
        (n,) or None.

    Notes
    -----
    ``mean(v) - b (mean(c_outer) - mean(c_inner))`` has the expectation of ``mean(v)`` for any b, and the least
    variance at ``b = cov(v, c_outer) / (var(c_outer) + m var(mean(c_inner)))``.
    """
    if control is None:
        return float(values.mean()), standard_error(values, groups)
    outer, inner = control
    inner_error = standard_error(inner, inner_groups)
    spread = float(outer.var()) + len(outer) * inner_error**2
    slope = float(np.mean((values - values.mean()) * (outer - outer.mean()))) / spread if spread > 0 else 0.0
    mean = float(values.mean() - slope * (outer.mean() - inner.mean()))
    return mean, float(np.hypot(standard_error(values - slope * outer, groups), slope * inner_error))
