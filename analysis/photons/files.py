"""The files of a search for photons: tables with units in their columns' names, models for pyhf, and provenance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from showerstack.analysis.photons.result import PhotonResult
from showerstack.analysis.photons.workspace import workspace
from showerstack.runtime.files import atomic_path, write_json

LIMITS_CSV, CANDIDATES_CSV, SEARCH_FILE = "limits.csv", "candidates.csv", "gamma_limit.json"
WORKSPACES = "pyhf"
"""Folder of the models, a file an energy range."""


def write_limits(result: PhotonResult, out: Path) -> None:
    """Write both tables, the models for pyhf and the provenance; models of an earlier search are removed."""
    (out / WORKSPACES).mkdir(parents=True, exist_ok=True)
    for earlier in (out / WORKSPACES).glob("*.json"):
        earlier.unlink()
    for limit in result.search.limits:
        energy = (
            f"above_{limit.lg_energy_low:g}" if limit.integral else f"{limit.lg_energy_low:g}-{limit.lg_energy_high:g}"
        )
        if limit.efficiency > 0:
            write_json(out / WORKSPACES / f"{energy}.json", workspace(limit.counts, limit.efficiency, limit.common))
    for name, frame in ((LIMITS_CSV, result.limits()), (CANDIDATES_CSV, result.candidates())):
        with atomic_path(out / name) as temporary:
            frame.write_csv(temporary)
    search, options = result.search, result.search.options
    transfer = search.transfer
    write_json(
        out / SEARCH_FILE,
        {
            **({} if search.provenance is None else search.provenance.as_json()),
            "confidence_level": options.level,
            "photon_spectral_index": options.index,
            "photon_energy": None
            if search.energy is None
            else {
                "of": ["1", "lg_ne - 5", "sec(zenith) - 1"],
                "coefficients": search.energy.coefficients.tolist(),
                "resolution_lg": search.energy.resolution,
            },
            "toys": options.toys,
            "efficiency_and_migration_known": search.efficiency_known,
            "thresholds": [
                {
                    "lg_energy_low_eV": float(search.bins.edges[b]),
                    "threshold": float(search.regions.threshold[b]),
                    "sideband_from": float(search.regions.side[b]),
                    "sideband_middle": float(search.regions.middle[b]),
                }
                for b in np.flatnonzero(search.regions.usable)
            ],
            "errors_complete": bool(np.isfinite(transfer.models)),
            "transfer": {
                "relative_error_models": None if np.isnan(transfer.models) else transfer.models,
                "relative_error_closure": transfer.closure,
                "closure_seen_over_predicted": transfer.closure_ratio,
                "closure_error": transfer.closure_error,
            },
            "measured_events": len(search.data),
            "simulated_events_measuring": len(search.measuring.events),
            "limits": result.limits().to_dicts(),
            "remarks": list(search.remarks),
        },
    )
