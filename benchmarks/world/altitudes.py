"""What experiments at other altitudes have published, beside the simulation.

``python -m benchmarks.world.altitudes --store`` prints and stores the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.shared.results import HELP, store
from showerstack.showers.kascade import MASS_NUMBERS
from showerstack.showers.simulation.cascade import develop
from showerstack.showers.simulation.primaries import MODELS, Primaries
from showerstack.showers.simulation.settings import Settings, load_settings

SHOWERS = 4000
PROTON, IRON = MASS_NUMBERS[0], MASS_NUMBERS[-1]


def sizes(
    world: Settings, model: str, depth: float, mass: int, lg_energy: float, secant: float = 1.0
) -> tuple[float, float]:
    """Return mean lg Ne and lg Nmu of showers of one kind."""
    zero = np.zeros(SHOWERS)
    primaries = Primaries(
        mass=np.full(SHOWERS, mass), label=zero.astype(np.int8),
        model=np.full(SHOWERS, list(MODELS).index(model), dtype=np.int8), lg_energy=zero + lg_energy,
        zenith_deg=zero + np.degrees(np.arccos(1.0 / secant)), azimuth_deg=zero, core_x_m=zero, core_y_m=zero,
    )  # fmt: skip
    showers = develop(primaries, world, np.random.default_rng(1), depth_g_cm2=depth)
    return float(showers.lg_ne.mean()), float(showers.lg_nmu.mean())


MONTE_CARLO = Settings().changed(
    cascade__xmax_scale=1.0, cascade__muon_scale=1.0, cascade__size_scale=1.0, cascade__lg_ne_offset=0.0,
    cascade__lg_ne_mass=0.0, cascade__lg_ne_energy=0.0, cascade__lg_nmu_offset=0.0, cascade__lg_nmu_mass=0.0,
    cascade__lg_nmu_energy=0.0,
)  # fmt: skip
"""Showers of the cascade Monte Carlo without scales and offsets."""


def attenuation(
    world: Settings, model: str, depth: float, mass: int, lg_energy: float, size: int, largest: float
) -> float:
    """Return the attenuation length of mean lg Ne (0) or lg Nmu (1), g/cm2, from the vertical to a largest secant."""
    secants = np.linspace(1.0, largest, 5)
    lg = [sizes(world, model, depth, mass, lg_energy, float(one))[size] for one in secants]
    return float(-1.0 / (np.log(10.0) * np.polyfit(depth * secants, lg, 1)[0]))


@dataclass(frozen=True)
class AltitudeFact:
    """Something published."""

    text: str
    published: str
    source: str
    simulated: Callable[[Settings, str], dict[str, float]]
    """By kind of primary, from a world and a model."""
    agrees: Callable[[dict[str, float]], bool]


def _eas_top(world: Settings, model: str) -> dict[str, float]:
    return {name: attenuation(world, model, 820.0, mass, 15.5, 0, 1.3) for name, mass in (("p", PROTON), ("Fe", IRON))}


def _akeno(world: Settings, model: str) -> dict[str, float]:
    lg_energy = float(np.log10(3.9e15))
    return {name: sizes(world, model, 920.0, mass, lg_energy)[0] for name, mass in (("p", PROTON), ("Fe", IRON))}


def _akeno_slope(world: Settings, model: str) -> dict[str, float]:
    return {
        name: sizes(world, model, 920.0, mass, 16.5)[0] - sizes(world, model, 920.0, mass, 15.5)[0]
        for name, mass in (("p", PROTON), ("Fe", IRON))
    }


def _lhaaso(world: Settings, model: str) -> dict[str, float]:
    return {
        f"{name} {energy}": 1000.0 / attenuation(world, model, 600.0, mass, lg_energy, 1, 1.3)
        for name, mass in (("p", PROTON), ("Fe", IRON))
        for energy, lg_energy in (("0.3 PeV", 14.5), ("30 PeV", 16.5))
    }


def _between(value: float) -> Callable[[dict[str, float]], bool]:
    return lambda found: min(found.values()) <= value <= max(found.values())


FACTS = (
    AltitudeFact(
        "attenuation length of Ne at 820 g/cm2, g/cm2", "219 ± 3",
        "EAS-TOP, Astropart. Phys. 10 (1999) 1", _eas_top, _between(219.0),
    ),
    AltitudeFact(
        "lg Ne of vertical showers of 3.9e15 eV at 920 g/cm2", "6.0",
        "Akeno: E = 3.9e15 eV (Ne/1e6)^0.9, J. Phys. G 18 (1992) 423", _akeno, _between(6.0),
    ),
    AltitudeFact(
        "growth of lg Ne in a decade of energy there", "1.11", "the same", _akeno_slope,
        lambda found: max(abs(value - 1.11) for value in found.values()) < 0.1,
    ),
    AltitudeFact(
        "attenuation of Nmu at 600 g/cm2, 1 over 1,000 g/cm2", "falls with the energy from 0.3 to 30 PeV",
        "LHAASO, Phys. Rev. D 110 (2024) 103017", _lhaaso,
        lambda found: found["p 30 PeV"] < found["p 0.3 PeV"] and found["Fe 30 PeV"] < found["Fe 0.3 PeV"],
    ),
)  # fmt: skip


def table(world: Settings, model: str) -> list[str]:
    """Return published facts beside the simulation as lines of Markdown."""
    lines = ["| quantity | published | simulated | agrees | source |", "|---|---|---|---|---|"]
    for fact in FACTS:
        found = fact.simulated(world, model)
        shown = ", ".join(
            f"{name} {value:.0f}" if value > 20 else f"{name} {value:.2f}" for name, value in found.items()
        )
        lines.append(
            f"| {fact.text} | {fact.published} | {shown} | {'yes' if fact.agrees(found) else 'no'} | {fact.source} |"
        )
    return lines


def main() -> None:
    """Print the table, and store it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sibyll23d")
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    text = "\n".join(
        [
            f"Hadronic model `{given.model}`; proton and iron, which bracket what there is.",
            "",
            "## Cascade Monte Carlo, without the world's offsets",
            "",
            *table(MONTE_CARLO, given.model),
            "",
            "## World `default`, whose offsets are fitted at KASCADE",
            "",
            *table(load_settings(), given.model),
        ]
    )
    print(text)
    if given.store:
        store("altitudes", "Showers at other altitudes", text, worlds=["default"])


if __name__ == "__main__":
    main()
