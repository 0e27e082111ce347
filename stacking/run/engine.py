"""One run from opened events to predictions: folds, learners, calibration, meta-learner, gate, decision.

The benchmark's dataset folders (:mod:`stacking.pipeline`) and tables of any origin (:mod:`stacking.tables`) both end
here. Test labels do not exist in this module: test events come without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from showers.execution.progress import Bars, silent
from showers.storage.files import hash_json, read_json
from stacking.budget.kept import Clock, foreseen, keep_plan, left_out_remarks, memory_remark, planned
from stacking.predict.chain import Predictions
from stacking.run.first_level import collected, fold_tasks, make_folds
from stacking.run.folder import MANIFEST_FILE, opened_for_writing, refuse_other_configuration, write_manifest
from stacking.run.job import Folds, Job
from stacking.run.provenance import command, git_revision, machine, stacking_code_version, started, versions
from stacking.run.sealing import break_seal, is_sealed, seal_run
from stacking.run.second_level import stack_and_decide
from stacking.run.toml import CONFIG_FILE, write_config
from stacking.tasks.finished import TASK_FILE, damage
from stacking.tasks.oof import FoldTask
from stacking.tasks.resources import Cost, measured
from stacking.tasks.running import TaskFailure, run_tasks


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Mapping[str, Any]
    predictions: Predictions | None
    """Of the test events; None where there are none, or where the run had been finished before."""


def run(job: Job, *, bars: Bars = silent, say: Callable[[str], None] = lambda line: None) -> StackResult:
    """Do the whole run, or what is left of it; ``say`` gets the plan before the work begins.

    Raises
    ------
    InputError
        If the run folder belongs to another configuration, a class has fewer events than folds, or no learner could
        be trained.
    """
    clock, folder = Clock.of(job), job.config.run
    with opened_for_writing(folder):
        job, kept = planned(job, clock, say)
        identity = job.identity
        config_hash = hash_json(identity)
        refuse_other_configuration(folder, config_hash, identity)
        finished = _finished(folder)
        if finished:
            return StackResult(folder, finished, None)
        break_seal(folder)
        if kept.asked:
            keep_plan(folder, kept)
        if job.prepare:
            job.prepare()
        folds = make_folds(job)
        manifest = _opening(job, folds, identity, config_hash)
        write_config(folder / CONFIG_FILE, manifest["config"])
        if kept.plan is None and job.config.time_limit is None:
            kept = foreseen(job, folds.labels, say)
        manifest["plan"] = kept.plan.as_json() if kept.plan else None
        tasks = fold_tasks(job, config_hash)
        tasks = clock.limited(kept.plan, tasks, job.lanes)
        short_of_memory = memory_remark(job)
        if short_of_memory:
            say(short_of_memory)
            manifest["remarks"].append(short_of_memory)
        manifest["remarks"] += [*_made_again(tasks), *left_out_remarks(kept.plan)]
        write_manifest(folder, manifest)
        with bars("training", "") as progress:
            failures = run_tasks(
                tasks,
                lanes=job.lanes,
                threads=job.config.threads,
                scheduler=job.config.scheduler,
                expected={share.learner: share.task_s for share in kept.plan.shares} if kept.plan else {},
                progress=progress,
            )
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with threadpool_limits(1):
            return _second_level(job, folds, tasks, failures, manifest, bars)


def _finished(folder: Path) -> dict[str, Any] | None:
    file = folder / MANIFEST_FILE
    if not file.exists():
        return None
    manifest: dict[str, Any] = read_json(file)
    done = manifest.get("complete") and manifest.get("code_version") == stacking_code_version() and is_sealed(folder)
    return manifest if done else None


def _made_again(tasks: list[FoldTask]) -> list[str]:
    found = ((task, damage(task.folder)) for task in tasks)
    return [f"{task.name} fold {task.fold} is fitted again: {problem}" for task, problem in found if problem]


def _opening(job: Job, folds: Folds, identity: dict[str, Any], config_hash: str) -> dict[str, Any]:
    return {
        "complete": False,
        "task": job.task.name,
        "classes": list(job.task.classes),
        "config": job.config.model_dump(mode="json"),
        "identity": identity,
        "config_hash": config_hash,
        "code_version": stacking_code_version(),
        "feature_code_version": job.train.feature_code_version(),
        "seed": job.config.seed,
        "data": {
            "train": str(job.train.location),
            "test": str(job.test.location) if job.test is not None else None,
            "train_fingerprint": identity["train_fingerprint"],
            "test_fingerprint": job.test.events_fingerprint() if job.test is not None else None,
            "train_source": job.train.source(),
            "test_source": job.test.source() if job.test is not None else None,
            "n_train": len(job.train),
            "n_judged": int(folds.judged.sum()),
            "n_holdout": int(folds.outer.sum()),
            "n_test": len(job.test) if job.test is not None else 0,
            "grouped": job.train.groups() is not None,
        },
        "remarks": [*job.remarks, *folds.remarks],
        "versions": versions(),
        "started": started(),
        "machine": machine(),
        "command": command(),
        "git_revision": git_revision(),
        "device": job.device,
    }


def _second_level(
    job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure], manifest: dict[str, Any], bars: Bars
) -> StackResult:
    with measured("collection") as cost:
        level = collected(job, folds, tasks, failures)
    outcome = stack_and_decide(job, folds, level, manifest["config_hash"], bars)
    steps = [*job.costs, *_training_costs(tasks, failures), cost, *outcome.costs]
    manifest |= {
        "complete": True,
        **outcome.record,
        "remarks": [*manifest["remarks"], *level.remarks, *outcome.remarks],
        "steps": [step.as_json() for step in steps],
    }
    if job.conclude:
        job.conclude(manifest)
    write_manifest(job.config.run, manifest)
    seal_run(job.config.run)
    return StackResult(job.config.run, manifest, outcome.predictions)


def _training_costs(tasks: list[FoldTask], failures: list[TaskFailure]) -> list[Cost]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    return [
        Cost(**read_json(task.folder / TASK_FILE)["cost"]) for task in tasks if (task.name, task.fold) not in failed
    ]
