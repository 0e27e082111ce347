"""The lateral fits of many events, on the CPU or a GPU, and the record of float32 that a fit gives for each event.

Steps, the same in both kernels (:mod:`showerstack.features.lateral.compiled` and ``kernel.cu``):

1. Start: core at the centroid of density^1.5, best of three ages by deviance, muon level from counts beyond 40 m.
2. Freeze the electron channel at the start; minimise over (core, L, s) to a coarse tolerance.
3. Freeze the muon channel there; minimise over (M, s_mu).
4. Freeze the electron channel at both fits; minimise to the fine tolerance.
5. Freeze the muon channel again; minimise to the fine tolerance.

An array without muon detectors has neither 3 nor 5, and no muons in 2 and 4.

Levenberg-Marquardt per event: a step solves (H + damping diag I) d = -g with Fisher's matrix I; it is taken if F does
not rise. The damping follows the ratio of the decrease to the expected one. H is I as long as its steps are good. I can
be too small by more than half, where a bright station near the core misses its expectation, and its steps then jump
from one side of the minimum to the other for ever: once a step was poor (the damping is above its first value), H is
the Hessian with the second derivatives of ln(signal), wherever that is safely positive definite. An event has converged
when the decrement g H^-1 g, twice the decrease still to be expected of F, is below the tolerance.

On the CPU one event is finished before the next begins, so each takes only the steps it needs and everything it touches
stays in the first-level cache. Constants arrive as arguments, so that the cached machine code never holds an old value;
everything is inlined into one cached function, so that the same machine code runs in the process that compiled it and
in those that load it (bits would differ otherwise). On a GPU ``kernel.cu``, with constants and station model as C++, is
compiled when needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.features.lateral import cuda
from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.planes import planes_of
from showerstack.features.lateral.recipe import Recipe, recipe_of
from showerstack.runtime.kernels import kernel_of
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.response import StationResponse

SIZES = {
    "electron": 4,
    "electron_fisher": 10,
    "electron_value": 1,
    "electron_steps": 1,
    "electron_converged": 1,
    "muon": 2,
    "muon_fisher": 3,
    "muon_value": 1,
    "muon_steps": 1,
    "muon_converged": 1,
}
"""Numbers in each field of :class:`RawFit`, in the order of the record."""
N_NUMBERS = sum(SIZES.values())
RECORD = np.dtype([(name, np.float32, (size,) if size > 1 else ()) for name, size in SIZES.items()])


def record_in_c() -> str:
    """Return the record as a declaration in C."""
    return cuda.struct_in_c("RawFit", SIZES)


@dataclass(frozen=True)
class RawFit:
    """Minima of both fits; arrays (n,) float32, NaN where an event was not fitted."""

    electron: list[Any]
    """core x, core y (m), L, s."""
    electron_fisher: list[Any]
    """Lower triangle of the 4 x 4 Fisher matrix at the minimum."""
    electron_value: Any
    """Half deviance at the minimum, priors included."""
    electron_steps: Any
    electron_converged: Any
    """1 or 0."""
    muon: list[Any]
    """M, s_mu."""
    muon_fisher: list[Any]
    muon_value: Any
    muon_steps: Any
    muon_converged: Any
    numbers: Any = None
    """(n, 25) float32: the records, where they are at hand."""

    @classmethod
    def from_numbers(cls, numbers: Any) -> Self:
        """Return the fits from records seen as plain numbers, (n, 25) float32 of any array library."""
        start, parts = 0, {}
        for name, size in SIZES.items():
            columns = [numbers[:, k] for k in range(start, start + size)]
            parts[name] = columns if size > 1 else columns[0]
            start += size
        return cls(**parts, numbers=numbers)

    def columns(self) -> list[Any]:
        """Return all numbers of the record as arrays (n,)."""
        values = [getattr(self, name) for name in SIZES]
        return [column for value in values for column in (value if isinstance(value, list) else [value])]

    def records(self) -> np.ndarray:
        """Return (n,) records of type :data:`RECORD` of fits on the CPU."""
        return np.stack(self.columns(), axis=1).astype(np.float32).view(RECORD)[:, 0]


@lru_cache(maxsize=4)
def kernel_source(response: StationResponse, array: DetectorArray = KASCADE) -> cuda.Kernels:
    """Return the fit's CUDA kernel."""
    body, planes = Path(__file__).with_name("kernel.cu"), 6 * array.n_cells + 7 * max(array.n_muon_detectors, 1) + 1
    recipe = cuda.space_in_c("recipe", recipe_of(array)._asdict())
    return cuda.assemble(body, response, array, planes, recipe, record_in_c())


@lru_cache(maxsize=16)
def _muon_detectors(xp: Any, array: DetectorArray) -> tuple[Any, ...]:
    """Return cell, x, y (m) and area (m2) of each muon detector, on the device."""
    cells = np.flatnonzero(array.has_muon)
    x, y, _, area = array.fit_geometry
    places = (values.ravel()[cells].astype(np.float32) for values in (x, y, area))
    return xp.asarray(cells.astype(np.int32)), *(xp.asarray(values) for values in places)


def fit_cuda(events: EventBatch) -> RawFit:
    """Fit both lateral distributions of every event on the GPU; same steps and result as on the CPU."""
    xp, here, n = events.xp, events.stations, len(events)
    raw = xp.empty((n, N_NUMBERS), dtype=xp.float32)
    planes = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    geometry = [here.x_m, here.y_m, here.electron_area_m2, *_muon_detectors(xp, events.array)]
    arguments = [xp.ascontiguousarray(array) for array in (*planes, *geometry)]
    cuda.launch(kernel_source(events.response, events.array), "fit_events", n, [*arguments, n, raw])
    return RawFit.from_numbers(raw)


_fit_events = kernel_of("showerstack.features.lateral.compiled", "fit_events")


def _limits(recipe: Recipe) -> tuple[np.ndarray, ...]:
    """Return largest step, lower and upper bound of the e/gamma parameters, and of the muons', in float64."""
    far, low, high = recipe.core_limit_m, recipe.min_level, recipe.max_level
    return (
        np.array([recipe.max_core_step_m, recipe.max_core_step_m, recipe.max_level_step, recipe.max_age_step]),
        np.array([-far, -far, low, recipe.min_age]),
        np.array([far, far, high, recipe.max_age]),
        np.array([recipe.max_level_step, recipe.max_age_step]),
        np.array([low, recipe.min_muon_age]),
        np.array([high, recipe.max_muon_age]),
    )


def _scratch(array: DetectorArray) -> tuple[np.ndarray, Any]:
    """Return the cells with a muon detector, and the planes of one event, new for each call of a thread."""
    x_m, y_m, electron_area_m2, muon_area_m2 = (values.astype(np.float32).ravel() for values in array.fit_geometry)
    muon_cells = np.flatnonzero(array.has_muon).astype(np.uintp)
    return muon_cells, planes_of(x_m, y_m, electron_area_m2, muon_area_m2, muon_cells)


def fit_fused(events: EventBatch) -> RawFit:
    """Fit both lateral distributions of every event on the CPU."""
    numbers = np.full((len(events), N_NUMBERS), np.nan, np.float32)
    planes = (events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction)
    recipe = recipe_of(events.array)
    records = numbers.view(RECORD)[:, 0]
    _fit_events(*planes, *_scratch(events.array), events.response, recipe, _limits(recipe), records)
    return RawFit.from_numbers(numbers)
