"""The first level: who is in which fold, which fits to do, and what came of them, collected and calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from showers.files import atomic_path, read_json
from showers.progress import Progress
from showers.schema import InputError
from stacking.calibration import Calibrator, cross_fit, reliability
from stacking.chain import average_of
from stacking.folds import assign_folds, judged_events
from stacking.gate import leak_remark
from stacking.job import Folds, Job
from stacking.oof import (
    FOLDS_FILE,
    JUDGED_FILE,
    TASK_FILE,
    FoldTask,
    TaskFailure,
    fold_folder,
    held_out_log_proba,
    test_log_proba,
)
from stacking.softmax import log_loss_per_event


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
            context_hash=config_hash,
        )
        for spec in specs
        for fold in range(config.n_folds * config.repeats)
    ]


@dataclass
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
    """Collect out-of-fold predictions, leave out learners that failed or leak, and calibrate the others."""
    first_error = {failure.learner: failure for failure in reversed(failures)}
    names: list[str] = []
    stack: list[np.ndarray] = []
    level = Level((), np.empty(0), {}, [], {})
    labels = folds.labels[folds.judged]
    learners = list(dict.fromkeys(task.name for task in tasks))
    for number, name in enumerate(learners):
        task = next(task for task in tasks if task.name == name)
        if name in first_error:
            failure = first_error[name]
            level.records.append(_record(task, error=f"fold {failure.fold}: {failure.error}"))
            continue
        raw = held_out_log_proba(job.config.run, name, folds.partitions, folds.judged, job.task.n_classes)
        raw = raw[:, folds.judged]
        leak = _leak(job, name, raw)
        if leak:
            level.records.append(_record(task, error=leak))
            continue
        calibrators, calibrated = [], []
        for repeat, partition in enumerate(folds.partitions):
            fits, out = cross_fit(raw[repeat], labels, partition[folds.judged], job.config.n_folds)
            calibrators += fits
            calibrated.append(out)
        level.calibrators[name] = calibrators
        result = average_of(np.stack(calibrated)) if len(calibrated) > 1 else calibrated[0]
        names.append(name)
        stack.append(result)
        level.records.append(_record(task, log_proba=result, raw=average_of(raw), labels=labels))
        level.reliability[name] = {
            "raw": reliability(average_of(raw), labels),
            "calibrated": reliability(result, labels),
        }
        progress(number + 1, len(learners), name)
    if not names:
        raise InputError(f"no learner could be trained; {level.records[0]['name']}: {level.records[0]['error']}")
    level.names, level.log_proba = tuple(names), np.stack(stack)
    return level


def _leak(job: Job, name: str, raw: np.ndarray) -> str | None:
    if job.test is None:
        return None
    new = test_log_proba(job.config.run, name, job.config.n_folds * job.config.repeats)
    passing = job.test.passes_evaluation_cuts()
    if not passing.any():
        return None
    return leak_remark(raw.reshape(-1, raw.shape[-1]), new[:, passing])


def _record(
    task: FoldTask,
    *,
    log_proba: np.ndarray | None = None,
    raw: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": task.name,
        "status": "failed" if error else "ok",
        "error": error,
        "features": list(task.columns),
        "needs_grid": task.spec.needs_grid,
        "source": task.spec.source,
        "log_loss": None,
        "raw_log_loss": None,
        "accuracy": None,
        "n_parameters": None,
    }
    if log_proba is not None and raw is not None and labels is not None:
        record |= {
            "log_loss": float(log_loss_per_event(log_proba, labels).mean()),
            "raw_log_loss": float(log_loss_per_event(raw, labels).mean()),
            "accuracy": float(np.mean(np.argmax(log_proba, axis=1) == labels)),
            "n_parameters": read_json(fold_folder(task.run, task.name, 0) / TASK_FILE)["n_parameters"],
        }
    return record
