"""Array-centred grid statistics as others published for this benchmark: no core, no fit; the yardstick for ours."""

from __future__ import annotations

from typing import Any

from showerstack.features.groups import Feature, FittedEvents, Group
from showerstack.features.lateral.elementwise import defined
from showerstack.features.stations.grid import N_RINGS, QUANTILES, UNIT_M
from showerstack.showers.array import KASCADE

GROUP = "grid"
GROUPS = (Group(GROUP, "array-centred statistics as others published", ("published-grid", "all")),)
SOURCE = "in the style of the published grid statistics for this benchmark"
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


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN where nothing was hit."""
    columns = {**_channel("e", fitted), **_channel("mu", fitted)}
    columns["grid_mu_e_sum"] = columns["grid_mu_sum"] - columns["grid_e_sum"]
    columns["grid_mu_e_hits"] = fitted.grid["mu_hits"] / (fitted.grid["e_hits"] + 1.0)
    return columns


def _channel(c: str, fitted: FittedEvents) -> dict[str, Any]:
    xp, grid, order, array = fitted.xp, fitted.grid, fitted.order, fitted.events.array
    mean = grid[f"{c}_logs"] * (1.0 / array.n_cells)
    variance = xp.maximum(grid[f"{c}_squares"] * (1.0 / array.n_cells) - mean * mean, 0.0)
    columns = {
        f"grid_{c}_sum": xp.log1p(grid[f"{c}_total"]),
        f"grid_{c}_max": xp.log1p(order[f"{c}_max"]),
        f"grid_{c}_mean": mean,
        f"grid_{c}_std": xp.sqrt(variance),
    }
    for q in QUANTILES:
        columns[f"grid_{c}_q{q}"] = xp.log1p(order[f"{c}_q{q}"])
    logged = xp.log1p(grid[f"{c}_rings"])
    for k in LIVE_RINGS[c]:
        columns[f"grid_{c}_ring{k}"] = logged[:, k]
        columns[f"grid_{c}_ring{k}_hits"] = grid[f"{c}_ring_hits"][:, k]
    spread = xp.sqrt(grid[f"{c}_xx"] + grid[f"{c}_yy"]) * (UNIT_M / array.pitch_m)
    columns[f"grid_{c}_spread"] = defined(grid[f"{c}_hits"] > 0.0, spread, xp)
    return columns
