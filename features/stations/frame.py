"""An event seen from its fitted core: distances, expected signals and their variances per station.

Computed once per chunk; profile, muon and asymmetry features all start from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.events import EventBatch
from features.lateral.fit import RawFit
from features.lateral.model import (
    Frozen,
    Signals,
    distances,
    electron_density,
    energy_correction,
    freeze_electron,
    freeze_muon,
    muon_density,
    signals,
)


@dataclass(frozen=True)
class Frame:
    """Planes (n, cells) float32 in particles, NaN-free: events without a fit have ``fitted`` false."""

    fitted: Any
    """(n,) bool."""
    measured: Signals
    r_m: Any
    """Distance from the fitted axis, metres."""
    electron_expected: Any
    """Expected signal of the e/gamma channel, muons and strays included."""
    electron_variance: Any
    muon_expected: Any
    """Expected signal of the muon channel, punch-through and strays included."""
    muon_variance: Any
    """Without the uncertainty of punch-through."""
    punch_through: Any
    """Part of ``muon_expected`` that electrons make."""
    n_electrons: Any
    """Expected number of electrons in the e/gamma detector."""
    n_muons: Any
    """Expected number of muons in the muon detector."""
    electron_frozen: Frozen
    muon_frozen: Frozen


def make_frame(events: EventBatch, fit: RawFit) -> Frame:
    """Return the planes at the fitted parameters."""
    xp, response = events.xp, events.response
    core_x = fit.electron[0]
    fitted = core_x == core_x  # false for NaN

    def filled(values: Any, instead: float) -> Any:
        return xp.where(fitted, values, xp.zeros_like(values) + instead)

    measured = signals(events)
    r_m = distances(events, filled(core_x, 0.0), filled(fit.electron[1], 0.0))
    electrons = electron_density(r_m, filled(fit.electron[2], -5.0)[:, None], filled(fit.electron[3], 1.0)[:, None], xp)
    muons = muon_density(
        r_m, filled(fit.muon[0], -5.0)[:, None], filled(fit.muon[1], response.muon_age_mean)[:, None], xp
    )
    electron_frozen = freeze_electron(measured, r_m, electrons, muons, xp)
    muon_frozen = freeze_muon(measured, r_m, electrons, muons, xp)
    live_e = xp.astype(measured.electron_area_m2 > 0.0, xp.float32)
    live_m = xp.astype(measured.muon_area_m2 > 0.0, xp.float32)
    n_electrons = measured.electron_area_m2 * electrons
    n_muons = measured.muon_area_m2 * muons
    expected = electron_frozen.area_m2 * electrons * energy_correction(r_m, response, xp) + electron_frozen.background
    muon_expected = n_muons + muon_frozen.background
    punch = xp.maximum(muon_frozen.background - response.muon_strays, xp.zeros_like(muon_expected)) * live_m
    return Frame(
        fitted=fitted,
        measured=measured,
        r_m=r_m,
        electron_expected=expected * live_e,
        electron_variance=expected / (electron_frozen.weight + 1e-12) * live_e,
        muon_expected=muon_expected * live_m,
        muon_variance=response.muon_dispersion * (muon_expected - punch) * live_m
        + response.punch_through_dispersion * punch,
        punch_through=punch,
        n_electrons=n_electrons,
        n_muons=n_muons,
        electron_frozen=electron_frozen,
        muon_frozen=muon_frozen,
    )
