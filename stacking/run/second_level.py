"""The second level: meta-learner, gate, decision, and the run's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from showers.files import write_npz
from showers.progress import Bars, Progress
from showers.schema import COMPOSITION, GAMMA
from stacking.combine.calibration import reliability
from stacking.combine.gate import Gate, decide_gate
from stacking.combine.judges import Judge, judge_for
from stacking.combine.meta import StackInputs
from stacking.combine.nested import Stacked, choose_and_fit
from stacking.combine.softmax import log_loss_per_event
from stacking.decide.decision import RULES, Rule, choose_rule
from stacking.decide.gamma_scores import gamma_scores, threshold_table
from stacking.decide.unfolding import write_response
from stacking.predict.chain import Chain, Predictions, average_of
from stacking.predict.saving import SCORES_FILE, save_chain
from stacking.run.first_level import Level
from stacking.run.folder import PREDICTIONS_FILE, write_out_of_fold, write_predictions, write_test_posteriors
from stacking.run.job import Folds, Job
from stacking.tasks.folds import LG_ENERGY_EDGES
from stacking.tasks.oof import test_log_proba
from stacking.tasks.resources import Cost, measured


@dataclass(frozen=True)
class Outcome:
    """What the second level adds to a run."""

    record: dict[str, Any]
    """Entries of the manifest."""
    predictions: Predictions | None
    costs: list[Cost]


def stack_and_decide(job: Job, folds: Folds, level: Level, config_hash: str, bars: Bars) -> Outcome:
    """Choose and fit the meta-learner, pass the gate, decide, predict the test events and write all files."""
    judge, costs = judge_for(job.task), []
    inputs = _inputs(job, folds, level)
    with measured("meta-learner") as cost, bars("choosing the meta-learner", "fits") as progress:
        stacked = choose_and_fit(job.config.meta_names, inputs, judge, workers=job.workers, progress=progress)
    costs.append(cost)
    by_learner = dict(zip(level.names, level.log_proba, strict=True))
    systems = {**by_learner, "average": average_of(level.log_proba), "stack": stacked.log_proba}
    with measured("gate and decision") as cost, bars("decision", "systems") as progress:
        groups = job.train.groups()
        groups = None if groups is None else groups[folds.judged]
        gate = decide_gate(stacked.log_proba, by_learner, inputs.labels, judge, groups)
        decision, rules = _decide(job, folds.judged, systems, inputs, gate, progress)
    costs.append(cost)
    shipped = "stack" if gate.shipped else gate.best_learner
    chain = Chain(job.task, level.calibrators, stacked.meta, rules, shipped, config_hash)
    save_chain(job.config.run, chain)
    _write_out_of_fold_files(job, folds, systems)
    with measured("prediction") as cost:
        predictions = _predict_test(job, chain)
    costs.append(cost)
    record = {"meta": _meta_record(stacked, level, judge, inputs), "gate": gate.as_json(), "decision": decision}
    return Outcome(record, predictions, costs)


def _inputs(job: Job, folds: Folds, level: Level) -> StackInputs:
    context = job.train.context()
    return StackInputs(
        learners=level.names,
        log_proba=level.log_proba,
        labels=folds.labels[folds.judged],
        folds=folds.partitions[0][folds.judged],
        context=None if context is None else context[folds.judged],
    )


def _decide(
    job: Job, judged: np.ndarray, systems: Mapping[str, np.ndarray], inputs: StackInputs, gate: Gate, progress: Progress
) -> tuple[dict[str, Any], dict[str, Rule]]:
    """Return the manifest's entry and, for composition, every system's decision rule of the chosen kind."""
    shipped = systems["stack" if gate.shipped else gate.best_learner]
    if job.task.name == GAMMA.name:
        scores = gamma_scores(shipped)
        write_npz(job.config.run / "meta" / SCORES_FILE, labels=inputs.labels.astype(np.int8), scores=scores)
        return {"thresholds": threshold_table(inputs.labels, scores)}, {}
    if job.task.name != COMPOSITION.name:
        return {"chosen": "argmax"}, {}
    decision = choose_rule(shipped, inputs.labels, inputs.folds)
    energy = job.train.energy()
    write_response(
        job.config.run,
        inputs.labels,
        decision.rule(shipped),
        None if energy is None else energy[judged],
        LG_ENERGY_EDGES,
        job.task.n_classes,
    )
    rules: dict[str, Rule] = {}
    for number, (name, log_proba) in enumerate(systems.items()):
        rules[name] = decision.rule if log_proba is shipped else RULES[decision.chosen](log_proba)
        progress(number + 1, len(systems), name)
    return decision.as_json(), rules


def _meta_record(stacked: Stacked, level: Level, judge: Judge, inputs: StackInputs) -> dict[str, Any]:
    average = average_of(level.log_proba)
    compared = {**stacked.by_meta, "average": average, "stack": stacked.log_proba}
    return {
        "chosen": stacked.meta.name,
        "chosen_by_fold": stacked.chosen_by_fold,
        "weights": stacked.meta.importance(),
        "judge": judge.name,
        "losses": {name: judge.loss(z, inputs.labels) for name, z in compared.items()},
        "log_losses": {name: float(log_loss_per_event(z, inputs.labels).mean()) for name, z in compared.items()},
        "reliability": reliability(stacked.log_proba, inputs.labels),
    }


def _write_out_of_fold_files(job: Job, folds: Folds, systems: Mapping[str, np.ndarray]) -> None:
    for name, log_proba in systems.items():
        everywhere = np.full((len(folds.labels), job.task.n_classes), np.nan)
        everywhere[folds.judged] = log_proba
        write_out_of_fold(job.config.run / "oof" / f"{name}.parquet", everywhere, folds.partitions[0], job.task.classes)


def _predict_test(job: Job, chain: Chain) -> Predictions | None:
    if job.test is None:
        return None
    n_fits = job.config.n_folds * job.config.repeats
    fits = {name: test_log_proba(job.config.run, name, n_fits) for name in chain.meta.learners}
    predictions = chain.finish(fits, job.test.context(), job.test.events_fingerprint())
    write_test_posteriors(job.config.run, chain, predictions.by_name)
    write_predictions(job.config.run / PREDICTIONS_FILE, predictions)
    return predictions
