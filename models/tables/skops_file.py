"""Scikit-learn models in skops files: equal models give equal bytes, and reading one runs nothing."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from showers.schema import InputError
from showers.storage.files import atomic_path

SCHEMA_FILE = "schema.json"


def write_skops(file: Path, model: Any) -> None:
    """Write a scikit-learn model, atomically.

    The library names the parts of a model by their addresses in memory or at random, and stamps the time on each; here
    they are numbered in the order in which the model's description names them.
    """
    import skops.io  # it imports all of scikit-learn: only whoever writes or reads a forest waits for it

    numbers: dict[int, int] = {}
    names: dict[str, str] = {}

    def numbered(node: Any) -> Any:
        if isinstance(node, list):
            return [numbered(part) for part in node]
        if not isinstance(node, dict):
            return node
        found = {key: numbered(part) for key, part in node.items()}
        if isinstance(node.get("__id__"), int):
            # Counted from 1: the library takes 0 for no number at all.
            found["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
        if node.get("file") in members:
            suffix = PurePosixPath(node["file"]).suffix
            found["file"] = names.setdefault(node["file"], f"{len(names)}{suffix}")
        return found

    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(model))) as source:
        members = set(source.namelist()) - {SCHEMA_FILE}
        schema = numbered(json.loads(source.read(SCHEMA_FILE)))
        with atomic_path(file) as temporary, zipfile.ZipFile(temporary, "w") as target:
            for old, new in names.items():
                target.writestr(zipfile.ZipInfo(new), source.read(old))
            target.writestr(zipfile.ZipInfo(SCHEMA_FILE), json.dumps(schema))


def read_skops(file: Path, kind: type[Any], trusted: list[str]) -> Any:
    """Return the one scikit-learn model in a file.

    Raises
    ------
    InputError
        If the file holds any type but those trusted, or another model; nothing in it is run.
    """
    import skops.io

    unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(trusted))
    if unknown:
        raise InputError(f"{file} holds types that a {kind.__name__} does not need: {', '.join(unknown)}")
    model = skops.io.load(file, trusted=trusted)
    if type(model) is not kind:
        raise InputError(f"{file} holds a {type(model).__name__}, expected a {kind.__name__}")
    return model
