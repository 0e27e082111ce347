"""Data check: silent on a fresh sample, and noticing each kind of damaged one; labels are never opened.

Means from run to run are quiet where all runs are alike, and name feature and run where one has drifted.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.physics.damaged import CLUSTER, damaged
from showerstack.analysis.datacheck.check import DataCheck, check_data, verdict
from showerstack.analysis.datacheck.p_values import histograms_differ, holm
from showerstack.analysis.datacheck.sample import Piece
from showerstack.analysis.datacheck.streamed import Histograms, compare_stations, shifts_of_runs
from showerstack.analysis.datacheck.weights import fit_weights
from showerstack.analysis.datacheck.zenith import MassEvents, zenith_bands
from showerstack.report.check_pages import write_check
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.protocols import Layout
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.showers.writer import write_dataset
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.program import call

N_TRAIN, N_NEW = 4_000, 3_000
OPTIONS = {"reference": 3_000, "ctx": Context(workers=1)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on 4,000 showers, and 3,000 fresh ones of the same world."""
    folder = tmp_path_factory.mktemp("datacheck")
    common = {"train_cuts": "test", "workers": 1}
    simulate(COMPOSITION, folder / "data", n_train=N_TRAIN, n_test=200, seed=7, **common)
    simulate(COMPOSITION, folder / "new", n_train=200, n_test=N_NEW, seed=8, **common)
    config = {"task": "composition", "data": folder / "data", "run": folder / "run", "preset": "quick", "folds": 2}
    stack(StackConfig(**config, learners=("quadratic_logit",), device="cpu", workers=1))
    return folder


@pytest.fixture(scope="module")
def checked(world: Path) -> Callable[[str], DataCheck]:
    """Check a sample that is damaged in one way; each once."""
    content: dict[str, DataCheck] = {}

    def check(kind: str) -> DataCheck:
        if kind not in content:
            data = damaged(world / "new" / "composition_test", world / kind, kind)
            content[kind] = check_data(world / "run", data, **OPTIONS)
        return content[kind]

    return check


def test_a_fresh_sample_of_the_same_world_raises_no_alarm(checked: Callable[[str], DataCheck], world: Path) -> None:
    check = checked("fresh")
    assert check.raised == []
    assert check.n_events > 0.99 * N_NEW
    assert not list((world / "fresh").glob("labels*"))
    assert "speaks against" in verdict(check)
    assert set(check.p_values) == {"features", "stations", "trend", "zenith"}
    assert check.zenith is not None
    assert abs(check.zenith.effect) < 5 * check.zenith.error
    of_all = replace(check, p_values=check.p_values | {"features": 0.0024})
    assert "0 features" not in verdict(of_all)
    assert "no feature has p < 0.001, but p = 0.0024 is too small for so many, most of all" in verdict(of_all)


@pytest.mark.parametrize(
    ("kind", "tests", "named"),
    [
        ("muons", {"features"}, "nmu|mu_far"),
        ("deposits", {"features"}, "fit_minus_ne"),
        ("cluster", {"features", "stations"}, r"16 e/gamma stations .* 16 of them silent"),
        ("swapped", {"stations"}, "muon stations"),
        ("ordered", {"trend"}, "rows are ordered"),
    ],
)
def test_a_spoiled_sample_is_noticed(
    kind: str, tests: set[str], named: str, checked: Callable[[str], DataCheck]
) -> None:
    check = checked(kind)
    assert tests <= set(check.raised), check.p_values
    assert re.search(named, verdict(check)), verdict(check)
    if kind == "cluster":
        assert (check.stations.data[CLUSTER] == 0).all()


def _two_runs(source: Path, out: Path, dead: list[int], factor: float = 1.0, *, known: bool = True) -> Path:
    """Write halves of a sample as two runs; in the second stations are dead and deposits larger by a factor."""
    data = Dataset.open(source, labels=False)
    for number, cells in enumerate(([], dead)):
        rows = np.arange(len(data))[number::2]
        grids = data.matrices[rows].astype(np.float32) * (factor if number else 1.0)
        grids.reshape(len(rows), -1, 2)[:, cells] = 0.0
        named = {"dead_stations": cells} if cells and known else {}
        layout = Layout(scalar_type=data.scalars.dtype)
        with write_dataset(
            out / f"run{number}", len(rows), None, source={"generator": "test", **named}, layout=layout
        ) as writer:
            writer.put(0, grids.astype(np.float16), np.asarray(data.scalars[rows]))
    return out


@pytest.mark.slow
def test_dead_stations_of_a_run_are_dead_in_its_simulation(world: Path, tmp_path: Path) -> None:
    source, dead = world / "new" / "composition_test", np.flatnonzero(KASCADE.has_muon)[20:110:6].tolist()
    check = check_data(world / "run", _two_runs(source, tmp_path / "dead", dead), **OPTIONS)
    assert check.raised == [], check.p_values
    assert "mu_far_stations" in check.histograms.names
    unknown = check_data(world / "run", _two_runs(source, tmp_path / "unknown", dead, known=False), **OPTIONS)
    assert {"features", "trend", "stations"} <= set(unknown.raised)
    shifted = check_data(world / "run", _two_runs(source, tmp_path / "shifted", dead, 1.15), **OPTIONS)
    assert {"features", "trend"} <= set(shifted.raised), "a shift in that run is seen as before"


def test_shifts_of_runs_are_means_of_paired_differences_with_their_errors() -> None:
    rng = np.random.default_rng(5)
    n, number = 40_000, np.arange(40_000) % 2
    weights = rng.uniform(0.5, 1.5, n)
    before = rng.normal(size=(n, 2)).astype(np.float32)
    after = before + np.where(number == 1, rng.normal(-0.3, 0.1, n), 0.0)[:, None].astype(np.float32)
    after[::7, 1] = np.nan
    mean, variance = shifts_of_runs(before, after, weights, number, 3)
    assert (mean[[0, 2]] == 0).all()
    assert (variance[[0, 2]] == 0).all()
    effective = (weights[1::2].sum()) ** 2 / (weights[1::2] ** 2).sum()
    assert np.sqrt(variance[1, 0]) == pytest.approx(0.1 / np.sqrt(effective), rel=0.05)
    assert (np.abs(mean[1] + 0.3) < 5 * np.sqrt(variance[1])).all()


def _toy(n: int, seed: int, *, inclined: float = 0.0) -> MassEvents:
    """Events of protons and iron, whose masses differ the more from the truth the more inclined they are."""
    rng = np.random.default_rng(seed)
    iron = rng.random(n) < 0.4
    zenith = np.degrees(np.arcsin(np.sqrt(rng.random(n)) * 0.5))
    secant = 1 / np.cos(np.radians(zenith)) - 1
    mean_ln_a = 4.0 * np.clip(0.2 + 0.6 * iron + rng.normal(0, 0.2, n), 0, 1) + inclined * secant
    return MassEvents(15.0 + rng.exponential(0.35, n), zenith, mean_ln_a, np.ones(n))


def test_masses_that_change_with_the_zenith_angle_are_noticed() -> None:
    simulation = _toy(20_000, 1)
    same, other = zenith_bands(_toy(20_000, 2), simulation), zenith_bands(_toy(20_000, 2, inclined=3.0), simulation)
    assert same is not None
    assert other is not None
    assert same.p > 1e-6
    assert other.p < 1e-6
    assert other.effect > 0.05
    assert zenith_bands(_toy(20, 2), simulation) is None, "too few events"


def test_the_command_writes_a_page_and_its_numbers(
    checked: Callable[[str], DataCheck], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = checked("cluster")
    asked = []

    def once(*where: Path, **options: object) -> DataCheck:
        inspect.signature(check_data).bind(*where, **options)
        asked.append((*where, options))
        return check

    monkeypatch.setattr("showerstack.analysis.datacheck.check.check_data", once)
    page = tmp_path / "check.html"
    arguments = ("datacheck", "--run", world / "run", "--data", world / "cluster", "--out", page, "--workers", "1")
    said = call("cli.py", *arguments, code=1).stdout  # there is an alarm
    ((run, data, options),) = asked
    assert (run, data, options["train"]) == (world / "run", world / "cluster", None)
    assert (options["seed"], options["alarms"]) == (1, 0.05)
    assert options["ctx"].workers == 1
    assert "does not describe these events" in said.replace("\n", " ")
    text = page.read_text()
    assert text.count("<svg") >= 3
    assert "does not describe these events" in text
    numbers = json.loads((tmp_path / "check.json").read_text())
    assert "stations" in numbers["alarms"]
    assert sum(numbers["fractions"].values()) == pytest.approx(1.0)
    assert set(numbers["zenith"]) == {"p", "effect_mean_ln_a", "error"}
    assert "in mean ln A" in text
    assert "pure number" in text or "decimal logarithm" in text
    with pytest.raises(InputError, match=r"name an \.html file"):
        write_check(checked("cluster"), tmp_path / "check.txt")


def test_labels_are_named_and_not_opened(world: Path) -> None:
    data = damaged(world / "new" / "composition_test", world / "labelled", "fresh", rows=np.arange(1000))
    (data / "labels_composition.npy").write_bytes(b"poison")
    (data / "checksums.json").unlink()
    check = check_data(world / "run", data, **OPTIONS)
    assert any("labels_composition.npy" in remark and "not opened" in remark for remark in check.remarks)


def test_what_cannot_be_checked_is_refused(world: Path, tmp_path: Path) -> None:
    few = damaged(world / "new" / "composition_test", tmp_path / "few", "fresh", rows=np.arange(50))
    with pytest.raises(InputError, match="at least 200 are needed"):
        check_data(world / "run", few, **OPTIONS)
    with pytest.raises(InputError, match="is not the set on which"):
        check_data(world / "run", few, train=world / "new" / "composition_train", **OPTIONS)
    with pytest.raises(InputError, match="is not there: say where with --train"):
        check_data(world / "run", few, train=tmp_path / "none", **OPTIONS)


def test_weights_bring_composition_and_spectrum() -> None:
    rng = np.random.default_rng(3)

    def events(shares: tuple[float, float], slope: float, n: int) -> tuple[np.ndarray, ...]:
        labels = (rng.random(n) < shares[1]).astype(int)
        energy = 14.5 + rng.exponential(1 / slope, n)
        x = labels + rng.normal(0, 0.7, n)
        logit = (2 * x - 1) / (2 * 0.7**2)
        return (
            labels,
            energy,
            energy + rng.normal(0, 0.1, n),
            np.column_stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)]),
        )

    simulation, data = events((0.5, 0.5), 2.0, 40_000), events((0.8, 0.2), 3.0, 20_000)
    weights = fit_weights(*simulation, data[2], data[3])
    assert weights.fractions[1] == pytest.approx(0.2, abs=0.04)
    mean = np.average(simulation[1], weights=weights.weights)
    assert mean == pytest.approx(data[1].mean(), abs=0.015)
    assert weights.effective < 40_000
    assert weights.weights.mean() == pytest.approx(1.0), "as many events as there are"
    assert weights.uncovered < 0.001
    beyond = np.concatenate([data[2], np.full(5_000, simulation[2].max() + 1)])
    weights = fit_weights(*simulation, beyond, np.concatenate([data[3], data[3][:5_000]]))
    assert weights.uncovered == pytest.approx(0.2, abs=0.001)
    assert weights.fractions[1] == pytest.approx(0.2, abs=0.04), "what the simulation does not have changes nothing"


def test_statistics_keep_their_level() -> None:
    rng = np.random.default_rng(5)
    p = []
    for _ in range(1000):
        weights = rng.exponential(1.0, 3_000)
        data, simulation = rng.normal(size=2_000), rng.normal(size=3_000)
        edges = np.linspace(-1.5, 1.5, 12)
        place = np.searchsorted(edges, simulation)
        sums, squares = (np.bincount(place, weights**k, minlength=13) for k in (1, 2))
        p.append(histograms_differ(np.bincount(np.searchsorted(edges, data), minlength=13), sums, squares)[0])
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.035)
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])


NAMES = ("steady", "drifting", "partly undefined")


def _measured(rng: np.random.Generator, *, shift: float = 0.0, runs: int = 6, events: int = 800) -> Histograms:
    simulation = rng.normal(size=(2_000, 3)).astype(np.float32)
    energy = np.full(2_000, 15.3)
    result = Histograms.of(NAMES, simulation, np.ones(2_000), energy, runs)
    for run in range(runs):
        values = rng.normal(size=(events, 3))
        values[:, 1] += shift if run == 4 else 0.0
        values[rng.random(events) < 0.3, 2] = np.nan
        result.add(Piece(run, np.arange(events), values.astype(np.float32), np.full(events, 15.3)))
    return result


def test_one_event_where_next_to_none_is_expected_is_no_alarm() -> None:
    """Chi-square holds where enough is expected: bins that expect less are added to their neighbours."""
    expected = np.array([100.0, 60.0, 30.0, 0.01, 0.001, 0.0])
    counts = np.array([104.0, 57.0, 28.0, 0.0, 0.0, 1.0])
    assert histograms_differ(counts, 1000 * expected, 1000 * expected)[0] > 0.3
    # where all bins expect enough, none is added up
    assert histograms_differ(counts[:3], 1000 * expected[:3], 1000 * expected[:3])[1] == 2
    assert histograms_differ(np.array([60.0, 130.0]), 1000 * np.ones(2), 1000 * np.ones(2))[0] < 1e-5


def test_runs_that_are_alike_raise_no_alarm() -> None:
    rng = np.random.default_rng(1)
    smallest = np.array([_measured(rng).unstable()[0].min() for _ in range(200)])
    alarms = int((smallest < 0.05).sum())
    assert alarms <= 32, "10 expected of 200 at a stated 5 %"
    assert np.median(smallest) > 0.2


def test_a_run_that_drifts_is_named() -> None:
    p, residuals = _measured(np.random.default_rng(2), shift=0.5).unstable()
    assert p[1] < 1e-6
    assert p[[0, 2]].min() > 1e-6
    assert np.abs(residuals[:, 1]).argmax() == 4
    assert residuals[4, 1] > 5


def test_runs_with_few_events_are_not_judged() -> None:
    p, residuals = _measured(np.random.default_rng(3), shift=5.0, events=10).unstable()
    assert (p == 1).all()
    assert (residuals == 0).all()


def test_stations_known_to_be_dead_are_compared_in_the_other_runs_alone(tiny_composition: Path) -> None:
    data = Dataset.open(tiny_composition / "composition_test", labels=False)
    simulation = Dataset.open(tiny_composition / "composition_train", labels=False)
    rows, cells = np.arange(500), np.flatnonzero(KASCADE.has_muon)[40:42].tolist()
    grids = np.array(data.matrices)
    grids.reshape(len(data), 256, 2)[:, cells] = 0
    silent = replace(data, matrices=grids)
    known = replace(silent, source={**data.source, "dead_stations": cells})
    reference = (simulation, np.arange(len(simulation)), np.ones(len(simulation)))
    place = (np.array(cells) // 16, np.array(cells) % 16, 0)
    assert (compare_stations([(silent, rows)], *reference).p[place] < 1e-6).all()
    nowhere = compare_stations([(known, rows)], *reference)
    assert (nowhere.p[place] == 1).all()
    assert np.isnan(nowhere.data[place]).all(), "a station that is known to be dead has no share of hits"
    both = compare_stations([(known, rows), (data, rows + 500)], *reference)
    alone = compare_stations([(data, rows + 500)], *reference)
    np.testing.assert_allclose(both.data[place], alone.data[place])
    assert (both.p[place] > 1e-3).all()
    elsewhere = both.data[2, 3], (data.matrices[:1000, 2, 3] > 0).mean(axis=0)
    np.testing.assert_allclose(*elsewhere)
