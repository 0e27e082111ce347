"""The report of a run on a table: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from showerstack.report.pictures.style import PALETTE, as_svg
from showerstack.report.pictures.tasks import reliability_picture
from showerstack.report.run_sections import column_gains, how_it_was_made, ranked_columns
from showerstack.report.shared.markup import (
    Section,
    bullets,
    joined,
    make_sections,
    numbers,
    paragraph,
    picture,
    pictures,
    table,
    write_page,
)
from showerstack.report.shared.subject import (
    groups_of_test,
    labelled_oof_rows,
    labelled_test_rows,
    log_proba_of_test,
    score_test_table,
)
from showerstack.report.shared.text import TABLE_HEADS, table_cells
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import check_target
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.tasks.text import with_interval
from showerstack.stacking.prediction.run import Run

SHOWN_CLASSES, SHOWN_COLUMNS = 12, 20
MEANING = (
    "Log-loss is the mean of -ln p of the true class: 0 for certain and right, ln C if all C classes get "
    "the same probability. AUC is the chance that a row of the class gets a higher probability than a row of another: "
    "0.5 is random."
)


def write_table_report(folder: Path, *, bars: Bars = silent) -> Path:
    """Write ``RUN/report.html`` of a finished run on a table; the test table is scored where it has labels."""
    run = Run.open(folder)
    if not run.of_table:
        raise InputError(f"{folder} was trained on showers, not on a table")
    check_target(run.report, (".html",))
    test = score_test_table(run)
    metrics = test or run.held_out_scores()
    parts = (_summary, _systems, _classes, _reliability, _importance)
    sections = make_sections(parts, run, metrics, bars=bars)
    sections += how_it_was_made(run)
    name, table_name = escaped(run.name), escaped(Path(str(run.manifest.config.table)).name)
    lead = paragraph(f"{table_name}; {run.manifest.started}", "quiet")
    return write_page(run.report, f"{name}: classes of {table_name}", lead + _boxes(metrics), sections)


def _boxes(metrics: Mapping[str, Any]) -> Markup:
    shipped = metrics["systems"][metrics["shipped"]]
    cells = (cell.partition(" ") for cell in table_cells(shipped))
    boxes = [(name, value, span) for name, (value, _, span) in zip(TABLE_HEADS.values(), cells, strict=True)]
    counted = metrics.get("counted", "rows")
    limits = f"{metrics['judged_on']}. Brackets are {LEVEL_TEXT} intervals from the number of {counted}."
    return numbers(boxes) + paragraph(MEANING) + paragraph(limits, "quiet")


def _summary(run: Run, metrics: Mapping[str, Any]) -> Section:
    manifest = run.manifest
    lines = [
        f"Used for new rows: {run.shipped}. On {manifest.judged.on} rows of the training table, {manifest.gate.reason}."
    ]
    lines += [f"Learner {row.name} was left out: {row.error}" for row in manifest.learners if row.error]
    lines += [str(remark) for remark in (*manifest.remarks, *metrics.get("remarks", ()))]
    return Section("summary", "In plain words", bullets(lines))


def _systems(run: Run, metrics: Mapping[str, Any]) -> Section:
    held_out, parts = run.held_out_scores(), list[Markup]()
    for scores in (metrics, *([held_out] if metrics["judged_on"] != held_out["judged_on"] else [])):
        rows = [(name, *table_cells(of_system)) for name, of_system in scores["systems"].items()]
        ours = [k for k, (name, *_) in enumerate(rows) if name == run.shipped]
        parts += [paragraph(f"On {scores['judged_on']}."), table(("system", *TABLE_HEADS.values()), rows, ours=ours)]
    return Section("learners", "Learners beside the stack", joined(parts))


def _classes(run: Run, metrics: Mapping[str, Any]) -> Section:
    shipped = metrics["systems"][run.shipped]
    names, counts = run.task.classes, np.array(shipped["confusion"])
    heads = ("class", "rows", "AUC against the rest", "recall")
    rows = []
    for k, name in enumerate(names):
        area = shipped["auc_by_class"].get(name)
        words = with_interval(area["value"], area, ".4f") if area else ""
        n = int(counts[k].sum())
        rows.append((name, f"{n:,}", words, f"{counts[k, k] / n:.3f}" if n else ""))
    parts = [table(heads, rows)]
    if len(names) <= SHOWN_CLASSES:
        cells = [(name, *(f"{n:,}" for n in line)) for name, line in zip(names, counts.tolist(), strict=True)]
        parts += [paragraph("Rows by true class (lines) and predicted class (columns):")]
        parts += [table(("true", *names), cells)]
    return Section("classes", "Class by class", joined(parts))


def _reliability(run: Run, metrics: Mapping[str, Any]) -> Section | None:
    test_rows = labelled_test_rows(run)
    if len(run.task.classes) > len(PALETTE):
        return None
    if test_rows is None:
        labels, log_proba, groups = labelled_oof_rows(run, run.shipped)
    else:
        rows, labels, _ = test_rows
        log_proba, groups = log_proba_of_test(run, run.shipped)[rows], groups_of_test(run)
        groups = None if groups is None else groups[rows]
    calibration = run.manifest.reliability.get(run.shipped)
    caption = (
        f"How often a class is true against the probability that {run.shipped} gave it, on {metrics['judged_on']}; "
        f"bars are {LEVEL_TEXT} binomial intervals."
    )
    if calibration is not None:
        caption += (
            " Expected calibration error on held-out rows: "
            f"{calibration.calibrated.expected_calibration_error:.4f}; right ones would show about "
            f"{calibration.calibrated.of_perfect_posteriors:.4f} with so many rows."
        )
    figure = as_svg(reliability_picture(labels, log_proba, run.task.classes, groups), "reliability diagram")
    return Section("reliability", "Calibration of the probabilities", pictures([picture(figure, caption)]))


def _importance(run: Run, metrics: Mapping[str, Any]) -> Section | None:
    gains = column_gains(run)
    if not gains:
        return None
    ranked = ranked_columns(gains, SHOWN_COLUMNS)
    rows = [(c, f"{mean:.1f}", *(f"{share:.1f}" for share in shares)) for c, (mean, shares) in ranked.items()]
    note = paragraph(
        "Share of what each learner gains by splits on a column, %, mean over its fits. Columns that say the same "
        "thing share it; columns of many different values are favoured.",
        "quiet",
    )
    return Section("importance", "Which columns matter", table(("column", "mean", *gains), rows) + note)
