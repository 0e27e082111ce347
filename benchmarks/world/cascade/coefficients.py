"""From showers to coefficients: closed forms by primary, energy, direction and ground, then smooth in energy and angle.

The closed forms are those of :func:`showerstack.showers.simulation.cascade.develop_mass`. At each ground a coefficient
is P = a + b e + c e^2 + d S + f e S + g S^2 with e = lg(E/eV) - 15.5 and S = sec(zenith) - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from benchmarks.world.cascade.showers import CascadeSample

REFERENCE_LG_ENERGY = 15.5
HADRON_KEYS = (
    "mX", "tX", "sX", "mM", "cX", "tM", "sM", "n0", "n1", "n2", "nh", "tR", "sR", "s0", "sz", "sh", "sr", "ss", "hM",
)  # fmt: skip
PHOTON_KEYS = (
    "mX", "tX", "sX", "n0", "n1", "n2", "tR", "sR", "s0", "sz", "sr", "ss", "hM", "lN0", "lK",
)  # fmt: skip
"""lN0, lK: lg of the soft and of the hard part of photons' muons."""
IRON = 56
NO_TAIL = 0.003
"""Exponential widths of lg Nmu below this count as none."""
SOFT = 0.005
"""Photon showers whose hardest photonuclear interaction has a smaller share of the energy."""
HARD_POWER = 0.85
"""Power of that share which the hard part's muons follow."""


def exponential_and_normal(values: np.ndarray) -> tuple[float, float]:
    """Return the widths of an exponential to the right and of a normal deviate whose sum describes values (N,).

    Maximum likelihood of the exponentially modified normal distribution, from the moments.
    """
    mean, sd = float(values.mean()), float(values.std())
    if not sd:
        return 0.0, 0.0
    u = (values - mean) / sd

    def loss(p: np.ndarray) -> float:
        tau, sigma, location = np.exp(p[0]), np.exp(p[1]), p[2]
        x = (u - location) / sigma - sigma / tau
        ln = -np.log(tau) - (u - location) / tau + 0.5 * (sigma / tau) ** 2 + log_ndtr(x)
        return float(-ln.mean())

    skewness = float(np.clip((u**3).mean(), 0.02, 1.9))
    tau = (skewness / 2) ** (1 / 3)
    start = np.array([np.log(tau), 0.5 * np.log(1 - tau**2), -tau])
    found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-7, "maxiter": 800})
    return float(np.exp(found.x[0])) * sd, float(np.exp(found.x[1])) * sd


def moments(values: np.ndarray) -> tuple[float, float]:
    """Return the same two widths from variance and skewness; without an exponential if that is negative."""
    sd = float(values.std())
    skewness = float(np.clip(((values - values.mean()) ** 3).mean() / sd**3, 0.0, 1.9))
    tail = sd * (skewness / 2) ** (1 / 3)
    return tail, float(np.sqrt(sd**2 - tail**2))


def parameters_of(sample: CascadeSample) -> list[dict[str, float]]:
    """Return the parameters of the closed form for one sample at each of its grounds."""
    lowest = sample.grounds[-1] / np.cos(np.radians(sample.zenith_deg))
    xmax = np.clip(sample.xmax, 200.0, lowest)
    seen = xmax < lowest - 30.0
    widths = exponential_and_normal(xmax[seen])
    return [_at_ground(sample, ground, xmax, seen, widths) for ground in range(len(sample.grounds))]


def _at_ground(
    sample: CascadeSample, ground: int, xmax: np.ndarray, seen: np.ndarray, widths: tuple[float, float]
) -> dict[str, float]:
    lg_ne = np.log10(np.maximum(sample.electrons[:, ground], 1e-3))
    lg_nmu = np.log10(np.maximum(sample.muons[:, ground], 1e-3))
    kept = (lg_ne > 0) & seen
    lg_ne, lg_nmu, xmax, age = lg_ne[kept], lg_nmu[kept], xmax[kept], sample.age[kept, ground]
    hardest, muons = sample.hardest[kept], 10.0**lg_nmu
    z = (xmax - xmax.mean()) / 100.0
    p = {"mX": float(xmax.mean()), "tX": widths[0], "sX": widths[1]}
    height = float((sample.production_km[kept, ground] * muons).sum() / muons.sum())
    if sample.mass:
        p["cX"] = float(np.polyfit(z, lg_nmu, 1)[0])
        rest = lg_nmu - p["cX"] * z
        tail, width = exponential_and_normal(-rest)
        p["mM"] = float(rest.mean())
        p["tM"], p["sM"] = (tail, width) if tail >= NO_TAIL else (0.0, float(rest.std()))
        h = rest - p["mM"]
        columns = [np.ones(len(z)), z, z * z, h]
    else:
        p |= photon_muons(lg_nmu, hardest)
        h = np.zeros(len(z))
        columns = [np.ones(len(z)), z, z * z]
    found = np.linalg.lstsq(np.column_stack(columns), lg_ne, rcond=None)[0]
    r = lg_ne - np.column_stack(columns) @ found
    p |= dict(zip(("n0", "n1", "n2", "nh"), [*map(float, found), 0.0], strict=False))
    p["tR"], p["sR"] = moments(r)
    columns = [np.ones(len(z)), z, r] + ([h] if sample.mass else [])
    found = np.linalg.lstsq(np.column_stack(columns), age, rcond=None)[0]
    p |= dict(zip(("s0", "sz", "sr", "sh"), [*map(float, found), 0.0], strict=False))
    p["ss"], p["hM"] = float((age - np.column_stack(columns) @ found).std()), height
    return p


def photon_muons(lg_nmu: np.ndarray, hardest: np.ndarray) -> dict[str, float]:
    """Return soft and hard part of Nmu = 10^lN0 + 10^lK f^0.85 (least absolute deviations in lg)."""

    def loss(p: np.ndarray) -> float:
        return float(np.abs(lg_nmu - np.log10(10.0 ** p[0] + 10.0 ** p[1] * hardest**HARD_POWER)).mean())

    soft = hardest < SOFT
    start = np.median(lg_nmu[soft])
    found = minimize(loss, [start, start + 1.3], method="Nelder-Mead").x
    return {"lN0": float(found[0]), "lK": float(found[1])}


Table = dict[str, dict[int, np.ndarray]]
"""By parameter and mass number: (grounds, 6)."""


def terms(e: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the polynomial's terms, (N, 6)."""
    return np.column_stack([np.ones(len(e)), e, e * e, s, e * s, s * s])


def fitted(e: np.ndarray, s: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the polynomial's coefficients, (6, G), from values (N, G).

    From two angles there is no curvature in S, from one no dependence on it.
    """
    known = (3, 5, 6)[min(len(np.unique(s)), 3) - 1]
    found = np.zeros((6, values.shape[1]))
    found[:known] = np.linalg.lstsq(terms(e, s)[:, :known], values, rcond=None)[0]
    return found


def coefficients_of(samples: Iterable[CascadeSample]) -> tuple[np.ndarray, Table]:
    """Return the grounds, and the coefficients of all parameters there."""
    samples = list(samples)
    grounds, table = samples[0].grounds, {}
    for mass in sorted({one.mass for one in samples}):
        mine = [one for one in samples if one.mass == mass]
        e = np.array([one.lg_energy for one in mine]) - REFERENCE_LG_ENERGY
        s = 1.0 / np.cos(np.radians([one.zenith_deg for one in mine])) - 1.0
        found = [parameters_of(one) for one in mine]
        for key in HADRON_KEYS if mass else PHOTON_KEYS:
            values = np.array([[at[key] for at in one] for one in found])
            table.setdefault(key, {})[mass] = fitted(e, s, values).T
    return grounds, table


def combined(base: Table, *differences: tuple[Table, float]) -> Table:
    """Return coefficients plus others times factors; masses that the others lack get what lies between in ln A."""
    result: Table = {}
    for key, by_mass in base.items():
        for mass, values in by_mass.items():
            for other, factor in differences:
                values = values + factor * _at_mass(other[key], mass)
            result.setdefault(key, {})[mass] = values
    return result


def _at_mass(by_mass: Mapping[int, np.ndarray], mass: int) -> np.ndarray:
    if mass in by_mass:
        return by_mass[mass]
    part = np.log(mass) / np.log(IRON)
    return (1.0 - part) * by_mass[1] + part * by_mass[IRON]
