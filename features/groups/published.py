"""Array-centred grid statistics as others published for this benchmark: no core, no fit; the yardstick for ours."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from features.groups import Feature, FittedEvents, Group
from features.groups.deposits import hit_quantile
from features.lateral.elementwise import defined
from features.lateral.events import EventBatch
from showers.array import KASCADE, DetectorArray

GROUP = "grid"
GROUPS = (Group(GROUP, "array-centred statistics as others published", ("published-grid", "all")),)
SOURCE = "in the style of the published grid statistics for this benchmark"
N_RINGS = 8
QUANTILES = (25, 50, 75, 90)
CHANNELS = (("e", "e/gamma"), ("mu", "muon"))
LIVE_RINGS = {"e": range(1, N_RINGS), "mu": range(4, N_RINGS)}
"""KASCADE's square rings with stations: the centre has none, the inner ones carry no muon detector."""


def _declare() -> tuple[Feature, ...]:
    def one(name: str, unit: str, meaning: str, formula: str, low: float, high: float) -> Feature:
        return Feature(name, unit, meaning, formula, SOURCE, GROUP, low, high)

    columns = []
    for c, words in CHANNELS:
        columns += [
            one(f"grid_{c}_sum", "ln MeV", f"total deposit, {words}", "ln(1 + sum)", 0, 18),
            one(f"grid_{c}_max", "ln MeV", f"largest deposit, {words}", "ln(1 + max)", 0, 12),
            one(f"grid_{c}_mean", "1", f"mean of ln(1 + cell), {words}", "mean over all cells", 0, 12),
            one(f"grid_{c}_std", "1", f"standard deviation of ln(1 + cell), {words}", "over all cells", 0, 12),
        ]
        columns += [
            one(f"grid_{c}_q{q}", "ln MeV", f"quantile {q} % of hit cells, {words}", "ln(1 + quantile)", 0, 12)
            for q in QUANTILES
        ]
        columns += [
            one(
                f"grid_{c}_ring{k}",
                "ln MeV",
                f"deposit of square ring {k} around the centre, {words}",
                "ln(1 + sum)",
                0,
                18,
            )
            for k in LIVE_RINGS[c]
        ]
        columns += [
            one(f"grid_{c}_ring{k}_hits", "1", f"hit cells of square ring {k}, {words}", "count", 0, 60)
            for k in LIVE_RINGS[c]
        ]
        columns.append(
            one(f"grid_{c}_spread", "1", f"rms distance from the centre of mass, cells, {words}", "sqrt(<d^2>)", 0, 11)
        )
    columns += [
        one("grid_mu_e_sum", "ln", "muon over e/gamma deposit", "grid_mu_sum - grid_e_sum", -18, 18),
        one("grid_mu_e_hits", "1", "muon over e/gamma hit cells", "hits / (hits + 1)", 0, KASCADE.n_muon_detectors),
    ]
    return tuple(columns)


FEATURES: tuple[Feature, ...] = _declare()


@lru_cache(maxsize=8)
def ring_membership(array: DetectorArray) -> np.ndarray:
    """Return (cells, 8) float32: 1 where the cell lies on the square ring."""
    return (array.square_ring.reshape(-1, 1) == np.arange(N_RINGS)).astype(np.float32)


def compute(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN where nothing was hit."""
    events = seen.events
    columns = {
        **_channel("e", events.electron_mev, events.electron_hit, events.electron_sorted, events),
        **_channel("mu", events.muon_mev, events.muon_hit, events.muon_sorted, events),
    }
    columns["grid_mu_e_sum"] = columns["grid_mu_sum"] - columns["grid_e_sum"]
    electron_hits, muon_hits = (events.xp.sum(hit, axis=1) for hit in (events.electron_hit, events.muon_hit))
    columns["grid_mu_e_hits"] = muon_hits / (electron_hits + 1.0)
    return columns


def _channel(c: str, cells: Any, hit: Any, ordered: Any, events: EventBatch) -> dict[str, Any]:
    xp, here = events.xp, events.stations
    logged = xp.log1p(cells)
    hits, total = xp.sum(hit, axis=1), xp.sum(cells, axis=1)
    mean = xp.mean(logged, axis=1)
    variance = xp.maximum(xp.mean(logged * logged, axis=1) - mean * mean, 0.0)
    columns = {
        f"grid_{c}_sum": xp.log1p(total),
        f"grid_{c}_max": xp.log1p(ordered[:, -1]),
        f"grid_{c}_mean": mean,
        f"grid_{c}_std": xp.sqrt(variance),
    }
    for q in QUANTILES:
        columns[f"grid_{c}_q{q}"] = xp.log1p(hit_quantile(ordered, hits, q / 100.0, xp))
    membership = xp.asarray(ring_membership(events.array))
    rings, ring_hits = xp.matmul(cells, membership), xp.matmul(hit, membership)
    for k in LIVE_RINGS[c]:
        columns[f"grid_{c}_ring{k}"] = xp.log1p(rings[:, k])
        columns[f"grid_{c}_ring{k}_hits"] = ring_hits[:, k]
    weight = logged / xp.maximum(xp.sum(logged, axis=1), 1e-6)[:, None]
    x, y = here.x_m * (1.0 / events.array.pitch_m), here.y_m * (1.0 / events.array.pitch_m)
    mean_x, mean_y = xp.sum(weight * x, axis=1), xp.sum(weight * y, axis=1)
    away = (x - mean_x[:, None]) ** 2 + (y - mean_y[:, None]) ** 2
    columns[f"grid_{c}_spread"] = defined(hits > 0.0, xp.sqrt(xp.sum(weight * away, axis=1)), xp)
    return columns
