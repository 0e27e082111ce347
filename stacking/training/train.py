"""Training a run, from dataset folders or tables of any origin to predictions: :func:`stack`.

It reads top to bottom: open the data, fold, fit, collect out-of-fold predictions, pool, calibrate, pass the gate,
predict, write. A table is a task whose events have no grids. Test labels do not exist in this module: test events come
without them, and a label column in a test table is dropped while reading.

With a holdout, systems predict it exactly as new events: by the average of all fits of each learner in log-probability,
and the pool on top. Without one (few events), systems are scored on out-of-fold predictions of single fits, the stack
on nested ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.context import Context, Progress
from showerstack.runtime.cost import timed
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.logs import logging_to, remark
from showerstack.runtime.processes import Workers, limited_threads
from showerstack.stacking.answers import DecisionSample, own_estimate, stacking_of
from showerstack.stacking.chain import Chain, Fit, Predictions, concatenated
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.estimates import Posterior, TargetCalibration
from showerstack.stacking.events import Binned, Data, Events, pieces
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import Folds, make_folds
from showerstack.stacking.layout import HOLDOUT, OWN_FOLD, FitFolder
from showerstack.stacking.sample import Labelled
from showerstack.stacking.second_level import (
    FIRST_FOLD,
    ON_HOLDOUT,
    Judged,
    SecondLevel,
    average_of,
    combine,
    entropy,
    leak_remarks,
    leaving,
    left_out_remarks,
)
from showerstack.stacking.stated import (
    Answers,
    Begun,
    DroppedLearner,
    JudgedOn,
    LearnerEntry,
    Manifest,
    OneNetwork,
    Step,
)
from showerstack.stacking.training.budget import kept_late
from showerstack.stacking.training.fits import FoldTask, one_networks, refuse_other_fit
from showerstack.stacking.training.plan import Plan
from showerstack.stacking.training.schedule import Attempt, run_tasks

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
    plan = Plan.of(config, ctx, strict=strict)
    data, run = plan.data, plan.run
    with run.held(), logging_to(run.log):
        run.refuse_other_configuration(plan.of_fits)
        finished = run.finished_as(plan.finished)
        if finished is not None:
            return StackResult(run.folder, finished, None)
        run.remove_second_level()
        data.write()
        known = data.train.known()
        folds = make_folds(
            known,
            data.task.classes,
            n_folds=data.config.n_folds,
            repeats=data.config.repeats,
            holdout=data.config.holdout,
            least=data.config.min_holdout,
            seed=data.config.seed,
        )
        run.write_folds(folds.partitions, folds.in_evaluation)
        tasks = plan.tasks()
        remarks = [*folds.remarks, *_refit_remarks(tasks)]
        begun = plan.begun(folds, [*data.remarks, *remarks])
        remark(LOG, [*remarks, *plan.processes.remarks()])
        run.write_manifest(begun)
        at_work = Workers(plan.processes.by_device, data.config.threads)
        with run.started() as start, at_work as workers, ctx.bars("training", "fits") as progress:
            given = [replace(task, start=start) for task in tasks] if data.config.scheduler else tasks
            failures, raced = _fit_all(plan, folds, given, workers, progress)
        # Small fits and their predictions: one thread gives the same last bits on every machine.
        with limited_threads(1):
            with timed("collection") as collection:
                collected = collect(folds, tasks, failures, raced, plan.budget.ends)
            costs = [*map(Step.of, data.costs), *_training_costs(tasks, failures), Step.of(collection)]
            return _second_level(plan, known, folds, collected, begun, costs, ctx)


def _refit_remarks(tasks: list[FoldTask]) -> list[str]:
    problems = ((task, task.saved.problem()) for task in tasks)
    return [f"{task.name} fold {task.fold} is fitted again: {problem}" for task, problem in problems if problem]


def _fit_all(
    plan: Plan, folds: Folds, tasks: list[FoldTask], workers: Workers, progress: Progress
) -> tuple[list[Attempt], tuple[DroppedLearner, ...]]:
    """Do all fits, or those that racing leaves; return the failed ones, and the learners that left the race."""
    task, config, run = plan.data.task, plan.data.config, plan.run
    fit = partial(
        run_tasks, workers=workers, by_learner=plan.processes.by_learner, scheduler=config.scheduler, progress=progress
    )
    learners, fits = {task.name for task in tasks}, {task.fold for task in tasks}
    if config.race == "off" or config.prune == 0 or len(learners) == 1 or len(fits) == 1:
        return fit(tasks), ()
    failures = fit([task for task in tasks if task.fold == FIRST_FOLD])
    failed = {failure.learner for failure in failures}
    names = [name for name in dict.fromkeys(task.name for task in tasks) if name not in failed]
    with limited_threads(1):
        first = {name: run.fit(name, FIRST_FOLD).read(OWN_FOLD) for name in names}
        sample = folds.sample(folds.out_of_fold & (folds.partitions[0] == FIRST_FOLD))
        survival = stacking_of(task).survival
        raced = leaving(first, sample, task.n_classes, config.prune, config.seed, survival=survival)
    gone = failed | {learner.name for learner in raced}
    left = [task for task in tasks if task.name not in gone]
    if left and all(task.time.gives_up for task in left):
        stays = kept_late([task.spec for task in left])
        left = [replace(task, time=replace(task.time, gives_up=task.name != stays)) for task in left]
    return failures + fit(left), raced


@dataclass(frozen=True)
class Collected:
    """Predictions of the training events under the evaluation cuts, none by a fit that learned from it."""

    out_of_fold: Mapping[str, np.ndarray]
    """By learner, (n, C) log-probabilities of those in the folds, averaged over repetitions."""
    holdout: Mapping[str, np.ndarray] | None
    """By learner, (m, C) log-probabilities of those in the holdout, as for new events; None without a holdout."""
    learners: list[LearnerEntry]
    """What became of all learners, without scores."""
    remarks: list[str]
    """Suspected leaks, and fits that are not one network although they might be."""
    networks: tuple[str, ...] = ()
    """Learners whose fits are one network."""
    raced: tuple[DroppedLearner, ...] = ()
    """Learners that left the race, in the order in which they did."""
    first_fold: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By learner that left the race, (n, C) log-probabilities of those in the folds, NaN beyond its one fold."""

    @property
    def names(self) -> tuple[str, ...]:
        """Learners with all fits."""
        return tuple(self.out_of_fold)


def collect(
    folds: Folds, tasks: list[FoldTask], failures: list[Attempt], raced: tuple[DroppedLearner, ...], ends: float | None
) -> Collected:
    """Collect the predictions, leave out failed learners, make one network where that is as good, look for leaks.

    ``raced`` are learners with one fit; ``ends`` is when the time limit ends.
    """
    task_of = {task.name: task for task in tasks}
    errors = {failure.learner: f"fold {failure.fold}: {failure.error}" for failure in reversed(failures)}
    left = {learner.name: learner for learner in raced}
    finished = [name for name in task_of if name not in errors and name not in left]
    if not finished:
        name, error = next(iter(errors.items()))
        raise InputError(f"no learner could be trained; {name}: {error}")
    for task in tasks:
        if task.name in finished or (task.name in left and task.fold == 0):
            refuse_other_fit(task)
    run, rows, n_fits = tasks[0].run, folds.out_of_fold, len({task.fold for task in tasks})
    fits_of: dict[str, Sequence[int]] = {name: range(1 if name in left else n_fits) for name in (*finished, *left)}
    records = {name: [run.fit(name, fold).record() for fold in folds_of] for name, folds_of in fits_of.items()}
    repetitions = {name: run.read_out_of_fold(name, folds.partitions, rows)[:, rows] for name in finished}
    networks, network_remarks = one_networks(ends, folds, [task for task in tasks if task.name in finished])
    holdout = None
    if folds.holdout.any():
        fits: dict[str, Sequence[Fit]] = {**fits_of, **dict.fromkeys(networks, (None,))}
        holdout = {name: average_of(run.read_fits(name, which, HOLDOUT)) for name, which in fits.items()}
    return Collected(
        # One repetition needs no average: normalising again would only change last bits.
        out_of_fold={name: average_of(z) if len(z) > 1 else z[0] for name, z in repetitions.items()},
        holdout=holdout,
        learners=[
            LearnerEntry(
                name=name,
                status="failed" if name in errors else "ok",
                error=errors.get(name),
                features=list(task.columns),
                needs_grid=task.spec.needs_grid,
                source=task.spec.source,
                n_parameters=records[name][0].n_parameters if name in records else None,
                precision=sorted({one.precision for one in records.get(name, ()) if one.precision}),
                one_network=OneNetwork(**networks[name].as_dict()) if name in networks else None,
                fits=len(fits_of.get(name, range(n_fits))),
                left_the_race=left.get(name),
            )
            for name, task in task_of.items()
        ],
        remarks=[
            *_early_remark(task for task in tasks if task.name in finished),
            *leak_remarks(_entropies(tasks[0], repetitions, n_fits)).values(),
            *network_remarks,
        ],
        networks=tuple(networks),
        raced=raced,
        first_fold={name: _first_fold(run.fit(name, 0), folds) for name in left},
    )


def _first_fold(saved: FitFolder, folds: Folds) -> np.ndarray:
    """Return what a learner's first fit predicted of the events in the folds, (n, C), NaN for those of other folds."""
    part = saved.read(OWN_FOLD)
    values = np.full((len(folds.labels), part.shape[1]), np.nan)
    values[(folds.partitions[0] == 0) & folds.out_of_fold] = part
    return values[folds.out_of_fold]


def _early_remark(tasks: Iterable[FoldTask]) -> list[str]:
    """Return a line on the learners whose fits the time limit ended early."""
    early = {task.name: None for task in tasks if task.saved.record().ended_early}
    return (
        [f"the time limit ended fits of {', '.join(early)} early: with more time they may learn more"] if early else []
    )


def _entropies(
    task: FoldTask, repetitions: Mapping[str, np.ndarray], n_fits: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return per learner the entropies of out-of-fold and of new events, single fits; nothing without new events."""
    passing = None if task.test is None else task.test.passes_evaluation_cuts()
    if passing is None or not passing.any():
        return {}
    return {
        name: (
            entropy(z).ravel(),
            entropy(task.run.read_fits(name, range(n_fits))[:, passing]).mean(axis=0),
        )
        for name, z in repetitions.items()
    }


def _training_costs(tasks: list[FoldTask], failures: list[Attempt]) -> list[Step]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    done = [task for task in tasks if (task.name, task.fold) not in failed and task.saved.is_there]
    return [cost for task in done if (cost := task.saved.record().cost)]


def _second_level(
    plan: Plan,
    known: Labelled,
    folds: Folds,
    collected: Collected,
    begun: Begun,
    steps: list[Step],
    ctx: Context,
) -> StackResult:
    """Find the pool, calibrate, pass the gate, predict the test events, write."""
    data, run, config, task = plan.data, plan.run, plan.data.config, plan.data.task
    procedure = stacking_of(task)

    @contextmanager
    def step(name: str) -> Iterator[None]:
        shown = ctx.bars("weighing the learners", "steps") if name == "pool" else nullcontext()
        with timed(name) as cost, shown:
            yield
        steps.append(Step.of(cost))

    found = combine(
        folds,
        collected.out_of_fold,
        collected.holdout,
        collected.first_fold,
        tolerance=config.prune,
        pools=config.pools,
        survival=procedure.survival,
        seed=config.seed,
        energy=known.energy,
        step=step,
    )
    judged = found.judged
    with step("decision"):
        target_calibration, truth_record, estimates = fit_target_calibration(run, data, folds, collected, judged)
        decision = procedure.decide(_decision_sample(data, known, folds, found, estimates))
    chain = Chain(
        task=task,
        scales=found.scales,
        pool=found.stack.pool,
        rules=decision.rules,
        shipped=found.shipped,
        config_hash=begun.config_hash,
        n_fits=plan.n_fits,
        target_calibration=target_calibration,
        networks=collected.networks,
        prior=folds.sample(folds.in_evaluation).shares(task.n_classes),
        raced=tuple(collected.first_fold),
    )
    run.write_chain(chain)
    if decision.scores:
        run.write_scores(decision.scores)
    everywhere = found.everywhere(folds)
    for name, log_proba in everywhere.items():
        run.write_oof(name, log_proba, folds.partitions[0], task.classes)
    with step("prediction"):
        predictions = _predict_test(run, chain, data.test)
    remarks = [*collected.remarks, *left_out_remarks(collected.raced, found.stack.left_out, judged.on)]
    n_judging = plan.n_fits if judged.on == ON_HOLDOUT else len(folds.partitions)
    scored = (found.scores(row.name, folds) for row in collected.learners)
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
    for events in filter(None, (data.train, data.test)):
        events.refuse_changed()
    remark(LOG, remarks)
    rows = predictions.log_proba if predictions else everywhere[found.shipped]
    data.write_results(judged.on, found.shipped, found.scored(), rows)
    run.write_manifest(manifest)
    run.write_checksums()
    return StackResult(run.folder, manifest, predictions)


def fit_target_calibration(
    run: RunFolder, data: Data, folds: Folds, collected: Collected, judged: Judged
) -> tuple[TargetCalibration | None, dict[str, Any] | None, dict[str, np.ndarray]]:
    """Return the calibration of energy and core, the manifest's entry, and estimates of the judged events, (n,) each.

    None, None and nothing where no learner learned them.
    """
    name = next((name for name in collected.names if run.fit(name, 0).has_estimates()), None)
    # As they are: networks learn those of cores within some metres alone, but may miss by more.
    targets = data.train.targets(np.flatnonzero(judged.rows), math.inf) if name is not None else None
    if name is None or targets is None:
        return None, None, {}
    if judged.on == ON_HOLDOUT:
        every = range(data.config.n_folds * data.config.repeats)
        fits = run.read_fits(name, (None,) if name in collected.networks else every, HOLDOUT, estimates=True)
    else:
        fits = run.read_out_of_fold(name, folds.partitions[:1], folds.out_of_fold, estimates=True)[:, judged.rows]
    target_calibration, record = TargetCalibration.of(name, fits, targets, judged.sample.weights, judged.sample.groups)
    if not any(target_calibration.scale):
        return None, None, {}
    return target_calibration, record, target_calibration.arrays(fits, None)


def _decision_sample(
    data: Data, known: Labelled, folds: Folds, found: SecondLevel, estimates: Mapping[str, np.ndarray]
) -> DecisionSample:
    offsets, training, rows = known.offsets, None, found.judged.rows
    if offsets is not None:
        training = Binned(offsets[folds.in_evaluation], folds.labels[folds.in_evaluation])
        offsets = offsets[rows]
    context = data.train.context() if estimates else None
    own = own_estimate(data.task, estimates, None if context is None else context[rows])
    return DecisionSample(found.systems, found.shipped, found.judged.sample, offsets, training, own, found.needed)


def _predict_test(run: RunFolder, chain: Chain, test: Events | None) -> Predictions | None:
    """Predict the test events from what the fits have stored; write every system's posteriors and the predictions."""
    if test is None:
        return None
    estimating = chain.target_calibration.learner if chain.target_calibration else None
    fits = {
        name: Posterior(
            run.read_fits(name, chain.fits(name)),
            run.read_fits(name, chain.fits(name), estimates=True) if name == estimating else None,
        )
        for name in chain.learners
    }
    in_pieces = ((piece, {name: of.take(piece) for name, of in fits.items()}) for piece in pieces(len(test)))
    parts = list(chain.stream(in_pieces, test))
    if not parts:
        return None
    predictions, context = concatenated(parts), test.context()
    for name, log_proba in predictions.by_name.items():
        arrays = chain.procedure.test_arrays(chain.rules.get(name), log_proba, context)
        if name == chain.shipped:
            arrays |= {key: predictions.arrays[key] for key in arrays.keys() & predictions.arrays.keys()}
        run.write_test(name, log_proba=log_proba, **arrays)
    run.write_predictions(predictions)
    return predictions
