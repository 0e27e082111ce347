"""What a quantity was in training, and whether that of new events is like it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

LEAST_ROWS = 20
"""Fewer rows, of training or new, have no distribution."""
CHANCE = 1e-6
"""A quantity that new rows lack, or of which they have one value, is told where chance would do this less often."""
MOST_OUTSIDE = 0.5
"""A larger share of new values outside of what 99 % of the training had is told."""
NARROWER, RARE = 50.0, 0.1
"""Middle halves so many times narrower than in training are told, of quantities of which no value is more common."""


@dataclass(frozen=True)
class Seen:
    """A quantity in training."""

    low: float
    high: float
    """Between these 99 % of its values are."""
    width: float
    """Of the middle half of them."""
    missing: float
    """Share of rows without a value."""
    common: float
    """Share of the most common value among the others."""

    @classmethod
    def of(cls, values: np.ndarray) -> Self | None:
        """Return it for values (N,), NaN where missing; None for too few."""
        present = values[np.isfinite(values)].astype(np.float64)
        if len(present) < LEAST_ROWS:
            return None
        low, first, last, high = np.quantile(present, [0.005, 0.25, 0.75, 0.995]).tolist()
        common = float(np.unique(present, return_counts=True)[1].max()) / len(present)
        return cls(low, high, last - first, 1.0 - len(present) / len(values), common)

    def as_json(self) -> dict[str, float]:
        """Return JSON content."""
        return asdict(self)

    def unlike(
        self, values: np.ndarray, *, scale: float = 1.0, offset: float = 0.0, ordered: bool = True
    ) -> str | None:
        """Return in words how new values (N,) differ from those of the training; None where they may be like them.

        ``scale`` and ``offset`` turn values into those that a user knows; categories are not ``ordered``.
        """
        present = values[np.isfinite(values)].astype(np.float64)
        if len(values) < LEAST_ROWS:
            return None
        if not len(present):
            how = f"in training {100 * self.missing:.0f} % of the rows have no value"
            return f"is empty in all {len(values):,} rows, {how}" if self.missing ** len(values) < CHANCE else None
        if len(present) < LEAST_ROWS:
            return None

        def shown(value: float) -> str:
            return f"{value * scale + offset:.4g}"

        if present.min() == present.max() and self.common ** len(present) < CHANCE:
            value = f" ({shown(present[0])})" if ordered else ""
            return f"is the same in all {len(present):,} rows{value}, in training no value is so common"
        if not ordered:
            return None
        outside = float(((present < self.low) | (present > self.high)).mean())
        first, middle, last = np.quantile(present, [0.25, 0.5, 0.75]).tolist()
        if outside > MOST_OUTSIDE:
            return (
                f"lies outside of what was trained on: half of its values are below {shown(middle)}, in training 99 % "
                f"are {shown(self.low)} to {shown(self.high)}; is it another quantity, or of another unit?"
            )
        if self.common < RARE and last - first < self.width / NARROWER:
            return (
                f"varies {self.width / max(last - first, 1e-300):,.0f} times less than in training (half of it lies "
                f"within {(last - first) * scale:.3g}): is it of another unit?"
            )
        return None


def of_columns(columns: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return what named quantities (N,) each were, as JSON content, without those of too few values."""
    found = {name: Seen.of(values) for name, values in columns.items()}
    return {name: one.as_json() for name, one in found.items() if one is not None}


def unlike_remarks(where: str, seen: dict[str, Any], columns: dict[str, np.ndarray]) -> list[str]:
    """Return remarks on named quantities (N,) each that are unlike those of the training."""
    found = ((name, Seen(**seen[name]).unlike(values)) for name, values in columns.items() if name in seen)
    return [f"{where}: {name} {words}" for name, words in found if words]
