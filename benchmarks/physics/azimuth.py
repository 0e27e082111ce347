"""What azimuths that count by the compass cost, by zenith angle: features take them from +x towards +y, of the origin.

Showers of composition up to 60 degrees of zenith, lg Ne above 4.8, are simulated. A learner that was trained on ours
predicts other showers with their azimuths as they are, and turned as a compass counts where north is 105 degrees from
+x; a second one is trained and asked on turned azimuths. Printed are differences of the log-loss to the first, paired,
with one standard error, in bands of zenith: ``python -m benchmarks.physics.azimuth --store``.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from benchmarks.shared.drawn import COLUMNS, GROUPS
from benchmarks.shared.results import HELP, store
from showerstack.features.compute import compute_events
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.registry import create, spec
from showerstack.showers.array import KASCADE
from showerstack.showers.azimuth import NORTH_FROM_X_DEG
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import accepted_events

BANDS_DEG = (0.0, 18.0, 30.0, 45.0, 60.0)
MIN_LG_NE = 4.8
ZENITH, AZIMUTH, LG_NE = 1, 2, 3
"""Columns of the scalars."""


def showers(split: str, n: int, seed: int) -> tuple[Batch, Batch, np.ndarray]:
    """Return showers with their azimuths as they are and by the compass, and zenith angles (n,) deg."""
    settings = load_settings().changed(spectrum__hadron_zenith_max_deg=BANDS_DEG[-1])
    job = BlockJob(COMPOSITION, split, seed, "qgs", "none", settings)
    tables: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    labels, zenith = [], []
    for events in accepted_events(job, n, 1):
        kept = events.scalars[:, LG_NE] > MIN_LG_NE
        scalars = events.scalars[kept].astype(np.float32)
        by_compass = scalars.copy()
        by_compass[:, AZIMUTH] = (NORTH_FROM_X_DEG - scalars[:, AZIMUTH]) % 360.0
        for table, values in zip(tables, (scalars, by_compass), strict=True):
            result = compute_events(events.grids[kept].astype(np.float32), values, None, GROUPS, KASCADE)
            table.append(result.select(COLUMNS).to_numpy())
        labels.append(events.labels[kept])
        zenith.append(scalars[:, ZENITH])
    truth = np.concatenate(labels).astype(np.int64)
    right, turned = (
        Batch(np.arange(len(truth)), table=np.asfortranarray(np.concatenate(table)), columns=COLUMNS, labels=truth)
        for table in tables
    )
    return right, turned, np.concatenate(zenith)


def trained(batch: Batch, name: str, seed: int) -> Learner:
    """Return a learner, a fifth of the showers serving to stop it."""
    order = np.random.default_rng(seed).permutation(len(batch))
    fifth = len(order) // 5
    learner = create(spec(name), COMPOSITION.classes)
    return learner.fit(batch.take(np.sort(order[fifth:])), batch.take(np.sort(order[:fifth])), seed=seed)


def losses(learner: Learner, batch: Batch) -> np.ndarray:
    """Return the log-loss of each shower (n,), nats."""
    assert batch.labels is not None
    return -learner.predict_log_proba(batch)[np.arange(len(batch)), batch.labels]


def difference(values: np.ndarray) -> str:
    """Return a mean with its standard error."""
    return f"{values.mean():+.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=40_000, help="simulated showers, before the cut on lg Ne")
    parser.add_argument("--test", type=int, default=40_000)
    parser.add_argument("--learner", default="lightgbm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    right, turned, _ = showers("train", options.train, options.seed)
    test_right, test_turned, zenith = showers("test", options.test, options.seed)
    ours, theirs = (trained(batch, options.learner, options.seed) for batch in (right, turned))
    best, asked, both = losses(ours, test_right), losses(ours, test_turned), losses(theirs, test_turned)
    lines = [
        "| zenith, deg | showers | log-loss | asked by the compass | trained and asked by it |",
        "|---|---|---|---|---|",
    ]
    for low, high in pairwise(BANDS_DEG):
        kept = (zenith >= low) & (zenith < high)
        deltas = " | ".join(difference((values - best)[kept]) for values in (asked, both))
        lines.append(f"| {low:g} to {high:g} | {kept.sum():,} | {best[kept].mean():.4f} | {deltas} |")
    text = "\n".join(lines)
    print(text)
    if options.store:
        store("azimuth", "Azimuths by the compass", text)


if __name__ == "__main__":
    main()
