"""Fronts of known direction, curvature and thickness are found again; late stations and few stations do no harm.

Limits are five standard deviations from the mean of twelve seeds.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import array_api_compat.numpy
import array_api_compat.torch
import array_api_strict
import numpy as np
import pytest

from showerstack.showers.array import KASCADE
from showerstack.showers.front import LIGHT_M_PER_NS, PUBLISHED, Front, fit_front

N = 1_000
X, Y = KASCADE.x_m.ravel(), KASCADE.y_m.ravel()


class Drawn(NamedTuple):
    """Fronts and what they were made of."""

    times_ns: np.ndarray
    particles: np.ndarray
    core_x_m: np.ndarray
    core_y_m: np.ndarray
    u: np.ndarray
    v: np.ndarray

    def fit(self, xp: ModuleType = np, **options) -> Front:
        given = (self.times_ns, self.particles, X, Y, self.core_x_m, self.core_y_m)
        return fit_front(*(xp.asarray(np.asarray(one, np.float32)) for one in given), xp=xp, **options)

    def opening_angles_deg(self, front: Front) -> np.ndarray:
        """Angles between true and fitted directions, (n,); 180 without a direction."""
        fitted = front.towards_x.astype(np.float64), front.towards_y.astype(np.float64)
        with np.errstate(invalid="ignore"):
            down = np.sqrt(1 - fitted[0] ** 2 - fitted[1] ** 2) * np.sqrt(1 - self.u**2 - self.v**2)
            angles = np.degrees(np.arccos(np.clip(fitted[0] * self.u + fitted[1] * self.v + down, -1, 1)))
        return np.nan_to_num(angles, nan=180.0)


def draw(
    seed: int = 1,
    *,
    n: int = N,
    clock_ns: float = 1.0,
    thickness: float = 1.0,
    radius_m: float = PUBLISHED.curvature_m,
    late: float = 0.0,
    particles: float | None = None,
) -> Drawn:
    """Draw fronts whose particles are exponentially late; a share ``late`` of the stations by 0.1 to 2 µs more."""
    rng = np.random.default_rng(seed)
    sine, azimuth = 0.6 * np.sqrt(rng.random(n)), 2 * np.pi * rng.random(n)
    u, v = sine * np.cos(azimuth), sine * np.sin(azimuth)
    core_x, core_y = rng.uniform(-60, 60, (2, n))
    dx, dy = X - core_x[:, None], Y - core_y[:, None]
    along = dx * u[:, None] + dy * v[:, None]
    r = np.sqrt(dx**2 + dy**2 - along**2)
    size = 10 ** rng.uniform(4.8, 6, n)[:, None]
    density = size * 5e-5 * np.maximum(r, 1) ** -0.5 * (1 + r / 40) ** -2.6
    seen = rng.poisson(density * 1.57) if particles is None else np.full(r.shape, particles)
    seen = np.where(KASCADE.has_station.ravel(), seen, 0)
    delay = thickness * PUBLISHED.late_ns(r) * rng.standard_exponential(r.shape) / np.maximum(seen, 1)
    front = -along / LIGHT_M_PER_NS + r**2 / (2 * radius_m * LIGHT_M_PER_NS)
    stray = np.where(rng.random(r.shape) < late, rng.uniform(100, 2000, r.shape), 0)
    times = 500.0 + front + delay + clock_ns * rng.standard_normal(r.shape) + stray
    return Drawn(np.where(seen > 0, times, np.nan), seen.astype(float), core_x, core_y, u, v)


def _width(pulls: np.ndarray) -> float:
    return float(np.diff(np.quantile(pulls, [0.16, 0.84]))[0] / 2)


def test_an_exact_front_is_found_exactly() -> None:
    drawn = draw(n=50, clock_ns=0.0, thickness=0.0, radius_m=1_500.0, particles=1e6)
    front = drawn.fit()
    assert drawn.opening_angles_deg(front).max() < 0.01
    np.testing.assert_allclose(front.curvature_per_m, 1 / 1_500.0, rtol=0.02)
    assert np.abs(front.residual_ns).max() < 0.05
    assert np.abs(front.plane_residual_ns).max() > 5.0


def test_directions_have_their_errors() -> None:
    drawn = draw()
    front = drawn.fit()
    pulls = np.concatenate(
        [(front.towards_x - drawn.u) / np.sqrt(front.covariance[0]),
         (front.towards_y - drawn.v) / np.sqrt(front.covariance[1])]
    )  # fmt: skip
    assert 0.73 < _width(pulls) < 0.93, _width(pulls)
    assert abs(np.median(pulls)) < 0.14
    zenith, azimuth = front.zenith_azimuth_deg()
    true_zenith = np.degrees(np.arcsin(np.hypot(drawn.u, drawn.v)))
    true_azimuth = np.degrees(np.arctan2(drawn.v, drawn.u))
    zenith_error, azimuth_error = front.errors_deg()
    assert 0.67 < _width((zenith - true_zenith) / zenith_error) < 0.98
    assert 0.67 < _width(((azimuth - true_azimuth + 180) % 360 - 180) / azimuth_error) < 0.98
    assert np.median(drawn.opening_angles_deg(front)) < 0.71


def test_a_clock_that_is_worse_than_told_shows_in_the_errors() -> None:
    drawn = draw(clock_ns=20.0)
    told, not_told = drawn.fit(model=PUBLISHED._replace(resolution_ns=20.0)), drawn.fit()
    for front, low, high in ((told, 0.73, 1.01), (not_told, 1.2, 1.85)):
        pulls = (front.towards_x - drawn.u) / np.sqrt(front.covariance[0])
        assert low < _width(pulls) < high, _width(pulls)
    assert np.median(not_told.width) > 2.2
    assert np.median(told.width) < 1.1


@pytest.mark.parametrize("late", [0.03, 0.1, 0.2])
def test_late_stations_do_not_turn_the_front(late: float) -> None:
    without, drawn = draw(), draw(late=late)
    usual = np.quantile(without.opening_angles_deg(without.fit()), 0.68)
    front = drawn.fit()
    assert np.quantile(drawn.opening_angles_deg(front), 0.68) < (1.05 + 1.4 * late) * usual
    far = drawn.times_ns - draw().times_ns > 150.0
    assert np.mean(front.trust[far & front.used] == 0.0) > 0.97


def test_one_late_particle_among_eight_stations() -> None:
    drawn = draw(n=400)
    rng = np.random.default_rng(0)
    times = np.full_like(drawn.times_ns, np.nan)
    for event in range(400):
        hit = rng.permutation(np.flatnonzero(drawn.particles[event] > 0))[:8]
        times[event, hit] = drawn.times_ns[event, hit]
    before = drawn._replace(times_ns=times)
    usual = np.median(before.opening_angles_deg(before.fit()))
    outermost = np.nanargmax(np.where(np.isfinite(times), np.hypot(X, Y), -1), axis=1)
    times[np.arange(400), outermost] += 1_000.0
    assert np.median(before.opening_angles_deg(before.fit())) < 1.4 * usual


def test_curvature_follows_the_truth() -> None:
    # The prior draws towards 0.29 per km: true are 1.25, 0.5 and 0.05.
    for radius_m, low, high in ((800.0, 0.78, 0.91), (2_000.0, 0.28, 0.36), (20_000.0, -0.05, 0.06)):
        assert low < np.median(draw(radius_m=radius_m).fit().curvature_per_m) * 1_000.0 < high


def test_neither_the_clocks_zero_nor_the_order_of_stations_counts() -> None:
    drawn = draw(n=50)
    order = np.random.default_rng(0).permutation(len(X))
    front, later = drawn.fit(), drawn._replace(times_ns=drawn.times_ns + 3_000.0).fit()
    shuffled = fit_front(
        drawn.times_ns[:, order], drawn.particles[:, order], X[order], Y[order], drawn.core_x_m, drawn.core_y_m
    )
    for other in (later, shuffled):
        np.testing.assert_allclose(other.towards_x, front.towards_x, atol=2e-5)
        np.testing.assert_allclose(other.curvature_per_m, front.curvature_per_m, atol=2e-6)


def test_few_stations() -> None:
    drawn = draw(n=6)
    times = np.full_like(drawn.times_ns, np.nan)
    for event in range(6):
        hit = np.flatnonzero(drawn.particles[event] > 0)[::5][:event]
        times[event, hit] = drawn.times_ns[event, hit]
    front = drawn._replace(times_ns=times).fit()
    assert front.stations.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isnan(front.towards_x).tolist() == [True, True, True, False, False, False]
    assert np.isnan(front.width).tolist() == [True, True, True, False, False, False]


def test_a_front_that_no_direction_has() -> None:
    times = np.where(KASCADE.has_station.ravel(), -X / LIGHT_M_PER_NS * 1.3, np.nan)[None]
    front = fit_front(times, np.full_like(times, 1e3), X, Y)
    assert front.towards_x[0] > 1.1
    assert all(np.isnan(angle[0]) for angle in front.zenith_azimuth_deg())


def test_without_a_core_the_weighted_mean_of_the_stations_serves() -> None:
    drawn = draw(n=300)
    front = fit_front(drawn.times_ns, drawn.particles, X, Y)
    missing = drawn._replace(core_x_m=np.full(300, np.nan)).fit()
    np.testing.assert_array_equal(front.towards_x, missing.towards_x)
    assert np.median(drawn.opening_angles_deg(front)) < 1.0


@pytest.mark.parametrize("xp", [array_api_compat.numpy, array_api_strict, array_api_compat.torch], ids=str)
def test_all_libraries_agree(xp: ModuleType) -> None:
    drawn = draw(n=100, late=0.05)
    front, usual = drawn.fit(xp), drawn.fit()
    for name in ("towards_x", "towards_y", "width", "curvature_per_m"):
        ours, theirs = (np.asarray(getattr(one, name)) for one in (front, usual))
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    for one, other in zip(front.zenith_azimuth_deg(xp), usual.zenith_azimuth_deg(), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, atol=0.05)
    for one, other in zip(front.errors_deg(xp), usual.errors_deg(), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=0.01)
