"""How well energy and core are known from few training showers: stacks of the pretrained network, and of boosted trees.

    python -m benchmarks.learning.few_energies --store

At KASCADE (under the test's cuts) and two other arrays of :mod:`benchmarks.fits.arrays`, in a world in which nothing
was chosen, runs of one learner estimate the same test showers. Resolution is half the width of the central 68 % of
estimate minus truth, of cores that of x and y together; a share of 68.3 % should lie within the stated error. Columns
are means of training seeds, ± their standard error. Showers and runs are kept below OUT.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.fits.arrays import cases
from benchmarks.shared.results import HELP, store
from showerstack.features.build import build_table
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.residuals import resolution
from showerstack.showers.array import KASCADE
from showerstack.showers.schema import ENERGY
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack

ARRAYS = ("KASCADE", "37 stations, 3,000 m", "dense, high, large muon detectors")
SIZES = (100, 300, 1000, 5000)
TREES = "lightgbm"
N_TEST = 4000
WORLD = "harder"


def measured(learner: str, array: str, n: int, seed: int, out: Path) -> list[float]:
    """Return resolution and coverage of the energy, of the core, and the resolution of the fitted core (m)."""
    (case,) = [case for case in cases() if case.name == array]
    data = out / f"{array.replace(' ', '_')}-{n}-{seed}"
    cuts = "test" if case.array == KASCADE else "none"
    simulate(ENERGY, data, n_train=n, n_test=N_TEST, seed=seed, train_cuts=cuts, world=WORLD, array=case.array)
    config = StackConfig(task=ENERGY.name, data=data, run=data / learner, preset="quick", learners=(learner,))
    run = stack(config, Context(device="cpu")).run
    with np.load(run / "predictions.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    truth = pl.read_parquet(data / "energy_test" / "truth.parquet", glob=False)
    return [*of(arrays, truth, ("lg_energy",)), *of(arrays, truth, ("core_x_m", "core_y_m"))]


def of(arrays: dict[str, np.ndarray], truth: pl.DataFrame, names: tuple[str, ...]) -> tuple[float, float]:
    """Return resolution of quantities and the share of showers within the stated error; NaN where there is none."""
    if not set(names) <= set(arrays):
        return np.nan, np.nan
    residual = np.concatenate([arrays[name] - truth[name].to_numpy() for name in names])
    errors = [name.replace("_m", "_error_m") if name.endswith("_m") else f"{name}_error" for name in names]
    error = np.concatenate([arrays[name] for name in errors])
    known = np.isfinite(residual)
    return resolution(residual[known]), float(np.mean(np.abs(residual[known]) < error[known]))


def fitted_core(array: str, out: Path, seed: int) -> float:
    """Return the resolution of the lateral fit's core, m."""
    data = out / f"{array.replace(' ', '_')}-{SIZES[0]}-{seed}" / "energy_test"
    core = build_table(data).matrix(("fit_core_x_m", "fit_core_y_m")).T
    truth = pl.read_parquet(data / "truth.parquet", columns=["core_x_m", "core_y_m"], glob=False)
    residual = np.concatenate([core[k] - truth[:, k].to_numpy() for k in (0, 1)])
    return resolution(residual[np.isfinite(residual)])


def main() -> None:
    """Simulate, train what is missing, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/few_energies"), help="folder of showers and runs")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    heads = ["array", "learner", "showers", "lg E", "within its error, %", "core, m", "within its error, %"]
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for array in ARRAYS:
        for learner, n in (*(("pretrained", n) for n in SIZES), (TREES, SIZES[-1])):
            each = np.array([measured(learner, array, n, seed, options.out) for seed in seeds])
            mean, error = each.mean(axis=0), each.std(axis=0, ddof=1) / len(seeds) ** 0.5
            cells = [
                "" if np.isnan(mean[k]) else f"{factor * mean[k]:.{digits}f} ± {factor * error[k]:.{digits}f}"
                for k, (factor, digits) in enumerate(((1, 4), (100, 1), (1, 2), (100, 1)))
            ]
            rows.append(f"| {array} | `{learner}` | {n:,} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
        fits = [fitted_core(array, options.out, seed) for seed in seeds]
        spread = np.std(fits, ddof=1) / len(fits) ** 0.5
        rows.append(f"| {array} | lateral fit | | | | {np.mean(fits):.2f} ± {spread:.2f} | |")
        print(rows[-1], flush=True)
    if options.store:
        words = f"{N_TEST:,} test showers of world `{WORLD}`, means of seeds {options.seeds} ± their standard error."
        text, title = "\n".join([words, "", *rows]), "Energy and core from few showers"
        store("few_energies", title, text, worlds=(WORLD,), weights="any-array")


if __name__ == "__main__":
    main()
