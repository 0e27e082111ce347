"""Where compiled loops of the on/off model keep what they work on."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

LANES = 32
"""Bins that are solved side by side."""
PLANES = 9
"""Numbers of each of them."""


class Work(NamedTuple):
    """Arrays for T experiments with B bins."""

    rows: np.ndarray
    """(T,) int64: the experiments that are worked on, first."""
    signals: np.ndarray
    """(T,) their signals."""
    h: np.ndarray
    """(T, B) their likeliest hadrons in the sideband."""
    u: np.ndarray
    """(T, B) their likeliest simulated hadrons above the threshold."""
    v: np.ndarray
    """(T, B) the same in the sideband."""
    low: np.ndarray
    """(T,) by experiment: the signal is larger."""
    high: np.ndarray
    """(T,) and smaller than this."""
    below: np.ndarray
    """(T,) derivative at ``low``."""
    above: np.ndarray
    """(T,) derivative at ``high``."""
    side: np.ndarray
    """(T,) int64: which of both moved last."""
    block: np.ndarray
    """What the processor has at hand of :data:`LANES` bins."""

    @classmethod
    def of(cls, n_experiments: int, n_bins: int) -> Self:
        """Return new arrays."""
        t, both = n_experiments, (n_experiments, n_bins)
        return cls(
            np.empty(t, np.int64), np.empty(t), np.empty(both), np.empty(both), np.empty(both), np.empty(t),
            np.empty(t), np.empty(t), np.empty(t), np.empty(t, np.int64), np.empty(PLANES * LANES),
        )  # fmt: skip
