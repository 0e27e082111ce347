"""What the benchmarks compute and keep, on small samples.

The shipped world is what the recorded fits ended with, and the record is of the constants that are fitted today; the
fit itself has its targets, steps and bounds. Skies of pseudo-experiments hold what was asked for. Published networks
are loaded without running code. Where showers are drawn with the fits' own constants, whatever else the simulation can
do is off. Samples that are kept are taken again only for the same showers. A learner is worth what no other of its run
knows. What a detector tells of its particles' mean number is that of counting them where they are few, and of a normal
reading where they are many; nor is any estimate of a shower better than counting all particles.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import norm

from benchmarks.fits.pulls import World, everything, pulls
from benchmarks.learning import limit
from benchmarks.learning.limit import KNOTS, LARGEST, SMALLEST, Kind, information, normal_information
from benchmarks.learning.marginal import Learners
from benchmarks.learning.marginal import table as worth_table
from benchmarks.physics.closure_page import tables
from benchmarks.physics.pairs import NODES, PairedPool, PairedTruth, pool_of_nodes
from benchmarks.physics.pseudo_experiments import SmoothTruth, mixtures, spectra_experiment
from benchmarks.physics.resimulated import drawn_sky, weights
from benchmarks.shared.drawn import FOREIGN
from benchmarks.shared.experiments import Experiments
from benchmarks.shared.samples import sample, sample_name
from benchmarks.world.calibrate import GROUPS, MODELS, RECORD
from benchmarks.world.comparison import compare, joint_areas, network_tables, without_rare
from benchmarks.world.facts import FACTS, MATCHED
from benchmarks.world.fit import Free, ModelProblem, Problem, fit, jacobian, next_step, summary
from benchmarks.world.moments import Sizes
from benchmarks.world.networks import (
    Moments,
    Published,
    PublishedNetwork,
    augmented,
    inputs,
    load_networks,
    norm_deviations,
    posteriors,
    two_sample,
)
from benchmarks.world.targets import POSTERIORS, SCORES, Look, NetworkTarget, PosteriorTarget, decisions, norm_vector
from showerstack.analysis.spectra.folding import Widths, make_cells, mass_summary
from showerstack.analysis.spectra.reading import Response
from showerstack.analysis.spectra.run import EDGES, cell_binning
from showerstack.models.base.posterior import log_softmax
from showerstack.models.networks.step import write_checkpoint
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import LG_NE_MIN
from showerstack.showers.schema import COMPOSITION, GAMMA, SOURCE_FILE
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob, simulate_block
from showerstack.showers.simulation.settings import Settings
from showerstack.showers.simulation.sky import Sky
from showerstack.stacking.sample import Sample
from tests.analysis.skies import simulated

pytestmark = pytest.mark.slow

START = RECORD.with_name("calibration_start.toml")
ORDER = ("hadrons", "models")
"""The photons keep the constants with which these fits began."""
FREE = {name: free for name, (free, _, _) in GROUPS.items()} | {"models": MODELS}


def value(content: dict[str, dict[str, float]], name: str) -> float:
    section, field = name.split("__")
    return content[section][field]


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_default_world_is_what_the_fits_ended_with() -> None:
    expected = tomllib.loads(START.read_text(encoding="utf-8"))
    for group in ORDER:
        for name, ended in recorded()[group]["ended"].items():
            section, field = name.split("__")
            expected[section][field] = ended
    result = load_settings().model_dump()
    wrong = {
        f"{section}__{field}": (result[section][field], number)
        for section, values in expected.items()
        for field, number in values.items()
        if result[section][field] != pytest.approx(number, rel=1e-5)
    }
    assert not wrong, "moved by hand, or fitted without a record"


@pytest.mark.parametrize("group", ORDER)
def test_record_is_of_the_constants_fitted_today(group: str) -> None:
    assert set(recorded()[group]["ended"]) == {free.name for free in FREE[group]}


def test_each_fit_begins_where_the_one_before_ended() -> None:
    content = tomllib.loads(START.read_text(encoding="utf-8"))
    assert {s: set(v) for s, v in content.items()} == {s: set(v) for s, v in Settings().model_dump().items()}
    for group in ORDER:
        for name, began in recorded()[group]["began"].items():
            assert value(content, name) == pytest.approx(began, rel=1e-5), f"{group}: {name}"


def test_no_constant_is_fitted_twice() -> None:
    names = [free.name for group in ORDER for free in FREE[group]]
    assert len(set(names)) == len(names)


BINS = cell_binning(EDGES)
SKY = Sky(flux_1_pev=6e-21, sharpness=5.0)


@pytest.fixture(scope="module")
def truth() -> SmoothTruth:
    events, thrown = simulated(200_000, 3, BINS)
    return SmoothTruth.of(events, thrown.counts.sum(axis=0), BINS, (-np.inf, -np.inf))


def test_every_mixture_is_there_once() -> None:
    result = {tuple(np.round(10 * each).astype(int)) for each in mixtures()}
    assert len(result) == 1001
    assert all(sum(each) == 10 for each in result)


def test_a_smooth_truth_stands_for_the_events_behind_it(truth: SmoothTruth) -> None:
    """A simulation drawn from it has its probabilities; scales move its counts; fluxes are those of the sky."""
    simulated_events, thrown = truth.simulation(np.random.default_rng(4))
    n = len(truth.copies.labels) / 9
    assert len(simulated_events.labels) == pytest.approx(n, abs=5 * np.sqrt(n))
    np.testing.assert_allclose(thrown, truth.thrown / 9)
    counts = truth.expected(SKY, np.zeros(3))
    particles = truth.particles(SKY)
    fine = (truth.cells.bins.fine[1:] + truth.cells.bins.fine[:-1]) / 2
    width = np.diff(10.0**truth.cells.bins.fine)
    np.testing.assert_allclose(particles, SKY.flux(fine)[:5] * width, rtol=0.02)
    assert counts.sum() < particles[:, fine > 15].sum()
    higher = truth.expected(SKY, np.array([1.0, 0, 0])).sum() / counts.sum()
    assert higher == pytest.approx(10 ** (1.8 * Widths().lg_energy), rel=0.05)


def test_a_sky_of_simulated_showers_has_the_fluxes_asked_for() -> None:
    pool = Response(*simulated(200_000, 3, BINS), ())
    pool = replace(pool, events=replace(pool.events, lg_ne=pool.events.lg_ne + 9, lg_nmu=pool.events.lg_nmu + 9))
    sky, exposure = drawn_sky(pool, make_cells(BINS, pool.passing), 0.0, seed=1)
    expected = weights(pool.passing, pool.thrown.counts.sum(axis=0), 0.0) * exposure
    places = BINS.bin_of(pool.passing.lg_energy)
    found = np.bincount(BINS.bin_of(sky.lg_energy), minlength=BINS.n_bins)
    counts = np.bincount(places[places >= 0], expected[places >= 0], minlength=BINS.n_bins)
    assert expected[places >= 0].max() == pytest.approx(1.0)
    assert np.all(np.abs(found - counts) < 5 * np.sqrt(counts) + 1)
    assert sky.groups == pool.events.groups
    assert not hasattr(sky, "labels")


def test_experiments_go_on_where_they_were_ended(tmp_path: Path) -> None:
    wanted = [{"kind": kind, "seed": seed} for seed in range(2) for kind in "ab"]
    first = Experiments(tmp_path / "new" / "found.jsonl", minutes=1)
    for one in wanted[:3]:
        first.keep({**one, "value": 0.5})
    again = Experiments(first.file, minutes=1)
    assert again.done == first.done
    assert list(again.each(wanted)) == [{"kind": "b", "seed": 1}]
    assert Experiments(first.file, minutes=0).missing(wanted) == []


def test_tables_of_experiments(truth: SmoothTruth) -> None:
    done = []
    for kind, drawn in (("exact_20000", False), ("drawn_20000", True)):
        for seed in range(2):
            one = spectra_experiment(truth, SKY, np.array(EDGES), seed, events=20_000, drawn=drawn)
            assert one["flux"]["n"] == 20
            assert 2 <= one["fraction"]["in68"] <= one["fraction"]["in95"] <= 20
            assert bool(np.any(one["scales"])) is drawn
            done.append({"kind": kind, **one})
    for seed, at in enumerate(((0, 2, 0), (2, 0, 0), (2, 0, 0), (-2, 0, 0), (-2, 0, 0))):
        again = spectra_experiment(truth, SKY, np.array(EDGES), seed, events=6_000, drawn=True, at=at)
        assert {True, False} >= set(again["rigidity"]["covers"])
        assert again["noisy"]["in68"] <= again["noisy"]["in95"] <= 20
        done.append({"kind": "again_6000", **again})
    del done[-1]["noisy"]
    done.append({"kind": "plateau", "ratio": [1.0] * 5, "error": [0.01] * 5})
    text = tables(done, {"train": 1, "test": 1, "learner": "quadratic_logit"})
    for words in (
        "fractions, scales drawn, 20,000",
        "share of iron, scales exact",
        "True lg R 15.643",
        "recovered over counted",
        "| muons off by 2 widths | 6,000 | 1 |",
        "| one scale off by 2 widths | 6,000 | 5 |",
        "* 6,000: ",
    ):
        assert words.lower() in text.lower(), words


def test_a_truth_of_pairs_moves_as_its_showers_did() -> None:
    """Showers whose sizes move by the scales' widths, and y with them: between the nodes they are parabolas."""
    events, thrown = simulated(60_000, 3, BINS)
    events = events.take((events.lg_ne > 4.9) & (events.lg_nmu > 3.8))
    assert events.true_lg_energy is not None
    assert events.model is not None
    n, widths = len(events), Widths()
    now = np.stack([events.lg_energy, events.lg_ne, events.lg_nmu, mass_summary(events.log_proba)], axis=1)
    values = np.empty((5, n, 4))
    for k, (muons, electrons) in enumerate(NODES):
        values[k] = now + np.array([0.0, electrons * widths.lg_electron, muons * widths.lg_muon,
                                       0.1 * muons - 0.1 * electrons + 0.01 * muons**2])  # fmt: skip
    pool = PairedPool(
        events.labels, events.true_lg_energy, events.zenith_deg, events.model, values, np.ones((5, n), dtype=bool),
        thrown.counts,
    )  # fmt: skip
    np.testing.assert_allclose(pool.at(1.0, 0.5)[:, 3], now[:, 3] + 0.1 - 0.05 + 0.01, atol=1e-9)
    truth = PairedTruth.of_pool(pool, BINS)
    np.testing.assert_allclose(truth.copies.y_moved[0], 0.1, atol=1e-6)
    np.testing.assert_allclose(truth.copies.y_moved[1], 0.01, atol=1e-6)
    plain = SmoothTruth(truth.cells, truth.copies, truth.thrown).expected(SKY, np.zeros(3))
    np.testing.assert_allclose(truth.expected(SKY, np.zeros(3)), plain, rtol=0.01, err_msg="but for rounding")
    one = spectra_experiment(truth, SKY, np.array(EDGES), 1, events=6_000, drawn=True, at=(0.0, 1.0, 0.0))
    assert one["scales"] == [0.0, 1.0, 0.0]
    assert one["ideal"]["in68"] <= one["ideal"]["in95"] <= one["ideal"]["n"] == 20
    assert one["all"]["n"] == 4
    assert 0.1 < one["all"]["error"] < 0.3
    assert 0 < one["chi2_of_truth"] < 80


def test_showers_of_a_pool_pass_the_cut_where_they_were_measured() -> None:
    """Sizes fluctuate from node to node: what a node's set lacks does not come back by the mean move."""
    rng, n, nodes = np.random.default_rng(4), 20_000, []
    whole = np.stack([np.full(n, 15.3), rng.normal(LG_NE_MIN, 0.2, n), np.full(n, 4.5), np.full(n, 2.0)])
    for _, electrons in NODES:
        now = whole.copy()
        now[1] += electrons * Widths().lg_electron + rng.normal(0, 0.05, n)
        there = np.flatnonzero(now[1] > LG_NE_MIN)
        columns = dict(zip(("lg_energy", "lg_ne", "lg_nmu", "y"), now[:, there], strict=True))
        fixed = {"labels": np.zeros(len(there), np.int64), "true_lg_energy": columns["lg_energy"],
                 "zenith_deg": np.zeros(len(there)), "model": np.zeros(len(there), np.int64)}  # fmt: skip
        nodes.append({"shower": there, "last": np.array(n), "thrown": np.ones((1, 5, 3)), **columns, **fixed})
    pool = pool_of_nodes(nodes)
    for k, node in enumerate(NODES):
        np.testing.assert_array_equal(pool.at(*node)[:, 1] > LG_NE_MIN, pool.measured[k])
    assert pool.measured[0].mean() < 0.9, "some are there at other nodes alone"


EVENTS = 1_500


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    settings = load_settings("default").changed(**everything())
    return pulls(World(settings, tmp_path_factory.mktemp("own"), EVENTS, 12).draw())


@pytest.mark.parametrize("quantity", ["core x", "core y", "lg Ne", "age", "lg Nmu"])
def test_fits_are_unbiased_and_their_errors_hold(own: dict[str, np.ndarray], quantity: str) -> None:
    result = own[quantity]
    assert len(result) > 700
    # Four standard errors; an effect of the simulation that the fits do not know moves sizes and ages by .5 and more.
    assert abs(np.median(result)) < 6 * 1.25 / np.sqrt(len(result))
    assert 0.8 < np.std(result[np.abs(result) < 5]) < 1.2


SMALL = {"n_train": 30, "n_test": 20, "seed": 1}


def test_another_seed_is_another_sample(tmp_path):
    first, second = (sample(COMPOSITION, tmp_path, **{**SMALL, "seed": seed}, workers=1) for seed in (1, 2))
    assert first != second
    grids = [np.asarray(Dataset.open(folder / "composition_test", COMPOSITION).matrices) for folder in (first, second)]
    assert not np.array_equal(*grids)
    assert [read_json(f / "composition_test" / SOURCE_FILE)["seed"] for f in (first, second)] == [1, 2]


def test_the_same_sample_is_drawn_once(tmp_path):
    folder = sample(COMPOSITION, tmp_path, **SMALL, workers=1)
    made = (folder / "composition_test" / SOURCE_FILE).stat().st_mtime_ns
    assert sample(COMPOSITION, tmp_path, **SMALL, workers=1) == folder
    assert (folder / "composition_test" / SOURCE_FILE).stat().st_mtime_ns == made


@pytest.mark.parametrize(
    "change",
    [{"n_train": 31}, {"n_test": 21}, {"seed": 2}, {"world": "harder"}, {"world": FOREIGN}, {"model": "qgs"},
     {"protocol": "matched"}],
)  # fmt: skip
def test_whatever_defines_the_showers_is_in_the_name(change):
    assert sample_name(COMPOSITION, **{**SMALL, **change}) != sample_name(COMPOSITION, **SMALL)


def test_the_foreign_sample_is_of_the_other_detector(tmp_path):
    ours, foreign = (sample(COMPOSITION, tmp_path, **SMALL, world=w, workers=1) for w in ("default", FOREIGN))
    grids = [np.asarray(Dataset.open(folder / "composition_test", COMPOSITION).matrices) for folder in (ours, foreign)]
    assert not np.array_equal(*grids)
    again = sample(COMPOSITION, tmp_path / "again", **SMALL, workers=1)
    np.testing.assert_array_equal(Dataset.open(again / "composition_test", COMPOSITION).matrices, grids[0])


@pytest.fixture
def learners() -> Learners:
    """Two copies of a learner that knows the truth with noise, one that knows other noise, one that knows nothing."""
    rng = np.random.default_rng(8)

    def said(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 5, n)
        first, second = (2.0 * np.eye(5)[labels] + rng.normal(0, 1.4, (n, 5)) for _ in range(2))
        return labels, np.stack([log_softmax(z) for z in (first, first, second, rng.normal(0, 1, (n, 5)))])

    (labels, z), (new_labels, new) = said(3000), said(4000)
    names = ("first", "copy", "second", "noise")
    truth = Truth(Path("nowhere"), new_labels.astype(np.int8), np.zeros(4000), np.zeros(4000))
    costs = ({name: float(k + 1) for k, name in enumerate(names)}, dict.fromkeys(names, 10.0))
    inner, test = (dict(zip(names, part, strict=True)) for part in (z, new))
    sample = Sample(labels, np.arange(3000) % 3)
    return Learners(COMPOSITION, inner, sample, test, truth, lambda log_proba: np.argmax(log_proba, axis=1), *costs)


def test_a_learner_is_worth_what_no_other_knows(learners: Learners) -> None:
    every = set(learners.inner)
    for gone, low, high in (
        ({"noise"}, -0.002, 0.002), ({"first"}, -1e-3, 1e-3), ({"copy"}, -1e-3, 1e-3), ({"second"}, 0.2, 0.6),
        ({"first", "copy"}, 0.2, 0.6),
    ):  # fmt: skip
        out_of_fold, test, error = learners.compared(tuple(every - gone), tuple(every))
        for paired in (out_of_fold, test):
            assert low < paired.difference < high, gone
            assert (paired.interval.low > 0) == (low > 0)
        assert error.interval.low <= error.difference <= error.interval.high
    expected = log_softmax(learners.test["first"] + learners.test["second"])
    _, pooled = learners.pools(("first", "second"))
    rows = np.arange(4000)
    gap = (expected - pooled)[rows, learners.truth.labels]
    assert abs(gap.mean()) < 0.01, "independent learners that are calibrated are multiplied"


def test_the_table_of_worth_begins_with_the_dearest(learners: Learners) -> None:
    lines = worth_table(learners, [("first", "copy")]).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    names = [row[0].removeprefix("| ").removesuffix(" (best)") for row in rows]
    assert names == ["noise", "second", "copy", "first", "first, copy", "all: 4"]
    assert [row[5] for row in rows] == ["4", "3", "2", "1", "3", "10"]
    assert [row[6] for row in rows] == ["40.0", "30.0", "20.0", "10.0", "30.0", "100"]


def test_tasks_and_constants_are_in_the_name(monkeypatch):
    name = sample_name(COMPOSITION, **SMALL)
    assert sample_name(GAMMA, **SMALL) != name
    monkeypatch.setattr("benchmarks.shared.samples.SIMULATION_VERSION", 0)
    assert sample_name(COMPOSITION, **SMALL) != name


SIZES = Sizes(matched=500, free=200, gamma=200, gamma_test=200)


def published(n: int = 5_000) -> Published:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, n)
    logits = rng.normal(0.0, 1.0, (n, 5)) - np.abs(labels[:, None] - np.arange(5))
    said = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Published("v1", PublishedNetwork(), labels, said.astype(np.float16))


def test_real_posteriors_do_not_deviate_and_others_do() -> None:
    real = published()
    target = PosteriorTarget(real)
    assert np.abs(target.deviations(real.labels, real.posteriors)).max() < 1e-6
    bolder = decisions(real.posteriors)
    assert (target.deviations(real.labels, bolder) ** 2).sum() > 100.0
    # Half of the events deviate by their sampling error, at most 2 to 3 tolerances.
    half = target.deviations(real.labels[::2], real.posteriors[::2])
    assert np.abs(half).max() < 5


def test_smooth_decisions_are_nearly_those_for_the_largest() -> None:
    real = published()
    smooth, hard = decisions(real.posteriors), np.eye(5)[real.posteriors.argmax(axis=1)]
    assert np.abs(smooth.mean(axis=0) - hard.mean(axis=0)).max() < 0.02
    assert smooth.sum(axis=1) == pytest.approx(1.0)


def problem(names: tuple[str, ...], start: dict[str, float], networks: tuple[Published, ...] = ()) -> Problem:
    free = [Free(name, 0.02, 0.1) for name in names]
    targets = [fact for fact in FACTS if fact.sample == MATCHED and fact.name in ("mean Ne", "mean Nmu")]
    settings = load_settings().changed(**start)
    return Problem(settings, free, targets, networks, (COMPOSITION,), sizes=SIZES, seed=3, workers=1)


def test_a_displaced_constant_is_found_again() -> None:
    base = load_settings()
    moved = problem(("cascade__lg_nmu_offset",), {"cascade__lg_nmu_offset": base.cascade.lg_nmu_offset + 0.08})
    kept = []
    fitted = fit(moved, 2, 1.0, kept.append)
    assert kept
    assert kept[-1].cascade.lg_nmu_offset == fitted[0]
    # Two facts against the prior's pull back to where the fit began.
    assert fitted[0] < base.cascade.lg_nmu_offset + 0.06


def test_constants_that_cannot_be_negative_stop_at_zero() -> None:
    at = problem(("detector__muon_stray", "cascade__lg_nmu_offset"), {})
    slope = np.array([[3000.0, 0.0], [0.0, 10.0]])
    step = next_step(at, at.origin, np.array([30.0, 30.0]), slope, 0.7)
    assert at.origin[0] + step[0] == pytest.approx(0.0, abs=1e-8)
    assert at.origin[0] + step[0] >= 0.0
    assert step[1] == pytest.approx(-0.07)


def test_networks_add_their_deviations() -> None:
    alone, watched = problem(("cascade__lg_nmu_offset",), {}), problem(("cascade__lg_nmu_offset",), {}, (published(),))
    result = watched.deviations(watched.origin)
    assert result[:2] == pytest.approx(alone.deviations(alone.origin))
    n_norms = sum(sums.size for sums in Moments(watched.networks[0].published.network).sums.values())
    assert len(result) == 2 + POSTERIORS + SCORES + n_norms
    assert watched.weights(result)[2:].tolist() == [1.0] * (POSTERIORS + SCORES + n_norms)


def test_a_judge_is_heard_and_pulls_at_nothing() -> None:
    network = published()
    targets = [fact for fact in FACTS if fact.sample == MATCHED and fact.name == "mean Ne"]
    free = [Free("cascade__lg_nmu_offset", 0.02, 0.1)]
    judged = Problem(
        load_settings(), free, targets, (), (COMPOSITION,), scorers=[network], sizes=SIZES, seed=3, workers=1
    )
    result = judged.deviations(judged.origin)
    assert len(result) == 1
    assert len(judged.judged[0]) > 96
    assert "v1: posteriors" in summary(judged, result, judged.origin)


def test_plain_moments_are_shifted_to_those_of_training() -> None:
    network = published()
    target = NetworkTarget(network)
    rng = np.random.default_rng(2)
    cells = torch.from_numpy(rng.exponential(1.0, (300, 2, 16, 16)).astype(np.float32))
    scalars = torch.from_numpy(rng.normal(0.0, 1.0, (300, 6)).astype(np.float32))
    visited = Look(target)
    visited.add(cells, scalars)
    target.calibrate(visited.norms(), cells, scalars)
    trained = norm_vector(norm_deviations(network.network, cells, scalars))
    assert visited.deviations(network.labels[:300])[POSTERIORS + SCORES :] == pytest.approx(trained, abs=1e-4)
    assert np.abs(visited.norms() - trained).max() > 0.01


def test_an_interrupted_fit_keeps_its_slopes(tmp_path: Path) -> None:
    names = ("cascade__lg_nmu_offset", "cascade__lg_ne_offset")
    whole, state = problem(names, {}), tmp_path / "slopes.npz"
    slope = jacobian(whole, whole.origin, 1.0, state)
    with np.load(state) as kept:
        np.savez(state, values=kept["values"], base=kept["base"], columns=kept["columns"][:1] + 1.0)
    again = jacobian(whole, whole.origin, 1.0, state)
    assert again[:, 0] == pytest.approx(slope[:, 0] + 1.0)
    assert again[:, 1] == pytest.approx(slope[:, 1])


def test_constants_are_pulled_to_the_monte_carlos_value() -> None:
    free = [Free("cascade__xmax_scale", 0.02, 0.1, centre=1.0)]
    pulled = Problem(load_settings(), free, [], (), (COMPOSITION,), sizes=SIZES, seed=3)
    assert pulled.pulls(np.array([0.8])) == pytest.approx([-2.0])


def test_epos_as_qgsjet_differs_by_chance_alone() -> None:
    start = load_settings().changed(cascade__epos_xmax=0.0, cascade__epos_lg_ne=0.0, cascade__epos_lg_nmu=0.0)
    free = [Free("cascade__epos_lg_ne", 0.02, 0.1)]
    sizes = replace(SIZES, free=4_000)
    same = ModelProblem(start, free, [published()], sizes=sizes, seed=3, workers=1)
    result = same.deviations(same.origin)
    assert result.shape == (5,)
    assert abs(result[4] * same.facts[4].tolerance + same.facts[4].real) < 0.15
    # Far fewer electrons: far fewer events pass.
    fewer = same.deviations(np.array([-0.3]))
    assert fewer[4] < result[4] - 1.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as published, of one network that was never trained and posteriors that say nothing."""
    torch.manual_seed(1)
    torch.save(PublishedNetwork().state_dict(), tmp_path / "model_v1_none.pt")
    rng = np.random.default_rng(1)
    said = rng.dirichlet(np.ones(5), 800).astype(np.float16)
    np.savez(tmp_path / "posteriors_real.npz", labels=rng.integers(0, 5, 800).astype(np.int8), v1=said)
    return tmp_path


def events(n: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    grids = rng.exponential(20.0, (n, 16, 16, 2)) * (rng.random((n, 16, 16, 2)) < 0.5)
    ne = rng.normal(5.2, 0.4, n)
    return inputs(grids, {"E": ne + 10, "Ze": 30 * rng.random(n), "Ne": ne, "Nmu": ne - 0.8, "Age": np.ones(n)})


def test_comparison_is_complete(folder: Path) -> None:
    (result,) = compare(load_networks(folder), load_settings(), n=400, workers=1)
    assert result.n == 400
    assert result.real_accuracy[1].low < result.real_accuracy[0] < result.real_accuracy[1].high
    assert set(result.areas) == {"all", "proton", "helium", "carbon", "silicon", "iron"}
    # Posteriors of an untrained network hardly vary; the others cover the simplex.
    assert result.areas["all"].area > 0.95
    assert 0.4 < result.floors["all"].area < 0.6
    assert len(result.norms) == 9
    console = Console(record=True, width=140)
    for table in network_tables(result):
        console.print(table)
    text = console.export_text()
    assert "iron called proton" in text
    assert "head.5" in text
    assert "posteriors below" in text


def test_two_networks_together_see_what_neither_sees_alone(folder: Path) -> None:
    (network,) = load_networks(folder)
    labels = network.labels[:400]
    # Each network's posteriors are as in the real data, but here the two always agree.
    rng = np.random.default_rng(4)
    real, other = (replace(network, posteriors=rng.dirichlet(np.ones(5), 800)) for _ in range(2))
    same = rng.dirichlet(np.ones(5), 400)
    views = [Mock(labels=labels, said=same) for _ in range(2)]
    together, _, floors = joint_areas([real, other], views)
    assert abs(two_sample(same, real.posteriors).area - 0.5) < 0.08
    assert together["all"].area > 0.8
    assert 0.4 < floors["all"].area < 0.6
    with pytest.raises(InputError, match="different real events"):
        joint_areas([real, replace(other, labels=other.labels[::-1])], views)


def test_what_differs_in_excluded_classes_only_is_left_out() -> None:
    rng = np.random.default_rng(5)

    def excluding(level: float, n: int) -> np.ndarray:
        first = rng.uniform(0.3, 0.6, n)
        rest = level * rng.uniform(0.5, 1.5, (n, 3))
        return np.column_stack([first, 1 - first - rest.sum(axis=1), rest]).astype(np.float16)

    a, b = excluding(0.010, 400), excluding(0.005, 400)
    assert two_sample(a, b).area > 0.9
    assert abs(two_sample(without_rare(a), without_rare(b)).area - 0.5) < 0.1
    both = without_rare(np.hstack([a, b]))
    np.testing.assert_allclose(both[:, :5], without_rare(a))
    np.testing.assert_allclose(both.sum(axis=1), 2.0, rtol=1e-5)
    assert (both[:, 2:5] == 0).all()


def test_running_moments_of_the_same_events_leave_no_deviation() -> None:
    torch.manual_seed(2)
    network = PublishedNetwork()
    cells, scalars = events(160)
    # The norms' own way of learning their moments; layer by layer, so that each sees what the ones before let pass.
    for _ in range(9):
        result = norm_deviations(network, cells, scalars)
        for name, module in network.named_modules():
            if name in result:
                sd = np.sqrt(module.running_var.numpy())
                module.running_mean += torch.from_numpy((result[name].mean * sd).astype(np.float32))
                module.running_var *= torch.from_numpy(np.exp(2.0 * result[name].ln_width).astype(np.float32))
    again = norm_deviations(network, cells, scalars)
    assert max(np.abs(d.mean).max() for d in again.values()) < 1e-3
    assert max(np.abs(d.ln_width).max() for d in again.values()) < 1e-3
    brighter = norm_deviations(network, cells + 1.0, scalars)
    assert np.abs(brighter["cnn.1"].mean).max() > 0.1
    assert np.abs(brighter["feat_mlp.1"].mean).max() < 1e-3


def test_comparing_leaves_the_network_as_it_was() -> None:
    torch.manual_seed(2)
    network = PublishedNetwork().eval()
    read = events(64)
    before = posteriors(network, *read)
    norm_deviations(network, *read)
    assert (posteriors(network, *read) == before).all()
    assert before.dtype == np.float16


def test_augmentation_keeps_what_it_must() -> None:
    cells, _ = events(1000)
    moved = augmented(cells, np.random.default_rng(1))
    # Cut-out in 3 of 10 events removes one cell of 16 there; noise has no mean; symmetries change no sum.
    assert float(moved.mean() / cells.mean()) == pytest.approx(1.0 - 0.3 / 16, abs=0.006)
    assert moved.shape == cells.shape
    assert float((moved == cells).all(dim=3).all(dim=2).all(dim=1).float().mean()) < 0.2


def test_state_dicts_that_carry_code_or_another_network_are_refused(folder: Path) -> None:
    file = folder / "model_v1_none.pt"
    torch.save(PublishedNetwork(), file)
    with pytest.raises(InputError, match="not the state dict"):
        load_networks(folder)
    torch.save({"weight": torch.zeros(3)}, file)
    with pytest.raises(InputError, match="not the state dict"):
        load_networks(folder)
    file.rename(folder / "model_v7_none.pt")
    with pytest.raises(InputError, match="lacks 'labels' or 'v7'"):
        load_networks(folder)
    (folder / "model_v7_none.pt").unlink()
    with pytest.raises(InputError, match=r"no model_\*\.pt"):
        load_networks(folder)
    (folder / "posteriors_real.npz").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_networks(folder)


def test_two_samples_are_told_apart_as_well_as_they_can_be() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.normal(mean, 1.0, (1500, 3)) for mean in (0.0, 0.0, 0.6))
    same, apart = two_sample(a, b), two_sample(a, c)
    assert same.interval.low - 0.05 < 0.5 < same.interval.high + 0.05
    best = norm.cdf(0.6 * np.sqrt(3) / np.sqrt(2))
    assert best - 0.1 < apart.area < best + 0.04


def test_information_of_a_reading_is_that_of_counts_and_of_normal_deposits() -> None:
    kinds = Kind(8.0, 1.5), Kind(8.0, 5.0)
    result = information(kinds, Kind(8.0, 0.0), 0.0, threshold_mev=0.5)
    alike = information((kinds[1], kinds[1]), Kind(8.0, 0.0), 0.0, threshold_mev=0.5)
    assert alike[0, 0, 0] == pytest.approx(1 / (2 * SMALLEST), rel=0.01), "a single hit is of either kind"
    assert 1 < result[0, 0, 0] / alike[0, 0, 0] < 2, "its deposit tells a little which"
    assert result[0, 12, 0] == pytest.approx(1 / np.geomspace(SMALLEST, LARGEST, KNOTS)[12], rel=0.05)
    np.testing.assert_allclose(result[:, -1, -1], normal_information(kinds, *np.full((2, 1), LARGEST))[:, 0], rtol=0.03)
    lost = information(kinds, Kind(8.0, 0.0), 0.0, threshold_mev=8.0)
    assert lost[0, 0, 0] < 0.5 * result[0, 0, 0], "what is below the threshold tells less"
    strays = information(kinds, kinds[0], 0.05, threshold_mev=0.5)
    assert strays[0, 0, 0] == pytest.approx(1 / 0.05, rel=0.1), "one of the first kind among so many strays like it"


def test_no_estimate_of_a_shower_is_better_than_counting_every_particle() -> None:
    settings = load_settings("default")
    events = simulate_block(BlockJob(COMPOSITION, "train", 3, "mix", "test", settings), 0)
    showers, rows = events.showers, events.rows[:40]
    errors = limit.covariance(showers, rows, settings)
    means, _ = limit.counts(showers, rows, settings)
    slopes = np.empty((5, *means.shape))
    for k, (name, step) in enumerate(limit.STEPS.items()):
        after, before = (limit.counts(limit.moved(showers, name, by), rows, settings)[0] for by in (step, -step))
        slopes[k] = (after - before) / (2 * step)
    counted = np.einsum("acns,bcns,cns->nab", slopes, slopes, 1 / np.maximum(means, 1e-12))
    best = np.linalg.inv(counted + np.diag(np.array(limit.WIDEST) ** -2.0))
    assert np.linalg.eigvalsh(errors - best).min() > 0, "deposits fluctuate, thresholds and strays hide"
    n_muons = means[2].sum(axis=1)
    relative = np.log(10) * np.sqrt(errors[:, 2, 2] * n_muons)
    assert 0.95 < np.median(relative) < 1.3, "the muon number from so many muons in the detectors"
    core = list(limit.STEPS).index("core_x_m")
    further = replace(showers, lg_ne=showers.lg_ne + 0.5, lg_nmu=showers.lg_nmu + 0.5)
    larger = limit.covariance(further, rows, settings)
    assert np.median(larger[:, core, core] / errors[:, core, core]) < 0.7, "more particles, a better core"


def test_networks_on_grids_learn_beside_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 600
    rng = np.random.default_rng(4)
    labels = rng.integers(0, COMPOSITION.n_classes, n)
    values = rng.normal(size=(n, len(limit.COLUMNS))).astype(np.float32)
    values[:, limit.COLUMNS.index("Nmu")] = labels
    empty = np.empty((n, 0), np.float32)
    showers = limit.Portion(labels, values, rng.random((n, 16, 16, 2)).astype(np.float16), empty, empty)
    monkeypatch.setattr(limit, "draw", lambda seed, number: showers)
    result = limit.with_few(["published.lenet"], [n], showers, tmp_path)
    said = result["published.lenet", n]
    assert (said.argmax(axis=1) == labels).mean() > 0.8, "the muon number tells the class"
    monkeypatch.delattr(limit, "create")  # the second time it is read
    again = limit.with_few(["published.lenet"], [n], showers, tmp_path)
    np.testing.assert_array_equal(again["published.lenet", n], said)
    known = {("pretrained", n): said, ("mlp", n): np.full_like(said, -np.log(COMPOSITION.n_classes))}
    gain = float(limit.with_more(known, labels, ["mlp", "pretrained"]).split(": ")[1].split()[0])
    assert gain == pytest.approx(said[np.arange(n), labels].mean() * -1 - np.log(COMPOSITION.n_classes), abs=1e-4)
    assert f"{gain:+.4f}".replace("-", "+") in limit.table(known, labels)


def test_a_streamed_training_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, COMPOSITION.n_classes, 700)
    values = (labels[:, None] + rng.normal(size=(700, 6))).astype(np.float32)
    empty = np.empty((700, 0), np.float32)
    showers = limit.Portion(labels, empty, empty, values, values)
    whole, begun = (limit.StreamedTraining.begun(limit.EXACT, showers, 3, tmp_path / name) for name in ("a", "b"))
    losses = [whole.learn(showers) for _ in range(3)]
    begun.learn(showers)
    begun.file.parent.mkdir()
    write_checkpoint(begun.file, begun.state)
    ended = limit.StreamedTraining.begun(limit.EXACT, showers, 3, tmp_path / "b")
    assert ended.state.epoch == 1
    assert [ended.learn(showers) for _ in range(2)] == losses[1:]
    np.testing.assert_array_equal(ended.log_proba(showers), whole.log_proba(showers))
    assert losses[2] < losses[0]
