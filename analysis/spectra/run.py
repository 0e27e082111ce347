"""From a run, measured events and an exposure to elemental spectra with errors: what ``cli.py spectra`` calls.

The result on disk is tables with units in their columns' names, covariances, and provenance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.events import is_simulated, open_run
from analysis.spectra.errors import (
    STATISTICAL,
    Errors,
    Goodness,
    Widths,
    all_errors,
    goodness,
    share_covariance,
    shares,
    total_covariance,
)
from analysis.spectra.estimate import Setting, SpectrumEstimate, estimate
from analysis.spectra.knees import Knees, fit_knees, number
from analysis.spectra.labels import ByLabels, by_labels
from analysis.spectra.power_law import SHARPNESS
from analysis.spectra.reading import LG_NE_MIN, LG_NMU_MIN, read_measured, read_response, training_prior
from analysis.spectra.response import Binning, Simulated, SpectrumEvents, binning, judge_exposure, parse_exposure
from runtime.code import git_revision, versions
from runtime.context import Context
from runtime.errors import InputError
from runtime.files import atomic_path, write_json, write_npz
from showers.dataset import Dataset
from showers.schema import COMPOSITION

SPECTRA_CSV, SPECTRA_PARQUET = "spectra.csv", "spectra.parquet"
METHODS_CSV, COVARIANCE_FILE, PROVENANCE_FILE = "methods.csv", "covariance.npz", "spectra.json"
KNEES_CSV = "knees.csv"
ALL = "all"
Z68, Z95 = 1.0, 1.959964


@dataclass(frozen=True)
class Spectra:
    """Everything that one analysis found."""

    estimate: SpectrumEstimate
    errors: Errors
    labels: ByLabels
    goodness: Goodness
    knees: Knees | None = None
    """None where they were not asked for or cannot be fitted."""

    def table(self) -> pl.DataFrame:
        """Return one row per energy bin and group, and one for the sum of all groups."""
        result, errors = self.estimate, self.errors
        bins, classes = result.setting.bins, result.setting.classes
        flux, shape = result.flux, result.flux.shape
        fraction = shares(flux)
        sources = list(errors.flux)
        flux_errors = {name: errors.standard(shape, (name,)) for name in sources}
        flux_errors["statistical"] = errors.standard(shape, STATISTICAL)
        flux_errors["total"] = errors.standard(shape)
        fraction_errors = {
            name: np.sqrt(np.diag(share_covariance(flux, covariance))).reshape(shape)
            for name, covariance in {
                **errors.flux, "statistical": errors.total(STATISTICAL), "total": errors.total()
            }.items()
        }  # fmt: skip
        events_errors = np.sqrt(np.einsum("bcc->bc", result.events_covariance))
        rows = []
        for b in range(bins.n_bins):
            for k, name in enumerate(classes):
                row = self._row(b, name) | {
                    "events": result.events[b, k],
                    "events_error_data": events_errors[b, k],
                    "fraction": fraction[b, k],
                    **{f"fraction_error_{source}": values[b, k] for source, values in fraction_errors.items()},
                    "flux_m2_sr_s_eV": flux[b, k],
                    **{f"flux_error_{source}_m2_sr_s_eV": values[b, k] for source, values in flux_errors.items()},
                    "particles_per_accepted_event": result.correction[b, k],
                }
                rows.append(row)
            total = {source: np.sqrt(np.diag(total_covariance(c, bins.n_bins)))[b] for source, c in errors.flux.items()}
            total["statistical"] = np.sqrt(sum(total[name] ** 2 for name in STATISTICAL))
            total["total"] = np.sqrt(sum(total[name] ** 2 for name in sources))
            rows.append(
                self._row(b, ALL)
                | {
                    "events": result.events[b].sum(),
                    "fraction": 1.0 if result.usable[b] else np.nan,
                    "flux_m2_sr_s_eV": flux[b].sum(),
                    **{f"flux_error_{source}_m2_sr_s_eV": value for source, value in total.items()},
                }
            )
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.with_columns(pl.selectors.float().fill_nan(None))

    def _row(self, b: int, group: str) -> dict[str, Any]:
        result = self.estimate
        edges = result.setting.bins.edges
        return {
            "lg_energy_low_eV": float(edges[b]),
            "lg_energy_high_eV": float(edges[b + 1]),
            "energy_middle_eV": float(result.setting.bins.centres_ev[b]),
            "group": group,
            "used": bool(result.usable[b]),
            "measured_events": int(result.measured[b]),
        }

    def methods(self) -> pl.DataFrame:
        """Return accepted events by every method, one row per energy bin and group."""
        result = self.estimate
        every = {"likelihood_checked": result.events, "likelihood_plain": result.plain, **self.labels.events}
        rows = [
            self._row(b, name) | {f"events_{method}": values[b, k] for method, values in every.items()}
            for b in range(result.setting.bins.n_bins)
            for k, name in enumerate(result.setting.classes)
        ]
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.selectors.float().fill_nan(None))

    def write(self, out: Path, provenance: dict[str, Any]) -> None:
        """Write all tables, the covariances by source, and the provenance."""
        out.mkdir(parents=True, exist_ok=True)
        table = self.table()
        knees = [] if self.knees is None else [(KNEES_CSV, self.knees.table())]
        for name, frame in ((SPECTRA_CSV, table), (METHODS_CSV, self.methods()), *knees):
            with atomic_path(out / name) as temporary:
                frame.write_csv(temporary)
        with atomic_path(out / SPECTRA_PARQUET) as temporary:
            table.write_parquet(temporary)
        write_npz(
            out / COVARIANCE_FILE,
            lg_energy_edges_eV=self.estimate.setting.bins.edges,
            flux_m2_sr_s_eV=self.estimate.flux,
            **{f"flux_{name}_m2_sr_s_eV_squared": matrix for name, matrix in self.errors.flux.items()},
        )
        good = self.goodness
        by_bin = zip(good.chi2_by_bin, good.p_by_bin, strict=True)
        write_json(
            out / PROVENANCE_FILE,
            provenance
            | {
                "groups": list(self.estimate.setting.classes),
                "covariance_order": "flux.ravel(): energy bin, then group",
                "error_sources": list(self.errors.flux),
                "knees": None if self.knees is None else self.knees.as_json(),
                "bayes_iterations": self.labels.iterations,
                "regularisation_strength": self.labels.strength,
                "goodness_of_fit": {
                    "observable": "lg Ne - lg Nmu",
                    "chi2": good.chi2,
                    "cells": good.cells,
                    "p_value": good.p_value,
                    "toys": good.toys,
                    "by_bin": [
                        {"chi2": number(chi2), "p_value": number(p)} for chi2, p in by_bin
                    ],
                },
            },
        )  # fmt: skip


EDGES = (15.15, 15.35, 15.55, 15.75, 15.95, 16.15, 16.35, 16.55, 16.75)
"""Borders of the energy bins, lg(E/eV): twice as wide as published ones, because errors of the response are counted."""
ZENITH_MAX_DEG = 18.0


@dataclass(frozen=True)
class SpectraOptions:
    """What the user asks for."""

    run: Path
    data: list[Path]
    exposure: str
    out: Path
    simulation: list[Path]
    edges: tuple[float, ...] = EDGES
    zenith_max_deg: float = ZENITH_MAX_DEG
    widths: Widths = field(default_factory=Widths)
    replicas: int = 100
    knee_toys: int = 100
    """Toy experiments a hypothesis; 0: no fit of knees."""
    knee_sharpness: float = SHARPNESS
    seed: int = 1


def measure_spectra(options: SpectraOptions, ctx: Context = Context()) -> tuple[Spectra, list[str]]:
    """Measure fluxes and fractions by mass group and energy, write them, and return them with all remarks.

    Raises
    ------
    InputError
        For a run of another task, data that were trained on, an exposure that cannot be, bins without simulation.
    """
    exposure = parse_exposure(options.exposure)
    bins = binning(options.edges)
    if not 0 < options.zenith_max_deg <= 60:
        raise InputError(f"--zenith-max {options.zenith_max_deg:g}: give degrees above 0 and at most 60")
    if options.replicas < 20:
        raise InputError(f"--replicas {options.replicas}: at least 20, or errors of the simulation mean nothing")
    if options.knee_toys < 0 or not 0.5 <= options.knee_sharpness <= 100:
        raise InputError("--knee-toys must be 0 or more, --knee-sharpness between 0.5 and 100")
    run = open_run(options.run, COMPOSITION.name, "spectra")
    data, prints, remarks = read_measured(run, options.data, options.zenith_max_deg, ctx)
    response = read_response(run, options.simulation, prints, bins, options.zenith_max_deg, ctx)
    prior, new_remarks = training_prior(run, bins, options.zenith_max_deg, response)
    remarks += [*response.remarks, *([new_remarks] if new_remarks else []), *outside(data, response.events, bins)]
    setting = Setting(bins, exposure, prior)
    with ctx.bars("spectra", "steps") as progress:
        progress(0, 5, "fluxes")
        values = estimate(data, response.events, response.thrown, setting)
        simulated = all(is_simulated(Dataset.open(folder, labels=False)) for folder in options.data)
        remarks += judge_exposure(values.flux.sum(axis=1), bins.centres_ev, simulated=simulated)
        progress(1, 5, "errors")
        errors = all_errors(
            values, data, response.events, response.thrown,
            widths=options.widths, replicas=options.replicas, seed=options.seed,
        )  # fmt: skip
        progress(2, 5, "decided labels")
        hard = estimate(data, response.events, response.thrown, Setting(bins, exposure, prior, "label"))
        labels = by_labels(hard)
        progress(3, 5, "goodness of fit")
        fit = goodness(values, data, response.events, toys=2 * options.replicas)
        progress(4, 5, "knees")
        knees = (
            fit_knees(values, errors, sharpness=options.knee_sharpness, toys=options.knee_toys, seed=options.seed)
            if options.knee_toys
            else None
        )
        progress(5, 5)
    remarks += [*errors.remarks, *([knees] if isinstance(knees, str) else [])]
    result = Spectra(values, errors, labels, fit, None if isinstance(knees, str) else knees)
    provenance = {
        "run": options.run.resolve().name,
        "config_hash": run.chain.config_hash,
        "data_fingerprints": prints,
        "simulation": [folder.name for folder in options.simulation] or "held-out events of the run",
        "simulated_data": simulated,
        "exposure_m2_sr_s": exposure,
        "zenith_max_deg": options.zenith_max_deg,
        "cuts": f"Ze < {options.zenith_max_deg:g} deg, Ne > {LG_NE_MIN}, Nmu > {LG_NMU_MIN} (lg)",
        "corrected_for_efficiency": response.thrown is not None,
        "nuisance_widths": asdict(options.widths),
        "measured_events": len(data),
        "simulated_events": len(response.events),
        "replicas": options.replicas,
        "seed": options.seed,
        "remarks": remarks,
        "versions": versions(),
        "git_revision": git_revision(),
    }
    result.write(options.out, provenance)
    return result, remarks


def outside(data: SpectrumEvents, simulated: Simulated, bins: Binning) -> list[str]:
    """Return remarks on measured energies beyond the bins and beyond all simulated ones."""
    remarks = []
    beyond = int(((data.lg_energy < simulated.lg_energy.min()) | (data.lg_energy > simulated.lg_energy.max())).sum())
    if beyond:
        remarks.append(
            f"{beyond:,} measured events ({100 * beyond / len(data):.2g} %) have energies outside those of the "
            f"simulation, lg(E/eV) {simulated.lg_energy.min():.2f} to {simulated.lg_energy.max():.2f}"
        )
    left = int((bins.place(data.lg_energy) < 0).sum())
    if left:
        remarks.append(
            f"{left:,} of {len(data):,} measured events lie outside the energy bins, "
            f"lg(E/eV) {bins.edges[0]:g} to {bins.edges[-1]:g}"
        )
    used = np.bincount(bins.place(data.lg_energy)[bins.place(data.lg_energy) >= 0], minlength=bins.n_bins)
    empty = [f"{bins.edges[b]:g}-{bins.edges[b + 1]:g}" for b in np.flatnonzero(used == 0)]
    if empty:
        remarks.append(f"no measured event in the energy bins {', '.join(empty)} of lg(E/eV)")
    return remarks
