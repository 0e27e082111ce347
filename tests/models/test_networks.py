"""Networks: sizes as published, able to learn a few showers by heart, exact symmetry, bit-identical after loading.

The training loop continues exactly where it stopped, and each of its options does what it says.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from showerstack.models.base.inputs import InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import event_log_loss
from showerstack.models.networks import data, loop, step
from showerstack.models.networks.data import EventTensors, GridSource, read_ahead
from showerstack.models.networks.images import FlatMLPLearner, HybridLearner, LeNetLearner, ResNetLearner, ViTLearner
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.loop import learning_rate
from showerstack.models.networks.physics import LG_A, PhysicsLearner, TabularMLP
from showerstack.models.networks.stations import HitTransformerLearner, SetTransformerLearner
from showerstack.models.networks.step import Checkpoint, EagerAdamW, Output, Stepper, TrainingSettings, truth_losses
from showerstack.models.registry import create, spec
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import AGE, COMPOSITION

ROOT = Path(__file__).parents[2]

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


def count_weights(learner: NetworkLearner, table: tuple[str, ...] = (), *, age: bool = False) -> int:
    """Return how many weights a network has with these table columns; nothing is trained."""
    scalars = [name for name in learner.chosen["scalars"] if name not in table and (age or name != AGE.name)]
    network = learner.build(InputTransform.nominal((*table, *scalars)), len(learner.classes), learner.array_)
    return sum(parameter.numel() for parameter in network.parameters())


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
    assert abs(count_weights(learner, age=True) - published) <= tolerance


def test_counted_weights_are_those_of_a_trained_network(showers: tuple[Batch, Batch]) -> None:
    for kind in (LeNetLearner, PhysicsLearner):
        learner = fitted(kind, *showers, epochs=1)
        assert learner.n_parameters == count_weights(learner)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learns_a_few_showers_by_heart(kind: type[NetworkLearner], showers: tuple[Batch, Batch]) -> None:
    few = showers[0].take(np.arange(20))
    settings = {"epochs": 80, "patience": 80, "batch_size": 20, "weight_decay": 0.0, "augment": False}
    steady = {"dropout": 0.0} if "dropout" in kind.defaults else {}
    learner = fitted(kind, few, few, **settings, **steady, ema=0.0, learning_rate=5e-3)
    right = learner.predict_log_proba(few).argmax(axis=1) == few.labels
    assert right.mean() > 0.8


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

    message = fitted(LeNetLearner, with_hint(train), with_hint(valid), epochs=12, learning_rate=1e-2)
    assert (message.predict_log_proba(with_hint(valid)).argmax(axis=1) == valid.labels).mean() > 0.85
    with pytest.raises(InputError, match="hint"):
        message.predict_log_proba(valid)


def test_mass_head_exists_only_where_classes_have_a_mass(showers: tuple[Batch, Batch]) -> None:
    assert tuple(LG_A) == CLASSES
    with_head = count_weights(PhysicsLearner(CLASSES))
    assert with_head - count_weights(PhysicsLearner(("a", "b", "c", "d", "e"))) == 128 + 1


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


class _Killed(Exception):
    pass


def _killer(after: float) -> Any:
    def report(done: float, total: float, note: str = "") -> None:
        if done / total > after:
            raise _Killed

    return report


@pytest.mark.parametrize("optimiser", ["adamw", pytest.param("sam", marks=pytest.mark.slow)])
def test_a_killed_run_ends_as_if_it_had_not_been(
    optimiser: str, showers: tuple[Batch, Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
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


def test_a_fit_of_less_than_two_seconds_keeps_no_state(
    showers: tuple[Batch, Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.time, "monotonic", lambda: 7.0)
    learner = LeNetLearner(CLASSES, {"epochs": 2, "batch_size": 64})
    learner.checkpoint = tmp_path
    learner.fit(*showers, seed=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_training_does_not_import_the_compiler() -> None:
    code = (
        "import sys; from showerstack.models.networks.modes import torch_as_asked as asked; import torch\n"
        "with asked('cpu', 1, deterministic=True): print(torch.get_deterministic_debug_mode())\n"
        "print(torch.get_deterministic_debug_mode(), 'torch._inductor' in sys.modules)\n"
        "import numpy as np; from showerstack.models.base.learner import Batch\n"
        "from showerstack.models.registry import create, spec\n"
        "events = Batch(np.arange(200), np.random.rand(200, 3).astype(np.float32), ('E', 'Ne', 'Nmu'),\n"
        "               labels=np.arange(200) % 2)\n"
        "create(spec('mlp'), ('a', 'b'), overrides={'epochs': 2}).fit(events, events, seed=1)\n"
        "print('torch._dynamo' in sys.modules, 'sympy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1", "0", "False", "False", "False"]


@pytest.mark.parametrize("fused", [False, True])
def test_the_optimiser_is_torchs_to_the_bit(fused: bool) -> None:
    def trained(kind: type[torch.optim.AdamW]) -> list[bytes]:
        torch.manual_seed(1)
        network = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
        groups = [{"params": [p for p in network.parameters() if (p.ndim > 1) == wide]} for wide in (True, False)]
        optimiser, state = kind(groups, lr=0.01, fused=fused), None
        for k in range(6):
            if k == 3:  # as from a checkpoint
                state = optimiser.state_dict()
                optimiser = kind(groups, lr=0.02, fused=fused)
                optimiser.load_state_dict(state)
            loss = torch.nn.functional.cross_entropy(network(torch.randn(16, 5)), torch.randint(0, 3, (16,)))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        return [p.detach().numpy().tobytes() for p in network.parameters()]

    assert trained(EagerAdamW) == trained(torch.optim.AdamW)


def test_a_checkpoint_of_another_run_is_refused(
    showers: tuple[Batch, Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
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
    values = LeNetLearner(CLASSES, {"epochs": 2}).fit(train, valid, seed=2).predict_log_proba(valid)
    monkeypatch.setattr("showerstack.models.networks.data.RESIDENT_BYTES", 0)
    read = LeNetLearner(CLASSES, {"epochs": 2}).fit(train, valid, seed=2).predict_log_proba(valid)
    np.testing.assert_array_equal(read, values)


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


def _stepper(**settings: Any) -> Stepper:
    network = torch.nn.Linear(2, 2)
    state = Checkpoint.start(network, torch.optim.SGD([{"params": list(network.parameters()), "factor": 1.0}], lr=1.0))
    chosen = TrainingSettings(**settings)
    return Stepper(lambda grids, inputs: Output(network(inputs)), state, chosen, contextlib.nullcontext, None)


def test_each_part_of_the_loss_by_hand() -> None:
    """Two events: the likelihood, the auxiliary head, a number of each class, true quantities, members, weights."""
    settings = {"auxiliary_weight": 0.5, "regression_weight": 0.25, "label_smoothing": 0.2}
    stepper = replace(_stepper(**settings), class_values=torch.tensor([1.0, 3.0]))
    labels, weights = torch.tensor([0, 1]), torch.tensor([3.0, 1.0])
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    # A fifth of each label is spread over the two classes: 0.9 of it stays.
    each = np.array([np.log(2.0), -0.9 * np.log(0.1) - 0.1 * np.log(0.9)])
    heads = {
        "auxiliary": (torch.log(torch.tensor([[0.25, 0.75], [0.5, 0.5]])), 0.5 * np.log([4.0, 2.0])),
        "regression": (torch.tensor([3.0, 4.0]), 0.25 * np.array([4.0, 1.0])),
    }
    cases = [({}, None, each)] + [({name: head}, None, each + more) for name, (head, more) in heads.items()]
    # Errors of 1 (logarithm 0): half the squares; the second event knows one of two quantities.
    targets = torch.tensor([[1.0, 2.0], [2.0, torch.nan]])
    cases.append(({"truth": torch.zeros(2, 4)}, targets, each + 0.1 * np.array([2.5 / 2, 2.0])))
    members = torch.stack([logits, torch.log(torch.tensor([[0.2, 0.8], [0.6, 0.4]]))], dim=1)
    second = -np.log([[0.2, 0.8], [0.4, 0.6]]) @ [0.9, 0.1]
    cases.append(({"members": members}, None, (each + second) / 2))
    for parts, true, expected in cases:
        for weight, mean in ((None, expected.mean()), (weights, (3 * expected[0] + expected[1]) / 4)):
            assert float(stepper._loss(Output(logits, **parts), labels, weight, true)) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("optimiser", ["adamw", "sam"])
def test_a_step_goes_down_the_slope_where_it_is_taken(optimiser: str) -> None:
    """Plain descent: from the gradient here, or from that of the worst point within the radius."""
    stepper = _stepper(optimiser=optimiser, sam_radius=0.3, clip_norm=1e9)
    weight, bias = (p.detach().clone() for p in stepper.state.network.parameters())
    inputs, labels = torch.tensor([[1.0, -2.0], [0.5, 1.0], [2.0, 0.0]]), torch.tensor([0, 1, 1])

    def slope(at: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the mean loss by weights and bias, (2, 3), by hand."""
        rows = torch.column_stack([inputs, torch.ones(3)])
        return (torch.softmax(rows @ at.T, dim=1) - torch.eye(2)[labels]).T @ rows / 3

    at = torch.column_stack([weight, bias])
    worst = at + 0.3 * slope(at) / torch.linalg.vector_norm(slope(at)) if optimiser == "sam" else at
    events = EventTensors(inputs, None, labels)
    stepper.step(events, torch.arange(3), None, 0.5, torch.Generator())
    now = torch.column_stack([p.detach() for p in stepper.state.network.parameters()])
    torch.testing.assert_close(now, at - 0.5 * slope(worst), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("precision", "native", "half"),
    [("auto", True, True), ("auto", False, False), ("float32", True, False), ("bf16", False, True)],
)
def test_half_precision_is_used_where_asked_for_or_native(
    precision: str, native: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_cpu_has_bf16", lambda: native)
    with step.autocast_of(torch.device("cpu"), precision)():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if half else torch.float32)


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
    result = event_log_loss(learner.predict_log_proba(valid.batch), valid.batch.labels)
    assert result == pytest.approx(min(history.losses), abs=1e-5)


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


def test_losses_of_known_targets_by_hand() -> None:
    answers = torch.tensor([[1.0, 2.0, 0.0, 0.5], [3.0, 4.0, -0.5, 0.0]])  # two means, then two logarithms of errors
    targets = torch.tensor([[2.0, torch.nan], [torch.nan, 1.0]])
    losses, known = truth_losses(answers, targets)
    np.testing.assert_allclose(losses, [[0.5, 0.0], [0.0, 4.5]])
    np.testing.assert_array_equal(known, [[True, False], [False, True]])
