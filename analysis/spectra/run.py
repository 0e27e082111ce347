"""From a run, measured events and an exposure to elemental spectra with errors: what ``cli.py spectra`` calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.events import looked_at, open_run, refuse_shared_folders
from showerstack.analysis.exposure import Exposure, check_flux_of_exposure, exposure_of
from showerstack.analysis.options import SpectraOptions, Widths
from showerstack.analysis.provenance import Provenance
from showerstack.analysis.spectra.fluxes import (
    SOURCES,
    covariance_of_sums,
    free_fluxes,
    spread_of_models,
    undetermined,
)
from showerstack.analysis.spectra.folding import Cells, make_cells, make_movable, make_response, models_spread
from showerstack.analysis.spectra.knees import fit_knees
from showerstack.analysis.spectra.likelihood import FEW_EVENTS, SHARPNESS, FoldedFit, FoldingProblem
from showerstack.analysis.spectra.muons import ALL_MODELS, muon_scales
from showerstack.analysis.spectra.reading import MODELS, Response, read_measured, read_response
from showerstack.analysis.spectra.response import ALL, Binning, MassGroups, Simulated, SpectrumEvents, binning
from showerstack.analysis.spectra.result import Spectra
from showerstack.analysis.spectra.sources import narrow_scales
from showerstack.analysis.spectra.stability import comparisons, stability_table
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.logs import remark
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN
from showerstack.showers.schema import COMPOSITION

LOG = logging.getLogger(__name__)

PREDICTIONS_FOLDER = "predictions"
EDGES = SpectraOptions.edges
"""Borders of the bins of the true energy, lg(E/eV)."""
CELL_WIDTH, WIDE_CELL_WIDTH, WIDE_FROM = 0.1, 0.2, 16.2
"""Largest widths of the bins of the reconstructed energy, lg(E/eV); the wider ones where events are few."""
BEYOND = 0.2
"""How far above the last border events are counted: their energies come out too high."""
MIN_SIMULATED, MIN_MEASURED = 50, 100
"""Simulated events of each class, and measured ones, that must lie in the cells."""
LEAST_SIMULATED, LEAST_MEASURED = 20, 10
"""The same for a bin of the true energy to be used."""
FEW_A_CELL = 10
"""Simulated events of a class for each cell below which a remark says that their noise is large."""
MIN_MODEL_EVENTS = 100
"""Events of each class from which a hadronic model alone can be used."""


def cell_binning(edges: tuple[float, ...]) -> Binning:
    """Return the bins of the reconstructed energy that belong to bins of the true one, and fine ones of the latter."""
    bins = binning(edges)
    borders = [float(bins.edges[0])]
    for high in (*bins.edges[1:], min(bins.edges[-1] + BEYOND, bins.fine[-1])):
        low = borders[-1]
        if high - low > 1e-9:
            width = CELL_WIDTH if low < WIDE_FROM - 1e-9 else WIDE_CELL_WIDTH
            steps = max(1, int(np.ceil((high - low) / width - 1e-9)))
            borders += [low + (high - low) * k / steps for k in range(1, steps)] + [float(high)]
    return binning(tuple(borders))


def folded_spectra(
    data: SpectrumEvents, simulated: Simulated, thrown: np.ndarray, cells: Cells, edges: np.ndarray,
    exposure_m2_sr_s: float, *, widths: Widths, sharpness: float = SHARPNESS, knees: bool = False, seed: int = 1,
    least: tuple[float, float] = (LG_NE_MIN, LG_NMU_MIN), changes: Sequence[np.ndarray] = (),
) -> Spectra:  # fmt: skip
    """Fit measured events with the response of simulated ones.

    Parameters
    ----------
    thrown
        (M, K, T) primaries by hadronic model.
    edges
        (J + 1,) of the true lg(E/eV).
    knees
        Whether to fit knees and compare hypotheses on them.
    changes
        (M, K, T) each: what one standard deviation of each source of error changes in ``thrown``.
    """
    widths, remarks = widths_of_models(widths, simulated, cells.bins)
    events = make_movable(simulated, cells.bins, widths, least)
    total = thrown.sum(axis=0)
    counts = cells.counts(data)
    nominal = make_response(events, cells, total, scales=False).accepted.sum(axis=(1, 2))
    for name, n in zip(simulated.groups.names, nominal, strict=True):
        if n < MIN_SIMULATED:
            raise InputError(f"--simulation: {n:.0f} simulated {name} events lie in the energy bins under the cuts, "
                             f"{MIN_SIMULATED} are needed: give wider --bins or a larger --simulation")  # fmt: skip
    if counts.sum() < MIN_MEASURED:
        raise InputError(f"--data: {counts.sum():.0f} measured events lie in the energy bins under the cuts, "
                         f"{MIN_MEASURED} are needed: give more runs or wider --bins")  # fmt: skip
    if nominal.min() < FEW_A_CELL * cells.n_cells:
        remarks.append(
            f"fewer than {FEW_A_CELL} simulated events of a class for each of {cells.n_cells} cells: errors are too "
            "small, by up to a factor of two; give a larger --simulation"
        )
    problem = FoldingProblem(counts, lambda at: make_response(events, cells, total, at), exposure_m2_sr_s, sharpness)
    fit = problem.fit()
    if problem.few:
        remarks.append(f"fewer than {FEW_EVENTS:,} events: the index's change at the knee is expected at 0.5 ± 0.3")
    if not fit.valid:
        remarks.append("Minuit did not converge: errors may be wrong")
    if fit.refusal:
        remarks.append(f"the fit is refused, no bin is used: {fit.refusal}")
    fluxes = free_fluxes(fit, edges, [change.sum(axis=0) for change in changes])
    unknown = undetermined(fit, edges, np.array([one for name, one in simulated.groups.members.items() if name != ALL]))
    alone: dict[str, FoldedFit] = {}
    by_model: dict[str, np.ndarray] = {}
    for model in () if events.model is None else np.unique(events.model):
        rows = events.model == model
        if np.bincount(events.labels[rows], minlength=len(simulated.groups)).min() < MIN_MODEL_EVENTS:
            remarks.append(f"hadronic model {model} has fewer than {MIN_MODEL_EVENTS} events of a class: left out")
            continue
        events_of_model, primaries = events.take(rows), np.asarray(thrown[int(model)], dtype=np.float64)

        def respond(at: np.ndarray, events_of_model: Any = events_of_model, primaries: np.ndarray = primaries) -> Any:
            return make_response(events_of_model, cells, primaries, at)

        fit_of_model = replace(problem, respond=respond).fit()
        if fit_of_model.refusal:
            remarks.append(f"hadronic model {model} alone: {fit_of_model.refusal}: left out")
        else:
            alone[name_of_model(int(model))] = fit_of_model
    if len(alone) > 1:
        fluxes_alone = [free_fluxes(fit_of_model, edges) for fit_of_model in alone.values()]
        by_model = {name: one.flux for name, one in zip(alone, fluxes_alone, strict=True)}
        spread = spread_of_models(list(by_model.values()), [one.of_response for one in fluxes_alone])
    else:
        spread = np.full_like(fluxes.covariance["data"], np.nan)
        remarks.append("no two hadronic models can be compared: their error is unknown")
    measured = np.histogram(data.lg_energy, edges)[0]
    used = (measured >= LEAST_MEASURED) & (fluxes.simulated.min(axis=1) >= LEAST_SIMULATED) & (not fit.refusal)
    fitted = (
        fit_knees(problem, fit, list(alone.values()) if len(alone) > 1 else []) if knees and not fit.refusal else None
    )
    spectra = Spectra(
        fit, fluxes, spread, used, measured, fit.p_value(seed), fitted, undetermined=unknown, models=by_model,
        widths=widths, remarks=(*remarks, *narrow_scales(fluxes)),
    )  # fmt: skip
    return replace(spectra, remarks=(*spectra.remarks, *remarks_on_shares(spectra)))


def name_of_model(number: int) -> str:
    """Return what a hadronic model of a simulated set is called in tables."""
    names = list(MODELS)
    return names[number] if 0 <= number < len(names) else f"model_{number}"


def widths_of_models(widths: Widths, simulated: Simulated, bins: Binning) -> tuple[Widths, list[str]]:
    """Return widths of the scales that are at least what hadronic models differ by, and remarks; exact ones stay."""
    remarks = []
    for name, words, spread in zip(("lg_muon", "lg_electron"), ("muon", "electron"), models_spread(simulated, bins),
                                   strict=True):  # fmt: skip
        stated = getattr(widths, name)
        if 0 < stated < spread:
            remarks.append(f"the {words} scale has a width of {spread:.3f} in lg, as hadronic models differ, "
                           f"and not of {stated:g}")  # fmt: skip
            widths = replace(widths, **{name: float(spread)})
    return widths, remarks


@dataclass(frozen=True)
class SpectraInputs:
    """What was read: measured and simulated events, the exposure, and where all of it came from."""

    data: SpectrumEvents
    runs: np.ndarray
    """(N,) number of the folder of each measured event."""
    response: Response
    bins: Binning
    exposure: Exposure
    provenance: Provenance
    remarks: tuple[str, ...]


def read_inputs(options: SpectraOptions, ctx: Context = Context()) -> SpectraInputs:
    """Predict measured events and a simulated set; predictions are kept beside the tables for the next analysis."""
    bins = cell_binning(options.edges)
    options = replace(options, data=looked_at(options.data, options.blinding))
    exposure = exposure_of(
        options.exposure, options.data, options.zenith_max_deg, options.dead_time_s, options.exposure_error
    )
    run = open_run(options.run, COMPOSITION.name, "spectra")
    simulation = options.simulation or []
    refuse_shared_folders(options.data, simulation)
    keep = options.out / PREDICTIONS_FOLDER
    data, runs, prints, remarks, flow = read_measured(run, options.data, options.zenith_max_deg, ctx, keep)
    response = read_response(run, simulation, prints, bins, options.zenith_max_deg, ctx, keep)
    remarks += [*response.remarks, *exposure.remarks, *remarks_on_range(data, response.events, bins)]
    provenance = Provenance.of(
        options, run, exposure, options.zenith_max_deg, [folder.name for folder in simulation], prints, flow,
        {"measured_events": len(data), "simulated_events": len(response.events)},
    )  # fmt: skip
    return SpectraInputs(data, runs, response, bins, exposure, provenance, tuple(remarks))


def fit_spectra(inputs: SpectraInputs, options: SpectraOptions, ctx: Context = Context()) -> Spectra:
    """Return fluxes and fractions by mass group and energy, with all remarks."""
    data, response, edges = inputs.data, inputs.response, np.array(options.edges)
    cells = make_cells(inputs.bins, response.events)
    with ctx.bars("spectra", "steps") as progress:
        progress(0, 1, "fit")
        spectra = folded_spectra(
            data, response.events, response.thrown.counts, cells, edges, inputs.exposure.m2_sr_s,
            widths=options.widths, sharpness=options.knee_sharpness, knees=True, seed=options.seed,
            changes=(*response.thrown.changes, *response.thrown.common),
        )  # fmt: skip
        progress(1, 1)
    spectra = replace(spectra, exposure_error=inputs.exposure.relative_error, provenance=inputs.provenance)
    if options.stability:
        compared = comparisons(data, inputs.runs, response.events, cells, options.zenith_max_deg)
        table = stability_table(
            compared, data, response.events, response.thrown.counts.sum(axis=0), edges, inputs.exposure.m2_sr_s,
            widths=spectra.widths, sharpness=options.knee_sharpness, least=(LG_NE_MIN, LG_NMU_MIN), bars=ctx.bars,
        )  # fmt: skip
        spectra = replace(spectra, stability=table)
    spectra = replace(spectra, muons=muon_table(spectra, data, response.passing))
    ones = np.ones_like(spectra.flux)
    known = (np.nan_to_num(covariance_of_sums(spectra.covariance((name,)), ones)) for name in SOURCES)
    of_exposure = check_flux_of_exposure(
        spectra.flux.sum(axis=1), spectra.centres_ev, np.sqrt(np.diag(sum(known))),
        simulated=inputs.provenance.simulated_data, given=options.exposure is not None,
    )  # fmt: skip
    remarks = (*inputs.remarks, *spectra.remarks, *remarks_on_groups(data.groups), *of_exposure)
    remark(LOG, remarks)
    return replace(spectra, remarks=remarks)


def muon_table(spectra: Spectra, data: SpectrumEvents, simulated: Simulated) -> pl.DataFrame | None:
    """Return the muon scale by energy and model, and what the fitted composition makes of it."""
    likelihood = spectra.fit.likelihood
    if simulated.true_lg_energy is None or spectra.fit.refusal:
        return None
    thrown, particles = likelihood.response.thrown, likelihood.particles(spectra.fit.parameters)
    per_shower = np.divide(particles, thrown, out=np.zeros_like(particles), where=thrown > 0)
    fine = likelihood.response.cells.bins.fine_bin_of(simulated.true_lg_energy)
    found = muon_scales(data, simulated, per_shower[simulated.labels, fine], spectra.fluxes.edges)
    if found is None:
        return None
    names = {number: ALL if number == ALL_MODELS else name_of_model(number) for number in found["model"].unique()}
    return found.with_columns(pl.col("model").replace_strict(names, return_dtype=pl.String))


def measure_spectra(options: SpectraOptions, ctx: Context = Context()) -> Spectra:
    """Read what an analysis needs, and fit it; nothing is written but predictions, for the next one."""
    return fit_spectra(read_inputs(options, ctx), options, ctx)


def remarks_on_groups(groups: MassGroups) -> list[str]:
    """Return a remark on groups of nature that the simulation lacks."""
    if not groups.missing:
        return []
    return [
        f"the simulation holds {', '.join(groups.names)} alone: nature's {', '.join(groups.missing)} are taken for "
        "these, which moves mean ln A and shares (docs/methods/few_showers.md says by how much)"
    ]


def remarks_on_shares(spectra: Spectra) -> list[str]:
    """Return remarks on shares that are not determined, and on those outside 0 to 1 by more than their error."""
    remarks, edges = [], spectra.fluxes.edges
    for j in np.flatnonzero(spectra.used):
        energy = f"lg(E/eV) {edges[j]:g} to {edges[j + 1]:g}"
        names = [name for name, known in spectra.determined.items() if not known[j]]
        if names:
            remarks.append(f"{energy}: not determined with so few events or so small a simulation: {', '.join(names)}")
    for row in spectra.table().filter(pl.col("determined") & (pl.col("group") != ALL)).iter_rows(named=True):
        errors = (row[f"fraction_error_{source}"] for source in SOURCES)
        width = float(np.sqrt(sum(error**2 for error in errors if error is not None)))
        if not -width <= row["fraction"] <= 1 + width:
            known = "" if spectra.errors_known else " (known errors)"
            remarks.append(
                f"lg(E/eV) {row['lg_energy_low_eV']:g} to {row['lg_energy_high_eV']:g}: the share of {row['group']} is "
                f"{100 * row['fraction']:.0f} ± {100 * width:.0f} %{known}, outside 0 to 100 % by more than its "
                "error: data and simulation differ, or errors are too small"
            )
    return remarks


def remarks_on_range(data: SpectrumEvents, simulated: Simulated, bins: Binning) -> list[str]:
    """Return remarks on measured energies beyond the bins and beyond all simulated ones."""
    remarks = []
    beyond = int(((data.lg_energy < simulated.lg_energy.min()) | (data.lg_energy > simulated.lg_energy.max())).sum())
    if beyond:
        remarks.append(
            f"{beyond:,} measured events ({100 * beyond / len(data):.2g} %) have energies outside those of the "
            f"simulation, lg(E/eV) {simulated.lg_energy.min():.2f} to {simulated.lg_energy.max():.2f}"
        )
    n_outside = int((bins.bin_of(data.lg_energy) < 0).sum())
    if n_outside:
        remarks.append(
            f"{n_outside:,} of {len(data):,} measured events lie outside the energy bins, "
            f"lg(E/eV) {bins.edges[0]:g} to {bins.edges[-1]:g}"
        )
    measured = np.bincount(bins.bin_of(data.lg_energy)[bins.bin_of(data.lg_energy) >= 0], minlength=bins.n_bins)
    empty = [f"{bins.edges[b]:g}-{bins.edges[b + 1]:g}" for b in np.flatnonzero(measured == 0)]
    if empty:
        remarks.append(f"no measured event in the energy bins {', '.join(empty)} of lg(E/eV)")
    return remarks
