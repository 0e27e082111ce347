"""What signals say of the detectors: single particles of known deposit, thresholds, limits; and wrong units."""

import re
from dataclasses import replace

import numpy as np
import pytest

from showerstack.showers.array import DetectorArray, lattice, square_clusters
from showerstack.showers.calibration import calibrate, signal_remarks
from showerstack.showers.card import NO_CARD, ArrayCard

DEPOSIT = 9.5


def array(card=NO_CARD):
    x_m, y_m = lattice(8, 15.0)
    return DetectorArray("own", 15.0, x_m, y_m, np.full((8, 8), 2.0), np.full((8, 8), 2.0), square_clusters(8, 4), card)


def signals(n=400, unit=1.0, threshold=0.0, limit=np.inf, seed=3):
    """Return exponential deposits about cores: many particles near them, few far away."""
    rng, here = np.random.default_rng(seed), array()
    core = rng.uniform(-50, 50, (n, 2, 1))
    r = np.hypot(here.x_m.ravel() - core[:, 0], here.y_m.ravel() - core[:, 1]) + 5
    number = rng.poisson(400 * (r / 10) ** -3.0)
    deposit = np.where(number > 0, rng.gamma(np.maximum(number, 1)) * DEPOSIT, 0.0)
    deposit = np.where(deposit < threshold, 0.0, np.minimum(deposit, limit)) * unit
    return np.stack([deposit, deposit], axis=-1).reshape(n, 8, 8, 2).astype(np.float32)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_single_particle_is_found(threshold):
    for channel in (0, 1):
        found = calibrate(array(), signals(threshold=threshold), channel)
        assert found.n_signals > 1000
        assert abs(found.particle / DEPOSIT - 1) < 0.15 + 5 * found.particle_error / DEPOSIT
        assert found.particle_error < 0.05 * DEPOSIT


@pytest.mark.parametrize("pitch_m", [40.0, 80.0])
def test_a_station_alone_in_the_core_is_no_single_particle(pitch_m):
    """Of steep showers on sparse arrays: without a look at the core three times the true deposit was found."""
    x_m, y_m = lattice(8, pitch_m)
    sparse = replace(array(), pitch_m=pitch_m, x_m=x_m, y_m=y_m)
    rng = np.random.default_rng(3)
    core = rng.uniform(-4 * pitch_m, 4 * pitch_m, (4000, 2, 1))
    r_m = np.hypot(x_m.ravel() - core[:, 0], y_m.ravel() - core[:, 1]) + 5
    number = rng.poisson(400 * 10 ** rng.exponential(0.4, (4000, 1)) * (r_m / 10) ** -3.0)
    deposit = np.where(number > 0, rng.gamma(np.maximum(number, 1)) * DEPOSIT, 0.0).reshape(-1, 8, 8, 1)
    found = calibrate(sparse, np.repeat(deposit[(number > 0).sum(axis=1) >= 4], 2, axis=-1), 0)
    assert found.particle_error < 0.03 * DEPOSIT
    assert abs(found.particle / DEPOSIT - 1) < 0.15 + 5 * found.particle_error / DEPOSIT


def test_inclined_particles_are_counted_as_vertical_ones():
    inclined = signals() / np.float32(np.cos(np.deg2rad(40.0)))
    found = calibrate(array(), inclined, 0, np.full(len(inclined), 40.0))
    assert found.particle == pytest.approx(calibrate(array(), signals(), 0).particle, rel=1e-5)


def test_threshold_and_saturation_are_found_where_they_are():
    found = calibrate(array(), signals(threshold=3.0, limit=2000.0), 0)
    assert found.threshold == pytest.approx(3.0, rel=0.05)
    assert found.saturation == 2000.0
    free = calibrate(array(), signals(), 0)
    assert free.saturation is None
    assert "no saturation up to" in free.words("MeV")


def test_what_few_signals_do_not_tell_is_not_determined():
    found = calibrate(array(), signals(n=5), 0)
    assert found.particle is None
    assert f"single particle not determined ({found.n_signals} signals, 100 needed)" in found.words("MeV")
    full = np.random.default_rng(1).exponential(100.0, (300, 8, 8, 2)).astype(np.float32)
    assert calibrate(array(), full, 0).particle is None
    crowded = np.where(np.random.default_rng(2).random(full.shape) < 0.45, full, 0.0)
    assert "not determined (stations beside silent ones are hit" in calibrate(array(), crowded, 0).words("MeV")
    assert calibrate(array(), 0 * full, 0).n_signals == 0


@pytest.mark.parametrize(
    ("unit", "card", "words"),
    [
        (1 / 9.5, NO_CARD, r'in units of a particle \(unit = "mip"\)'),
        (1e3, NO_CARD, "in keV"),
        (1e-3, NO_CARD, "in GeV"),
        (30.0, NO_CARD, "say electron_deposit_mev in array.toml"),
        (1.0, ArrayCard(response={"electron_deposit_mev": 240.0, "muon_deposit_mev": 9.0}), "the array's card has 240"),
    ],
)
def test_units_that_do_not_fit_the_signals_are_named(unit, card, words):
    remarks = signal_remarks("set", array(card), signals(unit=unit))
    assert remarks
    assert re.search(words, remarks[0])


def test_fitting_units_are_silent():
    assert signal_remarks("set", array(), signals()) == []
    tank = array(ArrayCard(response={"electron_deposit_mev": 240.0, "muon_deposit_mev": 240.0}))
    assert signal_remarks("set", tank, signals(unit=240 / 9.5)) == []
