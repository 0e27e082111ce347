"""The files of an analysis of spectra: tables with units in their columns' names, covariances, and provenance."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from showerstack.analysis.exchange import write_exchange
from showerstack.analysis.spectra.fluxes import SOURCES
from showerstack.analysis.spectra.folding import SCALES
from showerstack.analysis.spectra.knees import number_or_none
from showerstack.analysis.spectra.result import CELLS_CSV, COMPARISON_CSV, NUISANCES_CSV, SYSTEMATICS_CSV, Spectra
from showerstack.analysis.spectra.workspace import spectra_workspace
from showerstack.runtime.files import atomic_path, write_json, write_npz

SPECTRA_CSV, SPECTRA_PARQUET = "spectra.csv", "spectra.parquet"
COVARIANCE_FILE, PROVENANCE_FILE = "covariance.npz", "spectra.json"
KNEES_CSV, MASSES_CSV, MUONS_CSV = "knees.csv", "masses.csv", "muons.csv"
WORKSPACE_FILE = "pyhf.json"
STABILITY_CSV = "stability.csv"
SPECTRA_FILES = (
    PROVENANCE_FILE, SPECTRA_CSV, SPECTRA_PARQUET, COVARIANCE_FILE, KNEES_CSV, MASSES_CSV, MUONS_CSV, CELLS_CSV,
    NUISANCES_CSV, WORKSPACE_FILE, STABILITY_CSV, SYSTEMATICS_CSV, COMPARISON_CSV,
)  # fmt: skip
"""What a measurement writes, beside folders."""


def write_spectra(spectra: Spectra, out: Path) -> None:
    """Write all tables, the covariances by source, the likelihood, the provenance, and what data bases take.

    A table that this result lacks is removed: it is of an earlier one.
    """
    out.mkdir(parents=True, exist_ok=True)
    table, covariances = spectra.table(), {name: spectra.covariance((name,)) for name in SOURCES}
    frames = {
        SPECTRA_CSV: table,
        MASSES_CSV: spectra.masses(),
        KNEES_CSV: None if spectra.knees is None else spectra.knees.table(),
        MUONS_CSV: spectra.muons,
        STABILITY_CSV: spectra.stability,
        **spectra.sources(),
    }
    for name, frame in frames.items():
        if frame is None:
            (out / name).unlink(missing_ok=True)
            continue
        with atomic_path(out / name) as temporary:
            frame.write_csv(temporary)
    with atomic_path(out / SPECTRA_PARQUET) as temporary:
        table.write_parquet(temporary)
    write_npz(
        out / COVARIANCE_FILE,
        lg_energy_edges_eV=spectra.fluxes.edges,
        flux_m2_sr_s_eV=spectra.flux,
        **{f"flux_{name}_m2_sr_s_eV_squared": matrix for name, matrix in covariances.items()},
    )
    fit = spectra.fit
    write_json(out / WORKSPACE_FILE, spectra_workspace(fit, spectra.fluxes.edges, spectra.exposure_error))
    write_json(
        out / PROVENANCE_FILE,
        ({} if spectra.provenance is None else spectra.provenance.as_json())
        | {
            "nuisance_widths": asdict(spectra.widths),
            "remarks": list(spectra.remarks),
            "groups": list(spectra.groups.names),
            "covariance_order": "flux.ravel(): energy bin, then group",
            "error_sources": list(SOURCES),
            "knees": None if spectra.knees is None else spectra.knees.as_json(),
            "scales_in_widths": dict(zip(SCALES, fit.scales.tolist(), strict=True)),
            "goodness_of_fit": {
                "observable": "lg E, sum of P ln A",
                "chi2": number_or_none(fit.chi2),
                "cells": int(fit.likelihood.simulated.sum()),
                "degrees_of_freedom": fit.ndf,
                "p_value": spectra.p_value,
                "refused": fit.refusal,
            },
        },
    )
    write_exchange(out, table, covariances, groups=spectra.groups.names)
