"""The report's sections on how a run was made: training curves, choices, cost, provenance, importance of features.

A group of features matters by the gain that boosters count, and by the log-loss lost when it is shuffled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from showerstack.features.table import FeatureTable, default_path
from showerstack.models.base.learner import Batch
from showerstack.models.registry import LEARNERS, open_predictor
from showerstack.report.pictures.learners import training_picture
from showerstack.report.pictures.style import as_svg
from showerstack.report.shared.markup import Section, heading, joined, paragraph, picture, pictures, table
from showerstack.report.shared.subject import EvaluatedRun
from showerstack.report.shared.text import duration, totals
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.scoring.tasks.text import short
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.prediction.explain import group_of
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.stated import Step, Threshold


def how_it_was_made(run: Run, source: Mapping[str, Any] | None = None) -> list[Section]:
    """Return choices, learning curves, cost and provenance of a run; ``source`` is what its test set says of itself."""
    return [part for part in (choices(run), training(run), cost(run), provenance(run, source)) if part]


def training(run: Run) -> Section | None:
    """Return validation curves of the first fold of each learner that has epochs or rounds."""
    curves = {}
    for name in run.learners:
        history = next(run.histories(name), None)
        if history and len(history.valid_log_loss) > 1:
            curves[name] = history.valid_log_loss
    if not curves:
        return None
    caption = (
        "Log-loss on the early-stopping split (cut from the training folds) in each learner's first fold, from its "
        "first epoch or round to its last; the marker is the best."
    )
    figure = as_svg(training_picture(curves), "validation log-loss by epoch or round")
    return Section("training", "Learning curves", pictures([picture(figure, caption)]))


def choices(run: Run) -> Section:
    """Return what was chosen on held-out showers: the pool with its weights, and thresholds."""
    manifest = run.manifest
    parts = []
    pool = manifest.pool
    if pool.log_losses:
        rows = [(name.replace("_", " "), f"{loss:.5f}") for name, loss in pool.log_losses.items()]
        chosen = pool.chosen.replace("_", " ")
        parts.append(paragraph(f"Pool: {chosen}, the simplest within one standard error in folds of the training set."))
        parts.append(table(("pool", "log-loss"), rows))
        parts.append(
            paragraph(
                "These numbers only choose, on out-of-fold predictions of single fits; they carry no intervals.",
                "quiet",
            )
        )
    rows = [(name, f"{weight:.3f}") for name, weight in pool.weights.items()]
    parts.append(table(("learner", "weight in the stack"), rows))
    if manifest.decision.thresholds:
        parts.append(_thresholds(manifest.decision.thresholds))
    parts += [paragraph(str(remark), "warn") for remark in manifest.remarks]
    return Section("choices", "What was chosen on held-out training events", joined(parts))


def _thresholds(rows: list[Threshold]) -> Markup:
    """Return thresholds by gamma efficiency, with the purity to expect in a real mixture."""
    ratios = list(rows[0].purity)
    heads = ["gamma efficiency", "threshold", "hadron survival", *(f"purity at 1:{1 / float(r):,.0f}" for r in ratios)]
    cells = []
    for row in rows:
        low, high = row.hadron_survival_interval
        line = [f"{row.gamma_efficiency:.3f}", f"{row.threshold:.3f}"]
        quoted = f"{short(row.hadron_survival)} [{short(low)}, {short(high)}]"
        line.append(quoted if row.quoted else f"< {short(high)}")
        for ratio in ratios:
            bottom, top = row.purity[ratio].interval
            line.append(f"{bottom:.2g} to {top:.2g}")
        cells.append(line)
    note = paragraph(
        "Scores of held-out training showers under the test's cuts. Purity: share of true gammas among the "
        f"selected, {LEVEL_TEXT} interval, for one gamma in so many hadrons.",
        "quiet",
    )
    return heading("Thresholds for use") + table(heads, cells) + note


def cost(run: Run) -> Section:
    """Return time and memory of each step, folds summed."""
    steps = run.manifest.steps
    grouped: dict[str, list[Step]] = {}
    for step in steps:
        name = f"{step.step} {step.learner or ''}".rstrip()
        grouped.setdefault(name, []).append(step)
    rows = []
    for name, members in [*grouped.items(), ("all", steps)]:
        sums = totals(members)
        times = duration(sums.wall_s), duration(sums.cpu_s)
        rows.append((name, f"{len(members)}", *times, f"{sums.peak_mb:,.0f}"))
    heads = ("step", "tasks", "wall-clock, summed", "CPU time", "peak memory, MB")
    note = paragraph("Tasks may have run side by side: wall-clock sums over them.", "quiet")
    return Section("cost", "Cost", table(heads, rows, ours=[len(rows) - 1]) + note)


def provenance(run: Run, source: Mapping[str, Any] | None = None) -> Section:
    """Return what is needed to make the run again, and ``source.json`` of its test set."""
    manifest = run.manifest
    rows = [
        ("model card", "model_card.md beside this page"),
        ("configuration hash", manifest.config_hash),
        ("source revision", str(manifest.git_revision)),
        *((key, value) for key in ("started", "machine", "command") if (value := getattr(manifest, key))),
        ("seed", str(manifest.seed)),
        ("device", manifest.device),
        *((f"precision: {row.name}", ", ".join(row.precision)) for row in manifest.learners if row.precision),
    ]
    data = {key: value for key, value in manifest.data.as_json().items() if not isinstance(value, dict)}
    rows += [(f"data: {key.replace('_', ' ')}", str(value)) for key, value in data.items()]
    rows += [(f"test set: {key}", str(value)) for key, value in (source or {}).items()]
    rows += [(f"option: {key}", str(value)) for key, value in manifest.config.as_json().items() if value is not None]
    rows += [(f"version: {name}", version) for name, version in manifest.versions.items()]
    return Section("provenance", "Provenance", table(("", ""), rows, kind="wide"))


MAX_EVENTS = 2000
"""Test events on which groups are shuffled."""
SEED = 11


def column_gains(run: Run) -> dict[str, dict[str, float]]:
    """Return the share of the gain by column, mean over fits, of each learner that counts it."""
    gains: dict[str, dict[str, float]] = {}
    for name in run.learners:
        counted = [gain for record in run.records(name) if (gain := record.importances)]
        for gain in counted:
            shares = gains.setdefault(name, {})
            for column, share in gain.items():
                shares[column] = shares.get(column, 0.0) + share / len(counted)
    return gains


def ranked_columns(gains: Mapping[str, Mapping[str, float]], n: int) -> dict[str, tuple[float, list[float]]]:
    """Return the n columns of the largest gain, in per cent: the mean over learners, and that of each."""
    columns = {column for gain in gains.values() for column in gain}
    shares = {column: [100 * gain.get(column, 0.0) for gain in gains.values()] for column in columns}
    means = {column: float(np.mean(of_learners)) for column, of_learners in shares.items()}
    return {column: (means[column], shares[column]) for column in sorted(columns, key=lambda c: (-means[c], c))[:n]}


def group_gains(columns: Mapping[str, float]) -> dict[str, float]:
    """Return shares of the gain by group of features."""
    by_group: dict[str, float] = {}
    for column, share in columns.items():
        by_group[group_of(column)] = by_group.get(group_of(column), 0.0) + share
    return by_group


def shuffled_losses(evaluated: EvaluatedRun) -> tuple[str, dict[str, Paired]] | None:
    """Return the best learner on features, and its log-loss with each group of them shuffled minus without.

    By one fit. None of tasks with a target, and where the learner or the test set's feature table is gone.
    """
    run, folder = evaluated.run, default_path(evaluated.truth.folder)
    rows = [row for row in run.manifest.learners if row.name in run.learners and row.features]
    rows = [row for row in rows if row.name in LEARNERS]
    if not rows or evaluated.task.target:
        return None
    try:
        FeatureTable.open(folder)
    except InputError:
        return None
    best = min(rows, key=lambda row: math.inf if row.log_loss is None else row.log_loss)
    learner = open_predictor(run.fit_folder(best.name, None if best.one_network else 0))
    events = ShowerEvents(evaluated.truth.folder, folder, evaluated.task)
    rng = np.random.default_rng(SEED)
    n_events = len(evaluated.labels)
    chosen = np.sort(rng.choice(n_events, min(MAX_EVENTS, n_events), replace=False))
    columns = tuple(best.features or ())
    batch = events.batch(chosen, columns, grids=best.needs_grid)
    labels = evaluated.labels[chosen].astype(np.int64)
    counted = evaluated.truth.take(chosen).counted
    before = learner.predict_log_proba(batch)
    order = rng.permutation(len(chosen))
    losses = {}
    for group in dict.fromkeys(map(group_of, columns)):
        after = learner.predict_log_proba(shuffle(batch, group, order))
        losses[group] = paired_log_loss(labels, after, before, **counted)
    return str(best.name), losses


def shuffle(batch: Batch, group: str, order: np.ndarray) -> Batch:
    """Return the batch with all table columns of one group taken from other events, (n,) ``order``."""
    assert batch.table is not None
    table = batch.table.copy(order="F")
    for k, column in enumerate(batch.columns):
        if group_of(column) == group:
            table[:, k] = table[order, k]
    return replace(batch, table=table)
