"""Expected signals of all stations, and the quasi-likelihood of both lateral fits, on any array library.

Signals are counted in particles: y = deposit * cos(zenith) / (mean deposit of one particle). Per station

    electron channel   mu = A t exp(L + s (G - G_ref) - 1.5 ln x - 3.6 ln(1 + x)) a(r) + background,
                       x = r / 40 m, G = ln x + ln(1 + x), G_ref = G at 50 m,
    muon channel       mu = A t exp(M + s_mu (G' - G'_ref) - 2 ln y - 4.5 ln(1 + y)) + background,
                       y = r / 420 m, G'_ref at 100 m,

with A the projected area, a(r) the lateral energy correction, t the share of the deposit above the threshold.
L and M are log densities at a pivot radius: hardly correlated with the shapes, and no Gamma function is needed
while fitting.

Quasi-likelihood (R. W. M. Wedderburn, Biometrika 61 (1974) 439): with a variance phi mu, half the deviance is
F = sum (1/phi) [y ln(y/mu) - (y - mu)]; its gradient is unbiased whatever phi, and its minimum is efficient where
phi mu is the true variance, here that of a compound Poisson process. phi, t and the background of the other particle
are frozen at an earlier estimate, so that F is a fixed function of the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from features import detector
from features.events import Events
from showers.lateral import ELECTRON_ALPHA, ELECTRON_BETA, ELECTRON_R0_M, MIN_R_M, MUON_R0_M

ELECTRON_PIVOT_M = 50.0
ELECTRON_G_REF = math.log(ELECTRON_PIVOT_M / ELECTRON_R0_M) + math.log1p(ELECTRON_PIVOT_M / ELECTRON_R0_M)
MUON_PIVOT_M = 100.0
MUON_G_REF = math.log(MUON_PIVOT_M / MUON_R0_M) + math.log1p(MUON_PIVOT_M / MUON_R0_M)
CORE_SPREAD_M = 60.0
"""Prior spread of the core's coordinates: cores of the data lie within 91 m of the centre (45 m rms)."""


@dataclass(frozen=True)
class Signals:
    """What the stations measured, in particles; all (n, 256) float32."""

    electron: Any
    electron_area_m2: Any
    """Projected area, 0 where there is no station."""
    electron_saturated: Any
    """bool: the deposit is a lower limit."""
    muon: Any
    muon_area_m2: Any
    muon_saturated: Any
    direction: tuple[Any, Any]
    """Horizontal part of the axis' unit vector, (n, 1) each."""


@dataclass(frozen=True)
class Frozen:
    """What a minimisation keeps fixed; all (n, 256) float32."""

    area_m2: Any
    """Projected area times the share of the deposit above the threshold."""
    background: Any
    """Expected particles of other kinds."""
    weight: Any
    """1/phi; 0 where there is no station."""


@dataclass(frozen=True)
class Terms:
    """Half deviance with its gradient and Fisher matrix (lower triangle, row by row), priors included."""

    value: Any
    gradient: list[Any]
    fisher: list[Any]


def signals(events: Events) -> Signals:
    """Return deposits as particle counts with their projected areas."""
    cosine = events.cos_zenith[:, None]
    here = events.stations
    u, v = events.direction
    return Signals(
        electron=events.electron_mev * (cosine / detector.ELECTRON_DEPOSIT_MEV),
        electron_area_m2=here.electron_area_m2 * cosine,
        electron_saturated=events.electron_mev >= detector.SATURATION_MEV,
        muon=events.muon_mev * (cosine / detector.MUON_DEPOSIT_MEV),
        muon_area_m2=here.muon_area_m2 * cosine,
        muon_saturated=events.muon_mev >= detector.MUON_SATURATION_MEV,
        direction=(u[:, None], v[:, None]),
    )


def offsets(events: Events, core_x_m: Any, core_y_m: Any) -> tuple[Any, Any, Any]:
    """Return distance from the axis (not below 1 m) and its derivatives by the core's x and y, (n, 256) each."""
    xp, here = events.xp, events.stations
    u, v = (component[:, None] for component in events.direction)
    dx, dy = here.x_m - core_x_m[:, None], here.y_m - core_y_m[:, None]
    along = dx * u + dy * v
    square = dx * dx + dy * dy - along * along
    r_m = xp.sqrt(xp.maximum(square, xp.ones_like(square) * MIN_R_M**2))
    outside = xp.astype(square > MIN_R_M**2, xp.float32) / r_m
    return r_m, (along * u - dx) * outside, (along * v - dy) * outside


def energy_correction(r_m: Any, xp: ModuleType) -> Any:
    """Return a(r): deposit per electron at distance r in units of a single electron's."""
    return detector.GAMMA_FRACTION + detector.CORE_EXCESS * xp.exp(r_m * (-1.0 / detector.CORE_EXCESS_SCALE_M))


def electron_density(r_m: Any, level: Any, age: Any, xp: ModuleType) -> Any:
    """Return rho_e at r; ``level`` is ln rho at the pivot without the fixed exponents (see the module's head)."""
    x = r_m * (1.0 / ELECTRON_R0_M)
    log_x, log_1x = xp.log(x), xp.log1p(x)
    return xp.exp(level + age * (log_x + log_1x - ELECTRON_G_REF) - ELECTRON_ALPHA * log_x - ELECTRON_BETA * log_1x)


def muon_density(r_m: Any, level: Any, shape: Any, xp: ModuleType) -> Any:
    """Return rho_mu at r; ``level`` as in :func:`electron_density`."""
    y = r_m * (1.0 / MUON_R0_M)
    log_y, log_1y = xp.log(y), xp.log1p(y)
    return xp.exp(level + shape * (log_y + log_1y - MUON_G_REF) - 2.0 * log_y - 4.5 * log_1y)


def freeze_electron(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the electron channel at densities ``electrons`` and ``muons`` (per m2, (n, 256))."""
    area = measured.electron_area_m2
    n_electrons, n_muons = area * electrons, area * muons
    correction = energy_correction(r_m, xp)
    kept = 1.0 - detector.BELOW_THRESHOLD_SHARE * xp.exp(-n_electrons - n_muons)
    background = n_muons + detector.ELECTRON_STRAYS
    mean = n_electrons * correction * kept + background
    variance = (
        detector.ELECTRON_DISPERSION * n_electrons * correction * correction
        + detector.MUON_IN_ELECTRON_DISPERSION * n_muons
        + detector.ELECTRON_DISPERSION * detector.ELECTRON_STRAYS
    )
    live = xp.astype(area > 0.0, xp.float32)
    return Frozen(area * kept, background * live, live * mean / variance)


def freeze_muon(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the muon channel: punch-through of ``electrons`` as background with its own uncertainty."""
    area = measured.muon_area_m2
    n_muons = area * muons
    punch = area * electrons * detector.PUNCH_THROUGH * xp.exp(r_m * (-1.0 / detector.PUNCH_THROUGH_SCALE_M))
    mean = n_muons + punch + detector.MUON_STRAYS
    unsure = detector.PUNCH_THROUGH_UNCERTAINTY * punch
    variance = (
        detector.MUON_DISPERSION * (n_muons + detector.MUON_STRAYS)
        + detector.PUNCH_THROUGH_DISPERSION * punch
        + unsure * unsure
    )
    live = xp.astype(area > 0.0, xp.float32)
    return Frozen(area, (punch + detector.MUON_STRAYS) * live, live * mean / variance)


def half_deviance(y: Any, mu: Any, saturated: Any, weight: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return per station half the deviance and the residual y - mu; a saturated station only pulls mu upwards."""
    residual = y - mu
    residual = xp.where(saturated & (residual < 0.0), xp.zeros_like(residual), residual)
    counted = xp.where(y > 0.0, y, xp.ones_like(y))
    log_ratio = xp.where(y > 0.0, xp.log(counted / mu), xp.zeros_like(y))
    value = xp.where(saturated & (y < mu), xp.zeros_like(y), y * log_ratio - residual)
    return value * weight, residual


def electron_terms(events: Events, measured: Signals, frozen: Frozen, parameters: list[Any]) -> Terms:
    """Return F, its gradient and Fisher matrix by (core x, core y, L, s); each parameter (n,)."""
    xp = events.xp
    core_x, core_y, level, age = parameters
    r_m, r_by_x, r_by_y = offsets(events, core_x, core_y)
    x = r_m * (1.0 / ELECTRON_R0_M)
    log_x, log_1x = xp.log(x), xp.log1p(x)
    s = age[:, None]
    g = log_x + log_1x - ELECTRON_G_REF
    excess = detector.CORE_EXCESS * xp.exp(r_m * (-1.0 / detector.CORE_EXCESS_SCALE_M))
    density = xp.exp(level[:, None] + s * g - ELECTRON_ALPHA * log_x - ELECTRON_BETA * log_1x)
    signal = frozen.area_m2 * density * (detector.GAMMA_FRACTION + excess)
    mu = signal + frozen.background + 1e-12
    slope = ((s - ELECTRON_ALPHA) / x + (s - ELECTRON_BETA) / (1.0 + x)) * (1.0 / ELECTRON_R0_M)
    slope = slope - excess * (1.0 / detector.CORE_EXCESS_SCALE_M) / (detector.GAMMA_FRACTION + excess)
    derivatives = [slope * r_by_x, slope * r_by_y, None, g]
    terms = _assemble(measured.electron, mu, signal, measured.electron_saturated, frozen.weight, derivatives, xp)
    priors = [(core_x, 0.0, CORE_SPREAD_M), (core_y, 0.0, CORE_SPREAD_M), None]
    return _with_priors(terms, [*priors, (age, detector.AGE_MEAN, detector.AGE_SPREAD)])


def muon_terms(r_m: Any, measured: Signals, frozen: Frozen, parameters: list[Any], xp: ModuleType) -> Terms:
    """Return F, its gradient and Fisher matrix by (M, s_mu).

    Half an event is added as in Jeffreys' prior of a Poisson mean: F - M/2. It keeps a shower without muons finite and
    makes ln N_mu nearly unbiased.
    """
    level, shape = parameters
    y = r_m * (1.0 / MUON_R0_M)
    log_y, log_1y = xp.log(y), xp.log1p(y)
    g = log_y + log_1y - MUON_G_REF
    signal = frozen.area_m2 * xp.exp(level[:, None] + shape[:, None] * g - 2.0 * log_y - 4.5 * log_1y)
    mu = signal + frozen.background + 1e-12
    terms = _assemble(measured.muon, mu, signal, measured.muon_saturated, frozen.weight, [None, g], xp)
    terms = Terms(terms.value - 0.5 * level, [terms.gradient[0] - 0.5, terms.gradient[1]], terms.fisher)
    return _with_priors(terms, [None, (shape, detector.MUON_SHAPE_MEAN, detector.MUON_SHAPE_SPREAD)])


def _assemble(y: Any, mu: Any, signal: Any, saturated: Any, weight: Any, derivatives: list[Any], xp: Any) -> Terms:
    """Sum over stations; ``derivatives`` of ln(signal), None meaning 1."""
    value, residual = half_deviance(y, mu, saturated, weight, xp)
    pull = weight * residual * signal / mu
    information = weight * signal * signal / mu
    gradient, fisher = [], []
    for i, first in enumerate(derivatives):
        gradient.append(-xp.sum(pull if first is None else pull * first, axis=1))
        weighted = information if first is None else information * first
        for second in derivatives[: i + 1]:
            fisher.append(xp.sum(weighted if second is None else weighted * second, axis=1))
    return Terms(xp.sum(value, axis=1), gradient, fisher)


def _with_priors(terms: Terms, priors: list[tuple[Any, float, float] | None]) -> Terms:
    value, gradient, fisher = terms.value, list(terms.gradient), list(terms.fisher)
    for k, prior in enumerate(priors):
        if prior is None:
            continue
        parameter, mean, spread = prior
        value = value + 0.5 * ((parameter - mean) * (1.0 / spread)) ** 2
        gradient[k] = gradient[k] + (parameter - mean) * (1.0 / spread**2)
        diagonal = k * (k + 3) // 2
        fisher[diagonal] = fisher[diagonal] + 1.0 / spread**2
    return Terms(value, gradient, fisher)
