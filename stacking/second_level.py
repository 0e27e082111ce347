"""The second level: meta-learner, calibration, gate, decision, and the run's files.

Estimates of true quantities by a run's learners are tested on training events that no fit has learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from showerstack.runtime.cost import Cost, measured
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.stacking.budget import sizes_of
from showerstack.stacking.decide.base import DecisionSample
from showerstack.stacking.decide.classes import stacking_of
from showerstack.stacking.decide.target import TargetCalibration, fits_of
from showerstack.stacking.fit.plan import FIXED_S
from showerstack.stacking.fit.tasks import (
    TimeLimitReached,
    has_truth,
    held_out_truth,
    outer_truth,
    test_log_proba,
    test_truth,
)
from showerstack.stacking.inputs.events import CONTEXT_SCALARS, Binned, pieces
from showerstack.stacking.levels import ON_HOLDOUT, EvaluationSample, FirstLevel, evaluation_sample
from showerstack.stacking.meta.base import StackInputs
from showerstack.stacking.meta.calibration import Calibrator, reliability
from showerstack.stacking.meta.choice import Stacked, choose_and_fit, prune
from showerstack.stacking.meta.gate import decide_gate
from showerstack.stacking.meta.scorers import Scorer
from showerstack.stacking.meta.softmax import fit_pool, log_loss_per_event, pooled
from showerstack.stacking.run.chain import STUDENT, Chain, Predictions, average_of, concatenated, save_chain
from showerstack.stacking.run.folder import (
    PREDICTIONS_FILE,
    write_out_of_fold,
    write_predictions,
    write_test_posteriors,
)
from showerstack.stacking.run.job import Folds, Job
from showerstack.stacking.student import Student, train_student


def fit_target_calibration(
    job: Job, folds: Folds, level: FirstLevel, rows: np.ndarray
) -> tuple[TargetCalibration | None, dict[str, Any] | None, dict[str, np.ndarray]]:
    """Return what estimates energy and core, the manifest's entry, and what it says of these events, (n,) each.

    None, None and nothing where no learner learned them.

    Parameters
    ----------
    level
        What the learners say.
    rows
        (N,) bool: the events on which what ships is scored; the outer holdout, where all fits are averaged or are one
        network, if there is one, else those predicted out-of-fold.
    """
    run = job.config.run
    name = next((name for name in level.names if has_truth(run, name)), None)
    targets = job.train.targets(np.flatnonzero(rows)) if name is not None else None
    if name is None or targets is None:
        return None, None, {}
    if folds.outer.any():
        every = range(job.config.n_folds * job.config.repeats)
        fits = outer_truth(run, name, (None,) if name in level.networks else every)
    else:
        fits = held_out_truth(run, name, folds.partitions[0], folds.inner)[None, rows]
    target_calibration, record = TargetCalibration.of(name, fits, targets, folds.weights_of(rows))
    if not any(target_calibration.scale):
        return None, None, {}
    return target_calibration, record, target_calibration.arrays(fits, None)


@dataclass(frozen=True)
class Outcome:
    """What the second level adds to a run."""

    record: dict[str, Any]
    """Entries of the manifest."""
    predictions: Predictions | None
    costs: list[Cost]
    remarks: list[str]


def stack_and_decide(job: Job, folds: Folds, level: FirstLevel, config_hash: str) -> Outcome:
    """Choose and fit the meta-learner, calibrate, pass the gate, decide, predict the test events, write all files."""
    procedure, costs, bars = stacking_of(job.task), [], job.ctx.bars
    scorer = procedure.scorer
    calibration_s = sizes_of(job).second.calibration_s(len(level.names), job.workers) if job.deadline else 0.0
    until = job.deadline_before(FIXED_S + calibration_s)
    with measured("pruning") as cost, bars("weighing the learners", "steps"):
        every = _inputs(job, folds, level)
        slow = frozenset(record["name"] for record in level.records if record["needs_grid"])
        pruning = prune(every, scorer, job.config.prune, slow, until)
        inputs = every.only(pruning.selected)
    costs.append(cost)
    with measured("meta-learner") as cost, bars("choosing the meta-learner", "fits") as progress:
        stacked = choose_and_fit(
            job.config.meta_names, inputs, scorer, workers=job.workers, progress=progress, until=until
        )
    costs.append(cost)
    sample = evaluation_sample(job, folds, level, stacked)
    calibrators: dict[str, Calibrator] = {}
    systems: dict[str, np.ndarray] = {}
    with measured("calibration") as cost, bars("calibrating", "systems") as progress:
        for name, calibrator, log_proba in sample.calibrate(workers=job.workers):
            calibrators[name], systems[name] = calibrator, log_proba
            progress(len(systems), len(sample.raw), name)
    costs.append(cost)
    with measured("gate") as cost:
        by_learner = {name: systems[name] for name in level.names}
        gate = decide_gate(systems["stack"], by_learner, sample.labels, scorer, sample.groups, sample.weights)
    costs.append(cost)
    shipped = "stack" if gate.shipped else gate.best_learner
    with measured("student") as cost, bars("training the student of predict --fast", "steps"):
        student, no_student = _student(job, folds, level, stacked, sample, systems[shipped], shipped)
    costs.append(cost)
    decided = dict(systems)
    if student:
        student.learner.save(job.config.run / STUDENT)
        calibrators[STUDENT], decided[STUDENT] = student.calibrator, student.log_proba
    weights = stacked.meta.importance() if shipped == "stack" else {}
    asked = tuple(name for name in stacked.meta.learners if weights.get(name, 0) > 0)
    with measured("decision") as cost, bars("decision", "systems") as progress:
        target_calibration, estimates, own = fit_target_calibration(job, folds, level, sample.rows)
        held_out = replace(_held_out(job, folds, sample, decided, shipped), own=_own(job, own, sample), asked=asked)
        decision, rules = procedure.decide(held_out, job.config.run, progress)
    costs.append(cost)
    n_fits = job.config.n_folds * job.config.repeats
    inside = folds.in_evaluation
    shares = np.bincount(folds.labels[inside], folds.weights_of(inside), minlength=job.task.n_classes)
    shares = shares / shares.sum()
    chain = Chain(
        task=job.task,
        calibrators=calibrators,
        meta=stacked.meta,
        rules=rules,
        shipped=shipped,
        config_hash=config_hash,
        n_fits=n_fits,
        target_calibration=target_calibration,
        networks=tuple(level.networks),
        prior=tuple(shares.tolist()),
    )
    save_chain(job.config.run, chain)
    _write_held_out_files(job, folds, level, stacked, sample, systems)
    with measured("prediction") as cost:
        predictions = _predict_test(job, chain, level.names)
    costs.append(cost)
    record = {
        "learners": _learner_records(level, sample, systems, folds),
        "reliability": {
            name: {
                stage: reliability(z, sample.labels, sample.weights)
                for stage, z in (("raw", sample.raw[name]), ("calibrated", calibrated))
            }
            for name, calibrated in systems.items()
        },
        "judged": {"on": sample.where, "events": len(sample.labels), "fits": _fits_evaluated(sample, n_fits, folds)},
        "meta": _meta_record(stacked, scorer, inputs),
        "pruning": pruning.as_json() | {"on_holdout": _cost_on_holdout(every, inputs, level, sample)},
        "gate": gate.as_json(),
        "decision": decision,
        "truth": estimates,
        STUDENT: student.record if student else None,
    }
    return Outcome(
        record, predictions, costs, [line for line in (pruning.remark(), stacked.remark(), no_student) if line]
    )


def _inputs(job: Job, folds: Folds, level: FirstLevel) -> StackInputs:
    context, groups = job.train.context(), job.train.groups()
    return StackInputs(
        learners=level.names,
        log_proba=level.out_of_fold,
        labels=folds.labels[folds.inner],
        folds=folds.partitions[0][folds.inner],
        context=None if context is None else context[folds.inner],
        groups=None if groups is None else groups[folds.inner],
        event_weights=folds.weights_of(folds.inner),
    )


def _student(
    job: Job,
    folds: Folds,
    level: FirstLevel,
    stacked: Stacked,
    sample: EvaluationSample,
    log_proba: np.ndarray,
    shipped: str,
) -> tuple[Student | None, str | None]:
    """Return the student of what ships, or None and why not; without a word where nobody needs one.

    Nobody does where what ships is one network.
    """
    if not job.config.fast or shipped in level.networks:
        return None, None
    teacher = stacked.log_proba if shipped == "stack" else level.out_of((shipped,))[0]
    try:
        return train_student(job, folds, sample, teacher, log_proba, stacking_of(job.task).scorer), None
    except (InputError, FloatingPointError, TimeLimitReached) as error:
        return None, f"predict --fast is not possible with this run: {error}"


def _cost_on_holdout(
    every: StackInputs, selected: StackInputs, level: FirstLevel, sample: EvaluationSample
) -> dict[str, Any] | None:
    """Return what pruning cost on the outer holdout, averages of fits pooled; None without one."""
    if level.outer is None or every.learners == selected.learners:
        return None
    averages = level.averages()
    whole, pruned = (
        pooled(
            np.stack([averages[name] for name in part.learners]),
            *fit_pool(part.log_proba, part.labels, part.event_weights),
        )
        for part in (every, selected)
    )
    return paired_log_loss(sample.labels, pruned, whole, sample.groups, sample.weights).as_dict()


def _fits_evaluated(sample: EvaluationSample, n_fits: int, folds: Folds) -> int:
    """Return how many fits are averaged in what was scored."""
    return n_fits if sample.where == ON_HOLDOUT else len(folds.partitions)


def _held_out(
    job: Job, folds: Folds, sample: EvaluationSample, systems: Mapping[str, np.ndarray], shipped: str
) -> DecisionSample:
    energy, offsets = job.train.energy(), job.train.offsets()
    return DecisionSample(
        systems,
        shipped,
        sample.labels,
        sample.folds,
        energy=None if energy is None else energy[sample.rows],
        groups=sample.groups,
        weights=sample.weights,
        offsets=None if offsets is None else offsets[sample.rows],
        training=None if offsets is None else Binned(offsets[folds.in_evaluation], folds.labels[folds.in_evaluation]),
    )


def _own(job: Job, estimates: Mapping[str, np.ndarray], sample: EvaluationSample) -> np.ndarray | None:
    """Return (2, n) what is estimated of the task's target minus its reference, and the error; None if nothing is."""
    target = job.task.target
    if target is None or target.name not in estimates:
        return None
    start: np.ndarray | float = 0.0
    if target.reference is not None:
        context = job.train.context()
        assert context is not None
        start = context[sample.rows, CONTEXT_SCALARS.index(target.reference)]
    return np.stack([estimates[target.name] - start, estimates[f"{target.name}_error"]])


def _learner_records(
    level: FirstLevel, sample: EvaluationSample, systems: Mapping[str, np.ndarray], folds: Folds
) -> list[dict[str, Any]]:
    """Return the manifest's entries with each learner's scores on the sample, and those of its single fits."""
    out_of_fold = dict(zip(level.names, level.out_of_fold, strict=True))
    inner = (folds.labels[folds.inner], folds.weights_of(folds.inner))
    records = []
    for record in level.records:
        scores: dict[str, Any] = dict.fromkeys(("log_loss", "raw_log_loss", "single_fit_log_loss", "accuracy"))
        if record["name"] in out_of_fold:
            log_proba, raw = systems[record["name"]], sample.raw[record["name"]]
            single = out_of_fold[record["name"]]
            scores = {
                "log_loss": float(log_loss_per_event(log_proba, sample.labels, sample.weights).mean()),
                "raw_log_loss": float(log_loss_per_event(raw, sample.labels, sample.weights).mean()),
                "single_fit_log_loss": float(log_loss_per_event(single, *inner).mean()),
                "accuracy": float(np.average(np.argmax(log_proba, axis=1) == sample.labels, weights=sample.weights)),
            }
        records.append(record | scores)
    return records


def _meta_record(stacked: Stacked, scorer: Scorer, inputs: StackInputs) -> dict[str, Any]:
    truth = (inputs.labels, inputs.event_weights)
    compared = {**stacked.by_meta, "average": average_of(inputs.log_proba), "stack": stacked.log_proba}
    return {
        "chosen": stacked.meta.name,
        "chosen_by_fold": stacked.chosen_by_fold,
        "weights": stacked.meta.importance(),
        "judge": scorer.name,
        "losses": {name: scorer.loss(z, *truth) for name, z in compared.items()},
        "log_losses": {name: float(log_loss_per_event(z, *truth).mean()) for name, z in compared.items()},
    }


def _write_held_out_files(
    job: Job,
    folds: Folds,
    level: FirstLevel,
    stacked: Stacked,
    sample: EvaluationSample,
    systems: Mapping[str, np.ndarray],
) -> None:
    """Write every system's predictions of training events: scored ones as they ship, others by single fits."""
    out_of_fold = {
        **dict(zip(level.names, level.out_of_fold, strict=True)),
        "average": average_of(level.out_of(stacked.meta.learners)),
        "stack": stacked.log_proba,
    }
    for name, log_proba in systems.items():
        everywhere = np.full((len(folds.labels), job.task.n_classes), np.nan)
        everywhere[folds.inner] = out_of_fold[name]
        everywhere[sample.rows] = log_proba
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
