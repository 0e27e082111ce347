"""The pretrained network as a learner: where it starts, what moves, what it refuses; the weights that are shipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from features.catalogue import feature_set
from models.base.learner import Batch
from models.base.posterior import log_softmax
from models.pretraining.learner import FineTuned, PretrainedFeatures, PretrainedLearner, inputs_of
from models.pretraining.network import ShowerNetwork, pretraining_loss
from models.pretraining.stream import COLUMNS, N_WORLD, Prepared, _block
from models.pretraining.weights import SHIPPED_FILE, SHIPPED_SHA256, card_path, read_pretrained
from runtime.errors import InputError
from runtime.files import hash_file
from showers.schema import COMPOSITION, GAMMA

from .test_pretraining import small_weights, toy_portion

STILL = {"learning_rate": 1e-12, "epochs": 1, "dropout": 0.0}


def toy_events(number: int, task: int = 0) -> Batch:
    portion = toy_portion(2, number)
    rows = portion.task == task
    return Batch(
        index=np.arange(int(rows.sum())),
        table=np.asfortranarray(portion.table[rows]),
        columns=COLUMNS,
        labels=portion.labels[rows],
    )


def without(batch: Batch, *names: str) -> Batch:
    assert batch.table is not None
    kept = [name for name in batch.columns if name not in names]
    table = batch.table[:, [batch.columns.index(name) for name in kept]]
    return replace(batch, table=np.asfortranarray(table), columns=tuple(kept))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a learner that starts from a small random network."""
    file = small_weights(tmp_path_factory.mktemp("weights"))
    sizes = {"width": 16, "blocks": 1, "hidden": 16}
    return {"weights": str(file), "weights_sha256": hash_file(file), "epochs": 2, "batch_size": 64, **sizes}


@pytest.mark.parametrize(("task", "classes"), [(0, COMPOSITION.classes), (1, GAMMA.classes)])
def test_untrained_it_says_what_the_pretrained_network_says(
    task: int, classes: tuple[str, ...], small: dict[str, Any]
) -> None:
    train, valid = toy_events(1, task), toy_events(2, task)
    learner = PretrainedLearner(classes, {**small, **STILL}).fit(train, valid, seed=1)
    pretrained = read_pretrained(small["weights"], small["weights_sha256"])
    world = torch.cat([torch.zeros(N_WORLD), torch.ones(1)])
    with torch.inference_mode():
        answers = pretrained.network(torch.from_numpy(pretrained.inputs.apply(valid)), world)
    expected = log_softmax((answers.composition, answers.gamma)[task].numpy())
    np.testing.assert_allclose(learner.predict_log_proba(valid), expected, atol=1e-5)


def test_other_classes_get_a_new_head(small: dict[str, Any]) -> None:
    train = toy_events(1)
    assert train.labels is not None
    two = replace(train, labels=(train.labels > 2).astype(np.int64))
    learner = PretrainedLearner(("light", "heavy"), {**small, "epochs": 30, "learning_rate": 1e-2}).fit(
        two, two, seed=1
    )
    hits = learner.predict_log_proba(two).argmax(axis=1) == two.labels
    assert hits.mean() > 0.7


def test_body_head_and_world_move_at_their_own_rates(small: dict[str, Any]) -> None:
    start = read_pretrained(small["weights"], small["weights_sha256"]).network
    train, valid = toy_events(1), toy_events(2)

    def moved(**settings: Any) -> tuple[float, float, float]:
        learner = PretrainedLearner(COMPOSITION.classes, {**small, **settings}).fit(train, valid, seed=1)
        tuned = learner.network_.network
        assert isinstance(tuned, FineTuned)
        before, after = start.body.state_dict(), tuned.body.state_dict()
        body = max(float((before[name] - after[name]).abs().max()) for name in before)
        head = float((tuned.head.weight - start.composition.weight).detach().abs().max())
        return body, head, float(tuned.world.detach().abs().max())

    body, head, world = moved(body_rate=0.0, world_rate=0.0)
    assert (body, world) == (0.0, 0.0)
    assert head > 0
    slow, _, _ = moved(body_rate=0.1)
    fast, _, _ = moved(body_rate=1.0)
    assert 0 < slow < fast
    assert moved(body_rate=0.0, world_rate=20.0)[2] > 0


def test_columns_that_the_events_lack_count_as_missing(small: dict[str, Any]) -> None:
    train, valid = toy_events(1), toy_events(2)
    holes = train.table.copy(order="F") if train.table is not None else np.empty(0)
    holes[:, COLUMNS.index("Age")] = np.nan
    told = PretrainedLearner(COMPOSITION.classes, small).fit(replace(train, table=holes), valid, seed=1)
    lacking = PretrainedLearner(COMPOSITION.classes, small).fit(without(train, "Age"), without(valid, "Age"), seed=1)
    unseen = without(toy_events(3), "Age")
    assert lacking.predict_log_proba(unseen).shape == (len(unseen), 5)
    np.testing.assert_array_equal(
        lacking.inputs_.apply(unseen) if lacking.inputs_ else 0,
        told.inputs_.apply(_hidden(toy_events(3))) if told.inputs_ else 1,
    )
    with pytest.raises(InputError, match=r"lack 1 of the 93 columns .*: E$"):
        lacking.predict_log_proba(without(unseen, "E"))
    strange = replace(train, columns=tuple(f"x{k}" for k in range(len(COLUMNS))))
    with pytest.raises(InputError, match="none of the 93 features"):
        PretrainedLearner(COMPOSITION.classes, small).fit(strange, strange, seed=1)


def _hidden(batch: Batch) -> Batch:
    assert batch.table is not None
    table = batch.table.copy(order="F")
    table[:, COLUMNS.index("Age")] = np.nan
    return replace(batch, table=table)


def test_saved_it_needs_its_pretrained_weights_no_more(small: dict[str, Any], tmp_path: Path) -> None:
    train, valid = toy_events(1), toy_events(2)
    file = small_weights(tmp_path)
    settings = {**small, "weights": str(file), "weights_sha256": hash_file(file)}
    learner = PretrainedLearner(COMPOSITION.classes, settings).fit(train, valid, seed=1)
    learner.save(tmp_path / "saved")
    file.unlink()
    card_path(file).unlink()
    again = PretrainedLearner.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_log_proba(valid), learner.predict_log_proba(valid))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 24}, "another architecture: set width 16, blocks 1, hidden 16"),
        ({"weights_sha256": "0" * 64}, "has SHA-256"),
        ({"weights_sha256": ""}, "need weights_sha256"),
        ({"weights": "nowhere.safetensors"}, "does not exist"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(
    changes: dict[str, Any], message: str, small: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        PretrainedLearner(COMPOSITION.classes, {**small, **changes}).fit(toy_events(1), toy_events(2), seed=1)
    assert "\n" not in str(refusal.value)


def test_shipped_weights_are_those_the_code_names() -> None:
    assert hash_file(SHIPPED_FILE) == SHIPPED_SHA256
    assert SHIPPED_FILE.stat().st_size < 5_000_000
    assert PretrainedLearner(COMPOSITION.classes).chosen["weights_sha256"] == SHIPPED_SHA256
    card = read_pretrained().card
    assert card["showers"] > 100_000
    assert card["cpu_hours"] > 0
    assert card["limits"]


def test_shipped_weights_know_the_features_and_worlds_of_this_version() -> None:
    pretrained = read_pretrained()
    portion = _block(0, "test", "test", 77, 0, np.random.default_rng(77))
    seen = Prepared.of(portion, pretrained.inputs, 1, 1)
    world = torch.cat([torch.from_numpy(portion.world.copy()), torch.ones(len(portion), 1)], dim=1)
    network: ShowerNetwork = pretrained.network
    with torch.inference_mode():
        answers = network(seen.inputs, world)
        loss = float(pretraining_loss(answers, seen.task, seen.labels, seen.targets, 0.0))
    assert loss < 1.25, "chance is 1.57; the features are not those that the network was trained on"
    error = (answers.mean[:, 1] - seen.targets[:, 1]).abs().median() * 0.5
    assert error < 0.06, "lg Ne"


def test_inputs_of_a_table_without_age_are_those_of_hidden_ages() -> None:
    pretrained = read_pretrained()
    table = without(toy_events(1), "Age", "fit_minus_age")
    inputs = inputs_of(pretrained, table)
    assert inputs.absent == ("Age", "fit_minus_age")
    flags = inputs.apply(table)[:, len(inputs.plain) :]
    assert flags[:, : len(inputs.absent)].all()


def test_answers_become_columns_of_another_learner(small: dict[str, Any], tmp_path: Path) -> None:
    weights = {name: small[name] for name in ("weights", "weights_sha256")}
    member = {"learner": "models.tables.sklearn:RandomForest", "settings": {"trees": 20}}
    train, valid, new = toy_events(1), toy_events(2), without(toy_events(3), "Age")
    train, valid = without(train, "Age"), without(valid, "Age")
    settings = {"members": [member], "components": 3, **weights}
    learner = PretrainedFeatures(COMPOSITION.classes, settings).fit(train, valid, seed=1)
    seen = learner.members[0].columns_  # type: ignore[attr-defined]
    added = [name for name in seen if name.startswith("pretrained_")]
    assert len(added) == 5 + 2 + 8 + 3
    assert set(seen) - set(added) == set(feature_set("fits", train.columns))
    table = learner._extended(new).table
    assert table is not None
    pretrained = read_pretrained(small["weights"], small["weights_sha256"])
    with torch.inference_mode():
        answers = pretrained.network(torch.from_numpy(learner.inputs_.apply(new)), torch.zeros(N_WORLD + 1))
    expected = log_softmax(answers.composition.double().numpy())
    np.testing.assert_allclose(table[:, seen.index("pretrained_proton")], expected[:, 0], atol=1e-5)
    centred = np.cov(learner._extended(train).table[:, -3:], rowvar=False)  # type: ignore[index]
    assert np.abs(centred - np.diag(np.diag(centred))).max() < 1e-3 * centred[0, 0], "components are uncorrelated"
    learner.save(tmp_path / "saved")
    again = PretrainedFeatures.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_log_proba(new), learner.predict_log_proba(new))
    assert again.predict_log_proba(new.take(np.arange(0))).shape == (0, 5)
    with pytest.raises(InputError, match="has SHA-256"):
        PretrainedFeatures(COMPOSITION.classes, {**settings, "weights_sha256": "0" * 64}).fit(train, valid, seed=1)
    with pytest.raises(InputError, match="components must be at least 0"):
        PretrainedFeatures(COMPOSITION.classes, {**settings, "components": -1})
