"""What bf16 and larger batches do to fine-tuning: processor time and log-loss beside float32 in batches of 256.

    python -m benchmarks.learning.precision --work W --showers 8000 20000 --test 40000

Per number of training showers (world ``harder``, under the cuts): folds of a stack are fitted by ``pretrained`` as
registered and as ``--precision float32`` has it, alternating; compared are processor times of all fits, and on test
showers the network with the mean of the fits' weights, paired. ± is one standard error.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.shared.drawn import drawn
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.registry import create, learner_class, spec
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.schema import TASKS

VALID_SHARE = 0.1


def fitted(train: Batch, fold: int, n_folds: int, classes: tuple[str, ...], *, float32: bool) -> tuple[Learner, float]:
    """Return a fit on all folds but one, and its processor time, s."""
    learner = spec("pretrained")
    inside = np.flatnonzero(np.arange(len(train)) % n_folds != fold)
    valid = np.random.default_rng(fold).random(len(inside)) < VALID_SHARE
    rows, stopping = inside[~valid], inside[valid]
    one = create(
        learner, classes, n_rows=len(rows), preset="good", overrides=learner.float32_settings() if float32 else {}
    )
    started = time.process_time()
    one.fit(train.take(rows), train.take(stopping), seed=fold + 1)
    return one, time.process_time() - started


def main() -> None:
    """Print a row for each number of training showers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for simulated showers")
    parser.add_argument("--task", choices=["composition", "gamma"], default="composition")
    parser.add_argument("--world", default="harder")
    parser.add_argument("--showers", type=int, nargs="+", default=[8000, 20000])
    parser.add_argument("--test", type=int, default=40000)
    parser.add_argument("--folds", type=int, default=3)
    options = parser.parse_args()
    classes = TASKS[options.task].classes
    test, _ = drawn(options.world, options.task, options.test, seed=2, split="test", data=options.work)
    labels = np.asarray(test.labels)
    for n in options.showers:
        train, _ = drawn(options.world, options.task, n, seed=1, split="train", data=options.work)
        fits: dict[bool, list[Learner]] = {True: [], False: []}
        used = {True: 0.0, False: 0.0}
        for fold in range(options.folds):
            for float32 in (True, False):
                learner, seconds = fitted(train, fold, options.folds, classes, float32=float32)
                fits[float32].append(learner)
                used[float32] += seconds
        network = learner_class(spec("pretrained").learner)
        new = Batch(index=test.index, table=test.table, columns=test.columns, array=test.array)
        log_proba = {how: network.averaged(of_folds).predict_log_proba(new) for how, of_folds in fits.items()}
        paired = paired_log_loss(labels, log_proba[False], log_proba[True])
        error = (paired.interval.high - paired.interval.low) / (2 * 1.96)
        print(
            f"{options.task}, {options.world}, {n:,} showers, {options.folds} fits: "
            f"{getattr(fits[False][0], 'precision_', '')} {used[False]:.1f} s, float32 {used[True]:.1f} s, "
            f"ratio {used[False] / used[True]:.2f}; log-loss {event_losses(log_proba[False], labels).mean():.5f}, "
            f"minus that of float32 {paired.difference:+.5f} ± {error:.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
