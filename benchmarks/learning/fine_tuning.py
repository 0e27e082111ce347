"""How the pretrained network should be fine-tuned: one setting changed at a time, in a random world.

    python benchmarks/learning/fine_tuning.py --out fine_tuning

The world is drawn from the priors of pretraining and is used for nothing else, so that the choice says nothing about
the worlds in which the gain is measured (``benchmarks/learning/pretraining.py``). Printed are log-losses on test
showers and paired differences to ``mlp`` from scratch on the same training showers (± standard errors).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.pretraining import VALID_SHARE, only
from benchmarks.shared.drawn import RANDOM, drawn
from features.catalogue import feature_set
from models.base import Batch
from models.registry import create, spec
from showers.schema import COMPOSITION

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"learning_rate": 5e-4},
    {"learning_rate": 2e-3},
    {"dropout": 0.0},
    {"dropout": 0.2},
    {"body_rate": 0.1},
    {"body_rate": 1.0, "learning_rate": 3e-4},
    {"epochs": 5},
    {"epochs": 20},
    {"weight_decay": 0.1},
    {"batch_size": 128, "learning_rate": 5e-4},
)


def losses(name: str, changes: dict[str, Any], train: Batch, test: Batch, seed: int) -> np.ndarray:
    """Return the test showers' log-losses of a learner trained with changed settings."""
    entry = spec(name)
    assert isinstance(entry.features, str)
    assert test.labels is not None
    columns = feature_set(entry.features, train.columns)
    rows = np.random.default_rng(seed).permutation(len(train))
    n_valid = round(VALID_SHARE * len(train))
    learn, valid = (only(train.take(np.sort(part)), columns) for part in (rows[n_valid:], rows[:n_valid]))
    learner = create(entry, COMPOSITION.classes, overrides=changes).fit(learn, valid, seed=seed)
    return -learner.predict_log_proba(only(test, columns))[np.arange(len(test)), test.labels]


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=15_000)
    parser.add_argument("--test", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (
        drawn(RANDOM, COMPOSITION.name, n, seed=options.seed, split=split, data=options.out)[0]
        for split, n in (("train", options.train), ("test", options.test))
    )
    reference = losses("mlp", {}, train, test, options.seed)
    print("| fine-tuning | log-loss | against `mlp` from scratch |\n|---|---|---|")
    print(f"| `mlp` | {reference.mean():.4f} | |")
    for changes in CHANGES:
        found = losses("pretrained", changes, train, test, options.seed)
        gap = found - reference
        words = ", ".join(f"{name} {value:g}" for name, value in changes.items()) or "as it is"
        error = gap.std() / len(gap) ** 0.5
        print(f"| {words} | {found.mean():.4f} | {gap.mean():+.4f} ± {error:.4f} |", flush=True)


if __name__ == "__main__":
    main()
