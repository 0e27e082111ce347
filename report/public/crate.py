"""Metadata for other programs: RO-Crate 1.2 (https://w3id.org/ro/crate/1.2) of a run, Croissant 1.0 of its data.

A crate says as linked data which files there are, what they are and how they came about; Croissant which files the data
are, how long, with which checksums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from showerstack.runtime.files import hash_file
from showerstack.showers.schema import TASKS

CRATE_FILE = "ro-crate-metadata.json"
SPECIFICATION = "https://w3id.org/ro/crate/1.2"
MIT = {"@id": "https://spdx.org/licenses/MIT", "@type": "CreativeWork", "name": "MIT License"}
TERMS = {
    "@id": "#terms-of-the-data",
    "@type": "CreativeWork",
    "name": "Terms of the data's providers",
    "description": "The software and models are under the MIT licence; data are under the terms of who provides them.",
}
FORMATS = {
    ".json": "application/json",
    ".md": "text/markdown",
    ".html": "text/html",
    ".toml": "application/toml",
    ".npz": "application/zip",
    ".parquet": "application/vnd.apache.parquet",
    ".npy": "application/octet-stream",
}
FILES = {
    "manifest.json": "configuration, fingerprints, versions, choices, cost of every step",
    "checksums.json": "length and SHA-256 of every file of the finished run",
    "config.toml": "options, for stack --config",
    "predictions.npz": "predictions of the test events",
    "predictions.parquet": "predictions of the rows",
    "metrics_table.json": "metrics on held-out rows",
    "metrics_table_test.json": "metrics on the test table",
    **{f"metrics_{task}.json": "metrics on the test set, with intervals" for task in TASKS},
    "report.html": "the run on one page",
    "model_card.md": "model card",
    "model_card.json": "model card for programs",
}
FOLDERS = {
    "learners/": "fits of every learner in their libraries' formats",
    "meta/": "meta-learner, calibration, decision",
    "oof/": "out-of-fold log-probabilities",
    "test/": "every learner's predictions of the test events",
    "fast/": "the student of predict --fast",
}


def crate(
    root: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the metadata document.

    Parameters
    ----------
    root
        Properties of the folder: name, description, datePublished (ISO 8601), license as a reference.
    parts
        Data entities of files and folders inside.
    others
        Entities that these refer to.
    """
    descriptor = {
        "@id": CRATE_FILE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": SPECIFICATION},
    }
    whole = {"@id": "./", "@type": "Dataset", **root, "hasPart": [{"@id": part["@id"]} for part in parts]}
    return {"@context": f"{SPECIFICATION}/context", "@graph": [descriptor, whole, *parts, *others]}


def file_entity(folder: Path, name: str, description: str, *, changes: bool = False) -> dict[str, Any]:
    """Return the entity of a file; without length and hash where it is written again from time to time."""
    file = folder / name
    result = {"@id": name, "@type": "File", "name": name, "description": description}
    result["encodingFormat"] = FORMATS.get(file.suffix, "application/octet-stream")
    if not changes:
        result |= {"contentSize": str(file.stat().st_size), "sha256": hash_file(file)}
    return result


def run_crate(run: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the crate of a finished run: files, and the action that made them of which data."""
    parts = [
        file_entity(run, name, meaning, changes=name not in ("manifest.json", "config.toml", "predictions.npz"))
        for name, meaning in FILES.items()
        if (run / name).is_file() or name == "report.html"
    ]
    parts += [
        {"@id": name, "@type": "Dataset", "name": name, "description": meaning}
        for name, meaning in FOLDERS.items()
        if (run / name).is_dir()
    ]
    software = {
        "@id": "#showerstack",
        "@type": "SoftwareApplication",
        "name": "showerstack",
        "version": str(card["versions"].get("showerstack", "unknown")),
        "license": {"@id": MIT["@id"]},
    }
    sets = [
        {
            "@id": f"#data-{split}",
            "@type": "Dataset",
            "name": row["name"],
            "identifier": str(row["fingerprint"]),
            "description": f"{row['events']:,} events, {row['origin'] or 'origin not known'}",
        }
        for split, row in card["data"].items()
    ]
    started = _iso(card["made"].get("started"))
    action = {
        "@id": "#training",
        "@type": "CreateAction",
        "name": "stack: out-of-fold training",
        "instrument": {"@id": "#showerstack"},
        "object": [{"@id": one["@id"]} for one in sets],
        "result": [{"@id": part["@id"]} for part in parts],
        "startTime": started,
        "actionStatus": {"@id": "http://schema.org/CompletedActionStatus"},
    }
    simulated = any(row["origin"] == "simulated" for row in card["data"].values())
    licence = MIT if simulated else TERMS
    root = {
        "name": f"showerstack run {card['name']}",
        "description": card["use"],
        "datePublished": started,
        "license": {"@id": licence["@id"]},
        "mentions": {"@id": "#training"},
        "identifier": str(card["config_hash"]),
    }
    return crate(root, parts, [software, action, *sets, MIT, *(() if simulated else (TERMS,))])


def data_crate(folder: Path, name: str, meanings: Mapping[str, str], *, simulated: bool) -> dict[str, Any]:
    """Return the crate of a task's data.

    Parameters
    ----------
    folder
        Holds the files.
    name
        What it is called.
    meanings
        What every file holds, by path inside of the folder.
    simulated
        Whether it was simulated by showerstack.
    """
    licence = MIT if simulated else TERMS
    root = {
        "name": name,
        "description": "Air showers on a detector array: deposits, reconstructed quantities, classes"
        + (", simulated by showerstack" if simulated else ""),
        "datePublished": datetime.now(UTC).date().isoformat(),
        "license": {"@id": licence["@id"]},
    }
    return crate(root, [file_entity(folder, file, meaning) for file, meaning in meanings.items()], [licence])


def _iso(started: Any) -> str:
    """Return ``2026-05-01 12:00 UTC`` as ISO 8601; the beginning of 1970 where a run does not say when."""
    try:
        return datetime.strptime(str(started), "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return "1970-01-01"


CROISSANT_FILE = "croissant.json"
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
MEANINGS = {
    "matrices.npy": "deposits by station, MeV: (N, 16, 16, 2), channels e/gamma and muon",
    "features.npy": "reconstructed: lg(E/eV), zenith and azimuth in degrees, lg Ne, lg Nmu, age where it counts",
    "labels.npy": "classes, (N,)",
}


def croissant(folder: Path, name: str, description: str) -> dict[str, Any]:
    """Return the metadata of ``folder``, which holds ``train`` and ``test``."""
    files = [folder / split / file for split in ("train", "test") for file in MEANINGS]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file.relative_to(folder).as_posix(),
                "name": file.relative_to(folder).as_posix(),
                "description": MEANINGS[file.name],
                "contentUrl": file.relative_to(folder).as_posix(),
                "contentSize": f"{file.stat().st_size} B",
                "encodingFormat": "application/octet-stream",
                "sha256": hash_file(file),
            }
            for file in files
        ],
    }
