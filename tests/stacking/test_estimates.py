"""Energy and core come with errors: the mean of fits, its scale, and a run that ships them; test truth is not read."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack.features.build import build_table
from showerstack.models.base.inputs import TARGETS, targets_of
from showerstack.runtime.arrays import write_pieces
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.tables import write_frames
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking.config import StackConfig
from showerstack.stacking.estimates import OUTWARD, OWN_ENERGY, SIDEWAYS, UNITS, TargetCalibration, mixture
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import ON_HOLDOUT, Judged
from showerstack.stacking.training import train as second_level
from showerstack.stacking.training.train import stack

SMALL: dict[str, dict[str, object]] = {"lightgbm": {"rounds": 30}, "quadratic_logit": {}}


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
    n = 20_000
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
    cores = np.array([[30.0, 40.0], [0.0, -10.0]])
    result = TargetCalibration("taught", (2.0, 3.0, 5.0)).arrays(fits, cores)
    less = TargetCalibration("taught", (2.0, 3.0, 5.0), (0.5, 0.0, 0.0)).arrays(fits, cores)
    np.testing.assert_allclose(less["lg_energy"], result["lg_energy"] - 0.5 * 0.4)
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
    target_calibration, record = TargetCalibration.of("taught", fits, targets)
    for place, k in enumerate((OWN_ENERGY, OUTWARD, SIDEWAYS)):
        entry = record["held_out"][TARGETS[k].name]
        assert target_calibration.offset[place] == np.median(fits[0, :, k, 0]), "three standard errors are shown"
        assert abs(entry["bias"]) < 0.03 * TARGETS[k].width
        assert entry["bias"] != pytest.approx(0.0, abs=1e-6), "judged by the other half's median"
        assert entry["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.25)
        assert entry["in_errors"]["resolution"] != pytest.approx(1.0, abs=1e-6), "judged by the other half's factor"


def test_rare_showers_move_energies_and_cores_by_their_weight_alone() -> None:
    rng = np.random.default_rng(12)
    rare = np.arange(16_000) % 2 == 1
    targets = np.zeros((16_000, len(TARGETS)))
    fits = np.full((1, 16_000, len(TARGETS), 2), 0.1)
    fits[0, :, :, 0] = rng.normal(0, 0.1, targets.shape) * np.where(rare, 8.0, 1.0)[:, None]
    weights = np.where(rare, 1e-3, 1.0)
    weighted, record = TargetCalibration.of("taught", fits, targets, weights)
    ignoring, _ = TargetCalibration.of("taught", fits, targets)
    assert weighted.scale == pytest.approx((1.0, 1.0, 1.0), abs=0.06)
    assert min(ignoring.scale) > 1.7
    entry = record["held_out"]["lg_energy"]
    assert entry["resolution"] == pytest.approx(0.1 * TARGETS[OWN_ENERGY].width, rel=0.06)
    assert entry["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.2)
    # The second level hands over the weights of the events that it measures on.
    rows = np.arange(16_000) % 4 < 2
    oof = SimpleNamespace(names=("taught",), networks=())
    sample = Sample(np.zeros(8000, int), np.zeros(8000, int), None, weights[rows])
    judged = Judged(ON_HOLDOUT, rows, sample, {})
    fit = SimpleNamespace(has_estimates=lambda: True)
    run = SimpleNamespace(fit=lambda name, number: fit, read_fits=lambda name, wanted, part, estimates: fits[:, rows])
    asked = []
    train = SimpleNamespace(targets=lambda rows, limit: asked.append(limit) or targets[rows])
    config = SimpleNamespace(n_folds=1, repeats=1)
    data = SimpleNamespace(config=config, train=train)
    calibration, *_ = second_level.fit_target_calibration(run, data, None, oof, judged)  # type: ignore[arg-type]
    assert calibration == TargetCalibration.of("taught", fits[:, rows], targets[rows], weights[rows])[0]
    assert asked == [math.inf], "a core that is further away than networks learn was missed by all of that"


OPTIONS: dict[str, Any] = {
    "task": "composition", "preset": "quick", "folds": 2, "workers": 1, "device": "cpu",
    "learners": ("pretrained",), "pools": ("log_pool",), "settings": {"pretrained": {"epochs": 1, "by_number": False}},
}  # fmt: skip


def _copy(data: Path, to: Path) -> Path:
    for split in ("train", "test"):
        source = data / f"composition_{split}"
        table = build_table(source, ctx=Context(device="cpu", workers=1)).folder
        shutil.copytree(source, to / source.name)
        shutil.copytree(table, to / table.name)
    return to


@pytest.mark.slow
def test_a_run_ships_energy_and_core_and_reads_no_truth_of_test_events(tiny_composition: Path, tmp_path: Path) -> None:
    data = _copy(tiny_composition, tmp_path / "data")
    truth = pl.read_parquet(data / "composition_test" / "truth.parquet")
    clean = stack(StackConfig(run=tmp_path / "clean", data=data, **OPTIONS))
    record = clean.manifest.truth
    assert record["learner"] == "pretrained"
    (entry,) = clean.manifest.learners
    saved = read_json(tmp_path / "clean" / "learners" / "pretrained" / "fold-0" / "learner.json")
    assert entry.precision == [saved["precision"]]
    assert record["held_out"]["lg_energy"]["in_errors"]["resolution"] == pytest.approx(1.0, abs=0.3)
    with np.load(tmp_path / "clean" / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in UNITS}
    error = arrays["lg_energy"] - truth["lg_energy"].to_numpy()
    assert np.quantile(np.abs(error), 0.68) < 0.15
    assert np.mean(np.abs(error) < arrays["lg_energy_error"]) == pytest.approx(0.68, abs=0.12)
    assert np.median(np.hypot(*(arrays[f"core_{k}_m"] - truth[f"core_{k}_m"].to_numpy() for k in "xy"))) < 5
    run = load(tmp_path / "clean")
    for no_table in (False, True):
        again = predict(run, data / "composition_test", Context(device="cpu"), no_table=no_table).concatenated()
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
    assert untaught.manifest.truth is None
    with np.load(tmp_path / "untaught" / "predictions.npz") as stored:
        assert "lg_energy" not in stored.files


def test_events_to_be_predicted_have_no_targets(tiny_composition: Path) -> None:
    events = ShowerEvents(tiny_composition / "composition_test", tiny_composition / "table", COMPOSITION)
    for ask in (lambda: events.targets(np.arange(3)), events.targets_fingerprint):
        with pytest.raises(InputError, match="labels are not read here"):
            ask()
