"""Estimates of true quantities by a run's learners, judged on training events that no fit has learned from."""

from __future__ import annotations

from typing import Any

import numpy as np

from stacking.predict.truth import Estimator
from stacking.run.job import Folds, Job
from stacking.tasks.finished import has_truth, held_out_truth, outer_truth


def taught_truth(
    job: Job, folds: Folds, names: tuple[str, ...], rows: np.ndarray
) -> tuple[Estimator | None, dict[str, Any] | None]:
    """Return what estimates energy and core, and the manifest's entry; None each where no learner was taught them.

    Parameters
    ----------
    names
        Learners in the run.
    rows
        (N,) bool: the events that what ships is judged on; the outer holdout, where all fits are averaged, if there is
        one, else those predicted out-of-fold.
    """
    run = job.config.run
    name = next((name for name in names if has_truth(run, name)), None)
    targets = job.train.targets(np.flatnonzero(rows)) if name is not None else None
    if name is None or targets is None:
        return None, None
    if folds.outer.any():
        fits = outer_truth(run, name, job.config.n_folds * job.config.repeats)
    else:
        fits = held_out_truth(run, name, folds.partitions[0], folds.inner)[None, rows]
    estimator, record = Estimator.of(name, fits, targets)
    return (estimator, record) if any(estimator.scale) else (None, None)
