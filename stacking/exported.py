"""A run that was exported, opened for predictions: ONNX files in place of the learners' libraries.

What follows the learners is the run's own chain (:mod:`showerstack.stacking.chain`), whose files the export holds
too; features are computed here. Nothing but ``onnxruntime`` is needed beside the core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from showerstack.models.base.inputs import column_values
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.models.onnx.graph import COLUMNS, GRID, LOG_PROBABILITY
from showerstack.runtime.checksums import Checksums
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import read_json
from showerstack.runtime.resources import cores
from showerstack.runtime.stated import check_stated
from showerstack.showers.schema import EXPORT_FILE
from showerstack.stacking.chain import Chain, Piece
from showerstack.stacking.events import Events, pieces
from showerstack.stacking.stated import Export
from showerstack.stacking.store import CHAIN_FILES, COLUMNS_FILE, Run, load, read_chain
from showerstack.stacking.targets import POOL

EXPORT_FORMAT = 2
"""Version of ``export.json``; the first had no files of the chain."""
BATCH_EVENTS = 1_000
"""Events in one call: attention over all stations takes memory."""


def session(model: bytes | Path) -> Any:
    """Open an ONNX file for this processor, one thread."""
    need("onnx", what="running ONNX files")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(opened: Any, columns: tuple[str, ...], batch: Batch) -> np.ndarray:
    """Return the (n, C) float32 log-probabilities that a learner's file gives for events."""
    needs_grid = any(graph_input.name == GRID for graph_input in opened.get_inputs())
    parts = []
    for start in range(0, len(batch), BATCH_EVENTS):
        part = batch.take(np.arange(start, min(start + BATCH_EVENTS, len(batch))))
        feed = {COLUMNS: np.column_stack([column_values(part, name) for name in columns]).astype(np.float32)}
        if needs_grid:
            assert part.grids is not None
            feed[GRID] = np.asarray(part.grids[part.index], dtype=np.float32)
        parts.append(opened.run([LOG_PROBABILITY], feed)[0])
    return np.concatenate(parts)


def averaged(log_proba: Sequence[np.ndarray], space: str) -> np.ndarray:
    """Return the (n, C) float64 average of a learner's graphs, ``space`` being ``log`` or ``probability``."""
    of_graphs = np.stack(log_proba).astype(np.float64)
    if len(of_graphs) == 1:
        return of_graphs[0]
    if space == "log":
        return log_softmax(of_graphs.mean(axis=0))
    return np.asarray(np.logaddexp.reduce(of_graphs, axis=0) - np.log(len(of_graphs)))


@dataclass(frozen=True)
class ExportedFit:
    """One fit of a learner: its files, whose log-probabilities are averaged."""

    files: tuple[tuple[Path, tuple[str, ...]], ...]
    """Each with the names of its columns."""
    space: str
    """As in :func:`averaged`."""


@dataclass(frozen=True)
class ExportedLearner:
    """All fits of one learner."""

    name: str
    columns: tuple[str, ...]
    """Columns of all its files."""
    needs_grid: bool
    fits: tuple[ExportedFit, ...]


@dataclass(frozen=True)
class ExportedRun(Run):
    """An export of a run; ``manifest`` is the content of its ``export.json``."""

    needs: ClassVar[str] = "onnx"

    @classmethod
    def open(cls, folder: str | Path) -> ExportedRun:
        """Open an export; nothing in it is executed, and only ``export.json`` is read.

        Raises
        ------
        InputError
            If it is none, of another version, or without a file that predictions need.
        """
        folder = Path(folder)
        checksums = Checksums.open(folder, required=(EXPORT_FILE,))
        manifest = read_json(checksums.path(EXPORT_FILE))
        if not isinstance(manifest, dict) or manifest.get("format") != EXPORT_FORMAT:
            raise InputError(f"{folder / EXPORT_FILE} is of another version: export the run again")
        check_stated(manifest, Export, folder / EXPORT_FILE)
        opened = cls(folder, manifest, checksums)
        opened.refuse_other_versions()
        Checksums.open(folder, required=(*CHAIN_FILES, *((COLUMNS_FILE,) if not opened.has_grids else ())))
        missing = [name for name in opened.chain.needed if name not in opened.learners]
        if missing:
            raise InputError(
                f"{folder} lacks {', '.join(missing)}, which predictions need: export the run without --learners, or "
                "predict with the run itself"
            )
        if POOL in opened.chain.rules:
            raise InputError(
                f"{folder}: the {POOL} of this run takes a learner's own estimate, which is not exported: predict with "
                "the run itself"
            )
        return opened

    @property
    def shipped(self) -> str:
        """The system that predicts new events."""
        return str(self.manifest["shipped"])

    @cached_property
    def chain(self) -> Chain:
        """The run's chain after the learners; true quantities are not estimated."""
        return read_chain(self.checksums, self.task, self.manifest["systems"], str(self.manifest["config_hash"]))

    def exported(self, name: str) -> ExportedLearner:
        """Return the files of a learner, each compared with its checksum."""
        row: Mapping[str, Any] = next(row for row in self.manifest["learners"] if row["name"] == name)
        fits = tuple(
            ExportedFit(
                tuple((self.checksums.path(file["file"]), tuple(file[COLUMNS])) for file in fit["files"]),
                fit["average"],
            )
            for fit in row["fits"]
        )
        files = [file for fit in row["fits"] for file in fit["files"]]
        columns = tuple(dict.fromkeys(column for file in files for column in file[COLUMNS]))
        return ExportedLearner(name, columns, any(GRID in file for file in files), fits)


def open_predictor(folder: str | Path, *, whole: bool = True) -> Run:
    """Open a finished run (:func:`showerstack.stacking.store.load`), or an export of one.

    With ``whole`` false, only the manifest of a run is read.
    """
    if (Path(folder) / EXPORT_FILE).exists():
        return ExportedRun.open(folder)
    return load(folder) if whole else Run.open(folder)


def predict_exported(
    events: Events, learners: Sequence[ExportedLearner], ctx: Context, progress: Progress
) -> Iterator[Piece]:
    """Yield the log-probabilities of all fits, as :func:`showerstack.stacking.predict.predict_fits` does."""
    jobs = [(learner.name, fold, fit) for learner in learners for fold, fit in enumerate(learner.fits)]
    opened = {file: session(file) for _, _, fit in jobs for file, _ in fit.files}
    done, total = 0, len(jobs) * len(events)

    def predict_fit(fit: ExportedFit, batch: Batch) -> np.ndarray:
        return averaged([run_graph(opened[file], columns, batch) for file, columns in fit.files], fit.space)

    with ThreadPoolExecutor(min(len(jobs), ctx.workers or cores())) as pool:
        for piece in pieces(len(events)):
            rows = np.arange(piece.start, piece.stop)
            batches = {one.name: events.batch(rows, one.columns, grids=one.needs_grid) for one in learners}
            fits: dict[str, list[np.ndarray]] = {learner.name: [] for learner in learners}
            # An error or Ctrl-C takes back what has not begun.
            predictions = pool.map(predict_fit, (fit for _, _, fit in jobs), (batches[name] for name, _, _ in jobs))
            for (name, fold, _), log_proba in zip(jobs, predictions, strict=True):
                fits[name].append(log_proba)
                done += len(rows)
                progress(done, total, f"{name} fold {fold}")
            yield piece, {name: np.stack(of_fits) for name, of_fits in fits.items()}
