"""How much signal there is, how stations share it, and its moments about its own centroid: no core position needed.

The moments are in the spirit of Hillas' image parameters. Their weights are ln(1 + deposit/MeV): with plain deposits
one station near the core would decide everything.
"""

from __future__ import annotations

from typing import Any

from showerstack.features.groups import OURS, Feature, FittedEvents, Group
from showerstack.features.lateral.elementwise import defined, lg
from showerstack.features.stations.grid import UNIT_M
from showerstack.showers.array import KASCADE

SIZE_GROUP = "size"
_SIZE_GROUPS = (Group(SIZE_GROUP, "how much signal there is"),)


def _declare_size(channel: str, words: str) -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(f"{channel}_{name}", unit, f"{meaning}, {words} channel", formula, OURS, SIZE_GROUP, low, high)

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
        "e_inner_lg",
        "lg MeV",
        "deposit of inner stations",
        "lg(sum without muon detector)",
        OURS,
        SIZE_GROUP,
        -8,
        8,
    ),
    Feature(
        "e_outer_lg",
        "lg MeV",
        "deposit of outer stations",
        "lg(sum with muon detector)",
        OURS,
        SIZE_GROUP,
        -8,
        8,
    ),
    Feature("mu_e_sum_lg", "lg", "muon over e/gamma deposit", "mu_sum_lg - e_sum_lg", OURS, SIZE_GROUP, -16, 16),
    Feature(
        "both_hits",
        "1",
        "stations with deposits in both channels",
        "count of e > 0 and mu > 0",
        OURS,
        SIZE_GROUP,
        0,
        KASCADE.n_muon_detectors,
    ),
)


def _compute_size(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32."""
    grid, xp = fitted.grid, fitted.xp
    columns = {**_size_of_channel("e", grid, fitted.order, xp), **_size_of_channel("mu", grid, fitted.order, xp)}
    columns["e_inner_lg"], columns["e_outer_lg"] = lg(grid["inner"], xp), lg(grid["outer"], xp)
    columns["mu_e_sum_lg"] = columns["mu_sum_lg"] - columns["e_sum_lg"]
    columns["both_hits"] = grid["both_hits"]
    return columns


def _size_of_channel(c: str, grid: dict[str, Any], order: dict[str, Any], xp: Any) -> dict[str, Any]:
    total, hits = grid[f"{c}_total"], grid[f"{c}_hits"]
    some = hits > 0.0
    one = xp.ones_like(total)
    return {
        f"{c}_sum_lg": lg(total, xp),
        f"{c}_max_lg": lg(order[f"{c}_max"], xp),
        f"{c}_hits": hits,
        f"{c}_mean_hit_lg": lg(total / xp.where(some, hits, one), xp),
        f"{c}_q50_lg": lg(order[f"{c}_q50"], xp),
        f"{c}_q90_lg": lg(order[f"{c}_q90"], xp),
        f"{c}_saturated": grid[f"{c}_saturated"],
        f"{c}_top5_share": defined(some, order[f"{c}_top5"] / xp.where(some, total, one), xp),
    }


SHAPE_GROUP = "shape"
_SHAPE_GROUPS = (Group(SHAPE_GROUP, "moments of the deposit pattern"),)
SOURCE = "A. M. Hillas, Proc. 19th ICRC 3 (1985) 445, adapted"


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


def _compute_shape(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN with fewer than 2 or 3 hit stations."""
    return {**_shape_of_channel("e", fitted), **_shape_of_channel("mu", fitted)}


def _shape_of_channel(c: str, fitted: FittedEvents) -> dict[str, Any]:
    xp = fitted.xp
    names = ("hits", "mean_x", "mean_y", "xx", "yy", "xy", "along_2", "along_3", "r_4")
    hits, mean_x, mean_y, xx, yy, xy, square, third, fourth = (fitted.grid[f"{c}_{name}"] for name in names)
    half_trace, half_gap = 0.5 * (xx + yy), 0.5 * (xx - yy)
    split = xp.sqrt(half_gap * half_gap + xy * xy)
    azimuth = fitted.events.azimuth_deg * (3.141592653589793 / 180.0)
    cosine, sine = xp.cos(azimuth), xp.sin(azimuth)
    small = 1e-6
    turned = (half_gap * (cosine * cosine - sine * sine) + 2.0 * xy * sine * cosine) / xp.maximum(half_trace, small)
    minor = xp.maximum(half_trace - split, 0.0)
    safe_square = xp.maximum(square, small)
    safe_trace = xp.maximum(half_trace, small)

    return {
        f"{c}_centroid_r_m": defined(hits >= 1.0, xp.sqrt(mean_x * mean_x + mean_y * mean_y) * UNIT_M, xp),
        f"{c}_length_m": defined(hits >= 2.0, xp.sqrt(half_trace + split) * UNIT_M, xp),
        f"{c}_width_m": defined(hits >= 3.0, xp.sqrt(minor) * UNIT_M, xp),
        f"{c}_orientation": defined(hits >= 3.0, turned, xp),
        f"{c}_skewness": defined(hits >= 3.0, third / (safe_square * xp.sqrt(safe_square)), xp),
        f"{c}_kurtosis": defined(hits >= 3.0, fourth / (4.0 * safe_trace * safe_trace), xp),
    }


GROUPS = (*_SIZE_GROUPS, *_SHAPE_GROUPS)
FEATURES: tuple[Feature, ...] = (*_SIZE_FEATURES, *_SHAPE_FEATURES)


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of the groups asked for, each (n,) float32."""
    return {
        **(_compute_size(fitted) if fitted.wants(SIZE_GROUP) else {}),
        **(_compute_shape(fitted) if fitted.wants(SHAPE_GROUP) else {}),
    }
