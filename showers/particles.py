"""What single particles leave in a station: the response to showers that are known particle by particle.

A plastic scintillator that a vertical muon leaves the array's ``electron_deposit_mev`` in is as thick as that deposit
over 2 MeV per g/cm2, the energy loss of a minimum ionising particle [P]: KASCADE's 9.5 MeV are 4.75 g/cm2.

* **Charged particles** leave the deposit of the array's card times Z^2 and the secant of their angle, up to 5, at most
  their kinetic energy. It fluctuates with a Gamma distribution, whose relative variance is that of the array's muons:
  electrons that stop are known by their energy here.
* **Photons** convert with the probability 1 - exp(-mu X sec), with mu Compton scattering by Klein and Nishina [K] and
  pairs, (7/9) / X0 / (1 + 38 MeV / E) above 1.022 MeV, X0 = 43.9 g/cm2 [P]; the factor is a fit to tabulated
  attenuation, within 3 % from 2 to 100 MeV [X]. A Compton electron has a flat spectrum up to the edge, a pair all of
  the energy. Its one or two tracks see what is left of the thickness below a uniform depth, and leave at most their
  energy.
* **Muon detectors** see muons whose kinetic energy is above 0.23 GeV, the threshold of KASCADE's shield [A], times the
  secant. Electrons, photons and hadrons that punch through the shield are not simulated: within some 40 m of the axis
  the channel holds muons alone.

Readings below the array's threshold (KASCADE's 3 MeV of 9.5) are 0, those beyond saturation the saturated value.

Sources: [P] Particle Data Group, Phys. Rev. D 110 (2024) 030001, atomic and nuclear properties of polyvinyltoluene; [K]
O. Klein and Y. Nishina, Z. Phys. 52 (1929) 853; [X] J. H. Hubbell and S. M. Seltzer, NISTIR 5632 (1995); [A] T. Antoni
et al., Nucl. Instrum. Meth. A 513 (2003) 490.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from showerstack.showers.array import DetectorArray
from showerstack.showers.card import MUON_THRESHOLD, THRESHOLD

MIP_MEV_CM2_PER_G = 2.0
RADIATION_LENGTH_G_CM2 = 43.9
ELECTRONS_PER_G = 3.26e23
"""Of polyvinyltoluene: Avogadro's number times Z/A = 0.5414."""
CLASSICAL_RADIUS_CM = 2.8179403e-13
PAIR_MEV = 38.0
"""Energy at which pair production has half of its high-energy cross section."""
ELECTRON_MEV = 0.51099895
MAX_SECANT = 5.0
MUON_THRESHOLD_GEV = 0.23
KASCADE_THRESHOLD = 3.0 / 9.5
"""Threshold of an e/gamma detector over the deposit of a particle."""
MASSES_GEV = {
    2: 0.000511, 3: 0.000511, 5: 0.10566, 6: 0.10566, 8: 0.13957, 9: 0.13957, 11: 0.49368, 12: 0.49368, 14: 0.93827,
    15: 0.93827, 19: 1.18937, 21: 1.19745, 23: 1.32171, 24: 1.67245, 27: 1.19745, 29: 1.18937, 31: 1.32171,
    32: 1.67245,
}  # fmt: skip
"""Of CORSIKA's charged particles that reach the ground: e, mu, pi, K, p, Sigma, Xi, Omega; nuclei are 100 A + Z."""
PHOTON, ELECTRONS, MUONS = 1, (2, 3), (5, 6)
NUCLEON_GEV = 0.93149


class DetectorResponse(NamedTuple):
    """Constants of an array's stations."""

    electron_deposit_mev: float
    muon_deposit_mev: float
    electron_variance: float
    """Relative variance of a charged particle's deposit in an e/gamma detector."""
    muon_variance: float
    threshold_mev: float
    muon_threshold_mev: float
    saturation_mev: float
    muon_saturation_mev: float

    @classmethod
    def of(cls, array: DetectorArray) -> DetectorResponse:
        """Return those that the array's card gives, KASCADE's elsewhere."""
        r, card = array.response, array.card.response
        return cls(
            electron_deposit_mev=r.electron_deposit_mev,
            muon_deposit_mev=r.muon_deposit_mev,
            electron_variance=max(r.muon_in_electron_dispersion - 1.0, 0.01),
            muon_variance=max(r.muon_dispersion - 1.0, 0.01),
            threshold_mev=card.get(THRESHOLD, KASCADE_THRESHOLD * r.electron_deposit_mev),
            muon_threshold_mev=card.get(MUON_THRESHOLD, KASCADE_MUON_THRESHOLD * r.muon_deposit_mev),
            saturation_mev=r.saturation_mev,
            muon_saturation_mev=r.muon_saturation_mev,
        )


KASCADE_MUON_THRESHOLD = 3.9 / 8.4
"""Threshold of a muon detector over the deposit of a muon."""


def charge_and_mass(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return charge numbers (0 for what leaves nothing) and masses, GeV, of CORSIKA's particles (n,) int64."""
    charge, mass = np.zeros(len(ids)), np.zeros(len(ids))
    for number, value in MASSES_GEV.items():
        here = ids == number
        charge[here], mass[here] = 1.0, value
    nuclei = (ids >= 201) & (ids < 9900)
    charge[nuclei], mass[nuclei] = ids[nuclei] % 100, ids[nuclei] // 100 * NUCLEON_GEV
    return charge, mass


def compton_cm2(energy_mev: np.ndarray) -> np.ndarray:
    """Return Klein and Nishina's total cross section of an electron, cm2, at photon energies (n,)."""
    k = np.maximum(energy_mev / ELECTRON_MEV, 1e-3)
    log = np.log1p(2 * k)
    bracket = (1 + k) / k**2 * (2 * (1 + k) / (1 + 2 * k) - log / k) + log / (2 * k) - (1 + 3 * k) / (1 + 2 * k) ** 2
    return 2 * np.pi * CLASSICAL_RADIUS_CM**2 * bracket


def attenuation_cm2_per_g(energy_mev: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of Compton scattering and of pair production, (n,) each."""
    pairs = 7.0 / 9.0 / RADIATION_LENGTH_G_CM2 / (1.0 + PAIR_MEV / np.maximum(energy_mev, 1e-6))
    return compton_cm2(energy_mev) * ELECTRONS_PER_G, np.where(energy_mev > 2 * ELECTRON_MEV, pairs, 0.0)


def electron_deposits(
    ids: np.ndarray, momentum_gev: np.ndarray, secant: np.ndarray, response: DetectorResponse, rng: np.random.Generator
) -> np.ndarray:
    """Return what particles leave in an e/gamma detector that they cross, (n,) MeV.

    Parameters
    ----------
    ids
        (n,) int64, CORSIKA's.
    momentum_gev
        (n,)
    secant
        (n,) of the angle to the vertical.
    """
    secant = np.minimum(secant, MAX_SECANT)
    charge, mass = charge_and_mass(ids)
    kinetic = 1e3 * (np.hypot(momentum_gev, mass) - mass)
    deposit = (
        response.electron_deposit_mev * charge**2 * secant * _fluctuation(len(ids), response.electron_variance, rng)
    )
    photons = np.flatnonzero(ids == PHOTON)
    energy = 1e3 * momentum_gev[photons]
    compton, pairs = attenuation_cm2_per_g(energy)
    thickness = response.electron_deposit_mev / MIP_MEV_CM2_PER_G * secant[photons]
    converts = rng.random(len(photons)) < -np.expm1(-(compton + pairs) * thickness)
    is_pair = rng.random(len(photons)) * (compton + pairs) < pairs
    edge = 2 * energy / (ELECTRON_MEV + 2 * energy)
    kinetic[photons] = np.where(
        is_pair, np.maximum(energy - 2 * ELECTRON_MEV, 0.0), energy * edge * rng.random(len(photons))
    )
    tracks = np.where(is_pair, 2.0, 1.0) * rng.random(len(photons)) * converts
    deposit[photons] = response.electron_deposit_mev * secant[photons] * tracks
    return np.minimum(deposit, kinetic)


def muon_deposits(
    ids: np.ndarray, momentum_gev: np.ndarray, secant: np.ndarray, response: DetectorResponse, rng: np.random.Generator
) -> np.ndarray:
    """Return what particles leave in a muon detector that they cross, (n,) MeV; parameters as above."""
    mass = MASSES_GEV[MUONS[0]]
    kinetic = np.hypot(momentum_gev, mass) - mass
    secant = np.minimum(secant, MAX_SECANT)
    seen = np.isin(ids, MUONS) & (kinetic > MUON_THRESHOLD_GEV * secant)
    return response.muon_deposit_mev * seen * secant * _fluctuation(len(ids), response.muon_variance, rng)


def readings(deposits_mev: np.ndarray, threshold_mev: float, saturation_mev: float) -> np.ndarray:
    """Return what stations show of the sums of their deposits."""
    return np.where(deposits_mev < threshold_mev, 0.0, np.minimum(deposits_mev, saturation_mev))


def _fluctuation(n: int, variance: float, rng: np.random.Generator) -> np.ndarray:
    return rng.gamma(1.0 / variance, variance, n)
