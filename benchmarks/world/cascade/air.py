"""The US standard atmosphere in J. Linsley's parametrisation, as CORSIKA has it, for compiled code.

D. Heck et al., Forschungszentrum Karlsruhe report FZKA 6019 (1998), appendix D: in each layer the overburden is
X(h) = a + b exp(-h/c). The last layer's linear part, above 0.01 g/cm2, is not needed here.
"""

from __future__ import annotations

import math

import numba

LAYERS = (
    (631.1, -186.5562, 1222.6562, 994186.38),
    (271.7, -94.919, 1144.9069, 878153.55),
    (3.04, 0.61289, 1305.5948, 636143.04),
    (0.0, 0.0, 540.1778, 772170.16),
)
"""Least overburden (g/cm2) of a layer, a (g/cm2), b (g/cm2) and c (cm)."""


@numba.njit(cache=True, fastmath=True)
def altitude_cm(overburden: float) -> float:
    """Return the height above sea level, cm, of a vertical overburden, g/cm2."""
    if overburden > 631.1:
        return -994186.38 * math.log((overburden + 186.5562) / 1222.6562)
    if overburden > 271.7:
        return -878153.55 * math.log((overburden + 94.919) / 1144.9069)
    if overburden > 3.04:
        return -636143.04 * math.log((overburden - 0.61289) / 1305.5948)
    return -772170.16 * math.log(max(overburden, 0.01) / 540.1778)


@numba.njit(cache=True, fastmath=True)
def depth_over_density_cm(overburden: float) -> float:
    """Return overburden over density, cm: the scale height of the atmosphere as a decaying particle sees it."""
    if overburden > 631.1:
        return overburden * 994186.38 / (overburden + 186.5562)
    if overburden > 271.7:
        return overburden * 878153.55 / (overburden + 94.919)
    if overburden > 3.04:
        return overburden * 636143.04 / (overburden - 0.61289)
    return 772170.16
