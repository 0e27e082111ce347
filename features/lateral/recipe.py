"""How the lateral fits start, step and stop: settings of the minimisation, shared by both kernels."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from showerstack.showers.array import KASCADE_PITCH_M, DetectorArray


class Recipe(NamedTuple):
    """How the lateral fits start, step and stop; a named tuple, so that compiled kernels take it as an argument."""

    min_hits: float = 3.0
    """Events with fewer hit e/gamma stations are not fitted."""
    first_start_age: float = 0.7
    """First of the three ages tried for the start."""
    start_age_step: float = 0.3
    start_limit: float = 1.0
    """How much a saturated station counts in the level of the start; 0 where stations are so far apart that the core,
    put on that station, would be metres from where it may see so little."""
    muon_start_r_m: float = 40.0
    """Muons beyond this distance set the muon level of the start."""
    coarse: float = 0.1
    """Decrement g H^-1 g at which the first minimisation stops."""
    fine: float = 5e-4
    """Decrement at which the last minimisation stops: the minimum is then 0.02 standard errors away."""
    max_steps: float = 60.0
    first_damping: float = 1e-2
    good_ratio: float = 0.9
    """Decrease of F over the expected one above which the damping is eased."""
    poor_ratio: float = 0.7
    """Decrease of F over the expected one below which the damping is stiffened."""
    ease: float = 0.4
    stiffen: float = 6.0
    least_pivot: float = 0.1
    """The Hessian serves a step if no pivot of its Cholesky factor falls below this share of Fisher's diagonal."""
    min_damping: float = 1e-3
    trusted_damping: float = 10.0
    """Convergence is tested only with a damping up to this."""
    max_damping: float = 1e8
    rounding: float = 5e-7
    """Relative rise of F that float32 rounding explains."""
    max_core_step_m: float = 25.0
    """Longest step in the core's coordinates."""
    max_level_step: float = 1.5
    max_age_step: float = 0.3
    core_limit_m: float = 150.0
    min_age: float = -0.3
    max_age: float = 2.2
    min_muon_age: float = 0.5
    max_muon_age: float = 2.1
    min_level: float = -25.0
    max_level: float = 12.0


RECIPE = Recipe()
"""KASCADE's."""
STEEPEST = 3.5
"""Densities fall with the distance by this power at most: nearer stations of a wide array would see so much more."""

STEEPER_START = 0.1
"""How much smaller the first age tried is for each factor e in the pitch: wide arrays see the steep part alone."""


@lru_cache(maxsize=64)
def recipe_of(array: DetectorArray) -> Recipe:
    """Return what the fits of an array use, in their unit of length: limits by its extent and pitch."""
    wide = max(array.pitch_m / KASCADE_PITCH_M, 1.0)
    return RECIPE._replace(
        core_limit_m=array.core_limit_m / array.fit_unit_m,
        max_core_step_m=RECIPE.max_core_step_m * wide / array.fit_unit_m,
        start_limit=float(wide <= 1.0),
        first_start_age=max(RECIPE.first_start_age - STEEPER_START * math.log(wide), RECIPE.start_age_step),
        max_level=RECIPE.max_level + STEEPEST * math.log(wide),
    )
