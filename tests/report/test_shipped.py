"""Plain words, differences and captions speak of what ships: its name, and its labels by its rule."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from report.outcome import learner_table
from report.run_page import learners, plain_words
from report.shared.subject import EvaluatedRun
from report.tasks.composition import mass_posteriors
from runtime.files import read_json, write_json, write_npz
from scoring.metrics.composition import fraction_error
from stacking.run.folder import write_run_checksums


def _edited(world: tuple[Path, Path], to: Path, *, shipped: bool = True) -> Path:
    run = Path(shutil.copytree(world[0], to))
    manifest = read_json(run / "manifest.json")
    manifest["gate"]["shipped"] = shipped
    write_json(run / "manifest.json", manifest)
    write_run_checksums(run)
    return run


@pytest.fixture
def turned(composition_world: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run whose stack is better than mlp by argmax and much worse by the labels that ship."""
    run = _edited(composition_world, tmp_path / "run")
    labels = EvaluatedRun.read(run, composition_world[1]).labels.astype(np.int8)
    answers = {}
    for name, argmax, decided in (("stack", labels, np.zeros_like(labels)), ("mlp", np.zeros_like(labels), labels)):
        with np.load(run / "test" / f"{name}.npz") as stored:
            log_proba = stored["log_proba"]
        write_npz(run / "test" / f"{name}.npz", log_proba=log_proba, argmax=argmax, decided=decided)
        answers[name] = decided
    with np.load(run / "predictions.npz") as stored:
        rest = {key: stored[key] for key in stored.files if key != "predictions"}
    write_npz(run / "predictions.npz", predictions=answers["stack"], **rest)
    write_run_checksums(run)
    return run


def test_the_sign_is_that_of_the_labels_that_ship(turned: Path, composition_world: tuple[Path, Path]) -> None:
    evaluated = EvaluatedRun.read(turned, composition_world[1])
    assert evaluated.shipped.rule == "decided"
    metric, _ = evaluated.against_shipped["mlp", "decided"]
    stack, mlp = (evaluated.system(name, "decided") for name in ("stack", "mlp"))
    assert stack is not None
    assert mlp is not None
    expected = fraction_error(evaluated.labels, mlp.output) - fraction_error(evaluated.labels, stack.output)
    assert metric.difference == pytest.approx(expected, abs=0.02)
    assert metric.interval.high < 0, "mlp has the smaller error by decided labels"
    assert "decided labels: mlp beats the stack" in plain_words(evaluated).body


def test_captions_name_the_learner_that_ships(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    data = composition_world[1]
    evaluated = EvaluatedRun.read(_edited(composition_world, tmp_path / "run", shipped=False), data)
    assert evaluated.shipped.name == "mlp"
    assert "Shipped: mlp." in plain_words(evaluated).body
    body = mass_posteriors(evaluated).body
    assert "Posteriors of mlp on the test set" in body
    assert "mean posterior of mlp" in body
    assert "Differences are to mlp, which ships" in learners(evaluated).body
    assert ("stack", "decided") in evaluated.against_shipped
    assert ("mlp", "decided") not in evaluated.against_shipped
    assert "held-out showers: mlp" in str(learner_table(evaluated.run.folder, data).caption)
