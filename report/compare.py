"""Two or more finished runs on the same test events: how they differ, how surely, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from showerstack.analysis.events import refuse_training_set
from showerstack.report.shared.subject import check_test_set, read_run_output
from showerstack.report.shared.text import SIGNS, difference_text, metric_text, p_text, shortest_names
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import energy_bins, zenith_bins
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy
from showerstack.scoring.score import check_predictions, read_output, task_of
from showerstack.scoring.tasks import metric_for, scoring_of
from showerstack.scoring.tasks.text import table as drawn_table
from showerstack.scoring.tasks.truth import Truth, read_truth
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import MATRICES_FILE, Task, task_named
from showerstack.stacking.prediction.run import Run

MIN_EVENTS = 30
"""Bins with fewer events are not compared."""


@dataclass(frozen=True)
class Entry:
    """One side of a comparison."""

    name: str
    output: np.ndarray
    """Hard labels or scores, (N,)."""
    is_right: np.ndarray
    """(N,) bool, what McNemar's table counts, as the task's report says."""


def compare(runs: Sequence[Path], data: Path) -> RenderableType:
    """Return the comparison of every run with the first one, ready to be printed.

    Two or more run folders or ``predictions.npz`` files of one task; ``data`` holds ``{task}_test``.
    """
    entries, truth, task = _read_entries(runs, data)
    parts: list[RenderableType] = [_overview(entries, truth, task)]
    for other in entries[1:]:
        parts.extend(_pair(entries[0], other, truth, task))
    return Group(*parts)


def differences(runs: Sequence[Path], data: Path) -> dict[str, Any]:
    """Return the comparison for programs: the metric of every run, and the first one's minus that of each other."""
    entries, truth, task = _read_entries(runs, data)
    metric = metric_for(task)
    return {
        "task": task.name,
        "metric": metric.name,
        "events": len(truth.labels),
        "runs": {
            entry.name: {"value": metric.of(truth, entry.output)} | metric.interval_of(truth, entry.output).as_dict()
            for entry in entries
        },
        "first_minus": {
            other.name: asdict(metric.paired_of(truth, entries[0].output, other.output)) for other in entries[1:]
        },
    }


def _read_entries(runs: Sequence[Path], data: Path) -> tuple[list[Entry], Truth, Task]:
    if len(runs) < 2:
        raise InputError("compare needs at least two runs")
    tasks = {(task_of(Path(run)) if Path(run).is_file() else Run.open(run).task).name for run in runs}
    if len(tasks) > 1:
        raise InputError(f"runs of different tasks cannot be compared: {', '.join(sorted(tasks))}")
    task = task_named(tasks.pop())
    truth = read_truth(data, task)
    task = truth.task
    return [_entry(run, name, truth, task) for run, name in zip(runs, shortest_names(runs), strict=True)], truth, task


def _entry(run: Path, name: str, truth: Truth, task: Task) -> Entry:
    if Path(run).is_dir():
        opened = Run.open(run)
        check_test_set(opened, truth.folder)
        if (truth.folder / MATRICES_FILE).exists():
            refuse_training_set(opened, Dataset.open(truth.folder, labels=False), "--data")
        output = read_run_output(opened, truth)
    else:
        output, origin = read_output(Path(run), task, len(truth.labels))
        check_predictions(Path(run), origin, truth.folder)
    return Entry(name, output, scoring_of(task).is_right(truth.labels, output))


def _overview(entries: list[Entry], truth: Truth, task: Task) -> Table:
    metric = metric_for(task)
    title = f"{task.name}, {len(truth.labels):,} test showers; {SIGNS}"
    table = drawn_table(title, "run", metric.name, wide=True)
    for entry in entries:
        value, interval = metric.of(truth, entry.output), metric.interval_of(truth, entry.output)
        table.add_row(entry.name, metric_text(value, interval, metric))
    return table


def _pair(a: Entry, b: Entry, truth: Truth, task: Task) -> Iterator[RenderableType]:
    metric = metric_for(task)
    result = metric.paired_of(truth, a.output, b.output)
    yield Text(f"\n{a.name} against {b.name}", style="bold")
    winner = a.name if result.difference < 0 else b.name
    shown = f"{winner} is better" if result.interval.low > 0 or result.interval.high < 0 else "no difference is shown"
    yield Text(
        f"{metric.name}, first minus second: {difference_text(result, metric.logarithmic)}, "
        f"{p_text(result.p_value)}: {shown}"
    )
    yield from scoring_of(task).compare(truth.labels, (a.name, a.output), (b.name, b.output), truth.groups)
    yield _table_of_places(a, b, truth, task)


def places(truth: Truth, task: Task) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield kind, name and (N,) mask of the places where two runs may differ: energy, zenith, true class."""
    for name, mask in energy_bins(truth.energy, truth.binning):
        yield "lg E", name, mask
    for name, mask in zenith_bins(truth.zenith_deg, truth.binning):
        yield "zenith", f"{name} deg", mask
    for k, name in enumerate(() if task.target else task.classes):
        yield "class", name, truth.labels == k


def _is_enough(mask: np.ndarray, groups: np.ndarray | None) -> bool:
    """Return whether a place (N,) bool has events, and groups, enough to say something."""
    return bool(mask.sum() >= MIN_EVENTS) and (groups is None or len(np.unique(groups[mask])) > 1)


def _table_of_places(a: Entry, b: Entry, truth: Truth, task: Task) -> Table:
    """Say where they differ: events that only one of the two gets right, and the exact probability of the split."""
    what = scoring_of(task).right_words
    title = f"where: {what}, only the first / only the second"
    table = drawn_table(title, "", "events", "first", "second", "share, %", "p", wide=True)
    before = ""
    rows = [place for place in places(truth, task) if _is_enough(place[2], truth.groups)]
    for kind, name, mask in rows:
        if before and kind != before:
            table.add_section()
        before = kind
        n, groups = int(mask.sum()), None if truth.groups is None else truth.groups[mask]
        split = mcnemar(a.is_right[mask], b.is_right[mask], groups)
        share = paired_accuracy(np.ones(n, bool), a.is_right[mask], b.is_right[mask], groups)
        low, high = 100 * share.interval.low, 100 * share.interval.high
        difference = f"{100 * share.difference:+z.2f} [{low:+z.2f}, {high:+z.2f}]"
        p = p_text(split.p_value).removeprefix("p ").removeprefix("= ")
        table.add_row(f"{kind} {name}", f"{n:,}", f"{split.only_a:,}", f"{split.only_b:,}", difference, p)
    table.caption = f"{len(rows)} parts of the test set are compared: one p of 0.05 among 20 is expected by chance."
    table.caption_justify = "left"
    return table
