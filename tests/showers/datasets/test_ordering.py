"""Rows that follow the classes are noticed; random orders are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from showers.dataset import Dataset, by_labels, by_values, ordering_of
from showers.schema import GAMMA
from showers.writer import write_dataset


def test_deviations_of_random_orders_are_standard_normal() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(4), (300, 500, 100, 40))
    values = rng.exponential(size=900)
    for found in (
        [by_labels(rng.permutation(labels)).deviation for _ in range(2000)],
        [by_values(rng.permutation(values)).deviation for _ in range(2000)],
    ):
        assert abs(np.mean(found)) < 0.08
        assert np.std(found) == pytest.approx(1, abs=0.06)


def _dataset(folder: Path, labels: np.ndarray, **extras: np.ndarray) -> Path:
    rng = np.random.default_rng(5)
    n = len(labels)
    scalars = rng.normal(5, 0.3, (n, 5))
    scalars[:, 4] += 0.5 * labels
    kinds = {name: values.dtype for name, values in extras.items()}
    with write_dataset(folder, n, GAMMA, source={}, extras=kinds) as writer:
        writer.put(
            0, np.zeros((n, 16, 16, 2), np.float16), scalars.astype(np.float16), labels.astype(np.int8), **extras
        )
    return folder


def test_blocks_of_classes_are_noticed_with_and_without_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = (np.arange(2000) % 1000 > 300).astype(np.int64)
    for name, used, ordered in (("blocks", labels, True), ("shuffled", rng.permutation(labels), False)):
        folder = _dataset(tmp_path / name, used)
        for with_labels in (True, False):
            found = ordering_of(Dataset.open(folder, GAMMA, labels=with_labels))
            assert found.is_ordered == ordered
            assert (found.remark(name) is None) != ordered
    remark = ordering_of(Dataset.open(tmp_path / "blocks")).remark("blocks")
    assert remark is not None
    assert "4 runs of equal labels" in remark


def test_showers_thrown_several_times_are_no_order(tmp_path: Path) -> None:
    labels = np.repeat(np.random.default_rng(2).integers(0, 2, 200), 5)
    assert ordering_of(Dataset.open(_dataset(tmp_path / "a", labels))).is_ordered
    groups = np.repeat(np.arange(200), 5).astype(np.int64)
    assert not ordering_of(Dataset.open(_dataset(tmp_path / "b", labels, groups=groups))).is_ordered
