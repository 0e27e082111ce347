"""Runs on tables of any origin beside each other: one list for each test (or training) table and its classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from report.foreign.judged import TableRun
from report.sections.run import duration, totals
from report.terminal.tables import table, with_interval
from showers.schema import TASKS
from stacking.run.sealing import open_sealed


@dataclass(frozen=True)
class TableStanding:
    """One run of a list."""

    run: str
    table: str
    """What it was judged on: only equal rows stand in one list."""
    shipped: str
    metrics: dict[str, Any]
    """Of what ships: log-loss, accuracy and AUC with intervals."""
    wall_clock: str


def is_table_run(folder: Path) -> bool:
    """Tell whether a finished run was trained on a table."""
    return open_sealed(Path(folder))[1]["task"] not in TASKS


def table_standings(runs: Sequence[Path]) -> dict[str, list[TableStanding]]:
    """Return runs on tables by what they were judged on, smallest log-loss first.

    Raises
    ------
    InputError
        If a run cannot be read.
    """
    found: dict[str, list[TableStanding]] = defaultdict(list)
    for folder in runs:
        run = TableRun.open(folder)
        metrics = run.scored()
        identity, config = run.manifest["identity"], run.manifest["config"]
        tested = metrics is not None
        metrics = metrics or run.held_out
        file = Path(config["test_table"] if tested else config["table"]).name
        mark = str(identity["test_fingerprint" if tested else "train_fingerprint"])[:8]
        # Rows held out of training differ from run to run: such runs share a list only with the same folds and seed.
        drawn = "" if tested else f", seed {identity['seed']}, {identity['folds']} folds, holdout {identity['holdout']}"
        key = f"{file} ({mark}), {metrics['judged_on']}{drawn}"
        steps = totals(run.manifest["steps"])
        shown = {name: metrics["systems"][run.shipped][name] for name in ("log_loss", "accuracy", "auc")}
        name = run.folder.resolve().name
        found[key].append(TableStanding(name, key, run.shipped, shown, duration(steps["wall_s"])))
    return {key: sorted(rows, key=lambda row: row.metrics["log_loss"]["value"]) for key, rows in found.items()}


def standings_shown(found: dict[str, list[TableStanding]]) -> Iterator[RenderableType]:
    """Yield a table for each list; 95 % intervals."""
    for key, rows in found.items():
        drawn = table(key, "run", "ships", "log-loss", "accuracy", "AUC", "wall-clock, summed", wide=True)
        for row in rows:
            cells = [with_interval(entry["value"], entry, ".4f") for entry in row.metrics.values()]
            drawn.add_row(row.run, row.shipped, *cells, row.wall_clock)
        yield drawn
