"""Five small scikit-learn networks in a pool beside ``mlp``: processor time and log-loss on the same showers.

    python -m benchmarks.learning.small_networks --work W --showers 8000 60000 --test 40000
    python -m benchmarks.learning.small_networks --work W --task gamma --showers 8000 --test 40000

Networks of 64 units with L2 of .3, which stop early, on the columns of ``mlp`` as normal quantiles; their
log-posteriors are averaged. Per number of training showers (world ``harder``, under the cuts) both are fitted to the
same showers, each seed to others. Differences are paired; ± is one standard error, of test showers and seeds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from benchmarks.learning.pretraining import VALID_SHARE, only
from benchmarks.shared.drawn import drawn
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.schema import TASKS

NETWORKS, UNITS, L2 = 5, 64, 0.3


def of_mlp(train: Batch, test: Batch, classes: tuple[str, ...], seed: int) -> tuple[np.ndarray, float, float]:
    """Return (N, C) log-posteriors of ``mlp``, and the processor times of training and predicting, s."""
    rows = np.random.default_rng(seed).permutation(len(train))
    n_valid = round(VALID_SHARE * len(train))
    learner = create(spec("mlp"), classes, n_rows=len(train) - n_valid, preset="good")
    began = time.process_time()
    learner.fit(train.take(np.sort(rows[n_valid:])), train.take(np.sort(rows[:n_valid])), seed=seed)
    trained = time.process_time()
    log_proba = learner.predict_log_proba(test)
    return log_proba, trained - began, time.process_time() - trained


def of_pool(train: Batch, test: Batch, seed: int) -> tuple[np.ndarray, float, float]:
    """Return the same of the small networks; each leaves out a tenth of the showers of its own to stop early."""
    began = time.process_time()
    quantiles = QuantileTransformer(output_distribution="normal", n_quantiles=200, random_state=seed)
    inputs = make_pipeline(SimpleImputer(keep_empty_features=True), quantiles)
    table = inputs.fit_transform(train.table).astype(np.float32)
    networks = [
        MLPClassifier(
            (UNITS,), alpha=L2, batch_size=256, learning_rate_init=2e-3, max_iter=40, early_stopping=True,
            random_state=NETWORKS * seed + k,
        ).fit(table, train.labels)
        for k in range(NETWORKS)
    ]  # fmt: skip
    trained = time.process_time()
    new = inputs.transform(test.table).astype(np.float32)
    mean = np.mean([np.log(network.predict_proba(new).clip(1e-12)) for network in networks], axis=0)
    log_proba = mean - np.log(np.exp(mean).sum(axis=1, keepdims=True))
    return log_proba, trained - began, time.process_time() - trained


def main() -> None:
    """Print a row for each number of training showers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for simulated showers")
    parser.add_argument("--task", choices=["composition", "gamma"], default="composition")
    parser.add_argument("--world", default="harder")
    parser.add_argument("--showers", type=int, nargs="+", default=[8000, 60000])
    parser.add_argument("--test", type=int, default=40000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    classes = TASKS[options.task].classes
    entry = spec("mlp")
    assert isinstance(entry.features, str)
    test, _ = drawn(options.world, options.task, options.test, seed=2, split="test", data=options.work)
    columns = feature_set(entry.features, test.columns)
    labels = np.asarray(test.labels)
    test = only(test, columns)
    new = Batch(index=test.index, table=test.table, columns=test.columns, array=test.array)
    print("| task | showers | `mlp` | pool | pool minus `mlp` | ratio of training | of predicting |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for n in options.showers:
        found = []
        for seed in range(1, options.seeds + 1):
            train, _ = drawn(options.world, options.task, n, seed=10 + seed, split="train", data=options.work)
            train = only(train, columns)
            found.append((of_mlp(train, new, classes, seed), of_pool(train, new, seed)))
        losses = np.array([[event_losses(log_proba, labels) for log_proba, *_ in pair] for pair in found])
        gaps = losses[:, 1] - losses[:, 0]
        error = np.hypot(
            gaps.mean(axis=0).std(ddof=1) / len(labels) ** 0.5, gaps.mean(axis=1).std(ddof=1) / len(gaps) ** 0.5
        )
        ratios = [np.median([pair[1][k] / pair[0][k] for pair in found]) for k in (1, 2)]
        means = " | ".join(f"{x:.4f}" for x in losses.mean(axis=(0, 2)))
        print(
            f"| {options.task} | {n:,} | {means} | {gaps.mean():+.4f} ± {error:.4f} | "
            f"{ratios[0]:.2f} | {ratios[1]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
