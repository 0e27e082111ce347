"""Columns of categories: numbered by how often a level occurs in training, or turned into numbers.

A table holds categories as codes in float32, NaN where missing. A learner knows the levels of its own training rows
only: any other is missing to it. Learners that need numbers stand behind a step that makes numbers of these columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from showerstack.models.base.average import member_class
from showerstack.models.base.learner import Batch, Learner, check_training, select_table
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError

ONE_HOT = 12
"""Up to so many levels each gets a column of zeros and ones; above, a level stands for its classes' frequencies."""

PARTS = 5
"""A training row's class frequencies come from the other parts of the training rows."""
PRIOR_ROWS = 5.0
"""Rows of the overall class mix that each level is given beside its own."""


@dataclass(frozen=True)
class Levels:
    """The levels that training rows have, per column of categories, most frequent first."""

    codes: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By column: (K,) codes as the table has them; a level's new number is its position."""
    most: int | None = None
    """Numbers are below this; the rarest levels share the last one."""

    @classmethod
    def of(cls, table: np.ndarray, columns: tuple[str, ...], categories: tuple[str, ...], most: int | None) -> Self:
        """Return the levels of training rows (n, F)."""
        entries = {}
        for name in categories:
            values = table[:, columns.index(name)]
            codes, counts = np.unique(values[~np.isnan(values)], return_counts=True)
            entries[name] = codes[np.argsort(-counts, kind="stable")]
        return cls(entries, most)

    def count(self, name: str) -> int:
        """Return how many numbers a column has."""
        return min(len(self.codes[name]), self.most or len(self.codes[name]))

    def apply(self, table: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
        """Return the (n, F) float32 table with codes replaced by numbers, NaN for levels that training did not have."""
        if not self.codes:
            return table
        table = np.array(table, dtype=np.float32, order="F")
        for name, codes in self.codes.items():
            # The last place is that of missing and unknown codes.
            numbers = np.full(int(codes.max(initial=-1)) + 2, np.nan, dtype=np.float32)
            numbers[codes.astype(np.int64)] = np.minimum(np.arange(len(codes)), self.count(name) - 1)
            column = table[:, columns.index(name)]
            column[:] = numbers[np.clip(np.nan_to_num(column, nan=-1.0), -1, len(numbers) - 1).astype(np.int64)]
        return table

    def state(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"most": self.most, "codes": {name: codes.tolist() for name, codes in self.codes.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Read what :meth:`state` returned."""
        return cls({name: np.asarray(v, dtype=np.float32) for name, v in state["codes"].items()}, state["most"])


@dataclass(frozen=True)
class CategoryEncoder:
    """Categories as numbers, for learners that know nothing else: one column a level, or class frequencies a level."""

    columns: tuple[str, ...]
    levels: Levels
    frequencies: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By column of many levels: (K + 1, C) smoothed class frequencies of each level, last those of a missing one;
    of two classes only those of the second."""

    @classmethod
    def fit(cls, train: Batch, seed: int) -> tuple[Self, Batch]:
        """Learn from training rows; return them as numbers too, each row's frequencies from other rows than itself."""
        assert train.table is not None
        assert train.labels is not None
        levels = Levels.of(train.table, train.columns, train.categories, None)
        table, n_classes = levels.apply(train.table, train.columns), int(train.labels.max()) + 1
        frequencies, others = {}, {}
        part = np.random.default_rng(seed).permutation(len(train)) % PARTS
        for name in train.categories:
            if levels.count(name) > ONE_HOT:
                n_numbers = levels.count(name) + 1
                number = _numbers_of_levels(table[:, train.columns.index(name)], n_numbers)
                frequencies[name], *by_part = (
                    _frequencies(number[rows], train.labels[rows], n_numbers, n_classes)
                    for rows in (slice(None), *(part != k for k in range(PARTS)))
                )
                others[name] = np.stack(by_part)[part, number]
        encoder = cls(train.columns, levels, frequencies)
        return encoder, encoder._batch(train, others)

    def apply(self, batch: Batch) -> Batch:
        """Return rows as numbers; columns are called x0, x1..., so that no name has a meaning to a learner."""
        return self._batch(batch, {})

    def _batch(self, batch: Batch, values_of: Mapping[str, np.ndarray]) -> Batch:
        table = self.levels.apply(select_table(batch, self.columns), self.columns)
        parts = []
        for name, values in zip(self.columns, table.T, strict=True):
            if name in values_of:
                parts.append(values_of[name])
            elif name in self.frequencies:
                parts.append(self.frequencies[name][_numbers_of_levels(values, len(self.frequencies[name]))])
            elif name in self.levels.codes:
                parts.append(values[:, None] == np.arange(self.levels.count(name)))
            else:
                parts.append(values[:, None])
        numbers = np.asfortranarray(np.column_stack(parts), dtype=np.float32)
        columns = tuple(f"x{k}" for k in range(numbers.shape[1]))
        return replace(batch, table=numbers, columns=columns, categories=(), scalars=None)

    def owners(self) -> list[str]:
        """Return for each column of numbers the column that it comes from."""
        widths = {name: self.levels.count(name) for name in self.levels.codes}
        widths |= {name: values.shape[1] for name, values in self.frequencies.items()}
        return [name for name in self.columns for _ in range(widths.get(name, 1))]

    def state(self) -> dict[str, Any]:
        """Return JSON content."""
        frequencies = {name: values.tolist() for name, values in self.frequencies.items()}
        return {"columns": self.columns, "levels": self.levels.state(), "frequencies": frequencies}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Read what :meth:`state` returned."""
        frequencies = {name: np.asarray(values) for name, values in state["frequencies"].items()}
        return cls(tuple(state["columns"]), Levels.from_state(state["levels"]), frequencies)


def _numbers_of_levels(values: np.ndarray, n_numbers: int) -> np.ndarray:
    """Return the number (n,) int64 of each level; the last place is that of missing values."""
    return np.nan_to_num(values, nan=n_numbers - 1).astype(np.int64)


def _frequencies(number: np.ndarray, labels: np.ndarray, n_numbers: int, n_classes: int) -> np.ndarray:
    """Return the class frequencies (K, C) at each place, mixed with the overall ones."""
    counts = np.zeros((n_numbers, n_classes))
    np.add.at(counts, (number, labels), 1.0)
    mix = counts.sum(axis=0) / counts.sum()
    mixed = (counts + PRIOR_ROWS * mix) / (counts.sum(axis=1, keepdims=True) + PRIOR_ROWS)
    return mixed[:, 1:] if n_classes == 2 else mixed


class AsNumbers(Learner):
    """A learner that is shown categories as numbers and columns without names.

    Settings: ``learner``, its ``module:Class``; every other setting is that learner's own.
    """

    defaults: ClassVar[dict[str, Any]] = {"learner": ""}

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        inner = dict(self.settings)
        self.inner = member_class(str(inner.pop("learner", "")))(classes, inner, threads=threads)
        self.numbers_: CategoryEncoder | None = None

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Learn how categories become numbers, then train the learner."""
        check_training(train, valid, self.classes, table=True, grid=False)
        self.numbers_, as_numbers = CategoryEncoder.fit(train, seed)
        if self.checkpoint is not None:
            self.inner.checkpoint = self.checkpoint
        self.inner.fit(as_numbers, self.numbers_.apply(valid), seed=seed, device=device, progress=progress)
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        if self.numbers_ is None:
            raise InputError(f"this {type(self).__name__} has not been trained yet")
        return self.inner.predict_log_proba(self.numbers_.apply(batch))

    def importances(self) -> dict[str, float] | None:
        """Return the gain of each column, summing to one, where the learner counts any."""
        inner = self.inner.importances()
        if inner is None or self.numbers_ is None:
            return None
        by_column = dict.fromkeys(self.numbers_.columns, 0.0)
        for owner, share in zip(self.numbers_.owners(), inner.values(), strict=True):
            by_column[owner] += share
        return by_column

    @property
    def n_parameters(self) -> int | None:
        """Those of the learner."""
        return self.inner.n_parameters

    def save(self, folder: Path) -> None:
        """Write the learner into a folder of its own, then the header."""
        if self.numbers_ is None:
            raise InputError(f"this {type(self).__name__} has not been trained yet")
        self.inner.save(Path(folder) / "inner")
        self.write_saved(Path(folder), (), {"numbers": self.numbers_.state()})

    @classmethod
    def load(cls, folder: Path) -> Self:
        learner, header = cls.from_saved(Path(folder))
        learner.numbers_ = CategoryEncoder.from_state(header["numbers"])
        learner.inner = type(learner.inner).load(Path(folder) / "inner")
        return learner
