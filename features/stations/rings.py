"""Sums over rings around the fitted core, many planes at once."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def ring_masks(r_m: Any, rings: tuple[tuple[float, float], ...], xp: ModuleType) -> Any:
    """Return which station lies in each ring, (n, rings, cells) float32 of 0 and 1; a ring holds low <= r < high."""
    low = xp.asarray([ring[0] for ring in rings], dtype=xp.float32)[None, :, None]
    high = xp.asarray([ring[1] for ring in rings], dtype=xp.float32)[None, :, None]
    r = r_m[:, None, :]
    return xp.astype((r >= low) & (r < high), xp.float32)


def ring_sums(masks: Any, planes: list[Any], xp: ModuleType) -> list[Any]:
    """Return for each plane (n, cells) its sums per ring, (n, rings): one small matrix product an event."""
    sums = xp.matmul(masks, xp.matrix_transpose(xp.stack(planes, axis=1)))
    return [sums[:, :, k] for k in range(len(planes))]
