"""Every number of primaries, cascades, skies and worlds, beside the numbers they gave before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.kascade import MASS_NUMBERS, PARTICLE_IDS
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation.cascade import (
    AT_KASCADE,
    RARE,
    Deviates,
    Showers,
    capped_exponential,
    develop,
    develop_mass,
    hadron_offset,
    hadronic_content,
    mean_muon_age,
    photon_muons,
)
from showerstack.showers.simulation.primaries import (
    Primaries,
    model_shares,
    model_shift,
    power_law,
    throw_primaries,
)
from showerstack.showers.simulation.settings import WORLDS, Cascade, Settings, Shape, Spectrum, load_settings
from showerstack.showers.simulation.sky import Sky, Thrower
from tests.references import summary

Reference = Callable[..., None]
N = 500
KINDS = (0, *MASS_NUMBERS)
SHIFTS = ("qgs", "epos", "sibyll")
ODD = Settings().changed(
    spectrum__index=2.4,
    spectrum__lg_energy_min=14.2,
    spectrum__low_share=0.3,
    spectrum__high_share=0.25,
    spectrum__protons_per_photon=1.5,
    spectrum__photon_zenith_power=0.8,
    spectrum__photon_hard_share=0.4,
    spectrum__photon_hard_slope=-0.7,
    spectrum__contamination=0.2,
    cascade__fluctuation_mass=0.1,
    cascade__lg_ne_inclination=0.3,
    cascade__lg_ne_curvature=0.04,
    cascade__lg_ne_mass_energy=0.05,
    cascade__lg_nmu_energy=0.03,
    cascade__lg_nmu_inclination=-0.2,
    cascade__lg_nmu_mass_energy=-0.06,
    cascade__photon_lg_ne_inclination=0.7,
    cascade__photon_lg_nmu_offset=-0.3,
    cascade__photon_muon_spread=0.2,
    cascade__photonuclear_scale=60.0,
    cascade__photon_age_offset=-0.2,
    cascade__proton_tail=0.6,
    cascade__electron_loss_min=-0.15,
    cascade__hadronic_front=1.5,
    cascade__epos_lg_ne=0.02,
    cascade__epos_lg_nmu_mass=0.03,
    shape__age_inclination=0.2,
    shape__age_mass=0.06,
    shape__age_spread=0.25,
    shape__muon_age_inclination=0.15,
    shape__muon_age_depth=0.08,
    shape__muon_age_spread=0.25,
    detector__punch_content=0.8,
)
"""A world in which every constant counts."""
PLACES = {"default": load_settings(), "gammas": load_settings("gammas"), "odd": ODD}


def deviates(n: int = N) -> Deviates:
    """Return random numbers of showers, the first ones in and beyond all tails."""
    result = Deviates.draw(n, np.random.default_rng(11))
    for k in range(3):
        result.exponential[k, :6] = 5.4, 5.5, 5.6, 8.5, 12.0, 20.0
        result.uniform[k, :6] = 0.0, 0.2, 0.5, 0.9, 0.97, 0.999
    result.normal[:, 6:9] = -8.0, 0.0, 6.0
    return result


def moments(columns: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the moments of each column."""
    return {name: summary(values) for name, values in columns.items()}


def every_kind(n: int = N) -> Primaries:
    """Return primaries of all masses and models from vertical to very inclined, far below and above all thresholds."""
    rng = np.random.default_rng(12)
    mass = np.resize(KINDS, n)
    label = np.where(np.arange(n) % 5 == 0, 0, 1).astype(np.int8)
    model = rng.integers(0, len(SHIFTS), n).astype(np.int8)
    lg_energy, zenith_deg = rng.uniform(13.1, 18.2, n), rng.uniform(0.0, 62.0, n)
    core = rng.uniform(-90, 90, (2, n))
    return Primaries(mass, label, model, lg_energy, zenith_deg, rng.uniform(0, 360, n), *core)


def test_worlds(reference: Reference) -> None:
    """The shipped worlds: every constant of the default, what the others have otherwise, and the defaults' defaults."""
    worlds: dict[str, Any] = {name: load_settings(name).model_dump() for name in WORLDS}
    worlds["unset"] = Settings().model_dump()
    first = worlds["default"]

    def differs(one: dict[str, Any]) -> dict[str, Any]:
        return {
            section: {name: value for name, value in values.items() if value != first[section][name]}
            for section, values in one.items()
        }

    reference({name: one if one is first else differs(one) for name, one in worlds.items()})


def test_coefficients(reference: Reference) -> None:
    e, s = (np.array(values) for values in zip(*product((-2.5, -1.3, 0.4, 1.6, 2.4), (0.1, 0.6)), strict=True))
    reference(
        {
            name: summary(np.array([AT_KASCADE.at(name, mass, e, s) for mass in table]))
            for name, table in AT_KASCADE.rows.items()
            if name not in ("hM", "lN0", "lK")
        }
    )


@pytest.mark.parametrize("mass", KINDS)
def test_cascades(mass: int, reference: Reference) -> None:
    rng = np.random.default_rng(13)
    e, s = rng.uniform(-2.4, 2.6, N), rng.uniform(0.0, 0.9, N)
    names = ("xmax", "lg ne", "lg nmu", "age")
    reference(
        {
            f"{world} {shift}": moments(
                dict(zip(names, develop_mass(mass, e, s, deviates(), one.cascade, *shift), strict=True))
            )
            for world, one in PLACES.items()
            for shift in ((), (20.0, 0.05, -0.04))
        }
    )


def test_muons_and_fronts(reference: Reference) -> None:
    rng = np.random.default_rng(14)
    e, s = rng.uniform(-1.5, 2.5, N), rng.uniform(0.0, 0.6, N)
    primaries = every_kind()
    muons = rng.uniform(2.0, 7.0, N)
    reference(
        {
            "photons": {
                name: moments(dict(zip("ns", photon_muons(e, s, deviates(), one.cascade), strict=True)))
                for name, one in PLACES.items()
            },
            "offsets": [hadron_offset(0.4, np.array(0.7), np.array(0.2), one.cascade) for one in PLACES.values()],
            "content": [summary(hadronic_content(primaries, muons, e, s, one)) for one in PLACES.values()],
            "muon age": mean_muon_age(np.array([0.0, 3.5, 4.5, 6.0, 12.0]), np.array([1.0, 1.1, 1.035, 1.5, 1.0])),
            "capped": capped_exponential(np.array([0.1, 5.5, 5.6]), np.array([0.2, 0.3, 0.4])),
            "rare": RARE.draw(np.array([0.1, 1.0, 4.0, 9.0]), np.array([0.59, 0.61, 0.2, 0.9])),
            "deviates": moments(vars(Deviates.draw(N, np.random.default_rng(15)))),
        }
    )


@pytest.mark.parametrize("world", PLACES)
def test_showers_at_the_ground(world: str, reference: Reference) -> None:
    """Showers of all primaries: everything but the primaries themselves, naturally and with rare protons."""
    settings = PLACES[world]

    def of(showers: Showers) -> dict[str, Any]:
        names = [field.name for field in fields(Showers) if field.name != "primaries"]
        columns = {name: getattr(showers, name) for name in names}
        return moments({name: values for name, values in columns.items() if values is not None})

    rng = np.random.default_rng
    reference(
        {
            "natural": of(develop(every_kind(), settings, rng(16))),
            "rare": of(develop(every_kind(), settings, rng(16), RARE)),
        }
    )


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=lambda task: task.name)
def test_primaries(task: Task, reference: Reference) -> None:
    reference(
        {
            f"{world} {model}": moments(
                vars(throw_primaries(task, 2_000, model, one.spectrum, np.random.default_rng(17)))
            )
            for world, one in PLACES.items()
            for model in ("mix", *(("qgs", "epos", "sibyll") if world == "default" else ()))
        }
    )


def test_spectra_and_models(reference: Reference) -> None:
    u = np.linspace(0, 1, 7)
    reference(
        {
            "power": {power: power_law(u, 14.0, 16.5, power) for power in (-1.0, 0.0, 1e-10, 1e-8, 0.01, 1.7)},
            "limits": power_law(u, np.linspace(14, 15, 7), np.linspace(16, 18, 7), 1.0),
            "shares": {
                f"{task.name} {model}": model_shares(task, model)[: len(SHIFTS)]
                for task in (COMPOSITION, GAMMA)
                for model in ("mix", *SHIFTS)
            },
            "shifts": {mass: model_shift(np.arange(len(SHIFTS)), mass, ODD.cascade) for mass in KINDS},
            "ids": PARTICLE_IDS,
        }
    )


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (Spectrum, {"high_lg_energy_min": 16.0, "lg_energy_max": 16.0}),
        (Spectrum, {"low_lg_energy_max": 15.0, "lg_energy_min": 15.0}),
        (Spectrum, {"lg_energy_max": 14.0, "high_lg_energy_min": 13.5, "photon_hard_lg_energy_min": 13.5}),
        (Spectrum, {"photon_hard_lg_energy_min": 18.0}),
        (Shape, {"age_max": 1.55}),
        (Shape, {"age_min": 0.9, "age_max": 0.9}),
        (Shape, {"muon_age_min": 1.7}),
        (Cascade, {"xmax_scale": -0.01}),
    ],
)
def test_worlds_that_cannot_be(section: type, values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|greater than"):
        section(**values)


def test_other_tasks_have_no_primaries() -> None:
    with pytest.raises(InputError, match="which primaries"):
        model_shares(Task("other", ("a", "b")), "mix")


SKIES = {
    "plain": Sky(),
    "odd": Sky.model_validate(
        {
            "runs": 4,
            "live_time_h": 0.2,
            "pause_h": 0.1,
            "model": "mix",
            "flux_1_pev": 2e-21,
            "lg_energy_min": 14.8,
            "lg_energy_max": 17.2,
            "index": 2.6,
            "index_above": 3.3,
            "knee_pev": 3.0,
            "sharpness": 4.0,
            "photon_fraction": 0.1,
            "zenith_max_deg": 30.0,
            "core_radius_m": 80.0,
            "dead_stations": 5.0,
            "dead_muon_detectors": 9.0,
            "deposit_drift": 0.06,
            "groups": {
                "iron": {"abundance": 0.5, "index": 2.4, "index_above": 2.9, "knee_pev": 20.0, "sharpness": 2.0},
                "helium": {"abundance": 0.0},
            },
        }
    ),
}


@pytest.mark.parametrize("name", SKIES)
def test_skies(name: str, reference: Reference) -> None:
    sky = SKIES[name]
    thrower = Thrower(sky)
    lg_energy = np.array([14.0, 15.0, 15.5, 16.0, 17.0])
    primaries = thrower.throw(2_000, np.random.default_rng(18))
    reference(
        {
            "sky": {name: value for name, value in sky.model_dump().items() if name != "groups"},
            "abundances": sky.abundances,
            "knees": sky.knees_pev(),
            "flux at 1 PeV": sky.flux(lg_energy) * 10.0 ** (3 * (lg_energy - 15.0)) * 1e21,
            "acceptance": sky.acceptance_m2_sr,
            "rate": thrower.rate_hz,
            "primaries": moments(vars(primaries)),
        }
    )
