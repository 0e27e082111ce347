"""Every number of networks' inputs, posteriors and training, beside the numbers they gave before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from showerstack.models.base.inputs import (
    CUT,
    LOGARITHM,
    TARGETS,
    InputTransform,
    column_values,
    has_column,
    signed_log,
    soft_tail,
    targets_of,
)
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import (
    class_weight_vector,
    event_log_loss,
    log_of_margins,
    log_sigmoid_pair,
    log_softmax,
    undo_training_prior,
)
from showerstack.models.networks import loop
from showerstack.models.networks.data import EventTensors, GridSource
from showerstack.models.networks.step import (
    Checkpoint,
    Output,
    Stepper,
    TrainingSettings,
    autocast_of,
    optimiser_of,
    read_checkpoint,
    truth_losses,
    write_checkpoint,
)
from showerstack.runtime.errors import InputError

Reference = Callable[..., None]
SINGLE = 1e-4
"""Relative tolerance where sums are made in float32: their order is the library's."""


def events_of_columns(n: int = 1000) -> Batch:
    """Return events with columns of every kind: plain, heavy tails, gaps, constant, few values, vectors."""
    rng = np.random.default_rng(1)
    tails = np.zeros((2, n))
    # The central 99.8 % of these are 11.5 and 12.5 half-widths wide: one is compressed, the other is not.
    for k, ratio in enumerate((11.5, 12.5)):
        tails[k] = np.linspace(-1, 1, n)
        tails[k, :5], tails[k, -5:] = -ratio * 0.34, ratio * 0.34
    columns = {
        "plain": rng.normal(3, 2, n),
        "heavy": np.exp(rng.normal(0, 2.5, n)) * np.sign(rng.normal(size=n)),
        "mostly 0": np.where(np.arange(n) % 3 > 0, 0.0, np.exp(rng.normal(0, 4, n))),
        "narrow": np.where(np.arange(n) % 20 == 0, 7.0, 2.0),
        "below": tails[0],
        "above": tails[1],
        "constant": np.full(n, 3.0),
        "absent": np.full(n, np.nan),
        "rare gaps": np.where(np.arange(n) < 5, np.nan, rng.normal(size=n)),
        "gaps": np.where(np.arange(n) < 6, np.nan, rng.normal(size=n)),
        "fit_core_x_m": rng.uniform(-300, 300, n),
        "fit_core_y_m": np.where(np.arange(n) % 9 == 0, np.nan, rng.uniform(-300, 300, n)),
    }
    table = np.asfortranarray(np.stack(list(columns.values()), axis=1).astype(np.float32))
    scalars = np.stack([rng.uniform(0, 42, n), rng.uniform(0, 360, n), rng.normal(5, 1, n)], axis=1).astype(np.float32)
    return Batch(np.arange(n), table, tuple(columns), scalars=scalars, scalar_columns=("Ze", "Az", "Ne"))


@pytest.mark.parametrize("tail", [CUT, LOGARITHM])
def test_inputs(tail: str, reference: Reference) -> None:
    batch = events_of_columns()
    names = (*batch.columns, *batch.scalar_columns)
    transform = InputTransform.fit(batch, names, tail=tail)
    again = InputTransform.from_state(
        json.loads(
            json.dumps({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in transform.state().items()})
        )
    )
    inputs = again.apply(batch)
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs, transform.apply(batch))
    without = InputTransform.from_state(transform.state() | {"absent": ("plain", "gaps")})
    one = InputTransform.fit(batch, ("Ze", "Ne"))
    reference(
        {
            "learned": [transform.log_scale, transform.centre, transform.width],
            "plain": [names.index(name) for name in transform.plain],
            "flagged": [names.index(name) for name in transform.flagged],
            "vectors": [[names.index(name) for name in pair] for pair in transform.vectors],
            "pairs": transform.pairs,
            "n_inputs": transform.n_inputs,
            "positions": [transform.position(name) for name in names if transform.position(name) is not None],
            "inputs": list(inputs.T),
            "first": list(inputs[:8]),
            "absent": list(without.apply(batch).T),
            "two": [one.n_inputs, one.plain.index("Ze"), *one.apply(batch)[:3]],
        },
        rtol=1e-6,
    )


def test_parts_of_inputs(reference: Reference) -> None:
    batch = events_of_columns(20)
    assert (has_column(batch, "plain"), has_column(batch, "Ze"), has_column(batch, "none")) == (True, True, False)
    assert not has_column(Batch(np.arange(2)), "plain")
    np.testing.assert_array_equal(column_values(batch, "Az"), batch.scalars[:, 1])
    for pair in (("fit_core_x_m", "fit_core_y_m"), ("Ze", "Az")):
        assert InputTransform.nominal(pair).vectors == (pair,)
    nominal = InputTransform.nominal(("a", "Ze", "Az", "fit_core_x_m", "fit_core_y_m", "fit_core_x_error_m"))
    values = np.array([-9.0, -4.0, -3.0, -0.5, 0.0, 2.0, 3.0, 3.5, 20.0])
    rng = np.random.default_rng(2)
    truth = pl.DataFrame(
        {name: rng.normal(1, 3, 40) for name in ("lg_energy", "lg_ne", "lg_nmu", "xmax", "age", "core_x_m", "core_y_m")}
    )
    mass = np.resize([0.0, 0.5, 1.0, 4.0, 56.0], 40)
    truth = truth.with_columns(pl.Series("mass", mass))
    x, y = rng.normal(0, 2, 40), rng.normal(0, 2, 40)
    x[:2], y[:2] = 0.0, (0.0, 1e-4)
    targets = targets_of(truth, x, y)
    spread = pl.DataFrame({t.name: t.centre + t.width * np.linspace(-7, 7, 40) for t in TARGETS[:5]})
    spread = spread.with_columns(truth["mass"], (truth["core_x_m"] * 5).alias("core_x_m"), truth["core_y_m"])
    n = 400_001
    long = Batch(np.arange(n), (np.arange(n, dtype=np.float32)[:, None] % 7) ** 2, ("v",))
    fitted = InputTransform.fit(long, ("v",))
    even = Batch(np.arange(n), np.where(np.arange(n) % 2 == 0, np.arange(n), -1e6).astype(np.float32)[:, None], ("v",))
    fitted_even = InputTransform.fit(even, ("v",))
    reference(
        {
            "nominal": [len(nominal.plain), nominal.n_inputs, nominal.pairs],
            "signed": [signed_log(values, scale) for scale in (0.0, 0.25, 2.0)],
            "soft": soft_tail(values),
            "targets": list(targets.T),
            "first": list(targets[:6]),
            "clipped": list(targets_of(spread, x, y).T),
            "long": [fitted.centre, fitted.width, fitted_even.centre, fitted_even.width],
        }
    )


def test_posteriors(reference: Reference) -> None:
    rng = np.random.default_rng(3)
    margins, labels = rng.normal(0, 3, (50, 3)), np.resize([0, 1, 1, 2, 2, 2], 50)
    weights, names = np.exp(rng.normal(0, 0.5, 50)), ("a", "b", "c")
    z = log_softmax(margins)
    balanced = class_weight_vector("balanced", labels, (*names, "none"))
    given = class_weight_vector({"c": 3, "a": 1, "b": 0.5}, labels, names)
    assert class_weight_vector(None, labels, names) is None
    np.testing.assert_allclose(np.exp(z).sum(axis=1), 1.0)
    np.testing.assert_array_equal(log_softmax(np.array([[1e3, 0.0], [0.0, -1e3]])), [[0.0, -1e3], [0.0, -1e3]])
    for refused in (
        "other",
        {"a": 1.0},
        {"a": 1.0, "b": 1, "c": 1, "d": 1},
        [1.0, 2.0],
        [1.0, 0.0, 1.0],
        [1.0, np.inf, 1.0],
    ):
        with pytest.raises(InputError, match="class_weights"):
            class_weight_vector(refused, labels, names)
    reference(
        {
            "softmax": z,
            "pair": log_sigmoid_pair(margins[:6, 0]),
            "of margins": [log_of_margins(some) for some in (margins[:, 0], margins[:, :1], margins[:, :2], margins)],
            "weights": [balanced, given, class_weight_vector([2.0, 1.0, 0.1], labels, names)],
            "natural": [
                undo_training_prior(z, w, e) for w in (None, np.array([1.0, 0.5, 3.0])) for e in (0.0, 0.1, 0.5)
            ],
            "loss": [event_log_loss(z, labels, w) for w in (None, weights)],
        }
    )


def test_rates(reference: Reference) -> None:
    defaults = TrainingSettings()
    short = TrainingSettings(learning_rate=0.3, warmup=0.25, final_rate=0.1)
    none = TrainingSettings(warmup=0.0, final_rate=0.0)
    reference(
        {
            "settings": vars(defaults),
            "default": np.array([loop.learning_rate(defaults, step, 200) for step in range(200)]),
            "at the ends": [loop.learning_rate(defaults, step, 200) for step in (0, 8, 9, 10, 11, 12, 150, 199)],
            "short": [loop.learning_rate(short, step, 10) for step in range(10)],
            "none": [loop.learning_rate(none, step, total) for total in (1, 2, 5) for step in range(total)],
        }
    )
    assert loop.learning_rate(short, 10, 10) == pytest.approx(0.03)


def test_settings_that_make_no_sense_are_refused() -> None:
    TrainingSettings(epochs=1, batch_size=1, patience=1, label_smoothing=0.0, ema=0.0)
    wrong: tuple[dict[str, Any], ...] = (
        {"epochs": 0}, {"batch_size": 0}, {"patience": 0}, {"label_smoothing": 1.0}, {"label_smoothing": -0.1},
        {"ema": 1.0}, {"ema": -0.1}, {"optimiser": "sgd"}, {"precision": "half"},
    )  # fmt: skip
    for settings in wrong:
        with pytest.raises(InputError):
            TrainingSettings(**settings)


class Tiny(nn.Module):
    """Three classes from five inputs, and grids of 2 x 2 x 2 if there are any, by every output that training knows."""

    def __init__(self, *, grids: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.body = nn.Linear(13 if grids else 5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(dropout)
        self.heads = nn.ModuleDict(
            {
                name: nn.Linear(8, size)
                for name, size in (("logits", 3), ("auxiliary", 3), ("regression", 1), ("truth", 4), ("members", 6))
            }
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def forward(self, grids: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        """Return all outputs."""
        if grids is not None:
            inputs = torch.cat([inputs, grids.float().flatten(1)], dim=1)
        hidden = self.drop(self.norm(torch.tanh(self.body(inputs))))
        said = {name: head(hidden) for name, head in self.heads.items()}
        members = said["members"].reshape(-1, 2, 3) if self.members else None
        parts = (said["auxiliary"], said["regression"][:, 0], said["truth"], members)
        return Output(said["logits"], *parts)

    members = False


def tensors(n: int, seed: int, *, grids: bool = False, weights: bool = False, resident: bool = True) -> EventTensors:
    """Return events of three classes, as the network gets them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    inputs = torch.from_numpy((rng.normal(size=(n, 5)) + 0.5 * (labels[:, None] - 1)).astype(np.float32))
    targets = rng.normal(size=(n, 2)).astype(np.float32) + labels[:, None].astype(np.float32)
    targets[::4, 0], targets[::10] = np.nan, np.nan
    cells = rng.normal(size=(n, 2, 2, 2)).astype(np.float32)
    source = GridSource(cells, np.arange(n), torch.device("cpu"), resident=resident) if grids else None
    return EventTensors(
        inputs,
        source,
        torch.from_numpy(labels),
        torch.from_numpy(rng.uniform(0, 2, n).astype(np.float32)) if weights else None,
        torch.from_numpy(targets),
    )


def turned(
    grids: torch.Tensor | None, inputs: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Change the sign of some inputs."""
    return grids, inputs * (1 - 2 * (torch.rand(inputs.shape, generator=generator) < 0.1).float())


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no average": {"ema": 0.0},
    "slow average": {"ema": 0.2},
    "sam": {"optimiser": "sam", "sam_radius": 0.3, "clip_norm": 1e9},
    "smoothed": {"label_smoothing": 0.2, "weight_decay": 0.3},
    "auxiliary": {"auxiliary_weight": 0.7, "regression_weight": 0.3},
    "clipped": {"clip_norm": 0.1, "warmup": 0.4, "final_rate": 0.5},
}


def moments(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the values of all weights and buffers, layer by layer."""
    layers: dict[str, list[np.ndarray]] = {}
    for name, value in network.state_dict().items():
        layers.setdefault(name.rpartition(".")[0], []).append(value.double().numpy().ravel())
    return {name: np.concatenate(values) for name, values in layers.items()}


@pytest.mark.parametrize(
    "case", [*CASES, "class weights", "event weights", "members", "no targets", "grids", "augmented"]
)
def test_training(case: str, reference: Reference) -> None:
    settings = {"epochs": 3, "batch_size": 20, "learning_rate": 0.05, "precision": "float32", "ema": 0.9, "patience": 8}
    network = Tiny(grids=case == "grids", dropout=0.3 if case == "plain" else 0.0)
    network.members = case == "members"  # type: ignore[assignment]
    events = tensors(90, 5, grids=case == "grids", weights=case == "event weights", resident=False)
    valid = tensors(60, 6, grids=case == "grids")
    if case == "no targets":
        events.targets = None
    said: list[tuple[float, float, str]] = []
    history = loop.train(
        network,
        events,
        valid,
        lambda logits: float(nn.functional.cross_entropy(logits, valid.labels)),
        TrainingSettings(**{**settings, **CASES.get(case, {})}),
        seed=7,
        augment=turned if case == "augmented" else None,
        class_weights=torch.tensor([1.0, 2.0, 0.3]) if case == "class weights" else None,
        class_values=torch.tensor([0.0, 0.6, 1.7]),
        rate_factors={"body": 0.3} if case == "clipped" else None,
        progress=lambda done, total, note: said.append((done, total, note)),
    )
    assert len(said) == 15
    assert said[0][2] == ""
    reference(
        {
            "losses": history.losses,
            "best": history.best_epoch,
            "weights": moments(network),
            "progress": [(done, total) for done, total, _ in said[::7]],
            "note": [float(part) for part in said[-1][2].replace(",", "").split() if part[0].isdigit()],
            "logits": loop.predict_logits(network, valid).double().numpy(),
        },
        rtol=SINGLE,
        atol=1e-6,
    )


def test_training_as_it_is_by_default(reference: Reference) -> None:
    network, events = Tiny(), tensors(513, 8)
    settings = TrainingSettings(epochs=2, precision="float32")
    history = loop.train(network, events, events, lambda logits: float(logits.square().mean()), settings, seed=0)
    sam = Tiny()
    steep = TrainingSettings(epochs=1, precision="float32", optimiser="sam")
    more = loop.train(sam, events, events, lambda logits: float(logits.square().mean()), steep, seed=0)
    reference(
        {"losses": [*history.losses, *more.losses], "weights": moments(network), "sam": moments(sam)}, rtol=SINGLE
    )


def quiet(network: nn.Module, events: EventTensors, losses: list[float], **settings: Any) -> loop.History:
    """Train with losses of validation given beforehand."""
    told = iter(losses)
    options = TrainingSettings(**{"epochs": len(losses), "batch_size": 40, "precision": "float32", **settings})
    return loop.train(network, events, events, lambda _: next(told), options, seed=1)


def test_training_ends_when_patience_does() -> None:
    events = tensors(40, 9)
    losses = [1.0, 0.9, 0.95, 0.9, 0.85, 0.86, 0.87, 0.88, 0.5]
    for patience, done, best in ((1, 3, 1), (2, 4, 1), (3, 8, 4), (4, 9, 8)):
        history = quiet(Tiny(), events, losses, patience=patience)
        assert (history.losses, history.best_epoch) == (losses[:done], best)


def test_the_weights_are_those_of_the_first_best_epoch() -> None:
    # The rate's schedule is that of five epochs in both, and the third is the last that counts.
    events, first, second = tensors(40, 9), Tiny(), Tiny()
    quiet(first, events, [1.0, 0.9, 0.8, 0.8, 0.9])
    quiet(second, events, [1.0, 0.9, 0.8, 0.9, 0.8])
    third = Tiny()
    quiet(third, events, [1.0, 0.9, 0.85, 0.8, 0.9])
    for a, b in zip(moments(first).values(), moments(second).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(moments(first).values(), moments(third).values(), strict=True))


def test_the_state_is_kept_every_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.75)
    kept: list[int] = []

    def noted(file: Path, state: Checkpoint) -> None:
        kept.append(state.epoch)

    monkeypatch.setattr(loop.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(loop, "write_checkpoint", noted)
    events = tensors(40, 9)
    told = iter(np.linspace(1, 0, 12))
    settings = TrainingSettings(epochs=12, precision="float32")
    loop.train(Tiny(), events, events, lambda _: float(next(told)), settings, seed=1, checkpoint=tmp_path / "state")
    assert kept == [3, 6, 9, 12]
    ticks = iter([0.0, 2.0, 4.0, 5.9])
    kept.clear()
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(ticks))
    told = iter([1.0, 0.9])
    settings = TrainingSettings(epochs=2, precision="float32")
    loop.train(Tiny(), events, events, lambda _: float(next(told)), settings, seed=1, checkpoint=tmp_path / "state")
    assert kept == [1]


def test_a_run_continued_is_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
    events = tensors(60, 9)
    file, results = tmp_path / "state", []
    for told in ([0.9, 0.8], [0.7, 0.75], [0.9, 0.8, 0.7, 0.75]):
        network, losses = Tiny(dropout=0.2), iter(told)
        stopped = TrainingSettings(epochs=4, batch_size=25, precision="float32")

        def scorer(logits: torch.Tensor, losses: Any = losses) -> float:
            return float(next(losses))

        checkpoint = None if len(told) == 4 else file
        try:
            history = loop.train(network, events, events, scorer, stopped, seed=3, checkpoint=checkpoint, identity="x")
            results.append((history.losses, history.best_epoch, moments(network)))
        except StopIteration:
            assert told == [0.9, 0.8]
    (one, best, a), (other, same, b) = results
    assert (one, best) == (other, same) == ([0.9, 0.8, 0.7, 0.75], 2)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name])


def test_orders_and_batches(reference: Reference) -> None:
    n = 64 * 4096 + 5
    order = loop.shuffled_in_blocks(n, np.random.default_rng(1))
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    sizes: list[int] = []

    def noted(grids: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        sizes.append(len(inputs))
        return Output(inputs[:, :2], None, None, inputs[:, 1:])

    network = nn.Module()
    network.forward = noted  # type: ignore[assignment, method-assign]
    events = tensors(600, 2)
    np.testing.assert_array_equal(loop.predict_logits(network, events), events.inputs[:, :2])
    truth = loop.predict_outputs(network, events, lambda output: output.truth)  # type: ignore[arg-type, return-value]
    np.testing.assert_array_equal(truth, events.inputs[:, 1:])
    assert sizes == [256, 256, 88] * 2
    grids = {resident: tensors(50, 3, grids=True, resident=resident) for resident in (True, False)}
    reference(
        {
            "blocks": [order, order[:12], order[-12:]],
            "few": loop.shuffled_in_blocks(9, np.random.default_rng(2)),
            "batches": [loop._epoch_orders(events, 7, 3, epoch)[5] for epoch in (0, 1)],
            "with grids": [loop._epoch_orders(grids[resident], 3, 1, 0)[2] for resident in (True, False)],
            "seeds": [loop._epoch_seed(1, epoch, purpose) for epoch in (0, 2) for purpose in (1, 2)],
        }
    )


def test_random_numbers_are_given_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with loop._seeded(1, torch.device("cpu")):
        inside = torch.rand(3)
    np.testing.assert_array_equal(torch.rand(3), expected)
    with loop._seeded(1, torch.device("cpu")):
        np.testing.assert_array_equal(torch.rand(3), inside)


def test_steps(reference: Reference) -> None:
    network = Tiny()
    settings = TrainingSettings(weight_decay=0.2)
    optimiser = optimiser_of(network, settings, {"body": 0.5, "heads.truth": 0.1})
    groups = [
        {"decay": g["weight_decay"], "factor": g["factor"], "lr": g["lr"], "n": sum(p.numel() for p in g["params"])}
        for g in optimiser.param_groups
    ]
    network.heads["members"].requires_grad_(False)
    fewer = [sum(p.numel() for p in g["params"]) for g in optimiser_of(network, settings).param_groups]
    state = Checkpoint.start(network, optimiser)
    averaged = []
    for step in range(4):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * (step + 1))
        state.average(0.35 if step < 3 else 0.0)
        averaged.append(float(state.averaged.body.weight.double().mean()))  # type: ignore[union-attr]
    answers = torch.tensor([[0.5, -1.0, 0.2, -0.3], [2.0, 0.0, 1.0, -2.0]])
    goals = torch.tensor([[1.0, float("nan")], [0.0, 0.5]])
    losses, known = truth_losses(answers, goals)
    reference(
        {
            "groups": groups,
            "fewer": fewer,
            "averaged": averaged,
            "step": state.step,
            "truth": [losses.double().numpy(), known.numpy()],
        },
        rtol=1e-5,
    )


def test_losses_that_are_no_numbers_end_training() -> None:
    events = tensors(20, 1)
    events.inputs[3] = float("nan")
    network = Tiny()
    state = Checkpoint.start(network, optimiser_of(network, TrainingSettings()))
    stepper = Stepper(network, state, TrainingSettings(), autocast_of(torch.device("cpu"), "float32"), None)
    stepper.check()
    with pytest.raises(FloatingPointError):
        stepper.step(events, torch.arange(20), None, 0.1, torch.Generator())
    stepper.total = torch.tensor(float("nan"))
    with pytest.raises(FloatingPointError):
        stepper.check()


def test_half_precision_is_used_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, x = torch.device("cpu"), torch.linspace(0, 1, 64).reshape(8, 8)
    for native in (True, False):
        monkeypatch.setattr("showerstack.models.networks.step._cpu_has_bf16", lambda native=native: native)
        for precision, half in (("bf16", True), ("float32", False), ("auto", native)):
            with autocast_of(cpu, precision)():
                assert ((x @ x).dtype == torch.bfloat16) == half


def test_a_checkpoint_gives_everything_back(tmp_path: Path) -> None:
    events, states = tensors(40, 1), []
    for _ in range(2):
        network = Tiny()
        states.append(Checkpoint.start(network, optimiser_of(network, TrainingSettings()), "me"))
    first, second = states
    stepper = Stepper(first.network, first, TrainingSettings(), autocast_of(torch.device("cpu"), "float32"), None)
    for rate, loss in ((0.1, 0.7), (0.05, 0.9)):
        stepper.step(events, torch.arange(40), None, rate, torch.Generator())
        first.finish_epoch(loss)
    write_checkpoint(tmp_path / "state", first)
    read_checkpoint(tmp_path / "state", second)
    assert (second.epoch, second.step, second.best_epoch, second.losses) == (2, 2, 0, [0.7, 0.9])
    for a, b in ((first.network, second.network), (first.averaged, second.averaged)):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name])
    for name, value in first.best.items():
        assert torch.equal(value, second.best[name])
    moved = [p for g in second.optimiser.param_groups for p in g["params"]]
    for old, new in zip([p for g in first.optimiser.param_groups for p in g["params"]], moved, strict=True):
        for name, value in first.optimiser.state[old].items():
            assert torch.equal(value, second.optimiser.state[new][name])
