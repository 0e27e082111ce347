"""Every column of the catalogue against its documented formula, computed anew in float64 for hand-made showers.

Nothing that is expected here comes from ``features``: the array, the detector's constants, the likelihoods and the
formulas are written again from the documentation (docs/methods/feature_catalogue.md and the docstrings of
``features/lateral``), with NumPy, and the fits are minimised by SciPy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaincc
from scipy.stats import poisson

from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import column_names, compute_events

COLUMNS = column_names(frozenset(GROUPS))
"""Columns of events without arrival times; those of the front: tests/features/test_times.py."""

STEPS = (np.arange(16) - 7.5) * 13.0
X, Y = (plane.ravel() for plane in np.meshgrid(STEPS, STEPS))
FROM_CENTRE = np.maximum(np.abs(X), np.abs(Y))
STATION = FROM_CENTRE > 13.0
INNER = STATION & (FROM_CENTRE < 52.0)
MUON = STATION & ~INNER
AREA_E, AREA_M = np.where(INNER, 3.14, 1.57) * STATION, 3.24 * MUON
AGE = 1.02
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
OF_FIT = {
    **dict.fromkeys(("fit_core_x_m", "fit_core_y_m"), "fit_core_err_m"),
    "fit_lg_rho50": "fit_lg_ne_err",
    "fit_age": "fit_age_err",
    "fit_lg_nmu": "fit_lg_nmu_err",
    "fit_muon_age": "fit_muon_age_err",
}
"""Columns of the fits with the column of their error."""
HIGHEST = 12.0
"""Where the levels of the fits end."""
RINGS = (0, 10, 16, 25, 40, 63, 90, 130)


@dataclass(frozen=True)
class Shower:
    """What one shower is made of; deposits are drawn from it."""

    core: tuple[float, float]
    lg_ne: float
    age: float
    lg_nmu: float
    zenith: float = 0.0
    azimuth: float = 0.0
    energy: float = 15.4
    seed: int = 1
    placed: dict = field(default_factory=dict)
    """Deposits put by hand: (channel, cell) -> MeV."""
    only_placed: bool = False


FEW = {(0, 40): 9.0, (0, 41): 14.0, (0, 57): 31.0, (0, 200): 4.0, (1, 41): 8.0}
FLAT = {(0, cell): 80.0 * np.exp(-np.hypot(X[cell], Y[cell]) / 90.0) + 7 * cell % 5 for cell in range(256)}
LIMIT = {(0, 201): 30_000.0, (1, 201): 15_000.0}
"""Deposits at the limits, beside the core, where more is expected."""
FULL = {(0, cell): 30_000.0 + 40.0 * cell for cell in range(256)} | {(1, cell): 20_000.0 for cell in range(256)}
"""Every station at its limit or beyond: the fits have lower limits only."""
SHOWERS = {
    # Readings where no detector stands: they count for nothing.
    "vertical": Shower((-21.0, 33.0), 5.2, 0.95, 4.3, placed={(0, 119): 500.0, (1, 100): 70.0}),
    "inclined": Shower((40.0, -25.0), 5.4, 1.1, 4.5, 27.0, 130.0, 15.7, 2),
    "edge": Shower((96.0, -31.0), 5.5, 1.0, 4.5, 15.0, 300.0, 15.6, 3),
    "station": Shower((58.5, 32.5), 5.3, 0.9, 4.4, 10.0, 45.0, 15.5, 4),
    "few": Shower((0.0, 0.0), 4.0, 1.0, 3.0, 20.0, 200.0, 14.6, 5, FEW, True),
    "saturated": Shower((24.0, 62.0), 6.9, 1.0, 5.9, 22.0, 77.0, 17.1, 6, LIMIT),
    "no muon": Shower((-50.0, -44.0), 5.0, 0.85, -9.0, 12.0, 260.0, 15.1, 7),
    "iron": Shower((15.0, 70.0), 5.6, 1.35, 5.2, 18.0, 12.0, 16.2, 8),
    # Signals that do not fall with distance: the fit takes an age beyond the one with which sizes are quoted.
    "flat": Shower((0.0, 0.0), 5.0, 1.0, 4.0, 5.0, 90.0, 15.2, 10, FLAT, True),
    "one hit": Shower((0.0, 0.0), 3.0, 1.0, 2.0, 8.0, 10.0, 14.0, 9, {(0, 70): 12.0}, True),
    "full": Shower((0.0, 0.0), 9.5, 1.0, 7.5, 12.0, 40.0, 18.5, 11, FULL, True),
}


def log_rho_e(r, level, age):
    """Return ln of electrons per m2; level: at 50 m without the fixed exponents."""
    x, x0 = r / 40.0, 50.0 / 40.0
    g = np.log(x) + np.log1p(x) - np.log(x0) - np.log1p(x0)
    return level + age * g - 1.5 * np.log(x) - 3.6 * np.log1p(x)


def log_rho_mu(r, level, age):
    """Return ln of muons per m2; level: at 100 m without the fixed exponents."""
    y, y0 = r / 420.0, 100.0 / 420.0
    g = np.log(y) + np.log1p(y) - np.log(y0) - np.log1p(y0)
    return level + age * g - 2.0 * np.log(y) - 4.5 * np.log1p(y)


def ln_number(log_rho, age, low=0.0, high=np.inf):
    """Return ln of the particles between two radii at level 0, by numerical integration over ln r."""
    knots = np.linspace(np.log(max(low, 1e-12)), np.log(min(high, 1e130)), 42)[:, None]
    t = knots[:-1] + 0.5 * (1.0 + NODES) * (knots[1] - knots[0])
    ring = 2.0 * np.pi * np.exp(2.0 * t + log_rho(np.exp(t), 0.0, age))
    return np.log((0.5 * (knots[1] - knots[0]) * ring * WEIGHTS).sum())


def level_of(log_rho, lg_n, age):
    return lg_n * np.log(10.0) - ln_number(log_rho, age)


def draw(shower: Shower) -> np.ndarray:
    """Return deposits, (256, 2) float32, MeV."""
    rng = np.random.default_rng(shower.seed)
    grid = np.zeros((256, 2))
    if not shower.only_placed:
        cosine = np.cos(np.deg2rad(shower.zenith))
        r = distance(shower.core, shower.zenith, shower.azimuth)
        electrons = np.exp(log_rho_e(r, level_of(log_rho_e, shower.lg_ne, shower.age), shower.age))
        muons = np.exp(log_rho_mu(r, level_of(log_rho_mu, shower.lg_nmu, 1.3), 1.3))
        n_e = rng.poisson(AREA_E * cosine * (electrons * (1.11 + 1.3 * np.exp(-r / 8.5)) + muons))
        n_m = rng.poisson(AREA_M * cosine * muons)
        grid[:, 0] = rng.gamma(np.maximum(n_e, 1e-9)) * 9.5 / cosine
        grid[:, 1] = rng.gamma(np.maximum(6.0 * n_m, 1e-9)) * 8.4 / 6.0 / cosine
        grid[grid < 3.0] = 0.0
        grid = np.minimum(grid, [40_000.0, 20_000.0])
    for (channel, cell), mev in shower.placed.items():
        grid[cell, channel] = mev
    return grid.astype(np.float32)


def distance(core, zenith, azimuth, soft=0.6):
    """Return the distance of all stations from the axis in the shower plane, a detector's extent in quadrature."""
    sine, angle = np.sin(np.deg2rad(zenith)), np.deg2rad(azimuth)
    dx, dy = X - core[0], Y - core[1]
    along = sine * (dx * np.cos(angle) + dy * np.sin(angle))
    return np.sqrt(np.maximum(dx**2 + dy**2 - along**2, 0.0) + soft**2)


def correction(r):
    return 1.11 + 1.30 * np.exp(-r / 8.5)


class Fit:
    """Both lateral fits of one shower, as the docstrings of ``features/lateral/station.py`` and ``fit.py`` tell."""

    def __init__(self, e_mev, m_mev, zenith, azimuth):
        self.zenith, self.azimuth = zenith, azimuth
        self.cosine = np.cos(np.deg2rad(zenith))
        self.a_e, self.a_m = AREA_E * self.cosine, AREA_M * self.cosine
        self.full_e, self.full_m = e_mev >= 30_000.0, m_mev >= 15_000.0
        self.s_e, self.s_m = (
            np.minimum(e_mev, 30_000) * self.cosine / 9.5,
            np.minimum(m_mev, 15_000) * self.cosine / 8.4,
        )
        self.ok = (e_mev > 0).sum() >= 3
        if self.ok:
            self._minimise()

    def _minimise(self):
        density = np.divide(self.s_e, self.a_e, out=np.zeros(256), where=STATION) ** 1.5
        core = np.array([density @ X, density @ Y]) / density.sum()
        r = distance(core, self.zenith, self.azimuth)
        far = r > 40.0
        expected = (self.a_m * np.exp(log_rho_mu(r, 0.0, 1.3)))[far].sum()
        level = np.log((self.s_m[far].sum() + 0.5) / (expected + 1e-6))
        lg_n_mu = (level + ln_number(log_rho_mu, 1.3)) / np.log(10.0)
        mean = 1.3 - 0.094 * (lg_n_mu - 4.5) + 0.45 * (1.0 / self.cosine - 1.035)
        self.mean_muon_age = float(np.clip(mean, 0.9, 1.7))
        self.q = np.array([level, self.mean_muon_age])
        background = self.a_e * np.exp(log_rho_mu(r, *self.q)) + 0.015
        starts = []
        for age in (0.7, 1.0, 1.3):
            shown = self.a_e * correction(r) * np.exp(log_rho_e(r, 0.0, age))
            factor = (self.s_e.sum() + 0.5) / shown.sum()
            weight = STATION / (2.1 * correction(r))
            value = half_deviance(self.s_e, shown * factor + background, self.full_e, weight)[0].sum()
            starts.append((value, np.log(factor), age))
        self.p = np.array([*core, *min(starts)[1:]])
        for _ in range(2):
            self.frozen_e = self.freeze_e()
            self.p = minimum(self.value_e, self.p)
            self.frozen_m = self.freeze_m()
            self.q = minimum(self.value_m, self.q)

    def planes(self):
        r = distance(self.p[:2], self.zenith, self.azimuth)
        return r, self.a_e * np.exp(log_rho_e(r, *self.p[2:])), np.exp(log_rho_mu(r, *self.q))

    def freeze_e(self):
        """Return A t, background and weight of the e/gamma channel at the present parameters."""
        r, n_e, muons = self.planes()
        n_m, a = self.a_e * muons, correction(r)
        share = 1.0 - 0.035 * np.exp(-(n_e + n_m))
        mean = n_e * a * share + n_m + 0.015
        variance = 2.1 * n_e * a**2 + 1.2 * n_m + 2.1 * 0.015
        return self.a_e * share, (n_m + 0.015) * STATION, STATION * mean / variance

    def freeze_m(self):
        _, _, muons = self.planes()
        n_m, punch = self.a_m * muons, self.punch()
        variance = 1.17 * (n_m + 0.008) + 2.9 * punch + punch**2
        return self.a_m, (punch + 0.008) * MUON, MUON * (n_m + punch + 0.008) / variance

    def punch(self):
        r = distance(self.p[:2], self.zenith, self.azimuth)
        return self.a_m * np.exp(log_rho_e(r, *self.p[2:])) * 0.14 * np.exp(-r / 13.0)

    def mean_e(self, p):
        r = distance(p[:2], self.zenith, self.azimuth)
        return self.frozen_e[0] * np.exp(log_rho_e(r, *p[2:])) * correction(r)

    def mean_m(self, q):
        r = distance(self.p[:2], self.zenith, self.azimuth)
        return self.frozen_m[0] * np.exp(log_rho_mu(r, *q))

    def value_e(self, p):
        value = half_deviance(self.s_e, self.mean_e(p) + self.frozen_e[1], self.full_e, self.frozen_e[2])[0].sum()
        return value + 0.5 * ((p[0] ** 2 + p[1] ** 2) / 60.0**2 + ((p[3] - 1.0) / 0.3) ** 2 - p[2])

    def value_m(self, q):
        value = half_deviance(self.s_m, self.mean_m(q) + self.frozen_m[1], self.full_m, self.frozen_m[2])[0].sum()
        return value + 0.5 * (((q[1] - self.mean_muon_age) / 0.05) ** 2 - q[0])

    def covariance(self, mean_of, at, frozen, signal, full, prior):
        """Return the inverse of Fisher's matrix at the minimum, priors included."""
        steps = np.diag([1e-4] * len(at))
        slopes = np.array([(mean_of(at + d) - mean_of(at - d)) / 2e-4 for d in steps])
        mu = mean_of(at) + frozen[1] + 1e-12
        weight = half_deviance(signal, mu, full, frozen[2])[1] / mu
        # Where the stations say nothing of the level its variance has no limit.
        return np.linalg.inv((slopes * weight) @ slopes.T + np.diag(prior) + 1e-12 * np.eye(len(at)))


def half_deviance(s, mu, full, weight):
    """Return half the deviance per station and the weight that counts: saturated is a lower limit."""
    mu = mu + 1e-12
    counted = weight * ~(full & (mu > s))
    return counted * (s * np.log(np.maximum(s, 1e-12) / mu) - (s - mu)), counted


def minimum(value, start):
    """Return the minimum: downhill from anywhere, then by numerical derivatives; a level, last but one, has an end."""
    bounds = [(None, HIGHEST if k == len(start) - 2 else None) for k in range(len(start))]
    options = {"xatol": 1e-2, "fatol": 1e-3, "maxfev": 400}
    result = minimize(value, start, method="Nelder-Mead", bounds=bounds, options=options).x
    for _ in range(2):
        if result[-2] > HIGHEST - 2.0:
            options = {"ftol": 1e-13, "gtol": 1e-7}
            result = minimize(value, result, method="L-BFGS-B", bounds=bounds, options=options).x
        else:
            result = minimize(value, result, method="BFGS", jac="3-point", options={"gtol": 1e-7}).x
    return result


def lg(value):
    """Return lg, NaN where there is nothing."""
    return np.log10(value) if value > 0 else np.nan


def hit_quantile(cells, q):
    hit = np.sort(cells[cells > 0])
    return np.interp(q * (len(hit) - 1), np.arange(len(hit)), hit) if len(hit) else np.nan


def of_scalars(energy, zenith, azimuth, ne, nmu, age):
    sec = 1.0 / np.cos(np.deg2rad(zenith))
    out = {"E": energy, "Ze": zenith, "Az": azimuth, "Ne": ne, "Nmu": nmu, "Age": age, "sec_zenith": sec}
    out["ne_minus_nmu"], out["e_minus_ne"], out["e_minus_nmu"] = ne - nmu, energy - ne, energy - nmu
    out["ne_vertical"] = ne + 1020.0 * (sec - 1.0) / 175.0 / np.log(10.0)
    out["nmu_vertical"] = nmu + 1020.0 * (sec - 1.0) / 1100.0 / np.log(10.0)
    out["nmu_minus_proton"] = out["nmu_vertical"] - (3.92 + 0.90 * (energy - 15.0))
    return out


def of_deposits(c, cells, limit):
    hit = cells[cells > 0]
    total, some = cells.sum(), len(hit) > 0
    return {
        f"{c}_sum_lg": lg(total),
        f"{c}_max_lg": lg(cells.max()),
        f"{c}_hits": len(hit),
        f"{c}_mean_hit_lg": lg(hit.mean()) if some else np.nan,
        f"{c}_q50_lg": np.log10(hit_quantile(cells, 0.5)),
        f"{c}_q90_lg": np.log10(hit_quantile(cells, 0.9)),
        f"{c}_saturated": (cells >= limit).sum(),
        f"{c}_top5_share": np.sort(cells)[-5:].sum() / total if some else np.nan,
    }


def of_moments(c, cells, azimuth):
    hits = (cells > 0).sum()
    names = ("centroid_r_m", "length_m", "width_m", "orientation", "skewness", "kurtosis")
    if not hits:
        return {f"{c}_{name}": np.nan for name in names}
    if hits == 1:
        at = cells.argmax()
        return {f"{c}_{name}": np.nan for name in names} | {f"{c}_centroid_r_m": np.hypot(X[at], Y[at])}
    weight = np.log(1.0 + cells) / np.log(1.0 + cells).sum()
    centre = np.array([weight @ X, weight @ Y])
    d = np.stack([X, Y]) - centre[:, None]
    covariance = (weight * d) @ d.T
    eigen, axes = np.linalg.eigh(covariance)
    psi, angle = np.arctan2(axes[1, 1], axes[0, 1]), np.deg2rad(azimuth)
    elongation = (eigen[1] - eigen[0]) / (eigen[1] + eigen[0])
    along = np.cos(angle) * d[0] + np.sin(angle) * d[1]
    r2 = (d**2).sum(axis=0)
    values = (
        np.hypot(*centre),
        np.sqrt(eigen[1]),
        np.sqrt(max(eigen[0], 0.0)),
        np.cos(2.0 * (psi - angle)) * elongation,
        (weight @ along**3) / (weight @ along**2) ** 1.5,
        (weight @ r2**2) / (weight @ r2) ** 2,
    )
    least = (1, 2, 3, 3, 3, 3)
    return {f"{c}_{n}": v if hits >= k else np.nan for n, v, k in zip(names, values, least, strict=True)}


def of_grid(c, cells):
    logged, hit = np.log(1.0 + cells), cells > 0
    ring = np.floor(FROM_CENTRE / 13.0).astype(int)
    out = {
        f"grid_{c}_sum": np.log(1.0 + cells.sum()),
        f"grid_{c}_max": np.log(1.0 + cells.max()),
        f"grid_{c}_mean": logged.mean(),
        f"grid_{c}_std": logged.std(),
        **{f"grid_{c}_q{q}": np.log(1.0 + hit_quantile(cells, q / 100)) for q in (25, 50, 75, 90)},
    }
    for k in range(1 if c == "e" else 4, 8):
        out[f"grid_{c}_ring{k}"] = np.log(1.0 + cells[ring == k].sum())
        out[f"grid_{c}_ring{k}_hits"] = hit[ring == k].sum()
    spread = np.nan
    if hit.any():
        w, x, y = logged / logged.sum(), X / 13.0, Y / 13.0
        spread = np.sqrt(w @ ((x - w @ x) ** 2 + (y - w @ y) ** 2))
    return out | {f"grid_{c}_spread": spread}


def of_fits(fit: Fit):
    (x, y, level, age), (muon_level, muon_age) = fit.p, fit.q
    h = 1e-5

    def slope(number, at):
        return (number(at + h) - number(at - h)) / (2 * h)

    v = fit.covariance(fit.mean_e, fit.p, fit.frozen_e, fit.s_e, fit.full_e, [1 / 3600, 1 / 3600, 0.0, 1 / 0.09])
    by_age = slope(lambda s: ln_number(log_rho_e, s), age) if age < 1.5 else 0.0
    a = np.array([1.0, by_age])
    lg_e = 1.0 / np.log(10.0)
    w = fit.covariance(fit.mean_m, fit.q, fit.frozen_m, fit.s_m, fit.full_m, [0.0, 1 / 0.05**2])
    total = np.array([1.0, slope(lambda s: ln_number(log_rho_mu, s), muon_age)])
    truncated = np.array([1.0, slope(lambda s: ln_number(log_rho_mu, s, 40.0, 200.0), muon_age)])
    hits = ((fit.s_m > 0) & (fit.planes()[0] > 40.0)).sum()
    sizes = {
        "fit_lg_ne_err": np.sqrt(a @ v[2:, 2:] @ a) * lg_e,
        "fit_lg_nmu_err": np.sqrt(total @ w @ total) * lg_e,
        "fit_lg_nmu_tr_err": np.sqrt(truncated @ w @ truncated) * lg_e,
    }
    sizes = {name: error if error < 5.0 else np.nan for name, error in sizes.items()}
    return sizes | {
        "fit_core_x_m": x,
        "fit_core_y_m": y,
        "fit_age": age,
        "fit_lg_rho50": log_rho_e(50.0, level, age) * lg_e + 0.0 * sizes["fit_lg_ne_err"],
        "fit_core_err_m": np.sqrt(v[0, 0] + v[1, 1]),
        "fit_age_err": np.sqrt(v[3, 3]),
        "fit_converged": float(max(level, muon_level) < HIGHEST),
        "fit_lg_nmu": (muon_level + ln_number(log_rho_mu, muon_age)) * lg_e + 0.0 * sizes["fit_lg_nmu_err"],
        "fit_muon_age": muon_age if hits >= 10 else np.nan,
        "fit_muon_age_err": np.sqrt(w[1, 1]),
    }


def of_parameters(fit: Fit, values):
    (x, y, level, age), (muon_level, muon_age) = fit.p, fit.q
    lg_e = 1.0 / np.log(10.0)
    return {
        "fit_core_r_m": np.hypot(x, y),
        "fit_core_edge_m": 104.0 - max(abs(x), abs(y)),
        "fit_lg_ne": (level + ln_number(log_rho_e, min(age, 1.5))) * lg_e + 0.0 * values["fit_lg_ne_err"],
        "fit_lg_nmu_tr": (muon_level + ln_number(log_rho_mu, muon_age, 40.0, 200.0)) * lg_e
        + 0.0 * values["fit_lg_nmu_tr_err"],
    }


def of_deviances(fit: Fit):
    r, n_e, muons = fit.planes()
    frozen_e, frozen_m = fit.freeze_e(), fit.freeze_m()
    mu_e = frozen_e[0] * np.divide(n_e, fit.a_e, out=np.zeros(256), where=STATION) * correction(r) + frozen_e[1]
    deviance_e = half_deviance(fit.s_e, mu_e, fit.full_e, frozen_e[2])[0]
    deviance_m = half_deviance(fit.s_m, fit.a_m * muons + frozen_m[1], fit.full_m, frozen_m[2])[0]
    return {
        "fit_deviance_e": 2.0 * deviance_e.sum() / (252 - 4),
        "fit_deviance_mu": 2.0 * deviance_m.sum() / (192 - 2),
        "fit_deviance_mu_lg": lg(deviance_m.max() + 1e-12),
    }


def of_contrast(out, energy, age):
    sec = out["sec_zenith"]
    slant = 1020.0 * (sec - 1.0) / np.log(10.0)
    return {
        "fit_minus_ne": out["fit_lg_ne"] - out["Ne"],
        "fit_minus_nmu": out["fit_lg_nmu"] - out["Nmu"],
        "fit_nmu_minus_proton": out["fit_lg_nmu"] + slant / 1100.0 - (3.92 + 0.90 * (energy - 15.0)),
        "fit_ne_vertical": out["fit_lg_ne"] + slant / 175.0,
        "fit_minus_age": out["fit_age"] - age,
        "mu_e_fit": out["fit_lg_nmu"] - out["fit_lg_ne"],
    }


def of_muons(fit: Fit, lg_nmu):
    r, _, muons = fit.planes()
    far, near, mid, outer = r > 42.0, r <= 42.0, (r > 40.0) & (r <= 90.0), r > 90.0
    s, hit, live, punch = fit.s_m, fit.s_m > 0, MUON, fit.punch()
    n_live = (live & far).sum()
    strays = 0.008 * live
    reco = fit.a_m * np.exp(log_rho_mu(r, level_of(log_rho_mu, np.clip(lg_nmu, 0.0, 9.0), 1.3), 1.3)) * far

    def emptiness(n):
        empty = np.exp(-(0.97 * n + 0.008))[live & far]
        excess = (live & far & ~hit).sum() - empty.sum()
        return np.clip(excess / np.sqrt((empty * (1.0 - empty)).sum() + 0.1), -100.0, 100.0)

    def ratio(zone, s_zone, area):
        return np.log10((s_zone[zone].sum() + 0.5) / (area[zone].sum() + 1e-3))

    variance = 2.9 * punch + punch**2 + 1.17 * strays
    template = fit.a_m * np.exp(log_rho_mu(r, 0.0, 1.3))
    weight = np.divide(template, variance, out=np.zeros(256), where=live)
    mean = fit.a_m * muons + punch + strays
    return {
        "mu_far": s[far].sum(),
        "mu_far_hits": (hit & far).sum(),
        "mu_far_stations": n_live,
        "mu_far_density_lg": ratio(far, s, fit.a_m),
        "mu_far_empty_excess": emptiness(fit.a_m * muons),
        "mu_far_empty_reco": emptiness(reco),
        "mu_far_minus_reco": (s[far].sum() - reco.sum() - 0.008 * n_live)
        / np.sqrt(1.17 * (reco.sum() + 0.008 * n_live) + 0.1),
        "mu_far_max": s[far].max(),
        "mu_near": s[near].sum(),
        "mu_near_hits": (hit & near).sum(),
        "mu_near_punch_lg": np.log10((s[near].sum() + 0.5) / (mean[near].sum() + 0.5)),
        "mu_unexplained": np.maximum(s - punch - strays - 2.0 * np.sqrt(variance), 0.0).sum(),
        "mu_significance": (weight @ (s - punch - strays)) / np.sqrt(weight**2 @ variance + 1e-20),
        "mu_e_far_lg": np.log10((s[far].sum() + 0.5) / (fit.s_e[far].sum() + 0.5)),
        "mu_e_40_90_lg": ratio(mid, s, fit.a_m) - ratio(mid, fit.s_e, fit.a_e),
        "mu_e_90_lg": ratio(outer, s, fit.a_m) - ratio(outer, fit.s_e, fit.a_e),
        "mu_slope": ratio(outer, s, fit.a_m) - ratio(mid, s, fit.a_m),
    }


def stations_of(fit: Fit):
    """Return by channel signal, projected area, expectation, its variance, and whether a detector is there."""
    r, n_e, muons = fit.planes()
    a, n_m = correction(r), fit.a_e * muons
    mean = n_e * a * (1.0 - 0.035 * np.exp(-(n_e + n_m))) + n_m + 0.015
    variance = 2.1 * n_e * a**2 + 1.2 * n_m + 2.1 * 0.015
    below, punch = fit.a_m * muons + 0.008 * MUON, fit.punch()
    return {
        "e": (fit.s_e, fit.a_e, mean * STATION, variance * STATION, STATION),
        "mu": (fit.s_m, fit.a_m, below + punch, 1.17 * below + 2.9 * punch, MUON),
    }


def of_profile(fit: Fit):
    r = fit.planes()[0]
    out = {}
    for c, (s, area, mean, variance, live) in stations_of(fit).items():
        sums, densities = [], []
        for low, high in pairwise(RINGS):
            ring, name = (r >= low) & (r < high), f"{low}_{high}"
            sums.append(s[ring].sum())
            some = (ring & live).any()
            densities.append(np.log10(sums[-1] / area[ring].sum() + 1e-3) if some else np.nan)
            residual = (sums[-1] - mean[ring].sum()) / np.sqrt(variance[ring].sum() + 1e-6)
            out[f"prof_{c}_{name}"] = densities[-1]
            out[f"res_{c}_{name}"] = np.clip(residual, -100, 100) if some else np.nan
        cumulative = np.concatenate([[0.0], np.cumsum(sums)])
        total = cumulative[-1]
        for name, share in (("r50_m", 0.5), ("r90_m", 0.9)):
            above = np.searchsorted(cumulative, share * total)
            low, high = RINGS[above - 1], RINGS[above]
            part = (share * total - cumulative[above - 1]) / sums[above - 1] if total else np.nan
            out[f"prof_{c}_{name}"] = low + part * (high - low) if total else np.nan
        out[f"prof_{c}_in25"] = cumulative[3] / total if total else np.nan
        if c == "e":
            for k in range(2, 7):
                middle = [np.log10(np.sqrt(RINGS[i] * RINGS[i + 1])) for i in (k - 1, k)]
                slope = (densities[k] - densities[k - 1]) / (middle[1] - middle[0])
                out[f"slope_e_{RINGS[k]}_{RINGS[k + 1]}"] = slope
    return out


def minus_lg_tail(s, mean, variance, dispersion):
    """Return -lg P(S >= s) of the compound Poisson sum, every term of it."""
    if mean > s + 40.0 * np.sqrt(variance):
        return 0.0
    deposit = variance / (dispersion * mean)
    k, shape = dispersion * mean**2 / variance, 1.0 / (dispersion - 1.0)
    n = np.arange(1, int(k + s / deposit + 60 + 14 * np.sqrt(k + s / deposit)))
    # Where the sum underflows the limit of 60 is far below.
    probability = poisson.pmf(n, k) @ gammaincc(n * shape, shape * s / deposit)
    return min(-np.log10(max(probability, 1e-300)), 60.0)


def of_asymmetry(fit: Fit, e_mev):
    r = fit.planes()[0]
    angle = np.arctan2(Y - fit.p[1], X - fit.p[0]) - np.deg2rad(fit.azimuth)
    out = {}
    for c, (s, area, mean, variance, live) in stations_of(fit).items():
        for low, high in ((30, 60), (60, 90), (90, 120)):
            values, excesses = [], []
            for inner in range(low, high, 10):
                ring = live & (r >= inner) & (r < inner + 10)
                d, m, v = s[ring] / area[ring], mean[ring] / area[ring], variance[ring] / area[ring] ** 2
                n = len(d)
                if n < 2 or not d.sum():
                    continue
                pairs = ((d[:, None] - d[None, :]) ** 2).sum() / 2.0
                expected = ((m[:, None] - m[None, :]) ** 2).sum() / 2.0 + (n - 1) * v.sum()
                values.append(np.log10(2.0 / (n * (n - 1)) * pairs / d.mean() + 1e-12))
                excesses.append(np.clip(np.log10((pairs + 1e-6) / (expected + 1e-6)), -10, 10))
            out[f"lcm_{c}_{low}_{high}"] = np.mean(values) if values else np.nan
            out[f"lcm_{c}_{low}_{high}_excess"] = np.mean(excesses) if values else np.nan
        far = live & (r > 42.0)
        dispersion = 2.1 if c == "e" else 1.17
        tails = [
            minus_lg_tail(a, b, v, dispersion) if a > 0 else 0.0
            for a, b, v in zip(s[far], mean[far], variance[far], strict=True)
        ]
        for name, alpha in (("05", 0.5), ("1", 1.0), ("2", 2.0)):
            out[f"tail_{c}_{name}"] = np.mean(np.power(tails, alpha))
        z = np.clip((s - mean) / np.sqrt(variance + 1e-6), -5, 5)[live]
        root = np.sqrt(live.sum())
        out[f"dipole_{c}"] = abs((z * np.exp(1j * angle[live])).sum()) / root
        out[f"quadrupole_{c}"] = abs((z * np.exp(2j * angle[live])).sum()) / root
        out[f"dipole_{c}_azimuth"] = (z * np.cos(angle[live])).sum() / root
    weight = np.log(1.0 + e_mev)
    centre = np.array([weight @ X, weight @ Y]) / weight.sum()
    out["centroid_core_m"] = np.hypot(*(centre - fit.p[:2]))
    return out


def of_scalars_and_grid(shower: Shower, e: np.ndarray, m: np.ndarray) -> dict[str, float]:
    out = of_scalars(shower.energy, shower.zenith, shower.azimuth, shower.lg_ne, reconstructed_lg_nmu(shower), AGE)
    out |= of_deposits("e", e, 30_000.0) | of_deposits("mu", m, 15_000.0)
    out["e_inner_lg"], out["e_outer_lg"] = lg(e[INNER].sum()), lg(e[MUON].sum())
    out["mu_e_sum_lg"], out["both_hits"] = out["mu_sum_lg"] - out["e_sum_lg"], ((e > 0) & (m > 0)).sum()
    out |= of_moments("e", e, shower.azimuth) | of_moments("mu", m, shower.azimuth) | of_grid("e", e) | of_grid("mu", m)
    out["grid_mu_e_sum"] = out["grid_mu_sum"] - out["grid_e_sum"]
    out["grid_mu_e_hits"] = (m > 0).sum() / ((e > 0).sum() + 1.0)
    return out


def reconstructed_lg_nmu(shower: Shower) -> float:
    return max(shower.lg_nmu, 2.0)


def move(fit: Fit, content: dict[str, float]) -> None:
    """Take the parameters of the table, which agree within a small part of their errors, for what builds on them.

    Levels and the muon age stay where the table does not tell them.
    """
    age = content["fit_age"]
    level = content["fit_lg_rho50"] * np.log(10.0) - log_rho_e(50.0, 0.0, age)
    fit.p = np.array([content["fit_core_x_m"], content["fit_core_y_m"], fit.p[2] if np.isnan(level) else level, age])
    muon_age = fit.q[1] if np.isnan(content["fit_muon_age"]) else content["fit_muon_age"]
    muon_level = level_of(log_rho_mu, content["fit_lg_nmu"], muon_age)
    fit.q = np.array([fit.q[0] if np.isnan(muon_level) else muon_level, muon_age])


@pytest.fixture(scope="module")
def both() -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Return the columns of each shower as computed and as expected."""
    grids = {name: draw(shower) for name, shower in SHOWERS.items()}
    scalars = [(s.energy, s.zenith, s.azimuth, s.lg_ne, reconstructed_lg_nmu(s)) for s in SHOWERS.values()]
    age = np.full(len(SHOWERS), AGE, np.float32)
    cells = np.stack(list(grids.values())).reshape(-1, 16, 16, 2)
    table = compute_events(cells, np.array(scalars, np.float32), age, frozenset(GROUPS))
    assert set(table.columns) == set(COLUMNS)
    result = {}
    for (name, shower), values in zip(SHOWERS.items(), table.to_dicts(), strict=True):
        e, m = (grids[name][:, k].astype(np.float64) * (STATION, MUON)[k] for k in (0, 1))
        expected = of_scalars_and_grid(shower, e, m)
        fit = Fit(e, m, shower.zenith, shower.azimuth)
        if fit.ok:
            expected |= of_fits(fit)
            move(fit, values)
            expected |= of_contrast(values, shower.energy, AGE) | of_parameters(fit, values) | of_deviances(fit)
            expected |= of_muons(fit, reconstructed_lg_nmu(shower)) | of_profile(fit) | of_asymmetry(fit, e)
        result[name] = values, expected
    return result


def tolerance_of(column: str, expected: dict[str, float]) -> float:
    """Return how far a column may be from its expectation."""
    value = abs(expected[column])
    if column in OF_FIT:
        # The fits stop, and freeze, at decrements of 5e-4 and 0.1: 0.02 errors away, seldom 0.04.
        return 0.06 * expected[OF_FIT[column]]
    if column.endswith(("_err", "_err_m")):
        return 0.03 * value
    if column.startswith("tail_"):
        # Interpolated within 1e-3 of -lg P.
        return 2e-3 * max(value, 1.0)
    if column.startswith("res_"):
        # A saturated shower's residuals are differences of large numbers in float32.
        return 1e-3 * max(value, 1.0)
    return 3e-4 * max(value, 1.0)


@pytest.mark.parametrize("column", COLUMNS)
def test_column_is_its_formula(both, column):
    defined = 0
    for name, (result, expected) in both.items():
        wanted = expected.get(column, np.nan)
        assert np.isnan(result[column]) == np.isnan(wanted), (name, result[column], wanted)
        if not np.isnan(wanted):
            defined += 1
            assert abs(result[column] - wanted) <= tolerance_of(column, expected), (name, result[column], wanted)
    assert defined >= 3


def test_showers_are_what_they_are_called(both):
    assert both["flat"][0]["fit_age"] > 1.5
    assert both["saturated"][0]["e_saturated"] > 3
    assert both["saturated"][0]["mu_saturated"] >= 1
    assert both["full"][0]["e_saturated"] == 252
    assert both["full"][0]["mu_saturated"] == 192
    assert both["few"][0]["e_hits"] == 4
    assert np.isnan(both["few"][0]["fit_muon_age"])
    assert both["no muon"][0]["mu_hits"] == 0
    assert both["edge"][0]["fit_core_edge_m"] < 12.0
