"""What all learners on a feature table share: checks, class weights and their undoing, saving."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from showerstack.models.base.learner import Batch, Enough, Learner, check_settings, check_training, select_table
from showerstack.models.base.posterior import class_weight_vector, undo_training_prior
from showerstack.models.tables.categories import Levels
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError

PREDICT_ROWS = 1 << 18
"""Rows predicted at once: libraries copy what they predict, so memory stays bounded."""


@dataclass(frozen=True)
class TableRows:
    """Labelled rows as the libraries want them."""

    table: np.ndarray
    """(n, F) float32, Fortran-ordered, NaN where missing."""
    labels: np.ndarray
    """(n,) int64."""
    weights: np.ndarray | None
    """(n,) float64 event weight times class weight, or None for one each."""
    categories: tuple[int, ...] = ()
    """Positions of the columns that hold numbers of categories."""


class TableLearner(Learner):
    """Base of the learners that see only the feature table.

    A subclass declares its ``defaults`` and gives ``_fit``, ``_log_proba``, ``_write`` and ``_read``.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    model_files: ClassVar[tuple[str, ...]] = ()
    """Names of the files that ``_write`` makes."""
    most_levels: ClassVar[int | None] = None
    """Levels of a column of categories that the library can tell apart; None for any number."""

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        self.chosen = check_settings(type(self).__name__, self.settings, {"class_weights": None, **self.defaults})
        self.columns_: tuple[str, ...] = ()
        self.class_weights_: np.ndarray | None = None
        self.device_ = "cpu"
        self.levels_ = Levels()

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        check_training(train, valid, self.classes, table=True, grid=False)
        assert train.labels is not None
        self.columns_ = tuple(train.columns)
        assert train.table is not None
        self.levels_ = Levels.of(train.table, train.columns, train.categories, self.most_levels)
        self.class_weights_ = class_weight_vector(self.chosen["class_weights"], train.labels, self.classes)
        self._fit(self._events(train), self._events(valid), seed=seed, device=device, progress=progress)
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        self._check_fitted()
        table = self._table(batch)
        log_q = [self._log_proba(table[k : k + PREDICT_ROWS]) for k in range(0, len(batch), PREDICT_ROWS)]
        if not log_q:
            return np.empty((0, len(self.classes)))
        return undo_training_prior(np.concatenate(log_q), self.class_weights_)

    def save(self, folder: Path) -> None:
        self._check_fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._write(folder)
        content = {
            "columns": self.columns_,
            "class_weights": self.class_weights_,
            "device": self.device_,
            **({"levels": self.levels_.state()} if self.levels_.codes else {}),
            **self._state(),
        }
        self.write_saved(folder, self.model_files, content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        learner, header = cls.from_saved(Path(folder))
        learner.columns_ = tuple(header["columns"])
        weights = header["class_weights"]
        learner.class_weights_ = None if weights is None else np.asarray(weights, dtype=np.float64)
        if learner.class_weights_ is not None and not np.all(learner.class_weights_ > 0):
            raise ValueError(f"class_weights holds {weights}")
        learner.device_ = header["device"]
        if "levels" in header:
            learner.levels_ = Levels.from_state(header["levels"])
        learner._read(Path(folder), header)
        return learner

    def _library_parameters(self) -> dict[str, Any]:
        """Return the settings that a booster's library knows under the same name, ``native`` ones included."""
        ours = ("class_weights", "rounds", "patience", "least_gain", "native")
        return {**{name: value for name, value in self.chosen.items() if name not in ours}, **self.chosen["native"]}

    def _events(self, batch: Batch) -> TableRows:
        assert batch.table is not None
        assert batch.labels is not None
        weights = batch.weights
        if self.class_weights_ is not None:
            by_class = self.class_weights_[batch.labels]
            weights = by_class if weights is None else weights * by_class
        table = self.levels_.apply(batch.table, batch.columns)
        return TableRows(table, np.asarray(batch.labels, dtype=np.int64), weights, self.category_positions)

    @property
    def category_positions(self) -> tuple[int, ...]:
        """Positions of the columns of categories."""
        return tuple(k for k, name in enumerate(self.columns_) if name in self.levels_.codes)

    def _table(self, batch: Batch) -> np.ndarray:
        """Return (n, F) float32 as the library has seen it in training."""
        return self.levels_.apply(select_table(batch, self.columns_), self.columns_)

    def _check_fitted(self) -> None:
        if not self.columns_:
            raise InputError(f"this {type(self).__name__} has not been trained yet")

    @abstractmethod
    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        """Learn; everything has been checked."""

    @abstractmethod
    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        """Return (n, C) float64 log-probabilities with the priors of training."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write the model files, each atomically."""

    @abstractmethod
    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        """Read the model files."""

    def _state(self) -> dict[str, Any]:
        """Return small learned numbers for the header."""
        return {}


def goes_on(progress: Progress, done: int, total: int, loss: float) -> bool:
    """Report a round and its validation log-loss; return whether the fit goes on, False to keep the best so far."""
    try:
        progress(done, total, f"log-loss {loss:.4f}")
    except Enough:
        return False
    return True


def native_names(columns: tuple[str, ...]) -> list[str]:
    """Return column names that every booster's format accepts, unique, in the same order."""
    names = [re.sub(r"[^0-9A-Za-z_.+-]", "_", name) for name in columns]
    taken: set[str] = set()
    for k, name in enumerate(names):
        if name in taken:
            names[k] = f"{name}__{k}"
        taken.add(names[k])
    return names


def normalised(gain: np.ndarray, columns: tuple[str, ...]) -> dict[str, float]:
    """Return importances by column, summing to one (all zero if nothing was ever split)."""
    total = float(gain.sum())
    return {name: float(g) / total if total > 0 else 0.0 for name, g in zip(columns, gain, strict=True)}


def unfold_contributions(flat: np.ndarray, n_classes: int, n_columns: int) -> np.ndarray:
    """Return (n, C, F + 1) contributions from a library's (n, K * (F + 1)); two classes have one margin, of class 1."""
    shaped = np.asarray(flat, dtype=np.float64).reshape(len(flat), -1, n_columns + 1)
    if n_classes == 2 and shaped.shape[1] == 1:
        return np.concatenate([np.zeros_like(shaped), shaped], axis=1)
    return shaped
