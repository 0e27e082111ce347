"""The second level: pool, calibration, gate, predictions, and the run's files.

With an outer holdout, systems predict it exactly as they would ship: the average of all fits of each learner, as for
new events, and the pool on top. Without one (few events), what ships is scored on out-of-fold predictions of single
fits, and on nested ones of the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from showerstack.runtime.cost import Cost, measured
from showerstack.stacking.decide.base import DecisionSample
from showerstack.stacking.decide.classes import stacking_of
from showerstack.stacking.decide.target import TargetCalibration, fits_of
from showerstack.stacking.fit.folds import EVALUATION_FOLDS, assign_folds
from showerstack.stacking.fit.tasks import has_truth, held_out_truth, outer_truth, test_log_proba, test_truth
from showerstack.stacking.inputs.events import CONTEXT_SCALARS, Binned, pieces
from showerstack.stacking.meta.calibration import calibrated, reliability
from showerstack.stacking.meta.gate import decide_gate
from showerstack.stacking.meta.pools import Stack, fit_stack, nested
from showerstack.stacking.meta.sample import Sample
from showerstack.stacking.oof import OutOfFold
from showerstack.stacking.run.chain import Chain, Predictions, average_of, combined, concatenated, save_chain
from showerstack.stacking.run.folder import (
    PREDICTIONS_FILE,
    write_out_of_fold,
    write_predictions,
    write_test_posteriors,
)
from showerstack.stacking.run.job import Folds, Job

ON_HOLDOUT, OUT_OF_FOLD = "outer holdout", "out-of-fold"


@dataclass(frozen=True)
class Judged:
    """Labelled events on which what ships is chosen and scored, and what every system says of them."""

    on: str
    """:data:`ON_HOLDOUT` or :data:`OUT_OF_FOLD`."""
    rows: np.ndarray
    """(N,) bool among the training events; n of them."""
    sample: Sample
    raw: Mapping[str, np.ndarray]
    """By system (learners, ``average``, ``stack``), (n, C) log-probabilities before calibration."""


@dataclass(frozen=True)
class Ended:
    """What the second level adds to a run."""

    record: dict[str, Any]
    """Entries of the manifest."""
    predictions: Predictions | None
    costs: list[Cost]
    remarks: list[str]


def stack_and_decide(job: Job, folds: Folds, oof: OutOfFold, config_hash: str) -> Ended:
    """Find the pool, calibrate, pass the gate, predict the test events, write all files."""
    procedure, costs = stacking_of(job.task), []
    find = partial(fit_stack, tolerance=job.config.prune, names=job.config.pools, survival=procedure.survival)
    inner = folds.sample(folds.inner)
    with measured("pool") as cost, job.ctx.bars("weighing the learners", "steps"):
        stack = find(oof.inner, inner)
        # Scored are predictions by stacks that have not seen the event, choice of learners and pool included.
        stacked = stack.log_proba if oof.holdout else nested(find, oof.inner, inner)
        judged = _judged(job, folds, oof, stack, stacked)
    costs.append(cost)
    with measured("calibration") as cost:
        scales, systems = {}, {}
        for name, z in judged.raw.items():
            scales[name], systems[name] = calibrated(z, judged.sample)
    costs.append(cost)
    with measured("gate") as cost:
        by_learner = {name: systems[name] for name in oof.names}
        gate = decide_gate(systems["stack"], by_learner, judged.sample, survival=procedure.survival)
    costs.append(cost)
    shipped = "stack" if gate.shipped else gate.best_learner
    with measured("decision") as cost:
        target_calibration, estimates, own = fit_target_calibration(job, folds, oof, judged)
        asked = stack.pool.needed if gate.shipped else (shipped,)
        decision, rules = procedure.decide(_held_out(job, folds, judged, systems, shipped, own, asked), job.config.run)
    costs.append(cost)
    n_fits = job.config.n_folds * job.config.repeats
    everyone = folds.sample(folds.in_evaluation)
    shares = np.bincount(everyone.labels, everyone.weights, minlength=job.task.n_classes)
    chain = Chain(
        task=job.task,
        scales=scales,
        pool=stack.pool,
        rules=rules,
        shipped=shipped,
        config_hash=config_hash,
        n_fits=n_fits,
        target_calibration=target_calibration,
        networks=oof.networks,
        prior=tuple((shares / shares.sum()).tolist()),
    )
    save_chain(job.config.run, chain)
    _write_held_out_files(job, folds, oof, stack, stacked, judged, systems)
    with measured("prediction") as cost:
        predictions = _predict_test(job, chain, oof.names)
    costs.append(cost)
    record = {
        "learners": _learner_records(oof, judged, systems, inner),
        "reliability": {
            name: {"raw": reliability(judged.raw[name], judged.sample), "calibrated": reliability(z, judged.sample)}
            for name, z in systems.items()
        },
        "judged": {
            "on": judged.on,
            "events": len(judged.sample),
            "fits": n_fits if judged.on == ON_HOLDOUT else len(folds.partitions),
        },
        "pool": stack.as_json(),
        "gate": gate.as_json(),
        "decision": decision,
        "truth": estimates,
    }
    return Ended(record, predictions, costs, [line for line in (stack.remark(),) if line])


def _judged(job: Job, folds: Folds, oof: OutOfFold, stack: Stack, stacked: np.ndarray) -> Judged:
    if oof.holdout is None:
        average = average_of(np.stack([oof.inner[name] for name in stack.pool.learners]))
        raw = {**oof.inner, "average": average, "stack": stacked}
        return Judged(OUT_OF_FOLD, folds.inner, folds.sample(folds.inner), raw)
    sample, energy = folds.sample(folds.outer), job.train.energy()
    fifths = assign_folds(
        sample.labels,
        EVALUATION_FOLDS,
        seed=job.config.seed,
        energy=None if energy is None else energy[folds.outer],
        groups=sample.groups,
    )
    sample = Sample(sample.labels, fifths, sample.groups, sample.weights)
    return Judged(ON_HOLDOUT, folds.outer, sample, combined(oof.holdout, stack.pool))


def fit_target_calibration(
    job: Job, folds: Folds, oof: OutOfFold, judged: Judged
) -> tuple[TargetCalibration | None, dict[str, Any] | None, dict[str, np.ndarray]]:
    """Return what estimates energy and core, the manifest's entry, and what it says of the judged events, (n,) each.

    None, None and nothing where no learner learned them.
    """
    run = job.config.run
    name = next((name for name in oof.names if has_truth(run, name)), None)
    targets = job.train.targets(np.flatnonzero(judged.rows)) if name is not None else None
    if name is None or targets is None:
        return None, None, {}
    if judged.on == ON_HOLDOUT:
        every = range(job.config.n_folds * job.config.repeats)
        fits = outer_truth(run, name, (None,) if name in oof.networks else every)
    else:
        fits = held_out_truth(run, name, folds.partitions[0], folds.inner)[None, judged.rows]
    target_calibration, record = TargetCalibration.of(name, fits, targets, judged.sample.weights)
    if not any(target_calibration.scale):
        return None, None, {}
    return target_calibration, record, target_calibration.arrays(fits, None)


def _held_out(
    job: Job,
    folds: Folds,
    judged: Judged,
    systems: Mapping[str, np.ndarray],
    shipped: str,
    own: Mapping[str, np.ndarray],
    asked: tuple[str, ...],
) -> DecisionSample:
    offsets, training = job.train.offsets(), None
    if offsets is not None:
        training = Binned(offsets[folds.in_evaluation], folds.labels[folds.in_evaluation])
        offsets = offsets[judged.rows]
    own_estimate = _own(job, own, judged.rows)
    return DecisionSample(systems, shipped, judged.sample, offsets, training, own_estimate, asked)


def _own(job: Job, estimates: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray | None:
    """Return (2, n) what is estimated of the task's target minus its reference, and the error; None if nothing is."""
    target = job.task.target
    if target is None or target.name not in estimates:
        return None
    start: np.ndarray | float = 0.0
    if target.reference is not None:
        context = job.train.context()
        assert context is not None
        start = context[rows, CONTEXT_SCALARS.index(target.reference)]
    return np.stack([estimates[target.name] - start, estimates[f"{target.name}_error"]])


def _learner_records(
    oof: OutOfFold, judged: Judged, systems: Mapping[str, np.ndarray], inner: Sample
) -> list[dict[str, Any]]:
    """Return the manifest's entries with each learner's scores on the judged events, and those of its single fits."""
    records, sample = [], judged.sample
    for record in oof.records:
        name = record["name"]
        scores: dict[str, Any] = dict.fromkeys(("log_loss", "raw_log_loss", "single_fit_log_loss", "accuracy"))
        if name in oof.inner:
            scores = {
                "log_loss": float(sample.losses(systems[name]).mean()),
                "raw_log_loss": float(sample.losses(judged.raw[name]).mean()),
                "single_fit_log_loss": float(inner.losses(oof.inner[name]).mean()),
                "accuracy": float(np.average(systems[name].argmax(axis=1) == sample.labels, weights=sample.weights)),
            }
        records.append(record | scores)
    return records


def _write_held_out_files(
    job: Job,
    folds: Folds,
    oof: OutOfFold,
    stack: Stack,
    stacked: np.ndarray,
    judged: Judged,
    systems: Mapping[str, np.ndarray],
) -> None:
    """Write every system's predictions of training events: judged ones as they ship, others by single fits."""
    average = average_of(np.stack([oof.inner[name] for name in stack.pool.learners]))
    out_of_fold = {**oof.inner, "average": average, "stack": stacked}
    for name, log_proba in systems.items():
        everywhere = np.full((len(folds.labels), job.task.n_classes), np.nan)
        everywhere[folds.inner] = out_of_fold[name]
        everywhere[judged.rows] = log_proba
        write_out_of_fold(job.config.run / "oof" / f"{name}.parquet", everywhere, folds.partitions[0], job.task.classes)


def _predict_test(job: Job, chain: Chain, names: tuple[str, ...]) -> Predictions | None:
    if job.test is None:
        return None
    fits = {name: test_log_proba(job.config.run, name, chain.fits(name)) for name in names}
    if chain.target_calibration:
        teacher = chain.target_calibration.learner
        fits[fits_of(teacher)] = test_truth(job.config.run, teacher, chain.fits(teacher))
    context = job.test.context()
    in_pieces = ((piece, {name: z[:, piece] for name, z in fits.items()}) for piece in pieces(len(job.test)))
    parts = list(chain.stream(in_pieces, job.test, job.test.events_fingerprint()))
    if not parts:
        return None
    predictions = concatenated(parts)
    write_test_posteriors(job.config.run, chain, predictions, context)
    write_predictions(job.config.run / PREDICTIONS_FILE, predictions)
    return predictions
