"""Keeping features honest at their ends: NaN where undefined, held where a degenerate event would run away."""

from __future__ import annotations

from types import ModuleType
from typing import Any

LG_E = 0.4342944819032518
"""lg e"""


def defined(condition: Any, values: Any, xp: ModuleType) -> Any:
    """Return ``values`` where ``condition`` holds and NaN elsewhere."""
    return xp.where(condition, values, xp.ones_like(values) * float("nan"))


def lg(values: Any, xp: ModuleType) -> Any:
    """Return the decimal logarithm, NaN where the value is not positive."""
    positive = values > 0.0
    return defined(positive, xp.log(xp.where(positive, values, xp.ones_like(values))) * LG_E, xp)


def held(values: Any, limit: float, xp: ModuleType) -> Any:
    """Return values held within -limit..limit; NaN stays NaN."""
    return xp.clip(values, -limit, limit)


def decay(values: Any, xp: ModuleType) -> Any:
    """Return exp(-values) for values >= 0, not below exp(-60): subnormal numbers would cost ten times the time."""
    return xp.exp(-xp.clip(values, None, 60.0))
