"""The known sky: fluxes as asked for, seeds, dead stations and drift that the array shows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from runtime.errors import InputError
from showers.array import KASCADE
from showers.simulation.measured import simulate_measured, the_run
from showers.simulation.settings import load_settings
from showers.simulation.sky import Sky, Thrower, load_sky


def test_spectra_have_the_asked_slopes_and_knees() -> None:
    sky = Sky(photon_fraction=0.01)
    lg_energy = np.array([14.6, 14.7, 17.8, 17.9])
    flux = sky.flux(lg_energy)
    below = -np.log10(flux[:, 1] / flux[:, 0]) / 0.1
    above = -np.log10(flux[:, 3] / flux[:, 2]) / 0.1
    np.testing.assert_allclose(below, 2.7, atol=1e-3)
    np.testing.assert_allclose(above[:5], 3.1, atol=0.02)
    np.testing.assert_allclose(flux[5], 0.01 * flux[:5].sum(axis=0))
    at_knee = sky.flux(np.log10(sky.knees_pev() * 1e15))
    bend = 2.0 ** ((2.7 - 3.1) / sky.sharpness)
    np.testing.assert_allclose(
        np.diag(at_knee[:5]), sky.flux_1_pev * sky.abundances * sky.knees_pev() ** -2.7 * bend, rtol=1e-9
    )


def test_thrown_primaries_follow_the_fluxes() -> None:
    sky = Sky(photon_fraction=0.05)
    thrower = Thrower(sky)
    thrown = thrower.throw(200_000, np.random.default_rng(1))
    # Integral of a power law above 14.5, the knees far away: J0 E0^(1 - 2.7) / 1.7, all nuclei and photons.
    expected = 1.05 * sky.flux_1_pev * 1e15 * 10 ** (0.5 * 1.7) / 1.7 * sky.acceptance_m2_sr
    assert thrower.rate_hz == pytest.approx(expected, rel=0.02)
    edges = np.array([14.5, 14.8, 15.2, 15.7, 16.3])
    for k, mass in enumerate((1, 4, 12, 28, 56, 0)):
        mine = thrown.lg_energy[thrown.mass == mass]
        fine = np.linspace(14.5, 18.0, 7001)
        flux = sky.flux(fine)[k] * 10**fine
        share = [flux[(fine >= a) & (fine < b)].sum() / flux.sum() for a, b in itertools.pairwise(edges)]
        counts = np.histogram(mine, edges)[0]
        assert (np.abs(counts - len(mine) * np.array(share)) < 5 * np.sqrt(len(mine) * np.array(share)) + 5).all()


def test_runs_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text("runs = 2\nlive_time_h = 2.6\ncuts = 'test'\ndead_stations = 5\n")
    for workers in (1, 2):
        simulate_measured(tmp_path / "sky.toml", tmp_path / str(workers), seed=4, workers=workers)
    for file in sorted((tmp_path / "1").rglob("*.*")):
        same = tmp_path / "2" / file.relative_to(tmp_path / "1")
        assert same.read_bytes() == file.read_bytes(), file.name
    conditions = [json.loads((tmp_path / "1" / "truth" / f"00400{k}.json").read_text()) for k in (0, 1)]
    assert conditions[0]["dead_cells"] != conditions[1]["dead_cells"]
    with np.load(tmp_path / "1" / "004000_matrices.npz") as archive:
        grids = archive["matrices"].reshape(-1, 256, 3)
    quiet = np.flatnonzero((grids[..., 1] > 0).sum(axis=0) == 0)
    assert set(conditions[0]["dead_cells"]) <= set(quiet)
    assert len(quiet) < 30
    truth = pl.read_parquet(tmp_path / "1" / "truth" / "004000.parquet")
    assert truth.height == len(grids)


def test_deposits_drift_but_the_reconstruction_does_not_know() -> None:
    sky, world = Sky(runs=3, deposit_drift=0.1, dead_muon_detectors=4), load_settings()
    last = the_run(sky, world, 1, 2)
    assert last.deposit_scale == pytest.approx(1.1)
    assert last.detector.detector.electron_mev == pytest.approx(1.1 * world.detector.electron_mev)
    assert last.array.n_stations == KASCADE.n_stations
    assert last.array.n_muon_detectors == KASCADE.n_muon_detectors - len(last.dead_muon)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs = 0", "runs"),
        ("flux = 1", "flux"),
        ("model = 'none'", "unknown hadronic model"),
        ("runs = [", "not valid TOML"),
        ("[groups.neon]\nindex = 2", "neon"),
        ("lg_energy_min = 16\nlg_energy_max = 15", "lg_energy_max must be above"),
    ],
)
def test_a_sky_that_makes_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_sky(tmp_path / "sky.toml")


def test_runs_of_another_sky_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text("runs = 1\nlive_time_h = 0.02")
    (file,) = simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")
    stamp = file.stat().st_mtime_ns
    simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")
    assert file.stat().st_mtime_ns == stamp
    (tmp_path / "sky.toml").write_text("runs = 1\nlive_time_h = 0.03")
    with pytest.raises(InputError, match="made otherwise"):
        simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")
