"""Do coefficients of another run of the Monte Carlo agree with those that the simulation reads?

``python -m benchmarks.world.cascade.again coefficients.json`` takes what
``python -m benchmarks.world.cascade --model sibyll23d --seed 2 --out coefficients.json`` has written, and compares how
means change with the depth: the simulation's are those of an earlier run, moved at 1023 g/cm2 to what the worlds are
fitted with. Then it says how far inclined showers are from vertical ones at the same slant depth.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from benchmarks.shared.results import HELP, store
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.showers.simulation import monte_carlo
from showerstack.showers.simulation.monte_carlo import FITTED, GROUND_DEPTH

MEANS = {"n0": "lg Ne", "mM": "lg Nmu", "s0": "age", "hM": "height of muon production, km"}
"""Constant terms that are means of vertical showers of 10^15.5 eV."""
INCLINED = ((600.0, 30.0), (700.0, 30.0), (600.0, 42.0), (700.0, 42.0))
"""Depth, g/cm2, and zenith angle, deg."""
NAMES = {0: "photon", 1: "proton", 56: "iron"}


def changes(content: dict[str, Any], key: str, mass: int) -> np.ndarray:
    """Return a mean at each depth minus that at KASCADE's, (G,)."""
    at = np.array(content["parameters"][key][str(mass)])[:, 0]
    return np.asarray(at - at[content["depths"].index(GROUND_DEPTH)])


def table(new: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Return the comparison as lines of Markdown."""
    if new["depths"] != known["depths"]:
        raise InputError(f"the new coefficients are at depths {new['depths']}, the simulation's at {known['depths']}")
    depths = ", ".join(f"{depth:g}" for depth in known["depths"])
    lines = [
        f"Means of vertical showers of 10^15.5 eV at {depths} g/cm2, each minus that at {GROUND_DEPTH:g}.", "",
        "| mean | primary | largest change with depth | rms difference of the runs |", "|---|---|---|---|",
    ]  # fmt: skip
    for key, words in MEANS.items():
        for mass, name in NAMES.items():
            if str(mass) in known["parameters"][key]:
                ours, theirs = changes(known, key, mass), changes(new, key, mass)
                rms = float(np.sqrt(np.mean((ours - theirs) ** 2)))
                lines.append(f"| {words} | {name} | {np.ptp(ours):.3f} | {rms:.4f} |")
    lines += [
        "", "Inclined minus vertical showers at the same slant depth, protons and iron:", "",
        "| depth, g/cm2 | zenith, deg | mean | simulation | second run |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for depth, zenith_deg in INCLINED:
        for key, words in MEANS.items():
            cells = [
                ", ".join(f"{inclined(content, key, mass, depth, zenith_deg):+.3f}" for mass in (1, 56))
                for content in (known, new)
            ]
            lines.append(f"| {depth:g} | {zenith_deg:g} | {words} | {cells[0]} | {cells[1]} |")
    return lines


def inclined(content: dict[str, Any], key: str, mass: int, depth: float, zenith_deg: float) -> float:
    """Return the mean of inclined showers minus that of vertical ones at their slant depth."""
    rows = CubicSpline(content["depths"], np.array(content["parameters"][key][str(mass)]))
    s = 1.0 / np.cos(np.radians(zenith_deg)) - 1.0
    here, below = rows(depth), rows(depth * (1.0 + s))
    return float(here[0] + here[3] * s + here[5] * s * s - below[0])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coefficients", type=Path)
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    known = read_json(Path(monte_carlo.__file__).parent / f"cascade_{FITTED}.json")
    text = "\n".join(table(dict(read_json(given.coefficients)), dict(known)))
    print(text)
    if given.store:
        store("cascade_again", "The cascade Monte Carlo a second time", text, worlds=())


if __name__ == "__main__":
    main()
