"""The student of ``predict --fast``: close to what ships, honest about its cost, streamed, stored without pickle.

Energy and core come with errors: the average of fits, its scale, and a run that ships them; test truth is never read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

import showerstack.stacking.inputs.events
from showerstack import stacking
from showerstack.features.build import build_table
from showerstack.models.base.inputs import TARGETS, targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.networks.physics import TabularMLP
from showerstack.runtime.arrays import write_frames, write_pieces
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking import second_level
from showerstack.stacking.decide.target import OUTWARD, OWN_ENERGY, SIDEWAYS, UNITS, TargetCalibration, mixture
from showerstack.stacking.inputs.events import ShowerEvents, TableEvents
from showerstack.stacking.meta.base import MetaLearner
from showerstack.stacking.meta.calibration import identity
from showerstack.stacking.predict import predict
from showerstack.stacking.run.chain import STUDENT, Chain
from showerstack.stacking.run.config import StackConfig, TableConfig
from showerstack.stacking.train import StackResult, stack
from tests.stacking.conftest import CLASSES, bayes_log_proba, gaussians

SMALL: dict[str, dict[str, object]] = {"lightgbm": {"rounds": 30}, "quadratic_logit": {}}


def _run(folder: Path, n_train: int, **options: object) -> StackResult:
    folder.mkdir(exist_ok=True)
    points, labels = gaussians(n_train, 5)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(folder / "train.parquet")
    standard = {
        "run": folder / "run", "table": folder / "train.parquet", "label": "kind", "preset": "quick", "folds": 3,
        "workers": 1, "learners": tuple(SMALL), "settings": SMALL, "metas": ("log_pool",), "device": "cpu",
        "repeats": 1, "holdout": 0.1,
    }  # fmt: skip
    return stack(TableConfig(**(standard | options)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> StackResult:
    """A run with an outer holdout."""
    return _run(tmp_path_factory.mktemp("fast"), 6000)


@pytest.fixture
def new_rows(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Rows to be predicted, their classes as the run numbers them, and the exact posterior."""
    points, labels = gaussians(20_000, 6)
    pl.DataFrame({"x": points[:, 0], "y": points[:, 1]}).write_parquet(tmp_path / "new.parquet")
    return tmp_path / "new.parquet", 1 - labels, bayes_log_proba(points)[:, ::-1]


def test_stated_cost_is_that_on_new_rows(finished: StackResult, new_rows: tuple[Path, np.ndarray, np.ndarray]) -> None:
    file, labels, exact = new_rows
    record = finished.manifest["fast"]
    assert record["judged_on"] == "outer holdout"
    assert record["judged_events"] == 600
    run = stacking.load(finished.run)
    whole, fast = (predict(run, file, Context(trusted=True), fast=fast).concatenated() for fast in (False, True))
    true = paired_log_loss(labels, fast.log_proba, whole.log_proba)
    stated = record["log_loss"]
    assert abs(true.difference - stated["difference"]) < 3 * np.hypot(true.standard_error, stated["standard_error"])
    assert paired_log_loss(labels, fast.log_proba, exact).difference < 0.02, "it has learned the known posterior"
    assert f"{stated['difference']:+.4f}" in fast.remarks[0]
    assert whole.remarks == ()
    assert fast.config_hash != whole.config_hash, "nobody takes its predictions for those that the run was judged by"


def test_without_a_holdout_it_is_judged_by_students_that_have_not_seen_the_events(tmp_path: Path) -> None:
    record = _run(tmp_path, 900, holdout=0.0, learners=("quadratic_logit",), settings={}, fast=True).manifest["fast"]
    assert (record["judged_on"], record["judged_events"], record["learned_from"]) == ("out-of-fold", 900, 900)
    assert -0.05 < record["log_loss"]["difference"] < 0.1


@pytest.mark.usefixtures("fakes")
def test_labels_do_not_come_back_through_what_is_imitated(tmp_path: Path) -> None:
    # Labels are drawn by lot, so no prediction can be better than the coin. Ten rows are equal each: what ships says of
    # one the mean label of the others, and whoever learns it on one half knows something of the labels of the other.
    rng = np.random.default_rng(3)
    place = np.repeat(np.arange(100), 10)
    frame = pl.DataFrame({f"x{k}": (place == k).astype(np.float32) for k in range(100)})
    frame.with_columns(kind=pl.Series(rng.choice(CLASSES, 1000))).write_parquet(tmp_path / "train.parquet")
    manifest = stack(TableConfig(
        run=tmp_path / "run", table=tmp_path / "train.parquet", label="kind", preset="quick", folds=3, repeats=1,
        holdout=0.0, workers=1, learners=("fake_neighbours",), metas=("average",), device="cpu", fast=True,
    )).manifest  # fmt: skip
    (learner,) = manifest["learners"]
    cost = manifest["fast"]["log_loss"]
    assert learner["log_loss"] + cost["difference"] > np.log(2) - 2 * cost["standard_error"]


def test_no_student_unless_wanted_and_none_is_told(
    tmp_path: Path, new_rows: tuple[Path, np.ndarray, np.ndarray]
) -> None:
    result = _run(tmp_path / "run", 900, learners=("quadratic_logit",), settings={})
    assert result.manifest["fast"] is None
    assert not (result.run / STUDENT).exists()
    with pytest.raises(InputError, match=r"has no student for --fast \(few rows.*fast = true"):
        predict(stacking.load(result.run), new_rows[0], fast=True)


def test_pieces_change_no_bit(
    finished: StackResult, new_rows: tuple[Path, np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    points, _ = gaussians(20_000, 6)
    events = TableEvents(new_rows[0], ("x", "y"), "hash")
    run = stacking.load(finished.run)
    whole = predict(run, events, Context(trusted=True), fast=True).concatenated()
    monkeypatch.setattr(showerstack.stacking.inputs.events, "PIECE_EVENTS", 4096)
    in_pieces = predict(run, events, Context(workers=1), fast=True).concatenated()
    np.testing.assert_array_equal(in_pieces.log_proba, whole.log_proba)
    assert len(points) == len(in_pieces.log_proba)


def test_its_files_are_sealed_and_hold_no_pickle(finished: StackResult) -> None:
    files = {path.name for path in (finished.run / STUDENT).iterdir()}
    assert files == {"learner.json", "inner"}
    listed = json.loads((finished.run / CHECKSUMS_FILE).read_text())
    assert any("fast/inner/network.safetensors" in str(entry) for entry in listed.get("files", listed))
    file = finished.run / STUDENT / "inner" / "network.safetensors"
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1] + b"x")
        points, _ = gaussians(10, 6)
        run = stacking.load(finished.run)
        with pytest.raises(InputError, match=r"network\.safetensors"):
            predict(run, TableEvents(finished.run / "table" / "train.parquet", ("x", "y"), "hash"), fast=True)
        assert len(points) == 10
    finally:
        file.write_bytes(content)


def test_networks_learn_from_soft_labels() -> None:
    # Hard labels say the opposite of the soft ones, and only validate: what is learned is what the soft ones say.
    rng = np.random.default_rng(0)
    table = np.asfortranarray(rng.normal(size=(4000, 2)), dtype=np.float32)
    share = 1 / (1 + np.exp(-2.0 * table[:, 0].astype(float)))
    soft = np.column_stack([1 - share, share])
    events = Batch(np.arange(4000), table, ("a", "b"), labels=rng.integers(0, 2, 4000), soft_labels=soft)
    settings = {"epochs": 12, "patience": 12, "weight_decay": 0.0, "dropout": 0.0, "ema": 0.0}
    learner = TabularMLP(("x", "y"), settings).fit(events, events.take(np.arange(500)), seed=1)
    # Judged by meaningless labels it keeps an early epoch, which is still far from ignorance of the soft ones.
    result = np.exp(learner.predict_log_proba(events))
    assert np.corrcoef(result[:, 1], share)[0, 1] > 0.97


def test_streamed_archives_and_tables_hold_what_whole_ones_would(tmp_path: Path) -> None:
    from showerstack.runtime.files import write_npz

    whole = {"labels": np.arange(10, dtype=np.int8), "z": np.arange(20.0).reshape(10, 2), "hash": np.array("c0ffee")}
    write_npz(tmp_path / "whole.npz", **whole)
    parts = [{name: a[k : k + 4] if a.ndim else a for name, a in whole.items()} for k in (0, 4, 8)]
    write_pieces(tmp_path / "parts.npz", 10, iter(parts))
    assert (tmp_path / "parts.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    frames = [pl.DataFrame({"event": [0, 1]}), pl.DataFrame({"event": [2]})]
    for suffix, read in ((".csv", pl.read_csv), (".parquet", pl.read_parquet)):
        write_frames(tmp_path / f"table{suffix}", iter(frames))
        assert read(tmp_path / f"table{suffix}")["event"].to_list() == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.npz", "table.csv", "table.parquet", "whole.npz"]


def test_a_mixture_has_the_spread_of_its_parts() -> None:
    fits = np.zeros((2, 1, 1, 2))
    fits[:, 0, 0] = [[1.0, 2.0], [3.0, 1.0]]
    ((mean, error),) = mixture(fits)[0]
    assert mean == 2.0
    assert error == pytest.approx(np.sqrt((4 + 1) / 2 + 1))


def test_estimates_come_back_as_energy_and_core_with_errors_that_hold() -> None:
    rng = np.random.default_rng(1)
    n = 4000
    fitted = rng.uniform(-80, 80, (n, 2))
    truth = pl.DataFrame(
        {"lg_energy": rng.uniform(15, 16, n), "core_x_m": fitted[:, 0] + rng.normal(0, 2, n),
         "core_y_m": fitted[:, 1] + rng.normal(0, 2, n), "mass": np.ones(n),
         **{name: np.full(n, np.nan) for name in ("lg_ne", "lg_nmu", "xmax", "age")}}
    )  # fmt: skip
    targets = targets_of(truth, fitted[:, 0], fitted[:, 1])
    fits = np.full((3, n, len(TARGETS), 2), np.nan)
    fits[..., 0] = targets + rng.normal(0, 0.2, targets.shape)
    fits[..., 1] = 0.1  # half of what it is
    target_calibration, record = TargetCalibration.of("taught", fits, targets)
    assert target_calibration.scale == pytest.approx((2.0, 2.0, 2.0), rel=0.06)
    assert record["held_out"]["lg_energy"]["resolution"] == pytest.approx(0.2 * TARGETS[OWN_ENERGY].width, rel=0.06)
    assert TargetCalibration.from_json(target_calibration.as_json()) == target_calibration
    arrays = target_calibration.arrays(fits, fitted)
    assert set(arrays) == set(UNITS)
    for name in ("lg_energy", "core_x", "core_y"):
        column = name if name == "lg_energy" else f"{name}_m"
        error = arrays["lg_energy_error" if name == "lg_energy" else f"{name}_error_m"]
        pull = (arrays[column] - truth[column].to_numpy()) / error
        assert np.mean(np.abs(pull) < 1) == pytest.approx(0.683, abs=0.03), name
    assert set(target_calibration.arrays(fits, None)) == {"lg_energy", "lg_energy_error"}
    unknown = np.full_like(targets, np.nan)
    assert TargetCalibration.of("taught", fits, unknown)[0].scale == (0.0, 0.0, 0.0)


def test_energy_and_core_by_hand() -> None:
    fits = np.zeros((1, 2, len(TARGETS), 2))
    fits[..., 1] = 0.5
    fits[0, 0, [OWN_ENERGY, OUTWARD, SIDEWAYS], 0] = 2.0, 1.5, -1.0
    # Cores (30, 40), outward (0.6, 0.8), and (0, -10), outward (0, -1); errors 1 of 2 m, times 3 outward, 5 sideways.
    result = TargetCalibration("taught", (2.0, 3.0, 5.0)).arrays(fits, np.array([[30.0, 40.0], [0.0, -10.0]]))
    np.testing.assert_allclose(result["lg_energy"], [16.2, 15.4])
    np.testing.assert_allclose(result["lg_energy_error"], 0.4)
    np.testing.assert_allclose(result["core_x_m"], [30 + 3 * 0.6 + 2 * 0.8, 0.0], atol=1e-12)
    np.testing.assert_allclose(result["core_y_m"], [40 + 3 * 0.8 - 2 * 0.6, -10.0])
    np.testing.assert_allclose(result["core_x_error_m"], [np.hypot(3 * 0.6, 5 * 0.8), 5.0])
    np.testing.assert_allclose(result["core_y_error_m"], [np.hypot(3 * 0.8, 5 * 0.6), 3.0])


def test_held_out_residuals_are_in_units_and_in_errors() -> None:
    rng = np.random.default_rng(11)
    targets = np.zeros((500, len(TARGETS)))
    fits = np.full((1, 500, len(TARGETS), 2), 0.5)
    fits[0, :, :, 0] = 0.3 + rng.normal(0, 0.1, (500, len(TARGETS)))
    record = TargetCalibration.of("taught", fits, targets)[1]["held_out"]
    for k in (OWN_ENERGY, OUTWARD, SIDEWAYS):
        entry = record[TARGETS[k].name]
        assert entry["bias"] == pytest.approx(fits[0, :, k, 0].mean() * TARGETS[k].width)
        expected = 2 * fits[0, :, k, 0].mean() / entry["factor_of_errors"]
        assert entry["in_errors"]["bias"] == pytest.approx(expected, rel=0.1)
        assert entry["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.25)
        assert entry["in_errors"]["resolution"] != pytest.approx(1.0, abs=1e-6), "judged by the other half's factor"


def test_rare_showers_move_energies_and_cores_by_their_weight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    rare = np.arange(4000) % 2 == 1
    targets = np.zeros((4000, len(TARGETS)))
    fits = np.full((1, 4000, len(TARGETS), 2), 0.1)
    fits[0, :, :, 0] = rng.normal(0, 0.1, targets.shape) * np.where(rare, 8.0, 1.0)[:, None]
    weights = np.where(rare, 1e-3, 1.0)
    weighted, record = TargetCalibration.of("taught", fits, targets, weights)
    ignoring, _ = TargetCalibration.of("taught", fits, targets)
    assert weighted.scale == pytest.approx((1.0, 1.0, 1.0), abs=0.07)
    assert min(ignoring.scale) > 1.7
    entry = record["held_out"]["lg_energy"]
    assert entry["resolution"] == pytest.approx(0.1 * TARGETS[OWN_ENERGY].width, rel=0.07)
    assert entry["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.2)
    # The second level hands over the weights of the events that it measures on.
    rows = np.arange(4000) % 4 < 2
    level, folds = (
        SimpleNamespace(names=("taught",), networks=()),
        SimpleNamespace(outer=rows, weights_of=weights.__getitem__),
    )
    job = SimpleNamespace(
        config=SimpleNamespace(run=None, n_folds=1, repeats=1), train=SimpleNamespace(targets=targets.__getitem__)
    )
    monkeypatch.setattr(second_level, "has_truth", lambda run, name: True)
    monkeypatch.setattr(second_level, "outer_truth", lambda run, name, wanted: fits[:, rows])
    calibration, *_ = second_level.fit_target_calibration(job, folds, level, rows)  # type: ignore[arg-type]
    assert calibration == TargetCalibration.of("taught", fits[:, rows], targets[rows], weights[rows])[0]


OPTIONS: dict[str, Any] = {
    "task": "composition", "preset": "quick", "folds": 2, "workers": 1, "device": "cpu", "fast": False,
    "learners": ("pretrained",), "metas": ("log_pool",), "settings": {"pretrained": {"epochs": 1}},
}  # fmt: skip


def _copy(data: Path, to: Path) -> Path:
    for split in ("train", "test"):
        source = data / f"composition_{split}"
        table = build_table(source, ctx=Context(device="cpu", workers=1)).folder
        shutil.copytree(source, to / source.name)
        shutil.copytree(table, to / table.name)
    return to


def test_a_run_ships_energy_and_core_and_reads_no_truth_of_test_events(tiny_composition: Path, tmp_path: Path) -> None:
    data = _copy(tiny_composition, tmp_path / "data")
    truth = pl.read_parquet(data / "composition_test" / "truth.parquet")
    clean = stack(StackConfig(run=tmp_path / "clean", data=data, **OPTIONS))
    record = clean.manifest["truth"]
    assert record["learner"] == "pretrained"
    assert record["held_out"]["lg_energy"]["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.3)
    with np.load(tmp_path / "clean" / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in UNITS}
    error = arrays["lg_energy"] - truth["lg_energy"].to_numpy()
    assert np.quantile(np.abs(error), 0.68) < 0.15
    assert np.mean(np.abs(error) < arrays["lg_energy_error"]) == pytest.approx(0.68, abs=0.12)
    assert np.median(np.hypot(*(arrays[f"core_{k}_m"] - truth[f"core_{k}_m"].to_numpy() for k in "xy"))) < 5
    run = stacking.load(tmp_path / "clean")
    for no_table in (False, True):
        again = predict(
            run, data / "composition_test", Context(device="cpu", trusted=True), no_table=no_table
        ).concatenated()
        for name, values in arrays.items():
            np.testing.assert_array_equal(again.arrays[name], values)
    for file in (data / "composition_test" / "truth.parquet", data / "composition_test" / "labels_composition.npy"):
        file.write_bytes(b"poison: whoever reads this fails")
    stack(StackConfig(run=tmp_path / "poisoned", data=data, **OPTIONS))
    expected = (tmp_path / "clean" / "predictions.npz").read_bytes()
    assert (tmp_path / "poisoned" / "predictions.npz").read_bytes() == expected
    _truth_of_training_counts(data, tmp_path)


def _truth_of_training_counts(data: Path, tmp_path: Path) -> None:
    file = data / "composition_train" / "truth.parquet"
    (data / "composition_train" / "checksums.json").unlink()
    pl.read_parquet(file).with_columns(pl.col("lg_energy") + 0.1).write_parquet(file)
    with pytest.raises(InputError, match="targets_fingerprint"):
        stack(StackConfig(run=tmp_path / "clean", data=data, **OPTIONS))
    file.unlink()
    untaught = stack(StackConfig(run=tmp_path / "untaught", data=data, **OPTIONS))
    assert untaught.manifest["truth"] is None
    with np.load(tmp_path / "untaught" / "predictions.npz") as stored:
        assert "lg_energy" not in stored.files


def test_events_to_be_predicted_have_no_targets(tiny_composition: Path) -> None:
    events = ShowerEvents(tiny_composition / "composition_test", tiny_composition / "table", COMPOSITION)
    for ask in (lambda: events.targets(np.arange(3)), events.targets_fingerprint):
        with pytest.raises(InputError, match="labels are not read here"):
            ask()


def test_a_student_is_one_fit() -> None:
    meta = cast("MetaLearner", None)
    chain = Chain(
        COMPOSITION, {"a": identity(5), "stack": identity(5), STUDENT: identity(5)}, meta, {}, "stack", "hash", 6
    )
    alone = chain.of_student()
    assert list(chain.fits("a")) == list(range(6))
    assert (alone.shipped, list(alone.fits(STUDENT)), alone.learners) == (STUDENT, [0], ("a",))
    assert alone.config_hash != chain.config_hash
