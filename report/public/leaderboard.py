"""Our runs beside the published systems: one table a task and protocol, simulations in tables of their own.

Under the 2026 protocol a run stands with its most probable classes: it forbids rules that shift decisions. Runs on
tables of any origin stand in one list for each test (or training) table and its classes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from showerstack.report.shared.subject import (
    read_labels,
    read_run_output,
    score_test_table,
    stated_origin,
)
from showerstack.report.shared.text import (
    SIGNS,
    TABLE_HEADS,
    duration,
    metric_text,
    shortest_names,
    table_cells,
    totals,
)
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.score import (
    Origin,
    check_predictions,
    check_run,
    metrics_path,
    read_output,
    read_raw_labels,
    score_arrays,
    task_of,
)
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.published import CITATIONS, PublishedResult, published_for
from showerstack.scoring.tasks.text import short, table
from showerstack.scoring.tasks.truth import Truth, origin_of, read_truth
from showerstack.showers.schema import FIRST_LOOK, Task, task_named
from showerstack.stacking.prediction.run import Run

LEGEND = (
    "Bold: our runs. score: 0 is the weakest valid result of its table, 1 the published best (of a simulation: the "
    f"best row); equal steps are equal factors in the error. * chosen or tuned on test labels. {SIGNS}, "
    "of published results from the size of the test set alone. Wall-clock is summed over tasks that may have run side "
    "by side; memory is the peak of one task."
)


@dataclass(frozen=True)
class Standing:
    """One row of a leaderboard."""

    task: str
    protocol: str
    """As :attr:`showerstack.scoring.tasks.truth.DataOrigin.protocol`; only equal ones share a table."""
    system: str
    value: float
    interval: Interval | None
    accuracy: float | None = None
    n_parameters: int | None = None
    tuned_on_test: bool = False
    """Nothing in stacking can read test labels."""
    cost: tuple[str, ...] = ()
    """Wall-clock, CPU time, peak memory, device; empty of published results and of files of predictions."""
    ours: bool = True
    n_trials: int | None = None
    """Hadrons behind a survival."""

    @property
    def regularised(self) -> float:
        """The value as the normalised score takes it: survivals as (n + 0.5) / (N + 1)."""
        if self.n_trials is None:
            return self.value
        return (round(self.value * self.n_trials) + 0.5) / (self.n_trials + 1)


def march_of_nines(value: float, weakest: float, best: float) -> float | None:
    """Return the normalised score (phi(s) - phi(min)) / (phi(best) - phi(min)), phi(s) = -lg s.

    0 is the weakest valid result, 1 the published best, above 1 beats it; each factor of ten counts the same. None
    where it is undefined: a perfect value, or weakest and best coincide.

    >>> march_of_nines(1e-3, 1e-2, 1e-4)
    0.5
    """
    if min(value, weakest, best) == 0 or weakest == best:
        return None
    phi, low, high = (-math.log10(each) for each in (value, weakest, best))
    return round((phi - low) / (high - low), 12)


def leaderboard(runs: Sequence[Path], *, data: Path | None = None) -> RenderableType:
    """Return the tables of all protocols that the runs belong to.

    They are scored run folders (``metrics_{task}.json`` beside ``predictions.npz``) or predictions files; ``data``
    holds their test sets if they are no longer where the manifests say.
    """
    by_table = tables(runs, data)
    shown: list[RenderableType] = []
    for (task, protocol), rows in by_table.items():
        what = scoring_of(task_named(task)).metric_words
        shown.append(Text(f"{task}, {protocol}: {what}, lower is better", style="bold"))
        shown.append(_table(rows, task))
        shown += [Text(f"Published: {CITATIONS[protocol]}\n", style="dim")] if protocol in CITATIONS else []
    ours = [row for rows in by_table.values() for row in rows if row.ours]
    return Group(*shown, _cost_table(ours), Text(LEGEND, style="dim"))


def tables(runs: Sequence[Path], data: Path | None = None) -> dict[tuple[str, str], list[Standing]]:
    """Return the rows of each table, best first, by task and protocol; see :func:`leaderboard`."""
    if not runs:
        raise InputError("leaderboard needs at least one run folder")
    standings = [standing(Path(run), data) for run in runs]
    if len({row.system for row in standings}) < len(standings):  # of one name in several folders
        marks = ["".join(row.system.partition(f" ({FIRST_LOOK}")[1:]) for row in standings]
        names = map("".join, zip(shortest_names(runs), marks, strict=True))
        standings = [replace(row, system=name) for row, name in zip(standings, names, strict=True)]
    by_table = {}
    for task, protocol in sorted({(row.task, row.protocol) for row in standings}):
        rows = [row for row in standings if (row.task, row.protocol) == (task, protocol)]
        rows += map(_published, published_for(task, protocol))
        by_table[task, protocol] = sorted(rows, key=lambda row: row.value)
    return by_table


def standing(folder: Path, data: Path | None = None) -> Standing:
    """Return the row of one scored run, or of a predictions file."""
    if folder.is_file():
        return _standing_of_file(folder, data)
    run = Run.open(folder)
    file = metrics_path(run.predictions, run.task)
    if not file.exists():
        raise InputError(f"{file} does not exist: score the run first (python verify.py --task {run.task.name} ...)")
    stored = read_json(file)
    check_run(file, Origin(stored.get("config_hash"), stored.get("test_fingerprint")), stated_origin(run))
    place = data / f"{run.task.name}_test" if data else Path(str(run.manifest.data.test))
    if not place.is_dir():
        raise InputError(f"{place}, the test set of {run.folder}, does not exist: say where it is with --data")
    # What stands in the file may have been changed: it has no checksum, since a run is scored as often as one likes.
    truth = read_labels(run, place.parent)
    counted = _counted(run.name, truth, read_run_output(run, truth), run.task, origin_of(place, run.task).protocol)
    steps = totals(run.manifest.steps)
    cost = duration(steps.wall_s), duration(steps.cpu_s), f"{steps.peak_mb:,.0f}"
    parameters = sum(row.n_parameters or 0 for row in run.manifest.learners if row.status == "ok")
    return replace(counted, n_parameters=parameters or None, cost=(*cost, run.manifest.device))


def _standing_of_file(file: Path, data: Path | None) -> Standing:
    task = task_of(file)
    if data is None:
        raise InputError(f"{file} does not say where its test set is: give the folder that holds it with --data")
    truth = read_truth(data, task)
    output, stated = read_output(file, truth.task, len(truth.labels))
    check_predictions(file, stated, truth.folder)
    origin = origin_of(truth.folder, task)
    if origin.takes_raw_labels(task):
        output = read_raw_labels(file, task, output)
    name = file.stem if file.stem != "predictions" else file.resolve().parent.name
    if (stated.config_hash or "").startswith(FIRST_LOOK):
        name = f"{name} ({FIRST_LOOK}: not trained)"
    return _counted(name, truth, output, task, origin.protocol)


def _counted(name: str, truth: Truth, output: np.ndarray, task: Task, protocol: str) -> Standing:
    """Return the row of answers (N,) to a test set; of fewer mass groups than the benchmark's none."""
    if truth.task != task_named(task.name):
        raise InputError(f"{truth.folder} has {truth.task.n_classes} mass groups: lists are of the benchmark's five")
    metrics = score_arrays(truth, output, task)
    value, interval = scoring_of(task).headline(metrics)
    accuracy, n_trials = metrics.get("accuracy"), metrics.get("n_hadron")
    return Standing(task.name, protocol, name, value, interval, accuracy, n_trials=n_trials)


def _published(result: PublishedResult) -> Standing:
    names = ("task", "protocol", "system", "value", "interval", "accuracy", "n_parameters", "tuned_on_test", "n_trials")
    return Standing(**{name: getattr(result, name) for name in names}, ours=False)


LEAST_ROWS = 3
"""Of simulations, so many give a scale: of two the better would have 1 and the other 0, however alike they are."""


def scores(rows: Sequence[Standing]) -> list[float | None]:
    """Return the normalised score of each row.

    The scale runs from the weakest valid result (not tuned on test) to the published best; where nothing is
    published (simulations), to the best row.
    """
    valid = [row.regularised for row in rows if not row.tuned_on_test]
    published = [row.regularised for row in rows if not row.ours]
    if not valid or (not published and len(valid) < LEAST_ROWS):
        return [None] * len(rows)
    best = min(published or valid)
    return [march_of_nines(row.regularised, max(valid), best) for row in rows]


def _table(rows: Sequence[Standing], task: str) -> Table:
    scoring = scoring_of(task_named(task))
    columns = [scoring.metric_column, "accuracy, %", "parameters", "score"]
    if all(row.accuracy is None for row in rows):
        columns.remove("accuracy, %")
    drawn = _empty("system", *columns)
    for row, score in zip(rows, scores(rows), strict=True):
        cells = {
            scoring.metric_column: metric_text(row.value, row.interval, scoring.metric)
            if row.interval
            else short(row.value),
            "accuracy, %": "" if row.accuracy is None else f"{100 * row.accuracy:.2f}",
            "parameters": "" if row.n_parameters is None else f"{row.n_parameters:,}",
            "score": "" if score is None else f"{score:.2f}",
        }
        name = row.system + (" *" if row.tuned_on_test else "")
        drawn.add_row(name, *(cells[column] for column in columns), style="bold" if row.ours else None)
    return drawn


def _cost_table(rows: Sequence[Standing]) -> Table:
    drawn = _empty("cost of our runs", "wall-clock", "CPU time", "memory, MB", "device")
    for row in rows:
        drawn.add_row(f"{row.system} ({row.task})", *row.cost or ("?",) * 4)
    return drawn


def _empty(first: str, *others: str) -> Table:
    drawn = WholeTable(first, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in others:
        drawn.add_column(head, justify="right", no_wrap=True)
    return drawn


MOST_NAMED = 6
"""So many classes name a list."""


@dataclass(frozen=True)
class TableStanding:
    """One run of a list."""

    run: str
    table: str
    """What it was scored on: only equal rows stand in one list."""
    shipped: str
    metrics: dict[str, Any]
    """Of the system in use: log-loss, accuracy and AUC with intervals."""
    wall_clock: str


def table_standings(runs: Sequence[Path]) -> dict[str, list[TableStanding]]:
    """Return runs on tables by what they were scored on, smallest log-loss first."""
    by_list: dict[str, list[TableStanding]] = defaultdict(list)
    for folder in runs:
        run = Run.open(folder)
        metrics = score_test_table(run)
        identity, config = run.manifest.identity, run.manifest.config
        tested = metrics is not None
        metrics = metrics or run.held_out_scores()
        file = Path(str(config.test_table if tested else config.table)).name
        mark = str(identity.test_fingerprint if tested else identity.train_fingerprint)[:8]
        # Rows left out of training differ from run to run: such runs share a list only with the same folds and seed.
        drawn = "" if tested else f", seed {identity.seed}, {identity.folds} folds, holdout {identity.holdout}"
        # Other classes, labels or weights are another task, of whatever rows.
        some = ", ".join(map(str, run.task.classes[:MOST_NAMED]))
        named = some + (f" and {more} more" if (more := run.task.n_classes - MOST_NAMED) > 0 else "")
        counts = f", weights {config.weight}" if config.weight else ""
        key = f"{file} ({mark}), label {config.label} ({named}){counts}, {metrics['judged_on']}{drawn}"
        steps = totals(run.manifest.steps)
        shown = {name: metrics["systems"][run.shipped][name] for name in TABLE_HEADS}
        by_list[key].append(TableStanding(run.name, key, run.shipped, shown, duration(steps.wall_s)))
    return {key: sorted(rows, key=lambda row: row.metrics["log_loss"]["value"]) for key, rows in by_list.items()}


def standings_tables(by_list: dict[str, list[TableStanding]]) -> Iterator[RenderableType]:
    """Yield a table for each list; confidence intervals."""
    for key, rows in by_list.items():
        drawn = table(key, "run", "used", *TABLE_HEADS.values(), "wall-clock, summed", wide=True)
        for row in rows:
            drawn.add_row(row.run, row.shipped, *table_cells(row.metrics), row.wall_clock)
        yield drawn
