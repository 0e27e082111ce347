"""A run's plan: made once, kept in the run's folder as a part of its identity, and obeyed to the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from showers.storage.files import hash_json, read_json, write_json
from stacking.budget.duration import seconds_of
from stacking.budget.memory import available_bytes, estimated
from stacking.budget.pilot import LearnerRate, measure_rates
from stacking.budget.plan import RunPlan, RunSizes, make_plan
from stacking.budget.second_level import SecondLevel
from stacking.run.folder import MANIFEST_FILE
from stacking.run.job import Job
from stacking.run.student import student_epochs
from stacking.tasks.finished import TASK_FILE
from stacking.tasks.folds import judged_events
from stacking.tasks.lanes import in_their_lanes
from stacking.tasks.oof import FoldTask

PLAN_FILE = "plan.json"
FORESEEN_FROM = 20_000
"""Training events from which a run without a limit says what it will cost: to measure it takes half a minute."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class KeptPlan:
    """A plan and what it was made for."""

    asked: str = ""
    """Hash of the run's identity before the plan; empty for a plan that is only told."""
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
        began = time.time() - sum(cost.wall_s for cost in job.costs) if job.began is None else job.began
        return cls(began, None if limit is None else seconds_of(limit))

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.limit_s is None else self.limit_s - (time.time() - self.began)

    def limited(self, plan: RunPlan | None, tasks: Sequence[FoldTask], lanes: Mapping[str, int]) -> list[FoldTask]:
        """Return the tasks with the time at which they give up: early enough for the second level.

        What earlier starts of the same run have finished counts as time used. The first learner does not give up:
        a run that ships late is better than none.
        """
        if self.limit_s is None or plan is None:
            return list(tasks)
        done = in_their_lanes((task for task in tasks if task.is_done()), lanes, lambda task: task.device)
        before = max(
            sum(float(read_json(task.folder / TASK_FILE)["cost"]["wall_s"]) for task in part) / lanes[lane]
            for lane, part in done.items()
        )
        deadline = self.began + self.limit_s - before - plan.second_level_s
        first = plan.shares[0].learner
        return [replace(task, deadline=None if task.name == first else deadline) for task in tasks]


def planned(job: Job, clock: Clock, say: Say) -> tuple[Job, KeptPlan]:
    """Return the run as its time limit allows it, and the plan; without a limit the run as it is.

    Raises
    ------
    InputError
        If the limit is too short for any learner.
    """
    if clock.limit_s is None:
        return job, KeptPlan()
    asked = hash_json(job.identity)
    kept = _read(job.config.run, asked)
    if kept is None and (job.config.run / MANIFEST_FILE).exists():
        return job, KeptPlan()  # another run's folder, which will be refused
    if kept is None:
        if job.prepare:
            job.prepare()
        say(f"measuring how fast the learners are on this machine, for a plan of {job.config.time_limit}")
        rates = _rates(job, job.train.labels())
        plan = make_plan(rates, sizes_of(job), clock.left_s)
        full = {rate.learner: rate.full for rate in rates}
        kept = KeptPlan(asked, plan, plan.options({name: job.config.settings_of(name) for name in full}, full))
        for line in plan.lines():
            say(line)
    assert kept.options is not None
    return replace(job, config=job.config.model_copy(update=kept.options)), kept


def foreseen(job: Job, labels: np.ndarray, say: Say) -> KeptPlan:
    """Say what a run without a limit will cost, if it is one of many events."""
    if len(labels) < FORESEEN_FROM:
        return KeptPlan()
    plan = make_plan(_rates(job, labels), sizes_of(job), None)
    for line in plan.lines():
        say(line)
    return KeptPlan(plan=plan)


def memory_remark(job: Job) -> str | None:
    """Return what to do where the machine has less memory than the run may need."""
    config = job.config
    specs = [
        (spec, len(job.train.columns_for(spec))) for spec in config.learner_specs(job.task, grids=job.train.has_grids)
    ]
    n_train = round(len(job.train) * (1 - config.holdout))
    need = estimated(
        specs, n_train, job.task.n_classes, rows={spec.name: n for spec, _ in specs if (n := config.rows_of(spec.name))}
    )
    n_tasks = len(specs) * config.n_folds * config.repeats
    return need.remark(min(sum(job.lanes.values()), n_tasks), available_bytes() if config.scheduler is None else None)


def keep_plan(run: Path, kept: KeptPlan) -> None:
    """Write the plan into the run's folder, where a continued run finds it."""
    assert kept.plan is not None
    write_json(run / PLAN_FILE, {"asked": kept.asked, "plan": kept.plan.as_json(), "options": kept.options})


def left_out_remarks(plan: RunPlan | None) -> list[str]:
    """Return what the plan leaves out, in a line."""
    if plan is None or not plan.left_out:
        return []
    return [f"left out to keep the time limit: {', '.join(plan.left_out)}"]


def _read(run: Path, asked: str) -> KeptPlan | None:
    file = run / PLAN_FILE
    if not file.exists():
        return None
    content = read_json(file)
    if content["asked"] != asked:
        return None
    options = content["options"] | {"learners": tuple(content["options"]["learners"])}
    return KeptPlan(asked, RunPlan.from_json(content["plan"]), options)


def _rates(job: Job, labels: np.ndarray) -> list[LearnerRate]:
    config = job.config
    specs = config.learner_specs(job.task, grids=job.train.has_grids)
    return measure_rates(
        job.train,
        specs,
        labels,
        job.task.classes,
        preset=config.preset,
        settings={spec.name: config.settings_of(spec.name) for spec in specs},
        threads=config.threads,
        devices=job.devices,
        lanes=job.lanes,
    )


def sizes_of(job: Job) -> RunSizes:
    """Return how much there is to do in a run."""
    n, config = len(job.train), job.config
    n_test = len(job.test) if job.test is not None else 0
    judged, _ = judged_events(job.train.passes_evaluation_cuts(), job.train.labels(), job.task.n_classes)
    counting = int(judged.sum())  # no others are predicted out-of-fold
    n_judged = round(counting * config.holdout)
    second = SecondLevel(
        n_inner=counting - n_judged,
        n_judged=n_judged,
        student_epochs=student_epochs(config.preset) if config.fast else 0,
        student_events=config.student_events,
    )
    n_predict = (counting - n_judged) // config.n_folds + n_judged + n_test
    n_train = round(n * (1 - config.holdout))
    return RunSizes(n_train, n_predict, config.n_folds, config.repeats, job.workers, second, job.lanes)
