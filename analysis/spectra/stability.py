"""Do fluxes stay where runs, zenith angles or cells are others? Fits of halves of the data, and of all in other cells.

Halves are independent: the difference of what they give has the sum of the variances of their events; for halves in
zenith angle, which have showers of their own in the simulation, of that too. Odd and even runs share the exposure as
they share the events, so that all particles tell of the form of the spectrum alone. Fits in other cells are of the same
events, so that their differences have no error of their own: they are given in the errors of events, simulation and
scales, which each fit finds anew, and should stay below two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.fluxes import (
    STATISTICAL,
    FreeFluxes,
    covariance_of_sums,
    free_fluxes,
    share_covariance,
    shares,
)
from showerstack.analysis.spectra.folding import Cells, make_cells, make_movable, make_response
from showerstack.analysis.spectra.likelihood import FoldingProblem
from showerstack.analysis.spectra.response import MassGroups, Simulated, SpectrumEvents
from showerstack.runtime.context import Bars, silent

LEAST_EVENTS = 100
"""Events that a half must have in the cells."""
FEWER_SUMMARIES = 6


@dataclass(frozen=True)
class FittedPart:
    """Events of a fit: masks of the measured and the simulated ones, and the share of exposure and primaries."""

    name: str
    measured: np.ndarray
    simulated: np.ndarray
    exposure: float
    primaries: float
    cells: Cells


@dataclass(frozen=True)
class Variation:
    """Two fits, and the sources of error in which they are independent."""

    one: FittedPart
    other: FittedPart
    sources: tuple[str, ...]
    halves: bool


def comparisons(
    data: SpectrumEvents, runs: np.ndarray, simulated: Simulated, cells: Cells, zenith_max_deg: float
) -> list[Variation]:
    """Return what is compared; halves with too few events are left out.

    Parameters
    ----------
    runs
        (N,) number of the run of each measured event.
    """
    every, known = np.ones(len(data), dtype=bool), np.ones(len(simulated), dtype=bool)
    border = np.degrees(np.arcsin(np.sin(np.radians(zenith_max_deg)) / np.sqrt(2.0)))
    inner, simulated_inner = data.zenith_deg < border, simulated.zenith_deg < border
    odd = runs % 2 == 1
    halves = [
        Variation(
            FittedPart(f"zenith below {border:.1f} deg", inner, simulated_inner, 0.5, 0.5, cells),
            FittedPart(f"zenith above {border:.1f} deg", ~inner, ~simulated_inner, 0.5, 0.5, cells),
            STATISTICAL, True,
        ),
        Variation(
            FittedPart("odd runs", odd, known, float(odd.mean()), 1.0, cells),
            FittedPart("even runs", ~odd, known, float(1 - odd.mean()), 1.0, cells),
            ("data",), True,
        ),
    ]  # fmt: skip
    counted = cells.bins.bin_of(data.lg_energy) >= 0
    found = [one for one in halves if min(int((half.measured & counted).sum()) for half in (one.one, one.other))
             >= LEAST_EVENTS]  # fmt: skip
    whole = FittedPart("as analysed", every, known, 1.0, 1.0, cells)
    edges = cells.bins.edges
    wider = replace(cells.bins, edges=np.unique(np.append(edges[::2], edges[-1])))
    others = {
        "wider cells of energy": make_cells(wider, simulated, cells.n_summaries),
        f"{FEWER_SUMMARIES} cells of y": make_cells(cells.bins, simulated, FEWER_SUMMARIES),
    }
    return found + [
        Variation(FittedPart(name, every, known, 1.0, 1.0, changed), whole, (*STATISTICAL, "scales"), False)
        for name, changed in others.items()
    ]


def stability_table(
    compared: list[Variation], data: SpectrumEvents, simulated: Simulated, thrown: np.ndarray, edges: np.ndarray,
    exposure_m2_sr_s: float, *, widths: Widths, sharpness: float, least: tuple[float, float], bars: Bars = silent,
) -> pl.DataFrame:  # fmt: skip
    """Return a row for each comparison, bin and quantity; none where a fit is refused.

    Parameters
    ----------
    thrown
        (K, T) primaries.
    edges
        (J + 1,) of the true lg(E/eV).
    """
    done: dict[str, FreeFluxes | None] = {}

    def fluxes(part: FittedPart) -> FreeFluxes | None:
        if part.name not in done:
            events = make_movable(simulated.take(part.simulated), part.cells.bins, widths, least)
            problem = FoldingProblem(
                part.cells.counts(data.take(part.measured)),
                lambda at: make_response(events, part.cells, part.primaries * thrown, at),
                part.exposure * exposure_m2_sr_s, sharpness,
            )  # fmt: skip
            fit = problem.fit()
            done[part.name] = None if fit.refusal else free_fluxes(fit, edges)
        return done[part.name]

    rows = []
    with bars("stability", "comparisons") as progress:
        for number, one in enumerate(compared):
            progress(number, len(compared))
            pair = fluxes(one.one), fluxes(one.other)
            if pair[0] is None or pair[1] is None:
                continue
            both = [_quantities(each, one.sources, data.groups) for each in pair if each is not None]
            for name in both[0]:
                (value, variance), (against, their_variance) = (each[name] for each in both)
                error = np.sqrt(variance + their_variance if one.halves else their_variance)
                away = (value - against) / error
                for j in range(len(value)):
                    rows.append(
                        {"variation": one.one.name, "against": one.other.name, "lg_energy_low_eV": float(edges[j]),
                         "lg_energy_high_eV": float(edges[j + 1]), "quantity": name, "value": float(value[j]),
                         "value_against": float(against[j]), "difference_in_errors": float(away[j])}
                    )  # fmt: skip
        progress(len(compared), len(compared))
    return pl.DataFrame(rows, infer_schema_length=None)


def _quantities(
    fluxes: FreeFluxes, sources: tuple[str, ...], groups: MassGroups
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return values (J,) and variances of the flux of all particles and of the share of light ones, if some are not."""
    covariance = np.asarray(sum(fluxes.covariance[name] for name in sources))
    every = np.ones_like(fluxes.flux)
    result = {"flux_all_m2_sr_s_eV": (fluxes.flux.sum(axis=1), np.diag(covariance_of_sums(covariance, every)))}
    if "light" in groups.sums:
        light, of_shares = groups.sums["light"], share_covariance(fluxes.flux, covariance)
        errors = covariance_of_sums(of_shares, np.tile(light, (len(every), 1)))
        result["fraction_light"] = shares(fluxes.flux) @ light, np.diag(errors)
    return result
