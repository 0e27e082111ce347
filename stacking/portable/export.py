"""A finished run written as ONNX files, with one JSON that says how they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from features.build import build_table
from features.catalogue import CATALOGUE
from models.portable.graph import COLUMNS, GRID, LOG_PROBABILITY, OPSETS, NotPortable, check_packages
from models.portable.learner import graphs_of, space_of
from models.registry import load as load_learner
from showers.execution.progress import Bars, silent
from showers.schema import AGE, SCALARS, TASKS, InputError
from showers.storage.files import atomic_folder, hash_file, write_json
from stacking.bundle import Bundle, load
from stacking.events import ShowerEvents
from stacking.portable.check import EVENTS, TOLERANCE, largest_difference
from stacking.portable.combination import CONTEXT, combination_graph, context_columns, outputs_of
from stacking.predict.fits import SavedFits

EXPORT_FILE = "export.json"
COMBINATION_FILE = "combination.onnx"
HOW = (
    "Features stay in front: compute the columns with 'features' of this version of showerstack (units below).",
    "Give every file of a fit its columns in the order listed, float32, NaN where undefined, and where it wants one "
    "the grid in MeV (station rows, station columns, channels e/gamma and muon).",
    "A fit of several files: average their log_probability in the space named (log: mean, then normalise; probability: "
    "mean of exp), for one log-probability a class.",
    "Stack the fits of each learner to (n, fits, classes) in the order listed and give them to the combination: it "
    "averages, combines, calibrates and decides.",
)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    written: dict[str, int]
    """Files by learner."""
    refused: dict[str, str]
    """Reasons by learner, or ``combination``."""
    largest_difference: float | None
    """Of a probability, over all fits; None if nothing was compared."""


def export_run(
    run: Path, out: Path, learners: Sequence[str] | None = None, check: Path | None = None, *, bars: Bars = silent
) -> Exported:
    """Write the fits of a finished run as ONNX files into a new folder.

    Parameters
    ----------
    run
        Your own finished run: its model files are opened in this process.
    out
        New folder: ``learners/<name>/fold-<k>.onnx``, ``combination.onnx``, ``export.json``.
    learners
        Names; by default those that what ships needs.
    check
        Dataset folder: up to 10,000 of its events go through every fit and its file, and must agree to 1e-5.
    bars
        Progress.

    Raises
    ------
    InputError
        If a package is missing, the run or a name cannot be used, no learner has an ONNX form, or a file differs from
        its fit.
    """
    check_packages()
    bundle = load(run, trusted=True)
    known = bundle.chain.learners
    names = tuple(learners) if learners is not None else bundle.chain.needed
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"{run} has no learner {', '.join(unknown) or 'to export'}: choose from {', '.join(known)}")
    events = None if check is None else _events(bundle, Path(check), bars)
    with atomic_folder(Path(out)) as folder, bars("exporting", "fits") as progress:
        writer = _Writer(bundle, folder, events)
        for k, name in enumerate(names):
            writer.learner(name)
            progress(k + 1, len(names), name)
        if not writer.records:
            told = "; ".join(f"{name}: {reason}" for name, reason in writer.refused.items())
            raise InputError(f"nothing to export: {told}")
        combination = writer.combination()
        write_json(folder / EXPORT_FILE, writer.content(combination))
    written = {row["name"]: sum(len(fit["files"]) for fit in row["fits"]) for row in writer.records}
    return Exported(Path(out), written, writer.refused, writer.difference)


class _Writer:
    """Files of one export and what the JSON says of them."""

    def __init__(self, bundle: Bundle, folder: Path, events: ShowerEvents | None) -> None:
        self.bundle, self.folder, self.events = bundle, folder, events
        self.records: list[dict[str, Any]] = []
        self.refused: dict[str, str] = {}
        self.difference: float | None = None

    def learner(self, name: str) -> None:
        """Write all fits of a learner, or note why not."""
        saved = self.bundle.saved_fits(name)
        place = self.folder / "learners" / name
        try:
            fits = [self._fit(saved, fold, place) for fold in range(len(saved.folders))]
        except NotPortable as error:
            self.refused[name] = str(error)
            return
        self.records.append({"name": name, "fits": fits})

    def _fit(self, saved: SavedFits, fold: int, place: Path) -> dict[str, Any]:
        learner = load_learner(saved.folders[fold], classes=self.bundle.task.classes)
        graphs, space, files = graphs_of(learner), space_of(learner), []
        if self.events is not None:
            rows = np.arange(min(EVENTS, len(self.events)))
            batch = self.events.batch(rows, saved.columns, grids=saved.needs_grid)
            found = largest_difference(graphs, space, learner, batch)
            self.difference = max(found, self.difference or 0.0)
        for k, graph in enumerate(graphs):
            file = place / (f"fold-{fold}.onnx" if len(graphs) == 1 else f"fold-{fold}.member-{k}.onnx")
            record = self._write(graph.model, file) | {COLUMNS: list(graph.columns)}
            files.append(record | ({GRID: list(graph.grid_shape)} if graph.grid_shape else {}))
        return {"fold": fold, "average": space, "files": files}

    def combination(self) -> dict[str, Any] | None:
        """Write what combines the learners, or note why not."""
        chain = self.bundle.chain
        missing = [name for name in chain.needed if name not in {row["name"] for row in self.records}]
        if missing:
            self.refused["combination"] = f"needs {', '.join(missing)}, which this export does not hold"
            return None
        try:
            graph = combination_graph(chain)
        except NotPortable as error:
            self.refused["combination"] = str(error)
            return None
        columns = context_columns(chain)
        return {
            **self._write(graph, self.folder / COMBINATION_FILE),
            "inputs": {name: ["n", chain.n_fits, chain.task.n_classes] for name in chain.needed},
            **({CONTEXT: list(columns)} if columns else {}),
            "outputs": {LOG_PROBABILITY: "calibrated, (n, classes) float32", **outputs_of(chain)},
        }

    def content(self, combination: dict[str, Any] | None) -> dict[str, Any]:
        """Return what ``export.json`` holds."""
        chain, manifest = self.bundle.chain, self.bundle.manifest
        used = {name for row in self.records for fit in row["fits"] for file in fit["files"] for name in file[COLUMNS]}
        return {
            "format": 1,
            "how": list(HOW),
            "task": chain.task.name,
            "classes": list(chain.task.classes),
            "shipped": chain.shipped,
            "config_hash": chain.config_hash,
            "feature_code_version": manifest.get("feature_code_version"),
            "versions": manifest.get("versions"),
            "opsets": {domain or "ai.onnx": version for domain, version in OPSETS.items()},
            COLUMNS: described(used | set((combination or {}).get(CONTEXT, ()))),
            "learners": self.records,
            "combination": combination,
            "refused": self.refused,
            "largest_difference_in_probability": self.difference,
            "tolerance": TOLERANCE,
        }

    def _write(self, model: Any, file: Path) -> dict[str, Any]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(model.SerializeToString(deterministic=True))
        return {"file": file.relative_to(self.folder).as_posix(), "sha256": hash_file(file)}


def described(names: set[str]) -> dict[str, dict[str, str]]:
    """Return unit and meaning of every column that the catalogue or the protocol knows; others have none."""
    scalars = {one.name: one for one in (*SCALARS, AGE)}
    found = {}
    for name in sorted(names):
        known = CATALOGUE.get(name) or scalars.get(name)
        found[name] = {"unit": known.unit, "meaning": known.meaning} if known else {}
    return found


def _events(bundle: Bundle, dataset: Path, bars: Bars) -> ShowerEvents:
    if bundle.task.name not in TASKS:
        raise InputError(f"{bundle.run} was trained on a table: --check takes a dataset folder of showers")
    table = build_table(dataset, None, device="cpu", bars=bars)
    return ShowerEvents(dataset, table.folder, bundle.task)
