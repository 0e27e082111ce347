"""What follows a finished run: score it where labels exist, show the table, write the report."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from report.card.write import write_card
from report.foreign.page import write_table_report
from report.page.html import write_report
from report.reading.belonging import check_predictions
from report.reading.finished import keep_outcome
from report.reading.run import MANIFEST_FILE
from report.terminal.summary import learner_table
from scoring.score import score_file
from showers.execution.progress import Bars, silent
from showers.execution.terminal import PlainConsole, escaped
from showers.schema import Task
from showers.storage.files import read_json
from stacking.predict.chain import STUDENT
from stacking.run.sealing import TABLE_TEST_FILE
from stacking.run.student import student_line

KEPT_WIDTH = 120
"""Characters a line of the table that a finished run keeps."""


@dataclass(frozen=True)
class RunOutcome:
    """What a finished run has to say."""

    run: Path
    shown: RenderableType
    """Table of learners beside the stack, and where everything is."""
    content: dict[str, Any]
    """The same for programs: shipped system, metrics on the test set, learners, remarks, paths."""

    def keep(self, asked: Mapping[str, Any], inputs: list[Path]) -> None:
        """Keep the lines, so that the same command answers at once; see :mod:`report.reading.finished`."""
        stream = io.StringIO()
        PlainConsole(file=stream, width=KEPT_WIDTH).print(self.shown, soft_wrap=True)
        keep_outcome(self.run, asked, inputs, stream.getvalue())


def outcome(run: Path, data: Path | None, task: Task | None, *, bars: Bars = silent) -> RunOutcome:
    """Score ``run`` on ``data``'s test set, write report and model card; of a run on a table, tell what it reached.

    A test set without labels is left unscored, and the reader is told so.
    """
    manifest = read_json(run / MANIFEST_FILE)
    parts: list[RenderableType] = list(_told(manifest))
    gate = manifest.get("gate", {})
    content: dict[str, Any] = {
        "run": str(run),
        "task": manifest.get("task"),
        "shipped": "stack" if gate.get("shipped") is True else gate.get("best_learner"),
        "reason": gate.get("reason"),
        "learners": {row["name"]: row["status"] for row in manifest.get("learners", [])},
        "remarks": manifest.get("remarks", []),
        "predictions": str(run / "predictions.npz"),
    }
    if task is None or data is None:
        report = write_table_report(run, bars=bars)
        content["model_card"] = str(write_card(run))
        content |= {
            "held_out": read_json(run / "metrics_table.json"),
            "predictions": str(run / "predictions.parquet"),
            "report": str(report),
        }
        if (run / TABLE_TEST_FILE).exists():
            content["test"] = read_json(run / TABLE_TEST_FILE)
        return RunOutcome(run, Group(*parts, *_of_table(run, content), Text(f"report:      {report}")), content)
    if not (data / f"{task.name}_test" / str(task.label_file)).exists():
        content["model_card"] = str(write_card(run))
        parts.append(Text(f"{data / f'{task.name}_test'} has no labels: predictions are in {run / 'predictions.npz'}"))
        return RunOutcome(run, Group(*parts), content)
    content["test"] = score_file(run / "predictions.npz", data, task, check=check_predictions)
    report = write_report(run, data, bars=bars)
    content |= {"report": str(report), "model_card": str(write_card(run))}
    parts += [learner_table(run, data), Text(f"run folder: {run}\nreport:     {report}")]
    return RunOutcome(run, Group(*parts), content)


def _of_table(run: Path, content: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what a run on a table of any origin reached on rows held out, and where its predictions are."""
    names = ("log_loss", "accuracy", "auc")
    for metrics in (content["held_out"], content.get("test")):
        if metrics is None:
            continue
        yield from (Text(escaped(f"remark: {remark}"), style="yellow") for remark in metrics.get("remarks", ()))
        drawn = Table("system", title=f"{metrics['judged_on']}, 95 % intervals", title_justify="left")
        for name in names:
            drawn.add_column(name.replace("_", "-"), justify="right")
        for system, entries in metrics["systems"].items():
            cells = [f"{e['value']:.4f} [{e['low']:.4f}, {e['high']:.4f}]" for e in map(entries.get, names)]
            drawn.add_row(system, *cells, style="bold" if system == metrics["shipped"] else None)
        yield drawn
    yield Text(f"shipped:     {content['shipped']}, {content['reason']}\npredictions: {run / 'predictions.parquet'}")


def _told(manifest: Mapping[str, Any]) -> Iterator[Text]:
    """Yield what a run remarked on its data, which learners failed, and what ``predict --fast`` costs."""
    for remark in manifest.get("remarks", []):
        yield Text(escaped(f"remark: {remark}"), style="yellow")
    for row in manifest.get("learners", []):
        if row["status"] != "ok":
            yield Text(escaped(f"learner {row['name']} was left out, {row['error']}"), style="bold red")
    if manifest.get(STUDENT):
        yield Text(student_line(manifest[STUDENT]))
