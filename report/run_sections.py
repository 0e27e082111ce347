"""The report's sections on how a run was made: training curves, choices, cost, provenance, importance of features.

A group of features matters by the gain that boosters count, and by the log-loss lost when it is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.features.table import FeatureTable, default_path
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.saving import HEADER_FILE
from showerstack.models.registry import LEARNERS, load
from showerstack.report.pictures.learners import training_picture
from showerstack.report.pictures.style import as_svg
from showerstack.report.shared.markup import Section, paragraph, picture, pictures, table
from showerstack.report.shared.subject import EvaluatedRun
from showerstack.report.shared.text import duration, totals
from showerstack.runtime.cost import Deadline, is_over
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.scoring.tasks.text import short
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.explain import group_of
from showerstack.stacking.fits import HISTORY_FILE, Fit, fold_folder
from showerstack.stacking.run import Run

IMPORTANCE_S = 3.0
"""Processor time that the importance of one learner's columns takes, s: its library is imported in another process."""
GALLERY_S = 3.0
"""Processor time of the displays of single showers, s."""


def no_time_for(run: Run, deadline: Deadline | None) -> tuple[str, ...]:
    """Return the slow parts of a run's report for which a time limit leaves no time: those that are wanted least."""
    takes_s = {"gallery": GALLERY_S if run.has_grids and not run.task.target else 0.0}
    takes_s["importance"] = IMPORTANCE_S * len(run.learners)
    left_out: list[str] = []
    for name in ("importance", "gallery"):
        if takes_s[name] and is_over(deadline, sum(takes_s.values())):
            left_out.append(name)
            takes_s[name] = 0.0
    return tuple(left_out)


def left_out_line(without: Sequence[str], run: Path, data: Path | None = None) -> str:
    """Return what a report says of the parts that are left out of it."""
    command = f"python cli.py report {run}" + (f" --data {data}" if data else "")
    return f"left out of the report to keep the time limit: {', '.join(without)}; {command} makes them"


def left_out_section(without: Sequence[str], run: Path, data: Path | None = None) -> list[Section]:
    """Return a section that says what is left out, if anything is."""
    if not without:
        return []
    return [Section("left-out", "Left out", paragraph(escaped(left_out_line(without, run, data)), "warn"))]


def training(evaluated: EvaluatedRun) -> Section | None:
    """Return validation curves of the first fold of each learner that has epochs or rounds."""
    curves = {}
    for name in evaluated.run.learners:
        file = (fold_folder(Path(), name, 0) / HISTORY_FILE).as_posix()
        if file in evaluated.run.checksums.files:
            losses = [float(loss) for loss in read_json(evaluated.run.checksums.path(file))["valid_log_loss"]]
            if len(losses) > 1:
                curves[name] = losses
    if not curves:
        return None
    caption = (
        "Log-loss on the early-stopping split (cut from the training folds) in each learner's first fold, from its "
        "first epoch or round to its last; the marker is the best."
    )
    figure = as_svg(training_picture(curves), "validation log-loss by epoch or round")
    return Section("training", "Learning curves", pictures([picture(figure, caption)]))


def choices(evaluated: EvaluatedRun) -> Section | None:
    """Return what was chosen on held-out showers: the pool with its weights, and thresholds."""
    return choices_of(evaluated.run.manifest)


def choices_of(manifest: Mapping[str, Any]) -> Section | None:
    """Return what a run's manifest says of its choices."""
    parts = []
    pool = manifest.get("pool", {})
    if pool.get("log_losses"):
        rows = [(name.replace("_", " "), f"{loss:.5f}") for name, loss in pool["log_losses"].items()]
        chosen = str(pool.get("chosen")).replace("_", " ")
        parts.append(paragraph(f"Pool: {chosen}, the simplest within one standard error in folds of the training set."))
        parts.append(table(("pool", "log-loss"), rows))
        parts.append(
            paragraph(
                "These numbers only choose, on out-of-fold predictions of single fits; they carry no intervals.",
                "quiet",
            )
        )
    if isinstance(pool.get("weights"), dict):
        rows = [(name, f"{weight:.3f}") for name, weight in pool["weights"].items() if isinstance(weight, float)]
        parts.append(table(("learner", "weight in the stack"), rows))
    decision = manifest.get("decision", {})
    if decision.get("thresholds"):
        parts.append(_thresholds(decision["thresholds"]))
    parts += [paragraph(str(remark), "warn") for remark in manifest.get("remarks", [])]
    return Section("choices", "What was chosen on held-out training events", "".join(parts)) if parts else None


def _thresholds(rows: list[dict[str, Any]]) -> str:
    """Return thresholds by gamma efficiency, with the purity to expect in a real mixture."""
    ratios = list(rows[0].get("purity", {}))
    heads = ["gamma efficiency", "threshold", "hadron survival", *(f"purity at 1:{1 / float(r):,.0f}" for r in ratios)]
    cells = []
    for row in rows:
        low, high = row["hadron_survival_interval"]
        line = [f"{row['gamma_efficiency']:.3f}", f"{row['threshold']:.3f}"]
        quoted = f"{short(row['hadron_survival'])} [{short(low)}, {short(high)}]"
        line.append(quoted if row.get("quoted", True) else f"< {short(high)}")
        for ratio in ratios:
            bottom, top = row["purity"][ratio]["interval"]
            line.append(f"{bottom:.2g} to {top:.2g}")
        cells.append(line)
    note = paragraph(
        "Scores of held-out training showers under the test's cuts. Purity: share of true gammas among the "
        f"selected, {LEVEL_TEXT} interval, for one gamma in so many hadrons.",
        "quiet",
    )
    return "<h3>Thresholds for use</h3>" + table(heads, cells) + note


def cost(evaluated: EvaluatedRun) -> Section | None:
    """Return time and memory of each step, folds summed."""
    return cost_of(evaluated.run.manifest)


def cost_of(manifest: Mapping[str, Any]) -> Section | None:
    """Return what a run's manifest says of its cost."""
    steps = manifest.get("steps", [])
    if not steps:
        return None
    grouped: dict[str, list[dict[str, Any]]] = {}
    for step in steps:
        name = f"{step.get('step')} {step['learner']}" if step.get("learner") else str(step.get("step"))
        grouped.setdefault(name, []).append(step)
    rows = []
    for name, members in [*grouped.items(), ("all", steps)]:
        result = totals(members)
        rows.append(
            (
                name,
                f"{len(members)}",
                duration(result["wall_s"]),
                duration(result["cpu_s"]),
                f"{result['peak_mb']:,.0f}",
            )
        )
    heads = ("step", "tasks", "wall-clock, summed", "CPU time", "peak memory, MB")
    note = paragraph("Tasks may have run side by side: wall-clock sums over them.", "quiet")
    return Section("cost", "Cost", table(heads, rows, ours=[len(rows) - 1]) + note)


def provenance(evaluated: EvaluatedRun) -> Section:
    """Return what is needed to make the run again."""
    source = [(f"test set: {key}", str(value)) for key, value in evaluated.dataset.source.items()]
    rows = provenance_rows(evaluated.run.manifest, source)
    return Section("provenance", "Provenance", table(("", ""), rows, kind="wide"))


def provenance_rows(manifest: Mapping[str, Any], source: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return a manifest's entries by which a run can be made again; ``source`` stands after its data."""
    rows = [
        ("model card", "model_card.md beside this page"),
        ("configuration hash", str(manifest.get("config_hash"))),
        ("source revision", str(manifest.get("git_revision"))),
        *((key, str(manifest[key])) for key in ("started", "machine", "command") if manifest.get(key)),
        ("seed", str(manifest.get("seed"))),
        ("device", str(manifest.get("device"))),
    ]
    data = {key: value for key, value in manifest.get("data", {}).items() if not isinstance(value, dict)}
    rows += [(f"data: {key.replace('_', ' ')}", str(value)) for key, value in data.items()]
    rows += source
    rows += [(f"option: {key}", str(value)) for key, value in manifest.get("config", {}).items() if value is not None]
    rows += [(f"version: {name}", str(version)) for name, version in manifest.get("versions", {}).items()]
    return rows


MAX_EVENTS = 2000
"""Test events on which groups are shuffled."""
SEED = 11


@dataclass(frozen=True)
class Importance:
    """Importance of the groups for one learner."""

    learner: str
    gain: dict[str, float] | None
    """Share of the gain by group, mean over folds; None where the learner counts none."""
    shuffled: dict[str, Paired]
    """Log-loss with the group shuffled minus without, fold 0; empty where it was not measured."""
    columns: dict[str, float] = field(default_factory=dict)
    """Share of the gain by column, as ``gain``."""


def importances(evaluated: EvaluatedRun) -> list[Importance]:
    """Return the importance of feature groups for every table learner of the run; the best one is also shuffled."""
    run = evaluated.run
    entries = [row for row in run.manifest.get("learners", []) if row["name"] in run.learners and row.get("features")]
    folds = {row["name"]: _folds(run, row["name"]) for row in entries}
    entries = [row for row in entries if folds[row["name"]] and row["name"] in LEARNERS]
    if not entries:
        return []
    best = min(entries, key=lambda row: row.get("log_loss") or np.inf)["name"]
    result = []
    for row in entries:
        learners = [load(run.fit_folder(row["name"], fold)) for fold in folds[row["name"]]]
        shuffled = _shuffled(evaluated, learners[0], row) if row["name"] == best and not evaluated.task.target else {}
        columns = column_gains(learner.importances() for learner in learners)
        result.append(Importance(row["name"], _by_group(columns), shuffled, columns))
    return result


def _folds(run: Run, learner: str) -> Sequence[Fit]:
    """Return the fits of a learner that the run's checksums name: 0 .. K - 1, or None where they are one network."""

    def saved(fit: Fit) -> bool:
        return (fold_folder(Path(), learner, fit) / HEADER_FILE).as_posix() in run.checksums.files

    return [None] if saved(None) else [k for k in range(len(run.checksums.files)) if saved(k)]


def column_gains(fits: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """Return the share of the gain by column, mean over fits; empty where the learner counts none."""
    result: dict[str, float] = {}
    counted = [gain for gain in fits if gain]
    for gain in counted:
        for column, share in gain.items():
            result[column] = result.get(column, 0.0) + share / len(counted)
    return result


def _by_group(columns: dict[str, float]) -> dict[str, float] | None:
    by_group: dict[str, float] = {}
    for column, share in columns.items():
        by_group[group_of(column)] = by_group.get(group_of(column), 0.0) + share
    return by_group or None


def _shuffled(evaluated: EvaluatedRun, learner: Learner, row: dict[str, Any]) -> dict[str, Paired]:
    folder = default_path(evaluated.truth.folder)
    try:
        FeatureTable.open(folder)
    except InputError:
        return {}  # the run's own feature table is gone: gains can still be shown
    events = ShowerEvents(evaluated.truth.folder, folder, evaluated.task)
    rng = np.random.default_rng(SEED)
    n_events = len(evaluated.labels)
    rows = np.sort(rng.choice(n_events, min(MAX_EVENTS, n_events), replace=False))
    columns = tuple(row["features"])
    batch = events.batch(rows, columns, grids=bool(row.get("needs_grid")))
    labels = evaluated.labels[rows].astype(np.int64)
    weights = None if evaluated.truth.weights is None else evaluated.truth.weights[rows]
    before = learner.predict_log_proba(batch)
    order = rng.permutation(len(rows))
    return {
        group: paired_log_loss(labels, learner.predict_log_proba(shuffle(batch, group, order)), before, weights=weights)
        for group in dict.fromkeys(map(group_of, columns))
    }


def shuffle(batch: Batch, group: str, order: np.ndarray) -> Batch:
    """Return the batch with all table columns of one group taken from other events, (n,) ``order``."""
    assert batch.table is not None
    table = batch.table.copy(order="F")
    for k, column in enumerate(batch.columns):
        if group_of(column) == group:
            table[:, k] = table[order, k]
    return replace(batch, table=table)
