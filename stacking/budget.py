"""How much time and memory a run may take: a plan made once, obeyed to the deadline, and memory estimated beforehand.

The plan is kept in the run's folder as a part of its identity. Memory is compared with what the machine has to give
before the run starts. Counted are the largest arrays that exist at the same time in one process, per training event:

=================  ====================================================================
boosted trees      4 bytes a feature, and 1 (LightGBM) to 20 (CatBoost) for its own copy
forests            4 bytes a feature, and 1 kB of trees for each of at most 300,000 events
quadratic logit    6 kB for each of at most 200,000 events
networks           8 bytes a feature; grids of 1 kB, as far as they take less than 1 GiB
all                0.6 GB for the libraries
=================  ====================================================================

The process that combines needs 8 bytes for each learner and class of an event under the evaluation cuts, three times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.models.base.spec import RESIDENT_BYTES, LearnerSpec
from showerstack.runtime.cost import Deadline, in_words, seconds_of
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_json, read_json, write_json
from showerstack.runtime.processes import by_device
from showerstack.stacking.fit.folds import evaluation_events
from showerstack.stacking.fit.plan import RunPlan, RunSizes, SecondLevel, make_plan, student_epochs
from showerstack.stacking.fit.speed import LearnerRate, measure_rates
from showerstack.stacking.fit.tasks import TASK_FILE, FoldTask
from showerstack.stacking.run.job import Job

LIBRARIES = 600_000_000
GRID_BYTES = 1024
TABLE_BYTES = 4
COPY_BYTES = {"lightgbm": 5, "xgboost": 10, "catboost": 20, "hist_boosting": 13, "forest": 8, "quadratic": 4}
"""Bytes a feature and event beside the table itself, by kind of learner."""
NETWORK_BYTES = 8
CAPPED_BYTES = {"forest": (300_000, 1000), "quadratic": (200_000, 6000)}
"""Events that count at most, and bytes of each, by kind of learner."""
COPIES = 3


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at its worst."""

    task: dict[str, int]
    """By learner, of one fit's process."""
    combining: int
    """Of the process that combines the learners."""

    def at(self, workers: int) -> int:
        """Return the bytes with so many fits at once: the largest of them together."""
        largest = sorted(self.task.values(), reverse=True)[:1] * workers
        return max(sum(largest), self.combining) + LIBRARIES

    def remark(self, workers: int, available: int | None) -> str | None:
        """Return what to do where memory is short; None where it is not."""
        if available is None or self.at(workers) <= available:
            return None
        name = max(self.task, key=lambda learner: self.task[learner])
        message = (
            f"memory may not suffice: {workers} fits at once may need {_gb(self.at(workers))} (most of all {name}, "
            f"{_gb(self.task[name])} each), {_gb(available)} are free"
        )
        fewer = next((n for n in range(workers - 1, 0, -1) if self.at(n) <= available), None)
        if fewer is not None:
            return f"{message}: --workers {fewer} fits"
        rest = {learner: size for learner, size in self.task.items() if size + LIBRARIES <= available}
        if rest and self.combining + LIBRARIES <= available:
            return f"{message}: --workers 1 --learners {','.join(rest)} fits"
        return f"{message}: give fewer events, or rows = {{{name} = ...}} in a file for --config"


def estimated(
    specs: Sequence[tuple[LearnerSpec, int]], n_train: int, n_classes: int, *, rows: dict[str, int] | None = None
) -> Need:
    """Return what a run needs.

    Parameters
    ----------
    specs
        Learners and the number of their columns.
    n_train
        Training events of a fit.
    rows
        By learner, events of a fit at most.
    """
    task = {}
    for spec, n_columns in specs:
        n = min(n_train, (rows or {}).get(spec.name, n_train))
        kind = spec.kind.rpartition(".")[2]
        own = COPY_BYTES.get(kind, NETWORK_BYTES)
        size = LIBRARIES + n * n_columns * (TABLE_BYTES + own)
        most, each = CAPPED_BYTES.get(kind, (0, 0))
        size += min(n, most) * each
        if spec.needs_grid:
            size += min(n * GRID_BYTES, RESIDENT_BYTES) + 300_000_000
        task[spec.name] = size
    return Need(task, COPIES * 8 * n_train * n_classes * len(specs))


def available_bytes() -> int | None:
    """Return the memory that new processes can take without others losing theirs; None where it is not told."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    for line in file.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


PLAN_FILE = "plan.json"
FORESEEN_FROM = 20_000
"""Training events from which a run without a limit says what it will cost: to measure it takes half a minute."""
PILOT_SHARE = 0.25
"""Share of the time that is left in which learners are tried; those that are not tried by then are left out."""


@dataclass(frozen=True)
class StoredPlan:
    """A plan and what it was made for."""

    requested: str = ""
    """Hash of what could change a fit before the plan; empty for a plan that is only told."""
    plan: RunPlan | None = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class Clock:
    """When a run began, and how long it may take."""

    began: float
    """Seconds since 1970, what was done before the engine started counted in."""
    limit_s: float | None

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the clock of a run: it began when that was said, or with the first of its costs (feature tables)."""
        limit = job.config.time_limit
        began = time.time() - sum(cost.wall_s for cost in job.costs) if job.ctx.began is None else job.ctx.began
        return cls(began, None if limit is None else seconds_of(limit))

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.limit_s is None else self.limit_s - (time.time() - self.began)

    def limited(self, plan: RunPlan | None, tasks: Sequence[FoldTask], pools: Mapping[str, int]) -> list[FoldTask]:
        """Return the tasks with the time at which they give up: early enough for the second level.

        What earlier starts of the same run have finished counts as time used. The first learner does not give up
        in the first repetition of the folds: a run that ships late is better than none.
        """
        if self.limit_s is None or plan is None:
            return list(tasks)
        before = fits_took_s((task for task in tasks if self._done_earlier(task)), pools)
        deadline = Deadline(self.began + self.limit_s - before, plan.second_level_s / plan.waits)
        first = plan.shares[0].learner
        fit_s = {share.learner: share.task_s / plan.waits for share in plan.every}
        n_fits = 1 + max(task.fold for task in tasks)
        return [
            replace(
                task,
                deadline=None if task.name == first and task.fold < plan.folds else deadline,
                expected_s=fit_s[task.name] * (n_fits - task.fold) / pools.get(task.device, next(iter(pools.values()))),
            )
            for task in tasks
        ]

    def _done_earlier(self, task: FoldTask) -> bool:
        return task.is_done() and (task.folder / TASK_FILE).stat().st_mtime < self.began


def fits_took_s(tasks: Iterable[FoldTask], pools: Mapping[str, int]) -> float:
    """Return the wall-clock seconds that finished fits took together, those of the device that took longest."""
    return max(
        sum(float(read_json(task.folder / TASK_FILE)["cost"]["wall_s"]) for task in part) / pools[device]
        for device, part in by_device(tasks, pools, lambda task: task.device).items()
    )


def plan_within_limit(job: Job, clock: Clock) -> tuple[Job, StoredPlan]:
    """Return the run as its time limit allows it, and the plan; without a limit the run as it is.

    Raises
    ------
    InputError
        If the machine cannot be measured.
    """
    if clock.limit_s is None:
        return job, StoredPlan()
    requested = hash_json(job.fits_identity)
    stored = _read(job.config.run, requested)
    if stored is None:
        if job.prepare:
            job.prepare()
        limit = job.config.time_limit
        job.ctx.log.info("measuring how fast the learners are on this machine, for a plan of %s", limit)
        left_s = max(0.0, clock.left_s or 0.0)
        rates = _rates(job, job.train.labels(), Deadline(time.time() + PILOT_SHARE * left_s))
        if not rates:
            raise InputError("no learner could be tried within the time limit: leave --time-limit out to see why")
        plan = make_plan(rates, sizes_of(job), max(0.0, clock.left_s or 0.0))
        timed = {rate.learner for rate in rates}
        specs = job.config.learner_specs(job.task)
        untimed = [spec.name for spec in specs if spec.name not in timed]
        plan = replace(plan, left_out=tuple(untimed))
        full = {rate.learner: rate.full for rate in rates}
        stored = StoredPlan(requested, plan, plan.options({name: job.config.settings_of(name) for name in full}, full))
        for line in plan.lines():
            job.ctx.log.info("%s", line)
    assert stored.options is not None
    return replace(job, config=job.config.model_copy(update=stored.options)), stored


def once_more(job: Job, stored: StoredPlan, clock: Clock, asked: int, tasks: Sequence[FoldTask]) -> StoredPlan | None:
    """Return the plan with the folds drawn once more, where a limit that allowed fewer folds leaves time for it.

    Fits end before their last round, tree or epoch where that is best, and pilots are short, so that fits may take much
    less than the plan foresaw. The time that is left then goes to another partition into the same number of folds: the
    fits that there are stay, and every event is predicted out-of-fold once more.

    Parameters
    ----------
    stored
        The plan of the fits that are done.
    asked
        Fits of a learner that the run was asked for, folds times repetitions; it gets at least as many.
    tasks
        All fits that are done.

    Returns
    -------
    The plan, or None: no limit, nothing reduced, or no time.
    """
    plan, left_s, repeats = stored.plan, clock.left_s, job.config.repeats
    if plan is None or left_s is None or job.config.n_folds * repeats >= asked:
        return None
    needed_s = fits_took_s(tasks, job.pools) / repeats + plan.second_level_s
    if needed_s > left_s:  # fits that are late are given up, and what is complete ships
        return None
    job.ctx.log.info("%s are left: the %d folds are drawn once more", in_words(left_s), job.config.n_folds)
    return replace(stored, options={**(stored.options or {}), "repeats": repeats + 1})


def once_less(stored: StoredPlan) -> StoredPlan:
    """Return a plan of :func:`once_more` without its last repetition."""
    assert stored.options is not None
    return replace(stored, options={**stored.options, "repeats": stored.options["repeats"] - 1})


def plan_without_limit(job: Job, labels: np.ndarray) -> StoredPlan:
    """Say what a run without a limit will cost, if it is one of many events."""
    if len(labels) < FORESEEN_FROM:
        return StoredPlan()
    plan = make_plan(_rates(job, labels), sizes_of(job), None)
    for line in plan.lines():
        job.ctx.log.info("%s", line)
    return StoredPlan(plan=plan)


def memory_remark(job: Job) -> str | None:
    """Return what to do where the machine has less memory than the run may need."""
    config = job.config
    specs = [(spec, len(job.train.columns_for(spec))) for spec in config.learner_specs(job.task)]
    n_train = round(len(job.train) * (1 - config.holdout))
    need = estimated(
        specs, n_train, job.task.n_classes, rows={spec.name: n for spec, _ in specs if (n := config.rows_of(spec.name))}
    )
    n_tasks = len(specs) * config.n_folds * config.repeats
    return need.remark(min(sum(job.pools.values()), n_tasks), available_bytes() if config.scheduler is None else None)


def keep_plan(run: Path, stored: StoredPlan) -> None:
    """Write the plan into the run's folder, where a continued run finds it."""
    assert stored.plan is not None
    write_json(run / PLAN_FILE, {"asked": stored.requested, "plan": stored.plan.as_json(), "options": stored.options})


def left_out_remarks(plan: RunPlan | None) -> list[str]:
    """Return what the plan leaves out, in a line."""
    if plan is None or not plan.left_out:
        return []
    return [f"left out, of unknown speed (no time to try them, or they failed): {', '.join(plan.left_out)}"]


def _read(run: Path, requested: str) -> StoredPlan | None:
    file = run / PLAN_FILE
    if not file.exists():
        return None
    content = read_json(file)
    if content["asked"] != requested:
        return None
    options = content["options"] | {"learners": tuple(content["options"]["learners"])}
    return StoredPlan(requested, RunPlan.from_json(content["plan"]), options)


def _rates(job: Job, labels: np.ndarray, until: Deadline | None = None) -> list[LearnerRate]:
    config = job.config
    specs = config.learner_specs(job.task)
    return measure_rates(
        job.train,
        specs,
        labels,
        job.task.classes,
        preset=config.preset,
        settings={spec.name: config.settings_of(spec.name) for spec in specs},
        threads=config.threads,
        devices=job.devices,
        pools=job.pools,
        n_rows=round(len(job.train) * (1 - config.holdout) * (config.n_folds - 1) / config.n_folds),
        until=until,
    )


def sizes_of(job: Job) -> RunSizes:
    """Return how much there is to do in a run."""
    n, config = len(job.train), job.config
    n_test = len(job.test) if job.test is not None else 0
    in_evaluation, _ = evaluation_events(
        job.train.passes_evaluation_cuts(), job.train.labels(), job.task.n_classes, job.train.usable()
    )
    counting = int(in_evaluation.sum())  # no others are predicted out-of-fold
    n_holdout = round(counting * config.holdout)
    second = SecondLevel(
        n_inner=counting - n_holdout,
        n_holdout=n_holdout,
        student_epochs=student_epochs(config.preset) if config.fast else 0,
        student_events=config.student_events,
        students=1.0 if n_holdout else 2.0,
    )
    n_predict = (counting - n_holdout) // config.n_folds + n_holdout + n_test
    n_train = round(n * (1 - config.holdout))
    return RunSizes(n_train, n_predict, config.n_folds, config.repeats, job.workers, second, job.pools)
