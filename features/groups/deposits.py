"""How much signal there is, and how it is shared among stations: nothing here needs a core position.

Moments of the deposit pattern about its own centroid, in the spirit of Hillas' image parameters.

Weights are ln(1 + deposit/MeV): with plain deposits one station near the core would decide everything.
"""

from __future__ import annotations

from typing import Any

from features.groups import Feature, FittedEvents, Group
from features.lateral.elementwise import defined, lg
from features.lateral.events import EventBatch
from showers.array import KASCADE

SIZE_GROUP = "size"
_SIZE_GROUPS = (Group(SIZE_GROUP, "how much signal there is"),)
HERE = "this project"
QUANTILES = (0.5, 0.9)


def _declare_size(channel: str, words: str) -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(f"{channel}_{name}", unit, f"{meaning}, {words} channel", formula, HERE, SIZE_GROUP, low, high)

    return (
        one("sum_lg", "lg MeV", "total deposit", "lg(sum of cells)", -8, 8),
        one("max_lg", "lg MeV", "largest deposit", "lg(max of cells)", -8, 5),
        one("hits", "1", "stations with a deposit", "count of cells > 0", 0, KASCADE.n_stations),
        one("mean_hit_lg", "lg MeV", "mean deposit of hit stations", "lg(sum / hits)", -8, 5),
        one(
            "q50_lg", "lg MeV", "median deposit of hit stations", "lg of the sorted hit cells at 0.5 (hits - 1)", -8, 5
        ),
        one("q90_lg", "lg MeV", "upper decile of hit stations", "lg of the sorted hit cells at 0.9 (hits - 1)", -8, 5),
        one("saturated", "1", "saturated stations", "count of cells at the upper limit", 0, KASCADE.n_stations),
        one("top5_share", "1", "share of the five largest deposits", "sum of 5 largest / sum", 0, 1.0001),
    )


_SIZE_FEATURES: tuple[Feature, ...] = (
    *_declare_size("e", "e/gamma"),
    *_declare_size("mu", "muon"),
    Feature(
        "e_inner_lg", "lg MeV", "deposit of inner stations", "lg(sum without muon detector)", HERE, SIZE_GROUP, -8, 8
    ),
    Feature("e_outer_lg", "lg MeV", "deposit of outer stations", "lg(sum with muon detector)", HERE, SIZE_GROUP, -8, 8),
    Feature("mu_e_sum_lg", "lg", "muon over e/gamma deposit", "mu_sum_lg - e_sum_lg", HERE, SIZE_GROUP, -16, 16),
    Feature(
        "both_hits",
        "1",
        "stations with deposits in both channels",
        "count of e > 0 and mu > 0",
        HERE,
        SIZE_GROUP,
        0,
        KASCADE.n_muon_detectors,
    ),
)


def _compute_size(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32."""
    events = seen.events
    xp, here, response = events.xp, events.stations, events.response
    columns = {
        **_size_of_channel(
            "e", events.electron_mev, events.electron_hit, events.electron_sorted, response.saturation_mev, xp
        ),
        **_size_of_channel(
            "mu", events.muon_mev, events.muon_hit, events.muon_sorted, response.muon_saturation_mev, xp
        ),
    }
    inner = xp.sum(events.electron_mev * here.no_muon, axis=1)
    outer = xp.sum(events.electron_mev * here.has_muon, axis=1)
    columns["e_inner_lg"], columns["e_outer_lg"] = lg(inner, xp), lg(outer, xp)
    columns["mu_e_sum_lg"] = columns["mu_sum_lg"] - columns["e_sum_lg"]
    columns["both_hits"] = xp.sum(events.electron_hit * events.muon_hit, axis=1)
    return columns


def hit_quantile(ordered: Any, hits: Any, quantile: float, xp: Any) -> Any:
    """Return a quantile of the hit stations by linear interpolation between order statistics.

    Parameters
    ----------
    ordered
        (n, cells) cells sorted ascending: the hit ones are the last ``hits``.
    hits
        (n,) float32.
    """
    size = ordered.shape[1]
    place = (float(size) - hits) + quantile * (hits - 1.0)
    place = xp.where(hits > 0.0, place, xp.zeros_like(place))
    below = xp.floor(place)
    share = place - below
    first = xp.astype(below, xp.int64)
    second = xp.where(first < size - 1, first + 1, first)
    low = xp.take_along_axis(ordered, first[:, None], axis=1)[:, 0]
    high = xp.take_along_axis(ordered, second[:, None], axis=1)[:, 0]
    return defined(hits > 0.0, low + share * (high - low), xp)


def _size_of_channel(prefix: str, cells: Any, hit: Any, ordered: Any, limit: float, xp: Any) -> dict[str, Any]:
    total = xp.sum(cells, axis=1)
    hits = xp.sum(hit, axis=1)
    some = hits > 0.0
    one = xp.ones_like(total)
    return {
        f"{prefix}_sum_lg": lg(total, xp),
        f"{prefix}_max_lg": lg(ordered[:, -1], xp),
        f"{prefix}_hits": hits,
        f"{prefix}_mean_hit_lg": lg(total / xp.where(some, hits, one), xp),
        f"{prefix}_q50_lg": lg(hit_quantile(ordered, hits, QUANTILES[0], xp), xp),
        f"{prefix}_q90_lg": lg(hit_quantile(ordered, hits, QUANTILES[1], xp), xp),
        f"{prefix}_saturated": xp.sum(xp.astype(cells >= limit, xp.float32), axis=1),
        f"{prefix}_top5_share": defined(some, xp.sum(ordered[:, -5:], axis=1) / xp.where(some, total, one), xp),
    }


SHAPE_GROUP = "shape"
_SHAPE_GROUPS = (Group(SHAPE_GROUP, "moments of the deposit pattern"),)
SOURCE = "A. M. Hillas, Proc. 19th ICRC 3 (1985) 445, adapted"
UNIT_M = 100.0
"""Moments are taken in this unit so that fourth powers stay within float32."""


def _declare_shape(channel: str, words: str) -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(
            f"{channel}_{name}", unit, f"{meaning}, {words} channel", formula, SOURCE, SHAPE_GROUP, low, high
        )

    return (
        one("centroid_r_m", "m", "distance of the centroid from the array's centre", "|sum w x / sum w|", 0, 140),
        one("length_m", "m", "rms along the major axis", "sqrt of the larger eigenvalue of the covariance", 0, 140),
        one("width_m", "m", "rms along the minor axis", "sqrt of the smaller eigenvalue of the covariance", 0, 140),
        one("orientation", "1", "major axis against the azimuth", "cos 2(psi - azimuth) times elongation", -1.01, 1.01),
        one("skewness", "1", "skewness along the shower's azimuth", "third moment / rms^3", -20, 20),
        one("kurtosis", "1", "radial kurtosis about the centroid", "<r^4> / <r^2>^2", 0.9, 300),
    )


_SHAPE_FEATURES: tuple[Feature, ...] = (*_declare_shape("e", "e/gamma"), *_declare_shape("mu", "muon"))


def _compute_shape(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN with fewer than 2 or 3 hit stations."""
    events = seen.events
    return {
        **_shape_of_channel("e", events.electron_mev, events.electron_hit, events),
        **_shape_of_channel("mu", events.muon_mev, events.muon_hit, events),
    }


def _shape_of_channel(prefix: str, cells: Any, hit: Any, events: EventBatch) -> dict[str, Any]:
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


GROUPS = (*_SIZE_GROUPS, *_SHAPE_GROUPS)
FEATURES: tuple[Feature, ...] = (*_SIZE_FEATURES, *_SHAPE_FEATURES)


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of the groups asked for, each (n,) float32."""
    return {
        **(_compute_size(fitted) if fitted.wants(SIZE_GROUP) else {}),
        **(_compute_shape(fitted) if fitted.wants(SHAPE_GROUP) else {}),
    }
