"""The first level, which fits are done and collected, and the sample of events on which what ships is scored.

With an outer holdout, systems predict that sample exactly as they would ship: the average of all fits of each learner,
as for new events, and the meta-learner on top. Without one (few events), it has out-of-fold predictions of single fits,
and nested ones of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, hash_json, read_json
from showerstack.runtime.processes import in_processes, limited_threads
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.scoring.metrics.paired import Paired
from showerstack.stacking.fit.folds import EVALUATION_FOLDS, assign_folds, evaluation_events, outer_holdout
from showerstack.stacking.fit.one_network import MARGIN, average_weights
from showerstack.stacking.fit.plan import FIXED_S
from showerstack.stacking.fit.running import TaskFailure
from showerstack.stacking.fit.tasks import (
    FOLDS_FILE,
    IN_EVALUATION_FILE,
    TASK_FILE,
    FoldTask,
    TimeLimitReached,
    fold_folder,
    held_out_log_proba,
    outer_log_proba,
    test_log_proba,
)
from showerstack.stacking.meta.calibration import Calibrator, cross_fit
from showerstack.stacking.meta.choice import Stacked
from showerstack.stacking.meta.gate import entropy, leak_remarks
from showerstack.stacking.run.chain import average_of, combined
from showerstack.stacking.run.job import Folds, Job


def make_folds(job: Job) -> Folds:
    """Set the outer holdout apart, assign folds to the others, and write both where the tasks read them.

    Events that cannot be used are in no fold and not scored, so nothing is trained or measured on them.
    """
    labels, energy, groups = job.train.labels(), job.train.energy(), job.train.groups()
    usable = job.train.usable()
    passes = job.train.passes_evaluation_cuts()
    in_evaluation, remark = evaluation_events(passes, labels, job.task.n_classes, usable)
    config = job.config
    outer, no_holdout = outer_holdout(
        in_evaluation,
        labels,
        config.holdout,
        seed=config.seed,
        energy=energy,
        groups=groups,
        least=config.least_held_out,
    )
    rest = np.flatnonzero(~outer if usable is None else ~outer & usable)
    own = job.train.folds()
    partitions = np.full((config.repeats, len(labels)), -1, dtype=np.int8)
    if own is not None:
        partitions[:] = own
    for repeat in range(0 if own is not None else config.repeats):
        partitions[repeat, rest] = assign_folds(
            labels[rest],
            config.n_folds,
            seed=config.seed + 1_000_003 * repeat,
            energy=None if energy is None else energy[rest],
            groups=None if groups is None else groups[rest],
            classes=job.task.classes,
        )
    for name, array in ((FOLDS_FILE, partitions), (IN_EVALUATION_FILE, in_evaluation)):
        with atomic_path(job.config.run / name) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    remarks = tuple(filter(None, (remark, no_holdout)))
    return Folds(partitions, in_evaluation, labels, job.train.weights(), remarks)


def fold_tasks(job: Job) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    # A fit does not depend on how often the folds are repeated: more repetitions keep those that are there.
    fits_hash = hash_json({name: value for name, value in job.fits_identity.items() if name != "repeats"})
    specs = config.learner_specs(job.task)
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
            context_hash=hash_json([fits_hash, STACKING_VERSION, _as_registered(spec, config.preset)]),
        )
        for spec in specs
        for fold in range(config.n_folds * config.repeats)
    ]


def _as_registered(spec: LearnerSpec, preset: str) -> list[Any]:
    return [spec.learner, spec.version, spec.features, spec.settings_for(preset)]


@dataclass(frozen=True)
class FirstLevel:
    """Predictions of the training events under the evaluation cuts, none by a fit that learned from it."""

    names: tuple[str, ...]
    out_of_fold: np.ndarray
    """(L, n, C) log-probabilities of those events inside the folds, averaged over repetitions."""
    outer: np.ndarray | None
    """(L, F, m, C) of the outer holdout, by each of the F = repetitions x folds fits; None without a holdout."""
    records: list[dict[str, Any]]
    """Manifest entries of all learners."""
    remarks: list[str]
    """Suspected leaks, and fits that are not one network although they might be."""
    networks: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of learners whose fits are one network, (1, m, C) log-probabilities of the outer holdout."""

    def averages(self) -> dict[str, np.ndarray]:
        """Return by learner what ships says of the outer holdout, (m, C): its network, or its fits, averaged."""
        assert self.outer is not None
        fits = {**dict(zip(self.names, self.outer, strict=True)), **self.networks}
        return {name: average_of(log_proba) for name, log_proba in fits.items()}

    def out_of(self, names: Sequence[str]) -> np.ndarray:
        """Return ``out_of_fold`` of these learners."""
        return self.out_of_fold[[self.names.index(name) for name in names]]


def collected(job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure]) -> FirstLevel:
    """Collect the out-of-fold predictions, leave out learners that failed, and look for leaks.

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
    networks, kept_apart = _networks(job, folds, [task for task in tasks if task.name not in errors])
    return FirstLevel(
        names=tuple(sound),
        out_of_fold=np.stack(held_out),
        outer=np.stack([outer_log_proba(run, name, range(n_fits)) for name in sound]) if folds.outer.any() else None,
        records=[
            _record(task, errors.get(name)) | {"one_network": networks[name].as_dict() if name in networks else None}
            for name, task in one_task.items()
        ],
        remarks=[*leaks.values(), *kept_apart],
        networks={name: outer_log_proba(run, name, (None,)) for name in networks},
    )


def _networks(job: Job, folds: Folds, tasks: Sequence[FoldTask]) -> tuple[dict[str, Paired], list[str]]:
    """Make one network of the fits of each learner that declares it.

    Returns
    -------
    dict
        By learner, its log-loss minus that of averaged predictions, where that is small enough.
    list
        What the run says of the others.
    """
    networks, remarks, groups = {}, [], job.train.groups()
    for name in dict.fromkeys(task.name for task in tasks if task.spec.one_network):
        why = "without an outer holdout nothing shows that one network with their mean weights is as good"
        if folds.outer.any():
            try:
                worse = average_weights(
                    [task for task in tasks if task.name == name],
                    folds.labels[folds.outer],
                    None if groups is None else groups[folds.outer],
                    folds.weights_of(folds.outer),
                    job.deadline_before(FIXED_S),
                )
            except (InputError, TimeLimitReached) as error:
                why = str(error)
            else:
                if worse.difference <= MARGIN:
                    networks[name] = worse
                    continue
                why = f"one network with their mean weights is worse by {worse.difference:.4f} nats on the holdout"
        remarks.append(f"{name}: the predictions of its fits are averaged: {why}")
    return networks, remarks


def _entropies(job: Job, held_out: Mapping[str, np.ndarray], n_fits: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return per learner the entropies of out-of-fold and of new events, single fits; nothing without new events."""
    passing = None if job.test is None else job.test.passes_evaluation_cuts()
    if passing is None or not passing.any():
        return {}
    return {
        name: (
            entropy(z).ravel(),
            entropy(test_log_proba(job.config.run, name, range(n_fits))[:, passing]).mean(axis=0),
        )
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


ON_HOLDOUT, OUT_OF_FOLD = "outer holdout", "out-of-fold"


@dataclass(frozen=True)
class EvaluationSample:
    """Labelled events and what every system (learners, ``average``, ``stack``) says of them."""

    where: str
    """:data:`ON_HOLDOUT` or :data:`OUT_OF_FOLD`."""
    rows: np.ndarray
    """(N,) bool among the training events; n of them."""
    labels: np.ndarray
    """(n,) int64."""
    folds: np.ndarray
    """(n,) for cross-fitting."""
    groups: np.ndarray | None
    """(n,) or None."""
    raw: Mapping[str, np.ndarray]
    """By system, (n, C) log-probabilities before calibration."""
    weights: np.ndarray | None = None
    """(n,) importance weights, or None."""

    def calibrate(self, *, workers: int = 1) -> Iterator[tuple[str, Calibrator, np.ndarray]]:
        """Yield each system's name, the calibrator that ships, and (n, C) cross-fitted calibrated log-probabilities."""
        arguments = [(log_proba, self.labels, self.folds, self.groups, self.weights) for log_proba in self.raw.values()]
        for name, result in zip(self.raw, in_processes(_cross_fit, arguments, workers=workers), strict=True):
            yield (name, *result)


def _cross_fit(
    log_proba: np.ndarray,
    labels: np.ndarray,
    folds: np.ndarray,
    groups: np.ndarray | None,
    weights: np.ndarray | None,
) -> tuple[Calibrator, np.ndarray]:
    with limited_threads(1):  # the same last bits in any process
        return cross_fit(log_proba, labels, folds, groups, weights)


def evaluation_sample(job: Job, folds: Folds, level: FirstLevel, stacked: Stacked) -> EvaluationSample:
    """Return the sample for scoring, on the outer holdout if there is one."""
    learners = dict(zip(level.names, level.out_of_fold, strict=True))
    inner = {**learners, "average": average_of(level.out_of(stacked.meta.learners)), "stack": stacked.log_proba}
    groups = job.train.groups()
    inner_groups = None if groups is None else groups[folds.inner]
    inner_weights = folds.weights_of(folds.inner)
    if level.outer is None:
        fold_numbers, labels = folds.partitions[0][folds.inner], folds.labels[folds.inner]
        return EvaluationSample(OUT_OF_FOLD, folds.inner, labels, fold_numbers, inner_groups, inner, inner_weights)
    labels, context, energy = folds.labels[folds.outer], job.train.context(), job.train.energy()
    context = None if context is None else context[folds.outer]
    averages = level.averages()
    outer_groups = None if groups is None else groups[folds.outer]
    weights = folds.weights_of(folds.outer)
    return EvaluationSample(
        where=ON_HOLDOUT,
        rows=folds.outer,
        labels=labels,
        folds=assign_folds(
            labels,
            EVALUATION_FOLDS,
            seed=job.config.seed,
            energy=None if energy is None else energy[folds.outer],
            groups=outer_groups,
        ),
        groups=outer_groups,
        raw=combined(averages, stacked.meta, context),
        weights=weights,
    )
