"""The report of a run on a table: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.report.pictures.style import PALETTE, as_svg
from showerstack.report.pictures.tasks import reliability_picture
from showerstack.report.run_sections import choices_of, column_gains, cost_of, left_out_section, provenance_rows
from showerstack.report.shared.markup import Section, bullets, numbers, page, paragraph, picture, pictures, table
from showerstack.report.shared.subject import (
    labelled_oof_rows,
    labelled_test_rows,
    log_proba_of_test,
    oof_metrics,
    score_test_table,
)
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import atomic_path, check_target, read_json
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.stacking.fits import TASK_FILE
from showerstack.stacking.run import Run

REPORT_FILE = "report.html"
SHOWN_CLASSES, SHOWN_COLUMNS = 12, 20
MEANING = (
    "Log-loss is the mean of -ln p of the true class: 0 for certain and right, ln C if all C classes get "
    "the same probability. AUC is the chance that a row of the class gets a higher probability than a row of another: "
    "0.5 is random."
)


def write_table_report(folder: Path, *, bars: Bars = silent, without: Sequence[str] = ()) -> Path:
    """Write ``RUN/report.html`` of a finished run on a table; the test table is scored where it has labels.

    Parameters
    ----------
    without
        Parts to be left out: ``importance``. The report says so.
    """
    run = Run.open(folder)
    if run.has_grids:
        raise InputError(f"{folder} was trained on showers, not on a table")
    check_target(folder / REPORT_FILE, (".html",))
    test = score_test_table(run)
    metrics = test or oof_metrics(run)
    sections = []
    parts = (_summary, _systems, _classes, _reliability, *(() if "importance" in without else (_importance,)))
    with bars("report", "parts") as progress:
        for k, part in enumerate(parts):
            progress(k, len(parts), part.__name__.removeprefix("_"))
            section = part(run, metrics)
            sections += [section] if section else []
        progress(len(parts), len(parts))
    sections += left_out_section(without, folder)
    for section in (choices_of(run.manifest), cost_of(run.manifest)):
        sections += [section] if section else []
    sections.append(Section("provenance", "Provenance", table(("", ""), provenance_rows(run.manifest), kind="wide")))
    name = escaped(folder.resolve().name)
    table_name = escaped(Path(run.manifest["config"]["table"]).name)
    lead = f'<p class="quiet">{escape(table_name)}; {escape(str(run.manifest.get("started", "")))}</p>'
    file = folder / REPORT_FILE
    with atomic_path(file) as temporary:
        temporary.write_text(page(f"{name}: classes of {table_name}", lead + _boxes(metrics), sections), "utf-8")
    return file


def _boxes(metrics: Mapping[str, Any]) -> str:
    shipped = metrics["systems"][metrics["shipped"]]
    boxes = [
        (name, f"{shipped[key]['value']:.4f}", f"[{shipped[key]['low']:.4f}, {shipped[key]['high']:.4f}]")
        for key, name in (("log_loss", "log-loss"), ("accuracy", "accuracy"), ("auc", "AUC"))
    ]
    limits = f"{metrics['judged_on']}. Brackets are {LEVEL_TEXT} intervals from the number of rows."
    return numbers(boxes) + paragraph(MEANING) + paragraph(limits, "quiet")


def _summary(run: Run, metrics: Mapping[str, Any]) -> Section:
    gate = run.manifest["gate"]
    lines = [
        f"Used for new rows: {run.shipped}. On {run.manifest['judged']['on']} rows of the training table, "
        f"{gate['reason']}."
    ]
    lines += [f"Learner {row['name']} was left out: {row['error']}" for row in run.manifest["learners"] if row["error"]]
    lines += [str(remark) for remark in (*run.manifest["remarks"], *metrics.get("remarks", ()))]
    return Section("summary", "In plain words", bullets(lines))


def _systems(run: Run, metrics: Mapping[str, Any]) -> Section:
    def rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
        return [
            (name, *(f"{e['value']:.4f} [{e['low']:.4f}, {e['high']:.4f}]" for e in map(m.get, KEYS) if e))
            for name, m in content["systems"].items()
        ]

    ours = [run.systems.index(run.shipped)]
    heads = ("system", "log-loss", "accuracy", "AUC")
    parts = [paragraph(f"On {metrics['judged_on']}."), table(heads, rows(metrics), ours=ours)]
    held_out = oof_metrics(run)
    if metrics["judged_on"] != held_out["judged_on"]:
        parts += [paragraph(f"On {held_out['judged_on']}."), table(heads, rows(held_out), ours=ours)]
    return Section("learners", "Learners beside the stack", "".join(parts))


KEYS = ("log_loss", "accuracy", "auc")


def _classes(run: Run, metrics: Mapping[str, Any]) -> Section:
    shipped = metrics["systems"][run.shipped]
    names, counts = run.task.classes, np.array(shipped["confusion"])
    heads = ("class", "rows", "AUC against the rest", "recall")
    rows = []
    for k, name in enumerate(names):
        area = shipped["auc_by_class"].get(name)
        words = f"{area['value']:.4f} [{area['low']:.4f}, {area['high']:.4f}]" if area else ""
        n = int(counts[k].sum())
        rows.append((name, f"{n:,}", words, f"{counts[k, k] / n:.3f}" if n else ""))
    parts = [table(heads, rows)]
    if len(names) <= SHOWN_CLASSES:
        cells = [(name, *(f"{n:,}" for n in line)) for name, line in zip(names, counts.tolist(), strict=True)]
        parts += [paragraph("Rows by true class (lines) and predicted class (columns):")]
        parts += [table(("true", *names), cells)]
    return Section("classes", "Class by class", "".join(parts))


def _reliability(run: Run, metrics: Mapping[str, Any]) -> Section | None:
    test_rows = labelled_test_rows(run)
    if len(run.task.classes) > len(PALETTE):
        return None
    if test_rows is None:
        labels, log_proba = labelled_oof_rows(run, run.shipped)
    else:
        rows, labels, _ = test_rows
        log_proba = log_proba_of_test(run, run.shipped)[rows]
    calibration = run.manifest["reliability"][run.shipped]["calibrated"]
    least = calibration.get("of_perfect_posteriors")  # earlier runs do not have it
    perfect = "" if least is None else f"; right ones would show about {least:.4f} with so many rows"
    caption = (
        f"How often a class is true against the probability that {run.shipped} gave it, on {metrics['judged_on']}; "
        f"bars are {LEVEL_TEXT} binomial intervals. Expected calibration error on held-out rows: "
        f"{calibration['expected_calibration_error']:.4f}{perfect}."
    )
    figure = as_svg(reliability_picture(labels, log_proba, run.task.classes), "reliability diagram")
    return Section("reliability", "Calibration of the probabilities", pictures([picture(figure, caption)]))


def _importance(run: Run, metrics: Mapping[str, Any]) -> Section | None:
    gains = {}
    n_fits = int(run.manifest["identity"]["folds"]) * int(run.manifest["identity"]["repeats"])
    for name in run.learners:
        fits = (run.fit_folder(name, k) / TASK_FILE for k in range(n_fits))
        gain_of_column = column_gains(read_json(file).get("importances") for file in fits if file.exists())
        if gain_of_column:
            gains[name] = gain_of_column
    if not gains:
        return None
    columns = {column for gain in gains.values() for column in gain}
    mean = {c: float(np.mean([gain.get(c, 0.0) for gain in gains.values()])) for c in columns}
    ranked = sorted(columns, key=lambda c: (-mean[c], c))[:SHOWN_COLUMNS]
    rows = [(c, f"{100 * mean[c]:.1f}", *(f"{100 * gain.get(c, 0.0):.1f}" for gain in gains.values())) for c in ranked]
    note = paragraph(
        "Share of what each learner gains by splits on a column, %, mean over its fits. Columns that say the same "
        "thing share it; columns of many different values are favoured.",
        "quiet",
    )
    return Section("importance", "Which columns matter", table(("column", "mean", *gains), rows) + note)
