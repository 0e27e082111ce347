"""How far mean lg Ne of inclined showers in the simulation's closed form is from that of the cascade Monte Carlo.

``python -m benchmarks.world.cascade.inclined --work bench/cascade`` takes the showers that ``python -m
benchmarks.world.cascade --model sibyll23d`` has left there, and throws those of 50 degrees, to which no coefficient is
fitted. Compared is what inclination changes at each depth: inclined less vertical showers of the same energy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.shared.results import HELP, store
from benchmarks.world.cascade.__main__ import SHOWERS, CascadeJob, samples, tables_of
from benchmarks.world.cascade.ship import job_in
from benchmarks.world.cascade.showers import CascadeSample, production_depths, sample_of, throw
from benchmarks.world.cascade.transport import site_at
from showerstack.showers.simulation.monte_carlo import FITTED, GROUND_DEPTH, coefficients

BEYOND_DEG = 50.0
LG_ENERGIES = (15.5, 16.5)
NAMES = {1: "proton", 56: "iron", 0: "photon"}


def beyond(job: CascadeJob) -> Iterator[CascadeSample]:
    """Yield showers of :data:`BEYOND_DEG`."""
    site, interactions = site_at(BEYOND_DEG, job.grounds, production_depths(job.grounds)), job.library()
    tables = tables_of(job, BEYOND_DEG, interactions)
    for mass in NAMES:
        for lg_energy in LG_ENERGIES:
            number = round(job.scale * SHOWERS[mass])
            thrown = throw(
                site, interactions, tables, mass=mass, lg_energy=lg_energy, showers=number, seed=job.seed + mass
            )
            yield sample_of(*thrown, site, mass, lg_energy, BEYOND_DEG)


def rows(job: CascadeJob) -> list[str]:
    """Return the table: closed form less Monte Carlo, means over energies, by angle, primary and place."""
    found: dict[tuple[float, int, float], tuple[np.ndarray, np.ndarray]] = {}
    for one in (*samples(job), *beyond(job)):
        if one.mass in NAMES:
            lg_ne = np.log10(np.maximum(one.electrons, 1e-3))
            error = lg_ne.std(axis=0) / len(lg_ne) ** 0.5
            found[one.zenith_deg, one.mass, one.lg_energy] = lg_ne.mean(axis=0), error
    high = job.grounds < GROUND_DEPTH
    lines = [
        f"| zenith, deg | primary | above {GROUND_DEPTH:g} g/cm2 | at {GROUND_DEPTH:g} g/cm2 |",
        "|---|---|---|---|",
    ]
    for zenith_deg in sorted({key[0] for key in found} - {0.0}):
        secant = np.array([1.0 / np.cos(np.radians(zenith_deg)) - 1.0])
        for mass, name in NAMES.items():
            gaps, errors = [], []
            for (angle, number, lg_energy), (mean, error) in found.items():
                if (angle, number) != (zenith_deg, mass):
                    continue
                vertical, of_vertical = found[0.0, mass, lg_energy]
                e, none = np.array([lg_energy - 15.5]), np.zeros(1)
                tables = [coefficients(FITTED, float(depth)) for depth in job.grounds]
                form = [(t.at("n0", mass, e, secant) - t.at("n0", mass, e, none)).item() for t in tables]
                gaps.append(np.array(form) - (mean - vertical))
                errors.append(np.hypot(error, of_vertical))
            gap, spread = np.mean(gaps, axis=0), np.sqrt(np.sum(np.square(errors), axis=0)) / len(gaps)
            # Depths share their showers: the error of their mean is that of one.
            cells = (
                f"{gap[part].mean():+.3f} ± {spread[part].mean():.3f}" for part in (high, job.grounds == GROUND_DEPTH)
            )
            lines.append(f"| {zenith_deg:g} | {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/cascade"))
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    lines = rows(job_in(given.work, FITTED))
    print("\n".join(lines))
    if given.store:
        words = "Mean lg Ne, closed form less Monte Carlo, of what inclination changes; ± one standard error.\n\n"
        store(
            "cascade_inclined", "Inclined showers beside the cascade Monte Carlo", words + "\n".join(lines), worlds=()
        )


if __name__ == "__main__":
    main()
