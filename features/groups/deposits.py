"""How much signal there is, and how it is shared among stations: nothing here needs a core position."""

from __future__ import annotations

from typing import Any

from features.bounds import defined, lg
from features.feature import Feature, Group
from features.fitted import FittedEvents
from showers.kascade import KASCADE

GROUP = "size"
GROUPS = (Group(GROUP, "how much signal there is"),)
HERE = "this project"
QUANTILES = (0.5, 0.9)


def _declare(channel: str, words: str) -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(f"{channel}_{name}", unit, f"{meaning}, {words} channel", formula, HERE, GROUP, low, high)

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


FEATURES: tuple[Feature, ...] = (
    *_declare("e", "e/gamma"),
    *_declare("mu", "muon"),
    Feature("e_inner_lg", "lg MeV", "deposit of inner stations", "lg(sum without muon detector)", HERE, GROUP, -8, 8),
    Feature("e_outer_lg", "lg MeV", "deposit of outer stations", "lg(sum with muon detector)", HERE, GROUP, -8, 8),
    Feature("mu_e_sum_lg", "lg", "muon over e/gamma deposit", "mu_sum_lg - e_sum_lg", HERE, GROUP, -16, 16),
    Feature(
        "both_hits",
        "1",
        "stations with deposits in both channels",
        "count of e > 0 and mu > 0",
        HERE,
        GROUP,
        0,
        KASCADE.n_muon_detectors,
    ),
)


def compute(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32."""
    events = seen.events
    xp, here, response = events.xp, events.stations, events.response
    columns = {
        **_channel("e", events.electron_mev, events.electron_hit, events.electron_sorted, response.saturation_mev, xp),
        **_channel("mu", events.muon_mev, events.muon_hit, events.muon_sorted, response.muon_saturation_mev, xp),
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


def _channel(prefix: str, cells: Any, hit: Any, ordered: Any, limit: float, xp: Any) -> dict[str, Any]:
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
