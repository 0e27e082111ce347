"""Is the gain that a run states the gain that it ships? Gate, holdout and calibration judged by labelled test events.

    python benchmarks/learning/judging.py --work bench/judging --seeds 1,2,3

Per seed two runs on the same showers: one with the outer holdout, where the average of fits is judged, and one
without, where single fits are judged out-of-fold. Killed and started again, it continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.learning.stack import markdown
from benchmarks.shared.samples import sample
from showerstack.runtime.context import Context, bar
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import SOURCE_FILE, TASKS, Task
from showerstack.stacking.fit.tasks import outer_log_proba, test_log_proba
from showerstack.stacking.meta.calibration import fit_calibrator
from showerstack.stacking.meta.softmax import fit_pool, pooled
from showerstack.stacking.run.chain import average_of
from showerstack.stacking.run.config import StackConfig
from showerstack.stacking.run.read import finished_learners
from showerstack.stacking.train import stack

LEARNERS = ("mlp", "catboost", "quadratic_logit")
HEAD = ("seed", "quantity", "nats", "± (standard error, or 95 % interval)")


def main() -> None:
    """Run every seed with and without the holdout, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/judging"), help="folder for data and runs")
    parser.add_argument("--task", default="composition", choices=list(TASKS))
    parser.add_argument("--train", type=int, default=30_000, help="training showers under the test's cuts")
    parser.add_argument("--test", type=int, default=30_000, help="test showers")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--holdout", type=float, default=0.1)
    parser.add_argument("--preset", default="quick", help="settings of the learners")
    parser.add_argument("--learners", default=",".join(LEARNERS), help="comma-separated names")
    parser.add_argument("--world", default="default", help="simulated world")
    parser.add_argument("--seeds", default="1", help="comma-separated; showers and fits differ")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    task = TASKS[options.task]
    rows: list[list[str]] = []
    for seed in options.seeds.split(","):
        data = sample(
            task, options.work, n_train=options.train, n_test=options.test, seed=int(seed), world=options.world,
            workers=options.workers, bars=bar,
        )  # fmt: skip
        with_holdout = run(task, data, int(seed), options.holdout, options)
        without = run(task, data, int(seed), 0.0, options)
        labels = np.asarray(Dataset.open(data / f"{task.name}_test", task).labels, dtype=np.int64)
        rows += [[seed, *row] for row in measured(with_holdout, without, labels)]
    settings = read_json(data / f"{task.name}_train" / SOURCE_FILE)["settings_hash"]
    print(
        f"{task.name}: {options.train:,} training and {options.test:,} test showers of the simulated world "
        f"`{options.world}` (settings {settings[:8]}) under the test's cuts, {options.folds} folds, preset "
        f"{options.preset}, learners {options.learners.replace(',', ', ')}, holdout {options.holdout:g}.\n\n"
        + markdown(list(HEAD), rows)
    )


def run(task: Task, data: Path, seed: int, holdout: float, options: argparse.Namespace) -> Path:
    """Return the finished run with this holdout."""
    folder: Path = options.work / f"run-{data.name}-{options.folds}-{options.preset}-{holdout:g}"
    stack(
        StackConfig(
            task=task.name, data=data, run=folder, preset=options.preset, folds=options.folds, seed=seed,
            learners=tuple(options.learners.split(",")), holdout=holdout, device="cpu", workers=options.workers,
        ), Context(bars=bar))  # fmt: skip
    return folder


def measured(with_holdout: Path, without: Path, labels: np.ndarray) -> list[list[str]]:
    """Return stated and shipped gains of the stack, and what holdout and calibration cost or bring, on test events."""
    manifest = read_json(with_holdout / "manifest.json")
    gate, alone = manifest["gate"], read_json(without / "manifest.json")["gate"]
    best = gate["best_learner"]
    gain = paired_log_loss(labels, test_posterior(with_holdout, best), test_posterior(with_holdout, "stack"))
    gain_alone = paired_log_loss(
        labels, test_posterior(without, alone["best_learner"]), test_posterior(without, "stack")
    )
    cost = paired_log_loss(labels, test_posterior(with_holdout, "stack"), test_posterior(without, "stack"))
    first, after = calibration_first(with_holdout, manifest)
    return [
        [f"gain of the stack over {best}, on test events", *_interval(gain)],
        ["- stated by the gate: holdout, with single fits as control", *_error(gate, "gain", "standard_error")],
        ["- stated by the holdout alone", *_error(gate, "holdout_gain", "holdout_standard_error")],
        ["- stated by single fits out-of-fold", *_error(gate, "single_fit_gain", "single_fit_standard_error")],
        [f"without a holdout: gain over {alone['best_learner']}, on test events", *_interval(gain_alone)],
        ["- stated by its gate: single fits out-of-fold", *_error(alone, "gain", "standard_error")],
        ["stack with the holdout minus stack trained on all, on test events", *_interval(cost)],
        [
            "pool of learners calibrated one by one minus pool calibrated once, on test events",
            *_interval(paired_log_loss(labels, first, after)),
        ],
    ]


def calibration_first(folder: Path, manifest: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pool on test events, learners calibrated one by one before it and not; both once more after it."""
    names = finished_learners(manifest)
    n_fits = manifest["judged"]["fits"]
    train = Path(manifest["data"]["train"])
    every = np.asarray(Dataset.open(train, TASKS[manifest["task"]]).labels, dtype=np.int64)
    frames = [pl.read_parquet(folder / "oof" / f"{name}.parquet", glob=False) for name in names]
    folds = frames[0]["fold"].to_numpy()
    out_of_fold = [frame.select(pl.selectors.starts_with("logp_")).to_numpy() for frame in frames]
    inner, outer = (folds >= 0) & np.isfinite(out_of_fold[0][:, 0]), (folds < 0) & np.isfinite(out_of_fold[0][:, 0])
    results = []
    for before in (True, False):
        held_out, holdout, test = [], [], []
        for name, everywhere in zip(names, out_of_fold, strict=True):
            z = everywhere[inner]
            calibrator = fit_calibrator(z, every[inner], folds[inner]) if before else lambda log_proba: log_proba
            held_out.append(calibrator(z))
            for kept, fits in ((holdout, outer_log_proba), (test, test_log_proba)):
                kept.append(average_of(np.stack([calibrator(fit) for fit in fits(folder, name, range(n_fits))])))
        weights, bias = fit_pool(np.stack(held_out), every[inner])
        judged = pooled(np.stack(holdout), weights, bias)
        final = fit_calibrator(judged, every[outer], np.arange(int(outer.sum())) % 5)
        results.append(final(pooled(np.stack(test), weights, bias)))
    return results[0], results[1]


def test_posterior(folder: Path, name: str) -> np.ndarray:
    """Return a system's test log-posteriors (N, C)."""
    with np.load(folder / "test" / f"{name}.npz", allow_pickle=False) as stored:
        return np.asarray(stored["log_proba"])


def _interval(paired: Paired) -> list[str]:
    return [f"{paired.difference:+.5f}", f"[{paired.interval.low:+.5f}, {paired.interval.high:+.5f}]"]


def _error(gate: Mapping[str, float], value: str, error: str) -> list[str]:
    return [f"{gate[value]:+.5f}", f"± {gate[error]:.5f}"]


if __name__ == "__main__":
    main()
