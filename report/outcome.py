"""What follows a finished run: scores where labels exist, the table that ends every run, the report; and the demo.

The table has each base learner beside the plain average and the stack, with intervals. The demo is the whole job on the
embedded simulation, both tasks: what ``make demo`` runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from showerstack.models.pretraining import SHOWERS_SEEN
from showerstack.report.card import write_card
from showerstack.report.run_page import write_report
from showerstack.report.shared.subject import ScoredSystem, read_labels, score_systems
from showerstack.report.shared.text import TABLE_HEADS, gain_text, metric_text, pooled_words, table_cells
from showerstack.report.table_page import write_table_report
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Bars, Context, silent
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import is_as_written, read_json
from showerstack.runtime.logs import remark
from showerstack.runtime.versions import SIMULATION_VERSION
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.metrics.composition import share_errors
from showerstack.scoring.metrics.intervals import linearised
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import paired_mean
from showerstack.scoring.score import metrics_path, score_file
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.base import Metric
from showerstack.scoring.tasks.text import plus_minus
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation import simulate
from showerstack.stacking.chain import COMBINED
from showerstack.stacking.config import StackConfig
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.stated import ChosenPool, Manifest
from showerstack.stacking.training.train import stack

LOG = logging.getLogger(__name__)

SPECTRUM_EVENTS = 10_000
"""Measured showers for which the table says how well shares are known."""


def learner_table(run: Path, data: Path) -> Table:
    """Return the learners, the average and the stack of a run on the test set of ``data``.

    For tasks with classes accuracy, log-loss and the metric, each ± one standard error or with its interval; for
    composition the metric of the most probable class. A run that trained published systems has, in place of the
    accuracy, the gains over that of them which has the better metric on the test set. Learners come in the order of
    their log-loss on held-out training showers, the best last. Test labels are read here, after everything was chosen.
    """
    opened = Run.open(run)
    truth = read_labels(opened, data)
    scoring = scoring_of(opened.task)
    metric = scoring.metric
    held_out = {row.name: row.log_loss for row in opened.manifest.learners if row.log_loss is not None}
    systems = sorted(score_systems(opened, truth), key=lambda one: -held_out.get(one.name, -math.inf))
    rivals = [one for one in systems if one.name.startswith("published.")]
    published = min(rivals, key=lambda one: one.value, default=None)
    title = f"{opened.task.name}, {len(truth.labels):,} test showers: {metric.name}"
    table = WholeTable(
        "", title=title, min_width=len(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), caption_justify="left", show_edge=False,
    )  # fmt: skip
    table.columns[0].no_wrap = True
    heads = [scoring.loss_name, HEADINGS.get(systems[0].system.rule, systems[0].system.rule)]
    if published is None:
        heads.insert(0, systems[0].beside.head)
    else:
        heads += [f"gain in\n{scoring.loss_name}", *([] if metric.logarithmic else [f"gain in\n{metric.name}"])]
    for column in heads:
        table.add_column(column, justify="right", no_wrap=True)
    for one in systems:
        if one.name == COMBINED[0]:
            for row in opened.manifest.learners:
                if row.status == "failed":
                    table.add_row(row.name, "left out", style="red")
            table.add_section()
        cells = [plus_minus(one.loss, one.loss_interval, 3), metric_text(one.value, one.interval, metric)]
        if published is None:
            cells.insert(0, one.beside.plus_minus)
        elif one is not published:
            cells += _gains(one, published, metric, truth)
        table.add_row(one.name, *cells, style="bold" if one.name == opened.shipped else None)
    table.caption = _caption(opened, systems, published, truth.labels)
    return table


HEADINGS = {"argmax": "raw (argmax)", "score": "at 75 % gamma efficiency"}
"""Of the metric's column, by how answers come about."""


def _gains(one: ScoredSystem, published: ScoredSystem, metric: Metric, truth: Truth) -> Iterator[str]:
    """Yield by how much a system is better than the published one, paired: in log-loss, and in the metric.

    Of a metric whose logarithm counts the intervals themselves say it.
    """
    less = linearised(published.losses - one.losses, truth.weights)
    yield gain_text(paired_mean(less, truth.groups), 3)
    if not metric.logarithmic:
        yield gain_text(metric.paired_of(truth, published.system.output, one.system.output), 3)


def _caption(run: Run, systems: Sequence[ScoredSystem], published: ScoredSystem | None, labels: np.ndarray) -> str:
    """Return what the table's numbers mean: errors, gains, what predicts new showers, what it is worth for a spectrum.

    What has learned from more showers than the others is named, and why the stack is one learner where it is.
    """
    out_of_fold = run.manifest.judged.on == "out-of-fold"
    scored_on = "out-of-fold predictions" if out_of_fold else "held-out showers"
    metric = scoring_of(run.task).metric
    lines = ["±: one standard error" + (f"; [a, b]: {LEVEL_TEXT} interval" if metric.logarithmic else "")]
    if published is not None:
        rivals = sum(one.name.startswith("published.") for one in systems)
        better = f", the best of {rivals} published systems in {metric.name}" if rivals > 1 else ""
        lines.append(f"gain: over {published.name}{better}")
    lines += filter(None, [pooled_words(run.manifest)])
    chosen = run.manifest.config.settings
    for one in systems:
        if one.name.startswith("pretrained"):
            seen = SHOWERS_SEEN.get(chosen.get(one.name, {}).get("weights", "shipped"))
            number = "" if seen is None else f"{seen / 1e6:.0f} million "
            lines.append(f"{one.name}: had learned from {number}other simulated showers before")
    if raced := [row.name for row in run.manifest.learners if row.left_the_race]:
        lines.append(f"{', '.join(raced)}: one fit, left out after it (--race off fits all)")
    pool = run.manifest.pool
    if len(pool.weights) == 1 and (pool.left_out or raced):
        lines.append(f"stack: {next(iter(pool.weights))} alone; {_why_alone(pool, run.manifest.config.prune)}")
    lines.append(f"used for new showers, as decided on {scored_on}: {run.shipped}")
    if run.task.name == COMPOSITION.name:
        by_name = {one.name: one.system.log_proba for one in systems}
        names = dict.fromkeys([*([published.name] if published else []), run.shipped])
        errors = [f"{_percent(share_errors(by_name[name], labels, SPECTRUM_EVENTS)[-1])} with {name}" for name in names]
        lines.append(
            f"share of {run.task.classes[-1]} in {SPECTRUM_EVENTS:,} showers, all classes alike: statistical error "
            f"{', '.join(errors)}"
        )
    return "\n" + "\n".join(lines)


def _why_alone(pool: ChosenPool, tolerance: float) -> str:
    """Return what is known of the learners that a stack of one does without."""
    if pool.left_out and pool.left_out[-1].cost >= tolerance:
        return "the pool of several learners has no lower log-loss"
    return f"leaving out all other learners costs less than {tolerance:g} in log-loss"


def _percent(error: float) -> str:
    """Return an error of a share, which is nothing that is known where it is larger than all that a share can be."""
    return f"{100 * error:.1f} %" if error < 1.0 else "not determined"


@dataclass(frozen=True)
class RunOutcome:
    """What a finished run has to say."""

    run: Path
    shown: RenderableType
    """Table of learners beside the stack, and where everything is."""
    content: dict[str, Any]
    """The same for programs: system used for new showers, metrics on the test set, learners, remarks, paths."""


def outcome(run: Path, data: Path | None = None, *, bars: Bars = silent) -> RunOutcome:
    """Score a run on the test set in ``data``, write report and model card; of one on a table, say what it reached.

    A test set without labels is left unscored, and the reader is told so. Scores, report and card that
    were written after the run and its labels stand.
    """
    opened = Run.open(run)
    manifest, task = opened.manifest, opened.task
    remark(LOG, manifest.remarks)
    parts: list[RenderableType] = list(_notes(manifest))
    gate = manifest.gate
    content: dict[str, Any] = {
        "run": str(run),
        "task": manifest.task,
        "shipped": manifest.shipped,
        "reason": gate.reason,
        "gain_claimed": gate.claimed,
        "learners": {row.name: row.status for row in manifest.learners},
        "remarks": manifest.remarks,
        "predictions": str(opened.predictions),
    }
    if opened.of_table or data is None:
        report = write_table_report(run, bars=bars)
        content["model_card"] = str(write_card(run))
        content |= {
            "held_out": opened.held_out_scores(),
            "predictions": str(opened.predictions_table),
            "report": str(report),
        }
        if opened.table_test_scores.exists():
            content["test"] = read_json(opened.table_test_scores)
        for metrics in (content["held_out"], content.get("test", {})):
            remark(LOG, metrics.get("remarks", ()))
        shown = (*parts, *_table_outcome(content), Text(f"report:      {report}"))
        return RunOutcome(run, Group(*shown), content)
    labels = data / f"{task.name}_test" / str(task.label_file)
    if not labels.exists():
        content["model_card"] = str(write_card(run))
        parts.append(Text(f"{data / f'{task.name}_test'} has no labels: predictions are in {opened.predictions}"))
        return RunOutcome(run, Group(*parts), content)
    report, scores = opened.report, metrics_path(opened.predictions, task)
    made = (report, scores, opened.card)
    if _is_after(made, (run / CHECKSUMS_FILE, labels)) and is_as_written(read_json(scores)):
        content |= {"test": read_json(scores), "report": str(report), "model_card": str(opened.card)}
    else:
        content["test"] = score_file(opened.predictions, data, task)
        report = write_report(run, data, bars=bars)
        content |= {"report": str(report), "model_card": str(write_card(run))}
    why = Text(escaped(f"why:        {content['reason']}"))
    parts += [learner_table(run, data), why, Text(f"run folder: {run}\nreport:     {report}")]
    return RunOutcome(run, Group(*parts), content)


def _is_after(made: tuple[Path, ...], sources: tuple[Path, ...]) -> bool:
    """Return whether all files that are made of others are there and were written after them."""
    if not all(file.exists() for file in made):
        return False
    oldest = min(file.stat().st_mtime_ns for file in made)
    return oldest >= max(file.stat().st_mtime_ns for file in sources)


def _table_outcome(content: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what a run on a table of any origin reached on rows held out, and where its predictions are."""
    for metrics in (content["held_out"], content.get("test")):
        if metrics is None:
            continue
        drawn = WholeTable("system", title=f"{metrics['judged_on']}, {LEVEL_TEXT} intervals", title_justify="left")
        for head in TABLE_HEADS.values():
            drawn.add_column(head, justify="right", no_wrap=True)
        for system, of_system in metrics["systems"].items():
            style = "bold" if system == metrics["shipped"] else None
            drawn.add_row(system, *table_cells(of_system), style=style)
        yield drawn
    yield Text(f"used:        {content['shipped']}; {content['reason']}\npredictions: {content['predictions']}")


def _notes(manifest: Manifest) -> Iterator[Text]:
    """Yield which learners failed or are one network."""
    for row in manifest.learners:
        if row.status != "ok":
            yield Text(escaped(f"learner {row.name} was left out, {row.error}"), style="bold red")
        if worse := row.one_network:
            yield Text(
                f"{row.name} is one network with the mean weights of its fits: log-loss {worse.difference:+z.5f} "
                f"[{worse.interval.low:+z.5f}, {worse.interval.high:+z.5f}] against their averaged predictions"
            )


OURS = ("lightgbm", "xgboost", "catboost", "lenet_fits", "pretrained")
"""Trees on our features, a network on grids, and the pretrained network."""
DEMO_LEARNERS: dict[str, tuple[str, ...]] = {
    COMPOSITION.name: ("published.rf5", "published.lenet", *OURS),
    GAMMA.name: ("published.gamma_rf", *OURS),
}
"""What the demo trains: published systems first, then ours."""
DEMO_WORLDS: dict[str, str] = {COMPOSITION.name: "default", GAMMA.name: "gammas"}
"""In which world: in the default one no hadron survives, whatever learns, and the table could show nothing."""


def run_demo(
    out: Path,
    *,
    n_train: int,
    n_test: int,
    seed: int = 1,
    console: Console,
    ctx: Context = Context(),
) -> None:
    """Simulate, extract features, stack, predict, verify and report, for both tasks, into ``out``.

    Simulated sets and finished runs that are there already, made with the same numbers, are used again; a run that was
    killed is continued. Sets of another size or seed are refused. Showers are drawn under the test's cuts.
    """
    started = time.monotonic()
    data = out / "data"
    for task in (COMPOSITION, GAMMA):
        console.rule(f"{task.name}: {n_train:,} training and {n_test:,} test showers")
        if not _simulated_already(data, task, n_train, n_test, seed):
            simulate(
                task,
                data,
                n_train=n_train,
                n_test=n_test,
                seed=seed,
                train_cuts="test",
                world=DEMO_WORLDS[task.name],
                workers=ctx.workers,
                overwrite=True,  # a set left alone by a killed demo has the same bytes
                bars=ctx.bars,
            )
        run = out / "runs" / task.name
        stack(
            StackConfig(
                task=task.name, data=data, run=run, preset="quick", learners=DEMO_LEARNERS[task.name], seed=seed,
                workers=ctx.workers,
            ),
            ctx,
        )  # fmt: skip
        console.print(outcome(run, data, bars=ctx.bars).shown, soft_wrap=True)
    console.rule(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    console.print(
        "The showers are simulated: scores tell how the methods compare here, not what they reach on KASCADE data.\n"
        f"Score again:  python verify.py --data {data} {out / 'runs' / 'composition' / 'predictions.npz'}\n"
        f"Try next:     python cli.py stack --preset good --task composition --data {data} --run {out / 'runs/good'}\n"
        f"              python cli.py spectra --help",
        soft_wrap=True,
    )


def _simulated_already(data: Path, task: Task, n_train: int, n_test: int, seed: int) -> bool:
    folders = {data / f"{task.name}_train": n_train, data / f"{task.name}_test": n_test}
    present = [folder for folder in folders if folder.exists()]
    for folder in present:
        wanted = folders[folder]
        dataset = Dataset.open(folder, task, labels=False)
        world, version = dataset.source.get("world"), dataset.source.get("simulation_version")
        if version != SIMULATION_VERSION:
            raise InputError(
                f"{folder} is of version {version} of the simulation, this is {SIMULATION_VERSION}: remove "
                f"{data.parent} or choose another --out"
            )
        if (len(dataset), dataset.source.get("seed"), world) != (wanted, seed, DEMO_WORLDS[task.name]):
            raise InputError(
                f"{folder} holds {len(dataset):,} events of seed {dataset.source.get('seed')} in the world {world}, "
                f"the demo asked for {wanted:,} of seed {seed} in {DEMO_WORLDS[task.name]}: remove {data.parent} or "
                "choose another --out"
            )
    return len(present) == len(folders)
