"""Learners on tables: they recover a known posterior, survive a round trip to disk bit by bit, and refuse bad input."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import xgboost

from showerstack.features.device import gpu_answers
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.posterior import event_log_loss
from showerstack.models.registry import LEARNERS, create, load, spec
from showerstack.models.tables.base import TableRows
from showerstack.models.tables.sklearn import HIST_MODEL_FILE
from showerstack.models.tables.xgboost import MODEL_FILE, version_of_model
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import COMPOSITION

CLASSES = COMPOSITION.classes
COLUMNS = ("Ne", "Nmu", "Ze", "noise", "constant", "gap")

FAST = {
    "lightgbm": {"rounds": 150, "learning_rate": 0.1},
    "lightgbm_linear": {"rounds": 80, "learning_rate": 0.1},
    "xgboost": {"rounds": 150, "learning_rate": 0.1},
    "catboost": {"rounds": 150, "learning_rate": 0.15},
    "random_forest": {"trees": 60, "min_samples_leaf": 15},
    "extra_trees": {"trees": 60, "min_samples_leaf": 15},
    "hist_boosting": {"rounds": 80, "learning_rate": 0.15},
    "quadratic_logit": {},
    "mlp": {"epochs": 12, "width": 32, "blocks": 1},
}
SEPARABLE = {
    "lightgbm": {"min_data_in_leaf": 2, "lambda_l2": 0.1, "feature_fraction": 1.0},
    "xgboost": {"min_child_weight": 0.01, "reg_lambda": 0.1, "colsample_bytree": 1.0},
    "catboost": {"l2_leaf_reg": 0.1, "rsm": 1.0},
}
TABLE_LEARNERS = [name for name in FAST if name in LEARNERS]
WITH_IMPORTANCES = [name for name in TABLE_LEARNERS if name not in ("mlp", "hist_boosting", "quadratic_logit")]
Events = tuple[Any, Any, Any]
"""Training, validation and test events with ``batch`` and the true ``log_posterior``."""
EXCESS_NATS = 0.12
"""A learner may lose this much log-loss against the true posterior on 3,000 training events."""


def fitted(name: str, train: Any, valid: Any, classes: tuple[str, ...] = CLASSES, **settings: object) -> Learner:
    learner = create(spec(name), classes, overrides={**FAST[name], **settings})
    return learner.fit(train.batch, valid.batch, seed=3)


@pytest.fixture(scope="module")
def learners(gaussians: Events) -> dict[str, Learner]:
    return {name: fitted(name, *gaussians[:2]) for name in TABLE_LEARNERS}


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_the_same_training_ends_with_the_same_files(name: str, gaussians: Events, tmp_path: Path) -> None:
    few = {"rounds": 5, "trees": 5, "epochs": 1}
    settings = {key: value for key, value in few.items() if key in FAST[name]}
    for folder in ("one", "again"):
        fitted(name, *gaussians[:2], **settings).save(tmp_path / folder)
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert len(files) > 1
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_finds_the_known_posterior(name: str, learners: dict[str, Learner], gaussians: Events) -> None:
    test = gaussians[2]
    log_proba = learners[name].predict_log_proba(test.batch)
    assert log_proba.shape == (len(test.batch), 5)
    assert log_proba.dtype == np.float64
    np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1.0, atol=1e-9)
    best = event_log_loss(test.log_posterior, test.batch.labels)
    assert best - 0.02 < event_log_loss(log_proba, test.batch.labels) < best + EXCESS_NATS


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_saved_and_loaded_learner_predicts_the_same_bits(
    name: str, learners: dict[str, Learner], gaussians: Events, tmp_path: Path
) -> None:
    batch = gaussians[2].batch
    learners[name].save(tmp_path / "learner")
    read = load(tmp_path / "learner", classes=CLASSES)
    np.testing.assert_array_equal(read.predict_log_proba(batch), learners[name].predict_log_proba(batch))
    assert read.n_parameters == learners[name].n_parameters


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_columns_are_found_by_name_and_missing_ones_refused(
    name: str, learners: dict[str, Learner], gaussians: Events
) -> None:
    batch = gaussians[2].batch
    assert batch.table is not None
    turned = replace(batch, table=np.asfortranarray(batch.table[:, ::-1]), columns=COLUMNS[::-1])
    np.testing.assert_array_equal(learners[name].predict_log_proba(turned), learners[name].predict_log_proba(batch))
    lacking = replace(batch, table=batch.table[:, 1:], columns=COLUMNS[1:])
    with pytest.raises(InputError, match=r"lack 1 of the 6 .*Ne"):
        learners[name].predict_log_proba(lacking)


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_rare_class_scores_are_fine_grained(name: str, rare_gammas: Events) -> None:
    train, valid, test = rare_gammas
    log_proba = fitted(name, train, valid, ("gamma", "hadron")).predict_log_proba(test.batch)
    assert np.all(np.isfinite(log_proba))
    score = log_proba[:, 0] - log_proba[:, 1]
    top = np.sort(score)[-300:]
    assert len(np.unique(top)) > 0.9 * len(top)
    best = event_log_loss(test.log_posterior, test.batch.labels)
    assert event_log_loss(log_proba, test.batch.labels) < best + 0.04
    assert abs(np.exp(log_proba[:, 0]).mean() - 0.06) < 0.02


@pytest.mark.parametrize("name", WITH_IMPORTANCES)
def test_importances_find_the_informative_columns(name: str, learners: dict[str, Learner]) -> None:
    importances = learners[name].importances()
    assert importances is not None
    assert tuple(importances) == COLUMNS
    assert sum(importances.values()) == pytest.approx(1.0)
    assert importances["constant"] == 0.0
    assert max(importances, key=lambda column: importances[column]) == "Nmu"


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_a_separable_table_is_not_learned_for_ever(name: str) -> None:
    x = np.linspace(-1, 1, 90, dtype=np.float32)[:, None]
    labels = np.digitize(x[:, 0], [-0.3, 0.3])
    batch = Batch(columns=("x",), table=x, labels=labels, index=np.arange(len(x)))
    trees = {}
    for least in (0.0, 1e-3):
        settings = {"rounds": 1500, "patience": 50, "least_gain": least, **SEPARABLE[name]}
        learner = create(spec(name), ("a", "b", "c"), overrides=settings).fit(batch, batch, seed=1)
        assert event_log_loss(learner.predict_log_proba(batch), labels) < 0.05
        trees[least] = learner.n_parameters
    assert trees[1e-3] < 0.75 * trees[0.0]


def test_the_leaves_of_lightgbm_are_counted(learners: dict[str, Learner]) -> None:
    described = learners["lightgbm"].booster_.dump_model()  # type: ignore[attr-defined]
    assert learners["lightgbm"].n_parameters == sum(tree["num_leaves"] for tree in described["tree_info"]) > 0


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_losses_of_rounds_hold_that_of_the_learner(name: str, learners: dict[str, Learner], gaussians: Events) -> None:
    losses, valid = np.array(learners[name].losses_), gaussians[1].batch
    assert valid.labels is not None
    own = event_log_loss(learners[name].predict_log_proba(valid), valid.labels)
    assert losses[0] > own + 0.1
    assert np.abs(losses - own).min() < 1e-4


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_contributions_sum_to_the_margins(name: str, learners: dict[str, Learner], gaussians: Events) -> None:
    batch = gaussians[2].batch.take(np.arange(50))
    contributions = learners[name].contributions(batch)  # type: ignore[attr-defined]
    assert contributions.shape == (50, 5, len(COLUMNS) + 1)
    margins = contributions.sum(axis=2)
    log_proba = margins - np.logaddexp.reduce(margins, axis=1, keepdims=True)
    np.testing.assert_allclose(log_proba, learners[name].predict_log_proba(batch), atol=1e-4)


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_class_weights_are_undone(name: str, rare_gammas: Events) -> None:
    train, valid, test = rare_gammas
    learner = fitted(name, train, valid, ("gamma", "hadron"), class_weights="balanced")
    log_proba = learner.predict_log_proba(test.batch)
    best = event_log_loss(test.log_posterior, test.batch.labels)
    assert event_log_loss(log_proba, test.batch.labels) < best + 0.06
    assert abs(np.exp(log_proba[:, 0]).mean() - 0.06) < 0.045


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_event_weights_act(name: str, learners: dict[str, Learner], gaussians: Events) -> None:
    train, valid, _ = gaussians
    heavy = np.where(train.batch.labels == 4, 20.0, 1.0)
    weighted = fitted(name, replace(train, batch=replace(train.batch, weights=heavy)), valid)
    batch = valid.batch
    gain = weighted.predict_log_proba(batch)[:, 4].mean() - learners[name].predict_log_proba(batch)[:, 4].mean()
    assert gain > 0.2


@pytest.mark.parametrize("name", TABLE_LEARNERS)
class TestRefusals:
    """What cannot be learned from is refused before anything is learned."""

    def test_class_without_events(self, name: str, gaussians: Events) -> None:
        train, valid, _ = gaussians
        some = train.batch.take(train.batch.labels != 2)
        with pytest.raises(InputError, match="carbon"):
            create(spec(name), CLASSES).fit(some, valid.batch, seed=1)

    def test_one_event(self, name: str, gaussians: Events) -> None:
        train, valid, _ = gaussians
        with pytest.raises(InputError, match="no training event"):
            create(spec(name), CLASSES).fit(train.batch.take(np.array([0])), valid.batch, seed=1)

    def test_zero_weights(self, name: str, gaussians: Events) -> None:
        train, valid, _ = gaussians
        with pytest.raises(InputError, match="all training weights are zero"):
            create(spec(name), CLASSES).fit(
                replace(train.batch, weights=np.zeros(len(train.batch))), valid.batch, seed=1
            )

    @pytest.mark.parametrize("value", [np.nan, 3.0])
    def test_nothing_varies(self, name: str, value: float, gaussians: Events) -> None:
        train, valid, _ = gaussians
        assert train.batch.table is not None
        flat = replace(train.batch, table=np.full_like(train.batch.table, value))
        with pytest.raises(InputError, match="varies"):
            create(spec(name), CLASSES).fit(flat, valid.batch, seed=1)

    def test_infinite_feature(self, name: str, gaussians: Events) -> None:
        train, valid, _ = gaussians
        assert train.batch.table is not None
        table = train.batch.table.copy(order="F")
        table[17, 1] = np.inf
        with pytest.raises(InputError, match="'Nmu': row 17"):
            create(spec(name), CLASSES).fit(replace(train.batch, table=table), valid.batch, seed=1)

    def test_unknown_setting(self, name: str) -> None:
        with pytest.raises(InputError, match="no setting 'learing_rate'"):
            create(spec(name), CLASSES, overrides={"learing_rate": 0.1})

    def test_untrained(self, name: str, gaussians: Events, tmp_path: Path) -> None:
        learner = create(spec(name), CLASSES)
        with pytest.raises(InputError, match="not been trained"):
            learner.predict_log_proba(gaussians[2].batch)
        with pytest.raises(InputError, match="not been trained"):
            learner.save(tmp_path / "learner")
        assert not (tmp_path / "learner").exists()


@pytest.mark.parametrize("name", TABLE_LEARNERS)
def test_damaged_files_are_refused(name: str, learners: dict[str, Learner], tmp_path: Path) -> None:
    folder = tmp_path / "learner"
    learners[name].save(folder)
    (model,) = [file for file in folder.iterdir() if file.name != "learner.json"]
    content = model.read_bytes()
    model.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="not the file that was saved"):
        load(folder)
    model.unlink()
    with pytest.raises(InputError, match="does not exist"):
        load(folder)


def test_a_model_of_a_newer_xgboost_is_refused(learners: dict[str, Learner], tmp_path: Path) -> None:
    """XGBoost 3.0 reads the files of 3.2 and predicts other probabilities."""
    file = tmp_path / MODEL_FILE
    learner = learners["xgboost"]
    learner._write(tmp_path)  # type: ignore[attr-defined]
    stored = file.read_bytes()
    written_by = version_of_model(stored)
    assert written_by is not None
    assert ".".join(map(str, written_by)) == xgboost.__version__
    file.write_bytes(stored.replace(b"\x03i" + bytes(written_by[:1]), b"\x03i\x63"))
    with pytest.raises(InputError, match=r"written with XGBoost 99\.\d+\.\d+; .* install XGBoost 99"):
        learner._read(tmp_path, {})  # type: ignore[attr-defined]


def test_a_boosting_of_another_scikit_learn_names_both_versions(learners: dict[str, Learner], tmp_path: Path) -> None:
    """As scikit-learn 1.8 writes it: the compiled loss is called ``_loss.CyHalfMultinomialLoss`` there."""
    learner = learners["hist_boosting"]
    learner._write(tmp_path)  # type: ignore[attr-defined]
    file = tmp_path / HIST_MODEL_FILE
    with zipfile.ZipFile(file) as stored:
        parts = {name: stored.read(name) for name in stored.namelist()}
    schema = parts["schema.json"].decode()
    assert '"sklearn._loss._loss"' in schema
    schema = schema.replace('"sklearn._loss._loss"', '"_loss"').replace(sklearn.__version__, "1.8.0")
    parts["schema.json"] = schema.encode()
    with zipfile.ZipFile(file, "w") as stored:
        for name, content in parts.items():
            stored.writestr(name, content)
    installed = re.escape(sklearn.__version__)
    line = rf"with scikit-learn 1\.8\.0, and scikit-learn {installed}, .*1\.8\.0, or train again"
    with pytest.raises(InputError, match=line):
        learner._read(tmp_path, {})  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["random_forest", "extra_trees"])
@pytest.mark.parametrize("capped", [False, True])
def test_leaves_are_smoothed_by_events_whatever_the_weights_are(name: str, capped: bool) -> None:
    """Each leaf gets ``smoothing`` events of the training mix: a factor common to all weights says nothing."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 2, 1200)
    table = np.asfortranarray(rng.normal(size=(1200, 3)) + labels[:, None], dtype=np.float32)
    settings = {"trees": 40, "min_samples_leaf": 3, **({"max_events": 400} if capped else {})}
    loss = {}
    for factor in (1.0, 1e4):
        rows = TableRows(table[:600], labels[:600], np.full(600, factor))
        learner = create(spec(name), ("gamma", "hadron"), overrides=settings)
        learner._fit(rows, rows, seed=5, device="cpu", progress=None)  # type: ignore[attr-defined]
        log_p = learner._log_proba(table[600:])  # type: ignore[attr-defined]
        loss[factor] = -log_p[np.arange(600), labels[600:]].mean()
    assert loss[1.0] < 0.55
    assert loss[1e4] == pytest.approx(loss[1.0], abs=1e-3)  # other roundings of a split


def test_lightgbm_without_cuda_says_so_and_trains_on_the_cpu(
    gaussians: Events, caplog: pytest.LogCaptureFixture
) -> None:
    if gpu_answers():
        pytest.skip("there is a GPU")
    learner = create(spec("lightgbm"), CLASSES, overrides={"rounds": 5})
    learner.fit(gaussians[0].batch, gaussians[1].batch, seed=1, device="cuda")
    assert "trains on the CPU" in caplog.text
    assert learner.predict_log_proba(gaussians[2].batch).shape == (1500, 5)


def test_catboost_takes_one_gpu_and_leaves_some_of_it() -> None:
    given = [create(spec("catboost"), CLASSES)._parameters(1, device) for device in ("cuda", "cpu")]  # type: ignore[attr-defined]
    assert (given[0]["devices"], given[0]["gpu_ram_part"]) == ("0", 0.9)
    assert not {"devices", "gpu_ram_part"} & set(given[1])


@pytest.mark.parametrize("name", ["xgboost", "catboost"])
def test_cuda_without_a_gpu_is_refused(name: str, gaussians: Events) -> None:
    if gpu_answers():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=r"device .?cuda"):
        create(spec(name), CLASSES).fit(gaussians[0].batch, gaussians[1].batch, seed=1, device="cuda")


def test_long_tables_are_predicted_in_parts(
    learners: dict[str, Learner], gaussians: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = gaussians[2].batch
    whole = {name: learner.predict_log_proba(batch) for name, learner in learners.items() if name != "mlp"}
    monkeypatch.setattr("showerstack.models.tables.base.PREDICT_ROWS", 400)
    for name, expected in whole.items():
        np.testing.assert_allclose(learners[name].predict_log_proba(batch), expected, atol=1e-12, err_msg=name)


def test_large_forests_draw_fewer_events_per_tree(gaussians: Events) -> None:
    train, valid, _ = gaussians
    leaves = {}
    for name in ("random_forest", "extra_trees"):
        for most in (300, 10_000):
            learner = create(spec(name), CLASSES, overrides={"trees": 5, "max_events": most})
            leaves[name, most] = learner.fit(train.batch, valid.batch, seed=1).n_parameters
        assert 0 < leaves[name, 300] < 0.3 * leaves[name, 10_000]


def test_one_event_is_predicted(learners: dict[str, Learner], gaussians: Events) -> None:
    one: Batch = gaussians[2].batch.take(np.array([5]))
    for learner in learners.values():
        assert learner.predict_log_proba(one).shape == (1, 5)
        assert learner.predict_log_proba(one.take(np.array([], dtype=int))).shape == (0, 5)


def test_wide_tables_bound_the_terms_and_the_memory_of_a_quadratic_logit() -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(400) % 2
    table = np.asfortranarray(rng.normal(size=(400, 60)), dtype=np.float32)
    table[:, 59] += 4 * labels
    columns = tuple(f"x{k}" for k in range(60))
    batch = Batch(index=np.arange(400), table=table, columns=columns, labels=labels)
    learner = create(spec("quadratic_logit"), ("a", "b"), overrides={"max_terms": 80, "max_events": 10_000})
    learner.fit(batch, batch, seed=1)
    assert learner.n_parameters == 80 + 1, "60 linear terms and 20 squares"
    assert np.mean(learner.predict_log_proba(batch).argmax(axis=1) == labels) > 0.9, "the last column counts as well"
    learner = create(spec("quadratic_logit"), ("a", "b"), overrides={"max_terms": 20, "max_events": 300})
    visited: list[int] = []
    terms = learner._terms  # type: ignore[attr-defined]
    learner._terms = lambda part: visited.append(len(part)) or terms(part)  # type: ignore[attr-defined]
    learner.fit(batch, batch, seed=1)
    assert learner.n_parameters == 60 + 1
    assert visited[0] == 100, "three times as many terms as allowed: a third of the events"
