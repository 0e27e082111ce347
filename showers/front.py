"""The shower front from the times at which stations were hit: a plane, then a curved front, with robust weights.

A station at (x, y) that n particles hit is expected at

    t = t0 - (u x + v y) / c + k r^2 / (2 c) + sigma(r) / n

with (u, v) the horizontal part of the unit vector towards the origin, r the distance from the axis and k the front's
curvature; sigma(r) = 2.6 ns (1 + r / 30 m)^1.5 is its thickness [L], of which the first of n exponential delays shows
an n-th. That is the error of a station's time as well, beside its clock's.

Sources: [L] J. Linsley, J. Phys. G 12 (1986) 51; [I] R. Abbasi et al. (IceTop), Nucl. Instrum. Meth. A 700 (2013) 188:
the quadratic term of the mean front, 4.823e-4 ns/m^2, is a radius of curvature of 3.46 km. IceTop's front, as its
software has it, bends by 19.41 ns (1 - exp(-(r / 118.1 m)^2)) more near the axis: with that, a station 100 m away is 10
ns later; it is left out here. [L] is cited as later work quotes it.

Everything is written against the array API, in float32; steps improve what is left, so that rounding does not add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from showerstack.showers.card import CLOCK_NS

if TYPE_CHECKING:
    from showerstack.showers.array import DetectorArray

LIGHT_M_PER_NS = 0.299792458
THICKNESS_POWER = 1.5
PRIOR_SPREAD = 2.0
"""Spread of the fitted curvature's prior, in mean curvatures."""
SMALLEST_NS = 0.1
"""No clock counts as better than this."""
MIN_STATIONS = 3
"""Stations with a time below which nothing is fitted."""
FAR = 5.0
"""Times so many errors from the front count nothing."""
PLANE_ROUNDS, DISTANCE_ROUNDS, CURVED_ROUNDS = 6, 2, 3
"""Steps with new weights of the plane, new distances from the axis, and steps of the curved front at each of them."""
NORMAL = 1.4826
"""Standard deviation over the median deviation of a normal distribution."""


class FrontModel(NamedTuple):
    """What arrival times are like; the keys of ``[times]`` in an array's card."""

    resolution_ns: float = CLOCK_NS
    """Of a station's clock."""
    curvature_m: float = 1.0 / (2.0 * LIGHT_M_PER_NS * 4.823e-4)
    """Radius of curvature of a mean front [I]."""
    thickness_ns: float = 2.6
    """Mean delay of a particle behind the front near the axis [L]."""
    thickness_scale_m: float = 30.0
    """Distance from the axis at which that delay is 2.8 times as long [L]."""

    def late_ns(self, r_m: Any) -> Any:
        """Return the mean delay of a particle behind the front at distance r (m) from the axis, ns [L]."""
        return self.thickness_ns * (1.0 + r_m / self.thickness_scale_m) ** THICKNESS_POWER


PUBLISHED = FrontModel()


class Front(NamedTuple):
    """Fitted fronts of n events; arrays (n,) float32 but where said, NaN with fewer than three times."""

    towards_x: Any
    """u: sin(zenith) cos(azimuth) of the origin, azimuth from +x towards +y; beyond 1 together with v: no shower."""
    towards_y: Any
    """v: sin(zenith) sin(azimuth)."""
    covariance: tuple[Any, Any, Any]
    """Variances of u and v and their covariance."""
    curvature_per_m: Any
    """Inverse radius of curvature; what is published where the times say nothing."""
    curvature_error_per_m: Any
    width: Any
    """Width of the residuals over the expected one, not below 1; errors are as much larger."""
    stations: Any
    """Stations with a time."""
    trust: Any
    """(n, S): robust weights, 1 for a station on the front, 0 for one without time or more than five errors away."""
    used: Any
    """(n, S) bool: stations with a time."""
    residual_ns: Any
    """(n, S): time minus the curved front, 0 where there is no time."""
    plane_residual_ns: Any
    """(n, S): time minus the plane."""
    expected_late_ns: Any
    """(n, S): sigma(r) / n."""
    r_m: Any
    """(n, S): distance from the axis."""

    def zenith_azimuth_deg(self, xp: ModuleType = np) -> tuple[Any, Any]:
        """Return the direction of the origin, (n,) deg each; NaN where no direction has so slow a front."""
        sine = xp.sqrt(self.towards_x**2 + self.towards_y**2)
        possible = sine <= 1.0
        zenith = xp.where(possible, xp.asin(xp.where(possible, sine, 0.0)) * (180.0 / math.pi), math.nan)
        azimuth = xp.atan2(self.towards_y, self.towards_x) * (180.0 / math.pi)
        return zenith, xp.where(possible, xp.where(azimuth < 0.0, azimuth + 360.0, azimuth), math.nan)

    def errors_deg(self, xp: ModuleType = np) -> tuple[Any, Any]:
        """Return the standard errors of zenith and azimuth, (n,) deg each, the azimuth's not above 180."""
        u, v = self.towards_x, self.towards_y
        by_u, by_v, both = self.covariance
        square = xp.maximum(u * u + v * v, 1e-9)
        along = (u * u * by_u + 2.0 * u * v * both + v * v * by_v) / square
        across = (v * v * by_u - 2.0 * u * v * both + u * u * by_v) / square
        cosine = xp.sqrt(xp.maximum(1.0 - square, 1e-4))
        zenith = xp.sqrt(xp.maximum(along, 0.0)) / cosine * (180.0 / math.pi)
        azimuth = xp.sqrt(xp.maximum(across, 0.0) / square) * (180.0 / math.pi)
        return zenith, xp.where(azimuth > 180.0, 180.0, azimuth)


def front_of(array: DetectorArray, deposits: np.ndarray, times_ns: np.ndarray) -> Front:
    """Fit the fronts of events of an array by its card, of stations' first particles.

    Parameters
    ----------
    deposits
        (n, rows, columns, 2) MeV; the e/gamma channel counts, of an array without one the muon channel.
    times_ns
        (n, rows, columns), NaN where a station has none.
    """
    n, response = len(deposits), array.response
    channel = 0 if array.has_electron.any() else 1
    mip = (response.electron_deposit_mev, response.muon_deposit_mev)[channel]
    particles = deposits.reshape(n, -1, 2)[..., channel] / mip
    model = FrontModel(**array.card.times)
    return fit_front(times_ns.reshape(n, -1), particles, array.x_m.ravel(), array.y_m.ravel(), model=model)


def fit_front(
    times_ns: Any,
    particles: Any,
    x_m: Any,
    y_m: Any,
    core_x_m: Any = None,
    core_y_m: Any = None,
    *,
    model: FrontModel = PUBLISHED,
    xp: ModuleType = np,
) -> Front:
    """Fit the front of every event.

    Iterated weighted least squares: first a plane whose weights fall as 1 / |deviation| beyond one error, then the
    curved front with Tukey's weights (1 - (d / 5)^2)^2, both in units of the error times the median width of the
    residuals. Errors are those of the last weights.

    Parameters
    ----------
    times_ns
        (n, S), not finite where a station has none; the zero is of no account.
    particles
        (n, S) particles that hit the station; those without any, or NaN, have no time. Fractions count as one.
    x_m, y_m
        (S,) positions.
    core_x_m, core_y_m
        (n,) where the axis meets the ground; without them, and where they are not finite, the mean of the stations,
        weighted with their particles.
    model
        What is expected of the times.
    xp
        Array namespace of all arrays.
    """
    kind = xp.float32
    times, particles, x, y = (xp.astype(each, kind) for each in (times_ns, particles, x_m, y_m))
    used = xp.isfinite(times) & (particles > 0.0)
    ones = xp.astype(used, kind)
    count = xp.sum(ones, axis=1)
    n = xp.where(used & (particles > 1.0), particles, 1.0)
    first = xp.min(xp.where(used, times, math.inf), axis=1)
    t = xp.where(used, times - xp.where(count > 0.0, first, 0.0)[:, None], 0.0)

    seen = ones * n
    total = xp.where(count > 0.0, xp.sum(seen, axis=1), 1.0)
    core_x, core_y = (xp.sum(seen * axis, axis=1) / total for axis in (x, y))
    if core_x_m is not None and core_y_m is not None:
        given_x, given_y = xp.astype(core_x_m, kind), xp.astype(core_y_m, kind)
        known = xp.isfinite(given_x) & xp.isfinite(given_y)
        core_x, core_y = xp.where(known, given_x, core_x), xp.where(known, given_y, core_y)
    dx, dy = x - core_x[:, None], y - core_y[:, None]
    ground = dx * dx + dy * dy
    plane = [xp.ones_like(t), dx * (-1.0 / LIGHT_M_PER_NS), dy * (-1.0 / LIGHT_M_PER_NS)]

    prior = ((0.0, 1e5), (0.0, 3.0), (0.0, 3.0), (1.0 / model.curvature_m, PRIOR_SPREAD / model.curvature_m))
    fit = _Fit(xp, used, ones, count, prior)
    clock = max(model.resolution_ns, SMALLEST_NS) ** 2
    late = model.late_ns(xp.sqrt(ground)) / n
    fit.describe(plane, t - late, xp.sqrt(late * late + clock))
    for _ in range(PLANE_ROUNDS):
        fit.step(_huber)
    plane_residual = fit.residual

    for _ in range(DISTANCE_ROUNDS):
        along = dx * fit.values[:, 1:2] + dy * fit.values[:, 2:3]
        # A front as slow as no direction has it must not make distances imaginary.
        square = xp.where(ground > along * along, ground - along * along, 0.0)
        late = model.late_ns(xp.sqrt(square)) / n
        curve = square * (0.5 / LIGHT_M_PER_NS)
        fit.describe([*plane, curve], t - late, xp.sqrt(late * late + clock))
        for _ in range(CURVED_ROUNDS):
            fit.step(_tukey)

    fitted = count >= MIN_STATIONS

    def defined(column: Any) -> Any:
        return xp.where(fitted, column, math.nan)

    variance = xp.astype(fit.covariance, kind) * (fit.width * fit.width)[:, None, None]
    return Front(
        towards_x=defined(fit.values[:, 1]),
        towards_y=defined(fit.values[:, 2]),
        covariance=(defined(variance[:, 1, 1]), defined(variance[:, 2, 2]), defined(variance[:, 1, 2])),
        curvature_per_m=defined(fit.values[:, 3]),
        curvature_error_per_m=defined(xp.sqrt(variance[:, 3, 3])),
        width=defined(fit.width),
        stations=count,
        trust=fit.trust,
        used=used,
        residual_ns=fit.residual * ones,
        plane_residual_ns=plane_residual * ones,
        expected_late_ns=late,
        r_m=xp.sqrt(square),
    )


class _Fit:
    """Parameters of n events, improved by steps of weighted least squares on what they leave."""

    def __init__(self, xp: ModuleType, used: Any, ones: Any, count: Any, prior: Sequence[tuple[float, float]]) -> None:
        """Begin; ``prior`` has mean and standard deviation of each parameter before any station has spoken."""
        self.xp, self.used, self.ones, self.count, self.prior = xp, used, ones, count, prior
        self.trust, self.width = ones, xp.ones_like(count)
        self.values: Any = xp.zeros_like(ones[:, :0])

    def describe(self, columns: list[Any], right: Any, error: Any) -> None:
        """Describe ``right`` (n, S), ns, with its errors, by P columns (n, S); known parameters are kept."""
        xp, size = self.xp, len(columns)
        first = [xp.full_like(self.count, one)[:, None] for one, _ in self.prior[self.values.shape[1] : size]]
        self.values = xp.concat([self.values, *first], axis=1)
        self.mean, self.sigma = (xp.asarray([one[k] for one in self.prior[:size]], dtype=xp.float32) for k in (0, 1))
        # In units of their spread the parameters are of one order.
        self.columns = [column * one[1] for column, one in zip(columns, self.prior, strict=False)]
        self.right, self.error = right, error
        self._look()

    def _look(self) -> None:
        values = self.values / self.sigma
        self.residual = self.right
        for k, column in enumerate(self.columns):
            self.residual = self.residual - column * values[:, k : k + 1]
        self.deviation = self.residual / self.error

    def step(self, trust: Any) -> None:
        """Weigh the stations by how far they are from the front, and improve the parameters."""
        xp, size = self.xp, self.values.shape[1]
        self.width = _width(xp.abs(self.deviation), self.used, self.count, size, xp)
        self.trust = trust(self.deviation / self.width[:, None], xp) * self.ones
        weight = self.trust / (self.error * self.error)
        weighted = [column * weight for column in self.columns]
        sums = {(i, j): xp.sum(weighted[i] * self.columns[j], axis=1) for i in range(size) for j in range(i + 1)}
        normal = xp.stack([sums[max(i, j), min(i, j)] for i in range(size) for j in range(size)], axis=1)
        slope = xp.stack([xp.sum(column * self.residual, axis=1) for column in weighted], axis=1)
        slope = slope + (self.mean - self.values) / self.sigma
        normal = xp.reshape(xp.astype(normal, xp.float64), (-1, size, size)) + xp.eye(size, dtype=xp.float64)
        scaled = xp.linalg.inv(normal)
        change = xp.matmul(scaled, xp.astype(slope, xp.float64)[..., None])[..., 0]
        self.values = self.values + xp.astype(change, xp.float32) * self.sigma
        self.covariance = scaled * xp.astype(self.sigma[:, None] * self.sigma[None, :], xp.float64)
        self._look()


def _huber(deviation: Any, xp: ModuleType) -> Any:
    size = xp.abs(deviation)
    return 1.0 / xp.where(size > 1.0, size, 1.0)


def _tukey(deviation: Any, xp: ModuleType) -> Any:
    part = 1.0 - (deviation / FAR) ** 2
    return xp.where(part > 0.0, part * part, 0.0)


def _width(size: Any, used: Any, count: Any, parameters: int, xp: ModuleType) -> Any:
    """Return the median of deviations (n, S) as a standard deviation, not below 1, (n,)."""
    spare = xp.where(count > parameters, count - parameters, 1.0)
    ordered = xp.sort(xp.where(used, size, math.inf), axis=1, stable=False)
    middle = xp.floor((count - 1.0) / 2.0)
    is_middle = xp.arange(size.shape[1], dtype=xp.float32) == middle[:, None]
    median = xp.sum(xp.where(is_middle, ordered, 0.0), axis=1)
    width = NORMAL * median * xp.sqrt(count / spare)
    return xp.where((width > 1.0) & (count > parameters), width, 1.0)
