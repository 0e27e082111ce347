"""Energy and core with errors: the average of fits, its scale, and a run that ships them; test truth is never read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import stacking
from features.build import build_table
from models.base.inputs import TARGETS, targets_of
from runtime.errors import InputError
from showers.schema import COMPOSITION
from stacking.decide.target import OWN_ENERGY, UNITS, TargetCalibration, mixture
from stacking.inputs.events import ShowerEvents
from stacking.run.config import StackConfig
from stacking.train import stack


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


OPTIONS: dict[str, Any] = {
    "task": "composition", "preset": "quick", "folds": 2, "workers": 1, "device": "cpu", "fast": False,
    "learners": ("pretrained",), "metas": ("log_pool",), "settings": {"pretrained": {"epochs": 2}},
}  # fmt: skip


def _copy(data: Path, to: Path) -> Path:
    for split in ("train", "test"):
        source = data / f"composition_{split}"
        table = build_table(source, device="cpu", workers=1).folder
        shutil.copytree(source, to / source.name)
        shutil.copytree(table, to / table.name)
    return to


def test_a_run_ships_energy_and_core_and_reads_no_truth_of_test_events(tiny_composition: Path, tmp_path: Path) -> None:
    data = _copy(tiny_composition, tmp_path / "data")
    truth = pl.read_parquet(data / "composition_test" / "truth.parquet")
    clean = stack(StackConfig(run=tmp_path / "clean", data=data, **OPTIONS))
    record = clean.manifest["truth"]
    assert record["learner"] == "pretrained"
    assert record["held_out"]["lg_energy"]["in_errors"]["resolution"] == pytest.approx(1.0, abs=1e-6)
    with np.load(tmp_path / "clean" / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in UNITS}
    error = arrays["lg_energy"] - truth["lg_energy"].to_numpy()
    assert np.quantile(np.abs(error), 0.68) < 0.15
    assert np.mean(np.abs(error) < arrays["lg_energy_error"]) == pytest.approx(0.68, abs=0.12)
    assert np.median(np.hypot(*(arrays[f"core_{k}_m"] - truth[f"core_{k}_m"].to_numpy() for k in "xy"))) < 5
    for no_table in (False, True):
        again = stacking.load(tmp_path / "clean").predict(data / "composition_test", no_table=no_table, device="cpu")
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
