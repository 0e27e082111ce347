"""Do the intervals of a stack on few showers hold? Stacks of 100 showers, each used ten times, with known truth.

    python -m benchmarks.quality.few_showers_coverage --stacks 200

Showers of two classes have Gaussian quantities; uses of one scatter about them. A stack is trained on all uses, in
folds of showers, and states accuracy, log-loss and area with 95 % intervals from its out-of-fold predictions. The truth
is what its shipped predictions have on 20,000 new showers.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.shared.results import HELP, store
from showerstack.estimators import StackClassifier
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.intervals import clopper_pearson

USES, NEW, APART, SCATTER = 10, 20_000, 1.2, 0.3


def showers(n: int, uses: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return quantities (N, 2), classes (N,) and the shower (N,) of all uses."""
    classes = rng.integers(0, 2, n)
    centres = rng.normal(size=(n, 2))
    centres[:, 0] += APART * classes
    shower = np.repeat(np.arange(n), uses)
    return centres[shower] + SCATTER * rng.normal(size=(n * uses, 2)), classes[shower], shower


def main() -> None:
    """Print how often the intervals hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=int, default=200)
    parser.add_argument("--showers", type=int, default=100)
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    held: dict[str, list[bool]] = {"accuracy": [], "log_loss": [], "auc": []}
    for seed in range(given.stacks):
        rng = np.random.default_rng([seed, given.showers])
        x, y, shower = showers(given.showers, USES, rng)
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            model = StackClassifier(
                run=run, preset="quick", learners=("table.logistic",), folds=5, repeats=1, workers=1, device="cpu"
            ).fit(x, y, groups=shower)
            stated = read_json(run / "metrics_table.json")
            new_x, new_y, _ = showers(NEW, 1, rng)
            proba = model.predict_proba(new_x)
        truth = {
            "accuracy": float((proba.argmax(axis=1) == new_y).mean()), "log_loss": log_loss(new_y, proba),
            "auc": roc_auc_score(new_y, proba[:, 1]),
        }  # fmt: skip
        of_shipped = stated["systems"][stated["shipped"]]
        for name, value in truth.items():
            held[name].append(of_shipped[name]["low"] <= value <= of_shipped[name]["high"])
    lines = ["| | 95 % intervals that hold the truth |", "|---|---|"]
    for name, found in held.items():
        limits = clopper_pearson(sum(found), len(found))
        lines.append(f"| {name} | {100 * np.mean(found):.1f} % [{100 * limits.low:.1f}, {100 * limits.high:.1f}] |")
    print("\n".join(lines))
    if given.store:
        words = f"{given.stacks} stacks of {given.showers} showers, each used {USES} times.\n\n"
        store("few_showers_coverage", "Intervals of stacks on few showers", words + "\n".join(lines), worlds=())


if __name__ == "__main__":
    main()
