"""The folds of a run, and the fits on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.cost import seconds_of
from showerstack.runtime.files import atomic_path, hash_json
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.stacking.fit.folds import assign_folds, evaluation_events, outer_holdout
from showerstack.stacking.fit.tasks import (
    FOLDS_FILE,
    IN_EVALUATION_FILE,
    FoldTask,
)
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
    return Folds(partitions, in_evaluation, labels, job.train.weights(), groups, remarks)


def fold_tasks(job: Job) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    # A fit does not depend on how often the folds are repeated: more repetitions keep those that are there.
    fits_hash = hash_json({name: value for name, value in job.fits_identity.items() if name != "repeats"})
    # Networks on grids take longest: they go first, so that no worker is left alone with one at the end.
    specs = sorted(config.learner_specs(job.task), key=worth if job.ends else lambda spec: not spec.needs_grid)
    n_fits = config.n_folds * config.repeats
    deadline = None if job.ends is None else job.ends - FOLLOWS_SHARE * seconds_of(config.time_limit or "")
    ships = next((spec.name for spec in reversed(specs) if not spec.needs_grid), specs[-1].name)
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
            deadline=deadline,
            share=share_of_time(fold, n_fits, sum(job.pools.values()), last=spec is specs[-1]),
            gives_up=spec.name != ships,
            context_hash=hash_json([fits_hash, STACKING_VERSION, _as_registered(spec, config.preset)]),
        )
        for spec in specs
        for fold in range(n_fits)
    ]


WORTH = ("pretrained", "mlp", "catboost", "xgboost", "lightgbm")
"""Learners in the order in which a time limit begins them; others follow, networks on grids last."""
LIMITED_FOLDS = 3
"""Folds at most under a time limit."""
FOLLOWS_SHARE = 0.2
"""Share of a time limit that is kept for what follows the fits: pool, calibration, predictions, scores, report."""
LEARNER_SHARE, FIT_SHARE = 0.5, 0.75
"""Share of the time left that a learner may take, except the last; and of it the share for learning, not predicting."""


def worth(spec: LearnerSpec) -> tuple[int, bool]:
    """Return what orders learners under a time limit."""
    name = spec.name.rpartition(".")[2]
    return (WORTH.index(name) if name in WORTH else len(WORTH), spec.needs_grid)


def share_of_time(fold: int, n_fits: int, workers: int, *, last: bool) -> float:
    """Return the share of the time left, when a fit begins, that it may learn for.

    A learner's fits go in rounds of as many as there are workers; a round leaves the same time to each that follows.
    """
    rounds_left = -(-n_fits // workers) - fold // workers
    return FIT_SHARE * (1.0 if last else LEARNER_SHARE) / max(1, rounds_left)


def _as_registered(spec: LearnerSpec, preset: str) -> list[Any]:
    return [spec.learner, spec.version, spec.features, spec.settings_for(preset)]
