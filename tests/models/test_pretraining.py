"""Pretraining: worlds within their priors, the stream's showers, going on after an end, weights and their refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from features.catalogue import CATALOGUE
from models.base.inputs import TARGETS, InputTransform
from models.base.saving import plain
from models.pretraining import train
from models.pretraining import train as plan
from models.pretraining.network import Architecture, ShowerNetwork, truth_loss
from models.pretraining.stream import (
    COLUMNS,
    LIMIT,
    N_WORLD,
    PRIORS,
    TASKS,
    Prepared,
    SimulatedBatch,
    _block,
    batch_of,
    draw_world,
)
from models.pretraining.train import PretrainSettings, drawn_ahead, opened_plan, pretrain
from models.pretraining.weights import card_path, read_pretrained, write_pretrained
from runtime.errors import InputError
from runtime.files import hash_file
from showers.simulation.settings import Settings

from .numbered import numbered

SMALL = PretrainSettings(showers=360_000, width=16, blocks=1, hidden=16, batch_size=64)
"""Three rounds."""


def toy_portion(seed: int, number: int, split: str = "train") -> SimulatedBatch:
    """Return showers whose first column tells the class."""
    rng = np.random.default_rng([seed, number, len(split)])
    n = 200
    task = rng.integers(0, 2, n)
    labels = rng.integers(0, np.where(task == 0, 5, 2))
    table = rng.normal(size=(n, len(COLUMNS))).astype(np.float32, order="F")
    table[:, 0] += labels
    targets = np.repeat(table[:, :1], len(TARGETS), axis=1)
    world = rng.normal(size=(n, N_WORLD)).astype(np.float32)
    return SimulatedBatch(table, task, labels, targets, world, np.ones(n, dtype=bool))


@pytest.fixture
def toy_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw toy showers in this process."""

    def ahead(seed: int, numbers: range, workers: int) -> Iterator[tuple[SimulatedBatch, float]]:
        return ((toy_portion(seed, number), 0.0) for number in numbers)

    monkeypatch.setattr(train, "drawn_ahead", ahead)
    monkeypatch.setattr(plan, "draw_portion", toy_portion)


def test_worlds_lie_within_their_priors_and_differ() -> None:
    worlds = [draw_world(np.random.default_rng(seed)) for seed in range(200)]
    positions = np.stack([position for _, position in worlds])
    assert positions.shape == (200, N_WORLD)
    assert np.abs(positions).max() <= LIMIT
    assert positions.std(axis=0) == pytest.approx(np.full(N_WORLD, 0.94), abs=0.2)
    again, same = draw_world(np.random.default_rng(7))
    assert again == worlds[7][0]
    np.testing.assert_array_equal(same, positions[7])
    section, field = PRIORS[0].name.split("__")
    values = [getattr(getattr(settings, section), field) for settings, _ in worlds]
    expected = [PRIORS[0].value(float(position[0])) for position in positions]
    assert values == pytest.approx(expected, abs=1e-6)


def test_every_prior_names_a_constant_and_covers_both_fits_of_this_project() -> None:
    for prior in PRIORS:
        section, field = prior.name.split("__")
        value = getattr(getattr(Settings(), section), field)
        low, high = sorted((prior.value(-LIMIT), prior.value(LIMIT)))
        assert low <= value <= high, prior.name


def test_a_block_of_the_stream_is_what_the_simulation_and_the_features_give() -> None:
    rng = np.random.default_rng(3)
    portion = _block(0, "test", "train", 1, 5, rng)
    assert len(portion) > 100
    assert portion.table.shape == (len(portion), len(COLUMNS))
    assert portion.judged.all()
    np.testing.assert_array_equal(portion.task, 0)
    assert set(np.unique(portion.labels)) <= set(range(TASKS[0].n_classes))
    assert (portion.table[:, COLUMNS.index("Ne")] > 4.79).all()
    assert (portion.table[:, COLUMNS.index("Ze")] < 30.01).all()
    for k, name in enumerate(COLUMNS):
        values = portion.table[:, k]
        inside = np.isnan(values) | ((values >= CATALOGUE[name].low) & (values <= CATALOGUE[name].high))
        assert inside.all(), name
    names = [target.name for target in TARGETS]
    fitted = portion.table[:, COLUMNS.index("fit_lg_ne")]
    true = portion.targets[:, names.index("lg_ne")] * TARGETS[1].width + TARGETS[1].centre
    assert np.median(np.abs(fitted - true - np.median(fitted - true))) < 0.05
    masses = portion.targets[:, names.index("lg_mass")] * TARGETS[5].width + TARGETS[5].centre
    np.testing.assert_allclose(10**masses, np.array([1, 4, 12, 28, 56])[portion.labels], rtol=1e-5)
    outward = portion.targets[:, names.index("core_outward_m")] * TARGETS[6].width
    assert np.median(np.abs(outward)) < 2.0
    assert len(np.unique(portion.world, axis=0)) == 1
    again = _block(0, "test", "train", 1, 5, np.random.default_rng(3))
    np.testing.assert_array_equal(portion.table, again.table)


def test_portions_come_in_order_from_other_processes_and_a_lost_one_is_told() -> None:
    found = [portion for portion, seconds in drawn_ahead(4, range(12), 1, numbered) if seconds >= 0]
    assert [(seed, number) for seed, number, _ in found] == [(4, number) for number in range(12)]
    assert os.getpid() not in {process for *_, process in found}
    with pytest.raises(InputError, match="a process that draws showers was lost"):
        list(drawn_ahead(4, range(99, 100), 1, numbered))


@pytest.mark.usefixtures("toy_stream")
def test_pretraining_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pretrain(tmp_path / "whole", SMALL)
    done = train.train_round

    def dying(state: Any, *arguments: Any) -> None:
        if state.epoch == 2:
            raise KeyboardInterrupt
        done(state, *arguments)

    monkeypatch.setattr(train, "train_round", dying)
    with pytest.raises(KeyboardInterrupt):
        pretrain(tmp_path / "cut", SMALL)
    monkeypatch.setattr(train, "train_round", done)
    assert json.loads(card_path(tmp_path / "cut" / whole.name).read_text())["rounds"] == 2
    cut = pretrain(tmp_path / "cut", SMALL)
    assert hash_file(cut) == hash_file(whole)
    card = read_pretrained(str(cut), hash_file(cut)).card
    assert card["showers"] == 3 * 8 * 200
    assert card["log_loss"]["composition"] < np.log(5)
    with pytest.raises(InputError, match="another folder"):
        pretrain(tmp_path / "cut", replace(SMALL, seed=2))


def test_the_network_learns_from_the_world_only_where_it_is_told() -> None:
    torch.manual_seed(0)
    network = ShowerNetwork(Architecture(7, 16, 1, 16)).eval()
    inputs, world = torch.randn(5, 7), torch.randn(5, N_WORLD + 1)
    unknown = network(inputs, torch.zeros(N_WORLD + 1))
    torch.testing.assert_close(unknown.composition, network(inputs, torch.zeros(5, N_WORLD + 1)).composition)
    assert (network(inputs, world).composition - unknown.composition).abs().max() > 1e-3


def test_unknown_truth_teaches_nothing() -> None:
    torch.manual_seed(0)
    network = ShowerNetwork(Architecture(7, 16, 1, 16))
    answers = network(torch.randn(4, 7), torch.zeros(N_WORLD + 1))
    targets = torch.randn(4, len(TARGETS))
    targets[:, 2:] = torch.nan
    some = truth_loss(answers, targets)
    parts = [array[:, :2] for array in (answers.mean, answers.log_width)]
    expected = (0.5 * ((targets[:, :2] - parts[0]) * torch.exp(-parts[1])) ** 2 + parts[1]).mean()
    torch.testing.assert_close(some, expected)
    some.backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_ages_and_worlds_are_hidden_from_some_showers() -> None:
    portion = toy_portion(1, 1)
    inputs = InputTransform.fit(batch_of(portion.table), COLUMNS)
    seen = Prepared.of(portion, inputs, 1, 3)
    unknown = (seen.world == 0).all(dim=1)
    assert 0.1 < unknown.float().mean() < 0.4
    np.testing.assert_array_equal(seen.world[~unknown, -1], 1.0)
    age = seen.inputs[:, inputs.plain.index("Age")]
    assert 0.35 < (age == 0).float().mean() < 0.65
    assert not np.isnan(portion.table).any(), "the portion itself is left alone"


def small_weights(folder: Path) -> Path:
    """Write weights of a small random network and their card."""
    inputs = InputTransform.fit(batch_of(toy_portion(1, 0).table), COLUMNS)
    torch.manual_seed(1)
    network = ShowerNetwork(Architecture(inputs.n_inputs, 16, 1, 16))
    write_pretrained(folder / "small.safetensors", network, inputs, {"showers": 0})
    return folder / "small.safetensors"


def _spoil_card(**changes: Any) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        card = json.loads(card_path(file).read_text())
        card_path(file).write_text(json.dumps(card | changes))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-8] + b"poisoned"), "has SHA-256 .* expected"),
        (lambda file: card_path(file).unlink(), "small.json does not exist"),
        (_spoil_card(format=99), "no card of pretrained weights"),
        (_spoil_card(features="other"), "features are not those of this version"),
        (_spoil_card(worlds=[]), "worlds are not those of this version"),
        (_spoil_card(targets=[]), "targets are not those of this version"),
    ],
)
def test_other_weights_are_refused_in_one_line(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    sha256 = hash_file(file)
    assert read_pretrained(str(file), sha256).sha256 == sha256
    spoil(file)
    with pytest.raises(InputError, match=message) as refusal:
        read_pretrained(str(file), sha256)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"network": "{}"},
        {"network": json.dumps({"sizes": {"depth": 3}, "inputs": {}})},
        {"network": json.dumps({"sizes": {"n_inputs": 3}, "inputs": plain(InputTransform(("x",)).state())})},
    ],
)
def test_weights_of_another_architecture_are_refused_in_one_line(described: dict[str, str], tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    save_file(load_file(file), file, described)
    _spoil_card(sha256=hash_file(file))(file)
    with pytest.raises(InputError, match="another architecture than this version's") as refusal:
        read_pretrained(str(file), hash_file(file))
    assert "\n" not in str(refusal.value)


def test_scales_of_inputs_are_under_the_hash(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    before = hash_file(file)
    found = read_pretrained(str(file), before)
    write_pretrained(file, found.network, replace(found.inputs, centre=found.inputs.centre + 1.0), {})
    assert hash_file(file) != before


def test_weights_from_a_file_need_their_hash(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    with pytest.raises(InputError, match=hash_file(file)):
        read_pretrained(str(file))
    with pytest.raises(InputError, match=r"ends in \.safetensors"):
        write_pretrained(tmp_path / "w.bin", ShowerNetwork(Architecture(3, 8, 1, 8)), InputTransform(()), {})


def test_a_plan_is_not_mixed_with_that_of_other_feature_code(tmp_path: Path, toy_stream: None) -> None:
    first = opened_plan(tmp_path, SMALL)
    assert opened_plan(tmp_path, SMALL) == first
    (tmp_path / plan.PLAN_FILE).write_text(json.dumps(first | {"identity": "older code"}))
    with pytest.raises(InputError, match="other feature code"):
        opened_plan(tmp_path, SMALL)
