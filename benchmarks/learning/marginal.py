"""What each learner of a run is worth: what leaving it out of the meta-learner costs, beside its processor time.

    python -m benchmarks.learning.marginal --work marginal --world harder --train 10000 --test 20000
    python -m benchmarks.learning.marginal runs/good runs/slow --without physics,hybrid --without random_forest

Finished runs are read, or one of a preset is made on simulated showers under the cuts; killed and started again, it
continues. Several runs of the same showers, folds and seed count as one, so that a learner can be added to a finished
run (``--apart`` makes its run last). The non-negative log-linear pool is fitted to the out-of-fold predictions, with
all learners and without each, and compared on rows that chose nothing: on out-of-fold rows with the pool fitted to
the other folds (single fits), and on the test set, where the averages of fits that ship are judged. Positive: leaving
it out costs. Intervals are 95 %, paired. ``beside the best`` is the pool of a learner and the best one minus that of
the best alone. Processor time is that of all fits with their predictions; the time of a prediction is measured here,
features aside. A row ``all`` has the losses of all learners together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.shared.samples import sample
from showerstack.features.build import build_table
from showerstack.report.shared.subject import read_labels
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.classes import gamma_scores
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.tasks import metric_for
from showerstack.scoring.tasks.base import Metric
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA, TASKS, Task
from showerstack.stacking.config import StackConfig
from showerstack.stacking.estimates import PosteriorMean
from showerstack.stacking.events import ShowerEvents, binned, class_numbers
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import average_of, cross_validated, fit_pool
from showerstack.stacking.training.train import stack

POOL = "log_pool"
TIMED_EVENTS = 2_000


@dataclass(frozen=True)
class Learners:
    """What the learners of one or several runs say."""

    task: Task
    inner: Mapping[str, np.ndarray]
    """By learner, (N, C) log-probabilities out-of-fold, by single fits."""
    sample: Sample
    """The N events."""
    test: Mapping[str, np.ndarray]
    """By learner, (n, C) log-probabilities of the test events, as they ship."""
    truth: Truth
    output: Callable[[np.ndarray], np.ndarray]
    """From (n, C) log-probabilities of the test events to what the task's metric judges, (n,)."""
    training_s: dict[str, float]
    """Processor time of all fits."""
    predict_us: dict[str, float]
    """Processor time of a prediction as runs make it."""
    known: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Pools that were fitted."""

    def pools(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pool of some learners, (N, C) out-of-fold and (n, C) of the test events."""
        key = tuple(name for name in self.inner if name in names)
        if key not in self.known:
            part = {name: self.inner[name] for name in key}
            whole = fit_pool(POOL, part, self.sample)
            self.known[key] = cross_validated(POOL, part, self.sample), whole(self.test)
        return self.known[key]

    def compared(self, names: Sequence[str], base: Sequence[str]) -> list[Paired]:
        """Return a pool minus another: log-loss out-of-fold, log-loss (not of targets) and metrics on the test set."""
        (nested, test), (nested_base, test_base) = self.pools(names), self.pools(base)
        labels, groups = self.truth.labels, self.truth.groups
        result = [paired_log_loss(self.sample.labels, nested, nested_base, self.sample.groups)]
        if self.task.target is None:
            result.append(paired_log_loss(labels, test, test_base, groups))
        a, b = self.output(test), self.output(test_base)
        return result + [metric.paired(labels, a, b, groups) for metric in measures_of(self.task)]


def read(folders: Sequence[Path]) -> Learners:
    """Read the learners of finished runs of the same showers, folds and seed.

    Raises
    ------
    InputError
        If the runs differ in showers or folds, name a learner twice, or their showers have importance weights.
    """
    runs = [Run.open(folder) for folder in folders]
    first = runs[0]
    owners = [(run, name) for run in runs for name in run.learners]
    names = tuple(name for _, name in owners)
    if len(set(names)) < len(names):
        raise InputError(f"a learner is in two of the runs {', '.join(map(str, folders))}: name runs of other learners")
    out_of_fold = [run.oof(name) for run, name in owners]
    log_proba, folds = np.stack([z for z, _ in out_of_fold]), out_of_fold[0][1]
    test_sets = {str(run.manifest.data.test_fingerprint) for run in runs}
    if len(test_sets) > 1 or any(not np.array_equal(folds, other) for _, other in out_of_fold):
        raise InputError(f"{', '.join(map(str, folders))} differ in showers or folds: name runs of the same seed")
    train_set = Dataset.open(Path(first.manifest.data.train), first.task)
    train_set.refuse_weighted("the worth of learners")
    rows = (folds >= 0) & np.isfinite(log_proba).all(axis=(0, 2))
    labels, groups = class_numbers(train_set, first.task), train_set.groups
    sample = Sample(labels[rows], folds[rows], None if groups is None else np.asarray(groups)[rows])
    inner = {name: z[rows] for name, z in zip(names, log_proba, strict=True)}
    test_folder = Path(first.manifest.data.test)
    truth = read_labels(first, test_folder.parent)
    test = {name: average_of(RunFolder(run.folder).read_fits(name, run.chain.fits(name))) for run, name in owners}
    steps = [step for run in runs for step in run.manifest.steps if step.step == "train"]
    training = {name: sum(step.cpu_s for step in steps if step.learner == name) for name in names}
    events = ShowerEvents(test_folder, build_table(test_folder, ctx=Context(workers=1)).folder, first.task)
    speed = {name: predict_us(run, name, events) for run, name in owners}
    return Learners(
        first.task, inner, sample, test, truth, _output(first.task, train_set, truth, rows), training, speed
    )


def _output(task: Task, train_set: Dataset, truth: Truth, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    if task.target is None:
        return gamma_scores if task.name == GAMMA.name else lambda log_proba: np.argmax(log_proba, axis=1)
    bins = binned(train_set)
    rule = PosteriorMean.of(bins.offsets[rows], bins.labels[rows], task.n_classes)
    start = 0.0 if truth.reference is None else truth.reference.astype(np.float64)
    return lambda log_proba: rule(log_proba)[0] + start


def predict_us(run: Run, name: str, events: ShowerEvents) -> float:
    """Return the processor time of a prediction of what is used of a learner, microseconds, features aside."""
    fits = run.fits(name)
    rows = np.arange(min(TIMED_EVENTS, len(events)))
    batch = events.batch(rows, fits.columns, grids=fits.needs_grid)
    learner, used = fits.fits[0].open(), []
    for _ in range(3):  # the first loads libraries and compiles
        started = time.process_time()
        learner.predict_log_proba(batch)
        used.append(time.process_time() - started)
    return 1e6 * min(used) * len(fits.fits) / len(rows)


def table(learners: Learners, without: Sequence[Sequence[str]] = ()) -> str:
    """Return the table as Markdown; ``without`` are sets of learners that are left out together."""
    every, task = tuple(learners.inner), learners.task
    nested, test = learners.pools(every)
    losses = [_loss(nested, learners.sample.labels)]
    losses += [_loss(test, learners.truth.labels)] if task.target is None else []
    output = learners.output(test)
    losses += [f"{metric.value(learners.truth.labels, output):.4g}" for metric in measures_of(task)]
    whole = sum(learners.training_s.values())
    single = {name: learners.pools([name])[0] for name in every}
    best = min(every, key=lambda name: _mean_loss(single[name], learners.sample.labels))
    beside_at = 1 if task.target is None else 0
    rows = []
    for gone in [*((name,) for name in every), *without]:
        rest = [name for name in every if name not in gone] or every  # one learner alone: nothing is left out
        costs = [
            _words(one, "+.5f" if k <= beside_at else "+.2g") for k, one in enumerate(learners.compared(rest, every))
        ]
        beside = ""
        if len(gone) == 1 and gone[0] != best:
            beside = _words(learners.compared([best, gone[0]], [best])[beside_at], "+.5f")
        time_s, slow_us = (sum(of[name] for name in gone) for of in (learners.training_s, learners.predict_us))
        words = f"{', '.join(gone)} (best)" if gone == (best,) else ", ".join(gone)
        rows.append((time_s, [words, *costs, beside, f"{time_s:.0f}", f"{100 * time_s / whole:.1f}", f"{slow_us:.0f}"]))
    singles = sorted(rows[: len(every)], key=lambda row: -row[0])
    head = ["left out", "log-loss, out-of-fold", *(["log-loss, test"] if task.target is None else [])]
    head += [*(metric.name for metric in measures_of(task)), "beside the best", "CPU s", "% of it", "us an event"]
    last = ["all: " + str(len(every)), *losses, "", f"{whole:.0f}", "100", f"{sum(learners.predict_us.values()):.0f}"]
    size = f"{len(learners.sample.labels):,} out-of-fold rows, {len(learners.truth.labels):,} test showers"
    return f"{task.name}: {size}\n\n" + markdown(head, [row for _, row in [*singles, *rows[len(every) :]]] + [last])


def _mean_loss(log_proba: np.ndarray, labels: np.ndarray) -> float:
    return float(event_losses(log_proba, labels).mean())


def _loss(log_proba: np.ndarray, labels: np.ndarray) -> str:
    return f"{_mean_loss(log_proba, labels):.5f}"


def _words(paired: Paired, style: str) -> str:
    low, high = paired.interval.low, paired.interval.high
    return f"{paired.difference:{style}} [{low:{style}}, {high:{style}}]"


def made(options: argparse.Namespace) -> list[Path]:
    """Simulate and train where needed; return the folders of the runs."""
    task = TASKS[options.task]
    data = sample(
        task, options.work, n_train=options.train, n_test=options.test, seed=options.seed, world=options.world,
        workers=1, bars=bar,
    )  # fmt: skip
    config = StackConfig(
        task=task.name, data=data, run=options.work / f"run-{options.world}-{data.name}", preset=options.preset,
        learners=options.learners, folds=options.folds, seed=options.seed, device="cpu", workers=options.workers,
        pools=(POOL,),
    )  # fmt: skip
    names = tuple(entry.name for entry in config.learner_specs(task))
    apart = tuple(name for name in options.apart.split(",") if name in names)
    parts = [tuple(name for name in names if name not in apart), *((name,) for name in apart)]
    folders = []
    for part in filter(None, parts):
        folder = config.run.with_name(f"{config.run.name}-{part[0]}") if part[0] in apart else config.run
        stack(config.model_copy(update={"learners": part, "run": folder}), Context(bars=bar))
        folders.append(folder)
        print(table(read(folders), _sets(options.without, read_names(folders))), flush=True)
    return folders


def read_names(folders: Sequence[Path]) -> set[str]:
    """Return the learners of some runs."""
    return {name for folder in folders for name in Run.open(folder).learners}


def _sets(texts: Sequence[str], names: set[str]) -> list[tuple[str, ...]]:
    sets = [tuple(name for name in text.split(",") if name in names) for text in texts]
    return [one for one in sets if 1 < len(one) < len(names)]


def measures_of(task: Task) -> list[Metric]:
    """Return the task's metric and, for gammas, the survival at 95 % efficiency, where more hadrons are left."""
    if task.name != GAMMA.name:
        return [metric_for(task)]
    high = Metric(
        "survival at 95 %",
        "share at 95 % gamma efficiency",
        lambda labels, scores: hadron_survival(labels, scores, 0.95).hadron_survival,
        lambda labels, scores: survival_interval(labels, scores, efficiency=0.95),
        lambda labels, a, b: paired_survival(labels, a, b, efficiency=0.95),
    )
    return [metric_for(task), high]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    """Make runs where asked for, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="finished run folders; none: one is made below --work")
    parser.add_argument("--without", action="append", default=[], help="comma-separated: left out together")
    parser.add_argument("--work", type=Path, default=Path("marginal"), help="folder for showers and runs")
    parser.add_argument("--task", default="composition", choices=list(TASKS))
    parser.add_argument("--world", default="default", help="default, harder, easier, gammas, foreign")
    parser.add_argument("--train", type=int, default=10_000, help="training showers under the test's cuts")
    parser.add_argument("--test", type=int, default=20_000)
    parser.add_argument("--folds", type=int, help="the preset's where none are named")
    parser.add_argument("--preset", default="good")
    parser.add_argument("--learners", help="comma-separated; the preset's where none are named")
    parser.add_argument("--apart", default="", help="comma-separated: each in a run of its own, after the others")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    if options.runs:
        print(table(read(options.runs), _sets(options.without, read_names(options.runs))))
    else:
        made(options)


if __name__ == "__main__":
    main()
