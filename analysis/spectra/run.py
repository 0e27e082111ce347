"""From a run, measured events and an exposure to elemental spectra with errors: what ``cli.py spectra`` calls.

The result on disk is tables with units in their columns' names, covariances, and provenance.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.events import open_run, refuse_shared_folders
from showerstack.analysis.exchange import write_exchange
from showerstack.analysis.exposure import check_flux_of_exposure, exposure_of
from showerstack.analysis.options import SpectraOptions, Widths
from showerstack.analysis.spectra.fluxes import (
    SOURCES,
    STATISTICAL,
    FreeFluxes,
    covariance_of_sums,
    free_fluxes,
    mean_ln_mass,
    share_covariance,
    shares,
    spread_of_models,
    undetermined,
    variance_of_ln_mass,
)
from showerstack.analysis.spectra.folding import (
    SCALES,
    Cells,
    make_cells,
    make_movable,
    make_response,
    models_spread,
)
from showerstack.analysis.spectra.knees import Knees, fit_knees, number_or_none
from showerstack.analysis.spectra.likelihood import FEW_EVENTS, SHARPNESS, FoldedFit, FoldingProblem
from showerstack.analysis.spectra.published import global_spline_fit, published_spectra
from showerstack.analysis.spectra.reading import MODELS, read_measured, read_response
from showerstack.analysis.spectra.response import ALL, Binning, MassGroups, Simulated, SpectrumEvents, binning
from showerstack.analysis.spectra.sources import (
    cells_table,
    compare_with,
    narrow_scales,
    nuisances_table,
    systematics_table,
)
from showerstack.analysis.spectra.stability import comparisons, stability_table
from showerstack.analysis.spectra.workspace import spectra_workspace
from showerstack.runtime.code import git_revision, versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, write_json, write_npz
from showerstack.runtime.logs import remark
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.source import is_simulated, read_source

LOG = logging.getLogger(__name__)

SPECTRA_CSV, SPECTRA_PARQUET = "spectra.csv", "spectra.parquet"
COVARIANCE_FILE, PROVENANCE_FILE = "covariance.npz", "spectra.json"
KNEES_CSV, MASSES_CSV = "knees.csv", "masses.csv"
CELLS_CSV, NUISANCES_CSV = "cells.csv", "nuisances.csv"
WORKSPACE_FILE = "pyhf.json"
STABILITY_CSV = "stability.csv"
SYSTEMATICS_CSV, COMPARISON_CSV = "systematics.csv", "comparison.csv"
SPECTRA_FILES = (
    PROVENANCE_FILE, SPECTRA_CSV, SPECTRA_PARQUET, COVARIANCE_FILE, KNEES_CSV, MASSES_CSV, CELLS_CSV, NUISANCES_CSV,
    WORKSPACE_FILE, STABILITY_CSV, SYSTEMATICS_CSV, COMPARISON_CSV,
)  # fmt: skip
"""What a measurement writes, beside folders."""
PREDICTIONS_FOLDER = "predictions"
KNOWN_SOURCES = tuple(name for name in SOURCES if name != "hadronic_model")


@dataclass(frozen=True)
class Spectra:
    """Everything that one analysis found."""

    fit: FoldedFit
    fluxes: FreeFluxes
    hadronic_model: np.ndarray
    """(J K, J K) covariance of the fluxes; NaN where there is one model only."""
    used: np.ndarray
    """(J,) bool: bins that have measured and simulated events, of a fit that is not refused."""
    measured: np.ndarray
    """(J,) measured events whose reconstructed energy lies in the bin."""
    p_value: float
    knees: Knees | None = None
    exposure_error: float = 0.0
    """Relative, common to all fluxes."""
    undetermined: np.ndarray | None = None
    """(J, K + 2) bool: shares of groups, then of light and heavy ones where there are both, that so many events and
    this simulation cannot tell (:func:`showerstack.analysis.spectra.fluxes.undetermined`); None: all are determined."""
    models: dict[str, np.ndarray] = field(default_factory=dict)
    """Fluxes (J, K) by the response of each hadronic model alone."""
    widths: Widths = field(default_factory=Widths)
    """Of the scales, as they were fitted."""
    stability: pl.DataFrame | None = None
    """Fits of halves and in other cells (:mod:`showerstack.analysis.spectra.stability`), where they were asked for."""

    @property
    def groups(self) -> MassGroups:
        """The mass groups of which there are fluxes."""
        return self.fit.likelihood.layout.groups

    @property
    def determined(self) -> dict[str, np.ndarray]:
        """Of groups and sums, (J,) bool each: whether the bin has a result for it."""
        names = list(self.groups.members)
        if self.undetermined is None:
            return dict.fromkeys(names, self.used)
        known = self.used[:, None] & np.column_stack([~self.undetermined, np.ones_like(self.used)])
        return dict(zip(names, known.T, strict=True))

    @property
    def flux(self) -> np.ndarray:
        """(J, K) m^-2 sr^-1 s^-1 eV^-1; NaN where a bin is not used or a group not determined."""
        known = np.stack([self.determined[name] for name in self.groups.names], axis=1)
        return np.where(known, self.fluxes.flux, np.nan)

    @property
    def errors_known(self) -> bool:
        """Whether no source's error is unknown."""
        return bool(np.isfinite(self.hadronic_model).all())

    @property
    def centres_ev(self) -> np.ndarray:
        """(J,) middles in eV, linear as published spectra have them."""
        edges = 10.0**self.fluxes.edges
        return np.asarray((edges[1:] + edges[:-1]) / 2)

    def covariance(self, sources: tuple[str, ...] = SOURCES) -> np.ndarray:
        """Return the covariance (J K, J K) of the fluxes from some sources; NaN where one of them is not known."""
        flux = self.exposure_error * self.fluxes.flux.ravel()
        every = self.fluxes.covariance | {"hadronic_model": self.hadronic_model, "exposure": np.outer(flux, flux)}
        return np.asarray(sum(every[name] for name in sources))

    def standard(self, sources: tuple[str, ...] = SOURCES) -> np.ndarray:
        """Return standard deviations (J, K) of the fluxes."""
        error = np.sqrt(np.diag(self.covariance(sources))).reshape(self.fluxes.flux.shape)
        return np.where(self.used[:, None], error, np.nan)

    def _errors(self) -> dict[str, np.ndarray]:
        """Return covariances of the fluxes by source, of the statistics and of all."""
        return {name: self.covariance((name,)) for name in SOURCES} | {
            "statistical": self.covariance(STATISTICAL), "total": self.covariance(),
        }  # fmt: skip

    def table(self) -> pl.DataFrame:
        """Return one row per energy bin and group, and for the light, the heavy, and all groups together."""
        flux, fraction = self.fluxes.flux, shares(self.fluxes.flux)
        errors = self._errors()
        share_errors = {name: share_covariance(flux, matrix) for name, matrix in errors.items()}
        rows, determined = [], self.determined
        for j in range(len(flux)):
            for name, groups in self.groups.members.items():
                each = np.tile(groups, (len(flux), 1))

                def error(matrix: np.ndarray, each: np.ndarray = each, j: int = j) -> float:
                    return float(np.sqrt(max(covariance_of_sums(matrix, each)[j, j], 0.0)))

                row: dict[str, Any] = {"events": groups @ self.fluxes.events[j], "fraction": groups @ fraction[j]}
                row |= {f"fraction_error_{source}": error(matrix) for source, matrix in share_errors.items()}
                row["flux_m2_sr_s_eV"] = groups @ flux[j]
                row |= {f"flux_error_{source}_m2_sr_s_eV": error(matrix) for source, matrix in errors.items()}
                known = bool(determined[name][j])
                shown = {"determined": known} | (row if known else dict.fromkeys(row, np.nan))
                rows.append(self._row(j, name) | shown)
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.selectors.float().fill_nan(None))

    def _row(self, j: int, group: str) -> dict[str, Any]:
        edges = self.fluxes.edges
        return {
            "lg_energy_low_eV": float(edges[j]),
            "lg_energy_high_eV": float(edges[j + 1]),
            "energy_middle_eV": float(self.centres_ev[j]),
            "group": group,
            "used": bool(self.used[j]),
            "errors_complete": bool(self.used[j] and self.errors_known),
            "measured_events": int(self.measured[j]),
        }

    def masses(self) -> pl.DataFrame:
        """Return mean and variance of ln A by energy with their errors by source, and the correlation of all."""
        (mean, slope), (variance, slope_of_variance) = (
            of(self.fluxes.flux, self.groups.ln_masses) for of in (mean_ln_mass, variance_of_ln_mass)
        )
        columns = {"mean_ln_mass": mean, "variance_of_ln_mass": variance}
        matrices = self._errors()
        for prefix, by_flux in (("error", slope), ("variance_error", slope_of_variance)):
            for name, matrix in matrices.items():
                errors = np.diag(covariance_of_sums(matrix, by_flux))
                columns[f"{prefix}_{name}"] = np.sqrt(np.maximum(errors, 0.0))
        # The covariance of two sums is a quarter of what the variance of their sum exceeds that of their difference by.
        both = [covariance_of_sums(matrices["total"], slope + sign * slope_of_variance) for sign in (1, -1)]
        columns["correlation"] = (
            np.diag(both[0] - both[1]) / 4 / columns["error_total"] / columns["variance_error_total"]
        )
        rows, told = [], self.determined.get("light", self.determined[self.groups.names[0]])
        for j in range(len(mean)):
            row = {name: values[j] for name, values in columns.items()}
            shown = row if told[j] else dict.fromkeys(row, np.nan)
            place = {k: v for k, v in self._row(j, "").items() if k not in ("group", "measured_events")}
            rows.append(place | {"determined": bool(told[j])} | shown)
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.selectors.float().fill_nan(None))

    def sources(self) -> dict[str, pl.DataFrame]:
        """Return the tables on cells, nuisances, sources of error and others' spectra, by name of their file."""
        return {
            CELLS_CSV: cells_table(self.fit),
            NUISANCES_CSV: nuisances_table(self.fluxes, self.widths.values, self.groups.sums),
            SYSTEMATICS_CSV: systematics_table(self.fluxes, self.groups.members, self.exposure_error, self.models).join(
                self.table().filter("determined").select("lg_energy_low_eV", "group"),
                on=["lg_energy_low_eV", "group"], how="semi", maintain_order="left",
            ),
            COMPARISON_CSV: compare_with(
                (*published_spectra(), *global_spline_fit()), self.centres_ev, self.fluxes,
                np.nan_to_num(self.covariance()) if self.errors_known else self.covariance(KNOWN_SOURCES),
                self.used,
            ),
        }  # fmt: skip

    def write(self, out: Path, provenance: dict[str, Any]) -> None:
        """Write all tables, the covariances by source, and the provenance."""
        out.mkdir(parents=True, exist_ok=True)
        table = self.table()
        more = [] if self.knees is None else [(KNEES_CSV, self.knees.table())]
        more += [] if self.stability is None else [(STABILITY_CSV, self.stability)]
        for name, frame in ((SPECTRA_CSV, table), (MASSES_CSV, self.masses()), *more, *self.sources().items()):
            with atomic_path(out / name) as temporary:
                frame.write_csv(temporary)
        with atomic_path(out / SPECTRA_PARQUET) as temporary:
            table.write_parquet(temporary)
        write_npz(
            out / COVARIANCE_FILE,
            lg_energy_edges_eV=self.fluxes.edges,
            flux_m2_sr_s_eV=self.flux,
            **{f"flux_{name}_m2_sr_s_eV_squared": self.covariance((name,)) for name in SOURCES},
        )
        fit = self.fit
        write_json(out / WORKSPACE_FILE, spectra_workspace(fit, self.fluxes.edges, self.exposure_error))
        write_json(
            out / PROVENANCE_FILE,
            provenance
            | {
                "groups": list(self.groups.names),
                "covariance_order": "flux.ravel(): energy bin, then group",
                "error_sources": list(SOURCES),
                "knees": None if self.knees is None else self.knees.as_json(),
                "scales_in_widths": dict(zip(SCALES, fit.scales.tolist(), strict=True)),
                "goodness_of_fit": {
                    "observable": "lg E, sum of P ln A",
                    "chi2": number_or_none(fit.chi2),
                    "cells": int(fit.likelihood.simulated.sum()),
                    "degrees_of_freedom": fit.ndf,
                    "p_value": self.p_value,
                    "refused": fit.refusal,
                },
            },
        )


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
) -> tuple[Spectra, list[str]]:  # fmt: skip
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

    Returns
    -------
    Spectra, remarks.
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
        widths=widths,
    )  # fmt: skip
    return spectra, [*remarks, *narrow_scales(fluxes), *remarks_on_shares(spectra)]


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


def measure_spectra(options: SpectraOptions, ctx: Context = Context()) -> tuple[Spectra, list[str]]:
    """Measure fluxes and fractions by mass group and energy, write them, and return them with all remarks."""
    bins = cell_binning(options.edges)
    if not 0 < options.zenith_max_deg <= 60:
        raise InputError(f"--zenith-max {options.zenith_max_deg:g}: give degrees above 0 and at most 60")
    if not 0.5 <= options.knee_sharpness <= 100:
        raise InputError(f"--knee-sharpness {options.knee_sharpness:g}: give a number from 0.5 to 100")
    exposure = exposure_of(
        options.exposure, options.data, options.zenith_max_deg, options.dead_time_s, options.exposure_error
    )
    run = open_run(options.run, COMPOSITION.name, "spectra")
    refuse_shared_folders(options.data, options.simulation or ())
    keep = options.out / PREDICTIONS_FOLDER
    data, runs, prints, remarks, flow = read_measured(run, options.data, options.zenith_max_deg, ctx, keep)
    response = read_response(run, options.simulation or [], prints, bins, options.zenith_max_deg, ctx, keep)
    remarks += [*response.remarks, *exposure.remarks, *remarks_on_range(data, response.events, bins)]
    cells = make_cells(bins, response.events)
    with ctx.bars("spectra", "steps") as progress:
        progress(0, 1, "fit")
        spectra, new_remarks = folded_spectra(
            data, response.events, response.thrown.counts, cells, np.array(options.edges), exposure.m2_sr_s,
            widths=options.widths, sharpness=options.knee_sharpness, knees=True, seed=options.seed,
            changes=(*response.thrown.changes, *response.thrown.common),
        )  # fmt: skip
        progress(1, 1)
    spectra = replace(spectra, exposure_error=exposure.relative_error)
    if options.stability:
        compared = comparisons(data, runs, response.events, cells, options.zenith_max_deg)
        table = stability_table(
            compared, data, response.events, response.thrown.counts.sum(axis=0), np.array(options.edges),
            exposure.m2_sr_s, widths=spectra.widths, sharpness=options.knee_sharpness, least=(LG_NE_MIN, LG_NMU_MIN),
            bars=ctx.bars,
        )  # fmt: skip
        spectra = replace(spectra, stability=table)
    simulated = all(is_simulated(read_source(folder)) for folder in options.data)
    remarks += [*new_remarks, *remarks_on_groups(data.groups)]
    ones = np.ones_like(spectra.flux)
    known = (np.nan_to_num(covariance_of_sums(spectra.covariance((name,)), ones)) for name in SOURCES)
    errors = np.sqrt(np.diag(sum(known)))
    remarks += check_flux_of_exposure(
        spectra.flux.sum(axis=1), spectra.centres_ev, errors, simulated=simulated, given=options.exposure is not None
    )
    provenance = {
        "run": options.run.resolve().name,
        "config_hash": run.chain.config_hash,
        "data_fingerprints": prints,
        "simulation": [folder.name for folder in options.simulation or []] or "held-out events of the run",
        "simulated_data": simulated,
        **exposure.as_json(options.zenith_max_deg),
        "zenith_max_deg": options.zenith_max_deg,
        "data": [folder.name for folder in options.data],
        "cut_flow": flow,
        "blinding": options.blinding.as_json(options.data),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "nuisance_widths": asdict(spectra.widths),
        "measured_events": len(data),
        "simulated_events": len(response.events),
        "seed": options.seed,
        "remarks": remarks,
        "versions": versions(),
        "git_revision": git_revision(),
    }
    remark(LOG, remarks)
    spectra.write(options.out, provenance)
    write_exchange(options.out)
    return spectra, remarks


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
