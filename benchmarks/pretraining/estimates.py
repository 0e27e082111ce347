"""How well `pretrained`, taught the truth of training showers, estimates energy and core, and whether its errors hold.

    python -m benchmarks.pretraining.estimates --out pretraining --write estimates.md

In two worlds that pretraining has not seen (those of ``benchmarks/learning/pretraining.py``, whose test showers served
no choice) the network is fine-tuned on three folds of the training showers; estimates of the test showers are averaged
and their errors scaled on held-out ones, as in a run. Against them: the reconstructed E and its formula refitted to
the same training showers; the reconstructed core and that of the lateral fit. Resolution is half the width of the
central 68 % of estimate minus truth (cores: x and y together), with 95 % bootstrap intervals; differences are paired;
a pull is estimate minus truth in units of the error.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from benchmarks.learning.energy import formula_columns
from benchmarks.learning.pretraining import DATA_SEED, MOST_TRAINING, VALID_SHARE, WORLDS, only
from benchmarks.shared.drawn import CORE, drawn
from showerstack.features.catalogue import feature_set
from showerstack.models.base.inputs import targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.scoring.metrics.residuals import paired_resolution, residual_metrics
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES
from showerstack.stacking.estimates import TargetCalibration

FOLDS = 3
AXES = ("x", "y")


def with_targets(batch: Batch, truth: pl.DataFrame) -> Batch:
    """Return the same showers with their true quantities as targets."""
    return replace(batch, targets=targets_of(truth, *(truth[name].to_numpy() for name in CORE)))


def scalars(batch: Batch) -> np.ndarray:
    """Return E, Ze, Az, Ne, Nmu (N, 5) float64 of the table; 0 where it lacks one, as it does the azimuth."""
    assert batch.table is not None
    result = np.zeros((len(batch), len(SCALAR_NAMES)))
    for k, name in enumerate(SCALAR_NAMES):
        if name in batch.columns:
            result[:, k] = batch.table[:, batch.columns.index(name)]
    return result


def taught(train: Batch, test: Batch, fitted_core: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return the test showers' estimates and errors by three fits, as a run with three folds would ship them."""
    entry = spec("pretrained")
    assert isinstance(entry.features, str)
    assert train.targets is not None
    columns = feature_set(entry.features, train.columns)
    folds = np.random.default_rng(seed).permutation(len(train)) % FOLDS
    held_out = np.empty((len(train), train.targets.shape[1], 2))
    fits = []
    for k in range(FOLDS):
        rows = np.random.default_rng([seed, k]).permutation(np.flatnonzero(folds != k))
        n_valid = round(VALID_SHARE * len(rows))
        learn, valid = (only(train.take(np.sort(part)), columns) for part in (rows[n_valid:], rows[:n_valid]))
        learner = create(entry, COMPOSITION.classes).fit(learn, valid, seed=seed + k)
        apart = replace(only(train.take(folds == k), columns), targets=None, labels=None)
        held_out[folds == k] = learner.predict_targets(apart)
        fits.append(learner.predict_targets(replace(only(test, columns), labels=None)))
    target_calibration, _ = TargetCalibration.of("pretrained", held_out[None], train.targets)
    return target_calibration.arrays(np.stack(fits), fitted_core)


def measured(values: dict[str, np.ndarray], pulls: dict[str, np.ndarray], unit: str, world: str) -> list[str]:
    """Return the table's lines; residuals (N,) by estimate, the last one is compared with the best of the others."""
    *others, last = values
    best = min(others, key=lambda name: residual_metrics(values[name])["resolution"])
    lines = []
    for name, residuals in values.items():
        result = residual_metrics(residuals)
        spans = result["intervals"]
        cells = [f"{result[m]:.4f} [{spans[m]['low']:.4f}, {spans[m]['high']:.4f}]" for m in ("bias", "resolution")]
        gap = ""
        if name == last:
            paired = paired_resolution(residuals, values[best])
            gap = f"{paired.difference:+.4f} [{paired.interval.low:+.4f}, {paired.interval.high:+.4f}]"
        width = ""
        if name in pulls:
            pull = residual_metrics(pulls[name])
            span = pull["intervals"]["resolution"]
            inside = np.mean(np.abs(pulls[name]) < 1), np.mean(np.abs(pulls[name]) < 2)
            width = f"{pull['resolution']:.3f} [{span['low']:.3f}, {span['high']:.3f}]; "
            width += f"{inside[0]:.1%}, {inside[1]:.1%}"
        lines.append(f"| {world} | {name}, {unit} | {' | '.join(cells)} | {gap} | {width} |")
    return lines


def compared(world: str, n: int, n_test: int, data: Path, seed: int) -> list[str]:
    """Return the lines of one world."""
    batch, truth = drawn(world, COMPOSITION.name, MOST_TRAINING, seed=DATA_SEED, split="train", data=data)
    test, what = drawn(world, COMPOSITION.name, n_test, seed=DATA_SEED, split="test", data=data)
    rows = np.sort(np.random.default_rng([n, seed]).permutation(len(batch))[:n])
    train = with_targets(batch, truth).take(rows)
    core = what.select(CORE).to_numpy().astype(np.float64)
    true_energy = what["lg_energy"].to_numpy().astype(np.float64)
    formula = np.linalg.lstsq(formula_columns(scalars(train)), truth["lg_energy"].to_numpy()[rows], rcond=None)[0]
    known = scalars(test)
    result = taught(train, test, core, seed)
    energies = {
        "reconstructed E": known[:, 0] - true_energy,
        "its formula, refitted": formula_columns(known) @ formula - true_energy,
        "`pretrained`": result["lg_energy"] - true_energy,
    }
    lines = measured(energies, {"`pretrained`": energies["`pretrained`"] / result["lg_energy_error"]}, "lg E", world)
    return lines + measured(*cores(result, what), "core, m", world)


def cores(content: dict[str, np.ndarray], what: pl.DataFrame) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return residuals of the core's x and y, one after the other (2 N,), and pulls; where the fit has a core."""
    defined = np.isfinite(what[CORE[0]].to_numpy())
    names = {"reconstructed core": "reconstructed_core_{}_m", "fitted core": "fit_core_{}_m"}
    true = {axis: what[f"core_{axis}_m"].to_numpy().astype(np.float64) for axis in AXES}
    residuals = {
        name: np.concatenate([(what[column.format(axis)].to_numpy() - true[axis])[defined] for axis in AXES])
        for name, column in names.items()
    }
    ours = {axis: content[f"core_{axis}_m"] - true[axis] for axis in AXES}
    residuals["`pretrained`"] = np.concatenate([ours[axis][defined] for axis in AXES])
    pulls = np.concatenate([(ours[axis] / content[f"core_{axis}_error_m"])[defined] for axis in AXES])
    return residuals, {"`pretrained`": pulls}


def main() -> None:
    """Parse, train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("bench/pretraining"), help="folder of benchmarks.learning.pretraining"
    )
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--train", type=int, default=15_000)
    parser.add_argument("--test", type=int, default=25_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| world | estimate | bias | resolution | minus the best other | pull: width; within 1, 2 |",
        f"|{'---|' * 6}",
    ]
    for world in options.worlds.split(","):
        lines += compared(world, options.train, options.test, options.out / "data", options.seed)
        print("\n".join(lines), flush=True)
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
