"""Spectra for data bases of others: HEPData's submission with covariances, and rows of the cosmic-ray data base CRDB.

Both are made from the tables, whose columns name their units. HEPData
(HEPData/hepdata-submission, docs): ``submission.yaml`` and a file a table; YAML's subset JSON is written, which every
reader of YAML takes. CRDB (crdb-project/crdb, core.py): total energies in GeV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.files import atomic_path
from showerstack.showers.schema import COMPOSITION

HEPDATA_FOLDER, CRDB_CSV = "hepdata", "crdb.csv"
FLUX = "flux_m2_sr_s_eV"
ERROR = re.compile(r"flux_error_(.+)_m2_sr_s_eV")
STATISTICAL_SOURCES = ("data", "simulation")
SUMS = ("statistical", "total")
EV_PER_GEV = 1e9
CRDB_NAMES = {"proton": "H", "helium": "He", "carbon": "C", "silicon": "Si", "iron": "Fe", "all": "AllParticles"}


def error_columns(table: pl.DataFrame) -> dict[str, str]:
    """Return the columns of flux errors by source, sums of sources left out."""
    matches = {name: ERROR.fullmatch(name) for name in table.columns}
    return {match[1]: name for name, match in matches.items() if match and match[1] not in SUMS}


def write_exchange(
    out: Path,
    table: pl.DataFrame,
    covariances: Mapping[str, np.ndarray],
    experiment: str = "KASCADE",
    *,
    groups: Sequence[str] = COMPOSITION.classes,
) -> list[Path]:
    """Write ``OUT/hepdata/`` and ``OUT/crdb.csv`` of spectra and their covariances by source; return the files.

    Tables of earlier spectra in the folder are removed.

    Bins that are not used or not determined are '-' in HEPData's tables and missing among CRDB's rows. An error that is
    not known is left out of a value's errors and named in the table's description; CRDB's rows need all errors.
    """
    folder = out / HEPDATA_FOLDER
    folder.mkdir(exist_ok=True)
    for earlier in (*folder.glob("flux_*.yaml"), *folder.glob("covariance_*.yaml")):
        earlier.unlink()
    files, documents = [], []
    for (group,), part in table.group_by("group", maintain_order=True):
        name = f"flux_{group}"
        content, unknown = _hepdata_table(part)
        files.append(_write_as_yaml(folder / f"{name}.yaml", content))
        description = f"Flux of {group}. Errors by source, one standard deviation."
        description += f" Unknown in some bins: {', '.join(unknown)}." if unknown else ""
        if part.filter(pl.col("used") & pl.col(FLUX).is_null()).height:
            description += " Not determined in some bins."
        documents.append(_document(f"Flux of {group}", description, f"{name}.yaml"))
    for source, matrix in covariances.items():
        name = f"covariance_{source}"
        files.append(_write_as_yaml(folder / f"{name}.yaml", _hepdata_matrix(table, matrix, groups)))
        description = f"Covariance of all groups' fluxes from the source {source}: energy bin, then group."
        documents.append(_document(f"Covariance, {source}"[:64], description, f"{name}.yaml"))
    head = {"comment": f"Elemental spectra of {experiment} events, with covariances by source of error."}
    text = "\n".join(f"---\n{_as_yaml(one)}" for one in (head, *documents)) + "\n"
    with atomic_path(folder / "submission.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")
    with atomic_path(out / CRDB_CSV) as temporary:
        crdb_rows(table, experiment).write_csv(temporary)
    return [folder / "submission.yaml", *files, out / CRDB_CSV]


def _write_as_yaml(file: Path, content: Any) -> Path:
    with atomic_path(file) as temporary:
        temporary.write_text(_as_yaml(content) + "\n", encoding="utf-8")
    return file


def _as_yaml(content: Any) -> str:
    """Return JSON that YAML 1.1 reads alike: there a number with an exponent needs a dot."""
    return re.sub(r"(?m)(: |^ *)(-?\d+)(e[-+]\d+)", r"\1\2.0\3", json.dumps(content, indent=1))


def _document(name: str, description: str, file: str) -> dict[str, Any]:
    keywords = [
        {"name": "reactions", "values": ["COSMIC-RAY AIR --> X"]},
        {"name": "observables", "values": ["FLUX"]},
        {"name": "phrases", "values": ["Cosmic Rays", "Mass Composition"]},
    ]
    return {"name": name, "description": description, "keywords": keywords, "data_file": file}


def _hepdata_table(part: pl.DataFrame) -> tuple[dict[str, Any], list[str]]:
    energies, values, unknown = [], [], set()
    for row in part.iter_rows(named=True):
        energies.append({"low": 10.0 ** row["lg_energy_low_eV"], "high": 10.0 ** row["lg_energy_high_eV"]})
        flux, errors = row[FLUX], []
        for source, column in error_columns(part).items():
            if row[column] is None:
                unknown |= {source} if flux is not None else set()
            elif row[column] > 0:
                errors.append(
                    {"symerror": row[column], "label": f"{'stat' if _is_statistical(source) else 'sys'},{source}"}
                )
        known = row["used"] and flux is not None and errors
        values.append({"value": flux, "errors": errors} if known else {"value": "-"})
    return {
        "independent_variables": [{"header": {"name": "Energy", "units": "eV"}, "values": energies}],
        "dependent_variables": [
            {"header": {"name": "Flux", "units": "m^-2 sr^-1 s^-1 eV^-1"}, "qualifiers": [], "values": values}
        ],
    }, sorted(unknown)


def _is_statistical(source: str) -> bool:
    return source in STATISTICAL_SOURCES


def _hepdata_matrix(table: pl.DataFrame, matrix: np.ndarray, groups: Sequence[str]) -> dict[str, Any]:
    rows = table.filter(pl.col("group").is_in(groups)).select("lg_energy_low_eV", "lg_energy_high_eV", "group").rows()
    names = [f"{low:g} to {high:g}, {group}" for low, high, group in rows]
    first, second = ([names[i] for i in pair] for pair in np.indices(matrix.shape).reshape(2, -1))
    values = [{"value": float(x) if np.isfinite(x) else "-"} for x in matrix.ravel()]
    return {
        "independent_variables": [
            {"header": {"name": f"lg(E/eV) and group, {number}"}, "values": [{"value": one} for one in side]}
            for number, side in (("first", first), ("second", second))
        ],
        "dependent_variables": [
            {"header": {"name": "Covariance", "units": "(m^-2 sr^-1 s^-1 eV^-1)^2"}, "values": values}
        ],
    }


def crdb_rows(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """Return one row a used bin and group whose errors are all known: energies in GeV, fluxes per GeV."""
    columns = error_columns(table)
    rows = []
    for row in table.filter(pl.col("used")).iter_rows(named=True):
        errors = {source: row[column] for source, column in columns.items()}
        if row[FLUX] is None or any(value is None for value in errors.values()):
            continue
        statistical, systematic = (
            EV_PER_GEV * float(np.sqrt(sum(e**2 for s, e in errors.items() if _is_statistical(s) is kind)))
            for kind in (True, False)
        )
        rows.append(
            {
                "EXP-NAME": experiment,
                "SUBEXP-NAME": experiment,
                "DATA-QTY": CRDB_NAMES.get(row["group"], row["group"]),
                "DATA-EAXIS": "ETOT",
                "DATA-E_MEAN": row["energy_middle_eV"] / EV_PER_GEV,
                "DATA-E_BIN_L": 10.0 ** row["lg_energy_low_eV"] / EV_PER_GEV,
                "DATA-E_BIN_U": 10.0 ** row["lg_energy_high_eV"] / EV_PER_GEV,
                "DATA-VAL": row[FLUX] * EV_PER_GEV,
                "DATA-VAL_ERRSTAT_L": statistical,
                "DATA-VAL_ERRSTAT_U": statistical,
                "DATA-VAL_ERRSYST_L": systematic,
                "DATA-VAL_ERRSYST_U": systematic,
                "DATA-ISUPPERLIM": 0,
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)
