"""What it costs to give each fit fewer training events, learner by learner, paired.

    python -m benchmarks.learning.row_caps DATA --caps 100000 --learners mlp,lightgbm --folds 1

DATA holds ``composition_train`` and its feature table is made if it is missing. A fit with all training events of a
fold (or ``--rows`` of them) stands against fits that get fewer, those under the evaluation cuts first, as
``stacking/config.py`` caps them. Printed are training events, processor time, log-loss of the predicted fold, and the
difference of the log-losses with its 95 % interval over its events. Finished fits are kept in ``--work``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from showerstack.runtime.context import Context
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.stacking.config import StackConfig
from showerstack.stacking.fits import OOF_FILE, TASK_FILE, FoldTask, do_task, split_rows
from showerstack.stacking.job import fold_tasks, make_folds, shower_job

GOOD = "lightgbm,xgboost,catboost,mlp,pretrained,lenet_fits"


def tasks_of(data: Path, work: Path, learner: str, rows: int, folds: int) -> list[FoldTask]:
    """Return the first folds of a learner with so many training events; no test events are predicted."""
    config = StackConfig(
        task="composition", data=data, run=work / f"{learner}-{rows}", learners=(learner,), rows={learner: rows}
    )
    config.run.mkdir(parents=True, exist_ok=True)
    job = shower_job(config, Context(), strict=False)
    make_folds(job)
    return [replace(task, test=None) for task in fold_tasks(job)[:folds]]


def log_proba_and_cost(tasks: list[FoldTask]) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Fit what is missing; return labels, (n, C) log-probabilities of the predicted folds, rows and CPU s of a fit."""
    for task in tasks:
        if not task.is_done():
            do_task(task)
    records = [read_json(task.folder / TASK_FILE) for task in tasks]
    labels = np.concatenate([task.train.labels()[split_rows(task)[2]] for task in tasks])
    parts = [np.load(task.folder / OOF_FILE)["log_proba"] for task in tasks]
    cost = float(np.mean([record["cost"]["cpu_s"] for record in records]))
    return labels, np.concatenate(parts), int(np.mean([record["n_train"] for record in records])), cost


def main() -> None:
    """Fit what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--caps", type=int, nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=10**9, help="events of the fit that others stand against")
    parser.add_argument("--learners", default=GOOD)
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("bench/row_caps"))
    options = parser.parse_args()
    print("| learner | events of a fit | CPU s | log-loss | difference |\n|---|---:|---:|---:|---|")
    for learner in options.learners.split(","):
        wide = None
        for rows in (options.rows, *options.caps):
            tasks = tasks_of(options.data, options.work, learner, rows, options.folds)
            labels, log_proba, n, cost = log_proba_and_cost(tasks)
            loss = event_losses(log_proba, labels).mean()
            wide = log_proba if wide is None else wide
            difference = ""
            if log_proba is not wide:
                paired = paired_log_loss(labels, log_proba, wide)
                difference = f"{paired.difference:+.4f} [{paired.interval.low:+.4f}, {paired.interval.high:+.4f}]"
            print(f"| `{learner}` | {n:,} | {cost:,.0f} | {loss:.4f} | {difference} |", flush=True)


if __name__ == "__main__":
    main()
