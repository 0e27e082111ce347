"""The stacks that were published for the benchmark (2026), beside ours, on the same posteriors of the same run.

    python benchmarks/learning/published_stacks.py --data demo/data demo/runs/composition demo/runs/gamma

As published: the three best systems are averaged, or stacked by a logistic regression (plain or with balanced classes)
that is fitted on half of the *test* events; everything is judged on the other half. Ours was fitted on out-of-fold
predictions of the training events and never saw a test label. Which three systems are the best is chosen here by the
out-of-fold log-loss, where the published choice used the test set.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from showerstack.report.shared.subject import read_labels
from showerstack.runtime.errors import InputError
from showerstack.scoring import metric_for
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.schema import GAMMA, Task
from showerstack.stacking.meta.scorers import gamma_scores
from showerstack.stacking.run.chain import average_of
from showerstack.stacking.run.read import Run

N_SYSTEMS = 3
SEED = 2026
"""Of the permutation that halves the test set."""


def main() -> None:
    """Print the table of every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="finished run folders")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with {task}_test and its labels")
    options = parser.parse_args()
    for run in options.runs:
        print(compared(run, options.data), end="\n\n")


def compared(folder: Path, data: Path) -> str:
    """Return the table of one run as Markdown."""
    run = Run.open(folder)
    labels = read_labels(run, data).labels.astype(np.int64)
    losses = {row["name"]: row["log_loss"] for row in run.manifest["learners"] if row["name"] in run.learners}
    best = sorted(losses, key=lambda name: losses[name])[:N_SYSTEMS]
    if len(best) < N_SYSTEMS:
        raise InputError(f"{folder} has {len(best)} learners: the published stacks take {N_SYSTEMS}")
    known = {name: _log_proba(run, name) for name in (*best, "average", "stack")}
    judged, result = published_stacks(np.stack([known[name] for name in best]), labels)
    rows = {name: z[judged] for name, z in known.items()} | result
    metric, mine = metric_for(run.task), labels[judged]
    stack, rank = rows["stack"], _ranked(run.task)
    lines = [
        f"{run.task.name}, {int(judged.sum()):,} test events, systems {', '.join(best)}:",
        "",
        f"| system | log-loss | minus our stack | {metric.name}, raw | minus our stack |",
        "|---|---|---|---|---|",
    ]
    for name, z in rows.items():
        loss = -z[np.arange(len(mine)), mine].mean()
        gap, change = paired_log_loss(mine, z, stack), metric.paired(mine, rank(z), rank(stack))
        worse = f"{gap.difference:+.4f} [{gap.interval.low:+.4f}, {gap.interval.high:+.4f}]"
        more = f"{change.difference:+.2g} [{change.interval.low:+.2g}, {change.interval.high:+.2g}]"
        lines.append(f"| {name} | {loss:.4f} | {worse} | {metric.value(mine, rank(z)):.4g} | {more} |")
    return "\n".join(lines)


def published_stacks(log_proba: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return which events are judged, (N,) bool, and log-posteriors of the published stacks on them.

    Parameters
    ----------
    log_proba
        (M, N, C) log-posteriors of the systems.
    labels
        (N,) true classes; those of the other half are learned from.
    """
    judged = np.zeros(len(labels), dtype=bool)
    judged[np.random.default_rng(SEED).permutation(len(labels))[: len(labels) // 2]] = True
    inputs = np.concatenate(list(log_proba), axis=1).clip(-30, 0)
    result = {"published: average": average_of(log_proba[:, judged])}
    for name, weights in (("logistic", None), ("balanced", "balanced")):
        model = LogisticRegression(max_iter=1000, class_weight=weights).fit(inputs[~judged], labels[~judged])
        result[f"published: {name} stack"] = model.predict_log_proba(inputs[judged])
    return judged, result


def _log_proba(run: Run, name: str) -> np.ndarray:
    result = run.test(name, "log_proba")
    if result is None:
        raise InputError(f"{run.folder} keeps no posteriors of {name}")
    return result


def _ranked(task: Task):  # type: ignore[no-untyped-def]
    return gamma_scores if task.name == GAMMA.name else lambda z: np.argmax(z, axis=1)


if __name__ == "__main__":
    main()
