"""The US standard atmosphere: the matter above an altitude, and the air's density there.

J. Linsley's parametrisation, as CORSIKA has it (D. Heck, J. Knapp et al., report FZKA 6019 (1998), and the user's
guide, appendix "Atmospheric parameters", model 1). With h the altitude above sea level

    T(h) = a_i + b_i exp(-h / c_i)   g/cm2   below 100 km, in four layers,
    T(h) = a_5 - b_5 h / c_5         g/cm2   from there to 112.8 km,

and the density is -dT/dh.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

LAYERS_KM = (0.0, 4.0, 10.0, 40.0, 100.0)
"""Altitude from which each layer reaches upwards; the lowest serves below sea level as well."""
A_G_CM2 = (-186.5562, -94.919, 0.61289, 0.0, 0.01128292)
B_G_CM2 = (1222.6562, 1144.9069, 1305.5948, 540.1778, 1.0)
C_CM = (994186.38, 878153.55, 636143.04, 772170.16, 1e9)
CM_PER_M, CM_PER_KM = 100.0, 1e5


def depth_at(altitude_m: ArrayLike) -> np.ndarray:
    """Return the vertical depth, g/cm2 float64, at altitudes above sea level, m; 0 above 112.8 km.

    >>> round(float(depth_at(110.0)))  # KASCADE
    1023
    """
    h = np.asarray(altitude_m, dtype=np.float64) * CM_PER_M
    layer = np.clip(np.searchsorted(np.array(LAYERS_KM) * CM_PER_KM, h, side="right") - 1, 0, len(LAYERS_KM) - 1)
    a, b, c = (np.array(values)[layer] for values in (A_G_CM2, B_G_CM2, C_CM))
    linear = layer == len(LAYERS_KM) - 1
    depth = np.where(linear, a - b * h / c, a + b * np.exp(-np.where(linear, 0.0, h) / c))
    return np.maximum(depth, 0.0)


def altitude_of(depth_g_cm2: ArrayLike) -> np.ndarray:
    """Return the altitude above sea level, m float64, of vertical depths, g/cm2 (above 0); inverse of :func:`depth_at`.

    >>> round(float(altitude_of(700.0)), -1)
    3200.0
    """
    depth = np.asarray(depth_g_cm2, dtype=np.float64)
    borders = depth_at(np.array(LAYERS_KM) * 1000.0)
    layer = np.clip(len(borders) - np.searchsorted(borders[::-1], depth, side="left") - 1, 0, len(borders) - 1)
    a, b, c = (np.array(values)[layer] for values in (A_G_CM2, B_G_CM2, C_CM))
    linear = layer == len(LAYERS_KM) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        exponential = c * np.log(b / np.where(linear, b, depth - a))
    return np.where(linear, (a - depth) * c / b, exponential) / CM_PER_M


def air_density(depth_g_cm2: ArrayLike) -> np.ndarray:
    """Return the density of the air, kg/m3 float64, where so much matter (g/cm2, above 0.0113) lies above.

    >>> round(float(air_density(1036.1)), 3)  # sea level
    1.23
    """
    depth = np.asarray(depth_g_cm2, dtype=np.float64)
    borders = depth_at(np.array(LAYERS_KM[:4]) * 1000.0)
    layer = np.clip(len(borders) - np.searchsorted(borders[::-1], depth, side="left") - 1, 0, len(borders) - 1)
    a, c = (np.array(values)[layer] for values in (A_G_CM2, C_CM))
    return (depth - a) / c * 1000.0  # g/cm3 to kg/m3
