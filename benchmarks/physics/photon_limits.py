"""Do limits and intervals from signal region and sideband cover? Drawn counts with a known signal.

``python benchmarks/physics/photon_limits.py`` draws measured and simulated events in both regions of some energies,
with few or no simulated hadrons above the threshold, and prints how often the limit by CLs lies above the signal (90 %
asked for), how often the unified interval holds it, and the mean of the background's estimate, with 95 % intervals.
"""

from __future__ import annotations

import argparse

import numpy as np

from showerstack.analysis.photons.on_off import Common, OnOff, signal_limits
from showerstack.scoring.metrics.intervals import clopper_pearson

CASES = {
    "one energy, 3 expected": (np.array([3.0]), np.array([3.0]), 0.0, 4.0),
    "seven energies, .3 simulated events each": (np.full(7, 0.3), np.full(7, 0.3), 0.0, 4.0),
    "two energies, step wrong by 30 %": (np.array([10.0, 5.0]), np.array([20.0, 10.0]), 0.3, 8.0),
}
"""Background, simulated events above the threshold, common error of the step, signal."""
SIDE = 60.0
LEVEL = 0.9


def counts(case: str, rng: np.random.Generator) -> OnOff:
    """Draw one experiment."""
    background, simulated, error, signal = CASES[case]
    n = len(background)
    step = np.exp(error * rng.standard_normal())
    drawn = (rng.poisson(m).astype(float) for m in (background * step + signal / n, np.full(n, SIDE), simulated))
    beside = np.maximum(rng.poisson(SIDE, n), 1).astype(float)
    return OnOff(*drawn, beside, background / simulated, np.full(n, 1 / n), np.zeros(n))


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--toys", type=int, default=1000, help="as gamma-limit --toys")
    given = parser.parse_args()
    for case, (background, _, error, signal) in CASES.items():
        above, inside, expected = 0, 0, []
        for seed in range(given.experiments):
            drawn = counts(case, np.random.default_rng(seed))
            expected.append(drawn.background.sum())
            result = signal_limits(drawn, LEVEL, Common(error, 0.0, given.toys, seed))
            above += result.limit >= signal
            inside += result.interval[0] <= signal <= result.interval[1]
        words = []
        for name, count in (("limit above the signal", above), ("interval holds it", inside)):
            interval = clopper_pearson(count, given.experiments)
            words.append(f"{name} {count / given.experiments:.3f} ({interval.low:.3f} to {interval.high:.3f})")
        mean, spread = np.mean(expected), 1.96 * np.std(expected) / np.sqrt(given.experiments)
        words.append(f"background {mean:.2f} ± {spread:.2f} (95 %), true {background.sum():g}")
        print(f"{case}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
