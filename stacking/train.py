"""Training a run, from dataset folders or tables of any origin to predictions: :func:`stack`.

It reads top to bottom: open the data, fold, fit, collect out-of-fold predictions, pool, calibrate, pass the gate,
predict, write. A table is a task whose events have no grids. Test labels do not exist in this module: test events come
without them, and a label column in a test table is dropped while reading.

With a holdout, systems predict it exactly as new events: by the average of all fits of each learner, and the pool on
top. Without one (few events), systems are scored on out-of-fold predictions of single fits, the stack on nested ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import devices_for
from showerstack.runtime.code import command_line, git_revision, machine, now_utc, versions
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.cost import now_s, seconds_of, timed
from showerstack.runtime.errors import need
from showerstack.runtime.files import hash_json
from showerstack.runtime.logs import logging_to, remark
from showerstack.runtime.processes import limited_threads
from showerstack.runtime.resources import cores, memory_bytes
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.showers.schema import Task
from showerstack.stacking.chain import Chain, Predictions, concatenated
from showerstack.stacking.config import SECOND_LEVEL, RunConfig, StackConfig, TableConfig
from showerstack.stacking.estimates import DecisionSample, Posterior, TargetCalibration, own_estimate, stacking_of
from showerstack.stacking.events import Binned, Data, Events, open_showers, pieces
from showerstack.stacking.fits import FoldTask, order_in_limit, share_of_time
from showerstack.stacking.folds import Folds, make_folds
from showerstack.stacking.oof import Collected, collect
from showerstack.stacking.schedule import Attempt, run_tasks
from showerstack.stacking.second_level import (
    FIRST_FOLD,
    ON_HOLDOUT,
    Judged,
    SecondLevel,
    combine,
    leaving,
    left_out_remarks,
)
from showerstack.stacking.stated import (
    Answers,
    Begun,
    DroppedLearner,
    Identity,
    Inputs,
    JudgedOn,
    Manifest,
    Options,
    Step,
)
from showerstack.stacking.store import HOLDOUT, OWN_FOLD, RunFolder
from showerstack.stacking.tables import open_table

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Manifest
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
    return do_run(open_job(config, ctx, strict=strict))


LIBRARIES_BYTES, TABLE_COPIES = 700 << 20, 3
"""Memory of a process that fits learners without events, and copies of its table that it holds at most
(``benchmarks/speed/fit_memory.py``)."""


@dataclass(frozen=True)
class Job:
    """One run before its fits: configuration, events and devices."""

    config: RunConfig
    data: Data
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    ctx: Context = Context()
    """Progress, and when a time limit begins: by default with the feature tables."""

    @property
    def task(self) -> Task:
        """What the run is for."""
        return self.data.task

    @property
    def train(self) -> Events:
        """Training events."""
        return self.data.train

    @property
    def test(self) -> Events | None:
        """Events to be predicted."""
        return self.data.test

    @property
    def run(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(self.config.run)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that can change a prediction."""
        content = {**self.config.identity(), "task": self.task.name, "classes": list(self.task.classes)}
        content["device"] = self.device
        content["train_fingerprint"] = self.train.fingerprint()
        content["test_fingerprint"] = self.test.fingerprint() if self.test is not None else None
        if self.task.target:
            content["target"] = asdict(self.task.target) | {"limits": list(self.task.target.limits)}
        if self.device == "cuda":
            content["devices"] = dict(self.devices)
        uses_truth = any(spec.uses_truth for spec in self.config.learner_specs(self.task))
        if uses_truth and (fingerprint := self.train.targets_fingerprint()):
            content["targets_fingerprint"] = fingerprint
        return content

    @property
    def versions(self) -> dict[str, Any]:
        """Version numbers of ours that can change a prediction."""
        learners = {spec.name: spec.version for spec in self.config.learner_specs(self.task)}
        return {
            "stacking_version": STACKING_VERSION,
            "features_version": self.train.features_version(),
            "learner_versions": learners,
        }

    @property
    def fits_identity(self) -> dict[str, Any]:
        """What of :attr:`identity` can change a fit of a learner."""
        return {name: value for name, value in self.identity.items() if name not in SECOND_LEVEL}

    @property
    def device(self) -> str:
        """``"cuda"`` if a learner trains there, else ``"cpu"``."""
        return "cuda" if "cuda" in self.devices.values() else "cpu"

    @property
    def workers(self) -> int:
        """Processes at work at once: as many as the configuration names, else as there are cores and memory for."""
        return self.config.workers or max(1, min(cores(), memory_bytes() // self.process_bytes))

    @property
    def process_bytes(self) -> int:
        """Memory that a process takes at most while it fits a learner, bytes."""
        cells = max(
            min(len(self.train), self.config.rows_of(spec.name)) * len(self.train.columns_for(spec))
            for spec in self.config.learner_specs(self.task)
        )
        return LIBRARIES_BYTES + TABLE_COPIES * cells * np.dtype(np.float32).itemsize

    def memory_remark(self) -> str | None:
        """Return a remark where all processes together may take more memory than there is."""
        needed, available = self.workers * self.process_bytes, memory_bytes()
        if self.config.scheduler or needed <= available:
            return None
        processes = f"{self.workers} processes" if self.workers > 1 else "a process"
        remedy = f"give --workers {max(1, available // self.process_bytes)}, or " if self.workers > 1 else "give "
        return (
            f"{processes} may take {needed / 1e9:.1f} GB of memory, and this job was given {available / 1e9:.1f} GB: "
            f"{remedy}fewer training events a fit (rows, in a file for --config)"
        )

    @property
    def ends(self) -> float | None:
        """When the time limit ends, seconds of :func:`showerstack.runtime.cost.now_s`; None without one."""
        limit, began = self.config.time_limit, self.ctx.began
        return None if limit is None or began is None else began + seconds_of(limit)

    @property
    def processes(self) -> dict[str, int]:
        """Processes at once by device: one trains on the GPU, the others beside it. A cluster has its own."""
        if self.device == "cpu" or self.config.scheduler:
            return {"cpu": self.workers}
        if "cpu" in self.devices.values() and self.workers > 1:
            return {"cuda": 1, "cpu": self.workers - 1}
        return {"cuda": 1}


OPEN: Mapping[type[RunConfig], Callable[..., Data]] = {StackConfig: open_showers, TableConfig: open_table}


def open_job(config: RunConfig, ctx: Context, *, strict: bool = False) -> Job:
    """Open the data of a run, and find the device of each learner."""
    data = OPEN[type(config)](config, ctx, strict=strict)
    return Job(data.config, data, devices_for(data.config.learner_specs(data.task), config.device), ctx)


def fold_tasks(job: Job) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    # A fit does not depend on how often the folds are repeated: more repetitions keep those that are there.
    fits_hash = hash_json({name: value for name, value in job.fits_identity.items() if name != "repeats"})
    # Networks on grids take longest: they go first, so that no worker is left alone with one at the end.
    specs = sorted(config.learner_specs(job.task), key=order_in_limit if job.ends else lambda spec: not spec.needs_grid)
    n_fits = config.n_folds * config.repeats
    deadline = None if job.ends is None else job.ends - FOLLOWS_SHARE * seconds_of(config.time_limit or "")
    never_given_up = next((spec.name for spec in reversed(specs) if not spec.needs_grid), specs[-1].name)

    def registered(spec: LearnerSpec) -> list[Any]:
        return [spec.learner, spec.version, spec.features, spec.settings_for(config.preset)]

    return [
        FoldTask(
            run=job.run,
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
            share=share_of_time(fold, n_fits, sum(job.processes.values()), last=spec is specs[-1]),
            gives_up=spec.name != never_given_up,
            context_hash=hash_json([fits_hash, STACKING_VERSION, registered(spec)]),
        )
        for spec in specs
        for fold in range(n_fits)
    ]


LIMITED_FOLDS = 3
"""Folds at most under a time limit."""
FOLLOWS_SHARE = 0.2
"""Share of a time limit that is kept for what follows the fits: pool, calibration, predictions, scores, report."""


def do_run(job: Job) -> StackResult:
    """Do the whole run, or what is left of it."""
    job = _within_limit(job)
    data = replace(job.data, train=job.train.pinned(), test=None if job.test is None else job.test.pinned())
    job = replace(job, data=data)
    config, run = job.config, job.run
    with run.held(), logging_to(run.log):
        run.refuse_other_configuration(job.fits_identity)
        finished = run.finished_as({"config_hash": hash_json(job.identity), **job.versions})
        if finished is not None:
            return StackResult(run.folder, finished, None)
        run.remove_second_level()
        data.write()
        folds, tasks = (
            make_folds(
                job.train.labels(),
                job.task.classes,
                job.train.passes_evaluation_cuts(),
                n_folds=config.n_folds,
                repeats=config.repeats,
                holdout=config.holdout,
                least=config.min_holdout,
                seed=config.seed,
                usable=job.train.usable(),
                energy=job.train.energy(),
                groups=job.train.groups(),
                weights=job.train.weights(),
                given=job.train.folds(),
            ),
            fold_tasks(job),
        )
        run.write_folds(folds.partitions, folds.in_evaluation)
        remarks = [*folds.remarks, *_refit_remarks(tasks)]
        begun = _begun(job, folds, [*job.data.remarks, *remarks])
        remark(LOG, [*remarks, *filter(None, [job.memory_remark()])])
        run.write_manifest(begun)
        with run.started() as start, job.ctx.bars("training", "fits") as progress:
            given = [replace(task, start=start) for task in tasks] if config.scheduler else tasks
            failures, raced = _fit_all(job, folds, given, progress)
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with limited_threads(1):
            return _second_level(job, folds, tasks, failures, raced, begun)


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
    began = now_s() - sum(cost.wall_s for cost in job.data.costs) if job.ctx.began is None else job.ctx.began
    job, config = replace(job, ctx=replace(job.ctx, began=began)), job.config
    if config.time_limit is None or config.has_own_folds:
        return job
    fewer = {"folds": min(LIMITED_FOLDS, config.n_folds), "repeats": 1}
    return replace(job, config=config.model_copy(update=fewer))


def _refit_remarks(tasks: list[FoldTask]) -> list[str]:
    problems = ((task, task.saved.problem()) for task in tasks)
    return [f"{task.name} fold {task.fold} is fitted again: {problem}" for task, problem in problems if problem]


def _begun(job: Job, folds: Folds, remarks: list[str]) -> Begun:
    """Return the manifest before the fits."""
    identity, train, test = job.identity, job.train, job.test
    inputs = Inputs(
        train=str(train.location),
        test=str(test.location) if test is not None else None,
        train_fingerprint=identity["train_fingerprint"],
        test_fingerprint=test.events_fingerprint() if test is not None else None,
        train_source=train.source(),
        train_scalars=train.scalars_type(),
        train_quantities=dict(job.data.quantities),
        test_source=test.source() if test is not None else None,
        n_train=len(train),
        n_judged=int(folds.in_evaluation.sum()),
        n_holdout=int(folds.holdout.sum()),
        n_test=len(test) if test is not None else 0,
        grouped=folds.groups is not None,
    )
    of_table: dict[str, Any] = {"label_type": job.data.label_type} if job.data.label_type else {}
    return Begun(
        complete=False,
        task=job.task.name,
        classes=list(job.task.classes),
        config=Options(**job.config.model_dump(mode="json")),
        identity=Identity(**identity),
        config_hash=hash_json(identity),
        **job.versions,
        seed=job.config.seed,
        data=inputs,
        remarks=remarks,
        versions=versions(),
        started=now_utc(),
        machine=machine(),
        command=command_line(),
        git_revision=git_revision(),
        device=job.device,
        **of_table,
    )


def _second_level(
    job: Job,
    folds: Folds,
    tasks: list[FoldTask],
    failures: list[Attempt],
    raced: tuple[DroppedLearner, ...],
    begun: Begun,
) -> StackResult:
    """Collect predictions of the fits, find the pool, calibrate, pass the gate, predict the test events, write."""
    run, config, procedure = job.run, job.config, stacking_of(job.task)
    steps = [*map(Step.of, job.data.costs), *_training_costs(tasks, failures)]

    @contextmanager
    def step(name: str) -> Iterator[None]:
        shown = job.ctx.bars("weighing the learners", "steps") if name == "pool" else nullcontext()
        with timed(name) as cost, shown:
            yield
        steps.append(Step.of(cost))

    with step("collection"):
        collected = collect(folds, tasks, failures, raced, job.ends)
    found = combine(
        folds,
        collected.out_of_fold,
        collected.holdout,
        tolerance=config.prune,
        pools=config.pools,
        survival=procedure.survival,
        seed=config.seed,
        energy=job.train.energy(),
        step=step,
    )
    judged = found.judged
    with step("decision"):
        target_calibration, truth_record, estimates = fit_target_calibration(job, folds, collected, judged)
        decision = procedure.decide(_decision_sample(job, folds, found, estimates))
    n_fits = config.n_folds * config.repeats
    chain = Chain(
        task=job.task,
        scales=found.scales,
        pool=found.stack.pool,
        rules=decision.rules,
        shipped=found.shipped,
        config_hash=begun.config_hash,
        n_fits=n_fits,
        target_calibration=target_calibration,
        networks=collected.networks,
        prior=folds.sample(folds.in_evaluation).shares(job.task.n_classes),
        raced=tuple(collected.first_fold),
    )
    run.write_chain(chain)
    if decision.scores:
        run.write_scores(decision.scores)
    everywhere = found.everywhere(folds, collected.first_fold)
    for name, log_proba in everywhere.items():
        run.write_oof(name, log_proba, folds.partitions[0], job.task.classes)
    with step("prediction"):
        predictions = _predict_test(job, chain, chain.learners)
    remarks = [*collected.remarks, *left_out_remarks(raced, found.stack.left_out)]
    n_judging = n_fits if judged.on == ON_HOLDOUT else len(folds.partitions)
    scored = (found.scores(row.name, folds, collected.first_fold) for row in collected.learners)
    manifest = Manifest(
        **begun.ended(remarks),
        learners=[row.model_copy(update=scores) for row, scores in zip(collected.learners, scored, strict=True)],
        reliability=found.reliability(),
        judged=JudgedOn(on=judged.on, events=len(judged.sample), fits=n_judging),
        pool=found.stack.entry(),
        gate=found.gate,
        decision=Answers(**decision.record),
        truth=truth_record,
        steps=steps,
    )
    for events in filter(None, (job.train, job.test)):
        events.refuse_changed()
    remark(LOG, remarks)
    rows = predictions.log_proba if predictions else everywhere[found.shipped]
    job.data.write_results(judged.on, found.shipped, judged.sample, found.systems, rows)
    run.write_manifest(manifest)
    run.write_checksums()
    return StackResult(run.folder, manifest, predictions)


def _training_costs(tasks: list[FoldTask], failures: list[Attempt]) -> list[Step]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    done = [task for task in tasks if (task.name, task.fold) not in failed and task.saved.is_there]
    return [cost for task in done if (cost := task.saved.record().cost)]


def fit_target_calibration(
    job: Job, folds: Folds, collected: Collected, judged: Judged
) -> tuple[TargetCalibration | None, dict[str, Any] | None, dict[str, np.ndarray]]:
    """Return the calibration of energy and core, the manifest's entry, and estimates of the judged events, (n,) each.

    None, None and nothing where no learner learned them.
    """
    name = next((name for name in collected.names if job.run.fit(name, 0).has_estimates()), None)
    targets = job.train.targets(np.flatnonzero(judged.rows)) if name is not None else None
    if name is None or targets is None:
        return None, None, {}
    if judged.on == ON_HOLDOUT:
        every = range(job.config.n_folds * job.config.repeats)
        fits = job.run.read_fits(name, (None,) if name in collected.networks else every, HOLDOUT, estimates=True)
    else:
        fits = job.run.read_out_of_fold(name, folds.partitions[:1], folds.out_of_fold, estimates=True)[:, judged.rows]
    target_calibration, record = TargetCalibration.of(name, fits, targets, judged.sample.weights)
    if not any(target_calibration.scale):
        return None, None, {}
    return target_calibration, record, target_calibration.arrays(fits, None)


def _decision_sample(job: Job, folds: Folds, found: SecondLevel, estimates: Mapping[str, np.ndarray]) -> DecisionSample:
    offsets, training, rows = job.train.offsets(), None, found.judged.rows
    if offsets is not None:
        training = Binned(offsets[folds.in_evaluation], folds.labels[folds.in_evaluation])
        offsets = offsets[rows]
    context = job.train.context() if estimates else None
    own = own_estimate(job.task, estimates, None if context is None else context[rows])
    return DecisionSample(found.systems, found.shipped, found.judged.sample, offsets, training, own, found.needed)


def _predict_test(job: Job, chain: Chain, names: tuple[str, ...]) -> Predictions | None:
    """Predict the test events from what the fits have stored; write every system's posteriors and the predictions."""
    if job.test is None:
        return None
    run = job.run
    estimating = chain.target_calibration.learner if chain.target_calibration else None
    fits = {
        name: Posterior(
            run.read_fits(name, chain.fits(name)),
            run.read_fits(name, chain.fits(name), estimates=True) if name == estimating else None,
        )
        for name in names
    }
    in_pieces = ((piece, {name: of.take(piece) for name, of in fits.items()}) for piece in pieces(len(job.test)))
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
