"""What one network with the mean weights of five fine-tuned fits loses against their averaged predictions.

    python benchmarks/pretraining/averaged_weights.py --out averaged --sizes 4000,15000 --worlds default,foreign

Five folds as in a run: each fit of ``pretrained`` learns from four of them, a tenth of which stops it early. Printed
are log-losses on test showers under the test's cuts and paired differences, ± standard errors: the network minus the
averaged predictions, and the mean single fit minus them; and the processor time of one prediction each.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning.pretraining import DATA_SEED, VALID_SHARE, only
from benchmarks.shared.drawn import FOREIGN, drawn
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.models.registry import create, spec
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.schema import TASKS
from showerstack.stacking.fit.folds import assign_folds

N_FOLDS = 5


def row(world: str, task: str, train: Batch, test: Batch, seed: int) -> str:
    """Return a line of the table: fits of one training set."""
    entry, classes = spec("pretrained"), TASKS[task].classes
    assert isinstance(entry.features, str)
    assert train.labels is not None
    assert test.labels is not None
    columns = feature_set(entry.features, train.columns)
    folds, fits = assign_folds(train.labels, N_FOLDS, seed=seed), []
    for fold in range(N_FOLDS):
        rows = np.random.default_rng([seed, fold]).permutation(np.flatnonzero(folds != fold))
        n_valid = round(VALID_SHARE * len(rows))
        learn, valid = (only(train.take(np.sort(part)), columns) for part in (rows[n_valid:], rows[:n_valid]))
        fits.append(create(entry, classes, n_rows=len(learn)).fit(learn, valid, seed=seed * N_FOLDS + fold))
    new, labels = replace(only(test, columns), labels=None), test.labels
    started = time.process_time()
    network = type(fits[0]).averaged(fits).predict_log_proba(new)
    used = [time.process_time() - started]
    each = np.stack([fit.predict_log_proba(new) for fit in fits])
    used.append(time.process_time() - started - used[0])
    averaged = log_softmax(each.mean(axis=0))
    worse = paired_log_loss(labels, network, averaged)
    rows = np.arange(len(labels))
    single = (averaged[rows, labels] - each[:, rows, labels]).mean(axis=0)
    cells = [world, task, f"{len(train):,}", str(seed), f"{-averaged[rows, labels].mean():.4f}"]
    cells += [f"{worse.difference:+.5f} ± {worse.standard_error:.5f}"]
    cells += [f"{single.mean():+.5f} ± {single.std() / len(single) ** 0.5:.5f}", f"{used[0]:.2f}, {used[1]:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Fit, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder where drawn showers are kept")
    parser.add_argument("--task", choices=TASKS, default="composition")
    parser.add_argument("--worlds", default=f"default,{FOREIGN}")
    parser.add_argument("--sizes", default="4000,15000")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--test", type=int, default=40_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes, seeds = ([int(x) for x in text.split(",")] for text in (options.sizes, options.seeds))
    head = ["world", "task", "showers", "seed", "log-loss of averaged predictions", "averaged weights minus these"]
    head += ["single fit minus these", "CPU s of prediction: network, five fits"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for world in options.worlds.split(","):
        train, _ = drawn(world, options.task, max(sizes), seed=DATA_SEED, split="train", data=options.out)
        test, _ = drawn(world, options.task, options.test, seed=DATA_SEED, split="test", data=options.out)
        for n in sizes:
            for seed in seeds:
                print(row(world, options.task, train.take(np.arange(n)), test, seed), flush=True)


if __name__ == "__main__":
    main()
