"""Grids in one .npz, as teaching sets have them, become dataset folders: stations, signals, times, classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.archives import grids
from showerstack.showers.archives.formats import format_of
from showerstack.showers.dataset import Dataset
from showerstack.showers.front import LIGHT_M_PER_NS
from showerstack.showers.schema import COMPOSITION, ENERGY
from tests.program import call

N, SIDE, PITCH_M = 80, 9, 500.0


def content(seed: int = 1) -> dict[str, np.ndarray]:
    """Return showers on a square of stations: plane fronts, signals that fall with the distance."""
    rng = np.random.default_rng(seed)
    x, y = (PITCH_M * (axis - SIDE // 2) for axis in np.meshgrid(np.arange(SIDE), np.arange(SIDE)))
    core = rng.uniform(-500, 500, (N, 2))
    zenith, azimuth = np.radians(rng.uniform(5, 40, N)), rng.uniform(0, 2 * np.pi, N)
    axis = np.stack([np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)], axis=1)
    away = np.hypot(x - core[:, :1, None], y - core[:, 1:, None])
    signal = np.where(away < 2700, rng.poisson(3000 * (1 + away / 500) ** -3.5) + 1, 0).astype(np.float32)
    signal[:, 0, 0] = 0  # no station stands there
    time_s = -1e-9 * (axis[:, :1, None] * x + axis[:, 1:2, None] * y) / LIGHT_M_PER_NS
    time_s = np.where(signal > 0, time_s + rng.normal(0, 2e-8, time_s.shape), np.nan)
    return {
        "signal": signal, "time": time_s, "logE": rng.uniform(18.5, 20, N), "mass": rng.choice([1, 4, 14, 56], N),
        "showeraxis": axis, "showercore": np.c_[core, np.zeros(N)], "Xmax": rng.normal(750, 60, N),
        "detector": np.stack([x, y, 0 * x], axis=-1).reshape(-1, 3),
    }  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "showers-A8.npz", **content())
    return tmp_path / "showers-A8.npz"


def test_signals_times_and_classes_come_over(file: Path) -> None:
    given, out = content(), file.parent / "data"
    assert format_of(file) is grids.FORMAT
    shown = call("cli.py", "convert", file, "--out", out, "--area", "3.6")
    assert "showers-A8" in shown.stdout
    assert "is taken to be in s" in shown.stderr
    data = Dataset.open(out / "showers-A8", COMPOSITION)
    assert (len(data), data.array.n_stations, data.array.pitch_m) == (N, SIDE * SIDE - 1, PITCH_M)
    assert data.array.electron_area_m2.max() == pytest.approx(3.6)
    deposits = np.asarray(data.matrices)[..., 0].reshape(N, -1)[:, : SIDE * SIDE - 1]
    in_particles = deposits / data.array.response.electron_deposit_mev
    np.testing.assert_allclose(in_particles, given["signal"].reshape(N, -1)[:, 1:], rtol=1e-5)
    np.testing.assert_array_equal(data.labels, [{1: 0, 4: 1, 14: 2, 56: 4}[mass] for mass in given["mass"].tolist()])
    zenith, azimuth = (np.radians(np.asarray(data.scalars)[:, k]) for k in (1, 2))
    found = np.stack([np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)], axis=1)
    apart = np.degrees(np.arccos(np.clip(np.sum(found * given["showeraxis"], axis=1), -1, 1)))
    assert np.median(apart) < 2.0


def test_energies_are_the_labels_of_their_task(file: Path) -> None:
    call("cli.py", "convert", file, "--task", "energy", "--out", file.parent / "data")
    labels = Dataset.open(file.parent / "data" / "showers-A8", ENERGY).labels
    assert labels is not None
    np.testing.assert_allclose(labels, content()["logE"], rtol=1e-6)


def test_a_grid_without_places_needs_its_pitch(tmp_path: Path) -> None:
    bare = {name: values for name, values in content().items() if name in ("signal", "showeraxis")}
    np.savez(tmp_path / "bare.npz", **bare)
    err = call("cli.py", "convert", tmp_path / "bare.npz", "--out", tmp_path / "out", code=2).stderr
    assert "has no places of its stations: say how far apart they stand, --pitch METRES" in err
    shown = call("cli.py", "convert", tmp_path / "bare.npz", "--pitch", "500", "--out", tmp_path / "out")
    assert "directions are those of showeraxis" in shown.stderr
    data = Dataset.open(tmp_path / "out" / "bare", labels=False)
    assert data.array.pitch_m == PITCH_M
    zenith = np.degrees(np.arccos(content()["showeraxis"][:, 2]))
    np.testing.assert_allclose(np.asarray(data.scalars)[:, 1], zenith, atol=0.01)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("mass", np.ones(3), r"mass has shape \(3,\), expected 80"),
        ("time", np.ones(N), r"time has shape \(80,\), expected 80 by 9 by 9"),
        ("mass", np.r_[np.ones(N - 1), np.nan], "row 79 has mass nan, expected a number of at least 1"),
        ("mass", np.r_[0.0, np.ones(N - 1)], "row 0 has mass 0, expected a number of at least 1"),
        ("logE", np.full(N, "high"), "cannot be read as arrays of numbers"),
        ("signal", np.full((N, SIDE, SIDE), -1.0), "row 0, signal holds no number of at least 0"),
        ("signal", np.zeros((N, SIDE, SIDE)), "signal holds no signal"),
        ("detector", np.zeros((5, 3)), r"places of stations have shape \(5, 3\), expected 81 by 2 or 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, name: str, values: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "x.npz", **(content() | {name: values}))
    with pytest.raises(InputError, match=message):
        grids.FORMAT.open(tmp_path / "x.npz")


def test_other_files_are_not_taken(tmp_path: Path) -> None:
    np.savez(tmp_path / "predictions.npz", log_proba=np.zeros((4, 5)), signal=np.zeros(4))
    (tmp_path / "text.npz").write_text("no archive")
    assert not grids.FORMAT.accepts(tmp_path / "predictions.npz")
    assert not grids.FORMAT.accepts(tmp_path / "text.npz")
