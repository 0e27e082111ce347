"""What an analysis of spectra found, as a value: fluxes, errors, knees, and the tables that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.options import Widths
from showerstack.analysis.provenance import Provenance
from showerstack.analysis.spectra.fluxes import (
    SOURCES,
    STATISTICAL,
    FreeFluxes,
    covariance_of_sums,
    mean_ln_mass,
    share_covariance,
    shares,
    variance_of_ln_mass,
)
from showerstack.analysis.spectra.knees import Knees
from showerstack.analysis.spectra.likelihood import FoldedFit
from showerstack.analysis.spectra.published import global_spline_fit, published_spectra
from showerstack.analysis.spectra.response import MassGroups
from showerstack.analysis.spectra.sources import cells_table, compare_with, nuisances_table, systematics_table

CELLS_CSV, NUISANCES_CSV = "cells.csv", "nuisances.csv"
SYSTEMATICS_CSV, COMPARISON_CSV = "systematics.csv", "comparison.csv"
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
    muons: pl.DataFrame | None = None
    """The muon scale z by energy and model (:mod:`showerstack.analysis.spectra.muons`)."""
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None
    """None of fits whose events were made up."""

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
        return self._table

    @cached_property
    def _table(self) -> pl.DataFrame:
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
        return self._masses

    @cached_property
    def _masses(self) -> pl.DataFrame:
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
        return self._sources

    @cached_property
    def _sources(self) -> dict[str, pl.DataFrame]:
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
