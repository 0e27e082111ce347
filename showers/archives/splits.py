"""How the protocols divide raw events into training and test sets, reproduced to the letter.

Published splits know nothing of showers that were thrown several times: with ``together`` all events of a shower go
where its first one goes, which is how archives of the embedded simulation are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from showers import cuts
from showers.archives.raw import RAW_COLUMNS
from showers.schema import COMPOSITION, Task


@dataclass(frozen=True)
class Split:
    """Rows of the concatenated raw files that one folder gets, in the order of the published files."""

    folder: str
    rows: np.ndarray
    part: np.ndarray | None = None
    """Of each row: 0 train, 1 validation (matched protocol's training set)."""

    @property
    def name(self) -> str:
        """``train`` or ``test``."""
        return self.folder.rsplit("_", 1)[1]


def _frame(features: np.ndarray) -> pl.DataFrame:
    """Raw columns at their own precision: the protocols cut before they round."""
    return pl.DataFrame({name: features[:, k].astype(np.float32) for k, name in enumerate(RAW_COLUMNS)})


def split_v2(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """First fifth of a shuffle is the test set, and only there the cuts apply."""
    n = len(features)
    order = np.arange(n)
    np.random.default_rng(2026).shuffle(order)
    in_test = np.zeros(n, dtype=bool)
    in_test[order[: int(0.2 * n)]] = True
    if together:
        in_test = in_test[groups]
    passed = cuts.TEST_WITH_AGE.mask(_frame(features))
    return [
        Split(f"{task.name}_train", np.flatnonzero(~in_test)),
        Split(f"{task.name}_test", np.flatnonzero(in_test & passed)),
    ]


def split_2026(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """One seeded permutation, whose order the published files keep; composition is cut before it, gamma's test after.

    Gamma's split is published in words (80 to 20, seed 2026); its rounding is taken from composition's.
    """
    frame = _frame(features)
    if task.primaries == COMPOSITION.name:
        rows, share, seed = np.flatnonzero(cuts.MATCHED.mask(frame)), 0.7, 42
    else:
        rows, share, seed = np.arange(len(features)), 0.8, 2026
    order = _permutation(len(rows), seed)
    n_test = int(len(rows) * (1 - share))  # 1 - 0.7 is a little more than 0.3 in floating point, 1 - 0.8 a little less
    in_test = np.zeros(len(rows), dtype=bool)
    in_test[order[len(rows) - n_test :]] = True
    if together:
        in_test = _with_first(in_test, groups[rows])
    train, test = rows[order[~in_test[order]]], rows[order[in_test[order]]]
    if task != COMPOSITION:
        test = test[cuts.TEST_WITH_AGE.mask(frame[test])]
    return [Split(f"{task.name}_train", train), Split(f"{task.name}_test", test)]


def _with_first(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Give all events of a shower (n,) the value of its first one."""
    _, first, shower = np.unique(groups, return_index=True, return_inverse=True)
    return values[first[shower]]


def _permutation(n: int, seed: int) -> np.ndarray:
    import torch  # the published splits are defined by torch's generator

    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


def split_matched(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """Cuts first; then two seeded permutations cut off validation and test."""
    passing = np.flatnonzero(cuts.MATCHED.mask(_frame(features)))
    n_held = int(0.3 * len(passing))
    held = _permutation(len(passing), 42)[len(passing) - n_held :]
    part = np.zeros(len(passing), dtype=np.int8)  # 0 train, 1 validation, 2 test
    part[held] = 1
    part[held[_permutation(n_held, 42)[n_held - int(0.3 * n_held) :]]] = 2
    if together:
        part = _with_first(part, groups[passing])
    return [
        Split(f"{task.name}_train", passing[part < 2], part[part < 2]),
        Split(f"{task.name}_test", passing[part == 2]),
    ]


SPLITS: dict[str, Callable[..., list[Split]]] = {"v2": split_v2, "matched": split_matched, "2026": split_2026}
"""By protocol."""
