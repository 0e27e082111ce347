"""Test sets as measured ones: without labels and truth."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from showerstack.runtime.checksums import Checksums


def _as_measured(data: Path, folder: Path) -> Path:
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("*.features", "labels_*", "truth.parquet"))
    checksums = Checksums.open(folder)
    Checksums(folder, {name: value for name, value in checksums.files.items() if (folder / name).exists()}).write()
    return folder


@pytest.fixture(scope="session")
def composition_sky(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _as_measured(tiny_composition / "composition_test", tmp_path_factory.mktemp("sky") / "measured")


@pytest.fixture(scope="session")
def gamma_sky(tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _as_measured(tiny_gamma / "gamma_test", tmp_path_factory.mktemp("sky") / "measured")
