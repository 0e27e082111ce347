"""What stacking is worth: each learner, their average, the stack and the decided stack on the same simulated events.

    python -m benchmarks.learning.stack --work bench/stacking
    python -m benchmarks.learning.stack --work bench/stacking --store  # and write benchmarks/results/stack.md

Everything is fitted on out-of-fold predictions of the training events; the test labels are read at the very end, for
the tables alone. Killed and started again, it continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.runtime.context import Context, bar
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.classes import gamma_scores
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.intervals import accuracy_interval
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.tasks import metric_for
from showerstack.scoring.tasks.base import Metric
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA, SOURCE_FILE, TASKS, Task
from showerstack.stacking.chain import average_of
from showerstack.stacking.config import StackConfig
from showerstack.stacking.oof import read_fits
from showerstack.stacking.run import finished_learners
from showerstack.stacking.train import stack

LEARNERS = ("lightgbm", "catboost", "quadratic_logit", "mlp", "lenet_fits")
SETTINGS = {"lenet_fits": {"epochs": 5}}
"""What the benchmark shortens beyond the preset, to end in half an hour on two cores."""


@dataclass
class FinishedTask:
    """One finished task, opened for its tables."""

    task: Task
    run: Path
    manifest: dict[str, Any]
    labels: np.ndarray

    def log_proba(self, name: str) -> np.ndarray:
        """Return test log-posteriors (N, C) of a learner, ``average`` or ``stack``."""
        with np.load(self.run / "test" / f"{name}.npz", allow_pickle=False) as stored:
            return stored["log_proba"]

    def output(self, name: str, kind: str) -> np.ndarray:
        """Return what the task's metric judges: the most probable class, or scores."""
        log_proba = self.log_proba(name)
        return gamma_scores(log_proba) if kind == "score" else log_proba.argmax(axis=1)


def main() -> None:
    """Simulate, stack and print both tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/stacking"), help="folder for data and runs")
    parser.add_argument("--train", type=int, default=100_000, help="training showers under the test's cuts")
    parser.add_argument("--test", type=int, default=50_000, help="test showers")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--preset", default="quick", help="settings of the learners")
    parser.add_argument("--learners", default=",".join(LEARNERS), help="comma-separated names")
    parser.add_argument("--tasks", default="composition,gamma", help="comma-separated")
    parser.add_argument("--world", default="default", help="simulated world")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    sections = []
    for name in options.tasks.split(","):
        outcome = run_task(TASKS[name], options)
        text = report(outcome, options)
        print(text, flush=True)
        sections.append(f"## {name}\n\n{text}")
    if options.store:
        text = "\n\n".join(sections)
        store("stack", "What stacking is worth", text, worlds=(options.world,), pretrained="pretrained" in text)


def run_task(task: Task, options: argparse.Namespace) -> FinishedTask:
    """Simulate where needed, stack, and read the test labels last."""
    data = sample(
        task, options.work, n_train=options.train, n_test=options.test, seed=options.seed, world=options.world,
        workers=options.workers, bars=bar,
    )  # fmt: skip
    run = options.work / f"run-{data.name}-{options.preset}"
    config = StackConfig(
        task=task.name, data=data, run=run, preset=options.preset, learners=tuple(options.learners.split(",")),
        folds=options.folds, seed=options.seed, device="cpu", workers=options.workers,
        settings={name: SETTINGS[name] for name in SETTINGS if name in options.learners.split(",")},
    )  # fmt: skip
    manifest = dict(stack(config, Context(bars=bar)).manifest)
    labels = np.asarray(Dataset.open(data / f"{task.name}_test", task).labels)
    return FinishedTask(task, run, manifest, labels)


def report(outcome: FinishedTask, options: argparse.Namespace) -> str:
    """Return all tables as Markdown."""
    data = outcome.manifest["data"]
    settings = read_json(Path(data["train"]) / SOURCE_FILE)["settings_hash"]
    title = (
        f"{outcome.task.name}: {data['n_train']:,} training and {data['n_test']:,} test showers of the simulated "
        f"world `{options.world}` (settings {settings[:8]}) under the test's cuts, {options.folds} folds, "
        f"preset {options.preset}, seed {options.seed}. Intervals are 95 %; differences are paired."
    )
    return "\n\n".join(
        [title, systems_table(outcome), steps_table(outcome), choice_table(outcome), cost_table(outcome)]
    )


def measures_of(task: Task) -> list[Metric]:
    """Return the task's metric and, for gammas, the survival at 95 % efficiency, where more hadrons are left."""
    if task.name != GAMMA.name:
        return [metric_for(task)]
    high = Metric(
        "survival at 95 %",
        "share at 95 % gamma efficiency",
        lambda labels, scores: hadron_survival(labels, scores, 0.95).hadron_survival,
        lambda labels, scores: survival_interval(labels, scores, efficiency=0.95),
        lambda labels, a, b: paired_survival(labels, a, b, efficiency=0.95),
    )
    return [metric_for(task), high]


def systems_table(outcome: FinishedTask) -> str:
    """Return accuracy, log-loss and metric of every system, with paired differences to the best learner."""
    measures = measures_of(outcome.task)
    best = outcome.manifest["gate"]["best_learner"]
    learners = finished_learners(outcome.manifest)
    rows = []
    kinds = ("score",) if outcome.task.name == GAMMA.name else ("argmax",)
    for name in [*learners, "average", "stack"]:
        for kind in kinds:
            log_proba, output = outcome.log_proba(name), outcome.output(name, kind)
            hard = output if kind != "score" else np.argmax(log_proba, axis=1)
            accuracy = accuracy_interval(outcome.labels, hard)
            loss = paired_log_loss(outcome.labels, log_proba, outcome.log_proba(best))
            absolute = event_losses(log_proba, outcome.labels).mean()
            row = [
                f"**{name}**" if name == "stack" else name,
                kind,
                f"{np.mean(hard == outcome.labels):.4f} [{accuracy.low:.4f}, {accuracy.high:.4f}]",
                f"{absolute:.5f}",
                _difference(loss, ".5f") if name != best else "reference",
            ]
            for metric in measures:
                interval = metric.interval(outcome.labels, output)
                gain = metric.paired(outcome.labels, output, outcome.output(best, kind))
                value = metric.value(outcome.labels, output)
                row.append(f"{value:.4g} [{interval.low:.4g}, {interval.high:.4g}]")
                row.append(_difference(gain, ".2g") if name != best else "reference")
            rows.append(row)
    head = ["system", "rule", "accuracy", "log-loss", f"minus {best}"]
    for metric in measures:
        head += [metric.name, f"minus {best}, same rule"]
    return markdown(head, rows)


def steps_table(outcome: FinishedTask) -> str:
    """Return what each step of the chain gains on the test events."""
    labels, best = outcome.labels, outcome.manifest["gate"]["best_learner"]
    n_fits = len(list((outcome.run / "learners" / best).glob("fold-*")))
    fits = read_fits(outcome.run, best, range(n_fits))
    chain: list[tuple[str, np.ndarray]] = [
        (f"one fit of {best}", fits[0]),
        (f"average of its {n_fits} fits", average_of(fits)),
        ("calibrated", outcome.log_proba(best)),
        ("plain average of all learners", outcome.log_proba("average")),
        (f"stack ({outcome.manifest['pool']['chosen']})", outcome.log_proba("stack")),
    ]
    metric, *more = measures_of(outcome.task)
    rank: Callable[[np.ndarray], np.ndarray] = (
        gamma_scores if outcome.task.name == GAMMA.name else lambda z: np.argmax(z, axis=1).astype(np.int8)
    )
    rows = []
    for (_, before), (name, after) in pairwise(chain):
        loss = paired_log_loss(labels, after, before)
        gains = [_difference(m.paired(labels, rank(after), rank(before)), ".2g") for m in (metric, *more)]
        rows.append([name, _difference(loss, ".5f"), *gains])
    return "Change by each step on the test events (negative is better):\n\n" + markdown(
        ["step", "log-loss", metric.name, *(m.name for m in more)], rows
    )


def choice_table(outcome: FinishedTask) -> str:
    """Return what the cross-validation saw, without test labels."""
    manifest = outcome.manifest
    pool = manifest["pool"]
    rows = [[name, f"{loss:.5f}"] for name, loss in pool["log_losses"].items()]
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in pool["weights"].items())
    lines = [
        "Out-of-fold, before any test label was read:",
        markdown(["pool", "log-loss"], rows),
        f"Chosen: {pool['chosen']}; weights {weights}. Acceptance test: {manifest['gate']['reason']}; used: "
        f"{'the stack' if manifest['gate']['shipped'] else 'the learner'}.",
    ]
    return "\n\n".join(lines)


def cost_table(outcome: FinishedTask) -> str:
    """Return wall-clock, CPU time and memory by step; wall-clock of parallel tasks overlaps."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for step in outcome.manifest["steps"]:
        grouped.setdefault(step["learner"] or step["step"], []).append(step)
    rows = [
        [
            name,
            str(len(steps)),
            f"{sum(s['wall_s'] for s in steps):.0f}",
            f"{sum(s['cpu_s'] for s in steps):.0f}",
            f"{max(s['peak_mb'] for s in steps):.0f}",
        ]
        for name, steps in grouped.items()
    ]
    return markdown(["step", "tasks", "wall s (summed)", "CPU s", "peak MB"], rows)


def _difference(paired: Paired, style: str) -> str:
    low, high = paired.interval.low, paired.interval.high
    return f"{paired.difference:+{style}} [{low:+{style}}, {high:+{style}}]"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    main()
