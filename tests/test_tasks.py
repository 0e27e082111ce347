"""The third task from end to end: simulated, stacked, predicted, verified and reported as the others are.

Another detector array goes the same way: 12 x 12 equal stations, each with a muon detector. A target becomes bins with
equal numbers of events; estimates and errors are those of the posterior, and where a learner estimates the target
itself those of their pool, which reaches what known errors and correlations allow.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.special import softmax

import stacking
from features.build import build_table
from models.networks.data import cell_sources
from models.onnx.graph import NotPortable
from report.outcome import outcome
from runtime.context import Context, PlainConsole
from runtime.errors import InputError
from scoring.metrics.residuals import residual_metrics
from showers.array import DetectorArray, lattice, square_clusters
from showers.dataset import Dataset
from showers.schema import COMPOSITION, ENERGY
from showers.simulation import simulate
from showers.writer import write_dataset
from stacking.decide.base import DecisionSample
from stacking.decide.classes import stacking_of
from stacking.decide.target import OWN, POOL, EstimatePool, PosteriorMean
from stacking.export import combination_graph
from stacking.inputs.events import Binned, ShowerEvents, binned
from stacking.meta.scorers import LogLossScorer, OrderedScorer
from stacking.predict import predict
from stacking.run.config import StackConfig
from stacking.train import stack
from tests.report.conftest import make_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``energy_train`` (2,000 showers under the test's cuts) and ``energy_test`` (800)."""
    folder = tmp_path_factory.mktemp("energy")
    simulate(ENERGY, folder, n_train=2000, n_test=800, seed=5, train_cuts="test", workers=1)
    return folder


def test_labels_are_the_true_energies(data: Path) -> None:
    opened = Dataset.open(data / "energy_test", ENERGY)
    assert opened.labels is not None
    assert opened.labels.dtype == np.float32
    truth = pl.read_parquet(data / "energy_test" / "truth.parquet")["lg_energy"].to_numpy()
    np.testing.assert_array_equal(opened.labels, truth)


def test_a_stack_beats_the_reconstructed_energy(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    config = StackConfig(
        task="energy", data=data, run=run, preset="quick", learners=("quadratic_logit", "lightgbm"), folds=2,
        workers=1, device="cpu", fast=False, metas=("average", "log_pool", "greedy"),
    )  # fmt: skip
    stack(config)
    with np.load(run / "predictions.npz", allow_pickle=False) as stored:
        assert {"lg_energy", "lg_energy_error", "log_proba"} <= set(stored.files)
    PlainConsole().print(outcome(run, data).shown, soft_wrap=True)
    shown = capsys.readouterr().out
    assert "resolution" in shown
    assert "quadratic_logit" in shown


def test_what_is_predicted_and_scored_is_the_pool(data: Path, tmp_path: Path) -> None:
    config = StackConfig(
        task="energy", data=data, run=tmp_path / "run", preset="quick", learners=("quadratic_logit", "pretrained"),
        folds=2, workers=1, device="cpu", fast=False, metas=("log_pool",), settings={"pretrained": {"epochs": 1}},
    )  # fmt: skip
    result = stack(config)
    assert result.predictions is not None
    assert result.manifest["decision"]["chosen"] == POOL
    run = stacking.load(result.run)
    arrays = result.predictions.arrays
    again = predict(run, data / "energy_test", Context(device="cpu", trusted=True)).concatenated()
    for name in ("lg_energy", "lg_energy_error"):
        np.testing.assert_array_equal(run.test(run.shipped, name), arrays[name])
        np.testing.assert_array_equal(again.arrays[name], arrays[name])
    missed = arrays["lg_energy"] - np.load(data / "energy_test" / "labels_energy.npy")
    assert np.std(missed) < 0.9 * result.manifest["decision"]["posterior_mean"]["rms"]
    assert np.mean(np.abs(missed) < arrays["lg_energy_error"]) == pytest.approx(0.683, abs=0.05)
    with pytest.raises(NotPortable, match="pool of estimates"):
        combination_graph(run.chain)
    fit = (result.run / "learners" / "pretrained" / "fold-0" / "learner.json").stat().st_mtime_ns
    stack(config.model_copy(update={"prune": 0.0}))
    assert (result.run / "learners" / "pretrained" / "fold-0" / "learner.json").stat().st_mtime_ns == fit, "continued"


SIDE, PITCH_M = 12, 15.0
X_M, Y_M = lattice(SIDE, PITCH_M)
ARRAY = DetectorArray(
    name="twelve",
    pitch_m=PITCH_M,
    x_m=X_M,
    y_m=Y_M,
    electron_area_m2=np.full((SIDE, SIDE), 2.0),
    muon_area_m2=np.full((SIDE, SIDE), 3.0),
    cluster=square_clusters(SIDE, 4),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("twelve")
    return simulate(COMPOSITION, out, n_train=700, n_test=200, seed=5, train_cuts="test", array=ARRAY, workers=1)


def test_dataset_carries_its_array(folders):
    data = Dataset.open(folders[0])
    assert data.array == ARRAY
    assert data.matrices.shape == (700, SIDE, SIDE, 2)
    # Muon detectors everywhere: also where KASCADE has none.
    assert (data.matrices[:, 4:8, 4:8, 1] > 0).any()


def test_fits_find_core_and_size(folders):
    table = pl.read_parquet(build_table(folders[0], ctx=Context(workers=1)).parts())
    truth = pl.read_parquet(folders[0] / "truth.parquet")
    inside = (np.abs(truth["core_x_m"].to_numpy()) < 80) & (np.abs(truth["core_y_m"].to_numpy()) < 80)
    core = np.hypot(table["fit_core_x_m"] - truth["core_x_m"], table["fit_core_y_m"] - truth["core_y_m"]).to_numpy()
    assert np.nanmedian(core[inside]) < 5.0
    size = (table["fit_lg_ne"] - truth["lg_ne"]).to_numpy()[inside]
    assert abs(np.nanmedian(size)) < 0.1
    assert np.nanstd(size) < 0.25


def test_stack_with_a_network_on_the_grids(folders, tmp_path):
    config = StackConfig(
        task="composition",
        data=folders[0].parent,
        run=tmp_path / "run",
        learners=("lightgbm", "lenet"),
        fast=False,
        folds=2,
        workers=1,
        settings={"lenet": {"epochs": 2}},
    )
    result = stack(config)
    assert [row.get("error") for row in result.manifest["learners"]] == [None, None]
    labels = np.load(folders[1] / COMPOSITION.label_file)
    log_proba = result.predictions.log_proba
    assert -log_proba[np.arange(len(labels)), labels].mean() < np.log(5) - 0.1


def test_symmetries_need_a_symmetric_array():
    assert np.array_equal(np.sort(cell_sources(ARRAY), axis=1)[3], np.arange(ARRAY.n_cells))
    area = np.full((SIDE, SIDE), 2.0)
    area[0, 1] = 1.0
    lopsided = DetectorArray("lopsided", PITCH_M, X_M, Y_M, area, ARRAY.muon_area_m2, ARRAY.cluster)
    with pytest.raises(InputError, match="lopsided is not symmetric"):
        cell_sources(lopsided)


RNG = np.random.default_rng(1)


@pytest.fixture
def target_data(tmp_path: Path) -> Path:
    """A folder whose true energies lie 0.1 above the reconstructed ones, give or take 0.05."""
    folder = make_dataset(tmp_path / "energy_train", ENERGY, np.full(3000, 15.0), np.random.default_rng(2))
    (folder / "checksums.json").unlink()
    reconstructed = np.load(folder / "features.npy")[:, 0].astype(np.float32)
    true = reconstructed + np.random.default_rng(3).normal(0.1, 0.05, 3000)
    np.save(folder / "labels_energy.npy", true.astype(np.float32))
    return folder


def test_bins_hold_equal_numbers_of_events_under_the_cuts(target_data: Path) -> None:
    opened = Dataset.open(target_data, ENERGY)
    result = binned(opened)
    passing = opened.evaluation_cuts.mask(opened.scalar_frame())
    assert 0 < passing.sum() < 3000
    counts = np.bincount(result.labels[passing], minlength=ENERGY.n_classes)
    assert counts.max() - counts.min() <= 1
    assert result.offsets.mean() == pytest.approx(0.1, abs=0.005)
    events = ShowerEvents(target_data, target_data, ENERGY, labelled=True)
    np.testing.assert_array_equal(events.labels(), result.labels)
    with pytest.raises(InputError, match="labels are not read here"):
        ShowerEvents(target_data, target_data, ENERGY).offsets()


def test_mean_and_width_are_those_of_the_mixture() -> None:
    values, bins = np.array([0.0, 2.0, 10.0, 14.0]), np.array([0, 0, 1, 1])
    rule = PosteriorMean.of(values, bins, 2)
    estimate, error = rule(np.log([[0.5, 0.5], [1.0, 1e-300]]))
    np.testing.assert_allclose(estimate, [values.mean(), 1.0])
    np.testing.assert_allclose(error, [values.std(), 1.0])
    again = PosteriorMean.from_json(json.loads(json.dumps(rule.as_json())))
    np.testing.assert_array_equal(again(np.log([[0.3, 0.7]])), rule(np.log([[0.3, 0.7]])))


def test_a_pool_by_hand() -> None:
    # Strength over error squared: 2 / 1 and 0.5 / 4, so 16 / 17 and 1 / 17.
    pool = EstimatePool(
        ("a", "b"), np.array([2.0, 0.5]), np.array([0.5, -1.0]), np.array([[1.0, 0.5], [0.5, 1.0]]), 3.0
    )
    errors = np.array([[1.0], [2.0]])
    assert pool.shares(errors) == pytest.approx({"a": 16 / 17, "b": 1 / 17})
    estimate, error = pool(np.array([[2.5], [18.0]]), errors)
    np.testing.assert_allclose(estimate, (16 * 2.0 + 19.0) / 17)
    np.testing.assert_allclose(error, 3.0 * np.sqrt(16**2 + 16 * 2 + 2**2) / 17)


def _two_estimates(n: int, errors: np.ndarray, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates (2, n), biased by .05 and -.02, of (n,) true values, and those."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 0.3, n)
    noise = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], n).T
    return truth + np.array([[0.05], [-0.02]]) + errors * noise, truth


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7])
def test_a_pool_of_two_estimates_reaches_the_theoretical_error(correlation: float) -> None:
    first, second = 0.1, 0.08
    errors = np.array([[first], [second]]) * np.ones(20_000)
    pool = EstimatePool.of(("a", "b"), *_inputs(errors, correlation, 1))
    again = EstimatePool.from_json(json.loads(json.dumps(pool.as_json())))
    values, truth = _two_estimates(20_000, errors, correlation, 2)
    estimate, error = again(values, errors)
    least = (first * second) ** 2 * (1 - correlation**2) / (first**2 + second**2 - 2 * correlation * first * second)
    assert np.sqrt(np.mean((estimate - truth) ** 2)) == pytest.approx(np.sqrt(least), rel=0.02)
    assert np.std((estimate - truth) / error) == pytest.approx(1.0, abs=0.03)
    assert abs(np.mean(estimate - truth)) < 0.003
    assert sum(pool.shares(errors).values()) == pytest.approx(1.0)


def _inputs(errors: np.ndarray, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, truth = _two_estimates(errors.shape[1], errors, correlation, seed)
    return values, errors, truth


def test_a_pool_learns_from_showers_by_their_weight() -> None:
    """Half of the showers weigh nearly nothing; there the first estimate is far better, elsewhere the second."""
    errors = np.full((2, 20_000), 0.1)
    light = np.arange(20_000) % 2 == 0
    scatter = np.where(light, [[0.02], [0.5]], [[0.5], [0.02]])
    values, truth = _two_estimates(20_000, scatter, 0.0, 5)
    weights = np.where(light, 1e-6, 1.0)
    pool = EstimatePool.of(("a", "b"), values, errors, truth, weights)
    estimate, error = pool(values, errors)
    assert np.std((estimate - truth)[~light]) == pytest.approx(0.02, rel=0.05)
    assert np.std(((estimate - truth) / error)[~light]) == pytest.approx(1.0, abs=0.05)
    unweighted, _ = EstimatePool.of(("a", "b"), values, errors, truth)(values, errors)
    assert np.std((unweighted - truth)[~light]) > 0.1


def test_an_estimate_gives_way_in_showers_of_which_it_knows_little() -> None:
    errors = np.full((2, 20_000), 0.1)
    errors[0, ::5] = 1.0  # as in an open bin
    values, _, truth = _inputs(errors, 0.0, 3)
    pool = EstimatePool.of(("bins", OWN), values, errors, truth)
    values, truth = _two_estimates(20_000, errors, 0.0, 4)
    estimate, error = pool(values, errors)
    known = np.arange(20_000) % 5 != 0
    for rows, expected in ((known, 0.1 / np.sqrt(2)), (~known, 0.1 / np.sqrt(1.01))):
        assert np.std((estimate - truth)[rows]) == pytest.approx(expected, rel=0.04)
        assert np.std(((estimate - truth) / error)[rows]) == pytest.approx(1.0, abs=0.05)
    constant = min(np.std(w * values[0] + (1 - w) * values[1] - truth) for w in np.linspace(0, 1, 101))
    assert np.std(estimate - truth) < 0.9 * constant


def test_an_energy_run_ships_the_pool_with_the_learners_own_estimate() -> None:
    procedure, rng = stacking_of(ENERGY), np.random.default_rng(6)
    offsets = np.where(rng.random(6000) < 0.9, rng.normal(0, 0.1, 6000), rng.normal(0, 0.5, 6000))
    blurred = offsets + rng.normal(0, 0.05, 6000)
    labels = np.argsort(np.argsort(offsets)) * ENERGY.n_classes // len(offsets)
    centres = np.array([offsets[labels == k].mean() for k in range(ENERGY.n_classes)])
    log_proba = np.log(softmax(-((blurred[:, None] - centres) ** 2) / 0.01, axis=1))
    own = np.stack([offsets + rng.normal(0, 0.05, 6000), np.full(6000, 0.05)])
    held_out = DecisionSample(
        {"stack": log_proba}, "stack", labels, np.arange(6000) % 5, None, offsets=offsets,
        training=Binned(offsets, labels), own=own,
    )  # fmt: skip
    record, rules = procedure.decide(held_out, Path("nowhere"), lambda *_: None)
    assert record["chosen"] == POOL
    assert record["held_out"]["rms"] < 0.06 < record["posterior_mean"]["rms"], "open bins know no distance"
    assert record["held_out"]["rms"] < np.std(own[0] - offsets)
    assert record["held_out_in_errors"]["resolution"] == pytest.approx(1.0, abs=0.03)
    plain = PosteriorMean.of(offsets, labels, ENERGY.n_classes)(log_proba)
    assert record["held_out_in_widths"] == residual_metrics((plain[0] - offsets) / plain[1])
    assert record["posterior_mean"] == residual_metrics(plain[0] - offsets)
    context = np.column_stack([np.linspace(14, 16, 6000), np.zeros((6000, 3))])
    stored = {name: procedure.rule_from_json(json.loads(json.dumps(rule.as_json()))) for name, rule in rules.items()}
    estimates = {"lg_energy": own[0] + context[:, 0], "lg_energy_error": own[1]}
    arrays = procedure.pooled(stored, {"stack": log_proba}, estimates, context)
    missed = arrays["lg_energy"] - context[:, 0] - offsets
    assert np.sqrt(np.mean(missed**2)) == pytest.approx(record["held_out"]["rms"], rel=0.02)
    assert np.mean(np.abs(missed) < arrays["lg_energy_error"]) == pytest.approx(0.683, abs=0.02)
    assert procedure.pooled(stored, {"stack": log_proba}, {}, context) == {}, "the student has no estimate of its own"
    without = replace(held_out, own=None)
    assert set(procedure.decide(without, Path("nowhere"), lambda *_: None)[1]) == {"stack"}


def test_estimates_start_from_the_reconstructed_energy() -> None:
    procedure = stacking_of(ENERGY)
    offsets = RNG.normal(0, 0.1, 6000)
    labels = np.argsort(np.argsort(offsets)) * ENERGY.n_classes // len(offsets)
    sharp = np.where(labels[:, None] == np.arange(ENERGY.n_classes), 0.0, -40.0)
    held_out = DecisionSample(
        {"stack": sharp}, "stack", labels, labels % 2, None, offsets=offsets, training=Binned(offsets, labels)
    )
    record, rules = procedure.decide(held_out, Path("nowhere"), lambda *_: None)
    assert record["held_out"]["resolution"] < 0.02
    assert record["held_out_in_widths"]["rms"] == pytest.approx(1.0, abs=0.05)
    context = np.column_stack([np.linspace(14, 16, 6000), np.zeros((6000, 3))])
    result = procedure.arrays(rules["stack"], sharp, context)
    assert list(result) == ["lg_energy", "lg_energy_error"]
    missed = result["lg_energy"] - context[:, 0] - offsets
    assert np.std(missed) < 0.03
    assert np.mean(np.abs(missed) < result["lg_energy_error"]) == pytest.approx(0.683, abs=0.02)
    assert [column.name for column in procedure.columns(result, ENERGY)] == list(result)


def test_greedy_selection_sees_the_distance_of_bins() -> None:
    labels = np.zeros(100, int)
    near, far = (np.log(np.tile(p, (100, 1))) for p in ([0.4, 0.5, 0.1], [0.4, 0.1, 0.5]))
    scorer = OrderedScorer()
    assert scorer.metric(near, labels) < scorer.metric(far, labels)
    assert scorer.loss(near, labels) == scorer.loss(far, labels) == LogLossScorer().loss(near, labels)
    certain = np.log([[1.0, 1e-300, 1e-300]])
    assert scorer.metric(certain, np.array([0])) == 0.0


def test_true_values_that_cannot_be_are_refused(target_data: Path, tmp_path: Path) -> None:
    values = np.load(target_data / "labels_energy.npy")
    values[17] = 8.0
    np.save(target_data / "labels_energy.npy", values)
    with pytest.raises(InputError, match=r"labels_energy.npy: row 17 holds 8, expected lg\(E/eV\) from 13 to 19"):
        Dataset.open(target_data, ENERGY)
    (target_data / "labels_energy.npy").unlink()
    with pytest.raises(InputError, match="the public sets hold no true values"):
        Dataset.open(target_data, ENERGY)
    with write_dataset(tmp_path / "made", 2, ENERGY, source={}) as writer:
        writer.put(0, np.zeros((2, 16, 16, 2)), np.full((2, 5), 15.0), np.array([15.25, 15.5]))
    np.testing.assert_array_equal(np.asarray(Dataset.open(tmp_path / "made", ENERGY).labels), [15.25, 15.5])
