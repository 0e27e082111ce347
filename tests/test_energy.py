"""The third task from end to end: simulated, stacked, predicted, verified and reported as the others are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from report.outcome import outcome
from runtime.context import PlainConsole
from showers.dataset import Dataset
from showers.schema import ENERGY
from showers.simulation import simulate
from stacking.run.config import StackConfig
from stacking.train import stack


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``energy_train`` (2,000 showers under the test's cuts) and ``energy_test`` (800)."""
    folder = tmp_path_factory.mktemp("energy")
    simulate(ENERGY, folder, n_train=2000, n_test=800, seed=5, train_cuts="test", workers=1)
    return folder


def test_labels_are_the_true_energies(data: Path) -> None:
    opened = Dataset.open(data / "energy_test", ENERGY)
    assert opened.labels is not None
    assert opened.labels.dtype == np.float32
    truth = pl.read_parquet(data / "energy_test" / "truth.parquet")["lg_energy"].to_numpy()
    np.testing.assert_array_equal(opened.labels, truth)


def test_a_stack_beats_the_reconstructed_energy(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    config = StackConfig(
        task="energy", data=data, run=run, preset="quick", learners=("quadratic_logit", "lightgbm"), folds=2,
        workers=1, device="cpu", fast=False, metas=("average", "log_pool", "greedy"),
    )  # fmt: skip
    stack(config)
    with np.load(run / "predictions.npz", allow_pickle=False) as stored:
        assert {"lg_energy", "lg_energy_error", "log_proba"} <= set(stored.files)
    PlainConsole().print(outcome(run, data, ENERGY).shown, soft_wrap=True)
    shown = capsys.readouterr().out
    assert "resolution" in shown
    assert "quadratic_logit" in shown
