"""Training a run, from dataset folders or tables of any origin to predictions: :func:`stack`.

It reads top to bottom: open the data, fold, fit, collect out-of-fold predictions, pool, calibrate, pass the gate,
predict, write. A table is a task whose events have no grids. Test labels do not exist in this module: test events come
without them, and a label column in a test table is dropped while reading.

With an outer holdout, systems predict it exactly as they would ship: the average of all fits of each learner, as for
new events, and the pool on top. Without one (few events), what ships is scored on out-of-fold predictions of single
fits, and on nested ones of the stack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.code import command_line, git_revision, machine, now_utc, versions
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, timed
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import hash_json, read_json
from showerstack.runtime.logs import LogFile, logging_to, remark
from showerstack.runtime.processes import limited_threads
from showerstack.showers.schema import LOG_FILE
from showerstack.stacking.answers import DecisionSample, stacking_of
from showerstack.stacking.calibration import calibrated, reliability
from showerstack.stacking.chain import Chain, Predictions, average_of, combined, concatenated, save_chain
from showerstack.stacking.config import CONFIG_FILE, StackConfig, TableConfig, write_config
from showerstack.stacking.events import (
    CONTEXT_SCALARS,
    Binned,
    pieces,
)
from showerstack.stacking.fits import (
    TASK_FILE,
    FoldTask,
    checksum_problem,
    has_truth,
    held_out_truth,
    outer_truth,
    test_log_proba,
    test_truth,
)
from showerstack.stacking.folder import (
    MANIFEST_FILE,
    PREDICTIONS_FILE,
    has_checksums,
    opened_for_writing,
    refuse_other_configuration,
    remove_second_level,
    write_manifest,
    write_out_of_fold,
    write_predictions,
    write_run_checksums,
    write_test_posteriors,
)
from showerstack.stacking.folds import EVALUATION_FOLDS, Folds, assign_folds
from showerstack.stacking.gate import decide_gate
from showerstack.stacking.job import Job, shower_job, table_job
from showerstack.stacking.oof import OutOfFold, collected
from showerstack.stacking.pools import Stack, fit_stack, nested
from showerstack.stacking.sample import Sample
from showerstack.stacking.schedule import LIMITED_FOLDS, TaskFailure, fold_tasks, make_folds, run_tasks
from showerstack.stacking.targets import TargetCalibration, fits_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Mapping[str, Any]
    predictions: Predictions | None
    """Of the test events; None where there are none, or where the run had been finished before."""


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
        return run(table_job(config, ctx))
    return run(shower_job(config, ctx, strict=strict))


def run(job: Job) -> StackResult:
    """Do the whole run, or what is left of it.

    Raises
    ------
    InputError
        If the run folder belongs to another configuration, a class has fewer events than folds, or no learner could
        be trained.
    """
    job, folder = _within_limit(job), job.config.run
    with opened_for_writing(folder), logging_to(LogFile(folder / LOG_FILE)):
        refuse_other_configuration(folder, job.fits_identity)
        finished = _finished(folder, hash_json(job.identity), job.versions)
        if finished:
            return StackResult(folder, finished, None)
        remove_second_level(folder)
        if job.table:
            job.table.write(folder)
        folds, tasks = make_folds(job), fold_tasks(job)
        manifest = _opening(job, folds, tasks)
        remark(LOG, manifest["remarks"][len(job.remarks) :])
        remark(LOG, filter(None, [job.memory_remark()]))
        write_config(folder / CONFIG_FILE, manifest["config"])
        write_manifest(folder, manifest)
        with job.ctx.bars("training", "fits") as progress:
            failures = run_tasks(
                tasks,
                pools=job.pools,
                threads=job.config.threads,
                scheduler=job.config.scheduler,
                progress=progress,
            )
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with limited_threads(1):
            return _second_level(job, folds, tasks, failures, manifest)


def _within_limit(job: Job) -> Job:
    """Say when the run began; under a time limit it has three folds at most, once."""
    began = time.time() - sum(cost.wall_s for cost in job.costs) if job.ctx.began is None else job.ctx.began
    job, config = replace(job, ctx=replace(job.ctx, began=began)), job.config
    if config.time_limit is None:
        return job
    if isinstance(config, TableConfig) and config.split:  # folds of the user's own
        return job
    fewer = {"folds": min(LIMITED_FOLDS, config.n_folds), "repeats": 1}
    return replace(job, config=config.model_copy(update=fewer))


def _finished(folder: Path, config_hash: str, versions: dict[str, Any]) -> dict[str, Any] | None:
    file = folder / MANIFEST_FILE
    if not file.exists():
        return None
    manifest: dict[str, Any] = read_json(file)
    done = manifest.get("complete") and has_checksums(folder) and manifest.get("config_hash") == config_hash
    return manifest if done and all(manifest.get(name) == number for name, number in versions.items()) else None


def _made_again(tasks: list[FoldTask]) -> list[str]:
    result = ((task, checksum_problem(task.folder)) for task in tasks)
    return [f"{task.name} fold {task.fold} is fitted again: {problem}" for task, problem in result if problem]


def _opening(job: Job, folds: Folds, tasks: list[FoldTask]) -> dict[str, Any]:
    identity = job.identity
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
            "train": str(job.train.location),
            "test": str(job.test.location) if job.test is not None else None,
            "train_fingerprint": identity["train_fingerprint"],
            "test_fingerprint": job.test.events_fingerprint() if job.test is not None else None,
            "train_source": job.train.source(),
            "train_scalars": job.train.scalars_type(),
            "test_source": job.test.source() if job.test is not None else None,
            "n_train": len(job.train),
            "n_judged": int(folds.in_evaluation.sum()),
            "n_holdout": int(folds.outer.sum()),
            "n_test": len(job.test) if job.test is not None else 0,
            "grouped": job.train.groups() is not None,
        },
        "remarks": [*job.remarks, *folds.remarks, *_made_again(tasks)],
        "versions": versions(),
        "started": now_utc(),
        "machine": machine(),
        "command": command_line(),
        "git_revision": git_revision(),
        "device": job.device,
    }


def _second_level(
    job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure], manifest: dict[str, Any]
) -> StackResult:
    with timed("collection") as cost:
        level = collected(job, folds, tasks, failures)
    outcome = stack_and_decide(job, folds, level, manifest["config_hash"])
    steps = [*job.costs, *_training_costs(tasks, failures), cost, *outcome.costs]
    manifest |= {
        "complete": True,
        **outcome.record,
        "remarks": [*manifest["remarks"], *level.remarks, *outcome.remarks],
        "steps": [step.as_json() for step in steps],
    }
    remark(LOG, [*level.remarks, *outcome.remarks])
    if job.table:
        manifest["label_type"] = job.table.schema.label_type
        job.table.write_results(job.config.run, manifest)
    write_manifest(job.config.run, manifest)
    write_run_checksums(job.config.run)
    return StackResult(job.config.run, manifest, outcome.predictions)


def _training_costs(tasks: list[FoldTask], failures: list[TaskFailure]) -> list[Cost]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    return [
        Cost(**read_json(task.folder / TASK_FILE)["cost"]) for task in tasks if (task.name, task.fold) not in failed
    ]


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
    with timed("pool") as cost, job.ctx.bars("weighing the learners", "steps"):
        stack = find(oof.inner, inner)
        # Scored are predictions by stacks that have not seen the event, choice of learners and pool included.
        stacked = stack.log_proba if oof.holdout else nested(find, oof.inner, inner)
        judged = _judged(job, folds, oof, stack, stacked)
    costs.append(cost)
    with timed("calibration") as cost:
        scales, systems = {}, {}
        for name, z in judged.raw.items():
            scales[name], systems[name] = calibrated(z, judged.sample)
    costs.append(cost)
    with timed("gate") as cost:
        by_learner = {name: systems[name] for name in oof.names}
        gate = decide_gate(systems["stack"], by_learner, judged.sample, survival=procedure.survival)
    costs.append(cost)
    shipped = "stack" if gate.shipped else gate.best_learner
    with timed("decision") as cost:
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
    with timed("prediction") as cost:
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
