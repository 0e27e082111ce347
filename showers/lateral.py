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


def electron_normalisation(age: Any, r0_m: float = ELECTRON_R0_M, xp: Any = np) -> Any:
    """Return C(s), which makes the electron density integrate to one over the plane.

    C(s) = Gamma(3.6 - s) / [2 pi r0^2 Gamma(s + 0.5) Gamma(3.1 - 2 s)].

    Parameters
    ----------
    age
        Lateral age s, any shape, floating.
    r0_m
        Scale radius in metres.
    xp
        Array namespace of ``age``.

    Returns
    -------
    array
        C(s) in m^-2; NaN outside -0.5 < s < 1.55, where the integral diverges.
    """
    gammaln = special_functions(xp).gammaln
    log_c = gammaln(3.6 - age) - gammaln(age + 0.5) - gammaln(3.1 - 2.0 * age)
    c = xp.exp(log_c) / (2.0 * math.pi * r0_m * r0_m)
    return xp.where((age > -0.5) & (age < MAX_ELECTRON_AGE), c, c * math.nan)


def rho_electron(r_m: Any, n_e: Any, age: Any, r0_m: float = ELECTRON_R0_M, xp: Any = np) -> Any:
    """Return the electron density in the shower plane.

    rho_e = N_e C(s) (r/r0)^(s - 1.5) (1 + r/r0)^(s - 3.6).

    Parameters
    ----------
    r_m
        Distance from the axis, metres; values below 1 m count as 1 m.
    n_e, age
        Electron number and lateral age, broadcastable against ``r_m``.
    r0_m
        Scale radius in metres.
    xp
        Array namespace.

    Returns
    -------
    array
        Electrons per m2 perpendicular to the axis.
    """
    log_x, log_1x = _log_radius(r_m, r0_m, xp)
    shape = xp.exp((age - ELECTRON_ALPHA) * log_x + (age - ELECTRON_BETA) * log_1x)
    return n_e * electron_normalisation(age, r0_m, xp) * shape


def muon_normalisation(age: Any, r0_m: float = MUON_R0_M, xp: Any = np) -> Any:
    """Return Gamma(4.5 - s) / [2 pi r0^2 Gamma(s) Gamma(4.5 - 2 s)] in m^-2; NaN outside 0 < s < 2.25."""
    gammaln = special_functions(xp).gammaln
    log_c = gammaln(4.5 - age) - gammaln(age) - gammaln(4.5 - 2.0 * age)
    c = xp.exp(log_c) / (2.0 * math.pi * r0_m * r0_m)
    return xp.where((age > 0.0) & (age < 2.25), c, c * math.nan)


def rho_muon(r_m: Any, n_mu: Any, age: Any, r0_m: float = MUON_R0_M, xp: Any = np) -> Any:
    """Return the muon density in the shower plane.

    rho_mu = N_mu C(s) (r/r0)^(s - 2) (1 + r/r0)^(s - 4.5).

    Parameters
    ----------
    r_m
        Distance from the axis, metres; values below 1 m count as 1 m.
    n_mu, age
        Total muon number and muon age, broadcastable against ``r_m``.
    r0_m
        Scale radius in metres.
    xp
        Array namespace.

    Returns
    -------
    array
        Muons per m2 perpendicular to the axis.
    """
    log_x, log_1x = _log_radius(r_m, r0_m, xp)
    return n_mu * muon_normalisation(age, r0_m, xp) * xp.exp((age - 2.0) * log_x + (age - 4.5) * log_1x)


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


def _log_radius(r_m: Any, r0_m: float, xp: Any) -> tuple[Any, Any]:
    x = xp.clip(r_m, MIN_R_M, None) / r0_m
    return xp.log(x), xp.log1p(x)
