"""What one run gains over another on the same training events, learner by learner, on the events held out in both.

    python benchmarks/speed/two_runs.py --first RUN --second OTHER_RUN --data data/composition_train

Both runs need the same events, seed, folds and outer holdout. Printed are log-losses and their paired differences,
second minus first, with 95 % intervals: on the outer holdout with all fits averaged and calibrated, as they ship, and
out-of-fold by single fits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import TASKS
from showerstack.stacking.fit.tasks import FOLDS_FILE, IN_EVALUATION_FILE
from showerstack.stacking.inputs.events import class_numbers
from showerstack.stacking.meta.softmax import log_loss_per_event
from showerstack.stacking.run.read import finished_learners


def _predicted(run: Path, system: str) -> np.ndarray:
    frame = pl.read_parquet(run / "oof" / f"{system}.parquet", glob=False)
    return frame.select([name for name in frame.columns if name.startswith("logp_")]).to_numpy()


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, required=True)
    parser.add_argument("--second", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the labelled training set of both")
    options = parser.parse_args()
    runs = (options.first, options.second)
    manifests = [read_json(run / "manifest.json") for run in runs]
    masks = [(np.load(run / IN_EVALUATION_FILE), np.load(run / FOLDS_FILE)[0]) for run in runs]
    if not all(np.array_equal(one, other) for one, other in zip(*masks, strict=True)):
        raise InputError(f"{options.first} and {options.second} have other events, folds or holdouts")
    labels = class_numbers(Dataset.open(options.data, TASKS[manifests[0]["task"]], labels=True))
    in_evaluation, folds = masks[0]
    names = [set(finished_learners(manifest)) for manifest in manifests]
    for name in (*sorted(names[0] & names[1]), "stack"):
        first, second = (_predicted(run, name) for run in runs)
        for what, rows in (("holdout", in_evaluation & (folds < 0)), ("out-of-fold", in_evaluation & (folds >= 0))):
            result = paired_log_loss(labels[rows], second[rows], first[rows]).as_dict()
            before, after = (log_loss_per_event(z[rows], labels[rows]).mean() for z in (first, second))
            print(
                f"{name}, {what}, {int(rows.sum()):,} events: {before:.4f} -> {after:.4f}, {result['difference']:+.4f} "
                f"[{result['interval']['low']:+.4f}, {result['interval']['high']:+.4f}]"
            )


if __name__ == "__main__":
    main()
