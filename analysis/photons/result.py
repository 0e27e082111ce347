"""What a search for photons found, as a value, and the tables that are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.options import SearchOptions
from showerstack.analysis.photons.background import Backgrounds, Regions, Transfer, Weighted
from showerstack.analysis.photons.events import PhotonEnergy, SearchEvents
from showerstack.analysis.photons.limits import BAND
from showerstack.analysis.photons.on_off import Common, OnOff
from showerstack.analysis.provenance import Provenance
from showerstack.analysis.spectra.response import Binning


@dataclass(frozen=True)
class Limit:
    """Limits in one energy range."""

    lg_energy_low: float
    lg_energy_high: float
    integral: bool
    """Walking up: all energies from ``lg_energy_low`` on."""
    measured: int
    candidates: int
    backgrounds: Backgrounds
    efficiency: float
    """Photons above the threshold per photon sent (accepted, where thrown ones are not known)."""
    efficiency_error: float
    limit: float
    """Events, by CLs with the background from data."""
    limit_simulation: float
    """The same with the background from simulation."""
    expected: np.ndarray
    """(5,) limits expected without photons, at the quantiles of :data:`showerstack.analysis.photons.limits.BAND`."""
    interval: tuple[float, float]
    """Events: the unified interval by the likelihood ratio, background from data."""
    significance: float
    """Of an excess, standard deviations; 0 for a deficit."""
    sent_per_flux: float
    """Photons sent for a flux of one m^-2 sr^-1 s^-1 (eV^-1 where not integral); NaN where it is not known."""
    hadrons_sent: float
    """Particles that the measured events stand for, in the exposure."""
    leak: float
    """Signal events in the sideband for one above the threshold, which the likelihood knows of."""
    counts: OnOff
    common: Common

    @property
    def flux_per_event(self) -> float:
        """By which events are multiplied to give fluxes."""
        return 1.0 / (self.efficiency * self.sent_per_flux) if self.efficiency > 0 else np.nan

    @property
    def fraction_per_event(self) -> float:
        """By which events are multiplied to give the share of photons in all particles of the same energy."""
        return 1.0 / (self.efficiency * self.hadrons_sent) if self.efficiency > 0 else np.nan


@dataclass(frozen=True)
class PhotonSearch:
    """All that a search found."""

    options: SearchOptions
    bins: Binning
    regions: Regions
    transfer: Transfer
    limits: tuple[Limit, ...]
    """First the bins that can be used, then the integral ones."""
    data: SearchEvents
    candidates: np.ndarray
    """Positions in :attr:`data`, highest score first."""
    measuring: Weighted
    energy: PhotonEnergy | None
    """None where true energies are not known: the hadrons' formula stands in."""
    efficiency_known: bool
    remarks: tuple[str, ...]
    provenance: Provenance | None = None
    """None of searches whose events were made up."""


@dataclass(frozen=True)
class PhotonResult:
    """Tables of a search."""

    search: PhotonSearch

    def limits(self) -> pl.DataFrame:
        """Return one row per energy bin, then one per energy from which all are added up."""
        return pl.DataFrame([self._row(one) for one in self.search.limits], infer_schema_length=None).with_columns(
            pl.selectors.float().fill_nan(None)
        )

    def _row(self, limit: Limit) -> dict[str, Any]:
        background = limit.backgrounds
        flux = "photons_m2_sr_s" if limit.integral else "photons_m2_sr_s_eV"
        both = {"photons_m2_sr_s_eV": None, "photons_m2_sr_s": None}
        scales = {"fraction": limit.fraction_per_event} | both | {flux: limit.flux_per_event}
        row: dict[str, Any] = {
            "range": "above" if limit.integral else "bin",
            "lg_energy_low_eV": limit.lg_energy_low,
            "lg_energy_high_eV": limit.lg_energy_high,
            "measured_events": limit.measured,
            "candidates": limit.candidates,
            "background_data": background.data.mean,
            "background_data_error": background.data.error,
            "background_simulation": background.simulation.mean,
            "background_simulation_error": background.simulation.error,
            "sideband_events": background.side_seen,
            "sideband_events_simulation": background.side_expected,
            "transfer": background.transfer,
            "significance_sigma": limit.significance,
            "errors_complete": bool(np.isfinite(self.search.transfer.models)),
            "photon_efficiency": limit.efficiency,
            "photon_efficiency_error": limit.efficiency_error,
            "limit_events": limit.limit,
            "limit_events_background_simulation": limit.limit_simulation,
            "interval_low_events": limit.interval[0],
            "interval_high_events": limit.interval[1],
        }
        row |= {f"limit_events_expected_{share:g}": value for share, value in zip(BAND, limit.expected, strict=True)}
        for name, scale in scales.items():
            for what, value in (("limit", limit.limit), ("expected_limit", limit.expected[len(BAND) // 2])):
                row[f"{what}_{name}"] = None if scale is None else value * scale
        return row

    def candidates(self) -> pl.DataFrame:
        """Return the events above the threshold, highest score first."""
        search = self.search
        data = search.data.take(search.candidates)
        energy_bin = search.bins.bin_of(data.lg_energy)
        folders = [folder.name for folder in search.options.data]
        return pl.DataFrame(
            {
                "data": pl.Series([folders[k] for k in data.folder], dtype=pl.String),
                "row": data.row,
                "score": data.score,
                "score_above_threshold": data.score - search.regions.threshold[energy_bin],
                "lg_energy_eV": data.lg_energy,
                "lg_energy_hadron_eV": data.lg_energy_hadron,
                "zenith_deg": data.zenith_deg,
                "lg_ne": data.lg_ne,
                "lg_nmu": data.lg_nmu,
            }
        )
