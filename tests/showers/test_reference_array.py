"""Every number of stations, readings and reconstructed quantities, beside the numbers they gave before.

Densities, deposits and sizes are computed in float32 and counts are drawn: sums and moments are compared to 1e-4, so
that rounding, or a single other count, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from showerstack.showers.array import KASCADE
from showerstack.showers.kascade import MASS_NUMBERS, reconstructed_energy
from showerstack.showers.simulation import compiled
from showerstack.showers.simulation.cascade import Showers
from showerstack.showers.simulation.deposits import stations_of, stream_offsets
from showerstack.showers.simulation.detector import (
    Readings,
    clump_sigma,
    energy_per_electron,
    expected,
    punch_through,
    read_out,
)
from showerstack.showers.simulation.primaries import Primaries
from showerstack.showers.simulation.reconstruction import (
    Reconstructed,
    electron_number,
    error_factor,
    muon_number,
    passes_selection,
    reconstruct,
    sizes,
    triggered,
    with_failures,
)
from showerstack.showers.simulation.settings import Settings, Trigger, load_settings
from tests.references import summary

Reference = Callable[..., None]
N = 300
ROUNDED = 1e-4
ARRAY = KASCADE.without([0, 37, 90], [3, 44])
ODD = Settings().changed(
    detector__electrons_per_muon=0.4,
    detector__electron_stray=0.05,
    detector__muon_stray=0.03,
    detector__electron_threshold_mev=4.0,
    detector__electron_cap_mev=2_000.0,
    detector__muon_cap_mev=400.0,
    detector__punch_mass=0.1,
    detector__muon_overlap=0.7,
    detector__dead=0.1,
    shape__clump_sigma=0.2,
    shape__clump_slope=-0.4,
    trigger__stations=3,
    reconstruction__electron_r0_m=36.0,
    reconstruction__lg_nmu_error=0.06,
    reconstruction__age_error=0.08,
    reconstruction__muon_failure=0.2,
    reconstruction__muon_loss=0.3,
    reconstruction__min_muons=150.0,
    reconstruction__muon_round=0.3,
)
"""A world in which every constant counts."""
QUIET = ODD.changed(
    detector__electron_threshold_mev=0.0,
    detector__muon_threshold_mev=0.0,
    detector__muon_shape=0.2,
    detector__muon_stray=0.0,
    detector__dead=0.25,
    reconstruction__min_muons=0.5,
)
"""A world that reads the smallest deposits."""
PLACES = {"default": load_settings(), "gammas": load_settings("gammas"), "odd": ODD, "quiet": QUIET}


def showers(n: int = N) -> Showers:
    """Return showers of all primaries, from those that hit no station to those that saturate many."""
    rng = np.random.default_rng(21)
    mass = np.resize((0, *MASS_NUMBERS), n)
    core = rng.uniform(-70, 70, (2, n))
    primaries = Primaries(
        mass=mass,
        label=(mass > 0).astype(np.int8),
        model=np.zeros(n, np.int8),
        lg_energy=rng.uniform(14, 17.5, n),
        zenith_deg=rng.uniform(0, 50, n),
        azimuth_deg=rng.uniform(0, 360, n),
        core_x_m=core[0],
        core_y_m=core[1],
    )
    lg_ne, lg_nmu = rng.uniform(3, 7.2, n), rng.uniform(2.5, 6, n)
    age, muon_age = rng.uniform(0.6, 1.4, n), rng.uniform(0.9, 1.6, n)
    return Showers(primaries, rng.uniform(400, 800, n), lg_ne, lg_nmu, age, muon_age, None, rng.uniform(0.2, 1.5, n))


def read(settings: Settings) -> Readings:
    """Return what the stations read of the showers."""
    rng = np.random.default_rng(22)
    keys = rng.integers(0, 2**64, size=N, dtype=np.uint64)
    return read_out(showers(), np.arange(N), settings, keys, rng.standard_normal((N, 6, 2)), ARRAY)


def moments(columns: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the moments of each column."""
    return {name: summary(values) for name, values in columns.items()}


@numba.njit
def drawn(state: np.ndarray, what: int, x: float, result: np.ndarray) -> None:
    """Fill ``result`` with numbers of a law."""
    for k in range(len(result)):
        if what == 0:
            result[k] = compiled.uniform(state)
        elif what == 1:
            result[k] = compiled.exponential(state)
        elif what == 2:
            result[k] = compiled.normal(state)
        elif what == 3:
            result[k] = compiled.gamma(state, x)
        elif what == 4:
            result[k] = compiled.poisson(state, x)
        else:
            result[k] = compiled.poisson_inverse(k / len(result), x)


def test_random_numbers(reference: Reference) -> None:
    laws = {"uniform": (0, (0.0,)), "exponential": (1, (0.0,)), "normal": (2, (0.0,)), "gamma": (3, (0.2, 0.9, 1, 30))}
    laws |= {"poisson": (4, (-1.0, 0.0, 0.3, 11.9, 12.0, 14.5, 90.0, 2e4)), "inverse": (5, (0.1, 5.0, 18.0, 190.0))}
    result = np.empty(20_000)
    got: dict[str, dict[str, float]] = {}
    for name, (what, values) in laws.items():
        for x in values:
            drawn(stream_offsets(3)[2:].copy(), what, float(x), result)
            got[f"{name} {x}"] = summary(result)
    reference(got | {"streams": stream_offsets(3) / 2.0**64}, rtol=1e-5)


def test_stations(reference: Reference) -> None:
    here = stations_of(ARRAY)
    reference(moments(here._asdict() | {"streams": here.streams / 2.0**64}))


@pytest.mark.parametrize("world", PLACES)
def test_expected_in_stations(world: str, reference: Reference) -> None:
    settings, all_showers = PLACES[world], showers()
    r_m, mass = np.array([[0.5], [8.0], [40.0], [120.0]], np.float32), np.array([0.0, 1.0, 12.0, 56.0], np.float32)
    content = np.array([1.0, 1.4, 1.0, 1.0], np.float32)
    natural = Showers(**(vars(all_showers) | {"content": None}))
    names = ("electrons", "muons", "punch", "per electron")
    reference(
        {
            "per electron": energy_per_electron(r_m[:, 0], settings),
            "punch": [summary(punch_through(r_m, mass, settings, one)) for one in (None, content)],
            "clumps": [summary(clump_sigma(one, settings)) for one in (all_showers, natural)],
            "content": moments(dict(zip(names, expected(all_showers, np.arange(N), settings, ARRAY), strict=True))),
            "natural": moments(dict(zip(names, expected(natural, np.arange(60), settings), strict=True))),
        },
        rtol=ROUNDED,
    )


@pytest.mark.parametrize("world", PLACES)
def test_readings(world: str, reference: Reference) -> None:
    readings = read(PLACES[world])
    bright = readings.electron > 0
    columns = {name: values for name, values in vars(readings).items() if name != "array"}
    columns |= {"by shower": readings.electron.sum(axis=1), "muons by shower": readings.muon.sum(axis=1)}
    columns |= {"root": np.sqrt(readings.electron), "muon root": np.sqrt(readings.muon), "muon hit": readings.muon > 0}
    reference(moments(columns) | {"log": summary(np.log(readings.electron[bright]))}, rtol=ROUNDED)


@pytest.mark.parametrize("world", PLACES)
def test_reconstruction(world: str, reference: Reference) -> None:
    settings, all_showers, rng = PLACES[world], showers(), np.random.default_rng(23)
    readings = read(settings)
    rows = np.flatnonzero(triggered(readings.largest_cluster, settings.trigger))
    errors, chance = rng.standard_normal((6, len(rows))), rng.random((4, len(rows)))
    event = reconstruct(all_showers, rows, readings.take(rows), settings, errors, chance)
    dark = Readings(*(np.zeros_like(part[:2]) for part in list(vars(readings).values())[:4]), ARRAY)
    zero = np.zeros(2)
    reference(
        {
            "event": moments(vars(event)),
            "kept": [passes_selection(event, settings.trigger).sum(), len(rows)],
            "dark": sizes(dark, zero, zero, zero + 10, zero, zero + 1, settings),
        },
        rtol=ROUNDED,
    )


def test_sizes_of_one_shower(reference: Reference) -> None:
    """Stations at given distances with given deposits, also exactly at the limits of what is used."""
    n = 12
    r_m = np.tile(np.array([0.5, 7.0, 8.0, 9.0, 20.0, 39.0, 40.0, 41.0, 60.0, 80.0, 100.0, 150.0], np.float32), (4, 1))
    area, cosine = np.full((4, n), 3.0, np.float32), np.full((4, 1), 0.9, np.float32)
    power = np.float32([[-4.5], [-3.9], [-3.4], [-4.0]])
    deposit = np.float32([[9e3], [2e3], [500.0], [0.0]]) * (1 + r_m / 30) ** power
    deposit = deposit.astype(np.float32)
    deposit[1, 4] = ODD.detector.electron_cap_mev
    area[2, 9] = 0.0
    muons = np.float32([[400.0], [60.0], [9.0], [0.0]]) * np.ones_like(r_m)
    lg_nmu, rho_mu = muon_number(muons, r_m, area, cosine, ODD)
    rho_mu = rho_mu / np.float32(300.0)
    plain = ODD.changed(reconstruction__age_error=0.0)
    errors = np.array([1.0, -1.0, 0.3, 8.0])
    sizes_and_ages = [electron_number(deposit, r_m, area, cosine, rho_mu, errors, one) for one in (ODD, plain)]
    # All on one ring, so that the variance of G is below its floor and the last step still counts.
    ring = (r_m > 70.0) & (r_m < 110.0)
    on_ring = electron_number(50 * deposit * ring, r_m, area * ring, cosine, rho_mu * ring, errors, plain)
    reference({"muons": [lg_nmu, summary(rho_mu)], "electrons": sizes_and_ages, "ring": on_ring}, rtol=ROUNDED)


def test_energies_and_errors(reference: Reference) -> None:
    zenith_deg = np.array([0.0, 20.0, 59.0, 61.0, 70.0])
    lg_sizes = np.array([2.0, 3.9, 4.5, 5.0, 7.0])
    reference(
        {"energy": reconstructed_energy(lg_sizes, lg_sizes[::-1], zenith_deg), "errors": error_factor(lg_sizes, 4.5)}
    )


def test_failures_of_muon_numbers() -> None:
    """A failed number is 2.05 + 1.55 u unless it was smaller, a lost one is 0.3 + 0.5 u lower; photons keep theirs."""
    own = ODD.reconstruction
    mass = np.array([0, 1, 1, 1, 1, 56, 56, 56])
    failure, loss = own.muon_failure * 56**own.muon_failure_mass, own.muon_loss * 56**own.muon_loss_mass
    whether = np.array([0.0, 0.21, 0.19, 0.19, 0.21, failure - 0.01, failure + 0.01, failure + 0.01])
    lost = np.array([0.0, 0.31, 0.31, 0.31, 0.29, 1.5, loss - 0.01, loss + 0.01])
    got = with_failures(
        np.array([5.0, 5, 5, 2.1, 5, 5, 5, 5]), mass, ODD, np.array([whether, mass * 0 + 0.4, lost, mass * 0 + 0.6])
    )
    failed, less = 2.05 + 1.55 * 0.4, 0.3 + 0.5 * 0.6
    assert got == pytest.approx([5, 5, failed, 2.1, 5 - less, failed, 5 - less, 5], abs=1e-12)


def test_selection_at_its_limits() -> None:
    """What is exactly at a limit is not kept; so many stations as asked for are a trigger."""
    trigger = Trigger(lg_ne_min=4.0, lg_nmu_min=3.0, zenith_max_deg=30.0, core_max_m=50.0)
    good = {"lg_ne": 4.1, "lg_nmu": 3.1, "zenith_deg": 29.0, "core_x_m": 29.9, "core_y_m": 40.0}
    for name, limit in {"": 0.0, "lg_ne": 4.0, "lg_nmu": 3.0, "zenith_deg": 30.0, "core_x_m": 30.0}.items():
        values = {"lg_energy": 15.0, "azimuth_deg": 0.0, "age": 1.0} | good | ({name: limit} if name else {})
        event = Reconstructed(**{name: np.array([value]) for name, value in values.items()})
        assert passes_selection(event, trigger).tolist() == [not name], name
    assert triggered(np.array([3, 4, 5]), trigger).tolist() == [False, True, True]
