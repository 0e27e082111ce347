"""What a soft tail of a network's inputs is worth at the highest energies, beside inputs cut at four widths.

    OMP_NUM_THREADS=1 python benchmarks/learning/input_tails.py --work bench/tails
    OMP_NUM_THREADS=1 python benchmarks/learning/input_tails.py --work bench/tails --weights other.safetensors

The learner ``mlp`` is trained twice on the same showers with the same seed; only what becomes of a standardised input
far from the centre differs (models/base/inputs.py). Training showers have the default world's spectrum up to lg E =
17.5; of the test showers most are thrown from 16 on, so that the bins at the end hold enough of them. Differences are
paired, soft tail minus cut, with 95 % intervals from the number of test showers: one seed, so what another one would
change is not in them. ``cut`` is the share of showers whose reconstructed E, Ne or Nmu is beyond the cut. With
``--weights``, ``pretrained`` is fine-tuned from the shipped weights and from those, which have the cut, instead.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.stack import markdown
from showerstack.features.build import build_table
from showerstack.models.base.inputs import CLIP, CUT, InputTransform, column_values, signed_log
from showerstack.models.base.learner import Batch
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.physics import TabularMLP
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.registry import spec
from showerstack.runtime.context import Context, bar
from showerstack.runtime.files import hash_file
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES
from showerstack.showers.simulation import load_settings, simulate
from showerstack.stacking.inputs.events import ShowerEvents

EDGES = (14.5, 15.5, 16.0, 16.5, 17.0, 17.5)
HIGHEST = 17.5
TEST_SPECTRUM = {"low_share": 0.25, "low_lg_energy_max": 16.0, "high_share": 0.75, "high_lg_energy_min": 16.0}
VALID_SHARE = 0.1
SIZES = ("E", "Ne", "Nmu")
HEAD = ("trained on", "lg E", "test showers", "cut, %", "log-loss with cut", "soft tail - cut, nats")


class CutInputs(TabularMLP):
    """The same network with inputs cut at :data:`CLIP` widths."""

    def _inputs_for(self, train: Batch) -> InputTransform:
        return InputTransform.fit(train, self._columns(train), tail=CUT)


def events(folder: Path, **options: Any) -> tuple[ShowerEvents, np.ndarray, np.ndarray]:
    """Return simulated showers of the default world up to :data:`HIGHEST`, their labels and reconstructed lg E."""
    world = load_settings("default")
    changes = {"lg_energy_max": HIGHEST, **options.pop("spectrum", {})}
    settings = world.model_copy(update={"spectrum": world.spectrum.model_copy(update=changes)})
    path, _ = simulate(COMPOSITION, folder, n_test=50, train_cuts="test", settings=settings, bars=bar, **options)
    data = Dataset.open(path, COMPOSITION)
    table = build_table(path, ctx=Context(bar, device="cpu", workers=options["workers"]))
    lg_e = np.asarray(data.scalars[:, SCALAR_NAMES.index("E")], dtype=np.float64)
    return ShowerEvents(path, table.folder, COMPOSITION, labelled=True), np.asarray(data.labels, np.int64), lg_e


def learners(weights: Path | None) -> tuple[NetworkLearner, NetworkLearner]:
    """Return the learner with the soft tail and that with the cut."""
    if weights is None:
        return TabularMLP(COMPOSITION.classes), CutInputs(COMPOSITION.classes)
    before = {"weights": str(weights), "weights_sha256": hash_file(weights)}
    return PretrainedLearner(COMPOSITION.classes), PretrainedLearner(COMPOSITION.classes, before)


def main() -> None:
    """Train both ways at every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/tails"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 15_000], help="training showers")
    parser.add_argument("--test", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--weights", type=Path, help="pretrained weights whose inputs are cut")
    options = parser.parse_args()
    train, labels, _ = events(
        options.work / "train", n_train=max(options.sizes), seed=options.seed, workers=options.workers
    )
    test, truth, lg_e = events(
        options.work / "test", n_train=options.test, seed=options.seed + 1, workers=options.workers,
        spectrum=TEST_SPECTRUM,
    )  # fmt: skip
    columns = train.columns_for(spec("pretrained" if options.weights else "mlp"))
    new = test.batch(np.arange(len(truth)), columns, grids=False)
    rows = []
    for size in options.sizes:
        order = np.random.default_rng([options.seed, size]).permutation(len(labels))[:size]
        stop, rest = np.split(order, [round(VALID_SHARE * size)])
        learning, stopping = (
            replace(train.batch(part, columns, grids=False), labels=labels[part]) for part in (rest, stop)
        )
        both, beyond = learners(options.weights), np.zeros(len(truth), dtype=bool)
        log_proba = [learner.fit(learning, stopping, seed=options.seed).predict_log_proba(new) for learner in both]
        inputs = both[1].inputs_
        assert inputs is not None
        for name in set(SIZES) & set(inputs.plain):
            k = inputs.plain.index(name)
            z = (signed_log(column_values(new, name), inputs.log_scale[k]) - inputs.centre[k]) / inputs.width[k]
            beyond |= np.abs(z) > CLIP
        for low, high in pairwise(EDGES):
            part = (lg_e >= low) & (lg_e < high)
            soft, cut = (answers[part] for answers in log_proba)
            paired = paired_log_loss(truth[part], soft, cut)
            loss = -cut[np.arange(part.sum()), truth[part]].mean()
            span = f"[{paired.interval.low:+.4f}, {paired.interval.high:+.4f}]"
            rows.append(
                [f"{size:,}", f"{low:g} to {high:g}", f"{part.sum():,}", f"{100 * beyond[part].mean():.0f}",
                 f"{loss:.4f}", f"{paired.difference:+.4f} {span}"]
            )  # fmt: skip
            print(*rows[-1], sep=" | ", flush=True)
    print(f"\n{markdown(list(HEAD), rows)}\n")


if __name__ == "__main__":
    main()
