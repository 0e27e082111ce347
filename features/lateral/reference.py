"""Lateral fits of both channels: the array-API reference, event-batched damped Gauss-Newton.

Steps (the fused kernels follow them one by one):

1. Start: core at the centroid of density^1.5, best of three ages by deviance, muon level from counts beyond 40 m.
2. Freeze the electron channel at the start; minimise over (core, L, s) to a coarse tolerance.
3. Freeze the muon channel there; minimise over (M, s_mu).
4. Freeze the electron channel at both fits; minimise to the fine tolerance.
5. Freeze the muon channel again; minimise to the fine tolerance.

Levenberg-Marquardt per event: a step solves (H + damping diag I) d = -g with Fisher's matrix I; it is taken if F does
not rise. The damping follows the ratio of the decrease to the expected one. H is I as long as its steps are good. I
can be too small by more than half, where a bright station near the core misses its expectation, and its steps then
jump from one side of the minimum to the other for ever: once a step was poor (the damping is above its first value),
H is the Hessian with the second derivatives of ln(signal), wherever that is safely positive definite. An event has
converged when the decrement g H^-1 g, twice the decrease still to be expected of F, is below the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from features.events import Events
from features.lateral import linear
from features.lateral.model import (
    Signals,
    Terms,
    electron_density,
    electron_terms,
    energy_correction,
    freeze_electron,
    freeze_muon,
    half_deviance,
    muon_density,
    muon_shape_prior,
    muon_terms,
    offsets,
    signals,
)
from features.lateral.options import RECIPE

LONGEST_ELECTRON = (RECIPE.longest_core_m, RECIPE.longest_core_m, RECIPE.longest_level, RECIPE.longest_shape)
"""Longest step in core x, y, L, s."""
LONGEST_MUON = (RECIPE.longest_level, RECIPE.longest_shape)
_CORE_LIMITS = (-RECIPE.core_limit_m, RECIPE.core_limit_m)
_LEVEL_LIMITS = (RECIPE.min_level, RECIPE.max_level)
ELECTRON_LIMITS = (_CORE_LIMITS, _CORE_LIMITS, _LEVEL_LIMITS, (RECIPE.min_age, RECIPE.max_age))
MUON_LIMITS = (_LEVEL_LIMITS, (RECIPE.min_muon_shape, RECIPE.max_muon_shape))


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

    N_COLUMNS: ClassVar[int] = 25

    @classmethod
    def from_columns(cls, columns: list[Any]) -> Self:
        """Return the fit from the kernels' output columns: the fields above in their order, lists spread out."""
        return cls(
            columns[0:4], columns[4:14], columns[14], columns[15], columns[16],
            columns[17:19], columns[19:22], columns[22], columns[23], columns[24],
        )  # fmt: skip

    def columns(self) -> list[Any]:
        """Return the fields as the kernels write them."""
        electron = [*self.electron, *self.electron_fisher, self.electron_value, self.electron_steps]
        muon = [*self.muon, *self.muon_fisher, self.muon_value, self.muon_steps, self.muon_converged]
        return [*electron, self.electron_converged, *muon]


@dataclass(frozen=True)
class _Minimum:
    parameters: list[Any]
    terms: Terms
    steps: Any
    converged: Any


def fit_reference(events: Events) -> RawFit:
    """Fit both lateral distributions of every event; see the module's head."""
    xp = events.xp
    measured = signals(events)
    fitted = xp.sum(events.electron_hit, axis=1) >= RECIPE.min_hits
    electron, muon = _start(events, measured)
    shape_mean = muon[1]
    steps_electron = steps_muon = 0.0
    for tolerance in (RECIPE.coarse, RECIPE.fine):
        r_m, _, _ = offsets(events, electron[0], electron[1])
        densities = _densities(r_m, electron, muon, xp)
        frozen = freeze_electron(measured, r_m, *densities, xp)
        electron_of = partial(electron_terms, events, measured, frozen)
        best = _minimise(electron_of, electron, LONGEST_ELECTRON, ELECTRON_LIMITS, tolerance, xp)
        electron, steps_electron = best.parameters, steps_electron + best.steps
        r_m, _, _ = offsets(events, electron[0], electron[1])
        frozen = freeze_muon(measured, r_m, *_densities(r_m, electron, muon, xp), xp)
        muon_of = partial(muon_terms, r_m, measured, frozen, shape_mean, xp=xp)
        best_muon = _minimise(muon_of, muon, LONGEST_MUON, MUON_LIMITS, tolerance, xp)
        muon, steps_muon = best_muon.parameters, steps_muon + best_muon.steps

    def defined(array: Any) -> Any:
        return xp.where(fitted, array, xp.ones_like(array) * float("nan"))

    return RawFit(
        electron=[defined(p) for p in electron],
        electron_fisher=[defined(f) for f in best.terms.fisher],
        electron_value=defined(best.terms.value),
        electron_steps=defined(steps_electron),
        electron_converged=defined(best.converged),
        muon=[defined(p) for p in muon],
        muon_fisher=[defined(f) for f in best_muon.terms.fisher],
        muon_value=defined(best_muon.terms.value),
        muon_steps=defined(steps_muon),
        muon_converged=defined(best_muon.converged),
    )


def _densities(r_m: Any, electron: list[Any], muon: list[Any], xp: Any) -> tuple[Any, Any]:
    electrons = electron_density(r_m, electron[2][:, None], electron[3][:, None], xp)
    return electrons, muon_density(r_m, muon[0][:, None], muon[1][:, None], xp)


def _start(events: Events, measured: Signals) -> tuple[list[Any], list[Any]]:
    """Return starting parameters of both fits; the muon shape starts at its prior's mean."""
    xp, here = events.xp, events.stations
    live = measured.electron_area_m2 > 0.0
    density = measured.electron / xp.where(live, measured.electron_area_m2, xp.ones_like(measured.electron))
    weight = density * xp.sqrt(density) + 1e-20
    total = xp.sum(weight, axis=1)
    core_x, core_y = xp.sum(weight * here.x_m, axis=1) / total, xp.sum(weight * here.y_m, axis=1) / total
    r_m, _, _ = offsets(events, core_x, core_y)
    one = xp.ones_like(core_x)
    shape = one * measured.response.muon_shape_mean
    far = xp.astype(r_m > RECIPE.muon_start_r_m, xp.float32)
    unit = muon_density(r_m, (one * 0.0)[:, None], shape[:, None], xp)
    counted = xp.sum(measured.muon * far, axis=1) + 0.5
    muon_level = xp.log(counted / (xp.sum(unit * measured.muon_area_m2 * far, axis=1) + 1e-6))
    shape = muon_shape_prior(muon_level, events.cos_zenith, measured.response, xp)
    muons = muon_density(r_m, muon_level[:, None], shape[:, None], xp)
    level, age = _best_age(measured, r_m, muons, xp)
    return [core_x, core_y, level, age], [muon_level, shape]


def _best_age(measured: Signals, r_m: Any, muons: Any, xp: Any) -> tuple[Any, Any]:
    """Return level and age of the start: for each age the level by total signal, then the smallest deviance."""
    area = measured.electron_area_m2
    live = xp.astype(area > 0.0, xp.float32)
    correction = energy_correction(r_m, measured.response, xp)
    weight = live / (measured.response.electron_dispersion * correction)
    background = area * muons + measured.response.electron_strays
    total = xp.sum(measured.electron, axis=1) + 0.5
    zero = xp.zeros_like(total)
    best_value, best_level, best_age = zero + float("inf"), zero, zero
    for age in (RECIPE.young, RECIPE.middle, RECIPE.old):
        shown = area * correction * electron_density(r_m, zero[:, None], (zero + age)[:, None], xp)
        level = xp.log(total / (xp.sum(shown, axis=1) + 1e-20))
        mu = shown * xp.exp(level)[:, None] + background
        value, _, _ = half_deviance(measured.electron, mu, measured.electron_saturated, weight, xp)
        value = xp.sum(value, axis=1)
        better = value < best_value
        best_value = xp.where(better, value, best_value)
        best_level = xp.where(better, level, best_level)
        best_age = xp.where(better, zero + age, best_age)
    return best_level, best_age


def _minimise(
    terms_of: Callable[[list[Any]], Terms],
    start: list[Any],
    longest: tuple[float, ...],
    limits: tuple[tuple[float, float], ...],
    tolerance: float,
    xp: Any,
) -> _Minimum:
    """Levenberg-Marquardt on all events at once; converged events stand still while the others go on."""
    size = len(start)
    parameters, terms = start, terms_of(start)
    damping = xp.zeros_like(terms.value) + RECIPE.first_damping
    steps = xp.zeros_like(terms.value)
    converged = active = None
    for _ in range(int(RECIPE.max_steps)):
        step = _step(terms, size, damping, xp)
        decrement = -sum(s * g for s, g in zip(step, terms.gradient, strict=True))
        arrived = (decrement * (1.0 + damping) < tolerance) & (damping <= RECIPE.trusted_damping)
        converged = arrived if converged is None else converged | arrived
        active = ~converged & (damping < RECIPE.max_damping)
        if not bool(xp.any(active)):
            break
        trial = [
            _clip(p + _clip(s, -most, most, xp), low, high, xp)
            for p, s, most, (low, high) in zip(parameters, step, longest, limits, strict=True)
        ]
        tried = terms_of(trial)
        slack = RECIPE.rounding * xp.abs(terms.value)
        fallen = terms.value - tried.value + slack
        ratio = fallen / (0.5 * decrement + slack)
        taken = active & (fallen >= 0.0)
        parameters = [xp.where(taken, new, old) for new, old in zip(trial, parameters, strict=True)]
        terms = Terms(
            xp.where(taken, tried.value, terms.value),
            [xp.where(taken, new, old) for new, old in zip(tried.gradient, terms.gradient, strict=True)],
            [xp.where(taken, new, old) for new, old in zip(tried.fisher, terms.fisher, strict=True)],
            [xp.where(taken, new, old) for new, old in zip(tried.hessian, terms.hessian, strict=True)],
        )
        eased = xp.maximum(damping * RECIPE.ease, xp.zeros_like(damping) + RECIPE.min_damping)
        changed = xp.where(ratio < RECIPE.poor_ratio, damping * RECIPE.stiffen, damping)
        damping = xp.where(active, xp.where(ratio > RECIPE.good_ratio, eased, changed), damping)
        steps = steps + xp.astype(active, xp.float32)
    return _Minimum(parameters, terms, steps, xp.astype(converged, xp.float32))


def _step(terms: Terms, size: int, damping: Any, xp: Any) -> list[Any]:
    """Return the damped step by the Hessian where one by Fisher's matrix was poor, else by Fisher's matrix."""
    scale = linear.diagonal(terms.fisher, size)
    rounded = linear.rounded(terms.fisher, size)
    factor, _ = linear.cholesky(linear.damped(terms.fisher, scale, damping), rounded, xp)
    least = [unit * RECIPE.least_pivot for unit in scale]
    curved, safe = linear.cholesky(linear.damped(terms.hessian, scale, damping), least, xp)
    bent = safe & (damping > RECIPE.first_damping)
    factor = [xp.where(bent, new, old) for new, old in zip(curved, factor, strict=True)]
    return [-component for component in linear.solve(factor, terms.gradient)]


def _clip(values: Any, low: float, high: float, xp: Any) -> Any:
    one = xp.ones_like(values)
    return xp.minimum(xp.maximum(values, one * low), one * high)
