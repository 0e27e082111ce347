"""The station model, written once: expected signals, their derivatives, what is frozen, priors and the muon age law.

Signals are counted in particles: y = deposit * cos(zenith) / (mean deposit of one particle). Per station

    electron channel   mu = A t exp(L + s (G - G_ref) - 1.5 ln x - 3.6 ln(1 + x)) a(r) + background,
                       x = r / 40 m, G = ln x + ln(1 + x), G_ref = G at 50 m,
    muon channel       mu = A t exp(M + s_mu (G' - G'_ref) - 2 ln y - 4.5 ln(1 + y)) + background,
                       y = r / 420 m, G'_ref at 100 m,

with A the projected area, a(r) the lateral energy correction, t the share of the deposit above the threshold.
L and M are log densities at a pivot radius: hardly correlated with the ages, and no Gamma function is needed
while fitting. With q = r^2 and o = r (40 m + r) the electrons' logarithm is (s - 3.6) ln o + 1.05 ln q + constant, that
of the muons alike: logarithms are binary, as a processor has them.

Quasi-likelihood (R. W. M. Wedderburn, Biometrika 61 (1974) 439): with a variance phi mu, half the deviance is
F = sum (1/phi) [y ln(y/mu) - (y - mu)]; its gradient is unbiased whatever phi, and its minimum is efficient where
phi mu is the true variance, here that of a compound Poisson process. phi, t and the background of the other particle
are frozen at an earlier estimate, so that F is a fixed function of the parameters.

Each function is about one station and plain arithmetic of numbers, as it stands for float64. The module
:mod:`showerstack.features.lateral.translate` makes functions on arrays, compiled float32 functions and C of it, and
therefore allows nothing but assignments, a return, arithmetic, the constants and functions here, and fields of
``res``, the
:class:`~showerstack.showers.response.StationResponse`.
"""

from __future__ import annotations

import math
from math import exp2, log2, sqrt
from typing import Any

from showerstack.features.lateral.elementwise import LG_E
from showerstack.showers.lateral import ELECTRON_ALPHA, ELECTRON_BETA, ELECTRON_R0_M, MUON_R0_M, muon_normalisation
from showerstack.showers.response import StationResponse

ELECTRON_PIVOT_M = 50.0
MUON_PIVOT_M = 100.0
ELECTRON_G_REF = math.log(ELECTRON_PIVOT_M / ELECTRON_R0_M) + math.log1p(ELECTRON_PIVOT_M / ELECTRON_R0_M)
MUON_G_REF = math.log(MUON_PIVOT_M / MUON_R0_M) + math.log1p(MUON_PIVOT_M / MUON_R0_M)
MUON_ALPHA, MUON_BETA = 2.0, 4.5
LOG2_E, LN_2 = 1.0 / math.log(2.0), math.log(2.0)
ELECTRON_STEEP_REF = math.log2(ELECTRON_PIVOT_M * (ELECTRON_R0_M + ELECTRON_PIVOT_M))
MUON_STEEP_REF = math.log2(MUON_PIVOT_M * (MUON_R0_M + MUON_PIVOT_M))
ELECTRON_FLAT, MUON_FLAT = 0.5 * (ELECTRON_BETA - ELECTRON_ALPHA), 0.5 * (MUON_BETA - MUON_ALPHA)
ELECTRON_BASE = -ELECTRON_BETA * ELECTRON_G_REF * LOG2_E - 2.0 * ELECTRON_FLAT * math.log2(ELECTRON_R0_M)
MUON_BASE = -MUON_BETA * MUON_G_REF * LOG2_E - 2.0 * MUON_FLAT * math.log2(MUON_R0_M)
TINY = 1e-12
MUON_AGE_SIZE_REF, MUON_AGE_SEC_REF = 4.5, 1.035
"""Size (lg N_mu) and sec(zenith) at which the prior's mean muon age is quoted."""
MUON_AGE_LOW, MUON_AGE_HIGH = 0.9, 1.7
_TYPICAL_MUON_AGE = 1.3
MUON_LEVEL_TO_LN_N = -_TYPICAL_MUON_AGE * MUON_G_REF - math.log(float(muon_normalisation(_TYPICAL_MUON_AGE)))
"""ln N_mu minus the level M at a typical muon age."""


def maximum(a: Any, b: Any) -> Any:
    return max(a, b)


def minimum(a: Any, b: Any) -> Any:
    return min(a, b)


def positive(x: Any) -> Any:
    """Return 1 where x > 0, else 0."""
    return 1.0 if x > 0.0 else 0.0


def from_floor(value: Any, x: Any, floor: Any) -> Any:
    """Return the value where x >= floor, else 0."""
    return value if x >= floor else 0.0


def decay(x: Any) -> Any:
    """Return exp(-x) for x >= 0."""
    return exp2(-LOG2_E * x)


def squared_distance(res: StationResponse, dx: Any, dy: Any, u: Any, v: Any) -> Any:
    """Return the square of :func:`distance`."""
    along = dx * u + dy * v
    return maximum(dx * dx + dy * dy - along * along, 0.0) + res.extent_m * res.extent_m


def distance(res: StationResponse, dx: Any, dy: Any, u: Any, v: Any) -> Any:
    """Return the distance from an axis of horizontal direction (u, v) through the core, m.

    A detector's extent is added in quadrature: the density stays finite on the axis, and smooth, as a minimisation
    needs it.
    """
    return sqrt(squared_distance(res, dx, dy, u, v))


def electron_logs(q: Any, r: Any, level: Any, age: Any) -> Any:
    """Return how ln(density) of electrons grows with the age, and log2(density), at r and q = r^2."""
    steep = log2(r * (ELECTRON_R0_M + r)) - ELECTRON_STEEP_REF
    exponent = LOG2_E * level + (age - ELECTRON_BETA) * steep + ELECTRON_FLAT * log2(q) + ELECTRON_BASE
    g = LN_2 * steep
    return g, exponent


def muon_logs(q: Any, r: Any, level: Any, muon_age: Any) -> Any:
    """Return how ln(density) of muons grows with s_mu, and log2(density), at r and q = r^2."""
    steep = log2(r * (MUON_R0_M + r)) - MUON_STEEP_REF
    exponent = LOG2_E * level + (muon_age - MUON_BETA) * steep + MUON_FLAT * log2(q) + MUON_BASE
    g = LN_2 * steep
    return g, exponent


def electron_density(r: Any, level: Any, age: Any) -> Any:
    """Return electrons per m2; ``level`` is ln rho at the pivot without the fixed exponents."""
    _, exponent = electron_logs(r * r, r, level, age)
    return exp2(exponent)


def muon_density(r: Any, level: Any, muon_age: Any) -> Any:
    """Return muons per m2."""
    _, exponent = muon_logs(r * r, r, level, muon_age)
    return exp2(exponent)


def core_excess(res: StationResponse, r: Any) -> Any:
    """Return the further deposit per electron near the axis, in units of a single electron's."""
    return res.core_excess * decay(r * (1.0 / res.core_excess_scale_m))


def energy_correction(res: StationResponse, r: Any) -> Any:
    """Return a(r): deposit per electron at distance r in units of a single electron's."""
    return res.gamma_fraction + core_excess(res, r)


def electron_expected(res: StationResponse, area: Any, r: Any, electrons: Any, muons: Any) -> Any:
    """Return mean and variance of an e/gamma signal at densities of both particles, and t."""
    n_e = area * electrons
    n_m = area * muons
    a = energy_correction(res, r)
    share = 1.0 - res.lost_share * decay(n_e + n_m)
    mean = n_e * a * share + n_m + res.electron_strays
    wide = res.electron_dispersion
    variance = wide * n_e * a * a + res.muon_in_electron_dispersion * n_m + wide * res.electron_strays
    return mean, variance, share


def electron_frozen(res: StationResponse, area: Any, r: Any, electrons: Any, muons: Any) -> Any:
    """Freeze the e/gamma channel at densities of both particles: A t, background and weight 1/phi."""
    mean, variance, share = electron_expected(res, area, r, electrons, muons)
    live = positive(area)
    kept = area * share
    background = (area * muons + res.electron_strays) * live + TINY
    weight = live * mean / (variance + TINY)  # without station and strays both are 0
    return kept, background, weight


def punch_through(res: StationResponse, area: Any, r: Any, electrons: Any) -> Any:
    """Return the expected signal of electrons in a muon detector."""
    return area * electrons * res.punch_through * decay(r * (1.0 / res.punch_through_scale_m))


def muon_frozen(res: StationResponse, area: Any, r: Any, electrons: Any, muons: Any) -> Any:
    """Freeze the muon channel: punch-through as background with its own uncertainty, and weight."""
    n_m = area * muons
    punch = punch_through(res, area, r, electrons)
    live = positive(area)
    uncertainty = res.punch_through_uncertainty * punch
    variance = (
        res.muon_dispersion * (n_m + res.muon_strays) + res.punch_through_dispersion * punch + uncertainty * uncertainty
    )
    background = (punch + res.muon_strays) * live + TINY
    weight = live * (n_m + punch + res.muon_strays) / (variance + TINY)
    return background, weight


def muon_expected(res: StationResponse, area: Any, r: Any, electrons: Any, muons: Any) -> Any:
    """Return mean and variance of a signal in the muon channel, and the part of the mean that is punch-through."""
    punch = punch_through(res, area, r, electrons)
    own = area * muons + res.muon_strays * positive(area)
    mean = own + punch
    variance = res.muon_dispersion * own + res.punch_through_dispersion * punch
    return mean, variance, punch


def punch_uncertainty(res: StationResponse, punch: Any) -> Any:
    """Return the variance that comes from not knowing punch-through better."""
    uncertainty = res.punch_through_uncertainty * punch
    return uncertainty * uncertainty


def over_punch(res: StationResponse, area: Any, s: Any, punch: Any) -> Any:
    """Return a signal of the muon channel over punch-through and strays, and the variance of these."""
    strays = res.muon_strays * positive(area)
    beyond = s - punch - strays
    variance = res.punch_through_dispersion * punch + punch_uncertainty(res, punch) + res.muon_dispersion * strays
    return beyond, variance


def empty(res: StationResponse, muons: Any) -> Any:
    """Return the probability that a muon station stays empty: every muon misses the threshold, and no stray hits."""
    return decay(muons * (1.0 - res.muon_miss) + res.muon_strays)


def compared(s: Any, mu: Any, per_mu: Any, floor: Any, weight: Any) -> Any:
    """Return half the deviance and the weight that counts, from an expectation mu and 1/mu.

    ``floor`` is 0 for a saturated station and minus infinity for others: being a lower limit, a saturated signal says
    nothing once the expectation exceeds it.
    """
    residual = s - mu
    counted = from_floor(weight, residual, floor)
    value = counted * (LN_2 * s * log2(maximum(s, TINY) * per_mu) - residual)
    return value, counted


def half_deviance(s: Any, mu: Any, floor: Any, weight: Any) -> Any:
    """Return half the deviance and the weight that counts, as :func:`compared`."""
    value, counted = compared(s, mu, 1.0 / mu, floor, weight)
    return value, counted


def signal_terms(s: Any, floor: Any, m: Any, background: Any, weight: Any) -> Any:
    """Return half the deviance of a station that expects m over background, and residual and information of ln m."""
    mu = m + background
    per_mu = 1.0 / mu
    value, counted = compared(s, mu, per_mu, floor, weight)
    share = counted * m * per_mu
    residual = share * (s - mu)
    info = share * m
    return value, residual, info


def electron_slope(res: StationResponse, dx: Any, dy: Any, u: Any, v: Any, r: Any, excess: Any, age: Any) -> Any:
    """Return the derivatives of ln(signal) by core x and core y; one division for all quotients."""
    along = dx * u + dy * v
    a = res.gamma_fraction + excess
    outer = r * (ELECTRON_R0_M + r)
    inner = (2.0 * age - (ELECTRON_ALPHA + ELECTRON_BETA)) * r + ELECTRON_R0_M * (age - ELECTRON_ALPHA)
    slope_per_r = (a * inner - excess * (1.0 / res.core_excess_scale_m) * outer) / (r * outer * a)
    by_x = slope_per_r * (along * u - dx)
    by_y = slope_per_r * (along * v - dy)
    return by_x, by_y


def electron_signal(res: StationResponse, dx: Any, dy: Any, u: Any, v: Any, kept: Any, level: Any, age: Any) -> Any:
    """Return the expected signal of electrons, and the derivatives of its logarithm by core x, core y and s."""
    q = squared_distance(res, dx, dy, u, v)
    r = sqrt(q)
    g, exponent = electron_logs(q, r, level, age)
    excess = core_excess(res, r)
    m = kept * exp2(exponent) * (res.gamma_fraction + excess)
    by_x, by_y = electron_slope(res, dx, dy, u, v, r, excess, age)
    return m, by_x, by_y, g


def electron_curvature(res: StationResponse, dx: Any, dy: Any, u: Any, v: Any, age: Any, residual: Any) -> Any:
    """Return the residual times the second derivatives of ln(signal) by xx, xy, yy, xs and ys.

    The Hessian has them beyond Fisher's matrix.
    """
    along = dx * u + dy * v
    r = distance(res, dx, dy, u, v)
    scale = 1.0 / res.core_excess_scale_m
    excess = core_excess(res, r)
    a = res.gamma_fraction + excess
    outer = ELECTRON_R0_M + r
    # One division for three quotients.
    all_three = 1.0 / (r * outer * a)
    per_r = outer * a * all_three
    per_outer = r * a * all_three
    steep = excess * scale * r * outer * all_three
    inner_slope = (age - ELECTRON_ALPHA) * per_r
    outer_slope = (age - ELECTRON_BETA) * per_outer
    slope = inner_slope + outer_slope - steep
    bend = steep * (scale - steep) - inner_slope * per_r - outer_slope * per_outer
    r_x = (along * u - dx) * per_r
    r_y = (along * v - dy) * per_r
    around = slope * per_r * residual
    ahead = bend * residual - around
    sharp = (per_r + per_outer) * residual
    c_xx = ahead * r_x * r_x + around * (1.0 - u * u)
    c_xy = ahead * r_x * r_y - around * u * v
    c_yy = ahead * r_y * r_y + around * (1.0 - v * v)
    c_xs = sharp * r_x
    c_ys = sharp * r_y
    return c_xx, c_xy, c_yy, c_xs, c_ys


def muon_signal(area: Any, g: Any, base: Any, level: Any, muon_age: Any) -> Any:
    """Return the expected signal of muons, whose logarithm's derivatives are 1 and g; ``base``: log2 at 0 of both."""
    return area * exp2(LOG2_E * (level + muon_age * g) + base)


def electron_prior(res: StationResponse, x: Any, y: Any, level: Any, age: Any) -> Any:
    """Return the priors' part of F, its derivative by the age, and the precisions of core and age.

    Half an event belongs to it, as in Jeffreys' prior of a Poisson mean: F - level/2. It keeps a shower without
    particles finite and makes the logarithm of the size nearly unbiased: without it, ln N is too small by
    1/(2 information) on average.
    """
    core = 1.0 / (res.core_spread_m * res.core_spread_m)
    precision = 1.0 / (res.age_spread * res.age_spread)
    age_gap = age - res.age_mean
    value = 0.5 * core * (x * x + y * y) + 0.5 * precision * age_gap * age_gap - 0.5 * level
    by_age = precision * age_gap
    return value, by_age, core, precision


def muon_prior(res: StationResponse, level: Any, muon_age: Any, mean: Any) -> Any:
    """Return the priors' part of F, half an event included, its derivative by s_mu, and the precision of s_mu."""
    precision = 1.0 / (res.muon_age_spread * res.muon_age_spread)
    gap = muon_age - mean
    value = 0.5 * precision * gap * gap - 0.5 * level
    by_age = precision * gap
    return value, by_age, precision


def muon_age_mean(res: StationResponse, level: Any, cosine: Any) -> Any:
    """Return the prior's mean of s_mu for a muon level and a zenith angle."""
    lg_n_mu = (level + MUON_LEVEL_TO_LN_N) * LG_E
    size = res.muon_age_size * (lg_n_mu - MUON_AGE_SIZE_REF)
    inclination = res.muon_age_inclination * (1.0 / cosine - MUON_AGE_SEC_REF)
    return minimum(maximum(res.muon_age_mean + size + inclination, MUON_AGE_LOW), MUON_AGE_HIGH)
