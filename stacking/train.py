"""Training a run, from dataset folders or tables of any origin to predictions: :func:`stack`.

It reads top to bottom: open the data, fold, fit, collect out-of-fold predictions, pool, calibrate, pass the gate,
predict, write. A table is a task whose events have no grids. Test labels do not exist in this module: test events come
without them, and a label column in a test table is dropped while reading.

With a holdout, systems predict it exactly as new events: by the average of all fits of each learner, and the pool on
top. Without one (few events), systems are scored on out-of-fold predictions of single fits, the stack on nested ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.code import command_line, git_revision, machine, now_utc, versions
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.cost import Cost, now_s, timed
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import hash_json, write_json
from showerstack.runtime.logs import logging_to, remark
from showerstack.runtime.processes import limited_threads
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.stacking.answers import DecisionSample, stacking_of
from showerstack.stacking.chain import Chain, Predictions, average_of, combined, concatenated
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.events import CONTEXT_SCALARS, Binned, pieces
from showerstack.stacking.fits import FoldTask
from showerstack.stacking.folds import EVALUATION_FOLDS, Folds, assign_folds
from showerstack.stacking.job import LIMITED_FOLDS, Job, fold_tasks, make_folds, shower_job, table_job
from showerstack.stacking.oof import Collected, collect
from showerstack.stacking.sample import Sample
from showerstack.stacking.schedule import Attempt, run_tasks
from showerstack.stacking.second_level import (
    FIRST_FOLD,
    DroppedLearner,
    Stack,
    calibrated,
    decide_gate,
    fit_stack,
    leaving,
    left_out_remarks,
    nested,
    reliability,
)
from showerstack.stacking.store import HOLDOUT, METRICS_FILE, OWN_FOLD, PREDICTIONS_TABLE, TRUTH
from showerstack.stacking.tables import counted_in, probabilities, write_table
from showerstack.stacking.targets import TargetCalibration, fits_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Mapping[str, Any]
    predictions: Predictions | None
    """Of the test events; None where there are none, or where the run was finished before."""


def stack(config: StackConfig | TableConfig, ctx: Context = Context(), *, strict: bool = False) -> StackResult:
    """Train base learners and the stack, and predict the test events.

    Killed at any moment and started again, it continues and ends with the same bytes in its predictions. Test labels
    are neither needed nor looked at. Remarks on the data are logged before the work begins; what is logged during it
    is also in ``run.log``. Device, processes and threads are those of the configuration.

    Parameters
    ----------
    config
        Of dataset folders: trains on ``DATA/{task}_train``, predicts ``DATA/{task}_test`` into ``predictions.npz``. Of
        a table: writes ``predictions.parquet``, per row of the test table (without one: of the training table,
        out-of-fold) the identifiers, the probability of each class and the most probable one, and
        ``metrics_table.json``.
    ctx
        Progress, and when a time limit begins: by default with the feature tables, or when the table has been
        read.
    strict
        Refuse showers that cannot be used. Otherwise they are not trained on, and get the training prior in the test
        set.

    Raises
    ------
    InputError
        For data that cannot be used, too few events of a class, an unknown learner, a device that is not there, or a
        run folder of another configuration, which stays as it is.
    """
    need("train", what="training")
    if isinstance(config, TableConfig):
        if strict:
            raise InputError("strict refuses showers that cannot be used, and a table has none: leave it out")
        return do_run(table_job(config, ctx))
    return do_run(shower_job(config, ctx, strict=strict))


def do_run(job: Job) -> StackResult:
    """Do the whole run, or what is left of it."""
    job = _within_limit(job)
    job = replace(job, train=job.train.pinned(), test=None if job.test is None else job.test.pinned())
    config, run = job.config, job.run
    with run.held(), logging_to(run.log):
        run.refuse_other_configuration(job.fits_identity)
        finished = run.finished_as({"config_hash": hash_json(job.identity), **job.versions})
        if finished is not None:
            return StackResult(run.folder, finished, None)
        run.remove_second_level()
        if job.table:
            job.table.write(run)
        folds, tasks = make_folds(job), fold_tasks(job)
        remarks = [*folds.remarks, *_refit_remarks(tasks)]
        manifest = _first_entries(job, folds, [*job.remarks, *remarks])
        remark(LOG, [*remarks, *filter(None, [job.memory_remark()])])
        run.write_manifest(manifest)
        with run.started() as start, job.ctx.bars("training", "fits") as progress:
            given = [replace(task, start=start) for task in tasks] if config.scheduler else tasks
            failures, raced = _fit_all(job, folds, given, progress)
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with limited_threads(1):
            return _second_level(job, folds, tasks, failures, raced, manifest)


def _fit_all(
    job: Job, folds: Folds, tasks: list[FoldTask], progress: Progress
) -> tuple[list[Attempt], tuple[DroppedLearner, ...]]:
    """Do all fits, or those that racing leaves; return the failed ones, and the learners that left the race."""
    config = job.config
    fit = partial(
        run_tasks, processes=job.processes, threads=config.threads, scheduler=config.scheduler, progress=progress
    )
    learners, fits = {task.name for task in tasks}, {task.fold for task in tasks}
    # Without a holdout, the one fit of a learner that leaves could not be judged.
    is_race = config.race == "on" and config.prune > 0 and folds.holdout.any()
    if not is_race or len(learners) == 1 or len(fits) == 1:
        return fit(tasks), ()
    failures = fit([task for task in tasks if task.fold == FIRST_FOLD])
    failed = {failure.learner for failure in failures}
    names = [name for name in dict.fromkeys(task.name for task in tasks) if name not in failed]
    with limited_threads(1):
        first = {name: job.run.fit(name, FIRST_FOLD).read(OWN_FOLD) for name in names}
        sample = folds.sample(folds.out_of_fold & (folds.partitions[0] == FIRST_FOLD))
        survival = stacking_of(job.task).survival
        raced = leaving(first, sample, job.task.n_classes, config.prune, config.seed, survival=survival)
    gone = failed | {learner.name for learner in raced}
    return failures + fit([task for task in tasks if task.name not in gone]), raced


def _within_limit(job: Job) -> Job:
    """Set when the run began; under a time limit it has three folds at most, once."""
    began = now_s() - sum(cost.wall_s for cost in job.costs) if job.ctx.began is None else job.ctx.began
    job, config = replace(job, ctx=replace(job.ctx, began=began)), job.config
    if config.time_limit is None or (isinstance(config, TableConfig) and config.split):  # the user's own folds stay
        return job
    fewer = {"folds": min(LIMITED_FOLDS, config.n_folds), "repeats": 1}
    return replace(job, config=config.model_copy(update=fewer))


def _refit_remarks(tasks: list[FoldTask]) -> list[str]:
    problems = ((task, task.saved.problem()) for task in tasks)
    return [f"{task.name} fold {task.fold} is fitted again: {problem}" for task, problem in problems if problem]


def _first_entries(job: Job, folds: Folds, remarks: list[str]) -> dict[str, Any]:
    """Return the manifest's entries before the fits."""
    identity, train, test = job.identity, job.train, job.test
    return {
        "complete": False,
        "task": job.task.name,
        "classes": list(job.task.classes),
        "config": job.config.model_dump(mode="json"),
        "identity": identity,
        "config_hash": hash_json(identity),
        **job.versions,
        "seed": job.config.seed,
        "data": {
            "train": str(train.location),
            "test": str(test.location) if test is not None else None,
            "train_fingerprint": identity["train_fingerprint"],
            "test_fingerprint": test.events_fingerprint() if test is not None else None,
            "train_source": train.source(),
            "train_scalars": train.scalars_type(),
            "train_quantities": job.quantities,
            "test_source": test.source() if test is not None else None,
            "n_train": len(train),
            "n_judged": int(folds.in_evaluation.sum()),
            "n_holdout": int(folds.holdout.sum()),
            "n_test": len(test) if test is not None else 0,
            "grouped": folds.groups is not None,
        },
        "remarks": remarks,
        "versions": versions(),
        "started": now_utc(),
        "machine": machine(),
        "command": command_line(),
        "git_revision": git_revision(),
        "device": job.device,
    }


ON_HOLDOUT, OUT_OF_FOLD = "outer holdout", "out-of-fold"


@dataclass(frozen=True)
class Judged:
    """Labelled events on which the shipped system is chosen and scored, and the posteriors of every system."""

    on: str
    """:data:`ON_HOLDOUT` or :data:`OUT_OF_FOLD`."""
    rows: np.ndarray
    """(N,) bool among the training events; n of them."""
    sample: Sample
    raw: Mapping[str, np.ndarray]
    """By system (learners, ``average``, ``stack``), (n, C) log-probabilities before calibration."""


def _second_level(
    job: Job,
    folds: Folds,
    tasks: list[FoldTask],
    failures: list[Attempt],
    raced: tuple[DroppedLearner, ...],
    manifest: dict[str, Any],
) -> StackResult:
    """Collect predictions of the fits, find the pool, calibrate, pass the gate, predict the test events, write."""
    run, config, procedure = job.run, job.config, stacking_of(job.task)
    steps = [*job.costs, *_training_costs(tasks, failures)]

    @contextmanager
    def step(name: str) -> Iterator[None]:
        with timed(name) as cost:
            yield
        steps.append(cost)

    with step("collection"):
        collected = collect(job, folds, tasks, failures, raced)
    oof_sample = folds.sample(folds.out_of_fold)
    with step("pool"), job.ctx.bars("weighing the learners", "steps"):
        find = partial(fit_stack, tolerance=config.prune, names=config.pools, survival=procedure.survival)
        stack = find(collected.out_of_fold, oof_sample)
        # Scored are stacks that were found without the event, choice of learners and pool included.
        stacked = stack.log_proba if collected.holdout else nested(find, collected.out_of_fold, oof_sample)
        average = average_of(np.stack([collected.out_of_fold[name] for name in stack.pool.learners]))
        out_of_fold = {**collected.out_of_fold, "average": average, "stack": stacked}
        judged = _judged(job, folds, collected, stack, out_of_fold)
    with step("calibration"):
        scales, systems = {}, {}
        for name, log_proba in judged.raw.items():
            scales[name], systems[name] = calibrated(log_proba, judged.sample)
    with step("gate"):
        learners = {name: systems[name] for name in collected.names}
        gate = decide_gate(systems["stack"], learners, judged.sample, survival=procedure.survival)
        shipped = "stack" if gate.shipped else gate.best_learner
    with step("decision"):
        target_calibration, truth_record, estimates = fit_target_calibration(job, folds, collected, judged)
        needed = stack.pool.needed if gate.shipped else (shipped,)
        decision_sample = _decision_sample(job, folds, judged, systems, shipped, estimates, needed)
        decision = procedure.decide(decision_sample)
    n_fits = config.n_folds * config.repeats
    chain = Chain(
        task=job.task,
        scales=scales,
        pool=stack.pool,
        rules=decision.rules,
        shipped=shipped,
        config_hash=manifest["config_hash"],
        n_fits=n_fits,
        target_calibration=target_calibration,
        networks=collected.networks,
        prior=_prior(job, folds),
        raced=tuple(collected.first_fold),
    )
    run.write_chain(chain)
    if decision.scores:
        run.write_scores(decision.scores)
    out_of_fold |= collected.first_fold
    everywhere = {name: np.full((len(folds.labels), job.task.n_classes), np.nan) for name in systems}
    for name, log_proba in systems.items():
        # Judged events as they are predicted when new, others by single fits.
        everywhere[name][folds.out_of_fold] = out_of_fold[name]
        everywhere[name][judged.rows] = log_proba
        run.write_oof(name, everywhere[name], folds.partitions[0], job.task.classes)
    with step("prediction"):
        predictions = _predict_test(job, chain, chain.learners)
    remarks = [*collected.remarks, *left_out_remarks(raced, stack.left_out)]
    manifest |= {
        "complete": True,
        "learners": _learner_records(collected, judged, systems, out_of_fold, oof_sample),
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
        "decision": decision.record,
        "truth": truth_record,
        "remarks": [*manifest["remarks"], *remarks],
        "steps": [cost.as_json() for cost in steps],
    }
    for events in filter(None, (job.train, job.test)):
        events.refuse_changed()
    remark(LOG, remarks)
    if job.table:
        manifest["label_type"] = job.table.schema.label_type
        rows = predictions.log_proba if predictions else everywhere[shipped]
        _write_table_results(job, judged, shipped, systems, rows)
    run.write_manifest(manifest)
    run.write_checksums()
    return StackResult(run.folder, manifest, predictions)


def _write_table_results(
    job: Job, judged: Judged, shipped: str, systems: Mapping[str, np.ndarray], log_proba: np.ndarray
) -> None:
    """Write the scores of all systems, and the table of predictions (N, C)."""
    assert job.table is not None
    sample, classes = judged.sample, job.task.classes
    scores = {
        name: table_metrics(sample.labels, z, classes, sample.weights, sample.groups) for name, z in systems.items()
    }
    on = f"{judged.on} rows of the training table"
    content = {"judged_on": on, "counted": counted_in(sample.groups), "shipped": shipped, "systems": scores}
    write_json(job.run.folder / METRICS_FILE, content)
    write_table(job.run.folder / PREDICTIONS_TABLE, probabilities(log_proba, classes, job.table.identifiers))


def _training_costs(tasks: list[FoldTask], failures: list[Attempt]) -> list[Cost]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    done = [task for task in tasks if (task.name, task.fold) not in failed and task.saved.is_there]
    return [Cost(**task.saved.record()["cost"]) for task in done]


def _judged(
    job: Job, folds: Folds, collected: Collected, stack: Stack, out_of_fold: Mapping[str, np.ndarray]
) -> Judged:
    if collected.holdout is None:
        return Judged(OUT_OF_FOLD, folds.out_of_fold, folds.sample(folds.out_of_fold), out_of_fold)
    sample, energy = folds.sample(folds.holdout), job.train.energy()
    fifths = assign_folds(
        sample.labels,
        EVALUATION_FOLDS,
        seed=job.config.seed,
        energy=None if energy is None else energy[folds.holdout],
        groups=sample.groups,
    )
    return Judged(ON_HOLDOUT, folds.holdout, replace(sample, folds=fifths), combined(collected.holdout, stack.pool))


def fit_target_calibration(
    job: Job, folds: Folds, collected: Collected, judged: Judged
) -> tuple[TargetCalibration | None, dict[str, Any] | None, dict[str, np.ndarray]]:
    """Return the calibration of energy and core, the manifest's entry, and estimates of the judged events, (n,) each.

    None, None and nothing where no learner learned them.
    """
    name = next((name for name in collected.names if job.run.fit(name, 0).estimates_truth()), None)
    targets = job.train.targets(np.flatnonzero(judged.rows)) if name is not None else None
    if name is None or targets is None:
        return None, None, {}
    if judged.on == ON_HOLDOUT:
        every = range(job.config.n_folds * job.config.repeats)
        fits = job.run.read_fits(name, (None,) if name in collected.networks else every, HOLDOUT, TRUTH)
    else:
        fits = job.run.read_out_of_fold(name, folds.partitions[:1], folds.out_of_fold, TRUTH)[:, judged.rows]
    target_calibration, record = TargetCalibration.of(name, fits, targets, judged.sample.weights)
    if not any(target_calibration.scale):
        return None, None, {}
    return target_calibration, record, target_calibration.arrays(fits, None)


def _decision_sample(
    job: Job,
    folds: Folds,
    judged: Judged,
    systems: Mapping[str, np.ndarray],
    shipped: str,
    estimates: Mapping[str, np.ndarray],
    needed: tuple[str, ...],
) -> DecisionSample:
    offsets, training = job.train.offsets(), None
    if offsets is not None:
        training = Binned(offsets[folds.in_evaluation], folds.labels[folds.in_evaluation])
        offsets = offsets[judged.rows]
    own = _own_estimate(job, estimates, judged.rows)
    return DecisionSample(systems, shipped, judged.sample, offsets, training, own, needed)


def _own_estimate(job: Job, estimates: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray | None:
    """Return (2, n) a learner's estimate of the task's target minus its reference, and the error; None without one."""
    target = job.task.target
    if target is None or target.name not in estimates:
        return None
    reference: np.ndarray | float = 0.0
    if target.reference is not None:
        context = job.train.context()
        assert context is not None
        reference = context[rows, CONTEXT_SCALARS.index(target.reference)]
    return np.stack([estimates[target.name] - reference, estimates[f"{target.name}_error"]])


def _prior(job: Job, folds: Folds) -> tuple[float, ...]:
    """Return each class's share of the training events under the evaluation cuts."""
    scored = folds.sample(folds.in_evaluation)
    sums = np.bincount(scored.labels, scored.weights, minlength=job.task.n_classes)
    return tuple((sums / sums.sum()).tolist())


def _learner_records(
    collected: Collected,
    judged: Judged,
    systems: Mapping[str, np.ndarray],
    out_of_fold: Mapping[str, np.ndarray],
    oof_sample: Sample,
) -> list[dict[str, Any]]:
    """Return the manifest's entries with each learner's scores on the judged events, and those of its single fits."""
    records, sample = [], judged.sample
    for record in collected.records:
        name = record["name"]
        scores: dict[str, Any] = dict.fromkeys(("log_loss", "raw_log_loss", "single_fit_log_loss", "accuracy"))
        if name in out_of_fold:
            predicted = ~np.isnan(out_of_fold[name][:, 0])
            single_fits = oof_sample.take(predicted).losses(out_of_fold[name][predicted])
            scores = {
                "log_loss": float(sample.losses(systems[name]).mean()),
                "raw_log_loss": float(sample.losses(judged.raw[name]).mean()),
                "single_fit_log_loss": float(single_fits.mean()),
                "accuracy": float(np.average(systems[name].argmax(axis=1) == sample.labels, weights=sample.weights)),
            }
        records.append(record | scores)
    return records


def _predict_test(job: Job, chain: Chain, names: tuple[str, ...]) -> Predictions | None:
    """Predict the test events from what the fits have stored; write every system's posteriors and the predictions."""
    if job.test is None:
        return None
    run = job.run
    fits = {name: run.read_fits(name, chain.fits(name)) for name in names}
    if chain.target_calibration:
        learner = chain.target_calibration.learner
        fits[fits_of(learner)] = run.read_fits(learner, chain.fits(learner), array=TRUTH)
    in_pieces = ((piece, {name: z[:, piece] for name, z in fits.items()}) for piece in pieces(len(job.test)))
    parts = list(chain.stream(in_pieces, job.test))
    if not parts:
        return None
    predictions, context = concatenated(parts), job.test.context()
    for name, log_proba in predictions.by_name.items():
        arrays = chain.procedure.test_arrays(chain.rules.get(name), log_proba, context)
        if name == chain.shipped:
            arrays |= {key: predictions.arrays[key] for key in arrays.keys() & predictions.arrays.keys()}
        run.write_test(name, log_proba=log_proba, **arrays)
    run.write_predictions(predictions)
    return predictions
