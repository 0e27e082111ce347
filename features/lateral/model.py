"""The station model on the planes of many events, on any array library; the formulas are in ``station.py``."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from features.events import EventBatch
from features.lateral.constants import StationResponse
from features.lateral.translate import on_arrays


@dataclass(frozen=True)
class Signals:
    """What the stations measured, in particles; all (n, cells) float32."""

    electron: Any
    electron_area_m2: Any
    """Projected area, 0 where there is no station."""
    electron_saturated: Any
    """1 where the deposit is a lower limit, else 0."""
    muon: Any
    muon_area_m2: Any
    muon_saturated: Any
    response: StationResponse


@dataclass(frozen=True)
class Frozen:
    """What a minimisation keeps fixed; all (n, cells) float32."""

    area_m2: Any
    """Projected area times the share of the deposit above the threshold."""
    background: Any
    """Expected particles of other kinds."""
    weight: Any
    """1/phi; 0 where there is no station."""


def signals(events: EventBatch) -> Signals:
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
        electron_saturated=xp.astype(events.electron_mev >= response.saturation_mev, xp.float32),
        muon=_limited(events.muon_mev, response.muon_saturation_mev, xp) * (cosine / response.muon_deposit_mev),
        muon_area_m2=here.muon_area_m2 * cosine,
        muon_saturated=xp.astype(events.muon_mev >= response.muon_saturation_mev, xp.float32),
        response=response,
    )


def _limited(deposits_mev: Any, limit_mev: float, xp: ModuleType) -> Any:
    return xp.minimum(deposits_mev, xp.ones_like(deposits_mev) * limit_mev)


def distances(events: EventBatch, core_x_m: Any, core_y_m: Any) -> Any:
    """Return the distance of each station from the axis (softened), (n, cells)."""
    here = events.stations
    u, v = (component[:, None] for component in events.direction)
    return on_arrays(events.xp).distance(here.x_m - core_x_m[:, None], here.y_m - core_y_m[:, None], u, v)


def energy_correction(r_m: Any, response: StationResponse, xp: ModuleType) -> Any:
    """Return a(r): deposit per electron at distance r in units of a single electron's."""
    return on_arrays(xp).energy_correction(response, r_m)


def electron_density(r_m: Any, level: Any, age: Any, xp: ModuleType) -> Any:
    """Return rho_e at r; ``level`` is ln rho at the pivot without the fixed exponents."""
    return on_arrays(xp).electron_density(r_m, level, age)


def muon_density(r_m: Any, level: Any, muon_age: Any, xp: ModuleType) -> Any:
    """Return rho_mu at r; ``level`` as in :func:`electron_density`."""
    return on_arrays(xp).muon_density(r_m, level, muon_age)


def freeze_electron(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the electron channel at densities ``electrons`` and ``muons`` (per m2, (n, cells))."""
    return Frozen(*on_arrays(xp).electron_frozen(measured.response, measured.electron_area_m2, r_m, electrons, muons))


def freeze_muon(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the muon channel: punch-through of ``electrons`` as background with its own uncertainty."""
    area = measured.muon_area_m2
    return Frozen(area, *on_arrays(xp).muon_frozen(measured.response, area, r_m, electrons, muons))


def half_deviance(y: Any, mu: Any, saturated: Any, weight: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return per station half the deviance, and the weight that counts: 0 below a saturated signal's expectation."""
    return on_arrays(xp).half_deviance(y, mu, saturated, weight)
