"""Pretraining for any array: what is drawn, how an array is told, who triggers, and weights that fit every array."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from benchmarks.fits.arrays import cases
from showerstack.features.build import build_table
from showerstack.models.base.inputs import InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining import SHOWERS_SEEN, train
from showerstack.models.pretraining.arrays import (
    AREA_M2,
    DEPTH_G_CM2,
    DESCRIPTION,
    MUON_AREA_M2,
    N_ARRAY,
    SEEN,
    SPACING_M,
    STATIONS,
    check_seen,
    description,
    draw_array,
    facts,
    in_clusters,
    lowest_energy,
    outside,
    triggering,
    without_depth,
)
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.pretraining.network import Architecture, ShowerBody, ShowerNetwork, told
from showerstack.models.pretraining.stream import (
    COLUMNS,
    N_WORLD,
    Prepared,
    _block_elsewhere,
    batch_of,
    draw_portion,
    quantities_of,
    suited,
)
from showerstack.models.pretraining.train import pretrain, widened
from showerstack.models.pretraining.weights import (
    ANY,
    ANY_FILE,
    ANY_SHA256,
    card_path,
    next_seed,
    read_pretrained,
)
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, read_json
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.card import ArrayCard
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.blocks import BlockJob, simulate_block
from showerstack.showers.simulation.ground import answering, trigger_stations
from showerstack.showers.simulation.settings import Settings
from tests.models.test_pretraining import SMALL, drawn_here, toy_portion


@lru_cache
def drawn(n: int = 300) -> tuple[DetectorArray, ...]:
    """Return drawn arrays."""
    return tuple(draw_array(np.random.default_rng([68, k])) for k in range(n))


def test_arrays_are_drawn_from_their_ranges_and_fill_them() -> None:
    spacings, areas, muon_areas = zip(*(facts(array) for array in drawn()), strict=True)
    sizes = np.array([array.n_stations for array in drawn()])
    assert 0.95 * STATIONS[0] - 1 <= sizes.min() < 15
    assert 300 < sizes.max() <= STATIONS[1]
    # Irregular arrays have nearer neighbours than the lattice that they come from.
    assert 0.2 * SPACING_M[0] < min(spacings) < 12.0
    assert 120.0 < max(spacings) <= SPACING_M[1] + 1e-6
    assert AREA_M2[0] <= min(areas) < 0.7
    assert 8.0 < max(areas) <= 2 * AREA_M2[1]
    seen = [area for area in muon_areas if area is not None]
    assert MUON_AREA_M2[0] <= min(seen) < 1.5
    assert 20.0 < max(seen) <= MUON_AREA_M2[1]
    depths = np.array([array.depth_g_cm2 for array in drawn()])
    assert DEPTH_G_CM2[0] <= depths.min() < 620
    assert 1010 < depths.max() <= DEPTH_G_CM2[1]
    with_muons = np.array([array.n_muon_detectors / array.n_stations for array in drawn()])
    for share in (with_muons == 0, with_muons == 1, (with_muons > 0) & (with_muons < 1)):
        assert 0.33 - 5 * 0.027 < share.mean() < 0.34 + 5 * 0.027
    answers = np.array([bool(array.card.response) for array in drawn()])
    assert 0.5 - 5 * 0.029 < answers.mean() < 0.5 + 5 * 0.029
    assert any(array.complete is not array for array in drawn()), "none has dead stations"
    assert draw_array(np.random.default_rng([68, 7])) == drawn()[7]


def test_an_array_is_told_in_numbers_of_order_one() -> None:
    numbers = np.stack([description(array) for array in drawn()])
    assert numbers.shape == (300, N_ARRAY)
    assert np.abs(numbers).max() < 3.5
    names = [one.name for one in DESCRIPTION]
    constant = names.index("depth is said")
    assert (numbers.std(axis=0)[np.arange(N_ARRAY) != constant] > 0.5).all()
    at_kascade = {
        one.name: one.centre + one.width * x for one, x in zip(DESCRIPTION, description(KASCADE), strict=True)
    }
    assert at_kascade == pytest.approx(
        {
            "lg spacing": np.log10(13.0), "lg stations": np.log10(252), "lg half side": np.log10(104.0),
            "lg e/gamma area": np.log10((60 * 3.14 + 192 * 1.57) / 252), "share with muon detectors": 192 / 252,
            "lg muon area": np.log10(3.24), "depth": 1023.0, "depth is said": 1.0, "e/gamma dispersion": 2.1,
            "lost share": 0.035, "lg saturation in particles": np.log10(30_000 / 9.5),
        },
        rel=1e-4,
    )  # fmt: skip


def test_a_depth_that_nobody_said_is_not_told() -> None:
    array = next(array for array in drawn() if array.complete is not array)
    hidden = without_depth(array)
    assert hidden.depth_g_cm2 is None
    assert hidden.n_stations == array.n_stations < hidden.complete.n_stations
    told_before, told_now = description(array), description(hidden)
    names = [one.name for one in DESCRIPTION]
    assert told_now[names.index("depth")] == 0.0
    assert told_now[names.index("depth is said")] == -told_before[names.index("depth is said")] == -1.0


def test_strays_alone_trigger_no_array() -> None:
    rng = np.random.default_rng(1)
    settings = Settings().changed(detector__electron_stray=0.06, trigger__stations=3)
    for array in drawn(40):
        one = replace(array, cluster=np.zeros(array.cluster.shape))
        clustered = in_clusters(one)
        assert clustered.n_stations <= 16 or clustered.cluster.max() > 0
        np.testing.assert_array_equal(in_clusters(clustered).cluster, clustered.cluster)
        stations = trigger_stations(settings, clustered, 0.03)
        sizes = np.bincount(clustered.cluster[clustered.has_electron])
        fired = (rng.poisson(sizes * 0.06, (20_000, len(sizes))) >= stations).any(axis=1).mean()
        assert fired < 0.03 + 5 * 0.0012, array.n_stations
    assert trigger_stations(Settings(), KASCADE, 0.03) == Settings().trigger.stations


def spread_out(spacing_m: float) -> DetectorArray:
    """Return KASCADE's stations at another distance, at its depth."""
    times = spacing_m / KASCADE.pitch_m
    return replace(
        KASCADE, name="wide", pitch_m=spacing_m, x_m=times * KASCADE.x_m, y_m=times * KASCADE.y_m,
        card=ArrayCard(depth_g_cm2=1023.0),
    )  # fmt: skip


def test_energies_begin_where_a_tenth_triggers() -> None:
    found = {}
    for spacing in (39.0, 104.0):
        array = spread_out(spacing)
        settings = suited(Settings(), 0, array, np.random.default_rng(2))
        found[spacing] = settings.spectrum.lg_energy_min
        narrow = settings.changed(
            spectrum__lg_energy_min=found[spacing], spectrum__low_share=1.0,
            spectrum__low_lg_energy_max=found[spacing] + 0.25,
        )  # fmt: skip
        job = BlockJob(COMPOSITION, "train", 1, "mix", "none", narrow, array=array)
        share = len(simulate_block(job, 0)) / 4096
        assert 0.03 < share < 0.6, spacing
    assert found[104.0] > found[39.0] + 0.3
    lowest = lowest_energy(COMPOSITION, Settings(), KASCADE, np.random.default_rng(2))
    assert 14.0 <= lowest < 14.6


def test_stations_answer_as_the_card_says() -> None:
    card = ArrayCard(response={"threshold_mev": 12.0, "saturation_mev": 1500.0, "electron_dispersion": 1.3})
    array, plain = replace(spread_out(13.0), card=card), Settings()
    world = triggering(plain, array)
    assert world.detector.electron_threshold_mev == pytest.approx(4 * plain.detector.electron_threshold_mev)
    assert world.detector.electron_cap_mev == pytest.approx(plain.detector.electron_cap_mev / 20)
    assert world.detector.electron_shape == pytest.approx(plain.detector.electron_shape * 1.1 / 0.3)
    events, before = (
        simulate_block(BlockJob(COMPOSITION, "train", 1, "mix", "test", settings, array=array), 0)
        for settings in (world, plain)
    )
    assert events.grids[..., 0].max() <= world.detector.electron_cap_mev < before.grids[..., 0].max()
    assert events.grids[..., 0][events.grids[..., 0] > 0].min() >= world.detector.electron_threshold_mev
    twice = replace(array, card=ArrayCard(response={"electron_deposit_mev": 19.0, "muon_deposit_mev": 4.2}))
    other = triggering(plain, twice).detector
    deaf = replace(array, card=ArrayCard(response={"muon_threshold_mev": 6.0}))
    assert triggering(plain, deaf).detector.muon_threshold_mev == pytest.approx(6.0)
    for name, factor in (
        ("electron_mev", 2.0),
        ("electron_threshold_mev", 2.0),
        ("muon_mev", 0.5),
        ("muon_cap_mev", 0.5),
    ):
        assert getattr(other, name) == pytest.approx(factor * getattr(plain.detector, name)), name
    assert other.electron_cap_mev == 65_504.0
    assert triggering(plain, KASCADE) == plain


def test_showers_of_an_array_without_muon_detectors_have_no_muon_number() -> None:
    array = next(array for array in drawn() if not array.n_muon_detectors and array.n_stations < 60)
    portion = _block_elsewhere(0, "train", 1, 5, np.random.default_rng(3), array, told=True)
    assert len(portion) > 100
    for name in ("E", "Nmu", "ne_minus_nmu", "fit_lg_nmu", "prof_mu_40_63", "mu_far"):
        assert np.isnan(portion.table[:, COLUMNS.index(name)]).all(), name
    for name in ("Ze", "fit_lg_ne", "e_hits"):
        assert np.isfinite(portion.table[:, COLUMNS.index(name)]).mean() > 0.9, name
    assert portion.world.shape[1] == N_WORLD + N_ARRAY
    np.testing.assert_array_equal(portion.world[0, N_WORLD:], description(array))
    again = _block_elsewhere(0, "train", 1, 5, np.random.default_rng(3), array, told=True)
    np.testing.assert_array_equal(again.table, portion.table)
    assert set(quantities_of(array)) == {"Ze", "Az", "Ne", "Age"}
    assert set(quantities_of(KASCADE)) == {"E", "Ze", "Az", "Ne", "Nmu", "Age"}


def test_a_sixth_of_the_blocks_is_of_kascade(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: list[DetectorArray] = []

    def block(*arguments: Any, told: bool) -> Any:
        assert told
        arrays.append(next((one for one in arguments if isinstance(one, DetectorArray)), KASCADE))
        return toy_portion(0, 0, array=None)

    for name in ("_block", "_block_elsewhere"):
        monkeypatch.setattr(f"showerstack.models.pretraining.stream.{name}", block)
    for number in range(30):
        draw_portion(1, number, array=None)
    share = np.mean([array == KASCADE for array in arrays])
    assert 1 / 6 - 5 * 0.0153 < share < 1 / 6 + 5 * 0.0153
    assert len({array.digest for array in arrays}) > 450


def test_of_unknown_worlds_the_array_is_told() -> None:
    portion = toy_portion(1, 1, array=None)
    prepared = Prepared.of(portion, InputTransform.fit(batch_of(portion.table), COLUMNS), 1, 1)
    unknown = prepared.world[:, -1] == 0
    assert 0.1 < unknown.float().mean() < 0.4
    assert (prepared.world[unknown, :N_WORLD] == 0).all()
    np.testing.assert_array_equal(prepared.world[:, N_WORLD:-1], portion.world[:, N_WORLD:])


def test_what_is_told_of_one_array_becomes_constants() -> None:
    torch.manual_seed(0)
    sizes = Architecture(20, 16, 2, 16, N_WORLD + N_ARRAY)
    network, array = ShowerNetwork(sizes).eval(), drawn()[3]
    inputs, world = torch.randn(5, 20), torch.randn(5, N_WORLD)
    whole = torch.cat([world, torch.from_numpy(description(array)).expand(5, -1), torch.ones(5, 1)], dim=1)
    body = ShowerBody(replace(sizes, n_world=N_WORLD)).eval()
    body.load_state_dict(told(network.body.state_dict(), array))
    expected = network.body(inputs, whole)
    torch.testing.assert_close(body(inputs, torch.cat([world, torch.ones(5, 1)], dim=1)), expected)
    other = ShowerBody(replace(sizes, n_world=N_WORLD)).eval()
    other.load_state_dict(told(network.body.state_dict(), drawn()[4]))
    assert (other(inputs, torch.cat([world, torch.ones(5, 1)], dim=1)) - expected).abs().max() > 1e-3


def test_wider_weights_say_the_same() -> None:
    torch.manual_seed(0)
    small = ShowerNetwork(Architecture(20, 16, 2, 16, N_WORLD)).eval()
    sizes = Architecture(29, 16, 2, 16, N_WORLD + N_ARRAY)
    wide = ShowerNetwork(sizes).eval()
    wide.load_state_dict(widened(small.state_dict(), sizes))
    inputs, world = torch.randn(5, 20), torch.randn(5, N_WORLD + 1)
    more = torch.cat([world[:, :-1], torch.randn(5, N_ARRAY), world[:, -1:]], dim=1)
    torch.testing.assert_close(
        wide(torch.cat([inputs, torch.randn(5, 9)], dim=1), more).composition, small(inputs, world).composition
    )


@pytest.mark.parametrize(
    ("changes", "words", "far"),
    [
        ({}, [], False),
        ({"depth": 560.0}, ["depth 560 g/cm2 (seen: 600 to 1033)"], False),
        ({"depth": 480.0}, ["depth 480 g/cm2 (seen: 600 to 1033)"], True),
        ({"area": 0.3}, ["e/gamma area 0.3 m2 (seen: 0.5 to 10)"], False),
        ({"area": 25.0}, ["e/gamma area 25 m2 (seen: 0.5 to 10)"], True),
        ({"muons": 0.0}, [], False),
        ({"muons": 40.0}, ["muon area 40 m2 (seen: 1 to 30)"], False),
        ({"area": 0.0}, ["no e/gamma detectors"], True),
        ({"dispersion": 7.0}, ["e/gamma dispersion 7 (seen: 1.3 to 3.2)"], True),
    ],
)
def test_what_lies_outside_of_the_ranges_is_said(changes: dict[str, float], words: list[str], far: bool) -> None:
    card = ArrayCard(
        depth_g_cm2=changes.get("depth", 900.0), response={"electron_dispersion": changes.get("dispersion", 2.0)}
    )
    there = KASCADE.has_station * 1.0
    array = replace(
        KASCADE, name="mine", card=card, electron_area_m2=changes.get("area", 2.0) * there,
        muon_area_m2=changes.get("muons", 2.0) * there,
    )  # fmt: skip
    assert outside(array, SEEN) == (words, far)
    if far:
        with pytest.raises(InputError, match=r"for any array know none like mine .*: .*pretrain --array") as refusal:
            check_seen(array, SEEN)
        assert "\n" not in str(refusal.value)
    else:
        check_seen(array, SEEN)


def released_answers(array: DetectorArray) -> np.ndarray:
    """Return what the released weights for any array say of fixed inputs at an array, (4, 7) logits."""
    pretrained = read_pretrained(ANY)
    body = told(pretrained.network.body.state_dict(), array)
    network = ShowerNetwork(replace(pretrained.network.sizes, n_world=N_WORLD)).eval()
    network.load_state_dict({**pretrained.network.state_dict(), **{f"body.{name}": w for name, w in body.items()}})
    inputs = torch.from_numpy(np.sin(np.arange(4 * pretrained.network.sizes.n_inputs, dtype=np.float32)).reshape(4, -1))
    world = torch.zeros(N_WORLD + 1)
    world[-1] = 1.0
    with torch.inference_mode():
        answers = network(inputs, world)
    return torch.cat([answers.composition, answers.gamma], dim=1).numpy()


GOLDEN = np.array(
    [
        0.6360, 1.1561, 0.6804, -1.2706, -4.6432, -2.7436, 2.7107,
        -3.1439, -2.4080, 0.0937, 3.1726, 6.0431, -2.3637, 2.3500,
    ]
)  # fmt: skip
"""First shower at KASCADE, then at an array of 81 stations."""


def test_released_weights_say_what_they_said() -> None:
    tanks = next(case.array for case in cases() if case.name.startswith("81 tanks"))
    said = np.concatenate([released_answers(array)[0] for array in (KASCADE, tanks)])
    np.testing.assert_allclose(said, GOLDEN, atol=2e-4)


def test_going_on_uses_other_showers() -> None:
    assert next_seed("") == 1
    assert next_seed("shipped") == 3
    assert next_seed(ANY) == 6


def test_released_weights_are_small_and_named_by_the_code() -> None:
    assert hash_file(ANY_FILE) == ANY_SHA256
    assert ANY_FILE.stat().st_size < 8_000_000
    pretrained = read_pretrained(ANY)
    assert sum(value.numel() for value in pretrained.network.parameters()) < 2_000_000
    assert pretrained.seen == {name: list(limits) for name, limits in SEEN.items()}
    first_step = 1_032_449  # from KASCADE's weights on; the card is of the second
    seen = SHOWERS_SEEN["shipped"] + first_step + pretrained.card["showers"]
    assert seen == pytest.approx(SHOWERS_SEEN[ANY], rel=0.01)


@pytest.fixture
def toy_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw toy showers of many arrays in this process; a third lacks a column that KASCADE always has."""

    def portion(seed: int, number: int, split: str = "train", array: DetectorArray | None = KASCADE) -> Any:
        showers = toy_portion(seed, number, split, array)
        if array is None:
            showers.table[::3, COLUMNS.index("Nmu")] = np.nan
        return showers

    monkeypatch.setattr(train, "draw_ahead", drawn_here)
    monkeypatch.setattr(train, "draw_portion", portion)


@pytest.mark.usefixtures("toy_arrays")
@pytest.mark.slow
def test_weights_for_any_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pretrain(tmp_path / "kascade", replace(SMALL, showers=120_000))
    settings = replace(SMALL, showers=350_000, array=None, start=str(first), start_sha256=hash_file(first), seed=2)
    whole = pretrain(tmp_path / "any", settings)
    with monkeypatch.context() as killed:
        killed.setattr(train, "write_checkpoint", _after(1, train.write_checkpoint))
        with pytest.raises(KeyboardInterrupt):
            pretrain(tmp_path / "cut", settings)
    assert hash_file(pretrain(tmp_path / "cut", settings)) == hash_file(whole)
    read = read_pretrained(str(whole), hash_file(whole))
    assert read.array is None
    assert read.seen is not None
    assert read.seen["spacing_m"] == list(SPACING_M)
    assert read_json(card_path(whole))["arrays"] == read.seen
    before = read_pretrained(str(first), hash_file(first))
    assert (before.seen, before.array) == (None, KASCADE)
    assert read.inputs.plain == before.inputs.plain
    assert read.inputs.flagged == (*before.inputs.flagged, "Nmu")

    array = drawn()[3]
    own = pretrain(
        tmp_path / "own",
        replace(settings, showers=120_000, array=array, start=str(whole), start_sha256=hash_file(whole), seed=3),
    )
    of_one = read_pretrained(str(own), hash_file(own))
    assert (of_one.seen, of_one.array) == (None, array)
    assert of_one.network.sizes.n_world == N_WORLD

    chosen = {"width": 16, "blocks": 1, "hidden": 16, "epochs": 1, "weights": str(whole)}
    portions = [toy_portion(5, number) for number in range(2)]
    for here in (array, KASCADE):
        events, valid = (
            Batch(np.arange(200), one.table, COLUMNS, labels=one.labels % 5, array=here) for one in portions
        )
        learner = PretrainedLearner(COMPOSITION.classes, {**chosen, "weights_sha256": hash_file(whole)})
        learner.fit(events, valid, seed=1)
        learner.save(tmp_path / here.name)
        again = PretrainedLearner.load(tmp_path / here.name)
        new = replace(valid, labels=None)
        np.testing.assert_array_equal(again.predict_log_proba(new), learner.predict_log_proba(new))


def _after(calls: int, function: Any) -> Any:
    """Return the function, interrupted after so many calls."""
    left = [calls]

    def call(*arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        function(*arguments)

    return call


EACH_KEY = {
    "electron_deposit_mev": (240.0, ("electron_mev", "electron_threshold_mev", "electron_cap_mev")),
    "muon_deposit_mev": (4.2, ("muon_mev", "muon_threshold_mev", "muon_cap_mev")),
    "threshold_mev": (6.0, ("electron_threshold_mev",)),
    "muon_threshold_mev": (6.0, ("muon_threshold_mev",)),
    "saturation_mev": (900.0, ("electron_cap_mev",)),
    "muon_saturation_mev": (900.0, ("muon_cap_mev",)),
    "electron_dispersion": (1.5, ("electron_shape",)),
    "muon_dispersion": (1.5, ("muon_shape",)),
    "muon_in_electron_dispersion": (1.5, ("muon_in_electron_shape",)),
    "electron_strays": (0.03, ("electron_stray",)),
    "muon_strays": (0.03, ("muon_stray",)),
    "punch_through": (0.0, ("punch",)),
    "punch_through_scale_m": (20.0, ("punch_range_m",)),
    "core_excess": (0.0, ("photon_share_core",)),
    "core_excess_scale_m": (20.0, ("photon_core_m",)),
    "gamma_fraction": (1.5, ("photon_share",)),
}


@pytest.mark.parametrize("key", EACH_KEY)
def test_each_key_of_the_response_moves_its_constants_and_no_others(key: str) -> None:
    plain, (value, names) = Settings(), EACH_KEY[key]
    moved = answering(plain, replace(spread_out(13.0), card=ArrayCard(response={key: value})))
    before, after = plain.detector.model_dump(), moved.detector.model_dump()
    assert {name for name in before if before[name] != after[name]} == set(names)
    assert moved.changed(**{f"detector__{name}": before[name] for name in names}) == plain


@pytest.mark.slow
def test_sets_are_simulated_with_the_response_of_the_card(tmp_path: Path) -> None:
    """Deposits of 38 MeV a particle: four times the signals, and fits that know it find the same sizes."""
    found = []
    for deposit in (9.5, 38.0):
        card = ArrayCard(depth_g_cm2=1023.0, response={"electron_deposit_mev": deposit})
        folder, _ = simulate(
            COMPOSITION, tmp_path / str(deposit), n_train=150, n_test=1, seed=2, workers=1,
            array=replace(KASCADE, name="own", card=card),
        )  # fmt: skip
        grids = np.asarray(np.load(folder / "matrices.npy"), np.float64)[..., 0]
        sizes = build_table(folder).matrix(["fit_lg_ne"])[:, 0]
        truth = pl.read_parquet(folder / "truth.parquet")["lg_ne"].to_numpy()
        found.append((np.median(grids[grids > 0]), np.nanmedian(sizes - truth)))
    (low, bias), (high, its_bias) = found
    assert high == pytest.approx(4 * low, rel=0.1)
    assert its_bias == pytest.approx(bias, abs=0.03)
