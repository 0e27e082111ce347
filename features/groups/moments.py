"""Moments of the deposit pattern about its own centroid, in the spirit of Hillas' image parameters.

Weights are ln(1 + deposit/MeV): with plain deposits one station near the core would decide everything.
"""

from __future__ import annotations

from typing import Any

from features.bounds import defined
from features.events import EventBatch
from features.feature import Feature, Group
from features.fitted import FittedEvents

GROUP = "shape"
GROUPS = (Group(GROUP, "moments of the deposit pattern"),)
SOURCE = "A. M. Hillas, Proc. 19th ICRC 3 (1985) 445, adapted"
UNIT_M = 100.0
"""Moments are taken in this unit so that fourth powers stay within float32."""


def _declare(channel: str, words: str) -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(f"{channel}_{name}", unit, f"{meaning}, {words} channel", formula, SOURCE, GROUP, low, high)

    return (
        one("centroid_r_m", "m", "distance of the centroid from the array's centre", "|sum w x / sum w|", 0, 140),
        one("length_m", "m", "rms along the major axis", "sqrt of the larger eigenvalue of the covariance", 0, 140),
        one("width_m", "m", "rms along the minor axis", "sqrt of the smaller eigenvalue of the covariance", 0, 140),
        one("orientation", "1", "major axis against the azimuth", "cos 2(psi - azimuth) times elongation", -1.01, 1.01),
        one("skewness", "1", "skewness along the shower's azimuth", "third moment / rms^3", -20, 20),
        one("kurtosis", "1", "radial kurtosis about the centroid", "<r^4> / <r^2>^2", 0.9, 300),
    )


FEATURES: tuple[Feature, ...] = (*_declare("e", "e/gamma"), *_declare("mu", "muon"))


def compute(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN with fewer than 2 or 3 hit stations."""
    events = seen.events
    return {
        **_channel("e", events.electron_mev, events.electron_hit, events),
        **_channel("mu", events.muon_mev, events.muon_hit, events),
    }


def _channel(prefix: str, cells: Any, hit: Any, events: EventBatch) -> dict[str, Any]:
    xp, here = events.xp, events.stations
    weight = xp.log1p(cells)
    hits = xp.sum(hit, axis=1)
    total = xp.sum(weight, axis=1)
    weight = weight / xp.where(total > 0.0, total, xp.ones_like(total))[:, None]
    x, y = here.x_m * (1.0 / UNIT_M), here.y_m * (1.0 / UNIT_M)
    mean_x, mean_y = xp.sum(weight * x, axis=1), xp.sum(weight * y, axis=1)
    dx, dy = x - mean_x[:, None], y - mean_y[:, None]
    xx, yy, xy = (xp.sum(weight * a * b, axis=1) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    half_trace, half_gap = 0.5 * (xx + yy), 0.5 * (xx - yy)
    split = xp.sqrt(half_gap * half_gap + xy * xy)
    azimuth = events.azimuth_deg * (3.141592653589793 / 180.0)
    cosine, sine = xp.cos(azimuth), xp.sin(azimuth)
    along = dx * cosine[:, None] + dy * sine[:, None]
    square = xp.sum(weight * along * along, axis=1)
    third = xp.sum(weight * along * along * along, axis=1)
    r2 = dx * dx + dy * dy
    fourth = xp.sum(weight * r2 * r2, axis=1)
    small = 1e-6
    turned = (half_gap * (cosine * cosine - sine * sine) + 2.0 * xy * sine * cosine) / xp.maximum(half_trace, small)
    minor = xp.maximum(half_trace - split, 0.0)
    safe_square = xp.maximum(square, small)
    safe_trace = xp.maximum(half_trace, small)

    return {
        f"{prefix}_centroid_r_m": defined(hits >= 1.0, xp.sqrt(mean_x * mean_x + mean_y * mean_y) * UNIT_M, xp),
        f"{prefix}_length_m": defined(hits >= 2.0, xp.sqrt(half_trace + split) * UNIT_M, xp),
        f"{prefix}_width_m": defined(hits >= 3.0, xp.sqrt(minor) * UNIT_M, xp),
        f"{prefix}_orientation": defined(hits >= 3.0, turned, xp),
        f"{prefix}_skewness": defined(hits >= 3.0, third / (safe_square * xp.sqrt(safe_square)), xp),
        f"{prefix}_kurtosis": defined(hits >= 3.0, fourth / (4.0 * safe_trace * safe_trace), xp),
    }
