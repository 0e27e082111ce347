"""Small finished runs, and their test sets as measured ones: without labels and truth."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.checksums import Checksums
from stacking.run.config import StackConfig
from stacking.train import stack


def _stacked(task: str, data: Path, folder: Path) -> Path:
    stack(
        StackConfig(
            task=task, data=data, run=folder, preset="quick", learners=("quadratic_logit",), folds=2, workers=1,
            device="cpu", fast=False,
        )
    )  # fmt: skip
    return folder


def _as_measured(data: Path, folder: Path) -> Path:
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("*.features", "labels_*", "truth.parquet"))
    checksums = Checksums.open(folder)
    Checksums(folder, {name: value for name, value in checksums.files.items() if (folder / name).exists()}).write()
    return folder


@pytest.fixture(scope="session")
def composition_run(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _stacked("composition", tiny_composition, tmp_path_factory.mktemp("runs") / "composition")


@pytest.fixture(scope="session")
def gamma_run(tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _stacked("gamma", tiny_gamma, tmp_path_factory.mktemp("runs") / "gamma")


@pytest.fixture(scope="session")
def composition_sky(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _as_measured(tiny_composition / "composition_test", tmp_path_factory.mktemp("sky") / "measured")


@pytest.fixture(scope="session")
def gamma_sky(tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _as_measured(tiny_gamma / "gamma_test", tmp_path_factory.mktemp("sky") / "measured")
