"""Explanations: groups and base sum to what was predicted, and the group that decides is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from showerstack import fit, fitted
from showerstack.features.catalogue import GROUPS
from showerstack.models.base.learner import Batch, Learner
from showerstack.report.run_page import write_report
from showerstack.runtime.errors import InputError
from showerstack.stacking.prediction.explain import exchanged, explain
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run, load
from tests.program import call


class _Linear(Learner):
    """Two classes whose score is a weighted sum of the table's columns."""

    def fit(self, *_: object, **__: object) -> _Linear:  # type: ignore[override]
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        assert batch.table is not None
        margin = batch.table.astype(float) @ [2.0, -1.0, 0.0]
        return -np.logaddexp(0, np.column_stack([-margin, margin]))

    def save(self, folder: Path) -> None: ...

    @classmethod
    def load(cls, folder: Path) -> _Linear:
        return cls(("a", "b"))


def test_exchanged_groups_of_a_sum_are_its_terms() -> None:
    table = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    batch = Batch(index=np.arange(9), table=np.asfortranarray(table), columns=("x", "y", "z"))
    result = exchanged(_Linear(("a", "b")), batch, 0, 1, seed=1)
    expected = (table[0] - table[1:].mean(axis=0)) * [2.0, -1.0, 0.0]
    np.testing.assert_allclose([result[name] for name in "xyz"], expected, atol=1e-5)


class _OnGrids(_Linear):
    """Two classes whose score is a product of a station, a scalar and the table; it counts what it is asked."""

    needs_grid = True
    asked: tuple[int, ...] = ()

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        assert batch.table is not None
        assert batch.grids is not None
        assert batch.scalars is not None
        self.asked = (*self.asked, len(batch))
        margin = batch.table[:, 0] * batch.table[:, 1] + batch.grids[batch.index, 1, 1, 0] * batch.scalars[:, 2]
        return -np.logaddexp(0, np.column_stack([-margin, margin]))


@pytest.mark.parametrize("rows", [1, 25, 8192])
def test_choices_asked_together_are_those_asked_one_by_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    table, scalars = rng.normal(size=(10, 3)).astype(np.float32), rng.normal(size=(10, 5)).astype(np.float32)
    batch = Batch(
        index=rng.permutation(30)[:10], table=np.asfortranarray(table), columns=("x", "y", "z"), scalars=scalars,
        grids=rng.normal(size=(30, 4, 4, 2)).astype(np.float32),
    )  # fmt: skip
    copies = batch.index.copy(), batch.table.copy(), batch.scalars.copy()  # type: ignore[union-attr]
    alone, together = _OnGrids(("a", "b")), _OnGrids(("a", "b"))
    monkeypatch.setattr("showerstack.stacking.prediction.explain.ROWS", 1)
    one_by_one = exchanged(alone, batch, 0, 1, seed=7)
    monkeypatch.setattr("showerstack.stacking.prediction.explain.ROWS", rows)
    assert exchanged(together, batch, 0, 1, seed=7) == one_by_one
    assert set(alone.asked) == {9}
    assert together.asked == alone.asked if rows < 18 else len(together.asked) == -(-len(alone.asked) // (rows // 9))
    for before, after in zip(copies, (batch.index, batch.table, batch.scalars), strict=True):
        np.testing.assert_array_equal(before, after)

    def score(kept: bool) -> float:
        return float(np.diff(alone.predict_log_proba(batch.take(np.array([0]) if kept else np.arange(1, 10)))).mean())

    assert set(one_by_one) == {"x", "y", "z", "stations", "reconstruction"}
    assert one_by_one["z"] == 0.0
    assert sum(one_by_one.values()) == pytest.approx(score(False) - score(True), abs=1e-6)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A stack of two boosters and a linear model on rows that the column ``told`` decides, modulo 3, and new rows."""
    import polars as pl

    rng, place = np.random.default_rng(3), tmp_path_factory.mktemp("explain")
    labels = rng.integers(0, 3, 900)
    frame = pl.DataFrame({
        "told": labels + 3 * rng.integers(0, 2, 900) + rng.normal(0, 0.3, 900),
        "weak": labels + rng.normal(0, 2, 900), "noise": rng.normal(size=900),
        "class": np.array(["a", "b", "c"])[labels],
    })  # fmt: skip
    names = ("lightgbm", "xgboost", "quadratic_logit")
    run = fit(frame, label="class", run=place / "run", learners=names, folds=2, workers=1, prune=0.0)
    frame.drop("class").head(40).write_csv(place / "new.csv")
    return load(run.folder), place / "new.csv"


@pytest.mark.slow
def test_groups_and_base_sum_to_what_was_predicted(table_run: tuple[Run, Path]) -> None:
    run, new = table_run
    log_proba = predict(run, new).concatenated()
    bases: dict[str, dict[tuple[str, str], list[float]]] = {}
    moved: Counter[str] = Counter()
    for event in range(12):
        result = explain(run, new, event)
        first, second = (run.task.classes.index(name) for name in result.classes)
        predicted = log_proba.log_proba[event]
        assert first == predicted.argmax()
        assert result.score == pytest.approx(predicted[first] - predicted[second], abs=1e-6)
        assert result.base + sum(result.groups.values()) == pytest.approx(result.score, abs=1e-6)
        for name, share in result.learners.items():
            assert share.probability == pytest.approx(np.exp(log_proba.by_name[name][event, first]), abs=1e-6)
            bases.setdefault(name, {}).setdefault(result.classes, []).append(share.base)
        moved.update({name: abs(share) for name, share in result.groups.items()})
    assert moved["told"] > 2 * (moved.total() - moved["told"])
    boosters = [name for name in bases if "boost" in name or "lightgbm" in name]
    assert boosters
    for name in boosters:
        # The base is no rest that hides what groups lack: it is the same for all events.
        assert max(np.ptp(same) for same in bases[name].values()) < 1e-3
    assert set(bases) == set(run.chain.needed)


def test_what_cannot_be_explained_is_said(table_run: tuple[Run, Path]) -> None:
    run, new = table_run
    with pytest.raises(InputError, match=r"no event 40: expected 0\.\.39"):
        explain(run, new, 40)


def test_a_shower_is_explained_and_drawn(gamma_run: Path, tiny_gamma: Path, tmp_path: Path) -> None:
    data, picture = tiny_gamma / "gamma_test", tmp_path / "seven.png"
    said = call("cli.py", "explain", gamma_run, data, "--event", "7", "--out", picture).stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = fitted(gamma_run).explain(data, 7)
    score = predict(load(gamma_run), data).concatenated().log_proba[7]
    assert result.classes == ("gamma", "hadron")
    assert result.score == pytest.approx(score[0] - score[1], abs=1e-6)
    group, value = next(iter(result.groups.items()))
    assert abs(value) == max(map(abs, result.groups.values()))
    assert f"{value:+.2f}  {group}" in said
    # A group is among those of the catalogue, and all together with the base are the score.
    assert set(result.groups) <= set(GROUPS)
    assert result.base + sum(result.groups.values()) == pytest.approx(result.score)


@pytest.mark.slow
def test_the_report_says_what_moved_the_showers_that_it_shows(gamma_run: Path, tiny_gamma: Path) -> None:
    page = write_report(gamma_run, tiny_gamma).read_text()
    assert page.count("ln p(gamma)/p(hadron) is") == page.count("of the test set. ") > 3
