"""The stations read what the densities promise; the trigger counts hit stations in clusters.

Random numbers of the compiled kernels are tested by moments, distributions and independence of streams.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from scipy import stats

from showerstack.showers.array import KASCADE
from showerstack.showers.atmosphere import altitude_of
from showerstack.showers.front import FrontModel
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.lateral import axis_distance, density
from showerstack.showers.schema import GAMMA
from showerstack.showers.simulation import compiled
from showerstack.showers.simulation.cascade import Showers, develop
from showerstack.showers.simulation.deposits import stream_offsets
from showerstack.showers.simulation.detector import Readings, as_steep, clump_sigma, expected, punch_through, read_out
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.primaries import Primaries, throw_primaries
from showerstack.showers.simulation.reconstruction import (
    AGE_RANGE,
    error_factor,
    reconstruct,
    sizes,
    triggered,
    with_failures,
)
from showerstack.showers.simulation.settings import Settings, load_settings

N = 3_000
QUIET = Settings().changed(
    detector__electron_stray=0.0,
    detector__muon_stray=0.0,
    detector__electron_threshold_mev=0.0,
    detector__muon_threshold_mev=0.0,
    detector__dead=0.0,
    shape__clump_sigma=0.0,
)


def _showers(
    n: int = N, *, lg_ne: float = 5.3, lg_nmu: float = 4.3, mass: int = 1, zenith_deg: float = 20.0
) -> Showers:
    full = np.full
    primaries = Primaries(
        mass=full(n, mass),
        label=full(n, 0, dtype=np.int8),
        model=full(n, 0, dtype=np.int8),
        lg_energy=full(n, 15.3),
        zenith_deg=full(n, zenith_deg),
        azimuth_deg=full(n, 65.0),
        core_x_m=full(n, 12.0),
        core_y_m=full(n, -7.0),
    )
    return Showers(primaries, full(n, 550.0), full(n, lg_ne), full(n, lg_nmu), full(n, 1.05), full(n, 1.4))


def _read(showers: Showers, settings: Settings, seed: int = 1) -> Readings:
    n = len(showers.xmax)
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    return read_out(showers, np.arange(n), settings, keys, rng.standard_normal((n, 6, 2)))


def test_mean_deposits() -> None:
    showers = _showers()
    readings = _read(showers, QUIET)
    electrons, muons, punch, per_electron = (values[0] for values in expected(showers, np.arange(1), QUIET))
    d, cosine = QUIET.detector, np.cos(np.radians(20.0))
    area = KASCADE.electron_area_m2.ravel()[KASCADE.cells]
    mean_e = d.electron_mev / cosine * (per_electron * electrons + muons * area)
    mean_mu = d.muon_mev / cosine * muons * KASCADE.muon_area_m2.ravel()[KASCADE.cells] + d.punch_mev * punch
    error = readings.electron.std(axis=0) / np.sqrt(N)
    assert np.abs((readings.electron.mean(axis=0) - mean_e) / error).max() < 6.5
    outer = mean_mu > 0.0
    error = readings.muon.std(axis=0)[outer] / np.sqrt(N)
    assert np.abs((readings.muon.mean(axis=0) - mean_mu)[outer] / error).max() < 6.5
    assert not readings.muon[:, ~outer].any()


def test_deposits_fluctuate_as_compounds() -> None:
    # Variance of a compound of Poisson counts and Gamma(shape k) deposits of mean m: n m^2 (1 + 1/k).
    showers = _showers(lg_nmu=-3.0)
    readings = _read(showers, QUIET)
    electrons, _, _, per_electron = (values[0] for values in expected(showers, np.arange(1), QUIET))
    one = QUIET.detector.electron_mev / np.cos(np.radians(20.0)) * per_electron
    # shape * n inside the Gamma makes the variance per electron m^2 / k on top of Poisson's.
    variance = electrons * one**2 * (1.0 + 1.0 / QUIET.detector.electron_shape)
    bright = electrons > 3.0
    assert (readings.electron.var(axis=0)[bright] / variance[bright]).mean() == pytest.approx(1.0, rel=0.03)


def test_caps_and_thresholds() -> None:
    readings = _read(_showers(200, lg_ne=9.5, lg_nmu=8.0), Settings())
    assert readings.electron.max() == Settings().detector.electron_cap_mev
    assert readings.muon.max() == Settings().detector.muon_cap_mev
    faint = _read(_showers(500, lg_ne=4.0), Settings())
    assert faint.electron[faint.electron > 0.0].min() >= Settings().detector.electron_threshold_mev


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_muons_cross_both_detectors_of_a_station(share: float) -> None:
    # Deposits without a spread count the muons; what both detectors see is the variance that they have in common.
    settings = QUIET.changed(
        detector__muon_overlap=share, detector__muon_in_electron_shape=1e6, detector__muon_shape=1e6
    )
    readings = _read(_showers(lg_ne=-3.0, lg_nmu=5.0), settings)
    d, cosine = settings.detector, np.cos(np.radians(20.0))
    outer = KASCADE.has_muon.ravel()[KASCADE.cells]
    above = np.rint(readings.electron[:, outer] * cosine / d.electron_mev)
    below = np.rint(readings.muon[:, outer] * cosine / d.muon_mev)
    assert below.mean() / above.mean() == pytest.approx(3.24 / 1.57, rel=0.02), "areas alone decide the means"
    assert below.var(axis=0).sum() == pytest.approx(below.mean(axis=0).sum(), rel=0.02), "each is Poisson"
    common = ((above - above.mean(axis=0)) * (below - below.mean(axis=0))).mean(axis=0).sum()
    assert common / above.mean(axis=0).sum() == pytest.approx(share, abs=0.02)


def test_dead_stations_read_nothing_in_either_detector() -> None:
    settings = QUIET.changed(detector__dead=0.3)
    readings = _read(_showers(1_000, lg_ne=6.5, lg_nmu=6.5), settings)
    outer = KASCADE.has_muon.ravel()[KASCADE.cells]
    dead = readings.electron == 0.0
    assert dead.mean() == pytest.approx(0.3, abs=0.01)
    assert np.array_equal(dead[:, outer], readings.muon[:, outer] == 0.0)


def test_clumps_of_nuclei_by_hand() -> None:
    """Iron's are three times a proton's, as set; in between they grow as a power of A, and fall with energy as set."""
    world = Settings().changed(shape__clump_sigma=0.2, shape__clump_iron_factor=3.0, shape__clump_slope=-0.5)
    proton = 0.2 * 10 ** (-0.5 * 0.8)  # at lg E = 15.3
    masses = {0: 0.0, 1: proton, 4: proton * 3 ** (np.log(4) / np.log(56)), 56: 3 * proton}
    for mass, sigma in masses.items():
        assert clump_sigma(_showers(2, mass=mass), world) == pytest.approx(sigma)


def test_clumps_add_variance_beyond_poisson() -> None:
    smooth = _read(_showers(lg_ne=6.3, mass=56), QUIET)
    clumpy = _read(_showers(lg_ne=6.3, mass=56), QUIET.changed(shape__clump_sigma=0.5))
    # Far from the core in metres: the fluctuation is flat beyond 15 m.
    far = np.hypot(KASCADE.x_m - 12.0, KASCADE.y_m + 7.0).ravel()[KASCADE.cells] > 20.0
    ratio = clumpy.electron.var(axis=0)[far] / smooth.electron.var(axis=0)[far]
    assert ratio.mean() > 1.3
    assert clumpy.electron[:, far].mean() == pytest.approx(smooth.electron[:, far].mean(), rel=0.01)


def test_punch_through_of_photons_and_hadrons() -> None:
    settings = Settings().changed(detector__punch_mass=0.1)
    d = settings.detector
    iron = d.punch * 56.0**0.1
    kinds = (1, d.punch, d.punch_range_m), (56, iron, d.punch_range_m), (0, d.punch_photon, d.punch_photon_range_m)
    for mass, share, scale in kinds:
        electrons, _, punch, _ = (values[0] for values in expected(_showers(1, mass=mass), np.arange(1), settings))
        r_m = axis_distance(KASCADE.x_m, KASCADE.y_m, 12.0, -7.0, 20.0, 65.0).ravel()[KASCADE.cells]
        outer = KASCADE.has_muon.ravel()[KASCADE.cells]
        per_m2 = (electrons / KASCADE.electron_area_m2.ravel()[KASCADE.cells] / np.cos(np.radians(20.0)))[outer]
        assert punch[outer] == pytest.approx(per_m2 * 3.24 * share * np.exp(-r_m[outer] / scale), rel=1e-4)
        assert not punch[~outer].any()


def test_trigger_counts_within_one_cluster() -> None:
    trigger = Settings().trigger
    counts = np.array([trigger.stations - 1, trigger.stations, 16])
    assert triggered(counts, trigger).tolist() == [False, True, True]


def test_largest_cluster_of_hand_made_showers() -> None:
    # A shower far outside has only strays; cluster counts follow from the grids themselves.
    readings = _read(_showers(400, lg_ne=4.3), Settings())
    hit = np.zeros((400, 256), dtype=bool)
    hit[:, KASCADE.cells] = readings.electron > 0.0
    by_cluster = np.stack([hit[:, KASCADE.cluster.ravel() == k].sum(axis=1) for k in range(16)])
    assert np.array_equal(by_cluster.max(axis=0), readings.largest_cluster)
    assert np.array_equal(hit.sum(axis=1), readings.hits)


def test_reconstruction_returns_the_truth() -> None:
    settings = QUIET.changed(shape__electron_r0_m=40.0, reconstruction__muon_failure=0.0, reconstruction__muon_loss=0.0)
    showers = _showers(2_000, lg_ne=6.0, lg_nmu=5.0)
    readings = _read(showers, settings)
    zero = np.zeros(2_000)
    lg_ne, lg_nmu, age = sizes(readings, zero + 12.0, zero - 7.0, zero + 20.0, zero + 65.0, zero, settings)
    assert lg_ne.mean() == pytest.approx(6.0, abs=0.01)
    assert age.mean() == pytest.approx(1.05, abs=0.01)
    # The muon age it assumes differs from the true one, 1.40.
    assert lg_nmu.mean() == pytest.approx(5.0, abs=0.12)
    assert lg_nmu.std() < 0.06


@pytest.mark.parametrize(("lg_ne", "lg_nmu"), [(6.5, 5.3), (4.4, 3.4)])
def test_errors_of_direction_and_core_are_as_set(lg_ne: float, lg_nmu: float) -> None:
    settings = Settings()
    showers = _showers(4_000, lg_ne=lg_ne, lg_nmu=lg_nmu)
    readings = _read(showers, settings)
    rng = np.random.default_rng(3)
    event = reconstruct(
        showers, np.arange(4_000), readings, settings, rng.standard_normal((6, 4_000)), rng.random((4, 4_000))
    )
    hits = np.maximum(readings.hits, 5)
    core_m = settings.reconstruction.core_m * np.sqrt((np.clip(60.0 / hits, 0.4, 4.0) ** 2).mean())
    angle_deg = settings.reconstruction.angle_deg * np.sqrt((np.clip(np.sqrt(60.0 / hits), 0.7, 3.0) ** 2).mean())
    assert (event.core_x_m - 12.0).std() == pytest.approx(core_m, rel=0.1)
    assert (event.zenith_deg - 20.0).std() == pytest.approx(angle_deg, rel=0.08)
    across_deg = (event.azimuth_deg - 65.0) * np.sin(np.radians(20.0))
    assert across_deg.std() == pytest.approx(angle_deg, rel=0.08), "the same error across the shower's direction"


def test_errors_beyond_the_readings_fall_with_the_size() -> None:
    assert error_factor(np.array([5.0, 6.0, 2.0]), 5.0) == pytest.approx([1.0, 10.0**-0.5, 3.0])


def test_electron_number_follows_the_error_of_the_age() -> None:
    exact, wrong = (Settings().changed(reconstruction__age_error=error) for error in (0.0, 0.05))
    n = 4_000
    readings = _read(_showers(n, lg_ne=5.0), exact)
    axis = (np.full(n, value) for value in (12.0, -7.0, 20.0, 65.0))
    core_x_m, core_y_m, zenith_deg, azimuth_deg = axis
    normal = np.random.default_rng(4).standard_normal(n)
    (lg_ne, _, age), (lg_ne_wrong, _, age_wrong) = (
        sizes(readings, core_x_m, core_y_m, zenith_deg, azimuth_deg, normal, settings) for settings in (exact, wrong)
    )
    inside = (age > AGE_RANGE[0] + 0.3) & (age < AGE_RANGE[1] - 0.2)
    error = (age_wrong - age)[inside]
    assert error.std() == pytest.approx(0.05 * error_factor(lg_ne[inside], 5.0).mean(), rel=0.08)
    assert np.corrcoef(error, (lg_ne_wrong - lg_ne)[inside])[0, 1] > 0.8, "older showers have more electrons outside"


def test_energy_formula_by_hand() -> None:
    one = np.ones(1)
    # At the reference zenith the sizes enter as they are.
    result = reconstructed_energy(5.0 * one, 4.0 * one, np.degrees(np.arccos(1.0 / 1.0250)) * one)
    assert result == pytest.approx([10.93499 + 1.2894 + 2.66816 + 1.87675 + 1.48432 - 3.2262])
    vertical = reconstructed_energy(5.0 * one, 4.0 * one, 0.0 * one)
    a, b = 5.0 - 2.8104 * 0.0250, 4.0 - 0.53955 * 0.0250
    assert vertical == pytest.approx(
        [10.93499 + 0.25788 * a + 0.66704 * b + 0.07507 * a**2 + 0.09277 * b**2 - 0.16131 * a * b]
    )


def test_muon_numbers_fail_for_hadrons_alone_and_oftener_for_nuclei() -> None:
    n = 200_000
    settings = Settings().changed(reconstruction__muon_failure=0.01, reconstruction__muon_failure_mass=0.25)
    chance = np.random.default_rng(1).random((4, n))
    for mass, share in ((0, 0.0), (1, 0.01), (16, 0.02), (56, 0.01 * 56**0.25)):
        result = with_failures(np.full(n, 5.0), np.full(n, mass), settings, chance)
        failed = result[result != 5.0]
        assert abs(len(failed) / n - share) <= 4.0 * np.sqrt(share / n), mass
        if mass:
            assert 2.05 <= failed.min() < failed.max() <= 3.6
            assert failed.mean() == pytest.approx(2.825, abs=0.06)
    assert (with_failures(np.full(n, 1.9), np.full(n, 56), settings, chance) == 1.9).all(), "never larger"


def test_parts_of_the_muons_are_lost_as_set() -> None:
    n = 200_000
    own = {"muon_failure": 0.0, "muon_loss": 0.02, "muon_loss_mass": 0.5, "muon_loss_min": 0.2, "muon_loss_max": 0.6}
    settings = Settings().changed(**{f"reconstruction__{name}": value for name, value in own.items()})
    chance = np.random.default_rng(2).random((4, n))
    for mass, share in ((0, 0.0), (1, 0.02), (4, 0.04)):
        lost = 5.0 - with_failures(np.full(n, 5.0), np.full(n, mass), settings, chance)
        assert abs((lost > 0.0).mean() - share) <= 4.0 * np.sqrt(share / n), mass
        if mass:
            some = lost[lost > 0.0]
            assert 0.2 <= some.min() < some.max() <= 0.6
            assert some.mean() == pytest.approx(0.4, abs=0.01)


def test_front_thickens_with_distance_and_thins_with_particles() -> None:
    # A vertical shower: all differences of mean times are those of the delays, sigma = 2.6 ns (1 + r / 30 m)^1.5.
    n = 4_000
    r_m = np.array([[0.0, 30.0, 100.0, 100.0, 100.0]])
    array = SimpleNamespace(x_m=r_m, y_m=np.zeros_like(r_m))
    still = dict.fromkeys(("core_x_m", "core_y_m", "zenith_deg", "azimuth_deg"), np.zeros(n))
    grids = np.zeros((n, 1, 5, 2), np.float32)
    grids[:, 0, :, 0] = [10.0, 10.0, 10.0, 40.0, 0.0]
    events = SimpleNamespace(
        showers=SimpleNamespace(primaries=SimpleNamespace(**still)), rows=np.arange(n), array=array, grids=grids
    )
    times = arrival_times(events, np.random.default_rng(3))[:, 0]
    assert not times[:, 4].any()
    late = 2.6 * (1.0 + np.array([0.0, 30.0, 100.0, 100.0]) / 30.0) ** 1.5 / [1.0, 1.0, 1.0, 4.0]
    gap = times[:, 1:4] - times[:, :1]
    error = gap.std(axis=0) / np.sqrt(n)
    assert np.abs((gap.mean(axis=0) - (late[1:] - late[0])) / error).max() < 5.5


@pytest.mark.parametrize(
    ("xmax", "zenith_deg", "distance"), [(570.0, 0.0, 1.0), (400.0, 0.0, None), (570.0, 42.0, None)]
)
def test_a_far_maximum_makes_a_flat_front(xmax: float, zenith_deg: float, distance: float | None) -> None:
    """The radius follows the distance to the maximum: the card's is that of a vertical shower's at 570 g/cm2."""
    cosine = math.cos(math.radians(zenith_deg))
    away = [(float(altitude_of(x * c)) - float(altitude_of(1023.0))) / c for x, c in ((xmax, cosine), (570.0, 1.0))]
    if distance is not None:
        assert away[0] / away[1] == distance
    x_m = np.array([[0.0, 300.0]])
    array = SimpleNamespace(x_m=0 * x_m, y_m=x_m, depth_g_cm2=None)
    axis = {"core_x_m": 0.0, "core_y_m": 0.0, "zenith_deg": zenith_deg, "azimuth_deg": 0.0}
    showers = SimpleNamespace(
        primaries=SimpleNamespace(**{name: np.array([v]) for name, v in axis.items()}), xmax=np.array([xmax])
    )
    grids = np.full((1, 1, 2, 2), 10.0, np.float32)
    events = SimpleNamespace(showers=showers, rows=np.zeros(1, dtype=int), array=array, grids=grids)
    exact = FrontModel(resolution_ns=0.0, thickness_ns=0.0)
    times = arrival_times(events, np.random.default_rng(1), exact)[0, 0]
    late_ns = 300.0**2 / (2 * 0.299792458 * exact.curvature_m * away[0] / away[1])
    assert times[1] - times[0] == pytest.approx(late_ns, rel=1e-4)


def test_unequal_gains_and_other_lateral_forms() -> None:
    """Gains are of detectors, not of events; another form is as steep at 40 m as KASCADE's."""
    rng = np.random.default_rng(4)
    settings = load_settings()
    showers = develop(throw_primaries(GAMMA, N, "mix", settings.spectrum, rng), settings, rng)
    seeing = np.arange(N), rng.integers(0, 2**64, N, dtype=np.uint64), rng.standard_normal((N, 6, 2))
    known, uneven = (
        read_out(showers, seeing[0], world, *seeing[1:])
        for world in (settings, settings.changed(detector__gain_spread=0.1))
    )
    for one, other in ((known.electron, uneven.electron), (known.muon, uneven.muon)):
        gain = np.where((one > 0) & (one < 1e4), other / np.where(one > 0, one, 1.0), np.nan)
        gain = gain[:, np.isfinite(gain).any(axis=0)]
        assert np.nanstd(gain, axis=0).max() < 1e-4
        assert 0.07 < np.log(np.nanmean(gain, axis=0)).std() < 0.13
    r_m, age = np.array([35.0, 45.0]), np.array([0.7, 1.0, 1.3])[:, None]
    nkg = (2.0, 4.5, 89.0)
    same = as_steep(age, nkg, (1.5, 3.6, 40.0), 40.0)
    assert same[1, 0] == pytest.approx(1.217, abs=2e-3)
    slopes = [
        np.diff(np.log(density(r_m, 1e5, s, r0, alpha, beta)))
        for s, (alpha, beta, r0) in ((age, (1.5, 3.6, 40.0)), (same, nkg))
    ]
    assert slopes[0] == pytest.approx(slopes[1], abs=2e-3)


N_DEVIATES = 20_000
OFFSETS = stream_offsets(800)


@numba.njit
def _sample(kind: int, parameter: float, n: int, offsets: np.ndarray) -> np.ndarray:
    state = np.empty(1, dtype=np.uint64)
    values = np.empty(n)
    for k in range(n):
        compiled.start(state, np.uint64(k), offsets[k % len(offsets)])
        if kind == 0:
            values[k] = compiled.uniform(state)
        elif kind == 1:
            values[k] = compiled.normal(state)
        elif kind == 2:
            values[k] = compiled.exponential(state)
        elif kind == 3:
            values[k] = compiled.gamma(state, parameter)
        else:
            values[k] = compiled.poisson(state, parameter)
    return values


@pytest.mark.parametrize(
    ("kind", "parameter", "law"),
    [
        (0, 0.0, stats.uniform()),
        (1, 0.0, stats.norm()),
        (2, 0.0, stats.expon()),
        (3, 0.72, stats.gamma(0.72)),
        (3, 1.0, stats.gamma(1.0)),
        (3, 37.0, stats.gamma(37.0)),
    ],
)
def test_continuous_laws(kind: int, parameter: float, law: stats.rv_continuous) -> None:
    # The first number of 20,000 different streams: a bad hash would show here.
    distance = stats.kstest(_sample(kind, parameter, N_DEVIATES, OFFSETS), law.cdf).statistic
    assert distance < 2.3 / np.sqrt(N_DEVIATES), "0.87 expected, 0.26 its spread"


@pytest.mark.parametrize("mean", [0.003, 0.7, 5.0, 11.9, 12.1, 60.0, 4e4])
def test_poisson(mean: float) -> None:
    counts = _sample(4, mean, N_DEVIATES, OFFSETS)
    assert counts.mean() == pytest.approx(mean, abs=4.5 * np.sqrt(mean / N_DEVIATES))
    law = stats.poisson(mean)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 10)))
    result = np.searchsorted(np.sort(counts), edges, side="right") / N_DEVIATES
    assert result == pytest.approx(law.cdf(edges), abs=4.5 * 0.5 / np.sqrt(N_DEVIATES))


def test_rejection_draws_no_particle_as_often_as_the_law_says() -> None:
    n = 2_000_000
    zeros = np.count_nonzero(_sample(4, compiled.INVERSION_LIMIT, n, OFFSETS) == 0)
    assert 0 < zeros < 2.5 * n * np.exp(-compiled.INVERSION_LIMIT), "12 expected"


def test_no_particles_without_expectation() -> None:
    assert not _sample(4, 0.0, 100, OFFSETS).any()


def test_streams_of_one_event_are_uncorrelated() -> None:
    @numba.njit
    def pairs(n: int, offsets: np.ndarray) -> np.ndarray:
        state = np.empty(1, dtype=np.uint64)
        values = np.empty((n, 2))
        for k in range(n):
            for stream in range(2):
                compiled.start(state, np.uint64(k), offsets[stream])
                values[k, stream] = compiled.uniform(state)
        return values

    correlation = np.corrcoef(pairs(N_DEVIATES, OFFSETS).T)[0, 1]
    assert abs(correlation) < 4.5 / np.sqrt(N_DEVIATES)
    assert len(np.unique(OFFSETS)) == len(OFFSETS)


def test_punch_through_and_clumps_follow_the_showers_own_muons() -> None:
    """A proton of mean muon number is as before, one without muons a photon; nuclei and photons stay what they are."""
    world = load_settings("gammas")
    assert world.detector.punch_content == 1.0
    masses, r_m = np.array([1, 1, 1, 56, 0]), np.linspace(0.0, 60.0, 7, dtype=np.float32)
    content = np.array([1.0, 0.0, 0.5, 1.0, 1.0], dtype=np.float32)
    plain = punch_through(r_m, masses[:, None], world)
    own = punch_through(r_m, masses[:, None], world, content[:, None])
    np.testing.assert_allclose(own[0], np.maximum(plain[0], plain[4]), rtol=1e-6)
    np.testing.assert_allclose(own[1], plain[4], rtol=1e-6)
    np.testing.assert_allclose(own[2], 0.5 * (own[0] + own[1]), rtol=1e-5)
    np.testing.assert_array_equal(own[3:], plain[3:])
    primaries = throw_primaries(GAMMA, 20_000, "qgs", world.spectrum, np.random.default_rng(4))
    showers = develop(primaries, world, np.random.default_rng(5))
    assert showers.content is not None
    proton = primaries.mass == 1
    assert (showers.content[~proton] == 1.0).all()
    assert np.median(showers.content[proton]) == pytest.approx(1.0, abs=0.1)
    assert showers.content.max() <= 1.5
    sigma = clump_sigma(showers, world), clump_sigma(replace(showers, content=None), world)
    poor = proton & (showers.content < 0.3) & (sigma[0] > 0)
    np.testing.assert_allclose(sigma[0][poor], sigma[1][poor] * showers.content[poor])
    assert develop(primaries, load_settings(), np.random.default_rng(5)).content is None
