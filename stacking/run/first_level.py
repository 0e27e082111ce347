"""The first level: who is in which fold, which fits to do, and what came of them, collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.spec import LearnerSpec
from showers.schema import InputError
from showers.storage.files import atomic_path, hash_json, read_json
from stacking.combine.leak import entropy, leak_remarks
from stacking.predict.chain import average_of
from stacking.run.job import Folds, Job
from stacking.run.provenance import fit_code_version
from stacking.tasks.finished import TASK_FILE, fold_folder, held_out_log_proba, outer_log_proba, test_log_proba
from stacking.tasks.folds import assign_folds, judged_events, outer_holdout
from stacking.tasks.oof import FOLDS_FILE, JUDGED_FILE, FoldTask
from stacking.tasks.running import TaskFailure


def make_folds(job: Job) -> Folds:
    """Set the outer holdout apart, assign folds to the others, and write both where the tasks read them."""
    labels, energy, groups = job.train.labels(), job.train.energy(), job.train.groups()
    judged, all_judged = judged_events(job.train.passes_evaluation_cuts(), labels, job.task.n_classes)
    config = job.config
    outer, no_holdout = outer_holdout(
        judged,
        labels,
        config.holdout,
        seed=config.seed,
        energy=energy,
        groups=groups,
        least=config.least_held_out,
    )
    rest = np.flatnonzero(~outer)
    partitions = np.full((config.repeats, len(labels)), -1, dtype=np.int8)
    for repeat in range(config.repeats):
        partitions[repeat, rest] = assign_folds(
            labels[rest],
            config.n_folds,
            seed=config.seed + 1_000_003 * repeat,
            energy=None if energy is None else energy[rest],
            groups=None if groups is None else groups[rest],
            classes=job.task.classes,
        )
    for name, array in ((FOLDS_FILE, partitions), (JUDGED_FILE, judged)):
        with atomic_path(job.config.run / name) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    return Folds(partitions, judged, labels, tuple(filter(None, (all_judged, no_holdout))))


def fold_tasks(job: Job, config_hash: str) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    specs = config.learner_specs(job.task, grids=job.train.has_grids)
    if config.time_limit is None:
        # Networks on grids take longest: they go first, so that no worker is left alone with one at the end. A plan has
        # an order of its own: what is not finished in time should be what costs most.
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
            settings=config.settings_of(spec.name),
            seed=config.seed,
            device=job.devices[spec.name],
            threads=config.threads,
            valid_fraction=config.valid_fraction,
            off_cut_weight=config.off_cut_weight,
            rows=config.rows_of(spec.name),
            context_hash=hash_json([config_hash, fit_code_version(spec), _as_registered(spec, config.preset)]),
        )
        for spec in specs
        for fold in range(config.n_folds * config.repeats)
    ]


def _as_registered(spec: LearnerSpec, preset: str) -> list[Any]:
    return [spec.learner, spec.features, spec.settings_for(preset)]


@dataclass(frozen=True)
class Level:
    """What the learners say of the judged training events, none by a fit that has seen it."""

    names: tuple[str, ...]
    out_of_fold: np.ndarray
    """(L, n, C) log-probabilities of the judged events inside the folds, averaged over repetitions."""
    outer: np.ndarray | None
    """(L, F, m, C) of the outer holdout, by each of the F = repetitions x folds fits; None without a holdout."""
    records: list[dict[str, Any]]
    """Manifest entries of all learners."""
    remarks: list[str]
    """Suspected leaks."""

    def averages(self) -> dict[str, np.ndarray]:
        """Return by learner what ships says of the outer holdout, (m, C): its fits, averaged."""
        assert self.outer is not None
        return {name: average_of(fits) for name, fits in zip(self.names, self.outer, strict=True)}

    def out_of(self, names: Sequence[str]) -> np.ndarray:
        """Return ``out_of_fold`` of these learners."""
        return self.out_of_fold[[self.names.index(name) for name in names]]


def collected(job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure]) -> Level:
    """Collect the predictions of held-out events, leave out learners that failed, and look for leaks.

    Raises
    ------
    InputError
        If no learner is left.
    """
    one_task = {task.name: task for task in tasks}
    errors = {f.learner: f"fold {f.fold}: {f.error}" for f in reversed(failures)}
    sound = [name for name in one_task if name not in errors]
    if not sound:
        name, error = next(iter(errors.items()))
        raise InputError(f"no learner could be trained; {name}: {error}")
    run, n_fits = job.config.run, job.config.n_folds * job.config.repeats
    by_repetition = [held_out_log_proba(run, name, folds.partitions, folds.inner)[:, folds.inner] for name in sound]
    # One repetition needs no average: normalising again would only change last bits.
    held_out = [average_of(z) if len(z) > 1 else z[0] for z in by_repetition]
    leaks = leak_remarks(_entropies(job, dict(zip(sound, by_repetition, strict=True)), n_fits))
    return Level(
        names=tuple(sound),
        out_of_fold=np.stack(held_out),
        outer=np.stack([outer_log_proba(run, name, n_fits) for name in sound]) if folds.outer.any() else None,
        records=[_record(task, errors.get(name)) for name, task in one_task.items()],
        remarks=list(leaks.values()),
    )


def _entropies(job: Job, held_out: Mapping[str, np.ndarray], n_fits: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return per learner the entropies of held-out and of new events, single fits; nothing without new events."""
    passing = None if job.test is None else job.test.passes_evaluation_cuts()
    if passing is None or not passing.any():
        return {}
    return {
        name: (entropy(z).ravel(), entropy(test_log_proba(job.config.run, name, n_fits)[:, passing]).mean(axis=0))
        for name, z in held_out.items()
    }


def _record(task: FoldTask, error: str | None) -> dict[str, Any]:
    parameters = None if error else read_json(fold_folder(task.run, task.name, 0) / TASK_FILE)["n_parameters"]
    return {
        "name": task.name,
        "status": "failed" if error else "ok",
        "error": error,
        "features": list(task.columns),
        "needs_grid": task.spec.needs_grid,
        "source": task.spec.source,
        "n_parameters": parameters,
    }
