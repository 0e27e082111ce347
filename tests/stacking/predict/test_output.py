"""Predictions of showers as tables, and targets that are refused before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stacking.predict
from runtime.errors import InputError
from showers.schema import COMPOSITION, GAMMA, Task
from stacking.predict import Stream, event_table, predict_to_file
from stacking.run.chain import Predictions

LOG_PROBA = np.log(np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]]))


class _Bundle:
    """Answers without a run."""

    def __init__(self, task: Task, predictions: Predictions) -> None:
        self.task, self.predictions = task, predictions
        self.requested = 0

    def stream(self, data: Path, **options: object) -> Stream:
        self.requested += 1
        return Stream(len(self.predictions.log_proba), iter([self.predictions]))


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> _Bundle:
    """A gamma run in the place of every run."""
    scores = LOG_PROBA[:, 0] - LOG_PROBA[:, 1]
    made = _Bundle(GAMMA, Predictions(LOG_PROBA, {"gamma_scores": scores}, "c0ffee", "beef", {}))
    monkeypatch.setattr(stacking.predict, "load", lambda run, trusted: made)
    return made


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.usefixtures("bundle")
def test_tables_of_gamma_scores(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"scores{suffix}"
    predict_to_file(tmp_path, tmp_path, out)
    found = pl.read_csv(out) if suffix == ".csv" else pl.read_parquet(out)
    assert found.columns == ["event", "p_gamma", "p_hadron", "gamma_score", "config_hash", "test_fingerprint"]
    np.testing.assert_allclose(found["p_gamma"], [0.9, 0.3, 0.5])
    np.testing.assert_allclose(found["gamma_score"], LOG_PROBA[:, 0] - LOG_PROBA[:, 1])


@pytest.mark.usefixtures("bundle")
def test_archives_stay_archives(tmp_path: Path) -> None:
    predict_to_file(tmp_path, tmp_path, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as archive:
        assert "gamma_scores" in archive


def test_a_target_that_cannot_be_is_refused_before_work(bundle: _Bundle, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("kept")
    for name in ("text.npz", "p.txt", "p"):
        with pytest.raises(InputError):
            predict_to_file(tmp_path, tmp_path, tmp_path / name)
    with pytest.raises(InputError, match="choose the name of a file"):
        predict_to_file(tmp_path, tmp_path, Path("/dev/null"))
    assert not bundle.requested
    assert (tmp_path / "text.npz").read_text() == "kept"


def test_decided_classes_are_named() -> None:
    log_proba = np.log(np.full((2, 5), 0.2))
    table = event_table(
        Predictions(log_proba, {"predictions": np.array([4, 2], np.int8)}, "c0ffee", "beef", {}), COMPOSITION
    )
    assert table["predicted"].to_list() == [COMPOSITION.classes[4], COMPOSITION.classes[2]]
    assert "gamma_score" not in table.columns


def test_labels_are_the_most_probable_class_unless_decided() -> None:
    log_proba = np.log([[0.2, 0.8], [0.6, 0.4], [0.9, 0.1]])
    scores = {"gamma_scores": log_proba[:, 0] - log_proba[:, 1]}
    assert Predictions(log_proba, scores, "c0ffee", None, {}).labels.tolist() == [1, 0, 0]
    decided = {"predictions": np.array([0, 1, 0], np.int8)}
    assert Predictions(log_proba, decided, "c0ffee", None, {}).labels.tolist() == [0, 1, 0]
