"""A run that was exported, opened for predictions: ONNX files in place of the learners' libraries.

What follows the learners is the run's own chain (:mod:`showerstack.stacking.chain`), whose files the export holds
too; features are computed here. Nothing but ``onnxruntime`` is needed beside the core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from showerstack.models.base.learner import Predictor
from showerstack.models.onnx.predictor import GraphPredictor
from showerstack.runtime.checksums import Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.stated import stated_as
from showerstack.showers.schema import EXPORT_FILE
from showerstack.stacking.estimates import POOL
from showerstack.stacking.layout import CHAIN_FILES, COLUMNS_FILE
from showerstack.stacking.prediction.predictable import Predictable, SavedFit, SavedFits
from showerstack.stacking.prediction.run import Run, load
from showerstack.stacking.stated import Export

EXPORT_FORMAT = 2
"""Version of ``export.json``; the first had no files of the chain."""


@dataclass(frozen=True)
class SavedGraphs(SavedFit):
    """One fit of a learner as ONNX files; its place is the first of them."""

    classes: tuple[str, ...]
    files: tuple[tuple[Path, tuple[str, ...]], ...]
    """Each with the names of its columns."""
    space: str
    """In which their log-probabilities are averaged, see :func:`showerstack.models.onnx.predictor.averaged`."""

    @property
    def header(self) -> Path:
        return self.place

    @property
    def needs(self) -> tuple[str, ...]:
        return ("onnx",)

    def absolute(self) -> Self:
        files = tuple((file.absolute(), columns) for file, columns in self.files)
        return replace(self, place=self.place.absolute(), files=files)

    def open(self) -> Predictor:
        return GraphPredictor(self.classes, self.files, self.space)


@dataclass(frozen=True)
class ExportedRun(Predictable):
    """An export of a run."""

    trained: Export
    """Content of ``export.json``."""

    @classmethod
    def open(cls, folder: str | Path) -> ExportedRun:
        """Open an export; nothing in it is executed, and only ``export.json`` is read."""
        folder = Path(folder)
        checksums = Checksums.open(folder, required=(EXPORT_FILE,))
        content = read_json(checksums.path(EXPORT_FILE))
        if not isinstance(content, dict) or content.get("format") != EXPORT_FORMAT:
            raise InputError(f"{folder / EXPORT_FILE} is of another version: export the run again")
        opened = cls(folder, stated_as(Export, content, folder / EXPORT_FILE), checksums)
        opened.refuse_other_versions()
        Checksums.open(folder, required=(*CHAIN_FILES, *((COLUMNS_FILE,) if opened.of_table else ())))
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
        return self.trained.shipped

    @property
    def learners(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.trained.learners)

    @property
    def systems(self) -> tuple[str, ...]:
        """Those of the run, learners that it does not hold as well."""
        return tuple(self.trained.systems)

    @property
    def library_remarks(self) -> tuple[str, ...]:
        """None: it predicts with onnxruntime, whatever it was trained with."""
        return ()

    def fits(self, name: str) -> SavedFits:
        row, fits = next(row for row in self.trained.learners if row.name == name), []
        for fit in row.fits:
            graphs = tuple((self.checksums.path(file.file), tuple(file.columns)) for file in fit.files)
            fits.append(SavedGraphs(graphs[0][0], self.task.classes, graphs, fit.average))
        files = [file for fit in row.fits for file in fit.files]
        columns = tuple(dict.fromkeys(column for file in files for column in file.columns))
        return SavedFits(name, tuple(fits), columns, any(file.grid for file in files))


def open_run(folder: str | Path, *, whole: bool = True) -> Run | ExportedRun:
    """Open a finished run (:func:`showerstack.stacking.prediction.run.load`), or an export of one.

    With ``whole`` false, only the manifest of a run is read.
    """
    if (Path(folder) / EXPORT_FILE).exists():
        return ExportedRun.open(folder)
    return load(folder) if whole else Run.open(folder)
