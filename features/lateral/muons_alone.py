"""The lateral fit of an array of muon detectors alone: core, level and age of the muons in one fit.

Core and two more numbers are what the electrons' fit finds, so it is given the muon detectors instead. Its distribution
with a scale radius of 420 m is that of the muons but for 0.4 in the power far beyond 420 m: (r/r0)^(s - 1.5)
(1 + r/r0)^(s - 3.6) with s = s_mu - 0.5, beside (r/r0)^(s_mu - 2) (1 + r/r0)^(s_mu - 4.5).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.fit import RawFit, fit_cuda, fit_fused
from showerstack.features.lateral.station import (
    ELECTRON_PIVOT_M,
    MUON_ALPHA,
    MUON_BETA,
    MUON_PIVOT_M,
)
from showerstack.showers.array import DetectorArray
from showerstack.showers.lateral import ELECTRON_ALPHA, ELECTRON_BETA, ELECTRON_R0_M, MUON_R0_M
from showerstack.showers.response import StationResponse

WIDER = MUON_R0_M / ELECTRON_R0_M
"""Unit of length of the muons' fit in units of the electrons'."""
AGE_SHIFT = MUON_ALPHA - ELECTRON_ALPHA
"""Muon age minus the age of the electrons' form."""
NO_ELECTRONS = -25.0
"""Level of a channel that sees nothing."""


@lru_cache(maxsize=16)
def _as_electron_array(array: DetectorArray) -> DetectorArray:
    """Return the array whose e/gamma detectors are the muon detectors of this one."""
    limits = {"core_limit_m": array.core_limit_m, "core_spread_m": array.core_spread_m}
    card = replace(array.card, fit={**limits, "electron_radius_m": ELECTRON_R0_M * WIDER * array.fit_unit_m})
    nothing = 0.0 * array.muon_area_m2
    return replace(array, electron_area_m2=array.muon_area_m2, muon_area_m2=nothing, card=card)


def _as_electron_response(muons: StationResponse) -> StationResponse:
    """Return the response of a muon detector as that of an e/gamma detector: one particle, one deposit."""
    return muons._replace(
        electron_deposit_mev=muons.muon_deposit_mev,
        saturation_mev=muons.muon_saturation_mev,
        gamma_fraction=1.0,
        core_excess=0.0,
        electron_dispersion=muons.muon_dispersion,
        lost_share=muons.muon_miss,
        electron_strays=muons.muon_strays,
        age_mean=muons.muon_age_mean - AGE_SHIFT,
        age_spread=muons.muon_age_spread,
        core_spread_m=muons.core_spread_m / WIDER,
        extent_m=muons.extent_m / WIDER,
    )


def fit_muons_alone(events: EventBatch) -> RawFit:
    """Fit core and muons of every event; the electrons' part of the record holds the core alone, without electrons."""

    swapped = replace(
        events,
        electron_mev=events.muon_mev,
        muon_mev=events.electron_mev,
        array=_as_electron_array(events.array),
        response=_as_electron_response(events.response),
    )
    one = (fit_fused if events.is_on_cpu else fit_cuda)(swapped)
    core_x, core_y, level, age = one.electron
    f = one.electron_fisher
    # The density at 100 m, from that at the pivot of the fit; by_age is its derivative, as the parameters are turned.
    r, pivot = MUON_PIVOT_M / WIDER, ELECTRON_PIVOT_M
    by_age = math.log(r * (ELECTRON_R0_M + r) / (pivot * (ELECTRON_R0_M + pivot)))
    x, y = r / ELECTRON_R0_M, MUON_PIVOT_M / MUON_R0_M
    fixed = (
        -ELECTRON_ALPHA * math.log(x) - ELECTRON_BETA * math.log1p(x)
        + MUON_ALPHA * math.log(y) + MUON_BETA * math.log1p(y) - 2.0 * math.log(WIDER)
    )  # fmt: skip
    g_ref = math.log(pivot / ELECTRON_R0_M) + math.log1p(pivot / ELECTRON_R0_M)
    g = math.log(x) + math.log1p(x)
    muon_level = level + age * (g - g_ref) + fixed

    core = [f[0] * (1.0 / WIDER**2), f[1] * (1.0 / WIDER**2), f[2] * (1.0 / WIDER**2)]
    # What core, level and age have in common stays: the core's error is then that of the fit.
    shared = [f[3] * (1.0 / WIDER), f[4] * (1.0 / WIDER), f[5], f[6] * (1.0 / WIDER), f[7] * (1.0 / WIDER), f[8], f[9]]
    return RawFit(
        electron=[core_x * WIDER, core_y * WIDER, level * 0.0 + NO_ELECTRONS, age * 0.0 + events.response.age_mean],
        electron_fisher=[*core, *shared],
        electron_value=one.electron_value,
        electron_steps=one.electron_steps,
        electron_converged=one.electron_converged,
        muon=[muon_level, age + AGE_SHIFT],
        muon_fisher=[f[5], f[8] - by_age * f[5], f[9] - 2.0 * by_age * f[8] + by_age * by_age * f[5]],
        muon_value=one.electron_value,
        muon_steps=one.electron_steps * 0.0,
        muon_converged=one.electron_converged,
    )
