"""How the protocols divide raw events into training and test sets, reproduced to the letter.

Published splits know nothing of showers that were thrown several times: with ``together`` all events of a shower go
where its first one goes, which is how archives of the embedded simulation are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from showers import cuts
from showers.archives.raw import RAW_COLUMNS
from showers.schema import Task


@dataclass(frozen=True)
class Split:
    """Rows of the concatenated raw files that one folder gets, ascending."""

    folder: str
    rows: np.ndarray
    part: np.ndarray | None = None


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


def split_matched(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """Cuts first; then two seeded permutations cut off validation and test."""
    import torch  # the published split is defined by torch's generator

    def permutation(n: int) -> np.ndarray:
        return torch.randperm(n, generator=torch.Generator().manual_seed(42)).numpy()

    passing = np.flatnonzero(cuts.MATCHED.mask(_frame(features)))
    n_held = int(0.3 * len(passing))
    held = permutation(len(passing))[len(passing) - n_held :]
    part = np.zeros(len(passing), dtype=np.int8)  # 0 train, 1 validation, 2 test
    part[held] = 1
    part[held[permutation(n_held)[n_held - int(0.3 * n_held) :]]] = 2
    if together:
        _, first, shower = np.unique(groups[passing], return_index=True, return_inverse=True)
        part = part[first[shower]]
    return [
        Split(f"{task.name}_train", passing[part < 2], part[part < 2]),
        Split(f"{task.name}_test", passing[part == 2]),
    ]
