"""The lateral fits by iminuit in float64, one event at a time: what the compiled kernels are held against.

The station model is that of the sums (:mod:`tests.features.reference`); the kernels have formulas of their own for it;
derivatives are differences. What the kernels freeze at the fit before the last is frozen at the fit itself here, which
moves the minimum by a small part of its error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from iminuit import Minuit

from showerstack.features.lateral.events import EventBatch, electron_density, energy_correction, muon_density
from showerstack.features.lateral.fit import RawFit
from showerstack.showers.response import StationResponse
from tests.features.reference import distances, freeze_electron, freeze_muon, half_deviance, signals

MUON_LEVEL_TO_LN_N = 14.4737861
"""ln N_mu minus ln of the density at 100 m (less its fixed exponents), muon age 1.3: by numerical integration."""


class Oracle:
    """Both fits of one event, from the minimum that a kernel found."""

    def __init__(self, events: EventBatch, raw: RawFit, k: int) -> None:
        one = slice(k, k + 1)
        self.events = replace(
            events,
            electron_mev=events.electron_mev[one].astype(np.float64),
            muon_mev=events.muon_mev[one].astype(np.float64),
            zenith_deg=events.zenith_deg[one].astype(np.float64),
            azimuth_deg=events.azimuth_deg[one].astype(np.float64),
        )
        self.xp, self.response = events.xp, events.response
        self.measured = signals(self.events)
        self.found = np.array([float(p[k]) for p in raw.electron]), np.array([float(q[k]) for q in raw.muon])
        r_m, electrons, muons = self._densities(*self.found)
        self.electron_frozen = freeze_electron(self.measured, r_m, electrons, muons, self.xp)
        self.muon_frozen = freeze_muon(self.measured, r_m, electrons, muons, self.xp)
        self.mean_age = self._prior_mean_age()

    def _densities(self, p, q):
        r_m = distances(self.events, np.array([p[0]]), np.array([p[1]]))
        return r_m, electron_density(r_m, p[2], p[3], self.xp), muon_density(r_m, q[0], q[1], self.xp)

    def _prior_mean_age(self) -> float:
        """Return the prior's mean of s_mu: by the muon number of the start, counted about the centroid."""
        response, measured, here = self.response, self.measured, self.events.stations
        live = measured.electron_area_m2 > 0
        weight = np.divide(measured.electron, measured.electron_area_m2, out=np.zeros(live.shape), where=live) ** 1.5
        weight += 1e-20
        core = [np.sum(weight * axis, axis=1) / np.sum(weight, axis=1) for axis in (here.x_m, here.y_m)]
        r_m = distances(self.events, *core)
        unit = muon_density(r_m, 0.0, response.muon_age_mean, self.xp) * measured.muon_area_m2
        far = r_m > 40.0
        level = np.log((measured.muon[far].sum() + 0.5) / (unit[far].sum() + 1e-6))
        lg_n_mu = (level + MUON_LEVEL_TO_LN_N) / np.log(10.0)
        secant = 1.0 / float(self.events.cos_zenith[0])
        mean = response.muon_age_mean + response.muon_age_size * (lg_n_mu - 4.5)
        return float(np.clip(mean + response.muon_age_inclination * (secant - 1.035), 0.9, 1.7))

    def electron_mean(self, p):
        r_m, electrons, _ = self._densities(p, self.found[1])
        return self.electron_frozen.area_m2 * electrons * energy_correction(r_m, self.response, self.xp)

    def muon_mean(self, q):
        _, _, muons = self._densities(self.found[0], q)
        return self.muon_frozen.area_m2 * muons

    def electron_value(self, *p) -> float:
        response, measured, frozen = self.response, self.measured, self.electron_frozen
        mu = self.electron_mean(p) + frozen.background + 1e-12
        value, _ = half_deviance(measured.electron, mu, measured.electron_saturated, frozen.weight, self.xp)
        core = (p[0] ** 2 + p[1] ** 2) / response.core_spread_m**2
        age = ((p[3] - response.age_mean) / response.age_spread) ** 2
        return float(value.sum() + 0.5 * (core + age - p[2]))

    def muon_value(self, *q) -> float:
        measured, frozen = self.measured, self.muon_frozen
        mu = self.muon_mean(q) + frozen.background + 1e-12
        value, _ = half_deviance(measured.muon, mu, measured.muon_saturated, frozen.weight, self.xp)
        return float(value.sum() + 0.5 * (((q[1] - self.mean_age) / self.response.muon_age_spread) ** 2 - q[0]))

    def fisher(self, channel: str, p) -> np.ndarray:
        """Return Fisher's matrix at p: sum of weight / mu times the products of the derivatives of mu, and priors."""
        electron = channel == "electron"
        mean_of, frozen = (self.electron_mean, self.electron_frozen) if electron else (self.muon_mean, self.muon_frozen)
        signal = self.measured.electron if electron else self.measured.muon
        saturated = self.measured.electron_saturated if electron else self.measured.muon_saturated
        steps = np.array([1e-3, 1e-3, 1e-4, 1e-4] if electron else [1e-4, 1e-4])
        slopes = [(mean_of(p + step) - mean_of(p - step)) / (2 * step.sum()) for step in np.diag(steps)]
        mu = mean_of(p) + frozen.background + 1e-12
        _, counted = half_deviance(signal, mu, saturated, frozen.weight, self.xp)
        weight = counted / mu
        priors = _precisions(self.response)[channel]
        return np.array([[np.sum(weight * a * b) for a in slopes] for b in slopes]) + np.diag(priors)

    def minimum(self, channel: str) -> tuple[np.ndarray, float]:
        """Return the minimum by Minuit's Migrad, with the value of F there."""
        value = self.electron_value if channel == "electron" else self.muon_value
        start = self.found[channel == "muon"]
        minuit = Minuit(value, *start)
        minuit.errordef = Minuit.LIKELIHOOD
        minuit.errors = np.sqrt(1 / np.diag(self.fisher(channel, start)))
        minuit.tol = 1e-3
        minuit.migrad()
        return np.array(minuit.values), float(minuit.fval)


def _precisions(response: StationResponse) -> dict[str, list[float]]:
    core, age = response.core_spread_m**-2, response.age_spread**-2
    return {"electron": [core, core, 0.0, age], "muon": [0.0, response.muon_age_spread**-2]}


def full(triangle: list, size: int, k: int) -> np.ndarray:
    """Return event k's symmetric matrix from the columns of its lower triangle."""
    matrix = np.zeros((size, size))
    rows, columns = np.tril_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = [float(column[k]) for column in triangle]
    return matrix
