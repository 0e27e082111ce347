"""Croissant metadata (version 1.0) of a card's data: which files, how long, with which checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from showers.storage.files import hash_file

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
