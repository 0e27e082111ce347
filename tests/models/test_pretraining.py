"""Pretraining: worlds within their priors, the stream's showers, going on after an end, weights and their refusals.

The pretrained network is tested as a learner: where it starts, what moves, what it learns from true quantities and what
not, what it refuses. So are the weights that are shipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from showerstack.features.catalogue import CATALOGUE
from showerstack.models.base.inputs import LOGARITHM, TARGETS, InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.models.base.saving import plain
from showerstack.models.networks.forward import ResidualForward
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.loop import History
from showerstack.models.pretraining import stream, train
from showerstack.models.pretraining import train as plan
from showerstack.models.pretraining.arrays import N_ARRAY
from showerstack.models.pretraining.learner import SMALL_BATCH, FineTuned, PretrainedLearner, inputs_of
from showerstack.models.pretraining.network import IGNORED, Architecture, ShowerBody, ShowerNetwork, pretraining_loss
from showerstack.models.pretraining.stream import (
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
from showerstack.models.pretraining.train import PretrainSettings, draw_ahead, open_plan, pretrain
from showerstack.models.pretraining.weights import (
    SHIPPED_FILE,
    SHIPPED_SHA256,
    card_path,
    read_pretrained,
    write_pretrained,
)
from showerstack.models.pretraining.world import find_world
from showerstack.models.registry import create, spec
from showerstack.models.tables.sklearn import RandomForest
from showerstack.report.outcome import learner_table
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.array import KASCADE, DetectorArray, lattice
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents
from showerstack.showers.simulation.ground import covering
from showerstack.showers.simulation.settings import Settings
from showerstack.stacking.config import StackConfig
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.training.train import stack
from tests.models.numbered import numbered

SMALL = PretrainSettings(showers=360_000, width=16, blocks=1, hidden=16, batch_size=64)
"""Three rounds."""


def toy_portion(seed: int, number: int, split: str = "train", array: DetectorArray | None = KASCADE) -> SimulatedBatch:
    """Return showers whose first column tells the class."""
    rng = np.random.default_rng([seed, number, len(split)])
    n = 200
    task = rng.integers(0, 2, n)
    labels = rng.integers(0, np.where(task == 0, 5, 2))
    table = rng.normal(size=(n, len(COLUMNS))).astype(np.float32, order="F")
    table[:, 0] += labels
    targets = np.repeat(table[:, :1], len(TARGETS), axis=1)
    world = rng.normal(size=(n, N_WORLD + (N_ARRAY if array is None else 0))).astype(np.float32)
    return SimulatedBatch(table, task, labels, targets, world, np.ones(n, dtype=bool))


def drawn_here(seed: int, numbers: range, workers: int, draw: Any, scheduler: str | None = None) -> Iterator[Any]:
    """Stand in for :func:`draw_ahead`, in this process."""
    return ((draw(seed, number), 0.0) for number in numbers)


@pytest.fixture
def toy_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw toy showers in this process."""

    monkeypatch.setattr(train, "draw_ahead", drawn_here)
    monkeypatch.setattr(plan, "draw_portion", toy_portion)


def test_worlds_lie_within_their_priors_and_differ() -> None:
    worlds = [draw_world(np.random.default_rng(seed)) for seed in range(200)]
    positions = np.stack([position for _, position in worlds])
    assert positions.shape == (200, len(PRIORS))
    assert np.abs(positions).max() <= LIMIT
    assert positions.std(axis=0) == pytest.approx(np.full(len(PRIORS), 0.94), abs=0.2)
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
    assert portion.in_evaluation.all()
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


@pytest.mark.parametrize(("model", "numbers"), [("mix", [0, 0, 0]), ("qgs", [1, 0, 0]), ("sibyll", [0, 0, 1])])
def test_the_hadronic_model_of_a_world_is_an_input(
    model: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    simulate = stream.simulate_block

    def watched(job: BlockJob, block: int) -> SimulatedEvents:
        drawn.append(job.model)
        return simulate(job, block)

    monkeypatch.setattr(stream, "MODELS", (model,))
    monkeypatch.setattr(stream, "simulate_block", watched)
    rng = np.random.default_rng(3)
    world = _block(0, "test", "train", 1, 5, rng).world
    assert drawn == [model]
    np.testing.assert_array_equal(world[:, len(PRIORS) :], np.broadcast_to(numbers, (len(world), 3)))
    _, position = draw_world(np.random.default_rng(3))
    np.testing.assert_array_equal(world[0, : len(PRIORS)], position)


@pytest.mark.slow
def test_portions_come_in_order_from_other_processes_and_a_lost_one_is_told() -> None:
    entries = [portion for portion, seconds in draw_ahead(4, range(12), 1, numbered) if seconds >= 0]
    assert [(seed, number) for seed, number, _ in entries] == [(4, number) for number in range(12)]
    assert os.getpid() not in {process for *_, process in entries}
    with pytest.raises(InputError, match="a process that draws showers was lost"):
        list(draw_ahead(4, range(99, 100), 1, numbered))


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
    assert json.loads(card_path(tmp_path / "cut" / whole.name).read_text())["rounds"] == 2
    monkeypatch.setattr(train, "train_round", done)
    with monkeypatch.context() as killed:
        killed.setattr(train, "write_checkpoint", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pretrain(tmp_path / "cut", SMALL)  # between the plan, which counts the round, and its state
    cut = pretrain(tmp_path / "cut", SMALL)
    assert hash_file(cut) == hash_file(whole)
    card = read_pretrained(str(cut), hash_file(cut)).card
    assert card["showers"] == 3 * 8 * 200
    assert card["log_loss"]["composition"] < np.log(5)
    with pytest.raises(InputError, match="another folder"):
        pretrain(tmp_path / "cut", replace(SMALL, seed=2))


@pytest.mark.slow
@pytest.mark.usefixtures("toy_stream")
@pytest.mark.parametrize("is_renamed", [False, True], ids=["before", "after"])
def test_interrupted_at_any_of_its_files_it_ends_with_the_same_bytes(
    is_renamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.time, "process_time", lambda: 0.0)
    settings = replace(SMALL, showers=240_000, batch_size=400, passes=1)
    pretrain(tmp_path / "whole", settings)
    rename, n_files = Path.replace, 1 + settings.rounds * 4  # plan; weights, card, plan and state of a round
    for last in range(n_files):
        left = last

        def interrupted(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left >= 0:
                return rename(self, target)
            if is_renamed:
                rename(self, target)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pretrain(tmp_path / f"{last}", settings)
        pretrain(tmp_path / f"{last}", settings)
        contents = [
            {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("whole", f"{last}")
        ]
        assert contents[0] == contents[1], f"interrupted at file {last} of {n_files}"


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
    of_no_class = torch.full((4,), IGNORED)
    some = pretraining_loss(answers, torch.zeros(4, dtype=torch.int64), of_no_class, targets, 1.0)
    parts = [array[:, :2] for array in answers.truth.chunk(2, dim=1)]
    expected = (0.5 * ((targets[:, :2] - parts[0]) * torch.exp(-parts[1])) ** 2 + parts[1]).mean()
    torch.testing.assert_close(some, expected)
    some.backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_ages_and_worlds_are_hidden_from_some_showers() -> None:
    portion = toy_portion(1, 1)
    inputs = InputTransform.fit(batch_of(portion.table), COLUMNS)
    visited = Prepared.of(portion, inputs, 1, 3)
    unknown = (visited.world == 0).all(dim=1)
    assert 0.1 < unknown.float().mean() < 0.4
    np.testing.assert_array_equal(visited.world[~unknown, -1], 1.0)
    age = visited.inputs[:, inputs.plain.index("Age")]
    assert 0.35 < (age == 0).float().mean() < 0.65
    assert not np.isnan(portion.table).any(), "the portion itself is left alone"


def small_weights(folder: Path) -> Path:
    """Write weights of a small random network and their card."""
    inputs = InputTransform.fit(batch_of(toy_portion(1, 0).table), COLUMNS)
    torch.manual_seed(1)
    network = ShowerNetwork(Architecture(inputs.n_inputs, 16, 1, 16))
    write_pretrained(folder / "small.safetensors", network, inputs, {"showers": 0})
    return folder / "small.safetensors"


def test_weights_without_hadronic_models_answer_as_they_did(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    now = read_pretrained(str(file), hash_file(file))
    state, models = load_file(file), slice(len(PRIORS), N_WORLD)
    columns = np.delete(state["body.world.weight"].numpy(), models, axis=1)
    with safe_open(file, framework="pt") as content:
        save_file({**state, "body.world.weight": torch.from_numpy(columns)}, file, content.metadata())
    card = json.loads(card_path(file).read_text())
    _spoil_card(worlds=card["worlds"][: len(PRIORS)], sha256=hash_file(file))(file)
    before = read_pretrained(str(file), hash_file(file))
    world = torch.randn(5, N_WORLD + 1)
    inputs = torch.randn(5, now.network.sizes.n_inputs)
    without_models = world.clone()
    without_models[:, models] = 0.0
    with torch.inference_mode():
        expected = now.network(inputs, without_models)
        for answers in (before.network(inputs, world), before.network(inputs, without_models)):
            torch.testing.assert_close(answers, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_stream")
def test_pretraining_goes_on_from_weights(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    start = read_pretrained(str(file), hash_file(file))
    settings = replace(SMALL, start=str(file), start_sha256=hash_file(file), learning_rate=1e-9)
    made = pretrain(tmp_path / "more", settings)
    card = read_pretrained(str(made), hash_file(made))
    assert card.card["settings"]["start_sha256"] == hash_file(file)
    assert card.inputs.tail == LOGARITHM
    np.testing.assert_array_equal(card.inputs.centre, start.inputs.centre)
    for name, value in start.network.state_dict().items():
        torch.testing.assert_close(card.network.state_dict()[name], value, atol=1e-6, rtol=1e-4)
    with pytest.raises(InputError, match="another size"):
        pretrain(tmp_path / "wider", replace(settings, width=32))
    again = replace(settings, start=str(made), start_sha256=hash_file(made))
    with pytest.raises(InputError, match="know the showers of --seed 1: give another one"):
        pretrain(tmp_path / "again", again)
    card = json.loads(card_path(made).read_text())
    del card["seeds"]
    card_path(made).write_text(json.dumps(card))
    with pytest.raises(InputError, match="know the showers of --seed 1: give another one"):
        pretrain(tmp_path / "older", again)
    last = pretrain(tmp_path / "last", replace(again, seed=2))
    assert read_pretrained(str(last), hash_file(last)).card["seeds"] == [1, 2]
    rate = PretrainSettings.of_batches(2048, "shipped").learning_rate
    assert rate == pytest.approx(0.35 * 2 * PretrainSettings.learning_rate)


@pytest.fixture
def few_showers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounds be of one portion, portions of two blocks of showers, and draw these in this process."""

    monkeypatch.setattr(stream, "PLAN", ((0, "test", 1), (1, "test", 1)))
    monkeypatch.setattr(train, "PORTIONS_PER_ROUND", 1)
    monkeypatch.setattr(train, "VALIDATION_PORTIONS", 1)
    monkeypatch.setattr(train, "draw_ahead", drawn_here)


def own_stations(file: Path) -> Path:
    """Write a table of 144 stations, every second with a muon detector."""
    x_m, y_m = (plane.ravel() for plane in lattice(12, 15.0))
    muon = np.where(np.arange(144) % 2, 3.0, 0.0)
    table = {"id": np.arange(144), "x_m": x_m, "y_m": y_m, "electron_area_m2": np.full(144, 2.0), "muon_area_m2": muon}
    file.parent.mkdir()
    pl.DataFrame(table).write_parquet(file)
    return file


@pytest.mark.slow
@pytest.mark.usefixtures("few_showers")
def test_an_array_gets_weights_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = array_in(own_stations(tmp_path / "mine" / "stations.parquet"))
    settings = replace(SMALL, showers=60_000, array=array)
    made = pretrain(tmp_path / "whole", settings)
    with monkeypatch.context() as killed:
        killed.setattr(train, "write_checkpoint", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pretrain(tmp_path / "cut", settings)
    assert hash_file(pretrain(tmp_path / "cut", settings)) == hash_file(made)
    with pytest.raises(InputError, match="another folder"):
        pretrain(tmp_path / "cut", replace(settings, array=KASCADE))
    card = json.loads(card_path(made).read_text())
    assert card["array"] == {"name": "mine", "stations": 144, "muon_detectors": 72, "sha256": array.digest}
    assert card["limits"][0] == "the array mine (144 stations, 72 with a muon detector); no other"
    assert read_pretrained(str(made), hash_file(made)).array == array

    renamed = replace(array, name="gamma_train")
    folders = simulate(COMPOSITION, tmp_path, n_train=300, n_test=60, seed=5, array=renamed, workers=1)
    sizes = {"width": 16, "blocks": 1, "hidden": 16, "epochs": 1}
    config = StackConfig(
        task="composition", data=tmp_path, run=tmp_path / "run", learners="pretrained", folds=2, workers=1,
        weights=made.parent, settings={"pretrained": sizes},
    )  # fmt: skip
    result = stack(config)
    assert [row.error for row in result.manifest.learners] == [None]
    assert result.predictions.log_proba.shape == (60, 5)
    caption = str(learner_table(config.run, config.data).caption)
    assert "\npretrained: had learned from other simulated showers before\n" in caption
    elsewhere = made.rename(tmp_path / "moved.safetensors")
    card_path(made).rename(card_path(elsewhere))
    there = {name: {**chosen, "weights": "elsewhere.safetensors"} for name, chosen in config.settings.items()}
    moved = config.model_copy(update={"settings": there})
    assert moved.identity() == config.identity(), "weights count by their hash, not by where they are"

    every = StackConfig(task="composition", run=tmp_path / "other", weights=elsewhere)
    both = r"showers of mine \(144 stations, 72 .*\) alone, these are of KASCADE \(252 stations, 192 .*: give weights"
    with pytest.raises(InputError, match=both) as refusal:
        every.for_array(KASCADE, COMPOSITION)
    assert "\n" not in str(refusal.value)
    with pytest.raises(InputError, match=r"of mine \(144 .* alone, these are of KASCADE"):
        PretrainedLearner(COMPOSITION.classes, every.settings["pretrained"]).fit(toy_events(1), toy_events(2), seed=1)
    assert Dataset.open(folders[0]).array.is_like(array)
    assert array_in(folders[0]) == renamed


@pytest.mark.usefixtures("few_showers")
def test_an_array_that_does_not_trigger_or_records_few_showers_is_not_pretrained_for(tmp_path: Path) -> None:
    file = own_stations(tmp_path / "mine" / "stations.parquet")
    stations = pl.read_parquet(file)
    stations.with_columns(pl.col("x_m", "y_m") * 300).write_parquet(file)
    with pytest.raises(
        InputError, match=r"mine \(144 stations, 72 .*\) records \d+ simulated showers .* too far apart"
    ):
        pretrain(tmp_path / "weights", replace(SMALL, array=array_in(file)))
    stations.drop("electron_area_m2").filter(pl.col("muon_area_m2") > 0).write_parquet(file)
    with pytest.raises(InputError, match=r"\(72 stations, 72 .*\) cannot be simulated: e/gamma detectors") as refusal:
        replace(SMALL, array=array_in(file))
    assert "\n" not in str(refusal.value)
    stations.with_columns(id=pl.lit(1)).write_parquet(file)
    with pytest.raises(InputError, match=r"stations.parquet: id 1 appears more than once"):
        array_in(file)


def test_cores_cover_an_array_as_they_cover_kascade() -> None:
    world = Settings()
    assert covering(world, KASCADE) == world
    twice = replace(KASCADE, x_m=2 * KASCADE.x_m, y_m=2 * KASCADE.y_m, pitch_m=2 * KASCADE.pitch_m)
    wide = covering(world, twice)
    assert wide.spectrum.core_radius_m == pytest.approx(2 * world.spectrum.core_radius_m)
    assert wide.trigger.core_max_m == pytest.approx(2 * world.trigger.core_max_m)


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
    assert read_pretrained(str(file), sha256).card["sha256"] == sha256
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
    pretrained = read_pretrained(str(file), before)
    write_pretrained(file, pretrained.network, replace(pretrained.inputs, centre=pretrained.inputs.centre + 1.0), {})
    assert hash_file(file) != before


def test_weights_from_a_file_need_their_hash(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    with pytest.raises(InputError, match=hash_file(file)):
        read_pretrained(str(file))
    with pytest.raises(InputError, match=r"ends in \.safetensors"):
        write_pretrained(tmp_path / "w.bin", ShowerNetwork(Architecture(3, 8, 1, 8)), InputTransform(()), {})


def test_a_plan_is_not_mixed_with_that_of_other_feature_code(tmp_path: Path, toy_stream: None) -> None:
    first = open_plan(tmp_path, SMALL)
    assert open_plan(tmp_path, SMALL) == first
    written = (tmp_path / plan.PLAN_FILE).read_text()
    (tmp_path / plan.PLAN_FILE).write_text(written.replace('"showers": 0', '"showers": 1', 1))
    with pytest.raises(InputError, match=r"pretraining\.json is damaged or was changed"):
        open_plan(tmp_path, SMALL)
    (tmp_path / plan.PLAN_FILE).write_text(json.dumps(first | {"identity": "older code"}))
    with pytest.raises(InputError, match="another version of the features"):
        open_plan(tmp_path, SMALL)


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
    how = {"epochs": 2, "batch_size": 64, "by_number": False}
    return {"weights": str(file), "weights_sha256": hash_file(file), **how, **sizes}


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


def test_the_mean_of_fits_is_one_network(small: dict[str, Any], tmp_path: Path) -> None:
    settings = {**small, "learning_rate": 1e-3}
    targets = np.zeros((len(toy_events(1)), len(TARGETS)), dtype=np.float32)
    fits = [PretrainedLearner(COMPOSITION.classes, settings) for _ in range(3)]
    for k, fit in enumerate(fits):
        known = targets.copy()
        known[:, : k + 1] = np.nan
        fit.fit(replace(toy_events(1), targets=known), toy_events(2), seed=k)
    network = PretrainedLearner.averaged(fits)
    states = [fit.network_.state_dict() for fit in (*fits, network)]
    assert not torch.equal(states[0]["network.head.weight"], states[1]["network.head.weight"])
    for name in states[0]:
        each = np.stack([state[name].double().numpy() for state in states])
        expected = each[:3].min(axis=0) if name.endswith("taught") else each[:3].mean(axis=0)
        np.testing.assert_allclose(each[3], expected, atol=1e-7)
    new = toy_events(3)
    each = np.stack([fit.predict_log_proba(new) for fit in fits])
    gap = np.abs(network.predict_log_proba(new) - log_softmax(each.mean(axis=0))).max()
    assert gap < 0.5 * np.abs(each[0] - each[1]).max(), "fits of one start are one network"
    estimates = network.predict_targets(new)
    assert np.isnan(estimates[:, :3]).all()
    assert np.isfinite(estimates[:, 3:]).all()
    network.save(tmp_path / "average")
    again = PretrainedLearner.load(tmp_path / "average")
    np.testing.assert_array_equal(again.predict_log_proba(new), network.predict_log_proba(new))
    lacking = PretrainedLearner(COMPOSITION.classes, settings)
    lacking.fit(without(toy_events(1), "Age"), without(toy_events(2), "Age"), seed=1)
    with pytest.raises(InputError, match="fits with different inputs cannot be averaged in their weights"):
        PretrainedLearner.averaged([fits[0], lacking])


def test_columns_that_the_events_lack_count_as_missing(small: dict[str, Any]) -> None:
    train, valid = toy_events(1), toy_events(2)
    holes = train.table.copy(order="F") if train.table is not None else np.empty(0)
    holes[:, COLUMNS.index("Age")] = np.nan
    message = PretrainedLearner(COMPOSITION.classes, small).fit(replace(train, table=holes), valid, seed=1)
    lacking = PretrainedLearner(COMPOSITION.classes, small).fit(without(train, "Age"), without(valid, "Age"), seed=1)
    unseen = without(toy_events(3), "Age")
    assert lacking.predict_log_proba(unseen).shape == (len(unseen), 5)
    np.testing.assert_array_equal(
        lacking.inputs_.apply(unseen) if lacking.inputs_ else 0,
        message.inputs_.apply(_hidden(toy_events(3))) if message.inputs_ else 1,
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
    assert card["seeds"] == [1, 2]
    assert card["limits"]


def test_shipped_weights_know_the_features_and_worlds_of_this_version() -> None:
    pretrained = read_pretrained()
    portion = _block(0, "test", "test", 77, 0, np.random.default_rng(77))
    visited = Prepared.of(portion, pretrained.inputs, 1, 1)
    world = torch.cat([torch.from_numpy(portion.world.copy()), torch.ones(len(portion), 1)], dim=1)
    network: ShowerNetwork = pretrained.network
    with torch.inference_mode():
        answers = network(visited.inputs, world)
        loss = float(pretraining_loss(answers, visited.task, visited.labels, visited.targets, 0.0))
    assert loss < 1.35, "chance is 1.57; the features are not those that the network was trained on"
    error = (answers.truth[:, 1] - visited.targets[:, 1]).abs().median() * 0.5
    assert error < 0.06, "lg Ne"


def test_inputs_of_a_table_without_age_are_those_of_hidden_ages() -> None:
    pretrained = read_pretrained()
    table = without(toy_events(1), "Age", "fit_minus_age")
    inputs = inputs_of(pretrained, table)
    assert inputs.absent == ("Age", "fit_minus_age")
    flags = inputs.apply(table)[:, len(inputs.plain) :]
    assert flags[:, : len(inputs.absent)].all()


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
def small_trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a learner that starts from a small random network."""
    file = small_weights(tmp_path_factory.mktemp("weights"))
    sizes = {"width": 16, "blocks": 1, "hidden": 16}
    fast = {"epochs": 30, "batch_size": 64, "body_rate": 1.0, "learning_rate": 1e-2, "patience": 30, "by_number": False}
    return {"weights": str(file), "weights_sha256": hash_file(file), **fast, **sizes}


def fitted(small_trained: dict[str, Any], train: Batch, **changes: Any) -> PretrainedLearner:
    return PretrainedLearner(COMPOSITION.classes, {**small_trained, **changes}).fit(train, events(2), seed=1)


@pytest.mark.slow
def test_estimates_follow_the_truth_and_their_errors_hold(small_trained: dict[str, Any], tmp_path: Path) -> None:
    learner, new = fitted(small_trained, events(1, 3000), truth_weight=0.1, epochs=12), events(3, 2000)
    result = learner.predict_targets(bare(new))
    assert result.shape == (2000, len(TARGETS), 2)
    assert new.targets is not None
    residual = result[..., 0] - new.targets
    assert residual.std() < 0.6, "the targets spread by 1.04, their noise is 0.3"
    assert (residual / result[..., 1]).std() == pytest.approx(1.0, abs=0.25)
    learner.save(tmp_path / "saved")
    np.testing.assert_array_equal(PretrainedLearner.load(tmp_path / "saved").predict_targets(bare(new)), result)


def test_both_come_from_one_pass(
    small_trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, new = fitted(small_trained, events(1), epochs=1), bare(events(3, 300))
    expected = learner.predict_log_proba(new), learner.predict_targets(new)
    learner.save(tmp_path / "saved")
    passes, forward = [], ResidualForward.__call__

    def counted(self: ResidualForward, inputs: Any) -> Any:
        passes.append(len(inputs))
        return forward(self, inputs)

    monkeypatch.setattr(ResidualForward, "__call__", counted)
    for result, values in zip(PretrainedLearner.load(tmp_path / "saved").predict_both(new), expected, strict=True):
        np.testing.assert_array_equal(result, values)
    assert sorted(passes) == [1, 300]  # one shows that the weights fit together
    never = fitted(small_trained, replace(events(1), targets=None), epochs=1)
    log_proba, targets = never.predict_both(new)
    np.testing.assert_array_equal(log_proba, never.predict_log_proba(new))
    assert np.isnan(targets).all()


def test_without_weight_the_body_learns_nothing_from_the_truth(small_trained: dict[str, Any]) -> None:
    still = {"epochs": 1, "dropout": 0.0}
    start = read_pretrained(small_trained["weights"], small_trained["weights_sha256"]).network
    train = events(1)

    def body_after(**settings: Any) -> Any:
        tuned = fitted(small_trained, replace(train, weights=weights), **still, **settings).network_.network
        assert isinstance(tuned, FineTuned)
        return tuned

    weights = np.ones(len(train))
    plain = fitted(small_trained, replace(train, targets=None), **still).network_.network
    taught, shared = body_after(truth_weight=0.0), body_after()
    assert isinstance(plain, FineTuned)
    assert float((taught.truth.weight - start.truth.weight).abs().max().detach()) > 0, "the heads learn in any case"
    assert float((plain.truth.weight - start.truth.weight).abs().max().detach()) == 0
    # Clipping of the whole gradient is all that is left of the truth.
    near = float((taught.body.embed.weight - plain.body.embed.weight).abs().max().detach())
    far = float((shared.body.embed.weight - plain.body.embed.weight).abs().max().detach())
    assert near < 0.2 * far


def test_unknown_quantities_are_left_out(small_trained: dict[str, Any]) -> None:
    train = events(1)
    assert train.targets is not None
    targets = train.targets.copy()
    targets[:, XMAX] = np.nan
    targets[::2, 0] = np.nan
    result = fitted(small_trained, replace(train, targets=targets), epochs=2, truth_weight=0.1)
    said = result.predict_targets(bare(events(3)))
    assert np.isnan(said[:, XMAX]).all()
    assert np.isfinite(np.delete(said, XMAX, axis=1)).all()
    assert np.isfinite(result.predict_log_proba(bare(events(3)))).all()
    never = fitted(small_trained, replace(train, targets=None), epochs=1)
    assert np.isnan(never.predict_targets(bare(events(3)))).all(), "what was never taught is not said"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((600, 3), dtype=np.float32), r"shape \(600, 3\), expected \(600, 8\)"),
        (np.full((600, 8), np.inf, dtype=np.float32), "row 0, lg_energy is infinite"),
        (np.full((600, 8), np.nan, dtype=np.float32), "none of them is known"),
    ],
)
def test_targets_that_teach_nothing_are_refused(
    targets: np.ndarray, message: str, small_trained: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=message):
        fitted(small_trained, replace(events(1), targets=targets))
    with pytest.raises(InputError, match="truth_weight must be at least 0"):
        fitted(small_trained, events(1), truth_weight=-1.0)


def test_events_to_be_predicted_may_not_carry_the_truth(small_trained: dict[str, Any]) -> None:
    learner = fitted(small_trained, events(1), epochs=1)
    with pytest.raises(InputError, match="for training alone"):
        learner.predict_log_proba(events(3))
    with pytest.raises(InputError, match="for training alone"):
        learner.predict_targets(events(3))
    with pytest.raises(TypeError, match="estimates no true quantities"):
        RandomForest(COMPOSITION.classes).predict_targets(bare(events(3)))


@pytest.fixture
def few(tiny_composition: Path) -> Batch:
    """240 labelled showers that the released weights know well, each twice in a group."""
    folder = tiny_composition / "composition_train"
    events = ShowerEvents(folder, folder.with_name(f"{folder.name}.features"), COMPOSITION)
    batch = events.batch(np.arange(240), events.columns_for(spec("pretrained")), grids=False)
    labels = np.asarray(Dataset.open(folder, COMPOSITION).labels[:240], dtype=np.int64)  # type: ignore[index]
    return replace(batch, labels=labels, groups=np.arange(240) // 2)


@pytest.mark.slow
def test_few_showers_choose_how_they_train(few: Batch) -> None:
    assert few.labels is not None
    learner = create(spec("pretrained"), COMPOSITION.classes, n_rows=240)
    assert isinstance(learner, PretrainedLearner)
    assert learner._epochs_after(few, 1, "cpu", None) == 0, "the weights know such worlds"
    # Labels that the weights never saw: only many steps can learn them.
    assert learner._epochs_after(replace(few, labels=(few.labels + 2) % 5), 1, "cpu", None) == learner.usual.epochs
    assert learner._epochs_after(few.take(np.arange(6)), 1, "cpu", None) == 0


def test_a_world_is_found_by_some_of_many_uses(few: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def find(*parts: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((len(parts[4]), parts[5]))
        return torch.full((N_WORLD,), 0.5), torch.zeros(5)

    monkeypatch.setattr("showerstack.models.pretraining.learner.find_world", find)
    monkeypatch.setattr("showerstack.models.pretraining.learner.MOST_EVENTS", 100)
    monkeypatch.setattr(PretrainedLearner, "_epochs_after", lambda *_: 0)
    learner = create(spec("pretrained"), COMPOSITION.classes, n_rows=240)
    learner.fit(few.take(np.arange(200)), few.take(np.arange(200, 240)), seed=1)
    assert asked == [(100, 120)]
    assert isinstance(learner, PretrainedLearner)
    tuned = learner.network_.network
    assert isinstance(tuned, FineTuned)
    assert bool((tuned.world == 0.5).all())
    assert len(learner.losses_) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_new_head_begins_in_the_world_that_true_quantities_tell(
    few: Batch, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """As that of energies, of whose bins the weights know nothing."""
    asked, began = list[object](), list[torch.Tensor]()

    def find(*parts: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(parts[4])
        return torch.full((N_WORLD,), 0.5), torch.zeros(5)

    def train(self: NetworkLearner, network: Any, *parts: object) -> History:
        began.append(network.network.world.detach().clone())
        return History([1.0], 0)

    monkeypatch.setattr("showerstack.models.pretraining.learner.find_world", find)
    monkeypatch.setattr(NetworkLearner, "_train", train)
    taught = replace(few, targets=np.zeros((len(few), len(TARGETS)), np.float32)) if known else few
    learner = PretrainedLearner(tuple("abcde"))
    learner.fit(taught.take(np.arange(200)), taught.take(np.arange(200, 240)), seed=1)
    assert asked == ([None] if known else [])
    assert bool((began[0] == 0.5 * known).all())


@pytest.mark.parametrize(("n", "learned"), [(58, False), (60, True)])
def test_true_quantities_of_thirty_showers_are_learned(
    few: Batch, monkeypatch: pytest.MonkeyPatch, n: int, learned: bool
) -> None:
    """Two uses of a shower are one."""
    monkeypatch.setattr("showerstack.models.pretraining.learner.find_world", lambda *_, **__: (torch.zeros(N_WORLD), 0))
    monkeypatch.setattr(NetworkLearner, "_train", lambda *_: History([1.0], 0))
    taught = replace(few, targets=np.zeros((len(few), len(TARGETS)), np.float32))
    learner = PretrainedLearner(tuple("abcde"))
    learner.fit(taught.take(np.arange(n)), taught.take(np.arange(200, 240)), seed=1)
    tuned = learner.network_.network
    assert isinstance(tuned, FineTuned)
    assert bool(tuned.with_targets.all()) == bool(tuned.with_targets.any()) == learned


def test_few_showers_all_train_and_stay_together(few: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    parts: list[np.ndarray] = []

    def fit(self: PretrainedLearner, train: Batch, valid: Batch, **options: object) -> PretrainedLearner:
        seen.append((len(train), len(valid), self.training.batch_size))
        parts.append(np.unique(train.groups))
        self.network_ = Mock(network=FineTuned(Architecture(3, 8, 1, 8), 5, 0.0))
        return self

    monkeypatch.setattr(NetworkLearner, "fit", fit)
    monkeypatch.setattr(
        PretrainedLearner, "predict_log_proba", lambda self, batch: np.log(np.full((len(batch), 5), 0.2))
    )
    learner = create(spec("pretrained"), COMPOSITION.classes, n_rows=240)
    assert isinstance(learner, PretrainedLearner)
    learner.fit(few.take(np.arange(200)), few.take(np.arange(200, 240)), seed=1)
    assert seen[-1] == (240, 240, SMALL_BATCH)
    assert len(seen) == 2 * 4 + 1, "many epochs are not tried where some are no better than none"
    assert learner.after == 0
    assert sum(len(one) for one in parts[:4]) == 3 * 120, "a group is in one part"
    many = few.take(np.arange(2_600) % 240)  # ten and more uses of 120 showers are few
    learner.fit(replace(many, index=np.arange(2_600)), few.take(np.arange(200, 240)), seed=1)
    assert seen[-1] == (2_640, 2_640, SMALL_BATCH)
    big = learner.usual
    seen.clear()
    others = np.arange(2_600) % 200
    learner.fit(replace(few.take(others), index=np.arange(2_600), groups=None), few.take(np.arange(200, 240)), seed=1)
    assert seen == [(2_640, 2_640, big.batch_size)], "how thousands train is known"
    assert (learner.training.patience, learner.after) == (big.epochs, None)
    named = PretrainedLearner(tuple("abcde"))
    named.fit(few.take(np.arange(200)), few.take(np.arange(200, 240)), seed=1)
    assert (named.training.batch_size, named.training.epochs, named.after) == (SMALL_BATCH, named.usual.epochs, None)
    for changed in ({"by_number": False}, {"by_number": True, "class_weights": "balanced"}):
        learner.chosen |= changed
        learner.fit(few.take(np.arange(200)), few.take(np.arange(200, 240)), seed=1)
        assert seen[-1][2] == big.batch_size, "weights of classes are the head's to learn"


def test_the_most_probable_world_is_found() -> None:
    """Of a network whose answers are linear in the world; the prior pulls towards the centre, as it should."""
    torch.manual_seed(1)
    body = ShowerBody(Architecture(4, 6, 0, 8, N_WORLD))
    head, truth = torch.nn.Linear(6, 3), torch.nn.Linear(6, 2 * len(TARGETS))
    world = torch.zeros(N_WORLD)
    world[:3] = torch.tensor([1.5, -1.0, 0.5])
    inputs = torch.randn(4_000, 4)
    with torch.no_grad():
        embedding = body(inputs, torch.cat([world, world.new_ones(1)]))
        labels = torch.distributions.Categorical(logits=4 * head(embedding)).sample()
        head.weight *= 4
        head.bias *= 4
        means, log_widths = truth(embedding).chunk(2, dim=1)
        targets = means + log_widths.clamp(-3, 3).exp() * torch.randn(means.shape)
        targets[::2] = torch.nan

    def said(at: torch.Tensor, bias: torch.Tensor) -> float:
        with torch.no_grad():
            logits = head(body(inputs, torch.cat([at, at.new_ones(1)]))) + bias
        return float(torch.nn.functional.cross_entropy(logits, labels))

    before = said(torch.zeros(N_WORLD), torch.zeros(3))
    best = said(world, torch.zeros(3))
    found, bias = find_world(body, head, truth, inputs, labels, len(labels), targets=targets)
    assert said(found, bias) < best + 0.1 * (before - best)
    few, _ = find_world(body, head, truth, inputs, labels, 40)  # the same events of 40 showers
    assert 0.05 < float(few.norm()) < 0.9 * float(find_world(body, head, truth, inputs, labels, 4_000)[0].norm())
    alone, none = find_world(body, head, truth, inputs, None, len(inputs), targets=targets)
    assert bool((alone[:3] * world[:3] > 0).all())
    assert not none.any()
    other, _ = find_world(body, torch.nn.Linear(6, 3), truth, inputs, None, len(inputs), targets=targets)
    torch.testing.assert_close(other, alone, msg="a new head has no say")
    near, _ = find_world(body, head, truth, inputs, labels, len(labels), targets=targets, near=found)
    assert said(near, bias) == pytest.approx(said(found, bias), abs=1e-3)


@pytest.mark.parametrize(("kept", "moves"), [(1.0, False), (0.2, True)])
def test_other_shares_of_classes_move_the_logits(kept: float, moves: bool) -> None:
    torch.manual_seed(2)
    body, head, truth = ShowerBody(Architecture(2, 4, 0, 8, N_WORLD)), torch.nn.Linear(4, 2), torch.nn.Linear(4, 16)
    labels = torch.arange(1_000) % 2
    chosen = (labels == 0) | (torch.rand(1_000) < kept)
    inputs = torch.randn(int(chosen.sum()), 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    _, bias = find_world(body, head, truth, inputs, labels[chosen], len(inputs))
    assert bool((bias != 0).any()) == moves
    if moves:  # ln(p / q), a little nearer to 0 by the prior
        shares = torch.bincount(labels[chosen]) / len(inputs)
        assert float(bias[0] - bias[1]) == pytest.approx(float(torch.log(shares[0] / shares[1])), abs=0.1)


def test_events_of_two_batches_come_in_the_order_of_their_rows() -> None:
    table = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(6, 2))
    events = Batch(np.arange(6), table, ("a", "b"), labels=np.arange(6), weights=np.ones(6))
    both = events.take(np.array([4, 1])).with_others(events.take(np.array([3, 0])))
    assert both.index.tolist() == [0, 1, 3, 4]
    assert both.labels is not None
    assert both.table is not None
    np.testing.assert_array_equal(both.table, table[[0, 1, 3, 4]])
    assert both.labels.tolist() == [0, 1, 3, 4]
    assert (both.groups, both.targets) == (None, None)
