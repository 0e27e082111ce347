"""The table that ends every run: each base learner beside the plain average and the stack, with intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from report.run import COMBINED, Run, System
from scoring import Metric, metric_for
from scoring.intervals import Interval, accuracy_interval
from scoring.paired import paired_mean
from showers.schema import GAMMA, Task


def log_loss(labels: np.ndarray, log_proba: np.ndarray) -> tuple[float, Interval]:
    """Return mean negative log-probability of the true class, nats, and its 95 % interval.

    Parameters
    ----------
    labels
        (N,) integer class numbers.
    log_proba
        (N, C) natural logarithms.
    """
    found = paired_mean(-log_proba[np.arange(len(labels)), labels])
    return found.difference, found.interval


def plus_minus(value: float, interval: Interval, digits: int, scale: float = 1.0) -> str:
    """Return ``value ± half the interval's width``, for intervals that are symmetric enough."""
    return f"{scale * value:.{digits}f} ± {scale * (interval.high - interval.low) / 2:.{digits}f}"


def short(value: float) -> str:
    """Return a small share in scientific notation without padding: ``3.2e-4``, and ``0`` for none."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def metric_text(value: float, interval: Interval, task: Task) -> str:
    """Return the task's metric with its 95 % interval, as short as its shape allows."""
    if task.name == GAMMA.name:
        return f"{short(value)} [{short(interval.low)}, {short(interval.high)}]"
    return plus_minus(value, interval, 4)


def learner_table(run: Path, data: Path) -> Table:
    """Return the learners, the average and the stack of a run on the test set of ``data``.

    Accuracy, log-loss (nats) and the task's metric, each with its 95 % interval; for composition the metric of raw
    (argmax) and of decided labels side by side. Test labels are read here, after everything was chosen.

    Raises
    ------
    InputError
        If the run folder or the test set cannot be read, or their lengths disagree.
    """
    opened = Run.open(run)
    labels = opened.truth(data).labels
    metric = metric_for(opened.task)
    by_name: dict[str, list[System]] = {}
    for system in opened.systems(len(labels)):
        by_name.setdefault(system.name, []).append(system)
    rules = list(dict.fromkeys(system.rule for systems in by_name.values() for system in systems))
    table = Table(
        title=f"{opened.task.name}, {len(labels):,} test showers: {metric.name}, 95 % intervals",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in ("accuracy, %", "log-loss", *(_heading(rule) for rule in rules)):
        table.add_column(column, justify="right", no_wrap=True)
    for name, systems in by_name.items():
        if name == COMBINED[0]:
            for failed in failed_learners(opened):
                table.add_row(failed, "left out", style="red")
            table.add_section()
        cells = {system.rule: _metric_cell(system, labels, metric, opened.task) for system in systems}
        style = "bold" if name == (opened.shipped or COMBINED[-1]) else None
        table.add_row(name, *_posterior_cells(systems[0], labels), *(cells.get(r, "") for r in rules), style=style)
    table.caption = f"shipped, as decided on held-out showers: {opened.shipped}" if opened.shipped else None
    return table


def failed_learners(run: Run) -> list[str]:
    """Return the names of the learners that failed and are no part of the stack."""
    return [str(row["name"]) for row in run.manifest.get("learners", []) if row.get("status") == "failed"]


def _heading(rule: str) -> str:
    return {"argmax": "raw (argmax)", "score": "at 75 % gamma efficiency"}.get(rule, rule)


def _posterior_cells(system: System, labels: np.ndarray) -> tuple[str, str]:
    guessed = system.log_proba.argmax(axis=1)
    accuracy = plus_minus(float(np.mean(guessed == labels)), accuracy_interval(labels, guessed), 2, 100)
    return accuracy, plus_minus(*log_loss(labels, system.log_proba), 3)


def _metric_cell(system: System, labels: np.ndarray, metric: Metric, task: Task) -> str:
    return metric_text(metric.value(labels, system.output), metric.interval(labels, system.output), task)
