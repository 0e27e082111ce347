"""The sky without sources: directions as they were measured, times exchanged between events.

An event keeps zenith and azimuth, and with them what the array sees from there; it gets the time of another event of
the same run and period, so that interruptions and rates stay as they were (Cassiday et al., Nuclear Physics B Proc.
Suppl. 14A (1990) 291; Alexandreas et al., Nuclear Instruments and Methods A 328 (1993) 570).
"""

from __future__ import annotations

import numpy as np


def periods(seconds: np.ndarray, window_s: float) -> np.ndarray:
    """Return the period of each event of one run, (N,) int64: equal parts of the run, each about ``window_s`` long."""
    first, last = float(seconds.min()), float(seconds.max())
    n = max(round((last - first) / window_s), 1)
    width = (last - first) / n
    if width <= 0:
        return np.zeros(len(seconds), dtype=np.int64)
    return np.minimum(((seconds - first) / width).astype(np.int64), n - 1)


def scrambled(seconds: np.ndarray, period: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the times (N,) in another order, exchanged within periods."""
    # Events of a period, in their order and in a random one, take the same places.
    there = np.lexsort((np.arange(len(seconds)), period))
    given = np.lexsort((rng.random(len(seconds)), period))
    found = np.empty_like(seconds)
    found[there] = seconds[given]
    return found
