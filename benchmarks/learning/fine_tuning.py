"""How the pretrained network should be fine-tuned: one setting changed at a time, in random worlds.

    python benchmarks/learning/fine_tuning.py --out fine_tuning
    python benchmarks/learning/fine_tuning.py --out fine_tuning --seeds 5,6 --only "dropout 0.1;body_rate 0.3"
    python benchmarks/learning/fine_tuning.py --out fine_tuning --train 5000 --fits 3 --only "body_rate 0.3, epochs 4"
    python benchmarks/learning/fine_tuning.py --out ft --seeds 21,22,23 --only "" --weights other.safetensors

The worlds are drawn from the priors of pretraining, one a seed, and are used for nothing else, so that the choice says
nothing about the worlds in which the gain is measured (``benchmarks/learning/pretraining.py``). Printed are log-losses
on test showers and paired differences to the settings as they are and to ``mlp`` from scratch on the same training
showers: means over the worlds, ± standard errors of the test showers. With ``--fits K`` what ships is judged: the
network with the mean weights of K fits, each of which leaves another K-th of the training showers out. With
``--weights`` other pretrained weights are judged beside those that ship.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.learning.pretraining import VALID_SHARE, only
from benchmarks.shared.drawn import CORE, RANDOM, drawn
from showerstack.features.catalogue import feature_set
from showerstack.models.base.inputs import targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.files import hash_file
from showerstack.showers.schema import TASKS
from showerstack.showers.simulation.primaries import MODELS
from showerstack.stacking.run.chain import average_of

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"learning_rate": 5e-4},
    {"learning_rate": 2e-3},
    {"dropout": 0.1},
    {"dropout": 0.2},
    {"body_rate": 0.3},
    {"body_rate": 1.0, "learning_rate": 3e-4},
    {"epochs": 5},
    {"epochs": 20},
    {"weight_decay": 0.1},
    {"batch_size": 128, "learning_rate": 5e-4},
    {"batch_size": 128},
    {"batch_size": 64},
    {"body_rate": 0.3, "epochs": 4},
    {"body_rate": 1.0, "epochs": 4},
    {"body_rate": 0.3, "batch_size": 128},
    {"body_rate": 0.3, "epochs": 4, "batch_size": 128},
    {"body_rate": 1.0, "epochs": 4, "batch_size": 128},
    {"dropout": 0.1, "body_rate": 0.3},
    {"truth_weight": 0.02},
    {"truth_weight": 0.1},
    {"truth_weight": 0.3},
)


def log_posteriors(
    name: str, changes: dict[str, Any], train: Batch, test: Batch, *, task: str, seed: int, n_fits: int = 1
) -> np.ndarray:
    """Return what a learner trained with changed settings says of the test showers: of one fit, or of several."""
    entry = spec(name)
    assert isinstance(entry.features, str)
    columns = feature_set(entry.features, train.columns)
    order = np.random.default_rng(seed).permutation(len(train))
    new = replace(only(test, columns), targets=None)
    fits = []
    for k in range(n_fits):
        rows = order if n_fits == 1 else np.delete(order, np.arange(k, len(order), n_fits))
        n_valid = round(VALID_SHARE * len(rows))
        learn, valid = (only(train.take(np.sort(part)), columns) for part in (rows[n_valid:], rows[:n_valid]))
        fits.append(create(entry, TASKS[task].classes, overrides=changes).fit(learn, valid, seed=seed + k))
    if entry.one_network and n_fits > 1:
        fits = [type(fits[0]).averaged(fits)]
    return average_of(np.stack([fit.predict_log_proba(new) for fit in fits]))


def with_targets(batch: Batch, truth: pl.DataFrame) -> Batch:
    """Return the same showers with their true quantities as targets."""
    return replace(batch, targets=targets_of(truth, *(truth[name].to_numpy() for name in CORE)))


def in_words(changes: dict[str, Any]) -> str:
    """Return the changed settings as the table names them."""
    if "weights" in changes:
        return f"weights of {changes['weights']}"
    return ", ".join(f"{name} {value:g}" for name, value in changes.items()) or "as it is"


def difference(losses: list[np.ndarray], references: list[np.ndarray]) -> str:
    """Return the mean of the worlds' paired differences ± its standard error."""
    gaps = [one - other for one, other in zip(losses, references, strict=True)]
    error = sum(gap.var() / len(gap) for gap in gaps) ** 0.5 / len(gaps)
    return f"{np.mean([gap.mean() for gap in gaps]):+.4f} ± {error:.4f}"


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="composition")
    parser.add_argument("--model", choices=("mix", *MODELS), default="mix", help="hadronic model of the worlds")
    parser.add_argument("--train", type=int, default=15_000)
    parser.add_argument("--test", type=int, default=20_000)
    parser.add_argument("--seeds", default="5", help="random worlds, as 5,6")
    parser.add_argument("--fits", type=int, default=1, help="fits whose weights are averaged")
    parser.add_argument("--only", help="rows of the table beside 'as it is', separated by semicolons")
    parser.add_argument("--weights", type=Path, nargs="*", default=[], help="other pretrained weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(x) for x in options.seeds.split(",")]
    worlds = [
        tuple(
            with_targets(*drawn(RANDOM, options.task, n, seed=seed, split=split, data=options.out, model=options.model))
            for split, n in (("train", options.train), ("test", options.test))
        )
        for seed in seeds
    ]
    wanted = None if options.only is None else ["as it is", *options.only.split(";")]
    others = [{"weights": str(file), "weights_sha256": hash_file(file)} for file in options.weights]
    rows: list[tuple[str, dict[str, Any]]] = [("mlp", {}), *(("pretrained", row) for row in (*CHANGES, *others))]
    print("| fine-tuning | log-loss in each world | against as it is | against `mlp` from scratch |\n|---|---|---|---|")
    posteriors: dict[str, list[np.ndarray]] = {}
    content: dict[str, list[np.ndarray]] = {}

    def add_row(words: str, log_p: list[np.ndarray]) -> None:
        posteriors[words] = log_p
        content[words] = [
            -answers[np.arange(len(test)), test.labels] for answers, (_, test) in zip(log_p, worlds, strict=True)
        ]
        means = ", ".join(f"{loss.mean():.4f}" for loss in content[words])
        gaps = [difference(content[words], content[to]) if to in content else "" for to in ("as it is", "`mlp`")]
        print(f"| {words} | {means} | {gaps[0]} | {gaps[1]} |", flush=True)

    for learner, changes in rows:
        words = "`mlp`" if learner == "mlp" else in_words(changes)
        if wanted is None or learner == "mlp" or words in wanted or changes in others:
            each = zip(worlds, seeds, strict=True)
            options_of_fit = {"task": options.task, "n_fits": options.fits}
            add_row(
                words, [log_posteriors(learner, changes, *sets, seed=seed, **options_of_fit) for sets, seed in each]
            )
    if others:
        pooled = [posteriors[in_words(changes)] for changes in ({}, *others)]
        add_row("all weights, averaged predictions", [average_of(np.stack(one)) for one in zip(*pooled, strict=True)])


if __name__ == "__main__":
    main()
