"""What training events that fail the evaluation cuts should count: weights 0, 0.3 and 1, judged on events that pass.

    python benchmarks/pretraining/off_cut.py --out off_cut

Training sets without cuts, as in the v2 protocol, of a random world that serves nothing else; early stopping and test
use events that pass the test's cuts alone. Printed are log-losses and paired differences to weight 1 (± standard
errors of the test showers).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning.pretraining import VALID_SHARE, only
from benchmarks.pretraining.estimates import scalars
from benchmarks.shared.drawn import COLUMNS, GROUPS, RANDOM, RANDOM_WORLDS, drawn
from showerstack.features.catalogue import feature_set
from showerstack.features.compute import compute_events
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.stream import draw_world
from showerstack.models.registry import create, spec
from showerstack.showers import protocols
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import accepted

WEIGHTS = (1.0, 0.3, 0.0)


def without_cuts(n: int, seed: int) -> tuple[Batch, np.ndarray]:
    """Return ``n`` training showers of random world ``seed`` without cuts, and which of them pass the test's, (n,)."""
    settings, _ = draw_world(np.random.default_rng([seed, RANDOM_WORLDS]))
    tables, labels = [], []
    for events in accepted(BlockJob(COMPOSITION, "train", seed, "mix", "none", settings), n, 1):
        grids = events.grids.astype(np.float16).astype(np.float32)
        visited = events.scalars.astype(np.float16).astype(np.float32)
        tables.append(compute_events(grids, visited, None, GROUPS).select(COLUMNS).to_numpy())
        labels.append(events.labels)
    table = np.asfortranarray(np.concatenate(tables))
    batch = Batch(np.arange(n), table=table, columns=COLUMNS, labels=np.concatenate(labels).astype(np.int64))
    return batch, protocols.TEST.mask(protocols.scalar_frame(scalars(batch), None))


def losses(name: str, weight: float, events: Batch, passing: np.ndarray, test: Batch, seed: int) -> np.ndarray:
    """Return the test showers' log-losses of a learner whose events off the cuts have a weight."""
    entry = spec(name)
    assert isinstance(entry.features, str)
    assert test.labels is not None
    columns = feature_set(entry.features, events.columns)
    good = np.random.default_rng(seed).permutation(np.flatnonzero(passing))
    n_valid = round(VALID_SHARE * len(good))
    rows = good[n_valid:] if weight == 0 else np.concatenate([good[n_valid:], np.flatnonzero(~passing)])
    rows = np.sort(rows)
    train = replace(only(events.take(rows), columns), weights=np.where(passing[rows], 1.0, weight))
    valid = only(events.take(np.sort(good[:n_valid])), columns)
    learner = create(entry, COMPOSITION.classes).fit(train, valid, seed=seed)
    return -learner.predict_log_proba(only(test, columns))[np.arange(len(test)), test.labels]


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=30_000)
    parser.add_argument("--test", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--learners", default="mlp,pretrained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    events, passing = without_cuts(options.train, options.seed)
    test = drawn(RANDOM, COMPOSITION.name, options.test, seed=options.seed, split="test", data=options.out)[0]
    print(f"{len(events):,} training showers, {passing.sum():,} pass the cuts; {len(test):,} test showers\n")
    print("| learner | weight off the cuts | log-loss | against weight 1 |\n|---|---|---|---|")
    for name in options.learners.split(","):
        reference = None
        for weight in WEIGHTS:
            loss = losses(name, weight, events, passing, test, options.seed)
            reference = loss if reference is None else reference
            gap = loss - reference
            words = "" if loss is reference else f"{gap.mean():+.4f} ± {gap.std() / len(gap) ** 0.5:.4f}"
            print(f"| {name} | {weight:g} | {loss.mean():.4f} | {words} |", flush=True)


if __name__ == "__main__":
    main()
