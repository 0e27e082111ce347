"""Our calibrators beside each other and, where it is installed, beside the structured scaling of probmetrics.

    python benchmarks/learning/calibrators.py --work bench/calibrators --seed 2

LightGBM and a quadratic logit are trained on simulated showers; their posteriors are calibrated on held-out ones, few
and many, and judged on test showers: log-loss minus that without calibration, and minus that of our own choice
(paired, with standard errors), seconds of the fit in brackets. Structured scaling: E. Berta et al., 2025
(arXiv:2511.03685), ``pip install probmetrics``. Energy is its 12 classes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.learning.stack import markdown
from benchmarks.shared.samples import sample
from showerstack.features.build import build_table
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.paired import paired_mean
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import ENERGY, SCALAR_NAMES, TASKS, Task, bins
from showerstack.stacking.meta.calibration import KINDS, fit_calibrator
from showerstack.stacking.meta.softmax import log_loss_per_event

LEARNERS = ("lightgbm", "quadratic_logit")
N_BINS = 12
Fitted = Callable[[np.ndarray], np.ndarray]


def structured(method: str) -> Callable[[np.ndarray, np.ndarray], Fitted]:
    """Return the fit of structured vector (``svs``) or matrix scaling (``sms``) as a map of log-probabilities."""

    def fit(log_proba: np.ndarray, labels: np.ndarray) -> Fitted:
        from probmetrics.calibrators import get_calibrator

        calibrator = get_calibrator(method, **{f"{method}_print_init_info": False})
        calibrator.fit(np.exp(log_proba), labels)
        return lambda z: np.log(np.maximum(calibrator.predict_proba(np.exp(z)), 1e-300))

    return fit


def ours(log_proba: np.ndarray, labels: np.ndarray) -> Fitted:
    """Return our calibrator, its kind chosen over five folds."""
    return fit_calibrator(log_proba, labels, np.arange(len(labels)) % 5)


def posteriors(task: Task, options: argparse.Namespace) -> tuple[dict[str, list[np.ndarray]], list[np.ndarray]]:
    """Return each learner's log-posteriors of the held-out and the test showers, and the labels of both."""
    folder = sample(
        task, options.work, n_train=options.train + max(options.held_out), n_test=options.test, seed=options.seed,
        workers=options.workers, bars=bar,
    )  # fmt: skip
    batches, labels = [], []
    for split in ("train", "test"):
        data = Dataset.open(folder / f"{task.name}_{split}", task)
        table = build_table(data.path, ctx=Context(workers=options.workers, bars=bar))
        columns = feature_set("fits", table.columns)
        batches.append(Batch(np.arange(len(table)), table=table.matrix(columns), columns=columns))
        truth = np.asarray(data.labels)
        labels.append(truth - data.scalars[:, SCALAR_NAMES.index("E")] if task is ENERGY else truth)
    if task is ENERGY:
        edges = np.quantile(labels[0], np.arange(1, N_BINS) / N_BINS)
        labels = [np.searchsorted(edges, values, side="right") for values in labels]
    everything = Batch(batches[0].index, table=batches[0].table, columns=batches[0].columns, labels=labels[0])
    order = np.random.default_rng(options.seed).permutation(len(labels[0]))
    rest, stop, held_out = np.split(order, [int(0.85 * options.train), options.train])
    result = {}
    for name in LEARNERS:
        learner = create(spec(name), bins(N_BINS) if task is ENERGY else task.classes, threads=1, preset="quick")
        learner.fit(everything.take(rest), everything.take(stop), seed=options.seed, device="cpu")
        result[name] = [learner.predict_log_proba(batch) for batch in (everything.take(held_out), batches[1])]
    return result, [labels[0][held_out], labels[1]]


def rows(task: Task, options: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows of one task."""
    fits: dict[str, Callable[[np.ndarray, np.ndarray], Fitted]] = {"ours": ours, **KINDS}
    if find_spec("probmetrics"):
        fits |= {f"probmetrics {method}": structured(method) for method in ("svs", "sms")}
    result, (known, truth) = posteriors(task, options)
    out = []
    for learner, (held_out, new) in result.items():
        for n in options.held_out:
            before = log_loss_per_event(new, truth)
            losses, row = {}, [task.name, learner, f"{n:,}"]
            for name, fit in fits.items():
                start = time.perf_counter()
                calibrator = fit(held_out[:n], known[:n])
                seconds = time.perf_counter() - start
                losses[name] = log_loss_per_event(calibrator(new), truth)
                gain = paired_mean(losses[name] - before)
                text = f"{gain.difference:+.5f} ± {gain.standard_error:.5f}"
                if name != "ours":
                    beside = paired_mean(losses[name] - losses["ours"])
                    text += f"; {beside.difference:+.5f} ± {beside.standard_error:.5f}"
                kind = f", {calibrator.kind}" if name == "ours" else ""  # type: ignore[attr-defined]
                row.append(f"{text} ({seconds:.1f} s{kind})")
            out.append(row)
            print(" | ".join(row), flush=True)
    print(markdown(["task", "learner", "held out", *fits], out))
    return out


def main() -> None:
    """Simulate where needed, train, calibrate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/calibrators"), help="keeps the simulated showers")
    parser.add_argument("--train", type=int, default=12_000)
    parser.add_argument("--held-out", type=int, nargs="+", default=[1500, 6000])
    parser.add_argument("--test", type=int, default=15_000)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    for name in options.tasks.split(","):
        rows(TASKS[name], options)


if __name__ == "__main__":
    main()
