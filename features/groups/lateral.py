"""Features of the lateral fits: sizes, shapes, their errors and the quality of the description."""

from __future__ import annotations

import math
from typing import Any

from numpy.polynomial.legendre import leggauss

from showerstack.features.groups import FITS, OURS, Feature, FittedEvents, Group, row
from showerstack.features.lateral import elementwise
from showerstack.features.lateral.elementwise import LG_E, defined
from showerstack.features.lateral.events import EventBatch, electron_density, muon_density
from showerstack.features.lateral.fit import RawFit
from showerstack.features.lateral.station import ELECTRON_G_REF, ELECTRON_PIVOT_M, MUON_G_REF
from showerstack.features.stations.sums import Sums
from showerstack.showers.lateral import (
    ELECTRON_R0_M,
    MUON_R0_M,
    electron_normalisation,
    muon_normalisation,
    special_functions,
)

ELECTRON_GROUP, MUON_GROUP, POSITION_GROUP = "electron-fit", "muon-fit", "position"
OPTIMUM_GROUP = "optimum-density"
GROUPS = (
    Group(POSITION_GROUP, "fitted core, for displays and networks that turn it with the array", ("fits+core",), True),
    Group(ELECTRON_GROUP, "lateral fit of the e/gamma channel", (*FITS, "all"), needs_fits=True),
    Group(OPTIMUM_GROUP, "density at the best distance, where stations stand far apart", ("all",), needs_fits=True),
    Group(MUON_GROUP, "lateral fit of the muon channel", (*FITS, "all"), needs_fits=True),
)
APEL_2006 = "W. D. Apel et al., Astropart. Phys. 24 (2006) 467"
NEWTON_2007 = "D. Newton et al., Astropart. Phys. 26 (2007) 414"
"""The density where fits of different slopes cross is known best; where that is follows from the spacing alone."""
MAX_AGE = 1.5
"""Beyond it the integral of the distribution grows without limit; sizes are quoted with this age."""
TRUNCATED_M = (40.0, 200.0)
"""Range of KASCADE's truncated muon number."""
GAUSS = tuple((float(node), float(weight)) for node, weight in zip(*leggauss(6), strict=True))
"""Six-point Gauss-Legendre nodes and weights."""

# fmt: off
FEATURES: tuple[Feature, ...] = (
    row("fit_core_x_m", "m", -151, 151, "fitted core, x", "minimum of the electron fit", POSITION_GROUP, APEL_2006),
    row("fit_core_y_m", "m", -151, 151, "fitted core, y", "minimum of the electron fit", POSITION_GROUP, APEL_2006),
    row("fit_core_r_m", "m", 0, 213, "fitted core from the array's centre", "sqrt(x^2 + y^2)", ELECTRON_GROUP, OURS),
    row("fit_core_edge_m", "m", -47, 104, "fitted core to the array's edge, negative outside",
        "104 m - max(|x|, |y|)", ELECTRON_GROUP, OURS),
    row("fit_lg_ne", "lg", -13, 10, "electron number of the fit",
        "lg of the integral of rho_e over the plane, the age held below 1.5; NaN with an error above 5",
        ELECTRON_GROUP, APEL_2006),
    row("fit_age", "1", -0.31, 2.21, "lateral age of the fit", "s of rho_e", ELECTRON_GROUP, APEL_2006),
    row("fit_lg_rho50", "lg m^-2", -9, 9, "electron density at 50 m", "lg rho_e(50 m)", ELECTRON_GROUP, OURS),
    row("fit_lg_rho_opt", "lg m^-2", -12, 9, "electron density at r_opt, where stations stand far apart",
        "lg rho_e(2/3 of the spacing), for spacings above 75 m", OPTIMUM_GROUP, NEWTON_2007),
    row("fit_lg_rho_opt_err", "lg", 0, 10, "error of fit_lg_rho_opt", "inverse Fisher matrix", OPTIMUM_GROUP, OURS),
    row("fit_core_err_m", "m", 0, 90, "error of the core",
        "sqrt(var x + var y), inverse Fisher matrix", ELECTRON_GROUP, OURS),
    row("fit_lg_ne_err", "lg", 0, 10, "error of fit_lg_ne", "inverse Fisher matrix", ELECTRON_GROUP, OURS),
    row("fit_age_err", "1", 0, 0.31, "error of fit_age", "inverse Fisher matrix", ELECTRON_GROUP, OURS),
    row("fit_deviance_e", "1", 0, 1e5, "quality of the electron fit",
        "deviance / (stations - 4)", ELECTRON_GROUP, OURS),
    row("fit_converged", "1", 0, 1, "both fits converged", "decrement below 5e-4", ELECTRON_GROUP, OURS),
    row("fit_lg_nmu", "lg", -9, 13, "total muon number of the fit",
        "lg of the integral of rho_mu over the plane", MUON_GROUP, APEL_2006),
    row("fit_lg_nmu_tr", "lg", -9, 13, "truncated muon number of the fit",
        "lg of the integral of rho_mu, 40..200 m", MUON_GROUP, APEL_2006),
    row("fit_muon_age", "1", 0.49, 2.11, "lateral age of the muons",
        "s_mu of rho_mu; NaN with fewer than 10 muon stations beyond 40 m", MUON_GROUP, APEL_2006),
    row("fit_lg_nmu_err", "lg", 0, 10, "error of fit_lg_nmu", "inverse Fisher matrix", MUON_GROUP, OURS),
    row("fit_lg_nmu_tr_err", "lg", 0, 10, "error of fit_lg_nmu_tr", "inverse Fisher matrix", MUON_GROUP, OURS),
    row("fit_muon_age_err", "1", 0, 0.2, "error of fit_muon_age",
        "inverse Fisher matrix with the prior", MUON_GROUP, OURS),
    row("fit_deviance_mu", "1", 0, 1e5, "quality of the muon fit", "deviance / (stations - 2)", MUON_GROUP, OURS),
    row("fit_deviance_mu_lg", "lg", -12, 6, "largest contribution of one muon station to the deviance",
        "lg max", MUON_GROUP, OURS),
)
# fmt: on
MIN_MUON_AGE_HITS = 10.0
UNKNOWN_LG = 5.0
"""A size with a larger error (such as with all stations saturated) is no measurement."""


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of the groups ``electron-fit``, ``muon-fit`` and ``position``, each (n,) float32."""
    return {**_electron(fitted.events, fitted.fit, fitted.sums), **_muon(fitted.events, fitted.fit, fitted.sums)}


def _electron(events: EventBatch, fit: RawFit, sums: Sums) -> dict[str, Any]:
    xp = events.xp
    core_x, core_y, level, age = fit.electron
    within = xp.minimum(age, MAX_AGE)
    # ln N_e = L - s G_ref - ln C(s); beyond the limit the age no longer enters, nor does its error.
    ln_c = xp.log(electron_normalisation(within, xp=xp))
    digamma = special_functions(xp).digamma
    ln_c_by_s = 2.0 * digamma(3.1 - 2.0 * within) - digamma(3.6 - within) - digamma(within + 0.5)
    by_s = xp.where(age < MAX_AGE, -ELECTRON_G_REF - ln_c_by_s, 0.0)
    v = elementwise.inverse(fit.electron_fisher, 4, xp)
    var_ln_ne = v[5] + 2.0 * by_s * v[8] + by_s * by_s * v[9]
    pivot = electron_density(xp.ones_like(level) * ELECTRON_PIVOT_M, level, age, xp)
    error = xp.sqrt(xp.maximum(var_ln_ne, 0.0)) * LG_E
    unit, freedom = events.array.fit_unit_m, max(int(events.array.has_electron.sum()) - 4, 1)
    core_x, core_y = core_x * unit, core_y * unit
    edge = events.array.half_side_m - xp.maximum(xp.abs(core_x), xp.abs(core_y))
    optimum = {}
    if events.array.optimum_m > ELECTRON_PIVOT_M:
        r = events.array.optimum_m / unit
        far = math.log(r / ELECTRON_R0_M) + math.log1p(r / ELECTRON_R0_M) - ELECTRON_G_REF
        density = electron_density(xp.ones_like(level) * r, level, age, xp) / unit**2
        spread = xp.sqrt(xp.maximum(v[5] + 2.0 * far * v[8] + far * far * v[9], 0.0)) * LG_E
        known = {"fit_lg_rho_opt": xp.log(density) * LG_E, "fit_lg_rho_opt_err": spread}
        optimum = {name: defined(spread < UNKNOWN_LG, values, xp) for name, values in known.items()}
    return {
        **optimum,
        "fit_core_x_m": core_x,
        "fit_core_y_m": core_y,
        "fit_core_r_m": xp.sqrt(core_x * core_x + core_y * core_y),
        "fit_core_edge_m": edge,
        "fit_lg_ne": defined(error < UNKNOWN_LG, (level - within * ELECTRON_G_REF - ln_c) * LG_E, xp),
        "fit_age": age,
        "fit_lg_rho50": defined(error < UNKNOWN_LG, xp.log(pivot) * LG_E, xp),
        "fit_core_err_m": xp.sqrt(v[0] + v[2]) * unit,
        "fit_lg_ne_err": defined(error < UNKNOWN_LG, error, xp),
        "fit_age_err": xp.sqrt(v[9]),
        "fit_deviance_e": defined(sums["fitted"], sums["deviance_e"] * (2.0 / freedom), xp),
        "fit_converged": fit.electron_converged * fit.muon_converged,
    }


def _muon(events: EventBatch, fit: RawFit, sums: Sums) -> dict[str, Any]:
    xp = events.xp
    level, muon_age = fit.muon
    v = elementwise.inverse(fit.muon_fisher, 2, xp)
    ln_c = xp.log(muon_normalisation(muon_age, xp=xp))
    digamma = special_functions(xp).digamma
    ln_c_by_s = 2.0 * digamma(4.5 - 2.0 * muon_age) - digamma(4.5 - muon_age) - digamma(muon_age)
    total_by_s = -MUON_G_REF - ln_c_by_s
    truncated, truncated_by_s = _truncated(level, muon_age, xp)
    enough = sums["muon_age_hits"] >= MIN_MUON_AGE_HITS

    def error(by_s: Any) -> Any:
        variance = v[0] + 2.0 * by_s * v[1] + by_s * by_s * v[2]
        return xp.sqrt(xp.maximum(variance, 0.0)) * LG_E

    freedom = max(events.array.n_muon_detectors - 2, 1)
    error_total, error_truncated = error(total_by_s), error(truncated_by_s)
    return {
        "fit_lg_nmu": defined(error_total < UNKNOWN_LG, (level - muon_age * MUON_G_REF - ln_c) * LG_E, xp),
        "fit_lg_nmu_tr": defined(error_truncated < UNKNOWN_LG, truncated * LG_E, xp),
        "fit_muon_age": defined(enough, muon_age, xp),
        "fit_lg_nmu_err": defined(error_total < UNKNOWN_LG, error_total, xp),
        "fit_lg_nmu_tr_err": defined(error_truncated < UNKNOWN_LG, error_truncated, xp),
        "fit_muon_age_err": xp.sqrt(v[2]),
        "fit_deviance_mu": defined(sums["fitted"], sums["deviance_mu"] * (2.0 / freedom), xp),
        "fit_deviance_mu_lg": defined(sums["fitted"], xp.log(sums["deviance_mu_max"] + 1e-12) * LG_E, xp),
    }


def _truncated(level: Any, muon_age: Any, xp: Any) -> tuple[Any, Any]:
    """Return ln of the muon number between 40 and 200 m, by Gauss-Legendre in ln r, and its derivative by s_mu."""
    low, high = (math.log(r) for r in TRUNCATED_M)
    total = by_age = xp.zeros_like(level)
    for node, weight in GAUSS:
        r_m = math.exp(0.5 * (low + high) + 0.5 * (high - low) * node)
        # The level is kept out of the exponential so that showers without muons do not underflow.
        density = muon_density(xp.ones_like(level) * r_m, level * 0.0, muon_age, xp)
        part = density * (weight * 0.5 * (high - low) * 2.0 * math.pi * r_m * r_m)
        g = math.log(r_m / MUON_R0_M) + math.log1p(r_m / MUON_R0_M) - MUON_G_REF
        total, by_age = total + part, by_age + part * g
    return level + xp.log(total), by_age / total
