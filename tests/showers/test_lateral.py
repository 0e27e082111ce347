"""Lateral distributions: their integral is the particle number, their shape is the formula's."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.integrate import quad

from showers.lateral import (
    MAX_ELECTRON_AGE,
    MIN_R_M,
    axis_distance,
    electron_normalisation,
    rho_electron,
    rho_muon,
)


def _in_plane(density, **arguments) -> float:
    """Integrate a density over the plane beyond 1 m, in ln r, where it is smooth."""

    def ring(log_r: float) -> float:
        r = np.exp(log_r)
        return 2.0 * np.pi * r * r * float(density(np.float64(r), **arguments))

    return quad(ring, np.log(MIN_R_M), np.log(1e12), limit=800, epsabs=0.0, epsrel=1e-8)[0]


def _inside(density, **arguments) -> float:
    """Integrate the power law inside 1 m, where the functions themselves are cut off, by its leading term."""
    slope = arguments.pop("slope")
    edge = float(density(np.float64(MIN_R_M), **arguments))
    return 2.0 * np.pi * MIN_R_M**2 * edge / (slope + 2.0)


@pytest.mark.parametrize("age", [0.8, 1.0, 1.2, 1.4])
def test_electrons_integrate_to_their_number(age: float) -> None:
    total = _in_plane(rho_electron, n_e=1e5, age=np.float64(age))
    total += _inside(rho_electron, n_e=1e5, age=np.float64(age), slope=age - 1.5)
    assert total == pytest.approx(1e5, rel=3e-3)


@pytest.mark.parametrize("age", [1.0, 1.3, 1.6])
def test_muons_integrate_to_their_number(age: float) -> None:
    total = _in_plane(rho_muon, n_mu=1e4, age=np.float64(age))
    total += _inside(rho_muon, n_mu=1e4, age=np.float64(age), slope=age - 2.0)
    assert total == pytest.approx(1e4, rel=3e-3)


def test_formula_by_hand() -> None:
    # At r = r0 both powers have base 1 and 2.
    c = electron_normalisation(np.float64(1.1))
    assert rho_electron(np.float64(40.0), 1e5, np.float64(1.1)) == pytest.approx(1e5 * c * 2.0 ** (1.1 - 3.6))


def test_density_is_held_inside_one_metre() -> None:
    near = rho_electron(np.array([0.0, 0.5, 1.0]), 1e5, np.float64(1.0))
    assert np.all(near == near[-1])


@pytest.mark.parametrize("age", [MAX_ELECTRON_AGE, 1.7, -0.6])
def test_no_density_where_the_integral_diverges(age: float) -> None:
    assert np.isnan(rho_electron(np.float64(50.0), 1e5, np.float64(age)))


def test_axis_distance_along_and_across_the_axis() -> None:
    # 100 m from the core: across the shower's azimuth nothing shrinks, along it the distance is 100 cos(zenith).
    x, y = np.array([100.0, 0.0]), np.array([0.0, 100.0])
    r = axis_distance(x, y, 0.0, 0.0, np.float64(40.0), np.float64(90.0))
    assert r == pytest.approx([100.0, 100.0 * np.cos(np.radians(40.0))])


def test_float32_stays_float32_and_agrees() -> None:
    r = np.geomspace(1.0, 300.0, 50)
    single = rho_electron(r.astype(np.float32), np.float32(1e5), np.float32(1.2))
    assert single.dtype == np.float32
    assert single == pytest.approx(rho_electron(r, 1e5, np.float64(1.2)), rel=2e-5)


def test_importing_the_package_changes_no_setting_of_scipy() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SCIPY_ARRAY_API"}
    code = "import os, numpy, torch; from showers.lateral import *; print(os.environ.get('SCIPY_ARRAY_API')); "
    code += "print(float(muon_normalisation(torch.tensor(1.3), xp=torch)), muon_normalisation(1.3))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    setting, values = done.stdout.splitlines()
    assert setting == "None"
    of_torch, of_numpy = map(float, values.split())
    assert of_torch == pytest.approx(of_numpy, rel=1e-5)
