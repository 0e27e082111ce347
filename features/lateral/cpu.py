"""The lateral fits as one compiled loop over events, with the steps of :mod:`features.lateral.reference`.

One event is finished before the next begins, so each takes only the steps it needs and everything it touches stays in
the first-level cache. Constants arrive as arguments, so that the cached machine code never holds an old value;
everything is inlined into one cached function, so that the same machine code runs in the process that compiled it and
in those that load it (bits would differ otherwise).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from features.events import Events
from features.lateral.constants import Response
from features.lateral.cpu_model import ONE, ZERO, freeze_electron, freeze_muon, radii
from features.lateral.minimise import ELECTRON, MUON, centroid, minimise, start_electron, start_muon
from features.lateral.options import RECIPE, Recipe
from features.lateral.reference import RawFit
from features.lateral.vector_math import FAST, f32, full_vectors
from showers.kernels import kernel


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _load(mev: Any, where: Any, cosine: Any, area_m2: Any, deposit: float, limit: float, area: Any, planes: Any) -> int:
    """Fill signal (particles), saturation and projected area of one channel; returns the number of hit stations."""
    full_vectors()
    to_particles, top = f32(cosine / deposit), f32(limit)
    hits = 0
    for k in range(where.size):
        deposit_mev = mev[where[k]]
        planes[0, k] = min(deposit_mev, top) * to_particles
        planes[1, k] = ONE if deposit_mev >= top else ZERO
        area[k] = area_m2[k] * cosine
        planes[2, k] = area[k]
        hits += 1 if deposit_mev > ZERO else 0
    return hits


@njit(error_model="numpy", forceinline=True)
def _fit_all(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    everywhere: Any,
    x: Any,
    y: Any,
    area_e: Any,
    where_m: Any,
    x_m: Any,
    y_m: Any,
    area_m: Any,
    res: Response,
    recipe: Recipe,
    raw: Any,
) -> None:
    """Fill ``raw`` (n, 25) float32 with both minima of every event; NaN where an event has too few hits."""
    full_vectors()
    n_e, n_m = x.size, x_m.size
    planes_e, planes_m = np.empty((5, n_e), np.float32), np.empty((8, n_m), np.float32)
    r_e, r_m = np.empty(n_e, np.float32), np.empty(n_m, np.float32)
    projected_e, projected_m = np.empty(n_e, np.float32), np.empty(n_m, np.float32)
    scratch, work = np.empty((5, n_e), np.float32), np.zeros((8, 25))
    p, q = np.empty(4), np.empty(2)
    far, low_level, high_level = recipe.core_limit_m, recipe.min_level, recipe.max_level
    longest_e = np.array([recipe.longest_core_m, recipe.longest_core_m, recipe.longest_level, recipe.longest_shape])
    low_e, high_e = np.array([-far, -far, low_level, recipe.min_age]), np.array([far, far, high_level, recipe.max_age])
    longest_m = np.array([recipe.longest_level, recipe.longest_shape])
    low_m, high_m = np.array([low_level, recipe.min_muon_shape]), np.array([high_level, recipe.max_muon_shape])
    for n in range(electron_mev.shape[0]):
        hits = _load(
            electron_mev[n],
            everywhere,
            cosine[n],
            area_e,
            res.electron_deposit_mev,
            res.saturation_mev,
            projected_e,
            planes_e,
        )
        if hits < recipe.min_hits:
            raw[n] = np.nan
            continue
        _load(
            muon_mev[n],
            where_m,
            cosine[n],
            area_m,
            res.muon_deposit_mev,
            res.muon_saturation_mev,
            projected_m,
            planes_m,
        )
        p[0], p[1] = centroid(planes_e[0], projected_e, x, y)
        radii(f32(p[0]), f32(p[1]), u[n], v[n], x_m, y_m, r_m)
        start_muon(res, recipe, r_m, cosine[n], planes_m[0], projected_m, q)
        planes_m[7, 0] = q[1]
        radii(f32(p[0]), f32(p[1]), u[n], v[n], x, y, r_e)
        start_electron(res, recipe, p, q, r_e, projected_e, planes_e, scratch)
        steps = muon_steps = 0
        arrived = muon_arrived = False
        for tolerance in (recipe.coarse, recipe.fine):
            radii(f32(p[0]), f32(p[1]), u[n], v[n], x, y, r_e)
            freeze_electron(res, p, q, r_e, projected_e, planes_e[2], planes_e[3], planes_e[4])
            more, arrived = minimise(
                ELECTRON, res, recipe, tolerance, p, u[n], v[n], x, y, planes_e, longest_e, low_e, high_e, work
            )
            steps += more
            raw[n, 4:14] = work[0, 5:15]
            raw[n, 14] = work[0, 0]
            radii(f32(p[0]), f32(p[1]), u[n], v[n], x_m, y_m, r_m)
            freeze_muon(res, p, q, r_m, projected_m, planes_m[3], planes_m[4], planes_m[5], planes_m[6])
            more, muon_arrived = minimise(
                MUON, res, recipe, tolerance, q, u[n], v[n], x_m, y_m, planes_m, longest_m, low_m, high_m, work
            )
            muon_steps += more
            raw[n, 19:22] = work[0, 3:6]
            raw[n, 22] = work[0, 0]
        raw[n, 0:4] = p
        raw[n, 15], raw[n, 16] = steps, arrived
        raw[n, 17:19] = q
        raw[n, 23], raw[n, 24] = muon_steps, muon_arrived


@kernel(error_model="numpy")
def _fit_events(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    stations_e: Any,
    stations_m: Any,
    res: Response,
    recipe: Recipe,
    raw: Any,
) -> None:
    full_vectors()
    where, x, y, area_e = stations_e
    where_m, x_m, y_m, area_m = stations_m
    _fit_all(electron_mev, muon_mev, cosine, u, v, where, x, y, area_e, where_m, x_m, y_m, area_m, res, recipe, raw)


def fit_fused(events: Events) -> RawFit:
    """Fit both lateral distributions of every event, as :func:`features.lateral.reference.fit_reference` does."""
    here = events.stations
    where_m = np.flatnonzero(here.has_muon)
    stations_e = (np.arange(here.x_m.size), here.x_m, here.y_m, here.electron_area_m2)
    stations_m = (where_m, here.x_m[where_m], here.y_m[where_m], here.muon_area_m2[where_m])
    raw = np.empty((len(events), RawFit.N_COLUMNS), np.float32)
    planes = (events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction)
    _fit_events(*planes, stations_e, stations_m, events.response, RECIPE, raw)
    return RawFit.from_columns([raw[:, k] for k in range(RawFit.N_COLUMNS)])
