"""Lateral distributions of electrons and muons in the shower plane, for simulation and for fits.

Both forms are KASCADE's (W. D. Apel et al., Astropart. Phys. 24 (2006) 467; T. Antoni et al., Astropart. Phys. 14
(2001) 245): a modified Nishimura-Kamata-Greisen function with its normalisation in closed form. All functions are pure,
elementwise, broadcast their arguments, and take an array namespace ``xp`` (NumPy by default).
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

ELECTRON_R0_M = 40.0
"""Scale radius of the electron distribution in KASCADE's reconstruction."""
ELECTRON_ALPHA = 1.5
ELECTRON_BETA = 3.6
MAX_ELECTRON_AGE = 1.55
"""From this age on the electron distribution has no finite integral over the plane."""
MUON_R0_M = 420.0
"""Scale radius of the muon distribution in KASCADE's reconstruction."""
MUON_ALPHA = 2.0
MUON_BETA = 4.5
MIN_R_M = 1.0
"""Densities are held constant inside this radius; the power law diverges on the axis."""


def special_functions(xp: Any) -> Any:
    """Return the module that has ``gammaln`` and ``digamma`` for arrays of ``xp``.

    SciPy's own take arrays of libraries other than NumPy, CuPy and torch only with ``SCIPY_ARRAY_API=1`` set before
    SciPy is imported.
    """
    from array_api_compat import is_cupy_namespace, is_torch_namespace  # most who know stations ask for no density

    if is_cupy_namespace(xp):
        return importlib.import_module("cupyx.scipy.special")
    return importlib.import_module("torch.special" if is_torch_namespace(xp) else "scipy.special")


def normalisation(age: Any, r0_m: float, alpha: float, beta: float, xp: Any = np) -> Any:
    """Return C(s), which makes :func:`density` integrate to one over the plane.

    C(s) = Gamma(beta - s) / [2 pi r0^2 Gamma(s + 2 - alpha) Gamma(alpha + beta - 2 - 2 s)].

    Parameters
    ----------
    age
        Age s, any shape, floating.
    r0_m
        Scale radius in metres.
    alpha, beta
        Exponents of the form.
    xp
        Array namespace of ``age``.

    Returns
    -------
    array
        C(s) in m^-2; NaN outside alpha - 2 < s < (alpha + beta) / 2 - 1, where the integral diverges.
    """
    gammaln = special_functions(xp).gammaln
    both = (beta - 2.0) + alpha
    log_c = gammaln(beta - age) - gammaln(age + (2.0 - alpha)) - gammaln(both - 2.0 * age)
    c = xp.exp(log_c) / (2.0 * math.pi * r0_m * r0_m)
    return xp.where((age > alpha - 2.0) & (age < 0.5 * both), c, c * math.nan)


def density(r_m: Any, number: Any, age: Any, r0_m: float, alpha: float, beta: float, xp: Any = np) -> Any:
    """Return the particle density in the shower plane, N C(s) (r/r0)^(s - alpha) (1 + r/r0)^(s - beta).

    Parameters
    ----------
    r_m
        Distance from the axis, metres; values below 1 m count as 1 m.
    number, age
        Particle number N and age s, broadcastable against ``r_m``.
    r0_m
        Scale radius in metres.
    alpha, beta
        Exponents of the form: 2 and 4.5 are those of Nishimura, Kamata and Greisen.
    xp
        Array namespace.

    Returns
    -------
    array
        Particles per m2 perpendicular to the axis.
    """
    x = xp.clip(r_m, MIN_R_M, None) / r0_m
    shape = xp.exp((age - alpha) * xp.log(x) + (age - beta) * xp.log1p(x))
    return number * normalisation(age, r0_m, alpha, beta, xp) * shape


def electron_normalisation(age: Any, r0_m: float = ELECTRON_R0_M, xp: Any = np) -> Any:
    """Return :func:`normalisation` of KASCADE's electrons; NaN outside -0.5 < s < 1.55."""
    return normalisation(age, r0_m, ELECTRON_ALPHA, ELECTRON_BETA, xp)


def rho_electron(r_m: Any, n_e: Any, age: Any, r0_m: float = ELECTRON_R0_M, xp: Any = np) -> Any:
    """Return :func:`density` of KASCADE's electrons, N_e C(s) (r/r0)^(s - 1.5) (1 + r/r0)^(s - 3.6)."""
    return density(r_m, n_e, age, r0_m, ELECTRON_ALPHA, ELECTRON_BETA, xp)


def muon_normalisation(age: Any, r0_m: float = MUON_R0_M, xp: Any = np) -> Any:
    """Return :func:`normalisation` of KASCADE's muons; NaN outside 0 < s < 2.25."""
    return normalisation(age, r0_m, MUON_ALPHA, MUON_BETA, xp)


def rho_muon(r_m: Any, n_mu: Any, age: Any, r0_m: float = MUON_R0_M, xp: Any = np) -> Any:
    """Return :func:`density` of KASCADE's muons, N_mu C(s) (r/r0)^(s - 2) (1 + r/r0)^(s - 4.5)."""
    return density(r_m, n_mu, age, r0_m, MUON_ALPHA, MUON_BETA, xp)


def axis_distance(
    x_m: Any, y_m: Any, core_x_m: Any, core_y_m: Any, zenith_deg: Any, azimuth_deg: Any, xp: Any = np
) -> Any:
    """Return the distance of points on the ground from the shower axis, measured in the shower plane.

    r^2 = d^2 - (d . u)^2 with d the vector from the core and u the horizontal part of the axis' unit vector,
    sin(zenith) (cos(azimuth), sin(azimuth)).

    Returns
    -------
    array
        Metres, shape of all arguments broadcast together.
    """
    azimuth = azimuth_deg * (math.pi / 180.0)
    sine = xp.sin(zenith_deg * (math.pi / 180.0))
    dx, dy = x_m - core_x_m, y_m - core_y_m
    along = (dx * xp.cos(azimuth) + dy * xp.sin(azimuth)) * sine
    square = dx * dx + dy * dy - along * along
    return xp.sqrt(xp.clip(square, 0.0, None))
