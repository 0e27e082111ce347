"""True quantities as targets of the pretrained network: what is learned from them, what is not, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.base.inputs import TARGETS
from models.base.learner import Batch
from models.isolated import learners_of
from models.pretraining.learner import FineTuned, PretrainedLearner
from models.pretraining.stream import COLUMNS
from models.pretraining.weights import read_pretrained
from models.tables.sklearn import RandomForest
from runtime.errors import InputError
from runtime.files import hash_file
from showers.schema import COMPOSITION

from .test_pretraining import small_weights

XMAX = [target.name for target in TARGETS].index("xmax")


def events(seed: int, n: int = 600) -> Batch:
    """Return showers whose first column tells the class, and whose second tells every true quantity."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    table = rng.normal(size=(n, len(COLUMNS))).astype(np.float32, order="F")
    table[:, 0] += labels
    targets = np.repeat(table[:, 1:2], len(TARGETS), axis=1) + 0.3 * rng.normal(size=(n, len(TARGETS)))
    return Batch(np.arange(n), table=table, columns=COLUMNS, labels=labels, targets=targets.astype(np.float32))


def bare(batch: Batch) -> Batch:
    return replace(batch, labels=None, targets=None)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a learner that starts from a small random network."""
    file = small_weights(tmp_path_factory.mktemp("weights"))
    sizes = {"width": 16, "blocks": 1, "hidden": 16}
    fast = {"epochs": 30, "batch_size": 64, "body_rate": 1.0, "learning_rate": 1e-2, "patience": 30}
    return {"weights": str(file), "weights_sha256": hash_file(file), **fast, **sizes}


def fitted(small: dict[str, Any], train: Batch, **changes: Any) -> PretrainedLearner:
    return PretrainedLearner(COMPOSITION.classes, {**small, **changes}).fit(train, events(2), seed=1)


def test_estimates_follow_the_truth_and_their_errors_hold(small: dict[str, Any], tmp_path: Path) -> None:
    learner, new = fitted(small, events(1, 3000), truth_weight=0.1), events(3, 2000)
    found = learner.predict_targets(bare(new))
    assert found.shape == (2000, len(TARGETS), 2)
    assert new.targets is not None
    residual = found[..., 0] - new.targets
    assert residual.std() < 0.6, "the targets spread by 1.04, their noise is 0.3"
    assert (residual / found[..., 1]).std() == pytest.approx(1.0, abs=0.25)
    learner.save(tmp_path / "saved")
    np.testing.assert_array_equal(PretrainedLearner.load(tmp_path / "saved").predict_targets(bare(new)), found)
    with learners_of(trusted=False) as opened:
        np.testing.assert_array_equal(opened(tmp_path / "saved").predict_targets(bare(new)), found)


def test_without_weight_the_body_learns_nothing_from_the_truth(small: dict[str, Any]) -> None:
    still = {"epochs": 1, "dropout": 0.0}
    start = read_pretrained(small["weights"], small["weights_sha256"]).network
    train = events(1)

    def body_after(**settings: Any) -> Any:
        tuned = fitted(small, replace(train, weights=weights), **still, **settings).network_.network
        assert isinstance(tuned, FineTuned)
        return tuned

    weights = np.ones(len(train))
    plain = fitted(small, replace(train, targets=None), **still).network_.network
    taught, shared = body_after(), body_after(truth_weight=0.3)
    assert isinstance(plain, FineTuned)
    assert float((taught.truth.weight - start.truth.weight).abs().max().detach()) > 0, "the heads learn in any case"
    assert float((plain.truth.weight - start.truth.weight).abs().max().detach()) == 0
    # Clipping of the whole gradient is all that is left of the truth.
    near = float((taught.body.embed.weight - plain.body.embed.weight).abs().max().detach())
    far = float((shared.body.embed.weight - plain.body.embed.weight).abs().max().detach())
    assert near < 0.2 * far


def test_unknown_quantities_are_left_out(small: dict[str, Any]) -> None:
    train = events(1)
    assert train.targets is not None
    targets = train.targets.copy()
    targets[:, XMAX] = np.nan
    targets[::2, 0] = np.nan
    found = fitted(small, replace(train, targets=targets), epochs=2, truth_weight=0.1)
    said = found.predict_targets(bare(events(3)))
    assert np.isnan(said[:, XMAX]).all()
    assert np.isfinite(np.delete(said, XMAX, axis=1)).all()
    assert np.isfinite(found.predict_log_proba(bare(events(3)))).all()
    never = fitted(small, replace(train, targets=None), epochs=1)
    assert np.isnan(never.predict_targets(bare(events(3)))).all(), "what was never taught is not said"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((600, 3), dtype=np.float32), r"shape \(600, 3\), expected \(600, 8\)"),
        (np.full((600, 8), np.inf, dtype=np.float32), "row 0, lg_energy is infinite"),
        (np.full((600, 8), np.nan, dtype=np.float32), "none of them is known"),
    ],
)
def test_targets_that_teach_nothing_are_refused(targets: np.ndarray, message: str, small: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=message):
        fitted(small, replace(events(1), targets=targets))
    with pytest.raises(InputError, match="truth_weight must be at least 0"):
        fitted(small, events(1), truth_weight=-1.0)


def test_events_to_be_predicted_may_not_carry_the_truth(small: dict[str, Any]) -> None:
    learner = fitted(small, events(1), epochs=1)
    with pytest.raises(InputError, match="for training alone"):
        learner.predict_log_proba(events(3))
    with pytest.raises(InputError, match="for training alone"):
        learner.predict_targets(events(3))
    with pytest.raises(TypeError, match="estimates no true quantities"):
        RandomForest(COMPOSITION.classes).predict_targets(bare(events(3)))
