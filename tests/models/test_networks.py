"""Networks: sizes as published, able to learn a few showers by heart, exact symmetry, bit-identical after loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.base.learner import Batch
from models.networks import data
from models.networks.images import FlatMLPLearner, HybridLearner, LeNetLearner, ResNetLearner, ViTLearner
from models.networks.learner import NetworkLearner
from models.networks.physics import LG_A, PhysicsLearner
from models.networks.stations import HitTransformerLearner, SetTransformerLearner
from models.registry import create, load, spec
from runtime.errors import InputError
from showers.schema import COMPOSITION

CLASSES = COMPOSITION.classes
SMALL: dict[type[NetworkLearner], dict[str, Any]] = {
    LeNetLearner: {},
    FlatMLPLearner: {"hidden": (64, 64)},
    HybridLearner: {"widths": (8, 16, 16), "scalar_width": 16, "head_width": 32},
    ResNetLearner: {"widths": (8, 16), "blocks": 1},
    ViTLearner: {"width": 32, "layers": 2},
    SetTransformerLearner: {"width": 16, "heads": 2, "seeds": 4},
    HitTransformerLearner: {"layers": 1},
    PhysicsLearner: {
        **{"width": 32, "blocks": 1, "station_width": 16, "heads": 2},
        **{"widths": (8, 16, 16), "scalar_width": 16, "head_width": 32},
    },
}
KINDS = list(SMALL)


def fitted(kind: type[NetworkLearner], train: Batch, valid: Batch, **settings: Any) -> NetworkLearner:
    chosen = {**SMALL[kind], "epochs": 2, "batch_size": 64, "precision": "float32", **settings}
    return kind(CLASSES, chosen).fit(train, valid, seed=5)


def moved(batch: Batch, symmetry: int) -> Batch:
    """Return the batch as the array would have seen it turned; row k of the grids is event k."""
    assert batch.grids is not None
    assert batch.scalars is not None
    numbers = torch.full((len(batch.grids),), symmetry)
    grids = data.move_grids(torch.from_numpy(batch.grids), numbers).numpy()
    scalars = batch.scalars.copy()
    azimuth = np.radians(scalars[:, 2].astype(np.float64))
    x, y = data.SYMMETRIES[symmetry] @ np.stack([np.cos(azimuth), np.sin(azimuth)])
    scalars[:, 2] = np.degrees(np.arctan2(y, x)) % 360
    return replace(batch, grids=grids, scalars=scalars)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("published.lenet", 36_810),
        ("published.lenet_wide", 139_000),
        ("published.hybrid_sam", 731_000),
        ("published.vit", 567_000),
    ],
)
def test_sizes_are_the_published_ones(name: str, published: int) -> None:
    learner = create(spec(name), CLASSES)
    assert isinstance(learner, NetworkLearner)
    # Only the first is known to the last weight; the others are published in thousands.
    tolerance = 0 if published == 36_810 else 3_000
    assert abs(learner.count_weights(age=True) - published) <= tolerance


def test_counted_weights_are_those_of_a_trained_network(showers: tuple[Batch, Batch]) -> None:
    for kind in (LeNetLearner, PhysicsLearner):
        learner = fitted(kind, *showers, epochs=1)
        assert learner.n_parameters == learner.count_weights()


@pytest.mark.parametrize("kind", KINDS)
def test_learns_a_few_showers_by_heart(kind: type[NetworkLearner], showers: tuple[Batch, Batch]) -> None:
    few = showers[0].take(np.arange(20))
    settings = {"epochs": 80, "patience": 80, "batch_size": 20, "weight_decay": 0.0, "augment": False}
    steady = {"dropout": 0.0} if "dropout" in kind.defaults else {}
    learner = fitted(kind, few, few, **settings, **steady, ema=0.0, learning_rate=5e-3)
    right = learner.predict_log_proba(few).argmax(axis=1) == few.labels
    assert right.mean() > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_network_predicts_the_same_bits(
    kind: type[NetworkLearner], showers: tuple[Batch, Batch], tmp_path: Path
) -> None:
    train, valid = showers
    learner = fitted(kind, train, valid)
    learner.save(tmp_path / "network")
    read = load(tmp_path / "network")
    np.testing.assert_array_equal(read.predict_log_proba(valid), learner.predict_log_proba(valid))
    assert read.n_parameters == learner.n_parameters


@pytest.mark.parametrize("symmetry", [1, 6])
def test_set_transformer_does_not_see_how_the_array_is_turned(symmetry: int, showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    learner = fitted(SetTransformerLearner, train, valid)
    turned = learner.predict_log_proba(moved(valid, symmetry))
    np.testing.assert_allclose(turned, learner.predict_log_proba(valid), atol=2e-4)


def members_of(learner: NetworkLearner, batch: Batch) -> torch.Tensor:
    """Return the (n, 2, C) logits of both readings."""
    events = learner._tensors(batch, "cpu")
    assert events.grids is not None
    with torch.inference_mode():
        return learner.network_(events.grids.fetch(np.arange(len(batch))), events.inputs).members


@pytest.mark.parametrize("symmetry", [1, 6])
def test_stations_are_read_the_same_however_the_array_is_turned(symmetry: int, showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    learner = fitted(PhysicsLearner, train, valid)
    as_seen, turned = (members_of(learner, batch) for batch in (valid, moved(valid, symmetry)))
    torch.testing.assert_close(turned[:, 0], as_seen[:, 0], atol=2e-4, rtol=0)
    assert (turned[:, 1] - as_seen[:, 1]).abs().max() > 1e-2


def test_physics_pools_its_two_readings(showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    learner = fitted(PhysicsLearner, train, valid)
    stations, picture = torch.log_softmax(members_of(learner, valid), dim=2).double().unbind(1)
    pooled = torch.log_softmax((stations + picture) / 2, dim=1)
    np.testing.assert_allclose(learner.predict_log_proba(valid), pooled.numpy(), atol=1e-5)
    assert (stations - picture).abs().max() > 1e-2


def test_station_attribution_is_what_hiding_the_station_does(showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    learner = SetTransformerLearner(CLASSES, {**SMALL[SetTransformerLearner], "epochs": 2, "batch_size": 64})
    learner.fit(train, valid, seed=1)
    one = valid.take(np.array([3]))
    assert valid.grids is not None
    attribution = learner.attribute(one)
    hit = valid.grids[3].any(axis=2)
    assert attribution.shape == (1, 16, 16, 5)
    assert np.all(attribution[0][~hit] == 0)
    assert np.abs(attribution[0][hit]).max() > 0


def test_same_seed_same_network_other_seed_another(showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    first, again = (fitted(LeNetLearner, train, valid).predict_log_proba(valid) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = LeNetLearner(CLASSES, {"epochs": 2}).fit(train, valid, seed=6)
    assert np.abs(other.predict_log_proba(valid) - first).max() > 1e-3


def test_caller_keeps_its_random_numbers_and_threads(showers: tuple[Batch, Batch]) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    threads = torch.get_num_threads()
    fitted(LeNetLearner, *showers, epochs=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_table_columns_join_the_scalars_of_a_grid_network(showers: tuple[Batch, Batch]) -> None:
    train, valid = showers
    assert train.labels is not None

    def with_hint(batch: Batch) -> Batch:
        assert batch.labels is not None
        table = np.asfortranarray(batch.labels[:, None].astype(np.float32))
        return replace(batch, table=table, columns=("hint",))

    told = fitted(LeNetLearner, with_hint(train), with_hint(valid), epochs=12, learning_rate=1e-2)
    assert (told.predict_log_proba(with_hint(valid)).argmax(axis=1) == valid.labels).mean() > 0.95
    with pytest.raises(InputError, match="hint"):
        told.predict_log_proba(valid)


def test_mass_head_exists_only_where_classes_have_a_mass(showers: tuple[Batch, Batch]) -> None:
    assert tuple(LG_A) == CLASSES
    with_head = PhysicsLearner(CLASSES).count_weights()
    assert with_head - PhysicsLearner(("a", "b", "c", "d", "e")).count_weights() == 128 + 1


def test_refusals(showers: tuple[Batch, Batch], tmp_path: Path) -> None:
    train, valid = showers
    with pytest.raises(InputError, match="needs detector grids"):
        LeNetLearner(CLASSES).fit(replace(train, grids=None), valid, seed=1)
    with pytest.raises(InputError, match=r"expected|trained on"):
        LeNetLearner(CLASSES).fit(replace(train, grids=np.zeros((400, 8, 8, 2), np.float16)), valid, seed=1)
    with pytest.raises(InputError, match="optimiser 'sgd'"):
        LeNetLearner(CLASSES, {"optimiser": "sgd"})
    with pytest.raises(InputError, match="choose log1p or raw"):
        LeNetLearner(CLASSES, {"grid": "log"}).fit(train, valid, seed=1)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device cuda"):
            LeNetLearner(CLASSES).fit(train, valid, seed=1, device="cuda")
