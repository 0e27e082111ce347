"""One run from opened events to predictions: folds, learners, calibration, meta-learner, gate, decision.

The benchmark's dataset folders (:mod:`stacking.pipeline`) and tables of any origin (:mod:`stacking.table`) both end
here. Test labels do not exist in this module: test events come without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from showers.files import atomic_path, read_json
from showers.progress import Bars, silent
from showers.schema import COMPOSITION, GAMMA, InputError, Task
from stacking.bundle import finish, save_chain
from stacking.calibration import Calibrator, cross_fit, reliability
from stacking.chain import Chain, Predictions, average_of
from stacking.config import EngineConfig, hash_of
from stacking.decision import RULES, choose_rule
from stacking.events import Events
from stacking.folds import LG_ENERGY_EDGES, assign_folds
from stacking.gamma_scores import gamma_scores, threshold_table
from stacking.gate import Gate, decide_gate, leak_remark
from stacking.judges import Judge, judge_for
from stacking.nested import Stacked, StackInputs, choose_and_fit
from stacking.oof import (
    FOLDS_FILE,
    JUDGED_FILE,
    TASK_FILE,
    FoldTask,
    TaskFailure,
    code_version,
    fold_folder,
    held_out_log_proba,
    judged_events,
    run_tasks,
    test_log_proba,
)
from stacking.resources import Cost, measured
from stacking.runfolder import (
    PREDICTIONS_FILE,
    git_revision,
    opened_for_writing,
    versions,
    write_manifest,
    write_out_of_fold,
    write_predictions,
    write_test_posteriors,
)
from stacking.softmax import log_loss_per_event
from stacking.unfolding import write_response


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Mapping[str, Any]
    predictions: Predictions | None
    """Of the test events; None where there are none, or where the run had been finished before."""


@dataclass(frozen=True)
class Job:
    """What one run works on."""

    config: EngineConfig
    task: Task
    train: Events
    test: Events | None
    device: str
    costs: list[Cost] = field(default_factory=list)
    """Steps done before the engine starts (feature tables)."""
    prepare: Callable[[], None] | None = None
    """What to write into the run folder first, once it is known to be this run's."""
    remarks: tuple[str, ...] = ()
    """What the user should know about the input."""

    @property
    def identity(self) -> dict[str, Any]:
        """Return everything that can change a prediction."""
        return {
            **self.config.identity(),
            "task": self.task.name,
            "classes": list(self.task.classes),
            "device": self.device,
            "train_fingerprint": self.train.fingerprint(),
            "test_fingerprint": self.test.fingerprint() if self.test is not None else None,
        }

    @property
    def workers(self) -> int:
        """Processes at work at once."""
        return self.config.workers or os.cpu_count() or 1


@dataclass
class _Folds:
    """Who is in which fold."""

    partitions: np.ndarray
    """(R, N) int8."""
    judged: np.ndarray
    """(N,) bool."""
    labels: np.ndarray
    """(N,) int64."""
    remark: str


def run(job: Job, *, bars: Bars = silent) -> StackResult:
    """Do the whole run, or what is left of it.

    Raises
    ------
    InputError
        If the run folder belongs to another configuration, a class has fewer events than folds, or no learner could
        be trained.
    """
    identity = job.identity
    config_hash = hash_of(identity)
    folder = job.config.run
    with opened_for_writing(folder, config_hash, identity):
        finished = _finished(folder)
        if finished:
            return StackResult(folder, finished, None)
        if job.prepare:
            job.prepare()
        folds = _deal(job)
        manifest = _opening(job, folds, identity, config_hash)
        write_manifest(folder, manifest)
        tasks = _tasks(job, config_hash)
        with bars("training", "fits") as progress:
            failures = run_tasks(
                tasks,
                workers=job.workers,
                threads=job.config.threads,
                scheduler=job.config.scheduler,
                progress=progress,
            )
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with threadpool_limits(1):
            return _second_level(job, folds, tasks, failures, manifest, bars)


def _finished(folder: Path) -> dict[str, Any] | None:
    file = folder / "manifest.json"
    if not file.exists():
        return None
    manifest: dict[str, Any] = read_json(file)
    done = manifest.get("complete") and manifest.get("code_version") == code_version()
    return manifest if done else None


def _deal(job: Job) -> _Folds:
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
    return _Folds(partitions, judged, labels, remark)


def _opening(job: Job, folds: _Folds, identity: dict[str, Any], config_hash: str) -> dict[str, Any]:
    return {
        "complete": False,
        "task": job.task.name,
        "classes": list(job.task.classes),
        "config": job.config.model_dump(mode="json"),
        "identity": identity,
        "config_hash": config_hash,
        "code_version": code_version(),
        "seed": job.config.seed,
        "data": {
            "train": str(getattr(job.train, "dataset", getattr(job.train, "file", ""))),
            "test": str(getattr(job.test, "dataset", getattr(job.test, "file", ""))) if job.test is not None else None,
            "train_fingerprint": identity["train_fingerprint"],
            "test_fingerprint": identity["test_fingerprint"],
            "n_train": len(job.train),
            "n_judged": int(folds.judged.sum()),
            "n_test": len(job.test) if job.test is not None else 0,
            "grouped": job.train.groups() is not None,
        },
        "remarks": [*job.remarks, *([folds.remark] if folds.remark else [])],
        "versions": versions(),
        "git_revision": git_revision(),
        "device": job.device,
    }


def _tasks(job: Job, config_hash: str) -> list[FoldTask]:
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
class _Level:
    """Calibrated out-of-fold predictions of the judged events."""

    names: tuple[str, ...]
    log_proba: np.ndarray
    """(L, n, C)."""
    calibrators: dict[str, list[Calibrator]]
    records: list[dict[str, Any]]
    """Manifest entries of all learners."""
    reliability: dict[str, Any]


def _second_level(
    job: Job, folds: _Folds, tasks: list[FoldTask], failures: list[TaskFailure], manifest: dict[str, Any], bars: Bars
) -> StackResult:
    run_folder, judge = job.config.run, judge_for(job.task)
    steps = [*job.costs, *_training_costs(tasks, failures)]
    with measured("calibration") as cost, bars("calibrating", "learners") as progress:
        level = _calibrated(job, folds, tasks, failures, progress)
    steps.append(cost)
    context = job.train.context()
    inputs = StackInputs(
        learners=level.names,
        log_proba=level.log_proba,
        labels=folds.labels[folds.judged],
        folds=folds.partitions[0][folds.judged],
        context=None if context is None else context[folds.judged],
    )
    with measured("meta-learner") as cost, bars("choosing the meta-learner", "fits") as progress:
        stacked = choose_and_fit(job.config.meta_names, inputs, judge, workers=job.workers, progress=progress)
    steps.append(cost)
    with measured("gate and decision") as cost, bars("decision", "systems") as progress:
        groups = job.train.groups()
        by_learner = dict(zip(level.names, level.log_proba, strict=True))
        gate = decide_gate(
            stacked.log_proba, by_learner, inputs.labels, judge, None if groups is None else groups[folds.judged]
        )
        systems = {**by_learner, "average": average_of(level.log_proba), "stack": stacked.log_proba}
        decision, rules = _decide(job, folds.judged, systems, inputs, gate, progress)
    steps.append(cost)
    shipped = "stack" if gate.shipped else gate.best_learner
    chain = Chain(job.task, level.calibrators, stacked.meta, rules, shipped, manifest["config_hash"])
    save_chain(run_folder, chain)
    _write_out_of_fold_files(job, folds, systems)
    with measured("prediction") as cost:
        predictions = _predict_test(job, chain)
    steps.append(cost)
    manifest |= {
        "complete": True,
        "learners": level.records,
        "meta": _meta_record(stacked, level, judge, inputs),
        "reliability": level.reliability,
        "gate": gate.as_json(),
        "decision": decision,
        "steps": [step.as_json() for step in steps],
    }
    write_manifest(run_folder, manifest)
    return StackResult(run_folder, manifest, predictions)


def _training_costs(tasks: list[FoldTask], failures: list[TaskFailure]) -> list[Cost]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    return [
        Cost(**read_json(task.folder / TASK_FILE)["cost"]) for task in tasks if (task.name, task.fold) not in failed
    ]


def _calibrated(job: Job, folds: _Folds, tasks: list[FoldTask], failures: list[TaskFailure], progress: Any) -> _Level:
    first_error = {failure.learner: failure for failure in reversed(failures)}
    names: list[str] = []
    stack: list[np.ndarray] = []
    level = _Level((), np.empty(0), {}, [], {})
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


def _decide(
    job: Job, judged: np.ndarray, systems: Mapping[str, np.ndarray], inputs: StackInputs, gate: Gate, progress: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest's entry and, for composition, every system's decision rule of the chosen kind."""
    shipped = systems["stack" if gate.shipped else gate.best_learner]
    if job.task.name == GAMMA.name:
        return {"thresholds": threshold_table(inputs.labels, gamma_scores(shipped))}, {}
    if job.task.name != COMPOSITION.name:
        return {"chosen": "argmax"}, {}
    decision = choose_rule(shipped, inputs.labels, inputs.folds)
    energy = job.train.energy()
    write_response(
        job.config.run,
        inputs.labels,
        decision.rule(shipped),
        None if energy is None else energy[judged],
        LG_ENERGY_EDGES,
        job.task.n_classes,
    )
    rules = {}
    for number, (name, log_proba) in enumerate(systems.items()):
        rules[name] = decision.rule if log_proba is shipped else RULES[decision.chosen](log_proba)
        progress(number + 1, len(systems), name)
    return decision.as_json(), rules


def _meta_record(stacked: Stacked, level: _Level, judge: Judge, inputs: StackInputs) -> dict[str, Any]:
    average = average_of(level.log_proba)
    compared = {**stacked.by_meta, "average": average, "stack": stacked.log_proba}
    return {
        "chosen": stacked.meta.name,
        "chosen_by_fold": stacked.chosen_by_fold,
        "weights": stacked.meta.importance(),
        "judge": judge.name,
        "losses": {name: judge.loss(z, inputs.labels) for name, z in compared.items()},
        "log_losses": {name: float(log_loss_per_event(z, inputs.labels).mean()) for name, z in compared.items()},
        "reliability": reliability(stacked.log_proba, inputs.labels),
    }


def _write_out_of_fold_files(job: Job, folds: _Folds, systems: Mapping[str, np.ndarray]) -> None:
    for name, log_proba in systems.items():
        everywhere = np.full((len(folds.labels), job.task.n_classes), np.nan)
        everywhere[folds.judged] = log_proba
        write_out_of_fold(job.config.run / "oof" / f"{name}.parquet", everywhere, folds.partitions[0], job.task.classes)


def _predict_test(job: Job, chain: Chain) -> Predictions | None:
    if job.test is None:
        return None
    n_fits = job.config.n_folds * job.config.repeats
    fits = {name: test_log_proba(job.config.run, name, n_fits) for name in chain.meta.learners}
    predictions = finish(chain, fits, job.test.context())
    write_test_posteriors(job.config.run, chain, predictions.by_name)
    write_predictions(job.config.run / PREDICTIONS_FILE, predictions)
    return predictions
