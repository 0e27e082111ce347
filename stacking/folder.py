"""The folder of a run while it is made: written by one process at a time, read by its own fits.

Every file of a finished run has a checksum. A finished run is opened by :mod:`showerstack.stacking.prediction.run`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.arrays import open_npy
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import (
    LOCK_FILE,
    atomic_path,
    locked,
    read_json,
    remove_all_leftovers,
    write_json,
    write_npz,
)
from showerstack.runtime.logs import LogFile
from showerstack.runtime.stated import stated_as
from showerstack.showers.schema import LOG_FILE, MANIFEST_FILE, PREDICTIONS_FILE
from showerstack.stacking.chain import Chain, Fit, Predictions
from showerstack.stacking.config import SECOND_LEVEL, write_config
from showerstack.stacking.layout import (
    CHECKPOINTS,
    COLUMNS_FILE,
    CONFIG_FILE,
    ESTIMATES_FILE,
    EVALUATION_FILE,
    FOLDS_FILE,
    LABELS_TABLE,
    MADE_LATER,
    META,
    METRICS_FILE,
    OOF,
    OWN_FOLD,
    POOL_FILE,
    PREDICTIONS_TABLE,
    RULES_FILE,
    SCALES_FILE,
    SCORES_FILE,
    START_FILE,
    TABLE_FOLDER,
    TEST,
    FitFolder,
    fit_path,
)
from showerstack.stacking.stated import Begun, Manifest


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run while it is made."""

    folder: Path

    def fit(self, learner: str, fit: Fit) -> FitFolder:
        """Return the folder of one of a learner's fits."""
        return FitFolder(self.folder / fit_path(learner, fit))

    def checkpoint(self, learner: str, fold: int, key: str) -> Path:
        """Return where an unfinished fit keeps its state; that of another configuration or code has another name."""
        return self.folder / CHECKPOINTS / learner / f"fold-{fold}-{key[:16]}"

    def late(self, learner: str) -> Path:
        """Return the mark that a fit of a learner was given up for want of time: the others need not begin."""
        return self.folder / CHECKPOINTS / learner / "late"

    def remove_checkpoints(self) -> None:
        """Remove the state of all unfinished fits."""
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)

    @property
    def train_table(self) -> Path:
        """The training table of a run on a table, as learners get it."""
        return self.folder / TABLE_FOLDER / "train.parquet"

    @property
    def test_table(self) -> Path:
        """The test table of such a run."""
        return self.folder / TABLE_FOLDER / "test.parquet"

    @property
    def labels_table(self) -> Path:
        """Labels, groups, weights and folds of the training table."""
        return self.folder / LABELS_TABLE

    @property
    def predictions_table(self) -> Path:
        """Predictions of such a run."""
        return self.folder / PREDICTIONS_TABLE

    @property
    def log(self) -> LogFile:
        """What is logged while the run is at work."""
        return LogFile(self.folder / LOG_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this process alone; refuse one that holds something else, or is in use."""
        run = self.folder
        if run.exists() and not run.is_dir():
            raise InputError(f"{run} is a file: expected a run folder")
        if run.is_dir() and (links := [entry for entry in run.iterdir() if entry.is_symlink() and entry.is_dir()]):
            raise InputError(f"{links[0]} is a link: a run is one folder with all its parts; move and link all of it")
        is_run = (run / MANIFEST_FILE).exists() or (run / LOCK_FILE).exists()
        if run.is_dir() and any(run.iterdir()) and not is_run:
            raise InputError(f"{run} holds other files: choose an empty or new folder for the run")
        was_there = run.is_dir()
        was_empty = not was_there or not any(run.iterdir())
        with locked(run):
            self._remove_leftovers()
            try:
                yield
            except InputError:
                if was_empty and not (run / MANIFEST_FILE).exists():
                    self._empty(keep=was_there)  # so that the name stays free
                raise
            finally:
                # Workers that were stopped half-way left theirs.
                if run.is_dir():
                    self._remove_leftovers()

    def _empty(self, *, keep: bool) -> None:
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not keep:
            self.folder.rmdir()

    def _remove_leftovers(self) -> None:
        """Remove what a killed run left half-written."""
        for folder in (self.folder, *self.folder.glob("[!.]*/"), *self.folder.glob("[!.]*/[!.]*/")):
            remove_all_leftovers(folder)

    @contextmanager
    def started(self) -> Iterator[str]:
        """Mark the folder, which this process holds, as at work; yield the number of this start."""
        number = secrets.token_hex(16)
        with atomic_path(self.folder / START_FILE) as temporary:
            temporary.write_text(number)
        try:
            yield number
        finally:
            (self.folder / START_FILE).unlink(missing_ok=True)

    @property
    def start(self) -> str:
        """Number of the start that is at work here; empty where none is."""
        try:
            return (self.folder / START_FILE).read_text()
        except FileNotFoundError:
            return ""

    def refuse_other_configuration(self, requested: Mapping[str, Any]) -> None:
        """Refuse a folder whose fits are of another configuration; ``requested`` holds what can change a fit."""
        file = self.folder / MANIFEST_FILE
        if not file.exists():
            return
        before = read_json(file).get("identity", {})
        names = [name for name in {**before, **requested} if name not in SECOND_LEVEL]
        changed = [name for name in names if before.get(name) != requested.get(name)]
        if changed:
            raise InputError(
                f"{self.folder} belongs to another configuration (different: "
                f"{', '.join(changed) if before else 'everything'}): choose another run folder or remove this one"
            )

    def finished_as(self, expected: Mapping[str, Any]) -> Manifest | None:
        """Return the manifest of a finished run that has all of these entries; None where there is no such run."""
        if not all((self.folder / name).exists() for name in (MANIFEST_FILE, CHECKSUMS_FILE)):
            return None
        content = read_json(file := self.folder / MANIFEST_FILE)
        is_it = all(content.get(name) == value for name, value in {"complete": True, **expected}.items())
        return stated_as(Manifest, content, file) if is_it else None

    def remove_second_level(self) -> None:
        """Remove what follows the fits, and ``checksums.json``: all of it is about to be made anew."""
        (self.folder / CHECKSUMS_FILE).unlink(missing_ok=True)
        for name in (META, OOF, TEST):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in (PREDICTIONS_FILE, PREDICTIONS_TABLE, METRICS_FILE, *MADE_LATER):
            (self.folder / name).unlink(missing_ok=True)

    def write_manifest(self, manifest: Begun) -> None:
        """Write ``manifest.json``, and the configuration in it as TOML beside it."""
        write_config(self.folder / CONFIG_FILE, manifest.config.as_json())
        write_json(self.folder / MANIFEST_FILE, manifest.as_json())

    def write_folds(self, partitions: np.ndarray, in_evaluation: np.ndarray) -> None:
        """Write what :attr:`partitions` and :attr:`in_evaluation` read."""
        for name, array in ((FOLDS_FILE, partitions), (EVALUATION_FILE, in_evaluation)):
            with atomic_path(self.folder / name) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)

    @property
    def partitions(self) -> np.ndarray:
        """(R, N) int8 fold of every training event, a row for each repetition; -1 in the holdout."""
        return open_npy(self.folder / FOLDS_FILE)

    @property
    def in_evaluation(self) -> np.ndarray:
        """(N,) bool: training events of the kind that predictions are scored on."""
        return np.asarray(open_npy(self.folder / EVALUATION_FILE))

    def write_columns(self, schema: Mapping[str, Any]) -> None:
        """Write what the columns of the training table are."""
        write_json(self.folder / COLUMNS_FILE, schema)

    def write_chain(self, chain: Chain) -> None:
        """Write what follows the learners."""
        write_json(self.folder / SCALES_FILE, dict(chain.scales))
        pool = {**chain.pool.as_json(), "shipped": chain.shipped, "n_fits": chain.n_fits}
        optional = {"prior": chain.prior, "networks": chain.networks, "raced": chain.raced}
        write_json(self.folder / POOL_FILE, pool | {name: list(values) for name, values in optional.items() if values})
        if chain.target_calibration:
            write_json(self.folder / ESTIMATES_FILE, chain.target_calibration.as_json())
        write_json(self.folder / RULES_FILE, {name: rule.as_json() for name, rule in chain.rules.items()})

    def write_scores(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write what :meth:`Run.thresholds` is made from."""
        write_npz(self.folder / SCORES_FILE, **arrays)

    def write_scores_of_table(self, scores: Mapping[str, Any]) -> None:
        """Write the scores of a run on a table."""
        write_json(self.folder / METRICS_FILE, scores)

    def write_oof(self, system: str, log_proba: np.ndarray, folds: np.ndarray, classes: tuple[str, ...]) -> None:
        """Write log-probabilities of training events: event, fold, ``logp_<class>``; NaN where never predicted."""
        frame = pl.DataFrame(
            {
                "event": np.arange(len(folds), dtype=np.uint32),
                "fold": folds.astype(np.int8),
                **{f"logp_{name}": np.ascontiguousarray(log_proba[:, k]) for k, name in enumerate(classes)},
            }
        )
        with atomic_path(self.folder / OOF / f"{system}.parquet") as temporary:
            frame.write_parquet(temporary)

    def write_test(self, system: str, **arrays: np.ndarray) -> None:
        """Write a system's predictions of the test events."""
        write_npz(self.folder / TEST / f"{system}.npz", **arrays)

    def write_predictions(self, predictions: Predictions) -> None:
        """Write ``predictions.npz``."""
        write_npz(self.folder / PREDICTIONS_FILE, **predictions.stored_arrays())

    def read_fits(self, learner: str, fits: Iterable[Fit], part: str = TEST, *, estimates: bool = False) -> np.ndarray:
        """Read the log-probabilities of each of a learner's fits, (F, n, C), or the estimates, (F, n, T, 2)."""
        return np.stack([self.fit(learner, fit).read(part, estimates=estimates) for fit in fits])

    def read_out_of_fold(
        self, learner: str, partitions: np.ndarray, predicted: np.ndarray, *, estimates: bool = False
    ) -> np.ndarray:
        """Read what a learner's fits predicted out-of-fold: (R, N, ...) float64, NaN where a row was never predicted.

        ``partitions`` are (R, N) int8, the folds of each repetition, -1 in the holdout; ``predicted`` (N,) bool.
        """
        n_folds, shape = int(partitions.max()) + 1, partitions.shape
        every = range(len(partitions) * n_folds)
        parts = [self.fit(learner, fit).read(OWN_FOLD, estimates=estimates) for fit in every]
        values = np.full((*shape, *parts[0].shape[1:]), np.nan)
        for fit, part in enumerate(parts):
            repeat, fold = divmod(fit, n_folds)
            values[repeat, (partitions[repeat] == fold) & predicted] = part
        return values

    def write_checksums(self) -> Checksums:
        """Write ``checksums.json`` over the files of a finished run: of a fit its own list, not the log nor
        :data:`MADE_LATER`."""
        files = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()]
        fits = {file.parent for file in files if file.name == CHECKSUMS_FILE}
        listed = [file for file in files if file.name == CHECKSUMS_FILE or not fits.intersection(file.parents[:-1])]
        names = (file.as_posix() for file in listed if not any(part.startswith(".") for part in file.parts))
        unlisted = (*MADE_LATER, LOG_FILE, CHECKSUMS_FILE)
        return write_checksums(self.folder, [name for name in names if name not in unlisted])
