"""The sums of :mod:`features.stations.sums` as one compiled loop over events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from features.events import EventBatch
from features.lateral.compiled.cpu_model import radii
from features.lateral.constants import StationResponse
from features.lateral.fit import RawFit
from features.lateral.station import MUON_G_REF
from features.lateral.vector_math import f32, full_vectors
from features.stations.kernel import N_LCM, N_RINGS, add_pattern, add_rings, deviance, expect, muon_sums, total_of
from features.stations.sums import CHANNELS, PATTERN, PLAIN, Sums
from features.stations.tail import tail_table
from showers.execution.kernels import kernel
from showers.lateral import muon_normalisation


@njit(error_model="numpy", forceinline=True)
def _sum_all(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    cos_azimuth: Any,
    sin_azimuth: Any,
    reco: Any,
    x: Any,
    y: Any,
    area_e_m2: Any,
    area_m_m2: Any,
    fits: Any,
    res: StationResponse,
    tails_e: Any,
    tails_m: Any,
    plain: Any,
    pattern: Any,
    rings: Any,
    lcm: Any,
) -> None:
    full_vectors()
    size = x.size
    planes, work = np.empty((8, size), np.float32), np.empty((6, size), np.float32)
    r, s_e, s_m, area_e, area_m, value = work[0], work[1], work[2], work[3], work[4], work[5]
    mean_e, var_e, punch, mean_m, var_m, var_fit = planes[2], planes[3], planes[4], planes[5], planes[6], planes[7]
    spread, punches, unsure = (
        f32(res.muon_dispersion),
        f32(res.punch_through_dispersion),
        f32(res.punch_through_uncertainty),
    )
    top_e, top_m = f32(res.saturation_mev), f32(res.muon_saturation_mev)
    for n in range(fits.shape[0]):
        fit = fits[n]
        if np.isnan(fit.electron[0]):
            continue
        per_e, per_m = f32(cosine[n] / res.electron_deposit_mev), f32(cosine[n] / res.muon_deposit_mev)
        for k in range(size):
            s_e[k] = min(electron_mev[n, k], top_e) * per_e
            s_m[k] = min(muon_mev[n, k], top_m) * per_m
        for k in range(size):
            area_e[k] = area_e_m2[k] * cosine[n]
            area_m[k] = area_m_m2[k] * cosine[n]
        radii(fit.electron[0], fit.electron[1], u[n], v[n], x, y, r)
        expect(res, fit, r, area_e, area_m, planes)
        for k in range(size):
            var_m[k] = spread * (mean_m[k] - punch[k]) + punches * punch[k]
        for k in range(size):
            var_fit[k] = var_m[k] + unsure * unsure * punch[k] * punch[k]
        deviance(s_e, mean_e, var_e, top_e * per_e, value)
        plain[n, 0] = total_of(value)
        deviance(s_m, mean_m, var_fit, top_m * per_m, value)
        plain[n, 1], plain[n, 2] = total_of(value), np.max(value)
        muon_sums(res, reco[n], r, s_e, s_m, area_e, area_m, planes, plain[n])
        add_pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_e, area_e, mean_e, var_e, tails_e, pattern[n, 0])
        add_pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_m, area_m, mean_m, var_m, tails_m, pattern[n, 1])
        add_rings(r, s_e, area_e, mean_e, var_e, rings[n, 0], lcm[n, 0])
        add_rings(r, s_m, area_m, mean_m, var_m, rings[n, 1], lcm[n, 1])


@kernel(error_model="numpy")
def _sum_events(planes: Any, columns: Any, here: Any, fits: Any, res: StationResponse, tails: Any, out: Any) -> None:
    full_vectors()
    electron_mev, muon_mev = planes
    cosine, u, v, cos_azimuth, sin_azimuth, reco = columns
    x, y, area_e, area_m = here
    plain, pattern, rings, lcm = out
    _sum_all(
        electron_mev,
        muon_mev,
        cosine,
        u,
        v,
        cos_azimuth,
        sin_azimuth,
        reco,
        x,
        y,
        area_e,
        area_m,
        fits,
        res,
        tails[0],
        tails[1],
        plain,
        pattern,
        rings,
        lcm,
    )


def sum_fused(events: EventBatch, fit: RawFit) -> Sums:
    """Return the same sums as :func:`features.stations.sums.sum_reference`."""
    n, here, response = len(events), events.stations, events.response
    fits = fit.records()
    azimuth = events.azimuth_deg * np.float32(math.pi / 180.0)
    muon_age = response.muon_age_mean
    # rho_mu(N_mu = 1) over the density at level 0, which the loop has at hand.
    unit = float(muon_normalisation(muon_age)) * math.exp(muon_age * MUON_G_REF)
    reco = np.float32(unit) * np.exp(np.clip(events.lg_n_mu, 0.0, 9.0) * np.float32(math.log(10.0)))
    out = tuple(
        np.zeros(dims, np.float32)
        for dims in ((n, len(PLAIN)), (n, 2, len(PATTERN)), (n, 2, 4, N_RINGS), (n, 2, 6, N_LCM))
    )
    columns = (events.cos_zenith, *events.direction, np.cos(azimuth), np.sin(azimuth), reco)
    dispersions = (response.electron_dispersion, response.muon_dispersion)
    tails = tuple((dispersion, tail_table(dispersion)) for dispersion in dispersions)
    geometry = (here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2)
    _sum_events((events.electron_mev, events.muon_mev), columns, geometry, fits, response, tails, out)
    plain, pattern, rings, lcm = out
    sums: Sums = {"fitted": ~np.isnan(fits["electron"][:, 0])}
    sums.update({name: plain[:, k] for k, name in enumerate(PLAIN)})
    for c, channel in enumerate(CHANNELS):
        sums.update({f"{channel}_{name}": pattern[:, c, k] for k, name in enumerate(PATTERN)})
        sums[f"ring_{channel}"] = [rings[:, c, k] for k in range(4)]
        sums[f"lcm_{channel}"] = [lcm[:, c, k] for k in range(6)]
    return sums
