"""A user's whole way in small: features, stack, predict, verify and the report, of three tasks."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task
from showerstack.showers.simulation import simulate
from tests.program import call

QUICK = ("--preset", "quick", "--learners", "quadratic_logit", "--folds", "2", "--workers", "1", "--device", "cpu")


@pytest.fixture(autouse=True, scope="module")
def libraries() -> None:
    """Import what the first test would otherwise pay for."""
    for name in ("matplotlib.figure", "sklearn.base", "showerstack.features.build"):
        import_module(name)


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA, ENERGY], ids=lambda task: task.name)
@pytest.mark.usefixtures("undrawn")
def test_from_grids_to_a_score(task: Task, tmp_path: Path) -> None:
    simulate(task, tmp_path / "data", n_train=250, n_test=200, seed=5, train_cuts="test", workers=1)
    train, test, run = (tmp_path / "data" / f"{task.name}_{split}" for split in ("train", "test", "run"))
    assert "250 events" in call("cli.py", "features", train, "--workers", "1").stdout
    shown = call("cli.py", "stack", "--task", task.name, "--data", tmp_path / "data", "--run", run, *QUICK)
    assert f"run folder: {run}" in shown.stdout.replace("\n", "")
    assert (run / "report.html").stat().st_size > 10_000
    card = (run / "model_card.md").read_text()
    assert (f"It learns {task.n_classes} bins" if task.target else f"Classes: {', '.join(task.classes)}.") in card
    assert "Stack against" not in card, "of one learner there is nothing to compare"
    header = json.loads(next(line for line in card.splitlines() if line.startswith("model-index")).split(": ", 1)[1])
    assert all(isinstance(one["value"], float) for one in header[0]["results"][0]["metrics"])
    call("cli.py", "predict", "--run", run, "--data", test, "--out", tmp_path / "again.npz")
    again, first = np.load(tmp_path / "again.npz"), np.load(run / "predictions.npz")
    np.testing.assert_array_equal(again["log_proba"], first["log_proba"])
    call("verify.py", "--task", task.name, "--data", tmp_path / "data", run / "predictions.npz")
    metrics = json.loads((run / f"metrics_{task.name}.json").read_text())
    assert np.isfinite([value for value in metrics.values() if isinstance(value, float)]).all()
