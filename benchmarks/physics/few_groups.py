"""What an analysis with two, three or four mass groups says of a nature that has five.

``python -m benchmarks.physics.few_groups --store`` trains one learner on the showers of some groups, and solves
mean(p) = M w for their shares w in samples of all five, with p the posteriors and M their means by true group. Sets are
kept below OUT.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.learning.pretraining import only
from benchmarks.shared.drawn import drawn
from benchmarks.shared.results import HELP, store
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.showers.kascade import LN_MASSES
from showerstack.showers.schema import COMPOSITION

LEARNER = "quadratic_logit"
ANALYSES = ((0, 4), (0, 2, 4), (0, 1, 2, 4), (0, 1, 2, 3, 4))
NATURES = {
    "equal shares": (0.2, 0.2, 0.2, 0.2, 0.2),
    "light": (0.40, 0.30, 0.15, 0.10, 0.05),
    "heavy": (0.05, 0.15, 0.20, 0.25, 0.35),
    "helium and carbon": (0.0, 0.5, 0.5, 0.0, 0.0),
}
"""Shares of proton, helium, carbon, silicon and iron."""
LIGHT = 2
"""Groups that are light: proton and helium."""
SAMPLES = 200
"""Samples that are drawn of a nature, for errors."""


def posteriors(groups: tuple[int, ...], train: Batch, test: Batch, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the posteriors (N, C) of all test showers by an analysis that knows some groups, and M (C, C)."""
    assert train.labels is not None
    assert test.labels is not None
    mine = train.take(np.isin(train.labels, groups))
    mine.labels[:] = np.searchsorted(groups, mine.labels)
    order = np.random.default_rng(seed).permutation(len(mine))
    valid, learned = mine.take(np.sort(order[: len(mine) // 7])), mine.take(np.sort(order[len(mine) // 7 :]))
    classes = tuple(COMPOSITION.classes[k] for k in groups)
    learner = create(spec(LEARNER), classes, n_rows=len(learned)).fit(learned, valid, seed=seed)
    bare = Batch(test.index, table=test.table, columns=test.columns, array=test.array)
    proba = np.exp(learner.predict_log_proba(bare))
    return proba, np.stack([proba[test.labels == k].mean(axis=0) for k in groups], axis=1)


def rows(train: Batch, test: Batch, n_events: int, seed: int) -> list[str]:
    """Return the table: by analysis and nature the bias of mean ln A and of the light share, and their scatter."""
    labels = test.labels
    assert labels is not None
    lines = [
        f"| groups of the analysis | nature | true mean ln A | bias of mean ln A | true light share, % "
        f"| bias of the light share, % | scatter of both with {n_events:,} events |",
        "|" + "---|" * 7,
    ]
    rng = np.random.default_rng(seed)
    for groups in ANALYSES:
        proba, means = posteriors(groups, train, test, seed)
        inverse, ln_a, light = np.linalg.inv(means), LN_MASSES[list(groups)], np.array(groups) < LIGHT
        for nature, shares in NATURES.items():
            weight = np.array(shares)[labels] / np.bincount(labels)[labels]
            whole = inverse @ (weight @ proba)
            drawn_means = [proba[rng.choice(len(labels), n_events, p=weight)].mean(axis=0) for _ in range(SAMPLES)]
            scatter = np.std([inverse @ one for one in drawn_means] @ np.column_stack([ln_a, light]), axis=0)
            truth = np.array(shares) @ LN_MASSES, 100 * sum(shares[:LIGHT])
            bias = whole @ ln_a - truth[0], 100 * whole @ light - truth[1]
            lines.append(
                f"| {', '.join(COMPOSITION.classes[k] for k in groups)} | {nature} | {truth[0]:.2f} | {bias[0]:+.2f} "
                f"| {truth[1]:.0f} | {bias[1]:+.0f} | {scatter[0]:.2f}, {100 * scatter[1]:.1f} |"
            )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/few_groups"))
    parser.add_argument("--train", type=int, default=30_000)
    parser.add_argument("--test", type=int, default=30_000)
    parser.add_argument("--events", type=int, default=2_000, help="of a sample")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    learner = spec(LEARNER)
    assert isinstance(learner.features, str)
    sets = []
    for n, split in ((given.train, "train"), (given.test, "test")):
        batch = drawn("default", "composition", n, seed=given.seed, split=split, data=given.out)[0]
        sets.append(only(batch, feature_set(learner.features, batch.columns)))
    lines = rows(sets[0], sets[1], given.events, given.seed)
    print("\n".join(lines))
    if given.store:
        words = f"`{LEARNER}`, {given.train:,} training showers of five groups, of which an analysis takes its own.\n\n"
        store("few_groups", "What few mass groups say of five", words + "\n".join(lines))


if __name__ == "__main__":
    main()
