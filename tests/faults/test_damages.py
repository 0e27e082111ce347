"""Feature tables and runs, damaged in every way: the same result, or one line that names the folder."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest

import stacking
from features.build import build_table
from features.table import FeatureTable
from models.registry import LEARNERS
from runtime.files import LOCK_FILE
from stacking.predict import predict_table
from stacking.run.config import TableConfig
from stacking.train import stack_table
from tests.faults.damages import outcomes
from tests.faults.rounds import rounds
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES


def read_features(folder: Path) -> str:
    """Return a hash of everything that training reads of a feature table."""
    table = FeatureTable.open(folder)
    return hashlib.sha256(table.matrix(table.columns).tobytes() + repr(table.columns).encode()).hexdigest()


@rounds(60, 300)
def test_feature_tables(
    n: int, tiny_composition: Path, tiny_gamma: Path, tmp_path: Path, survived: Counter[str]
) -> None:
    for name, data in (("set", tiny_composition / "composition_test"), ("other", tiny_gamma / "gamma_test")):
        made = build_table(data, tmp_path / "made" / name, workers=1, groups=["reconstruction", "size"]).folder
        shutil.copytree(made, tmp_path / name, ignore=shutil.ignore_patterns(LOCK_FILE))
    found = outcomes(tmp_path / "set", read_features, n, read_features(tmp_path / "set"))
    assert found["refused"] > 0.8 * n
    survived["damages"] += found.total()


@pytest.mark.usefixtures("fakes")
@rounds(100, 600)
def test_runs(n: int, tmp_path: Path, survived: Counter[str]) -> None:
    for name, seed in (("set", 1), ("other", 2)):
        points, labels = gaussians(600, seed)
        kinds = [CLASSES[k] for k in labels]
        pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": kinds}).write_parquet(tmp_path / f"{name}.parquet")
        options: dict[str, object] = {"preset": "quick", "folds": 2, "workers": 1, "device": "cpu"}
        options |= {"learners": ("fake_linear",), "metas": ("average",), "test_table": tmp_path / "set.parquet"}
        with patch.dict(LEARNERS, FAKES):
            stack_table(
                TableConfig(
                    repeats=1,
                    holdout=0.1,
                    run=tmp_path / "made" / name,
                    table=tmp_path / f"{name}.parquet",
                    label="kind",
                    **options,
                )
            )
        shutil.copytree(tmp_path / "made" / name, tmp_path / name, ignore=shutil.ignore_patterns(LOCK_FILE))

    def read(run: Path) -> str:
        predictions, _ = predict_table(stacking.load(run, trusted=True), tmp_path / "set.parquet")
        return hashlib.sha256(predictions.log_proba.tobytes() + predictions.config_hash.encode()).hexdigest()

    found = outcomes(tmp_path / "set", read, n, read(tmp_path / "set"))
    assert min(found["refused"], found["same result"]) > 0.2 * n, "some files are needed to predict, others are not"
    survived["damages"] += found.total()
