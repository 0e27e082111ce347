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

from features.bounds import decay
from features.events import Events
from features.lateral.constants import Response
from showers.lateral import ELECTRON_ALPHA, ELECTRON_BETA, ELECTRON_R0_M, MUON_R0_M, muon_normalisation

ELECTRON_PIVOT_M = 50.0
ELECTRON_G_REF = math.log(ELECTRON_PIVOT_M / ELECTRON_R0_M) + math.log1p(ELECTRON_PIVOT_M / ELECTRON_R0_M)
SOFT_M = 0.6
"""Added in quadrature to distances: the rms extent of a detector about its centre (0.5 m of 1.57 m2, 0.7 m of 3.14 m2).

The density stays finite on the axis, and smooth, as a minimisation needs it.
"""
MUON_PIVOT_M = 100.0
MUON_G_REF = math.log(MUON_PIVOT_M / MUON_R0_M) + math.log1p(MUON_PIVOT_M / MUON_R0_M)


MUON_SHAPE_SIZE_REF, MUON_SHAPE_SEC_REF = 4.5, 1.035
"""Size (lg N_mu) and sec(zenith) at which the prior's mean shape is quoted."""
_TYPICAL_SHAPE = 1.3
MUON_LEVEL_TO_LN_N = -_TYPICAL_SHAPE * MUON_G_REF - math.log(float(muon_normalisation(_TYPICAL_SHAPE)))
"""ln N_mu minus the level M at a typical shape."""
MUON_SHAPE_RANGE = (0.9, 1.7)


@dataclass(frozen=True)
class Signals:
    """What the stations measured, in particles; all (n, cells) float32."""

    electron: Any
    electron_area_m2: Any
    """Projected area, 0 where there is no station."""
    electron_saturated: Any
    """bool: the deposit is a lower limit."""
    muon: Any
    muon_area_m2: Any
    muon_saturated: Any
    response: Response


@dataclass(frozen=True)
class Frozen:
    """What a minimisation keeps fixed; all (n, cells) float32."""

    area_m2: Any
    """Projected area times the share of the deposit above the threshold."""
    background: Any
    """Expected particles of other kinds."""
    weight: Any
    """1/phi; 0 where there is no station."""


def signals(events: Events) -> Signals:
    """Return deposits as particle counts with their projected areas; a saturated deposit counts as its limit.

    What lies above the limit is no measurement: taken at its value it would count only where it is above the
    expectation, and draw the density up.
    """
    xp = events.xp
    cosine = events.cos_zenith[:, None]
    here = events.stations
    response = events.response
    return Signals(
        electron=_limited(events.electron_mev, response.saturation_mev, xp) * (cosine / response.electron_deposit_mev),
        electron_area_m2=here.electron_area_m2 * cosine,
        electron_saturated=events.electron_mev >= response.saturation_mev,
        muon=_limited(events.muon_mev, response.muon_saturation_mev, xp) * (cosine / response.muon_deposit_mev),
        muon_area_m2=here.muon_area_m2 * cosine,
        muon_saturated=events.muon_mev >= response.muon_saturation_mev,
        response=response,
    )


def _limited(deposits_mev: Any, limit_mev: float, xp: ModuleType) -> Any:
    return xp.minimum(deposits_mev, xp.ones_like(deposits_mev) * limit_mev)


def distances(events: Events, core_x_m: Any, core_y_m: Any) -> Any:
    """Return the distance of each station from the axis (softened), (n, cells)."""
    xp, here = events.xp, events.stations
    u, v = (component[:, None] for component in events.direction)
    dx, dy = here.x_m - core_x_m[:, None], here.y_m - core_y_m[:, None]
    along = dx * u + dy * v
    square = dx * dx + dy * dy - along * along
    return xp.sqrt(xp.maximum(square, xp.zeros_like(square)) + SOFT_M**2)


def energy_correction(r_m: Any, response: Response, xp: ModuleType) -> Any:
    """Return a(r): deposit per electron at distance r in units of a single electron's."""
    return response.gamma_fraction + response.core_excess * decay(r_m * (1.0 / response.core_excess_scale_m), xp)


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
    """Freeze the electron channel at densities ``electrons`` and ``muons`` (per m2, (n, cells))."""
    area, response = measured.electron_area_m2, measured.response
    n_electrons, n_muons = area * electrons, area * muons
    correction = energy_correction(r_m, response, xp)
    kept = 1.0 - response.lost_share * decay(n_electrons + n_muons, xp)
    background = n_muons + response.electron_strays
    mean = n_electrons * correction * kept + background
    variance = (
        response.electron_dispersion * n_electrons * correction * correction
        + response.muon_in_electron_dispersion * n_muons
        + response.electron_dispersion * response.electron_strays
    )
    live = xp.astype(area > 0.0, xp.float32)
    return Frozen(area * kept, background * live, live * mean / variance)


def freeze_muon(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the muon channel: punch-through of ``electrons`` as background with its own uncertainty."""
    area, response = measured.muon_area_m2, measured.response
    n_muons = area * muons
    punch = area * electrons * response.punch_through * decay(r_m * (1.0 / response.punch_through_scale_m), xp)
    mean = n_muons + punch + response.muon_strays
    unsure = response.punch_through_uncertainty * punch
    variance = (
        response.muon_dispersion * (n_muons + response.muon_strays)
        + response.punch_through_dispersion * punch
        + unsure * unsure
    )
    live = xp.astype(area > 0.0, xp.float32)
    return Frozen(area, (punch + response.muon_strays) * live, live * mean / variance)


def half_deviance(y: Any, mu: Any, saturated: Any, weight: Any, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return per station half the deviance, the residual y - mu, and the weight that counts.

    A saturated station is a lower limit: it says nothing once the expectation exceeds it.
    """
    residual = y - mu
    silent = xp.astype(saturated & (residual < 0.0), xp.float32)
    counted = weight * (1.0 - silent)
    log_ratio = xp.log(xp.maximum(y, xp.ones_like(y) * 1e-12) / mu)
    return counted * (y * log_ratio - residual), residual, counted
