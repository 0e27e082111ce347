"""The small parts: posteriors, inputs, symmetries, registry, averages, saved headers, devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from showerstack.models import registry
from showerstack.models.base.average import LearnerAverage
from showerstack.models.base.inputs import TARGETS, InputTransform, signed_log, soft_tail, targets_of
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.posterior import (
    class_weight_vector,
    event_log_loss,
    log_of_margins,
    log_sigmoid_pair,
    log_softmax,
    undo_training_prior,
)
from showerstack.models.base.saving import HEADER_FILE, plain
from showerstack.models.networks import data as augmentation
from showerstack.models.networks.data import EventTensors, GridSource, move_grids, move_vectors
from showerstack.models.networks.modes import torch_as_asked
from showerstack.models.networks.physics import TabularMLP
from showerstack.models.pretraining.weights import SHIPPED, read_pretrained
from showerstack.models.registry import LEARNERS, device_for, device_remarks, devices_for, learner_class, spec
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.models.tables.sklearn import RegressionForest
from showerstack.models.tables.xgboost import check_ran_on_cuda
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from showerstack.showers.schema import COMPOSITION, GAMMA

CLASSES = COMPOSITION.classes


def test_undoing_smoothing_and_weights_gives_back_the_posterior() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(5), size=200)
    weights, smoothing = rng.uniform(0.2, 5.0, 5), 0.1
    q = weights * ((1 - smoothing) * p + smoothing / 5)
    log_q = np.log(q / q.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(np.exp(undo_training_prior(log_q, weights, smoothing)), p, atol=1e-5)
    assert undo_training_prior(log_q) is log_q or np.array_equal(undo_training_prior(log_q), log_q)


def test_undoing_smoothing_of_an_impossible_class_stays_finite() -> None:
    log_q = np.log(np.array([[0.01, 0.99]]))
    log_p = undo_training_prior(log_q, None, 0.1)
    assert np.all(np.isfinite(log_p))
    assert log_p[0, 0] < np.log(1e-5)


def test_margins_do_not_saturate() -> None:
    log_p = log_sigmoid_pair(np.array([-800.0, 0.0, 40.0, 41.0]))
    assert np.all(np.isfinite(log_p))
    np.testing.assert_allclose(log_p[1], np.log(0.5))
    assert log_p[3, 0] - log_p[2, 0] == pytest.approx(-1.0)
    np.testing.assert_allclose(log_softmax(np.array([[0.0, 1000.0]])), [[-1000.0, 0.0]])


@pytest.mark.parametrize(
    ("setting", "message"),
    [("equal", "balanced"), ([1, 2], "5 positive"), ([1, 1, 1, 1, 0], "positive"), ({"proton": 1.0}, "exactly")],
)
def test_bad_class_weights_are_refused(setting: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        class_weight_vector(setting, np.arange(5), CLASSES)


def test_margins_of_two_classes_are_the_logit_of_the_second() -> None:
    logit = np.array([-1.0, 0.0, 2.0])
    expected = np.log(np.column_stack([1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))]))
    for margins in (logit, logit[:, None], np.column_stack([np.zeros(3), logit])):
        np.testing.assert_allclose(log_of_margins(margins), expected)


def test_balanced_weights_give_every_class_the_same_mass() -> None:
    labels = np.repeat(np.arange(5), [10, 20, 30, 40, 50])
    weights = class_weight_vector("balanced", labels, CLASSES)
    assert weights is not None
    np.testing.assert_allclose(np.bincount(labels) * weights, 30.0)


def test_symmetries_are_the_eight_of_the_square() -> None:
    matrices = augmentation.SYMMETRIES
    assert len({tuple(m.ravel()) for m in matrices}) == 8
    np.testing.assert_allclose(matrices @ matrices.transpose(0, 2, 1), np.broadcast_to(np.eye(2), (8, 2, 2)))
    np.testing.assert_array_equal(augmentation.cell_sources(KASCADE)[0], np.arange(256))
    for sources in augmentation.cell_sources(KASCADE):
        np.testing.assert_array_equal(np.sort(sources), np.arange(256))
        np.testing.assert_array_equal(KASCADE.has_station.ravel()[sources], KASCADE.has_station.ravel())
        np.testing.assert_array_equal(KASCADE.has_muon.ravel()[sources], KASCADE.has_muon.ravel())


def test_moved_grids_have_moved_centroids() -> None:
    grids = torch.from_numpy(np.random.default_rng(2).random((8, 16, 16, 2)).astype(np.float32))
    symmetry = torch.arange(8)
    moved = augmentation.move_grids(grids, symmetry)

    def centroid(cells: torch.Tensor) -> np.ndarray:
        each = cells.numpy().astype(np.float64)[..., 0]
        return np.stack([(each * KASCADE.x_m).sum(axis=(1, 2)), (each * KASCADE.y_m).sum(axis=(1, 2))], axis=1)

    expected = np.einsum("nij,nj->ni", augmentation.SYMMETRIES, centroid(grids))
    np.testing.assert_allclose(centroid(moved), expected, atol=1e-3)
    np.testing.assert_allclose(moved.sum(dim=(1, 2)), grids.sum(dim=(1, 2)), rtol=1e-5)
    vectors = torch.from_numpy(centroid(grids).astype(np.float32))
    np.testing.assert_allclose(augmentation.move_vectors(vectors, ((0, 1),), symmetry), expected, rtol=1e-4, atol=1e-2)


def table_batch(**columns: np.ndarray) -> Batch:
    table = np.asfortranarray(np.column_stack(list(columns.values())).astype(np.float32))
    return Batch(index=np.arange(len(table)), table=table, columns=tuple(columns))


def test_inputs_are_of_order_one_finite_and_flagged() -> None:
    rng = np.random.default_rng(3)
    gap = np.where(rng.random(4000) < 0.2, np.nan, rng.normal(50.0, 3.0, 4000))
    batch = table_batch(
        plain=rng.normal(5.0, 0.1, 4000),
        heavy=rng.pareto(0.7, 4000) * rng.choice([-1, 1], 4000),
        gap=gap,
        constant=np.full(4000, 2.0),
        empty=np.full(4000, np.nan),
    )
    transform = InputTransform.fit(batch, batch.columns)
    assert transform.plain == ("plain", "heavy", "gap")
    assert transform.flagged == ("gap",)
    assert transform.log_scale[1] > 0 == transform.log_scale[0]
    inputs = transform.apply(batch)
    assert inputs.shape == (4000, 4)
    assert np.all(np.isfinite(inputs))
    assert np.abs(inputs).max() <= 4.0
    assert np.all(np.abs(inputs.std(axis=0)[:2] - 1) < 0.35)
    np.testing.assert_array_equal(inputs[:, 3], np.isnan(gap))
    again = InputTransform.from_state(json.loads(json.dumps(plain(transform.state()))))
    np.testing.assert_array_equal(again.apply(batch), inputs)


def test_networks_tell_the_highest_energies_apart() -> None:
    # A spectrum as steep as the measured one: lg E - 14.9 is exponential with index 1.7 a decade, times ln 10.
    lg_energy = 14.9 + np.random.default_rng(5).exponential(1 / (1.7 * np.log(10)), 4000)
    events = replace(table_batch(E=lg_energy, x=lg_energy[::-1]), labels=np.arange(4000) % 2)
    highest = table_batch(E=np.array([16.8, 17.2]), x=np.zeros(2))
    assert np.ptp(InputTransform.fit(events, events.columns).apply(highest)[:, 0]) == 0
    learner = TabularMLP(("a", "b"), {"epochs": 1, "width": 8, "hidden": 8}).fit(
        events, events.take(np.arange(500)), seed=1
    )
    assert learner.inputs_ is not None
    below, above = learner.inputs_.apply(highest)[:, 0]
    scale = InputTransform.fit(events, ("E",))
    assert scale.log_scale[0] == 0
    expected = [3 + np.log1p((e - scale.centre[0]) / scale.width[0] - 3) for e in (16.8, 17.2)]
    np.testing.assert_allclose([below, above], expected, rtol=1e-6)
    assert above - below > 0.1
    again = InputTransform.from_state(json.loads(json.dumps(plain(learner.inputs_.state()))))
    np.testing.assert_array_equal(again.apply(highest), learner.inputs_.apply(highest))
    assert read_pretrained(SHIPPED).inputs.tail == "logarithm"


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20, unique=True))
def test_a_soft_tail_keeps_order_sign_and_the_centre(values: list[float]) -> None:
    x = np.sort(values)
    soft = soft_tail(x)
    assert np.all(np.diff(soft) >= 0)
    np.testing.assert_array_equal(soft_tail(-x), -soft)
    inside = np.abs(x) <= 3
    np.testing.assert_array_equal(soft[inside], x[inside])
    assert np.all(np.abs(soft) < 20)


def test_direction_and_core_enter_as_vectors() -> None:
    batch = table_batch(
        Ze=np.array([30.0, 30.0, 10.0]),
        Az=np.array([0.0, 90.0, 359.0]),
        fit_core_x_m=np.array([50.0, -25.0, np.nan]),
        fit_core_y_m=np.array([0.0, 10.0, np.nan]),
    )
    transform = InputTransform.fit(batch, batch.columns)
    assert transform.vectors == (("fit_core_x_m", "fit_core_y_m"), ("Ze", "Az"))
    inputs = transform.apply(batch)
    (core, direction) = (inputs[:, list(pair)] for pair in transform.pairs)
    np.testing.assert_allclose(core, [[1, 0], [-0.5, 0.2], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(direction[:2], [[1, 0], [0, 1]], atol=1e-6)


def test_inputs_by_their_formula() -> None:
    np.testing.assert_allclose(signed_log(np.array([-6.0, 0.0, 14.0]), 2.0), [-np.log(4.0), 0.0, np.log(8.0)])
    np.testing.assert_array_equal(signed_log(np.array([-6.0, 14.0]), 0.0), [-6.0, 14.0])
    columns = {"a": [1.0, 5.0, 100.0], "fit_core_x_m": [50.0, 500.0, 0.0], "fit_core_y_m": [0.0, -500.0, 25.0]}
    batch = table_batch(**{name: np.array(values) for name, values in columns.items()})
    fitted = InputTransform.fit(batch, batch.columns)
    known = replace(
        fitted, flagged=("a",), log_scale=np.array([2.0]), centre=np.array([np.log(1.5)]), width=np.array([0.5])
    )
    inputs = known.apply(batch)
    assert known.n_inputs == inputs.shape[1] == 4
    np.testing.assert_allclose(inputs[:, 0], [0.0, 2.0 * np.log(3.5 / 1.5), 4.0], rtol=1e-6)
    np.testing.assert_allclose(inputs[:, 1:], [[1, 0, 0], [4, -4, 0], [0, 0.5, 0]])
    absent = replace(known, absent=("a",)).apply(batch)
    np.testing.assert_array_equal(absent[:, [0, 3]], [[0, 1]] * 3)
    with pytest.raises(InputError, match=r"lack 1 of the 3 columns .*: a"):
        known.apply(table_batch(**{name: np.array(values) for name, values in columns.items() if name != "a"}))


def test_scales_are_the_quantiles_of_the_training_events() -> None:
    values = np.linspace(0.0, 100.0, 2001)
    heavy = np.where(np.arange(2001) % 100 == 0, 1e4, values)
    fitted = InputTransform.fit(table_batch(even=values, heavy=heavy), ("even", "heavy"))
    np.testing.assert_allclose([fitted.centre[0], fitted.width[0], fitted.log_scale[0]], [50.0, 34.0, 0.0], atol=1e-4)
    scale = np.median(heavy)
    squeezed = np.log1p(heavy / scale)
    low, high = np.quantile(squeezed, [0.16, 0.84])
    np.testing.assert_allclose(
        [fitted.log_scale[1], fitted.centre[1], fitted.width[1]], [scale, np.log(2.0), (high - low) / 2], rtol=1e-5
    )


@pytest.mark.parametrize(("far", "heavy"), [(4, False), (5, True)])
def test_a_tail_is_heavy_by_its_outermost_thousandth(far: int, heavy: bool) -> None:
    for sign in (-1.0, 1.0):
        values = sign * np.linspace(-1.0, 1.0, 4001)
        values[:far] = -sign * 1e4  # the event of rank 4, from 0, is the quantile 0.001 of 4,001
        assert (InputTransform.fit(table_batch(x=values), ("x",)).log_scale[0] > 0) == heavy


def test_a_flag_is_for_columns_that_lack_more_than_one_in_two_hundred() -> None:
    values = np.linspace(0.0, 1.0, 400)
    some = {f"missing{n}": np.where(np.arange(400) < n, np.nan, values) for n in (0, 1, 2, 3)}
    assert InputTransform.fit(table_batch(**some), tuple(some)).flagged == ("missing3",)


def test_true_quantities_by_hand() -> None:
    names = [target.name for target in TARGETS]
    truth = pl.DataFrame(
        {
            "lg_energy": [15.8, 15.4, 30.0], "lg_ne": [5.6, 5.1, 5.1], "lg_nmu": [3.9, 4.4, 4.4],
            "xmax": [610.0, 550.0, 550.0], "age": [1.12, 1.0, 1.0], "mass": [56.0, 0.0, 1.0],
            "core_x_m": [35.0, 1.0, -20.0], "core_y_m": [42.0, 40.0, 0.0],
        }
    )  # fmt: skip
    # The first fitted core is (30, 40): outward is (0.6, 0.8), to the left of it (-0.8, 0.6).
    result = targets_of(truth, np.array([30.0, 0.0, -20.0]), np.array([40.0, 40.0, 0.0]))
    assert result.dtype == np.float32
    expected = [
        1.0,
        1.0,
        -1.0,
        1.0,
        1.0,
        (np.log10(56.0) - 0.9) / 0.65,
        (5 * 0.6 + 2 * 0.8) / 2,
        (2 * 0.6 - 5 * 0.8) / 2,
    ]
    np.testing.assert_allclose(result[0], expected, rtol=1e-5)
    np.testing.assert_allclose(result[1], [0, 0, 0, 0, 0, np.nan, 0.0, -0.5], atol=1e-6)
    np.testing.assert_allclose(result[2], [6, 0, 0, 0, 0, -0.9 / 0.65, 0, 0], atol=1e-6)
    whole = targets_of(truth, np.array([30.0, 0.0, 20.0]), np.array([40.0, 40.0, 0.0]), limit=np.inf)
    np.testing.assert_allclose(whole[2, [0, 6]], [(30.0 - 15.4) / 0.4, -40.0 / 2])
    assert names[-2:] == ["core_outward_m", "core_sideways_m"]


def test_registry_names_what_exists() -> None:
    with pytest.raises(InputError, match=r"unknown learner 'lihgtgbm'.*lightgbm"):
        registry.spec("lihgtgbm")
    with pytest.raises(InputError, match="unknown preset"):
        registry.spec("lightgbm").settings_for("fast")
    names = {entry["name"] for entry in registry.rows()}
    assert names == set(registry.LEARNERS)
    assert {"published.lenet", "published.gamma_ensemble", "published.hit_transformer", "mlp"} <= names
    assert [registry.spec(name).kind for name in ("lightgbm", "lenet_fits")] == ["lightgbm", "images"]


@pytest.mark.parametrize("name", list(registry.LEARNERS))
@pytest.mark.parametrize("preset", ["quick", "good", "best"])
def test_every_registered_learner_can_be_created(name: str, preset: str) -> None:
    chosen = registry.spec(name)
    task = GAMMA if chosen.tasks == (GAMMA.name,) else COMPOSITION
    learner = registry.create(chosen, task.classes, preset=preset)
    parts = learner.members if isinstance(learner, LearnerAverage) else [learner]
    assert chosen.needs_grid == any(part.needs_grid for part in parts)
    assert chosen.needs_grid or chosen.features


def test_saved_learner_of_other_classes_is_refused(gaussians: tuple[Any, Any, Any], tmp_path: Path) -> None:
    train, valid, _ = gaussians
    LightGBM(CLASSES, {"rounds": 2}).fit(train.batch, valid.batch, seed=1).save(tmp_path)
    with pytest.raises(InputError, match="classes proton"):
        registry.load(tmp_path, classes=CLASSES[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 1"),
        ({"learner": "os.system"}, "names learner 'os.system'"),
        ({"files": {"../outside": "00"}}, "does not exist"),
    ],
)
def test_altered_headers_are_refused(
    change: dict[str, Any], message: str, gaussians: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    train, valid, _ = gaussians
    LightGBM(CLASSES, {"rounds": 2}).fit(train.batch, valid.batch, seed=1).save(tmp_path)
    header = json.loads((tmp_path / HEADER_FILE).read_text())
    (tmp_path / HEADER_FILE).write_text(json.dumps({**header, **change}))
    with pytest.raises(InputError, match=message):
        registry.load(tmp_path)
    (tmp_path / HEADER_FILE).write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        registry.load(tmp_path)


def test_average_is_the_mean_of_its_members_and_survives_the_disk(
    rare_gammas: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    train, valid, test = rare_gammas
    member = {"learner": "showerstack.models.tables.lightgbm:LightGBM", "settings": {"rounds": 20}}
    for space in ("probability", "log"):
        average = LearnerAverage(GAMMA.classes, {"members": [member] * 2, "space": space})
        average.fit(train.batch, valid.batch, seed=1)
        each = [part.predict_log_proba(test.batch) for part in average.members]
        assert np.abs(each[0] - each[1]).max() > 1e-3
        mean = average.predict_log_proba(test.batch)
        if space == "probability":
            np.testing.assert_allclose(np.exp(mean), (np.exp(each[0]) + np.exp(each[1])) / 2)
        np.testing.assert_allclose(np.exp(mean).sum(axis=1), 1.0)
        average.save(tmp_path / space)
        np.testing.assert_array_equal(registry.load(tmp_path / space).predict_log_proba(test.batch), mean)


def test_average_takes_no_unknown_class() -> None:
    with pytest.raises(InputError, match="cannot be a member"):
        LearnerAverage(GAMMA.classes, {"members": [{"learner": "os:system"}]})


def test_regression_forest_estimates_the_probability(rare_gammas: tuple[Any, Any, Any], tmp_path: Path) -> None:
    train, valid, test = rare_gammas
    forest = RegressionForest(GAMMA.classes, {"trees": 40, "min_samples_leaf": 5}).fit(train.batch, valid.batch, seed=1)
    log_proba = forest.predict_log_proba(test.batch)
    assert abs(np.exp(log_proba[:, 0]).mean() - 0.06) < 0.025
    forest.save(tmp_path)
    np.testing.assert_array_equal(registry.load(tmp_path).predict_log_proba(test.batch), log_proba)
    with pytest.raises(InputError, match="2 classes"):
        RegressionForest(CLASSES).fit(replace(train.batch, labels=np.arange(4000) % 5), valid.batch, seed=1)


def test_xgboost_that_ran_on_the_cpu_is_not_taken_for_cuda() -> None:
    data = xgb.DMatrix(np.arange(20.0)[:, None], np.arange(20) % 2)
    booster = xgb.train({"objective": "binary:logistic", "device": "cpu", "nthread": 1}, data, num_boost_round=1)
    with pytest.raises(InputError, match="trained on 'cpu'"):
        check_ran_on_cuda(booster)


def test_log_loss_counts_events_by_their_weights() -> None:
    log_proba, labels = np.log([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]), np.array([0, 0, 1])
    each = -np.log([0.5, 0.25, 0.1])
    assert event_log_loss(log_proba, labels) == pytest.approx(each.mean())
    weights = np.array([1.0, 3.0, 0.0])
    assert event_log_loss(log_proba, labels, weights) == pytest.approx((each[0] + 3 * each[1]) / 4)


def test_a_column_that_is_mostly_one_value_is_scaled_by_its_spread() -> None:
    values = np.zeros(4_000)
    values[::10] = np.linspace(0.8, 1.2, 400)
    batch = table_batch(mostly=values)
    inputs = InputTransform.fit(batch, batch.columns).apply(batch)
    np.testing.assert_allclose(inputs[:, 0], values / values.std(), rtol=1e-5)


class OnGpu(Learner):
    """A learner whose library has a GPU."""

    gpu_expected = True

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return None


class CpuBuild(OnGpu):
    """The same with a library built without CUDA."""

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return "this library is a CPU build"


class NeverOnGpu(CpuBuild):
    """A learner that nobody expects on a GPU."""

    gpu_expected = False


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "gpu_answers", lambda: True)


@pytest.mark.usefixtures("with_driver")
def test_an_average_is_on_the_gpu_with_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    forests = replace(
        spec("mlp_bag"), settings={"members": ({"learner": "showerstack.models.tables.sklearn:RandomForest"},)}
    )
    mixed = replace(forests, settings={"members": (*spec("mlp_bag").settings["members"], *forests.settings["members"])})
    for obstacle, expected in ((None, "cuda"), ("a CPU build", "cpu")):
        monkeypatch.setattr(TabularMLP, "gpu_obstacle", lambda obstacle=obstacle: obstacle)
        assert devices_for((spec("mlp_bag"),), "auto") == {"mlp_bag": expected}
        assert [devices_for((each,), "auto")["mlp_bag"] for each in (forests, mixed)] == ["cpu", "cpu"]
    assert devices_for((spec("mlp_bag"),), "cpu") == {"mlp_bag": "cpu"}


class Copies(TorchDispatchMode):
    """Counts the numbers that are copied from the host to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu" and result.device.type != "cpu":
            self.sizes.append(result.numel())
        return result


def test_the_table_is_copied_to_the_device_once() -> None:
    n, columns, epochs = 1000, 40, 3
    learner = TabularMLP(CLASSES)
    table = np.random.default_rng(1).normal(size=(n, columns)).astype(np.float32)
    batch = Batch(
        index=np.arange(n), table=table, columns=tuple(f"x{k}" for k in range(columns)),
        labels=np.arange(n) % len(CLASSES),
    )  # fmt: skip
    learner.inputs_ = learner._inputs_for(batch)
    with Copies() as copies:  # "meta" stands for a GPU: nothing is computed there, copies are made as to one
        events = learner._tensors(batch, "meta")
        assert sorted(copies.sizes) == [n, n * columns]
        copies.sizes.clear()
        for _ in range(epochs):
            for rows, _ in events.batches(np.array_split(np.arange(n), 10)):
                assert events.inputs[rows].shape == (100, columns)
        assert copies.sizes == [n] * epochs, "the order of an epoch at once, no more"


def test_steps_copy_nothing_to_the_device() -> None:
    device, n = torch.device("meta"), 64
    grids = np.zeros((n, *KASCADE.grid_shape), np.float16)
    source = GridSource(grids, np.arange(n), device, resident=True)
    events = EventTensors(torch.zeros(n, 6, device=device), source)
    symmetry = torch.zeros(16, dtype=torch.int64, device=device)
    with Copies() as copies:
        for _ in range(3):
            copies.sizes.clear()
            for rows, cells in events.batches(np.array_split(np.arange(n), 4)):
                assert cells is not None
                move_grids(cells, symmetry)
                move_vectors(events.inputs[rows], ((0, 1), (3, 4)), symmetry)
    assert copies.sizes == [n], "after the first epoch the tables of symmetries are there"


@pytest.mark.usefixtures("with_driver")
def test_a_library_without_a_gpu_leaves_the_gpu_to_the_others() -> None:
    assert [device_for(each, "auto") for each in (OnGpu, CpuBuild, NeverOnGpu)] == ["cuda", "cpu", "cpu"]
    assert [device_for(each, "cuda") for each in (OnGpu, NeverOnGpu)] == ["cuda", "cpu"]
    assert device_for(OnGpu, "cpu") == "cpu"
    with pytest.raises(InputError, match="'cuda' was asked for, but mine: this library is a CPU build"):
        device_for(CpuBuild, "cuda", "mine")


def test_without_a_driver_no_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "gpu_answers", lambda: False)
    monkeypatch.setattr(OnGpu, "gpu_obstacle", lambda: pytest.fail("asked"))
    assert device_for(OnGpu, "auto") == "cpu"
    with pytest.raises(InputError, match="no NVIDIA driver"):
        device_for(OnGpu, "cuda")


@pytest.mark.usefixtures("with_driver")
def test_every_registered_learner_says_whether_it_has_a_gpu() -> None:
    result = devices_for(LEARNERS.values(), "auto")
    assert list(result) == list(LEARNERS)
    for name, device in result.items():
        obstacle = learner_class(spec(name).learner).gpu_obstacle()
        assert (device == "cuda") == (obstacle is None), name
    if torch.version.cuda is None:
        assert result["mlp"] == "cpu"
        assert "CPU build" in str(learner_class(spec("mlp").learner).gpu_obstacle())


def test_who_stays_on_the_cpu_is_said() -> None:
    assert device_remarks({"a": "cuda", "b": "cpu"}) == ("train on the CPU, not on the GPU: b",)
    assert device_remarks({"a": "cpu", "b": "cpu"}) == device_remarks({"a": "cuda"}) == ()


def test_float32_is_whole_while_a_network_works() -> None:
    def settings() -> tuple[bool, bool]:
        return torch.backends.cudnn.allow_tf32, bool(torch.utils.deterministic.fill_uninitialized_memory)

    before = settings()
    with torch_as_asked("cpu", 1, deterministic=True):
        assert settings() == (False, False)
    assert settings() == before
