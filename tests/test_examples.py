"""The scripts in ``examples/`` do what their heads say."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from showerstack.stacking.store import Run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name: str) -> ModuleType:
    described = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


conformal_sets = example("conformal_sets")


def test_conformal_sets_hold_the_true_class_as_often_as_stated() -> None:
    rng, n = np.random.default_rng(1), 40_000
    x, labels = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    x[np.arange(n), labels] += 1.0
    log_proba = 3.0 * (x - x.mean(axis=1, keepdims=True))  # too sure of itself: sets mend that
    log_proba -= np.log(np.exp(log_proba).sum(axis=1, keepdims=True))
    known, new = np.arange(n) < n // 2, np.arange(n) >= n // 2
    limit = conformal_sets.limit_of(log_proba[known], labels[known], 0.1)
    held = np.exp(log_proba[new, labels[new]]) >= limit
    assert held.mean() == pytest.approx(0.9, abs=5 * np.sqrt(2 * 0.09 / (n // 2)))
    # Each shower ten times says no more than once: with twenty showers the limit is that of one use of each.
    few = np.repeat(np.flatnonzero(known)[:20], 10)
    groups = np.repeat(np.arange(20), 10)
    once = conformal_sets.limit_of(log_proba[few[::10]], labels[few[::10]], 0.1)
    assert conformal_sets.limit_of(log_proba[few], labels[few], 0.1, groups) == once
    assert conformal_sets.limit_of(log_proba[few[:50]], labels[few[:50]], 0.1, groups[:50]) == 0.0, "five say nothing"


def test_conformal_sets_of_a_run(
    composition_run: Path, tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions = str(Run.open(composition_run).predictions)
    labelled = str(tiny_composition / "composition_test")
    monkeypatch.setattr(sys, "argv", ["conformal_sets.py", predictions, labelled, predictions, str(tmp_path / "s.csv")])
    conformal_sets.main()
    table = pl.read_csv(tmp_path / "s.csv")
    assert table.columns == ["event", "proton", "helium", "carbon", "silicon", "iron"]
    truth = np.load(Path(labelled) / "labels_composition.npy")
    held = table.drop("event").to_numpy()[np.arange(len(truth)), truth]
    assert held.mean() == pytest.approx(0.9, abs=0.01), "of the known showers themselves"
