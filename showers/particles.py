"""What single particles leave in a station: the response to showers that are known particle by particle.

A plastic scintillator that a vertical muon leaves the array's ``electron_deposit_mev`` in is as thick as that deposit
over 2 MeV per g/cm2, the energy loss of a minimum ionising particle [P]: KASCADE's 9.5 MeV are 4.75 g/cm2.

* **Charged particles** leave the deposit of the array's card times Z^2 and the secant of their angle, up to 5, at most
  their kinetic energy. It fluctuates with a Gamma distribution, whose relative variance is that of the array's muons:
  electrons that stop are known by their energy here.
* **Photons** are followed until they leave the slab or have less than 20 keV. They scatter by Klein and Nishina [K] and
  make pairs, (7/9) / X0 / (1 + 38 MeV / E) above 1.022 MeV, X0 = 43.9 g/cm2 [P]; the factor is a fit to tabulated
  attenuation, within 3 % from 2 to 100 MeV [X]. Compton electrons start at the angle of the kinematics, pairs forward
  with a uniform share of the energy each. Tracks are straight, lose 2 MeV per g/cm2, and leave at most their energy.
* **Muon detectors** see muons whose kinetic energy is above ``muon_energy_gev`` of the card (0.23 GeV, the threshold of
  KASCADE's shield [A]) times the secant. What punches through the shield, and strays, are added per station
  (:func:`showerstack.showers.archives.throwing.beside_particles`).

Readings below the array's threshold (KASCADE's 3 MeV of 9.5) are 0, those beyond saturation the saturated value.

Sources: [P] Particle Data Group, Phys. Rev. D 110 (2024) 030001, atomic and nuclear properties of polyvinyltoluene; [K]
O. Klein and Y. Nishina, Z. Phys. 52 (1929) 853; [X] J. H. Hubbell and S. M. Seltzer, NISTIR 5632 (1995); [A] T. Antoni
et al., Nucl. Instrum. Meth. A 513 (2003) 490.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from showerstack.showers.array import DetectorArray
from showerstack.showers.card import MUON_ENERGY, MUON_THRESHOLD, THRESHOLD

MIP_MEV_CM2_PER_G = 2.0
RADIATION_LENGTH_G_CM2 = 43.9
ELECTRONS_PER_G = 3.26e23
"""Of polyvinyltoluene: Avogadro's number times Z/A = 0.5414."""
CLASSICAL_RADIUS_CM = 2.8179403e-13
PAIR_MEV = 38.0
"""Energy at which pair production has half of its high-energy cross section."""
ELECTRON_MEV = 0.51099895
MAX_SECANT = 5.0
STOPPED_MEV, INTERACTIONS = 0.02, 60
"""Photons of less energy stay where they are, as do those that have interacted so often."""
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
    muon_energy_gev: float
    """Kinetic energy of vertical muons from which on muon detectors see them."""

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
            muon_energy_gev=card.get(MUON_ENERGY, MUON_THRESHOLD_GEV),
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
    deposit = np.minimum(deposit, kinetic)
    photons = np.flatnonzero(ids == PHOTON)
    thickness = response.electron_deposit_mev / MIP_MEV_CM2_PER_G
    deposit[photons] = photon_deposits(1e3 * momentum_gev[photons], 1.0 / secant[photons], thickness, rng)
    return deposit


def scattered_share(energy_mev: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the share of its energy, (n,), that a photon keeps in Compton scattering, by Klein and Nishina.

    Drawn from 1/x + x between 1 / (1 + 2 k) and 1, and kept with 1 - x sin^2 / (1 + x^2) (J. C. Butcher, H. Messel,
    Nucl. Phys. 20 (1960) 15).
    """
    share, left = np.empty(len(energy_mev)), np.arange(len(energy_mev))
    while left.size:
        k = energy_mev[left] / ELECTRON_MEV
        least = 1.0 / (1.0 + 2.0 * k)
        of_inverse, of_linear = -np.log(least), (1.0 - least**2) / 2.0
        which, u, keep = rng.random((3, left.size))
        inverse = which * (of_inverse + of_linear) < of_inverse
        x = np.where(inverse, least ** (1.0 - u), np.sqrt(least**2 + (1.0 - least**2) * u))
        versine = (1.0 - x) / (k * x)  # 1 - cos
        kept = keep < 1.0 - x * versine * (2.0 - versine) / (1.0 + x**2)
        share[left[kept]] = x[kept]
        left = left[~kept]
    return share


def photon_deposits(
    energy_mev: np.ndarray, cosine: np.ndarray, thickness_g_cm2: float, rng: np.random.Generator
) -> np.ndarray:
    """Return what photons (n,) leave in a slab that they enter from above at these cosines to its normal, MeV."""
    deposit, energy, cosine = np.zeros(len(energy_mev)), energy_mev.astype(np.float64), cosine.copy()
    depth, inside = np.zeros(len(energy_mev)), np.arange(len(energy_mev))

    def track(kinetic_mev: np.ndarray, depth: np.ndarray, cosine: np.ndarray) -> np.ndarray:
        room = np.where(cosine > 0, thickness_g_cm2 - depth, depth) / np.maximum(np.abs(cosine), 1e-6)
        return np.minimum(kinetic_mev, MIP_MEV_CM2_PER_G * room)

    for _ in range(INTERACTIONS):
        compton, pairs = attenuation_cm2_per_g(energy[inside])
        depth[inside] += cosine[inside] * rng.standard_exponential(inside.size) / (compton + pairs)
        stays = (depth[inside] > 0) & (depth[inside] < thickness_g_cm2)
        inside, pairs, both = inside[stays], pairs[stays], (compton + pairs)[stays]
        if not inside.size:
            break
        is_pair = rng.random(inside.size) * both < pairs
        made = inside[is_pair]
        kinetic, share = np.maximum(energy[made] - 2 * ELECTRON_MEV, 0.0), rng.random(made.size)
        for part in (share, 1.0 - share):
            deposit[made] += track(part * kinetic, depth[made], cosine[made])
        inside = inside[~is_pair]
        before = energy[inside]
        kept = before * scattered_share(before, rng)
        of_photon = np.clip(1.0 - ELECTRON_MEV * (1.0 / kept - 1.0 / before), -1.0, 1.0)
        kinetic = before - kept
        momentum = np.sqrt(kinetic * (kinetic + 2 * ELECTRON_MEV))
        of_electron = np.clip((before - kept * of_photon) / np.maximum(momentum, 1e-12), -1.0, 1.0)
        around = np.cos(2 * np.pi * rng.random(inside.size)) * np.sqrt(1.0 - cosine[inside] ** 2)
        deposit[inside] += track(
            kinetic, depth[inside], cosine[inside] * of_electron - around * np.sqrt(1.0 - of_electron**2)
        )
        turned = cosine[inside] * of_photon + around * np.sqrt(1.0 - of_photon**2)
        energy[inside], cosine[inside] = kept, np.clip(turned, -1.0, 1.0)
        stopped = kept < STOPPED_MEV
        deposit[inside[stopped]] += kept[stopped]
        inside = inside[~stopped]
    deposit[inside] += energy[inside]
    return deposit


def muon_deposits(
    ids: np.ndarray, momentum_gev: np.ndarray, secant: np.ndarray, response: DetectorResponse, rng: np.random.Generator
) -> np.ndarray:
    """Return what particles leave in a muon detector that they cross, (n,) MeV; parameters as above."""
    mass = MASSES_GEV[MUONS[0]]
    kinetic = np.hypot(momentum_gev, mass) - mass
    secant = np.minimum(secant, MAX_SECANT)
    seen = np.isin(ids, MUONS) & (kinetic > response.muon_energy_gev * secant)
    return response.muon_deposit_mev * seen * secant * _fluctuation(len(ids), response.muon_variance, rng)


def readings(deposits_mev: np.ndarray, threshold_mev: float, saturation_mev: float) -> np.ndarray:
    """Return what stations show of the sums of their deposits."""
    return np.where(deposits_mev < threshold_mev, 0.0, np.minimum(deposits_mev, saturation_mev))


def _fluctuation(n: int, variance: float, rng: np.random.Generator) -> np.ndarray:
    return rng.gamma(1.0 / variance, variance, n)
