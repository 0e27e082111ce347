"""What a time limit costs: the same showers stacked within limits and without one, judged on the same test showers.

    OMP_NUM_THREADS=1 python benchmarks/speed/limits.py --work bench/limits --limits 4m 12m none

The first column of differences is the limited run minus the last one of the list, with 95 % intervals of a paired
bootstrap over test showers; they do not hold what another training set would change. Wall-clock adds up what all
starts took: stopped and started once more, the benchmark goes on, and a run keeps the plan that it had.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.stack import markdown
from benchmarks.shared.samples import sample
from showerstack.runtime.context import Context, bar
from showerstack.runtime.files import read_json, write_json
from showerstack.scoring import metric_for
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA, TASKS, Task
from showerstack.stacking.meta.softmax import log_loss_per_event
from showerstack.stacking.run.config import StackConfig
from showerstack.stacking.run.read import finished_learners
from showerstack.stacking.train import stack

NONE = "none"
HEAD = (
    "limit", "wall s", "CPU s", "learners, folds", "log-loss of the stack", "minus the last row", "its best learner",
    "metric minus the last row",
)  # fmt: skip


def main() -> None:
    """Run every limit and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/limits"), help="folder for data and runs")
    parser.add_argument("--task", default="composition", choices=list(TASKS))
    parser.add_argument("--train", type=int, default=24_000, help="training showers under the test's cuts")
    parser.add_argument("--test", type=int, default=60_000, help="test showers")
    parser.add_argument("--preset", default="good")
    parser.add_argument("--limits", nargs="+", default=["4m", "12m", NONE], help=f"such as 12m, or {NONE}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    task = TASKS[options.task]
    data = sample(
        task, options.work, n_train=options.train, n_test=options.test, seed=options.seed, workers=options.workers,
        bars=bar,
    )  # fmt: skip
    runs = {limit: finished(task, data, limit, options) for limit in options.limits}
    labels = np.asarray(Dataset.open(data / f"{task.name}_test", task).labels, dtype=np.int64)
    last = runs[options.limits[-1]]
    rows = [row(task, limit, run, last, labels) for limit, run in runs.items()]
    print(
        f"{task.name}: {options.train:,} training and {options.test:,} test showers under the cuts, {options.preset}\n"
    )
    print(markdown(list(HEAD), rows))
    for limit, run in runs.items():
        print(f"{limit}: {plan_of(read_json(run / 'manifest.json'))}")


def finished(task: Task, data: Path, limit: str, options: argparse.Namespace) -> Path:
    """Return the finished run of one limit; what it took is added up over all starts."""
    folder: Path = options.work / f"run-{data.name}-{options.preset}-{limit}"
    file = options.work / f"{folder.name}.json"
    before = read_json(file)["wall_s"] if file.exists() else 0.0
    if (folder / "manifest.json").exists() and read_json(folder / "manifest.json").get("complete"):
        return folder
    begun = time.perf_counter()
    try:
        stack(
            StackConfig(
                task=task.name, data=data, run=folder, preset=options.preset, seed=options.seed, device="cpu",
                workers=options.workers, time_limit=None if limit == NONE else limit,
            ), Context(bars=bar))  # fmt: skip
    finally:
        write_json(file, {"wall_s": before + time.perf_counter() - begun})
    return folder


def row(task: Task, limit: str, run: Path, last: Path, labels: np.ndarray) -> list[str]:
    """Return one row of the table."""
    manifest = read_json(run / "manifest.json")
    ended = finished_learners(manifest)
    best = manifest["gate"]["best_learner"]
    beside = read_json(last / "manifest.json")["gate"]["best_learner"]
    mine, other = _test(run, "stack"), _test(last, "stack")
    gap = paired_log_loss(labels, mine["log_proba"], other["log_proba"])
    alone = paired_log_loss(labels, _test(run, best)["log_proba"], _test(last, beside)["log_proba"])
    kind = "scores" if task is GAMMA else "decided"
    metric = metric_for(task).paired(labels, mine[kind], other[kind])
    wall = read_json(run.parent / f"{run.name}.json")["wall_s"]
    return [
        limit,
        f"{wall:,.0f}",
        f"{sum(step['cpu_s'] for step in manifest['steps']):,.0f}",
        f"{', '.join(ended)}; {manifest['judged']['fits']}",
        f"{log_loss_per_event(mine['log_proba'], labels).mean():.4f}",
        "" if run == last else _interval(gap),
        best if run == last else f"{best} {_interval(alone)}",
        "" if run == last else _interval(metric),
    ]


def plan_of(manifest: dict[str, Any]) -> str:
    """Return rows and work of each learner in words."""
    plan = manifest.get("plan")
    if not plan:
        return "no plan: all of the preset"
    shares = []
    for one in plan["shares"]:
        rows = f"{one['rows']:,} rows" if one["rows"] else "all rows"
        shares.append(f"{one['learner']} {rows}" + (f", {one['amount']} {one['work']}" if one["amount"] else ""))
    return f"{'; '.join(shares)}; left out: {', '.join(plan['left_out']) or 'none'}"


def _test(run: Path, system: str) -> dict[str, np.ndarray]:
    with np.load(run / "test" / f"{system}.npz", allow_pickle=False) as stored:
        return dict(stored)


def _interval(paired: Paired) -> str:
    return f"{paired.difference:+.4f} [{paired.interval.low:+.4f}, {paired.interval.high:+.4f}]"


if __name__ == "__main__":
    main()
