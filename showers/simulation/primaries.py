"""What arrives at the top of the atmosphere: energy, direction, place, primary and hadronic model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.rows import Rows
from showerstack.showers.kascade import MASS_NUMBERS
from showerstack.showers.schema import COMPOSITION, Task
from showerstack.showers.simulation.monte_carlo import CASCADES, FITTED
from showerstack.showers.simulation.settings import Cascade, Spectrum

PIVOT_LG_A = 0.9
"""lg A of the nuclei that a model's shift by mass leaves as they are."""


@dataclass(frozen=True)
class HadronicModel:
    """A hadronic interaction model: the cascade Monte Carlo with it, or a shift of showers that are fitted to data."""

    title: str
    shift: Callable[[Cascade, float], tuple[float, float, float]] = lambda cascade, lg_a: (0.0, 0.0, 0.0)
    """Shifts of Xmax (g/cm2), lg Ne and lg Nmu of hadrons, from a world's constants and lg A - 0.9."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Its weight in ``mix``, by kind of primaries: millions (thousands) of events in the public raw files [p]."""
    cascade: str = FITTED
    """What the Monte Carlo was run with, a name in :data:`showerstack.showers.simulation.monte_carlo.CASCADES`."""


MODELS: dict[str, HadronicModel] = {
    "qgs": HadronicModel("as QGSJet-II.04: no shift", mix={"composition": 4.16, "gamma": 634.0}),
    "epos": HadronicModel(
        "as EPOS-LHC: fitted shift",
        lambda cascade, lg_a: (
            cascade.epos_xmax,
            cascade.epos_lg_ne,
            cascade.epos_lg_nmu + cascade.epos_lg_nmu_mass * lg_a,
        ),
        mix={"composition": 2.79, "gamma": 628.0},
    ),
    "sibyll": HadronicModel(
        "as SIBYLL 2.3c: assumed shift",
        lambda cascade, lg_a: (cascade.sibyll_xmax, 0.0, cascade.sibyll_lg_nmu),
        mix={"gamma": 652.0},
    ),
    **{name: HadronicModel(title, cascade=name) for name, title in CASCADES.items()},
}
"""By the name that --model takes; ``mix`` is all of them by their weights. New ones go to the end: random numbers and
files count them. The first three are shifts of depth, size and muon number between the public sets of showers, not the
models themselves; those of :data:`showerstack.showers.simulation.monte_carlo.CASCADES` are."""
PHOTON = 0
"""Mass number that stands for a photon."""


@dataclass(frozen=True)
class Primaries(Rows):
    """Thrown primaries; all arrays (N,)."""

    mass: np.ndarray
    """int64 mass number, 0 for photons."""
    label: np.ndarray
    """int8 class number of the task."""
    model: np.ndarray
    """int8 number in :data:`MODELS`."""
    lg_energy: np.ndarray
    """lg(E/eV)."""
    zenith_deg: np.ndarray
    azimuth_deg: np.ndarray
    core_x_m: np.ndarray
    core_y_m: np.ndarray


def throw_primaries(task: Task, n: int, model: str, spectrum: Spectrum, rng: np.random.Generator) -> Primaries:
    """Throw ``n`` primaries of a task.

    Composition (and energy): the nuclei of the task's groups with equal probability. Gamma: protons and photons in the
    ratio of the settings; a small share of the protons carries the gamma label (see ``Spectrum.contamination``).
    """
    shares = model_shares(task, model)
    models = np.searchsorted(np.cumsum(shares), rng.random(n), side="right").astype(np.int8)
    kind, low, hard, mislabelled = rng.random((4, n))
    u_energy, u_zenith, u_azimuth = rng.random((3, n))
    if task.primaries == COMPOSITION.name:
        labels = np.array(task.labels if task.name == COMPOSITION.name else COMPOSITION.labels, dtype=np.int8)
        label = labels[np.minimum((kind * len(labels)).astype(np.int8), len(labels) - 1)]
        mass = np.asarray(MASS_NUMBERS)[label]
        top = np.where(low < spectrum.low_share, spectrum.low_lg_energy_max, spectrum.lg_energy_max)
        bottom = np.where(low > 1.0 - spectrum.high_share, spectrum.high_lg_energy_min, spectrum.lg_energy_min)
    else:
        photon = kind < 1.0 / (1.0 + spectrum.protons_per_photon)
        mass = np.where(photon, PHOTON, 1)
        label = np.where(photon | (mislabelled < spectrum.contamination), 0, 1).astype(np.int8)
        top, bottom = np.full(n, spectrum.lg_energy_max), np.full(n, spectrum.lg_energy_min)
    lg_energy = power_law(u_energy, bottom, top, spectrum.index - 1.0)
    is_hard = (mass == PHOTON) & (hard < spectrum.photon_hard_share)
    steep = power_law(u_energy, spectrum.photon_hard_lg_energy_min, top, -spectrum.photon_hard_slope)
    limit = np.where(mass == PHOTON, spectrum.photon_zenith_max_deg, spectrum.hadron_zenith_max_deg)
    u_zenith = np.where(mass == PHOTON, u_zenith**spectrum.photon_zenith_power, u_zenith)
    core_x_m, core_y_m = throw_cores(n, spectrum.core_radius_m, rng)
    return Primaries(
        mass=mass,
        label=label,
        model=models,
        lg_energy=np.where(is_hard, steep, lg_energy),
        zenith_deg=np.degrees(np.arcsin(np.sin(np.radians(limit)) * np.sqrt(u_zenith))),
        azimuth_deg=360.0 * u_azimuth,
        core_x_m=core_x_m,
        core_y_m=core_y_m,
    )


def throw_cores(n: int, radius_m: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y, (n,) metres, of points uniform in a disc around the centre of the array."""
    radius = radius_m * np.sqrt(rng.random(n))
    angle = 2.0 * np.pi * rng.random(n)
    return radius * np.cos(angle), radius * np.sin(angle)


def power_law(u: np.ndarray, lg_min: float | np.ndarray, lg_max: float | np.ndarray, power: float) -> np.ndarray:
    """Return lg E for uniform ``u``, with dN/dlgE ~ E^-power between the limits (inverse transform)."""
    if abs(power) < 1e-9:
        return lg_min + u * (lg_max - lg_min)
    span = -np.expm1(-power * np.log(10.0) * (lg_max - lg_min))
    return lg_min - np.log1p(-u * span) / (power * np.log(10.0))


def model_shares(task: Task, model: str) -> np.ndarray:
    """Return the share of each of :data:`MODELS` that a named model (or ``mix``) means for a task."""
    shares = np.array([one.mix.get(task.primaries or "", 0.0) for one in MODELS.values()])
    if not shares.any():
        raise InputError(f"task {task.name!r} cannot be simulated: nothing says which primaries to generate for it")
    if model == "mix":
        return np.asarray(shares / shares.sum())
    if model not in MODELS:
        raise InputError(f"unknown hadronic model {model!r}: choose one of {', '.join(MODELS)}, mix")
    return np.asarray([float(model == name) for name in MODELS])


def model_shift(model: np.ndarray, mass: int, cascade: Cascade) -> np.ndarray:
    """Return the shifts of Xmax (g/cm2), lg Ne and lg Nmu against QGSJet, (3, N); photons get none."""
    shifts = [one.shift(cascade, np.log10(max(mass, 1)) - PIVOT_LG_A) for one in MODELS.values()]
    return np.transpose(shifts)[:, model] * float(mass != PHOTON)


def cascade_numbers(model: np.ndarray) -> np.ndarray:
    """Return the number in :data:`CASCADES` that each of some models, (N,), follows."""
    names = list(CASCADES)
    return np.array([names.index(one.cascade) for one in MODELS.values()])[model]
