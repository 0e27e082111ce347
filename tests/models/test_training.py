"""The training loop: it continues exactly where it stopped, and each of its options does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.base.learner import Batch
from models.base.posterior import event_log_loss
from models.networks.data import GridSource, read_ahead
from models.networks.images import LeNetLearner
from models.networks.loop import learning_rate
from models.networks.physics import TabularMLP
from models.networks.step import Checkpoint, TrainingSettings
from runtime.errors import InputError
from showers.schema import COMPOSITION

CLASSES = COMPOSITION.classes


class _Killed(Exception):
    pass


def _killer(after: float) -> Any:
    def report(done: float, total: float, note: str = "") -> None:
        if done / total > after:
            raise _Killed

    return report


@pytest.mark.parametrize("optimiser", ["adamw", "sam"])
def test_a_killed_run_ends_as_if_it_had_not_been(optimiser: str, showers: tuple[Batch, Batch], tmp_path: Path) -> None:
    train, valid = showers
    settings = {"epochs": 4, "batch_size": 64, "dropout": 0.2, "optimiser": optimiser}
    whole = LeNetLearner(CLASSES, settings).fit(train, valid, seed=2)
    killed = LeNetLearner(CLASSES, settings)
    killed.checkpoint = tmp_path
    with pytest.raises(_Killed):
        killed.fit(train, valid, seed=2, progress=_killer(0.6))
    resumed = LeNetLearner(CLASSES, settings)
    resumed.checkpoint = tmp_path
    resumed.fit(train, valid, seed=2)
    np.testing.assert_array_equal(resumed.predict_log_proba(valid), whole.predict_log_proba(valid))
    assert resumed.history_ is not None
    assert whole.history_ is not None
    assert resumed.history_.losses == whole.history_.losses


def test_a_checkpoint_of_another_run_is_refused(showers: tuple[Batch, Batch], tmp_path: Path) -> None:
    train, valid = showers
    first = LeNetLearner(CLASSES, {"epochs": 1})
    first.checkpoint = tmp_path
    first.fit(train, valid, seed=2)
    other = LeNetLearner(CLASSES, {"epochs": 1, "channels": 8})
    other.checkpoint = tmp_path
    for learner, seed, events in ((other, 2, train), (first, 3, train), (first, 2, train.take(np.arange(300)))):
        with pytest.raises(InputError, match="not a checkpoint of this run"):
            learner.fit(events, valid, seed=seed)
    (tmp_path / "training.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="not a checkpoint of this run"):
        first.fit(train, valid, seed=2)


def test_background_reading_changes_nothing(showers: tuple[Batch, Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid = showers
    held = LeNetLearner(CLASSES, {"epochs": 2}).fit(train, valid, seed=2).predict_log_proba(valid)
    monkeypatch.setattr("models.networks.data.RESIDENT_BYTES", 0)
    read = LeNetLearner(CLASSES, {"epochs": 2}).fit(train, valid, seed=2).predict_log_proba(valid)
    np.testing.assert_array_equal(read, held)


def test_grid_source_finds_events_of_a_batch_in_the_whole_dataset(showers: tuple[Batch, Batch]) -> None:
    grids = showers[0].grids
    assert grids is not None
    index = np.array([7, 3, 250, 11])
    for resident in (True, False):
        source = GridSource(grids, index, torch.device("cpu"), resident=resident)
        np.testing.assert_array_equal(source.fetch(np.array([2, 0])).numpy(), grids[[250, 7]])


def test_errors_of_the_background_reader_reach_the_caller() -> None:
    def broken() -> Any:
        yield torch.zeros(1)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(read_ahead(broken()))


def test_learning_rate_warms_up_and_decays() -> None:
    settings = TrainingSettings(learning_rate=1.0, warmup=0.1, final_rate=0.01)
    rates = [learning_rate(settings, step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == pytest.approx(1.0)
    assert np.argmax(rates) in (99, 100)
    assert rates[-1] == pytest.approx(0.01, abs=1e-4)


def test_average_of_weights_follows_the_network() -> None:
    network = torch.nn.Linear(2, 1)
    state = Checkpoint.start(network, torch.optim.AdamW(network.parameters()))
    before = state.averaged.weight.clone()
    with torch.no_grad():
        network.weight.fill_(1.0)
    state.average(0.9)
    keep = 2 / 11  # early steps forget faster: (1 + 1) / (10 + 1)
    torch.testing.assert_close(state.averaged.weight, keep * before + (1 - keep) * torch.ones(1, 2))
    state.average(0.0)
    torch.testing.assert_close(state.averaged.weight, torch.ones(1, 2))


def test_label_smoothing_and_class_weights_are_undone(rare_gammas: tuple[Any, Any, Any]) -> None:
    train, valid, test = rare_gammas
    settings = {"epochs": 12, "width": 32, "blocks": 1, "label_smoothing": 0.1, "class_weights": "balanced"}
    learner = TabularMLP(("gamma", "hadron"), settings).fit(train.batch, valid.batch, seed=1)
    log_proba = learner.predict_log_proba(test.batch)
    best = event_log_loss(test.log_posterior, test.batch.labels)
    assert event_log_loss(log_proba, test.batch.labels) < best + 0.05
    assert abs(np.exp(log_proba[:, 0]).mean() - 0.06) < 0.02


def test_early_stopping_keeps_the_best_epoch(gaussians: tuple[Any, Any, Any]) -> None:
    train, valid, _ = gaussians
    few = train.batch.take(np.arange(200))
    settings = {"epochs": 60, "patience": 3, "dropout": 0.0, "learning_rate": 1e-2, "ema": 0.0, "width": 64}
    learner = TabularMLP(CLASSES, settings).fit(few, valid.batch, seed=1)
    history = learner.history_
    assert history is not None
    assert len(history.losses) < 60
    assert history.best_epoch == int(np.argmin(history.losses))
    found = event_log_loss(learner.predict_log_proba(valid.batch), valid.batch.labels)
    assert found == pytest.approx(min(history.losses), abs=1e-5)


def test_size_jitter_moves_both_sizes_together(showers: tuple[Batch, Batch]) -> None:
    learner = LeNetLearner(CLASSES, {"epochs": 1, "size_jitter": 0.1}).fit(*showers, seed=1)
    assert learner.inputs_ is not None
    inputs = torch.zeros(1000, learner.inputs_.n_inputs)
    _, moved = learner._augment(None, inputs, torch.Generator().manual_seed(1))
    sizes = [learner.inputs_.position(name) for name in ("Ne", "Nmu")]
    shift = np.stack([moved[:, k].numpy() * learner.inputs_.width[k] for k in sizes])
    np.testing.assert_allclose(shift[0], shift[1], atol=1e-5)
    assert shift[0].std() == pytest.approx(0.1, rel=0.1)


def test_divergence_is_an_error(showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    settings = {"epochs": 3, "learning_rate": 1e30, "clip_norm": 1e30, "precision": "float32"}
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        LeNetLearner(CLASSES, settings).fit(train, valid, seed=1)
