"""The result of an analysis of spectra on disk: tables with units in their columns' names, covariances, provenance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.spectra.estimation.errors import STATISTICAL, Errors
from analysis.spectra.estimation.estimate import SpectrumEstimate
from analysis.spectra.estimation.fractions import share_covariance, shares, total_covariance
from analysis.spectra.estimation.goodness import Goodness
from analysis.spectra.estimation.labels import ByLabels
from analysis.spectra.knees.knee import Knees, number
from showers.storage.files import atomic_path, write_json, write_npz

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
        found, errors = self.estimate, self.errors
        bins, classes = found.setting.bins, found.setting.classes
        flux, shape = found.flux, found.flux.shape
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
        events_errors = np.sqrt(np.einsum("bcc->bc", found.events_covariance))
        rows = []
        for b in range(bins.n_bins):
            for k, name in enumerate(classes):
                row = self._row(b, name) | {
                    "events": found.events[b, k],
                    "events_error_data": events_errors[b, k],
                    "fraction": fraction[b, k],
                    **{f"fraction_error_{source}": values[b, k] for source, values in fraction_errors.items()},
                    "flux_m2_sr_s_eV": flux[b, k],
                    **{f"flux_error_{source}_m2_sr_s_eV": values[b, k] for source, values in flux_errors.items()},
                    "particles_per_accepted_event": found.correction[b, k],
                }
                rows.append(row)
            total = {source: np.sqrt(np.diag(total_covariance(c, bins.n_bins)))[b] for source, c in errors.flux.items()}
            total["statistical"] = np.sqrt(sum(total[name] ** 2 for name in STATISTICAL))
            total["total"] = np.sqrt(sum(total[name] ** 2 for name in sources))
            rows.append(
                self._row(b, ALL)
                | {
                    "events": found.events[b].sum(),
                    "fraction": 1.0 if found.usable[b] else np.nan,
                    "flux_m2_sr_s_eV": flux[b].sum(),
                    **{f"flux_error_{source}_m2_sr_s_eV": value for source, value in total.items()},
                }
            )
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.with_columns(pl.selectors.float().fill_nan(None))

    def _row(self, b: int, group: str) -> dict[str, Any]:
        found = self.estimate
        edges = found.setting.bins.edges
        return {
            "lg_energy_low_eV": float(edges[b]),
            "lg_energy_high_eV": float(edges[b + 1]),
            "energy_middle_eV": float(found.setting.bins.centres_ev[b]),
            "group": group,
            "used": bool(found.usable[b]),
            "measured_events": int(found.measured[b]),
        }

    def methods(self) -> pl.DataFrame:
        """Return accepted events by every method, one row per energy bin and group."""
        found = self.estimate
        every = {"likelihood_checked": found.events, "likelihood_plain": found.plain, **self.labels.events}
        rows = [
            self._row(b, name) | {f"events_{method}": values[b, k] for method, values in every.items()}
            for b in range(found.setting.bins.n_bins)
            for k, name in enumerate(found.setting.classes)
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
