"""The result of a search for photons on disk: tables with units in their columns' names, and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.photons.events import LG_NE_MIN
from analysis.photons.limits import BAND
from analysis.photons.search import Limit, PhotonSearch
from showers.storage.files import atomic_path, write_json
from stacking.run.provenance import git_revision, versions

LIMITS_CSV, CANDIDATES_CSV, SEARCH_FILE = "limits.csv", "candidates.csv", "gamma_limit.json"


@dataclass(frozen=True)
class PhotonResult:
    """Tables of a search."""

    search: PhotonSearch

    def limits(self) -> pl.DataFrame:
        """Return one row per energy bin, then one per energy from which all are added up."""
        return pl.DataFrame([self._row(one) for one in self.search.limits], infer_schema_length=None).with_columns(
            pl.selectors.float().fill_nan(None)
        )

    def _row(self, one: Limit) -> dict[str, Any]:
        back = one.backgrounds
        flux = "photons_m2_sr_s" if one.integral else "photons_m2_sr_s_eV"
        both = {"photons_m2_sr_s_eV": None, "photons_m2_sr_s": None}
        scales = {"fraction": one.fraction_per_event} | both | {flux: one.flux_per_event}
        row: dict[str, Any] = {
            "range": "above" if one.integral else "bin",
            "lg_energy_low_eV": one.lg_energy_low,
            "lg_energy_high_eV": one.lg_energy_high,
            "measured_events": one.measured,
            "candidates": one.candidates,
            "background_data": back.data.mean,
            "background_data_error": back.data.error,
            "background_simulation": back.simulation.mean,
            "background_simulation_error": back.simulation.error,
            "sideband_events": back.side_seen,
            "sideband_events_simulation": back.side_expected,
            "transfer": back.transfer,
            "significance_sigma": one.significance,
            "photon_efficiency": one.efficiency,
            "photon_efficiency_error": one.efficiency_error,
            "limit_events": one.limit,
            "limit_events_background_simulation": one.limit_simulation,
            "interval_low_events": one.interval[0],
            "interval_high_events": one.interval[1],
        }
        row |= {f"limit_events_expected_{share:g}": value for share, value in zip(BAND, one.expected, strict=True)}
        for name, scale in scales.items():
            for what, value in (("limit", one.limit), ("expected_limit", one.expected[len(BAND) // 2])):
                row[f"{what}_{name}"] = None if scale is None else value * scale
        return row

    def candidates(self) -> pl.DataFrame:
        """Return the events above the threshold, highest score first."""
        found = self.search
        data = found.data.take(found.candidates)
        place = found.bins.place(data.lg_energy)
        folders = [folder.name for folder in found.options.data]
        return pl.DataFrame(
            {
                "data": [folders[k] for k in data.folder],
                "row": data.row,
                "score": data.score,
                "score_above_threshold": data.score - found.regions.threshold[place],
                "lg_energy_eV": data.lg_energy,
                "zenith_deg": data.zenith_deg,
                "lg_ne": data.lg_ne,
                "lg_nmu": data.lg_nmu,
            }
        )

    def write(self, out: Path) -> None:
        """Write both tables and the provenance."""
        out.mkdir(parents=True, exist_ok=True)
        for name, frame in ((LIMITS_CSV, self.limits()), (CANDIDATES_CSV, self.candidates())):
            with atomic_path(out / name) as temporary:
                frame.write_csv(temporary)
        found, options = self.search, self.search.options
        transfer = found.transfer
        write_json(
            out / SEARCH_FILE,
            {
                "run": options.run.resolve().name,
                "config_hash": found.config_hash,
                "data_fingerprints": list(found.fingerprints),
                "simulation": options.simulation.name if options.simulation else "held-out events of the run",
                "simulated_data": found.simulated_data,
                "exposure_m2_sr_s": found.exposure_m2_sr_s,
                "cuts": f"Ze < {options.zenith_max_deg:g} deg, Ne > {LG_NE_MIN} (lg)",
                "confidence_level": options.level,
                "photon_spectral_index": options.index,
                "efficiency_and_migration_known": found.efficiency_known,
                "thresholds": [
                    {
                        "lg_energy_low_eV": float(found.bins.edges[b]),
                        "threshold": float(found.regions.threshold[b]),
                        "sideband_from": float(found.regions.side[b]),
                        "sideband_middle": float(found.regions.middle[b]),
                    }
                    for b in np.flatnonzero(found.regions.usable)
                ],
                "transfer": {
                    "relative_error_models": transfer.models,
                    "relative_error_closure": transfer.closure,
                    "closure_seen_over_predicted": transfer.closure_ratio,
                    "closure_error": transfer.closure_error,
                },
                "measured_events": len(found.data),
                "simulated_events_measuring": len(found.measuring.events),
                "limits": self.limits().to_dicts(),
                "seed": options.seed,
                "remarks": list(found.remarks),
                "versions": versions(),
                "git_revision": git_revision(),
            },
        )
