"""Training a run, from dataset folders or tables of any origin to predictions: :func:`stack`.

Feature tables are made where missing. Both kinds of data then take the same way: folds, learners, calibration,
meta-learner, gate, decision. A table is a task whose events have no grids: Parquet, CSV or TSV with a label column and
two or more classes; it has learners and settings made for it. Test labels do not exist in this module: test events come
without them, and a label column in a test table is dropped while reading. Tables are scored on rows of the training
table that no fit learned from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.features.build import build_table
from showerstack.features.device import resolve_device
from showerstack.models.registry import device_remarks, devices_for
from showerstack.runtime.code import command, git_revision, machine, started, versions
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, measured
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import hash_file, hash_json, read_json, write_json
from showerstack.runtime.processes import limited_threads
from showerstack.runtime.tables import read_table
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.schema import Task, task_named
from showerstack.stacking.fit.folds import class_counts
from showerstack.stacking.fit.running import TaskFailure, run_tasks
from showerstack.stacking.fit.tasks import TASK_FILE, FoldTask, checksum_problem
from showerstack.stacking.inputs.columns import Schema, learned_columns, repeated_remarks
from showerstack.stacking.inputs.events import (
    TRUTH_COLUMNS,
    ShowerEvents,
    TableEvents,
    class_numbers,
    truth_file,
    unusable_remarks,
)
from showerstack.stacking.inputs.tables import (
    REPEATED,
    check_identifiers,
    probabilities,
    read_folds,
    read_groups,
    read_labels,
    read_new_rows,
    read_weights,
    write_table,
)
from showerstack.stacking.levels import LIMITED_FOLDS, fold_tasks, make_folds
from showerstack.stacking.oof import collected
from showerstack.stacking.run.chain import Predictions
from showerstack.stacking.run.config import CONFIG_FILE, StackConfig, TableConfig, write_config
from showerstack.stacking.run.folder import (
    MANIFEST_FILE,
    METRICS_FILE,
    PLAN_FILE,
    PREDICTIONS_TABLE,
    has_checksums,
    opened_for_writing,
    refuse_other_configuration,
    remove_second_level,
    write_manifest,
    write_run_checksums,
)
from showerstack.stacking.run.job import Folds, Job
from showerstack.stacking.run.read import COMBINED, evaluated_rows, finished_learners, read_oof, shipped_system
from showerstack.stacking.second_level import stack_and_decide


@dataclass(frozen=True)
class StackResult:
    """A finished run."""

    run: Path
    manifest: Mapping[str, Any]
    predictions: Predictions | None
    """Of the test events; None where there are none, or where the run had been finished before."""


def run(job: Job) -> StackResult:
    """Do the whole run, or what is left of it.

    Raises
    ------
    InputError
        If the run folder belongs to another configuration, a class has fewer events than folds, or no learner could
        be trained.
    """
    job, folder = _within_limit(job), job.config.run
    with opened_for_writing(folder):
        refuse_other_configuration(folder, job.fits_identity)
        finished = _finished(folder, hash_json(job.identity), job.versions)
        if finished:
            return StackResult(folder, finished, None)
        remove_second_level(folder)
        if job.prepare:
            job.prepare()
        folds, tasks = make_folds(job), fold_tasks(job)
        manifest = _opening(job, folds, tasks)
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
        "started": started(),
        "machine": machine(),
        "command": command(),
        "git_revision": git_revision(),
        "device": job.device,
    }


def _second_level(
    job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure], manifest: dict[str, Any]
) -> StackResult:
    with measured("collection") as cost:
        level = collected(job, folds, tasks, failures)
    outcome = stack_and_decide(job, folds, level, manifest["config_hash"])
    steps = [*job.costs, *_training_costs(tasks, failures), cost, *outcome.costs]
    manifest |= {
        "complete": True,
        **outcome.record,
        "remarks": [*manifest["remarks"], *level.remarks, *outcome.remarks],
        "steps": [step.as_json() for step in steps],
    }
    if job.conclude:
        job.conclude(manifest)
    write_manifest(job.config.run, manifest)
    write_run_checksums(job.config.run)
    return StackResult(job.config.run, manifest, outcome.predictions)


def _training_costs(tasks: list[FoldTask], failures: list[TaskFailure]) -> list[Cost]:
    failed = {(failure.learner, failure.fold) for failure in failures}
    return [
        Cost(**read_json(task.folder / TASK_FILE)["cost"]) for task in tasks if (task.name, task.fold) not in failed
    ]


__all__ = ["StackResult", "stack"]


def stack(config: StackConfig | TableConfig, ctx: Context = Context(), *, strict: bool = False) -> StackResult:
    """Train base learners and the stack, and predict the test events.

    Killed at any moment and started again, it continues and ends with the same bytes in its predictions. Test labels
    are neither needed nor looked at. The log gets remarks on the data, and the plan before the work begins. Device,
    processes and threads are those of the configuration.

    Parameters
    ----------
    config
        Of dataset folders: trains on ``DATA/{task}_train``, predicts ``DATA/{task}_test`` into ``predictions.npz``. Of
        a table: writes ``predictions.parquet``, per row of the test table (without one: of the training table,
        out-of-fold) the identifiers, the probability of each class and the most probable one, and
        ``metrics_table.json``.
    ctx
        Progress, log, and when a time limit begins: by default with the feature tables, or when the table has been
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
        return run(_table_job(config, ctx))
    return run(_shower_job(config, ctx, strict=strict))


def _shower_job(config: StackConfig, ctx: Context, *, strict: bool) -> Job:
    """Open both dataset folders and make their feature tables."""
    task = task_named(config.task)
    device = resolve_device(config.device)
    # Before any work: both folders must be readable, and every fold must be able to hold every class.
    opened = Dataset.open(config.train_folder, task)
    test_set = Dataset.open(config.test_folder, labels=False)
    if not len(test_set):
        raise InputError(f"{config.test_folder} holds no events")
    if not opened.array.is_like(test_set.array):
        raise InputError(
            f"{config.test_folder} holds events of another array ({test_set.array.name}) than {config.train_folder} "
            f"({opened.array.name}): simulate or convert both alike"
        )
    config, left_out = config.for_array(opened.array, task)
    unusable = unusable_remarks(opened, strict=strict, training=True) + unusable_remarks(test_set, strict=strict)
    usable = opened.usable
    groups = None if opened.groups is None else np.asarray(opened.groups)[usable]
    what = "events" if groups is None else "groups of events"
    counts = class_counts(class_numbers(opened)[usable], groups, task.n_classes)
    for name, count in zip(task.classes, counts, strict=True):
        if count < config.n_folds:
            raise InputError(
                f"{config.train_folder}: class {name!r} has {count} {what}, fewer than the {config.n_folds} folds"
            )
    devices = devices_for(config.learner_specs(task), config.device)
    ordered = (ordering_of(each).remark(each.path.name) for each in (opened, test_set))
    remarks = (
        *opened.remarks,
        *test_set.remarks,
        *unusable,
        *left_out,
        *(remark for remark in ordered if remark),
        *device_remarks(devices),
    )
    for remark in remarks:
        ctx.log.warning("%s", remark)
    costs: list[Cost] = []
    tables = {}
    for split, folder in (("train", config.train_folder), ("test", config.test_folder)):
        with measured(f"features {split}") as cost:
            name = f"{folder.name}.features"
            tables[split] = build_table(
                folder,
                config.features / name if config.features else None,
                elsewhere=config.run.with_name(f"{config.run.name}.features") / name,
                ctx=replace(ctx, device=device, workers=config.workers),
            ).folder
        costs.append(cost)
    train = ShowerEvents(config.train_folder, tables["train"], task, labelled=True)
    test = ShowerEvents(config.test_folder, tables["test"], task)
    return Job(config, task, train, test, devices, costs, remarks=remarks, ctx=ctx)


TASK_NAME = "table"
TINY = 20_000
"""Rows times columns times classes below which the fits of ``quick`` take less time than another process to begin."""


def _table_job(config: TableConfig, ctx: Context) -> Job:
    """Read the tables and say what their columns are; files are written when the run begins."""
    train = read_table(config.table, separator=config.separator)
    label, classes, label_type = read_labels(train, config.table, config.label)
    group = read_groups(train, config.table, config.group)
    weight = read_weights(train, config.table, config.weight)
    fold = read_folds(train, config.table, config.split, label, classes)
    check_identifiers(train, config.table, config.id, classes)
    columns, remarks = learned_columns(
        train, config.table, config.reserved, wanted=config.columns, categories=config.categories
    )
    schema = Schema(columns, config.label, label_type, classes)
    remarks = [
        *config.learner_remarks(),
        *_label_remarks(classes, config.table),
        *_header_remarks(train, config.table),
        *remarks,
    ]
    resolved, more = config.for_rows(label, classes, group, fold)
    remarks += more
    frame, more = schema.encoded(train, config.table)
    remarks += more
    tiny = frame.height * frame.width * len(classes) < TINY and config.preset == "quick"
    if tiny and resolved.workers is None:
        resolved = resolved.model_copy(update={"workers": 1})
    truth = pl.DataFrame(
        {name: v for name, v in zip(TRUTH_COLUMNS, (label, group, weight, fold), strict=True) if v is not None}
    )
    folder, task = config.run / "table", Task(TASK_NAME, classes)
    hashes = {"train": hash_file(config.table)}
    test_frame, test, identifiers = None, None, train.select(config.id)
    if config.test_table:
        test_frame, identifiers, more = read_new_rows(
            config.test_table, schema, config.reserved, config.id, config.separator
        )
        remarks += more
        hashes["test"] = hash_file(config.test_table)
        test = TableEvents(folder / "test.parquet", schema.names, hashes["test"], categories=schema.categories)
    remarks += repeated_remarks(frame, label, test_frame)

    def prepare() -> None:
        write_table(folder / "train.parquet", frame)
        write_table(truth_file(folder / "train.parquet"), truth)
        write_json(folder / PLAN_FILE, schema.as_json())
        if test_frame is not None:
            write_table(folder / "test.parquet", test_frame)

    def conclude(manifest: dict[str, Any]) -> None:
        manifest["label_type"] = label_type
        _write_results(config.run, manifest, classes, label, identifiers, weight)

    return Job(
        config=resolved,
        task=task,
        train=TableEvents(
            folder / "train.parquet",
            schema.names,
            hashes["train"],
            categories=schema.categories,
        ),
        test=test,
        devices=devices_for(config.learner_specs(task), config.device),
        prepare=prepare,
        conclude=conclude,
        remarks=tuple(remarks),
        ctx=ctx,
    )


def _label_remarks(classes: tuple[str, ...], file: Path) -> list[str]:
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    groups = [", ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    if not groups:
        return []
    return [f"{file}: labels {' and '.join(groups)} differ in spaces or case alone: they are classes of their own"]


def _header_remarks(frame: pl.DataFrame, file: Path) -> list[str]:
    repeated = [name for name in frame.columns if REPEATED in name and name.partition(REPEATED)[0] in frame.columns]
    remarks = [f"{file}: a second column {name.partition(REPEATED)[0]!r} is called {name!r}" for name in repeated]
    if len(frame.columns) == 1:
        remarks.append(f"{file} has one column only: is there another --separator?")
    return remarks


def _write_results(
    folder: Path,
    manifest: Mapping[str, Any],
    classes: tuple[str, ...],
    labels: np.ndarray,
    identifiers: pl.DataFrame,
    weights: np.ndarray | None,
) -> None:
    shipped, systems = shipped_system(manifest), (*finished_learners(manifest), *COMBINED)
    oof = {name: read_oof(folder / "oof" / f"{name}.parquet", classes) for name in systems}
    out_of_fold = {name: log_proba for name, (log_proba, _) in oof.items()}
    evaluated = evaluated_rows(*oof["stack"], holdout=bool(manifest["data"]["n_holdout"]))
    metrics: dict[str, Any] = {
        "judged_on": f"{manifest['judged']['on']} rows of the training table",
        "shipped": shipped,
        "systems": {
            name: table_metrics(
                labels[evaluated], log_proba[evaluated], classes, None if weights is None else weights[evaluated]
            )
            for name, log_proba in out_of_fold.items()
        },
    }
    write_json(folder / METRICS_FILE, metrics)
    file = folder / "test" / f"{shipped}.npz"
    if manifest["data"]["n_test"]:
        with np.load(file, allow_pickle=False) as stored:
            log_proba = stored["log_proba"]
    else:
        log_proba = out_of_fold[shipped]
    write_table(folder / PREDICTIONS_TABLE, probabilities(log_proba, classes, identifiers))
