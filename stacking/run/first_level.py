"""The first level: who is in which fold, which fits to do, and what came of them, collected and calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from showers.files import atomic_path, hash_json, read_json
from showers.processes import in_processes
from showers.progress import Progress
from showers.schema import InputError
from stacking.combine.calibration import Calibrator, cross_fit, reliability
from stacking.combine.gate import leak_remark
from stacking.combine.softmax import log_loss_per_event
from stacking.predict.chain import average_of
from stacking.run.job import Folds, Job
from stacking.run.provenance import code_version
from stacking.tasks.folds import assign_folds, judged_events
from stacking.tasks.oof import (
    FOLDS_FILE,
    JUDGED_FILE,
    TASK_FILE,
    FoldTask,
    TaskFailure,
    fold_folder,
    held_out_log_proba,
    test_log_proba,
)


def deal(job: Job) -> Folds:
    """Assign folds and write them where the tasks read them."""
    labels = job.train.labels()
    judged, remark = judged_events(job.train.passes_evaluation_cuts(), labels, job.task.n_classes)
    partitions = np.stack(
        [
            assign_folds(
                labels,
                job.config.n_folds,
                seed=job.config.seed + 1_000_003 * repeat,
                energy=job.train.energy(),
                groups=job.train.groups(),
                classes=job.task.classes,
            )
            for repeat in range(job.config.repeats)
        ]
    )
    for name, array in ((FOLDS_FILE, partitions), (JUDGED_FILE, judged)):
        with atomic_path(job.config.run / name) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    return Folds(partitions, judged, labels, remark)


def fold_tasks(job: Job, config_hash: str) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    context_hash = hash_json([config_hash, code_version()])
    specs = config.learner_specs(job.task, grids=job.train.has_grids)
    # Networks on grids take longest: they go first, so that no worker is left alone with one at the end.
    specs = tuple(sorted(specs, key=lambda spec: not spec.needs_grid))
    return [
        FoldTask(
            run=config.run,
            spec=spec,
            fold=fold,
            n_folds=config.n_folds,
            train=job.train,
            test=job.test,
            columns=job.train.columns_for(spec),
            classes=job.task.classes,
            preset=config.preset,
            settings=config.settings.get(spec.name, {}),
            seed=config.seed,
            device=job.device,
            threads=config.threads,
            valid_fraction=config.valid_fraction,
            off_cut_weight=config.off_cut_weight,
            context_hash=context_hash,
        )
        for spec in specs
        for fold in range(config.n_folds * config.repeats)
    ]


@dataclass(frozen=True)
class CalibratedLearner:
    """One learner's out-of-fold predictions of the n judged events."""

    raw: np.ndarray
    """(n, C) log-probabilities as the learner gives them, averaged over repetitions."""
    log_proba: np.ndarray
    """(n, C) the same after cross-fitted calibration."""
    calibrators: list[Calibrator]
    """One per fit."""


@dataclass(frozen=True)
class Level:
    """Calibrated out-of-fold predictions of the judged events."""

    names: tuple[str, ...]
    log_proba: np.ndarray
    """(L, n, C)."""
    calibrators: dict[str, list[Calibrator]]
    records: list[dict[str, Any]]
    """Manifest entries of all learners."""
    reliability: dict[str, Any]


def calibrated(job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure], progress: Progress) -> Level:
    """Collect out-of-fold predictions, leave out learners that failed or leak, and calibrate the others.

    Raises
    ------
    InputError
        If no learner is left.
    """
    one_task = {task.name: task for task in tasks}
    errors = {f.learner: f"fold {f.fold}: {f.error}" for f in reversed(failures)}
    for name in one_task:
        leak = None if name in errors else _leak(job, folds, name)
        errors |= {name: leak} if leak else {}
    sound = [name for name in one_task if name not in errors]
    if not sound:
        name, error = next(iter(errors.items()))
        raise InputError(f"no learner could be trained; {name}: {error}")
    outcomes = in_processes(calibrate_learner, [(job.config.run, name, folds) for name in sound], workers=job.workers)
    found: dict[str, CalibratedLearner] = {}
    for name, outcome in zip(sound, outcomes, strict=True):
        found[name] = outcome
        progress(len(found), len(sound), name)
    labels = folds.labels[folds.judged]
    return Level(
        names=tuple(sound),
        log_proba=np.stack([found[name].log_proba for name in sound]),
        calibrators={name: found[name].calibrators for name in sound},
        records=[_record(task, found.get(name), labels, errors.get(name)) for name, task in one_task.items()],
        reliability={
            name: {"raw": reliability(one.raw, labels), "calibrated": reliability(one.log_proba, labels)}
            for name, one in found.items()
        },
    )


def calibrate_learner(run: Path, name: str, folds: Folds) -> CalibratedLearner:
    """Cross-fit the calibrators of one learner's fits, repetition by repetition."""
    labels = folds.labels[folds.judged]
    raw = _held_out(run, name, folds)
    calibrators, results = [], []
    with threadpool_limits(1):  # the same last bits in any process
        for log_proba, partition in zip(raw, folds.partitions, strict=True):
            fits, result = cross_fit(log_proba, labels, partition[folds.judged], folds.n_folds)
            calibrators += fits
            results.append(result)
        # One repetition needs no average: normalising again would only change last bits.
        many = len(results) > 1
        return CalibratedLearner(
            average_of(raw) if many else raw[0], average_of(np.stack(results)) if many else results[0], calibrators
        )


def _held_out(run: Path, name: str, folds: Folds) -> np.ndarray:
    """Return (R, n, C) raw out-of-fold log-probabilities of the judged events."""
    return held_out_log_proba(run, name, folds.partitions, folds.judged)[:, folds.judged]


def _leak(job: Job, folds: Folds, name: str) -> str | None:
    if job.test is None:
        return None
    passing = job.test.passes_evaluation_cuts()
    if not passing.any():
        return None
    raw = _held_out(job.config.run, name, folds)
    new = test_log_proba(job.config.run, name, job.config.n_folds * job.config.repeats)
    return leak_remark(raw.reshape(-1, raw.shape[-1]), new[:, passing])


def _record(task: FoldTask, found: CalibratedLearner | None, labels: np.ndarray, error: str | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": task.name,
        "status": "failed" if error else "ok",
        "error": error,
        "features": list(task.columns),
        "needs_grid": task.spec.needs_grid,
        "source": task.spec.source,
    }
    if found is None:
        return record | dict.fromkeys(("log_loss", "raw_log_loss", "accuracy", "n_parameters"))
    return record | {
        "log_loss": float(log_loss_per_event(found.log_proba, labels).mean()),
        "raw_log_loss": float(log_loss_per_event(found.raw, labels).mean()),
        "accuracy": float(np.mean(np.argmax(found.log_proba, axis=1) == labels)),
        "n_parameters": read_json(fold_folder(task.run, task.name, 0) / TASK_FILE)["n_parameters"],
    }
