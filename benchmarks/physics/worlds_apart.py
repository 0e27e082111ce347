"""Can three scalars without labels tell another simulated world from the one that a run knows?

``python benchmarks/physics/worlds_apart.py --work bench/worlds`` simulates showers under the test's cuts in the default
world, twice, and in ``harder`` and ``foreign``, and compares each with the first in cells of the reconstructed energy,
of lg Nmu - lg Ne, and of the age, by chi-square:

* *composition known*: the same shares were thrown, as if direct measurements told them without error;
* *composition free*: five weights in every bin of energy are fitted, which is all that a spectrum and a composition of
  one's own can change; what is left is what two dimensions that nobody fitted can tell.

Noise of both samples is in the errors. The second sample of the default world shows the rate of false alarms: it is
divided into as many parts as ``--parts`` says, and p-values below .05 are counted. For *composition free* the share of
protons and helium between lg E = 15.2 and 15.8 is printed, with its error, beside the true one: the bias of what would
be compared with direct measurements. Events in all are scaled to those with which a p-value of .001 is expected.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import chi2, ncx2

from benchmarks.shared.drawn import FOREIGN, foreign_detector
from benchmarks.shared.samples import sample
from showerstack.analysis.events import AGE, scalars
from showerstack.runtime.context import bar
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION

ENERGY_BINS, RATIO_BINS, AGE_BINS = 8, 6, 4
LEAST = 10.0
"""Least variance of a cell, in events."""
BAND = (15.2, 15.8)
P_WANTED, POWER = 1e-3, 0.5


@dataclass(frozen=True)
class ScalarSample:
    """Events; (N,) each."""

    energy: np.ndarray
    ratio: np.ndarray
    age: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> ScalarSample:
        """Return some of the events."""
        return ScalarSample(*(values[rows] for values in vars(self).values()))


@dataclass(frozen=True)
class WorldComparison:
    """Chi-square with composition known and free, and shares of protons and helium in :data:`BAND`."""

    known: tuple[float, int]
    free: tuple[float, int]
    light: tuple[float, float, float]
    """Fitted, its error, true."""


def read(folder: Path) -> ScalarSample:
    """Read a labelled set."""
    data = Dataset.open(folder)
    values = {name: column.astype(np.float64) for name, column in scalars(data).items()}
    return ScalarSample(values["E"], values["Nmu"] - values["Ne"], values[AGE], np.asarray(data.labels))


def compare(one: ScalarSample, other: ScalarSample) -> WorldComparison:
    """Compare a sample with the known one."""
    energies = np.quantile(one.energy, np.arange(1, ENERGY_BINS) / ENERGY_BINS)
    here, there = (np.searchsorted(energies, part.energy) for part in (one, other))
    size = len(other.energy) / len(one.energy)
    known, free, n_known, n_free = 0.0, 0.0, 0, 0
    light, total = np.zeros(3), 0.0
    for b in range(ENERGY_BINS):
        mine, theirs = one.take(here == b), other.take(there == b)
        ratios = np.quantile(mine.ratio, np.arange(1, RATIO_BINS) / RATIO_BINS)
        ages = np.quantile(mine.age, np.arange(1, AGE_BINS) / AGE_BINS)

        def count(part: ScalarSample, ratios: np.ndarray = ratios, ages: np.ndarray = ages) -> np.ndarray:
            cell = np.searchsorted(ratios, part.ratio) * AGE_BINS + np.searchsorted(ages, part.age)
            return np.bincount(cell, minlength=RATIO_BINS * AGE_BINS).astype(np.float64)

        n = count(theirs)
        templates = np.stack([count(mine.take(mine.labels == k)) for k in range(5)], axis=1)
        weights, inverse = np.full(5, size), np.eye(5)
        for step in range(12):
            variance = np.maximum(templates @ weights + templates @ weights**2, LEAST)
            if step == 0:
                known += float(((n - templates @ weights) ** 2 / variance).sum())
                n_known += len(n)
            inverse = np.linalg.pinv((templates.T / variance) @ templates)
            weights = inverse @ (templates.T @ (n / variance))
        free += float(((n - templates @ weights) ** 2 / variance).sum())
        n_free += len(n) - 5
        if BAND[0] <= np.median(mine.energy) < BAND[1]:
            totals = templates.sum(axis=0)
            first = totals * (np.arange(5) < 2)
            light += first @ weights, first @ inverse @ first, np.isin(theirs.labels, (0, 1)).sum()
            light_of = len(other.energy) / ENERGY_BINS
    bands = sum(BAND[0] <= np.median(one.energy[here == b]) < BAND[1] for b in range(ENERGY_BINS))
    total = max(bands, 1) * light_of
    return WorldComparison(
        (known, n_known), (free, n_free), (light[0] / total, float(np.sqrt(light[1])) / total, light[2] / total)
    )


def events_needed(value: float, ndf: int, events: float) -> str:
    """Return with how many events a p-value below :data:`P_WANTED` is expected, from the excess of chi-square."""
    border = chi2.isf(P_WANTED, ndf)
    grid = np.geomspace(1e-2, 1e3, 400) * border
    needed = grid[np.searchsorted(ncx2.sf(border, ndf, grid), POWER)]
    # The excess scatters by sqrt(2 ndf): at most what is reached in 95 % of cases is stated.
    largest = value - ndf + 1.645 * np.sqrt(2 * ndf)
    return f"p < {P_WANTED:g} needs at least {needed / max(largest, 1.0) * events:,.0f} events of each"


def main() -> None:
    """Print a line for each world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/worlds"))
    parser.add_argument("--events", type=int, default=160_000, help="showers of each sample")
    parser.add_argument("--parts", type=int, default=40, help="parts of the second sample, for false alarms")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    options = {"n_train": 200, "n_test": given.events, "bars": bar}
    folders = {
        "default": sample(COMPOSITION, given.work, seed=42, workers=given.workers, **options),
        "default again": sample(COMPOSITION, given.work, seed=43, workers=given.workers, **options),
        "harder": sample(COMPOSITION, given.work, seed=43, world="harder", workers=given.workers, **options),
    }
    with foreign_detector():
        folders[FOREIGN] = sample(COMPOSITION, given.work / FOREIGN, seed=43, workers=1, **options)
    samples = {name: read(folder / "composition_test") for name, folder in folders.items()}
    ours = samples.pop("default")
    part = np.random.default_rng(1).permutation(given.events) % given.parts
    parts = [compare(ours, samples["default again"].take(part == k)) for k in range(given.parts)]
    for name in ("known", "free"):
        alarms = sum(bool(chi2.sf(*getattr(one, name)) < 0.05) for one in parts)
        interval = clopper_pearson(alarms, given.parts)
        print(
            f"composition {name}: {alarms} of {given.parts} samples of {given.events // given.parts:,} events of the "
            f"same world below .05 (95 %: {interval.low:.3f} to {interval.high:.3f})"
        )
    for name, other in samples.items():
        result = compare(ours, other)
        words = [
            f"composition {kind}: chi-square {value:.0f} for {ndf} (p = {chi2.sf(value, ndf):.2g}; "
            f"{events_needed(value, ndf, given.events)})"
            for kind, (value, ndf) in (("known", result.known), ("free", result.free))
        ]
        fitted, error, true = result.light
        print(f"{name}: {'; '.join(words)}; protons and helium {fitted:.4f} ± {error:.4f}, true {true:.4f}")


if __name__ == "__main__":
    main()
