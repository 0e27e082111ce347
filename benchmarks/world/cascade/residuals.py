"""How well do interpolated coefficients describe showers at depths that were left out?

``python -m benchmarks.world.cascade.residuals --model sibyll23d --work bench/cascade`` leaves out each depth but the
ends, gets its coefficients from the others in several ways, draws showers with them, and compares quantiles and
correlations with the Monte Carlo's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.interpolate import CubicSpline

from benchmarks.shared.results import HELP, store
from benchmarks.world.cascade.__main__ import samples
from benchmarks.world.cascade.coefficients import REFERENCE_LG_ENERGY, Table, coefficients_of
from benchmarks.world.cascade.ship import job_in
from benchmarks.world.cascade.showers import CascadeSample
from showerstack.showers.simulation.cascade import Deviates, develop_mass
from showerstack.showers.simulation.monte_carlo import Coefficients
from showerstack.showers.simulation.settings import Cascade

PROBABILITIES = np.array([0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999])
CENTRAL = np.array([0.1, 0.5, 0.9])
"""Those whose errors a few hundred showers tell."""
QUANTITIES = ("Xmax", "lg Ne", "lg Nmu", "age")
DRAWN = 20_000
MONTE_CARLO = Cascade(
    xmax_scale=1.0, muon_scale=1.0, size_scale=1.0, lg_ne_offset=0.0, lg_ne_mass=0.0, lg_ne_energy=0.0,
    lg_nmu_offset=0.0, lg_nmu_mass=0.0, lg_nmu_energy=0.0, photon_lg_ne_offset=0.0,
)  # fmt: skip
"""Scales and offsets with which the closed form is the Monte Carlo's."""
FORM_DEGREE = 3

Way = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""Coefficients (6,) at a depth from depths (G,) and coefficients there (G, 6)."""


def linear(depths: np.ndarray, rows: np.ndarray, at: float) -> np.ndarray:
    """Interpolate linearly between the two neighbours."""
    return np.array([np.interp(at, depths, column) for column in rows.T])


def cubic(depths: np.ndarray, rows: np.ndarray, at: float) -> np.ndarray:
    """Interpolate with a cubic spline through all."""
    return np.asarray(CubicSpline(depths, rows)(at))


def form(depths: np.ndarray, rows: np.ndarray, at: float) -> np.ndarray:
    """Evaluate a polynomial in the depth that is fitted to all."""
    x = (depths - 800.0) / 250.0
    return np.array([np.polyval(np.polyfit(x, column, FORM_DEGREE), (at - 800.0) / 250.0) for column in rows.T])


WAYS: dict[str, Way] = {"table, linear": linear, "table, cubic": cubic, f"polynomial of degree {FORM_DEGREE}": form}
OWN = "fitted at the depth itself"


def at_depth(table: Table, depths: np.ndarray, ground: int, way: Way | None) -> Coefficients:
    """Return the coefficients at a ground: its own, or from the others."""
    kept = np.arange(len(depths)) != ground
    at = float(depths[ground])
    rows = {
        key: {
            mass: values[ground] if way is None else way(depths[kept], values[kept], at)
            for mass, values in by_mass.items()
        }
        for key, by_mass in table.items()
    }
    return Coefficients("monte carlo", at, rows)


def drawn(sample: CascadeSample, table: Coefficients, rng: np.random.Generator) -> np.ndarray:
    """Return (4, N): :data:`QUANTITIES` of showers of the closed form, made as a sample was."""
    e = np.full(DRAWN, sample.lg_energy - REFERENCE_LG_ENERGY)
    s = np.full(DRAWN, 1.0 / np.cos(np.radians(sample.zenith_deg)) - 1.0)
    xmax, lg_ne, lg_nmu, age = develop_mass(sample.mass, e, s, Deviates.draw(DRAWN, rng), MONTE_CARLO, table=table)
    return np.stack([xmax, lg_ne, lg_nmu, age])


def simulated(sample: CascadeSample, ground: int) -> np.ndarray:
    """Return (4, N): the same of the Monte Carlo."""
    ne, nmu = sample.electrons[:, ground], sample.muons[:, ground]
    kept = ne > 1.0
    values = [sample.xmax, np.log10(np.maximum(ne, 1e-3)), np.log10(np.maximum(nmu, 1e-3)), sample.age[:, ground]]
    return np.stack(values)[:, kept]


def compare(model: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Compare (4, N) of the closed form with the Monte Carlo's.

    Returns
    -------
    pulls
        (4, 3): differences of the quantiles .1, .5 and .9 over the Monte Carlo's errors; an error is half the distance
        of the quantiles a standard deviation to the sides.
    medians
        (4,): differences of medians.
    below
        (4, 7): showers of the Monte Carlo below the closed form's quantiles :data:`PROBABILITIES`.
    correlation
        Difference of the correlations of lg Ne and lg Nmu.
    """
    n = truth.shape[1]
    step = np.sqrt(CENTRAL * (1 - CENTRAL) / n)
    low, high = CENTRAL - step, CENTRAL + step
    errors = 0.5 * (np.quantile(truth, high, axis=1) - np.quantile(truth, low, axis=1)).T
    difference = (np.quantile(model, CENTRAL, axis=1) - np.quantile(truth, CENTRAL, axis=1)).T
    limits = np.quantile(model, PROBABILITIES, axis=1).T
    below = (truth[:, None, :] < limits[:, :, None]).sum(axis=2)
    correlation = float(np.corrcoef(model)[1, 2] - np.corrcoef(truth)[1, 2])
    return difference / errors, difference[:, 1], below, correlation


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sibyll23d")
    parser.add_argument("--work", type=Path, default=Path("bench/cascade"))
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    every = list(samples(job_in(given.work, given.model)))
    depths, table = coefficients_of(every)
    text = "\n".join(tables(every, depths, table))
    print(text)
    if given.store:
        store("cascade_depths", "Coefficients at depths that were left out", text)


def tables(every: list[CascadeSample], depths: np.ndarray, table: Table) -> list[str]:
    """Return the comparison of hadrons as lines of Markdown."""
    hadrons = [sample for sample in every if sample.mass]
    lines = [
        "Differences of medians and of the correlation of lg Ne and lg Nmu are medians of their absolute values.", "",
        f"| left out, g/cm2 | coefficients | rms pull | {' | '.join(QUANTITIES)} | Ne-Nmu |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    pulls: dict[str, list[np.ndarray]] = {}
    counts: dict[str, np.ndarray] = {}
    n = 0
    for ground in range(1, len(depths) - 1):
        truths = [simulated(sample, ground) for sample in hadrons]
        n += sum(truth.shape[1] for truth in truths)
        for name, way in ((OWN, None), *WAYS.items()):
            rows = at_depth(table, depths, ground, way)
            found = [
                compare(drawn(sample, rows, np.random.default_rng(1)), truth)
                for sample, truth in zip(hadrons, truths, strict=True)
            ]
            mine = np.array([one[0] for one in found])
            medians = np.median([np.abs(one[1]) for one in found], axis=0)
            correlation = float(np.median([abs(one[3]) for one in found]))
            pulls.setdefault(name, []).append(mine)
            counts[name] = counts.get(name, 0) + sum(one[2] for one in found)
            cells = [f"{medians[0]:.1f}", *(f"{value:.4f}" for value in medians[1:]), f"{correlation:.3f}"]
            lines.append(f"| {depths[ground]:g} | {name} | {_rms(mine):.2f} | {' | '.join(cells)} |")
    lines += [
        "", f"Share of the Monte Carlo's {n:,} showers (one shower at several depths counts several times) below the",
        "closed form's quantiles, in per cent:", "",
        f"| quantity | coefficients | rms pull | {' | '.join(f'{100 * p:g}' for p in PROBABILITIES)} |",
        f"|---|---|---|{'---|' * len(PROBABILITIES)}",
    ]  # fmt: skip
    for k, quantity in enumerate(QUANTITIES):
        for name in counts:
            shares = " | ".join(f"{100 * share:.2f}" for share in counts[name][k] / n)
            rms = _rms(np.array([one[:, k] for one in pulls[name]]))
            lines.append(f"| {quantity} | {name} | {rms:.2f} | {shares} |")
    return lines


def _rms(pulls: np.ndarray) -> float:
    return float(np.sqrt(np.mean(pulls**2)))


if __name__ == "__main__":
    main()
