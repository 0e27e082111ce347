"""The lateral fits as one compiled loop over events; the steps are told in :mod:`features.lateral.fit`.

One event is finished before the next begins, so each takes only the steps it needs and everything it touches stays in
the first-level cache. Constants arrive as arguments, so that the cached machine code never holds an old value;
everything is inlined into one cached function, so that the same machine code runs in the process that compiled it and
in those that load it (bits would differ otherwise).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from features.events import EventBatch
from features.lateral.compiled.cpu_model import ONE, ZERO, Electrons, Muons, Places, freeze_electron, freeze_muon, radii
from features.lateral.compiled.minimise import ELECTRON, MUON, Event, centroid, minimise, start_electron, start_muon
from features.lateral.constants import StationResponse
from features.lateral.fit import N_NUMBERS, RECORD, RawFit
from features.lateral.options import RECIPE, Recipe
from features.lateral.vector_math import FAST, f32, full_vectors
from showers.execution.kernels import kernel


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _load(mev: Any, places: Places, cosine: Any, deposit: float, limit: float, channel: Any) -> int:
    """Fill signal (particles), saturation and projected area of one channel; returns the number of hit stations."""
    full_vectors()
    where, area_m2 = places.where, places.area_m2
    signal, full, projected = channel.signal, channel.full, channel.projected
    to_particles, top = f32(cosine / deposit), f32(limit)
    hits = 0
    for k in range(where.size):
        deposit_mev = mev[where[k]]
        signal[k] = min(deposit_mev, top) * to_particles
        full[k] = ONE if deposit_mev >= top else ZERO
        projected[k] = area_m2[k] * cosine
        hits += 1 if deposit_mev > ZERO else 0
    return hits


@kernel(error_model="numpy")
def _fit_events(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    here: Places,
    below: Places,
    res: StationResponse,
    recipe: Recipe,
    out: Any,
) -> None:
    """Fill the records ``out`` (n,) with both minima of every event that has enough hits."""
    full_vectors()
    n_e, n_m = here.x.size, below.x.size
    empty_e, empty_m = np.empty((6, n_e), np.float32), np.empty((7, n_m), np.float32)
    e = Electrons(empty_e[0], empty_e[1], empty_e[2], empty_e[3], empty_e[4], empty_e[5])
    m = Muons(empty_m[0], empty_m[1], empty_m[2], empty_m[3], empty_m[4], empty_m[5], empty_m[6])
    r_e, r_m = np.empty(n_e, np.float32), np.empty(n_m, np.float32)
    scratch, work = np.empty((5, n_e), np.float32), np.zeros((8, 25))
    p, q = np.empty(4), np.empty(2)
    far, low_level, high_level = recipe.core_limit_m, recipe.min_level, recipe.max_level
    step_limit_e = np.array(
        [recipe.max_core_step_m, recipe.max_core_step_m, recipe.max_level_step, recipe.max_age_step]
    )
    low_e, high_e = np.array([-far, -far, low_level, recipe.min_age]), np.array([far, far, high_level, recipe.max_age])
    step_limit_m = np.array([recipe.max_level_step, recipe.max_age_step])
    low_m, high_m = np.array([low_level, recipe.min_muon_age]), np.array([high_level, recipe.max_muon_age])
    for n in range(electron_mev.shape[0]):
        hits = _load(electron_mev[n], here, cosine[n], res.electron_deposit_mev, res.saturation_mev, e)
        if hits < recipe.min_hits:
            continue
        _load(muon_mev[n], below, cosine[n], res.muon_deposit_mev, res.muon_saturation_mev, m)
        event, raw = Event(u[n], v[n], here, e, m), out[n]
        p[0], p[1] = centroid(here, e)
        radii(f32(p[0]), f32(p[1]), u[n], v[n], below.x, below.y, r_m)
        start_muon(res, recipe, r_m, cosine[n], m, q)
        mean_age = f32(q[1])
        radii(f32(p[0]), f32(p[1]), u[n], v[n], here.x, here.y, r_e)
        start_electron(res, recipe, p, q, r_e, e, scratch)
        raw.electron_steps = raw.muon_steps = ZERO
        for tolerance in (recipe.coarse, recipe.fine):
            radii(f32(p[0]), f32(p[1]), u[n], v[n], here.x, here.y, r_e)
            freeze_electron(res, p, q, r_e, e)
            steps, arrived = minimise(
                ELECTRON, res, recipe, tolerance, p, mean_age, event, step_limit_e, low_e, high_e, work
            )
            raw.electron_steps += steps
            raw.electron_converged = ONE if arrived else ZERO
            raw.electron_value = work[0, 0]
            raw.electron_fisher[:] = work[0, 5:15]
            radii(f32(p[0]), f32(p[1]), u[n], v[n], below.x, below.y, r_m)
            freeze_muon(res, p, q, r_m, m)
            steps, arrived = minimise(
                MUON, res, recipe, tolerance, q, mean_age, event, step_limit_m, low_m, high_m, work
            )
            raw.muon_steps += steps
            raw.muon_converged = ONE if arrived else ZERO
            raw.muon_value = work[0, 0]
            raw.muon_fisher[:] = work[0, 3:6]
        raw.electron[:] = p
        raw.muon[:] = q


def fit_fused(events: EventBatch) -> RawFit:
    """Fit both lateral distributions of every event on the CPU."""
    here = events.stations
    where = np.flatnonzero(here.has_muon)
    all_cells = Places(np.arange(here.x_m.size), here.x_m, here.y_m, here.electron_area_m2)
    below = Places(where, here.x_m[where], here.y_m[where], here.muon_area_m2[where])
    numbers = np.full((len(events), N_NUMBERS), np.nan, np.float32)
    planes = (events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction)
    _fit_events(*planes, all_cells, below, events.response, RECIPE, numbers.view(RECORD)[:, 0])
    return RawFit.from_numbers(numbers)
