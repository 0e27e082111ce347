"""The table that ends every run: each base learner beside the plain average and the stack, with intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from report.reading.run import COMBINED, Run, System
from report.registry import report_of
from report.terminal.text import metric_text, plus_minus
from scoring import scoring_of
from scoring.uncertainty.intervals import Interval
from scoring.uncertainty.paired import paired_mean


def mean_loss(losses: np.ndarray) -> tuple[float, Interval]:
    """Return the mean of per-event losses (N,) and its 95 % interval."""
    found = paired_mean(losses)
    return found.difference, found.interval


def learner_table(run: Path, data: Path) -> Table:
    """Return the learners, the average and the stack of a run on the test set of ``data``.

    For tasks with classes accuracy, log-loss (nats) and the metric, each with its 95 % interval; for composition the
    metric of raw (argmax) and of decided labels side by side. Test labels are read here, after everything was chosen.

    Raises
    ------
    InputError
        If the run folder or the test set cannot be read, or their lengths disagree.
    """
    opened = Run.open(run)
    truth = opened.truth(data)
    labels = truth.labels
    scoring, told = scoring_of(opened.task), report_of(opened.task)
    metric = scoring.metric
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
    first = next(iter(by_name.values()))[0]
    beside = told.beside(labels, first.log_proba, first.output)
    for column in (beside.head, scoring.loss_name, *(_heading(rule) for rule in rules)):
        table.add_column(column, justify="right", no_wrap=True)
    for name, systems in by_name.items():
        if name == COMBINED[0]:
            for failed in failed_learners(opened):
                table.add_row(failed, "left out", style="red")
            table.add_section()
        cells = {
            s.rule: metric_text(metric.of(truth, s.output), metric.interval(labels, s.output), metric) for s in systems
        }
        raw = systems[0]
        shares = told.beside(labels, raw.log_proba, raw.output).plus_minus
        losses = plus_minus(*mean_loss(scoring.losses(labels, raw.log_proba, raw.output)), 3)
        style = "bold" if name == (opened.shipped or COMBINED[-1]) else None
        table.add_row(name, shares, losses, *(cells.get(r, "") for r in rules), style=style)
    table.caption = f"shipped, as decided on held-out showers: {opened.shipped}" if opened.shipped else None
    return table


def failed_learners(run: Run) -> list[str]:
    """Return the names of the learners that failed and are no part of the stack."""
    return [str(row["name"]) for row in run.manifest.get("learners", []) if row.get("status") == "failed"]


def _heading(rule: str) -> str:
    return {"argmax": "raw (argmax)", "score": "at 75 % gamma efficiency"}.get(rule, rule)
