"""One run before its fits: configuration, events and devices, what of them decides the outcome, folds and tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.features.build import build_table
from showerstack.features.device import resolve_device
from showerstack.features.table import FeatureTable
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import device_remarks, devices_for
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, seconds_of, timed
from showerstack.runtime.errors import Changed, InputError
from showerstack.runtime.files import file_state, folder_state, hash_file, hash_json
from showerstack.runtime.logs import remark
from showerstack.runtime.resources import cores, memory_bytes
from showerstack.runtime.tables import read_table
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.identity import shared_showers
from showerstack.showers.schema import Task, task_named
from showerstack.stacking.columns import CATEGORY, Schema, learned_columns
from showerstack.stacking.config import SECOND_LEVEL, RunConfig, StackConfig, TableConfig
from showerstack.stacking.events import (
    Events,
    ShowerEvents,
    class_numbers,
    dataset_state,
    quantities_of,
    unusable_remarks,
)
from showerstack.stacking.fits import FoldTask
from showerstack.stacking.folds import (
    Folds,
    assign_folds,
    choose_holdout,
    evaluation_events,
    refuse_small_classes,
)
from showerstack.stacking.remarks import heap_remarks, repeated_remarks, telling_remarks, weight_remarks
from showerstack.stacking.seen import of_columns, unlike_remarks
from showerstack.stacking.store import RunFolder
from showerstack.stacking.tables import (
    LABEL_COLUMNS,
    TableEvents,
    check_identifiers,
    labels_file,
    read_folds,
    read_groups,
    read_labels,
    read_new_rows,
    read_weights,
    write_table,
)

LOG = logging.getLogger(__name__)

TASK_NAME = "table"


@dataclass(frozen=True)
class TableInput:
    """The user's table as it was read."""

    schema: Schema
    train: pl.DataFrame
    """The columns of training as float32."""
    labels: pl.DataFrame
    """Labels, groups, weights and folds, under the names of :data:`LABEL_COLUMNS`."""
    identifiers: pl.DataFrame
    """Of the rows that are predicted: the test table's, without one the training table's."""
    test: pl.DataFrame | None

    def write(self, run: RunFolder) -> None:
        """Write the tables that fits read, and the schema that new tables are read by."""
        write_table(run.train_table, self.train)
        write_table(labels_file(run.train_table), self.labels)
        run.write_columns(self.schema.as_json())
        if self.test is not None:
            write_table(run.test_table, self.test)


LIBRARIES_BYTES, TABLE_COPIES = 700 << 20, 3
"""Memory of a process that fits learners without events, and copies of its table that it holds at most
(``benchmarks/speed/fit_memory.py``)."""


@dataclass(frozen=True)
class Job:
    """One run before its fits: configuration, events and devices."""

    config: RunConfig
    task: Task
    train: Events
    test: Events | None
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    costs: list[Cost] = field(default_factory=list)
    """Costs of the steps before the fits: feature tables."""
    table: TableInput | None = None
    """The table that the events were read from, if it was one."""
    remarks: tuple[str, ...] = ()
    """Remarks on the data."""
    quantities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the reconstructed quantities of training showers were (:class:`showerstack.stacking.seen.Seen`)."""
    ctx: Context = Context()
    """Progress, and when a time limit begins: by default with the first step in ``costs``."""

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


def shower_job(config: StackConfig, ctx: Context, *, strict: bool) -> Job:
    """Open both dataset folders and make their feature tables."""
    task = task_named(config.task)
    device = resolve_device(config.device)
    states: dict[str, Any] = {
        split: dataset_state(folder, labelled=split == "train")
        for split, folder in (("train", config.train_folder), ("test", config.test_folder))
    }
    # Before any work: both folders must be readable, and every fold must be able to hold every class.
    train_set = Dataset.open(config.train_folder, task)
    test_set = Dataset.open(config.test_folder, labels=False)
    if not len(test_set):
        raise InputError(f"{config.test_folder} holds no events")
    if not train_set.array.is_like(test_set.array):
        raise InputError(
            f"{config.test_folder} holds events of another array ({test_set.array.name}) than {config.train_folder} "
            f"({train_set.array.name}): simulate or convert both alike"
        )
    config, left_out = config.for_array(train_set.array, task)
    unusable = unusable_remarks(train_set, strict=strict, training=True) + unusable_remarks(test_set, strict=strict)
    usable = train_set.usable
    groups = None if train_set.groups is None else np.asarray(train_set.groups)[usable]
    labels = class_numbers(train_set)[usable]
    refuse_small_classes(labels, config.n_folds, task.classes, groups, where=f"{config.train_folder}: ")
    devices = devices_for(config.learner_specs(task), config.device)
    ordered = (ordering_of(data).remark(data.path.name) for data in (train_set, test_set))
    shared = shared_showers(train_set, test_set)
    quantities = of_columns(quantities_of(train_set))
    heaps: list[str] = []
    if groups is None:
        scalars = np.asarray(train_set.scalars, np.float64)[usable]
        heaps = heap_remarks(str(config.train_folder), scalars, labels, "say so in groups.npy")
    shown_again = [
        f"{config.test_folder} holds showers of {config.train_folder} ({shared}): scores on them say nothing about new "
        "showers"
    ] if shared else []  # fmt: skip
    remarks = (
        *train_set.remarks,
        *test_set.remarks,
        *unusable,
        *left_out,
        *weight_remarks(
            str(config.train_folder),
            None if train_set.weights is None else train_set.weights[usable],
            labels,
            task.classes,
        ),
        *heaps,
        *shown_again,
        *unlike_remarks(str(config.test_folder), quantities, quantities_of(test_set)),
        *(line for line in ordered if line),
        *device_remarks(devices),
    )
    remark(LOG, remarks)
    costs: list[Cost] = []
    tables = {}
    for split, folder in (("train", config.train_folder), ("test", config.test_folder)):
        with timed(f"features {split}") as cost:
            name = f"{folder.name}.features"
            tables[split] = build_table(
                folder,
                config.features / name if config.features else None,
                elsewhere=config.run.with_name(f"{config.run.name}.features") / name,
                ctx=replace(ctx, device=device, workers=config.workers),
            ).folder
        costs.append(cost)
    # The tables' own remarks were logged when they were made.
    remarks += tuple(line for folder in tables.values() for line in FeatureTable.open(folder).remarks)
    states = {split: (state, folder_state(tables[split])) for split, state in states.items()}
    train = ShowerEvents(config.train_folder, tables["train"], task, labelled=True, state=states["train"])
    test = ShowerEvents(config.test_folder, tables["test"], task, state=states["test"])
    return Job(config, task, train, test, devices, costs, remarks=remarks, quantities=quantities, ctx=ctx)


TINY = 20_000
"""Rows times columns times classes below which the fits of ``quick`` take less time than another process to begin."""


def table_job(config: TableConfig, ctx: Context) -> Job:
    """Read the tables and fix the schema of their columns; files are written when the run begins."""
    for option, file in (("--table", config.table), ("--test-table", config.test_table)):
        if file is not None and config.run.resolve() in file.resolve().parents:
            raise InputError(f"--run {config.run} holds {option} {file}, which it may replace: choose another folder")
    before = file_state(config.table)
    train = read_table(config.table, separator=config.separator)
    labels, classes, label_type = read_labels(train, config.table, config.label)
    groups = read_groups(train, config.table, config.group)
    weights = read_weights(train, config.table, config.weight)
    folds = read_folds(train, config.table, config.split, labels, classes)
    check_identifiers(train, config.table, config.id, classes)
    columns, remarks = learned_columns(
        train, config.table, config.reserved, wanted=config.columns, categories=config.categories
    )
    schema = Schema(columns, config.label, label_type, classes)
    remarks = [*config.learner_remarks(), *_label_remarks(classes, config.table), *remarks]
    resolved, more = config.for_rows(labels, classes, groups, folds)
    remarks += more
    frame, more = schema.encoded(train, config.table)
    schema = schema.trained_on(frame)
    remarks += more
    is_tiny = frame.height * frame.width * len(classes) < TINY and config.preset == "quick"
    if is_tiny and resolved.workers is None:
        resolved = resolved.model_copy(update={"workers": 1})
    optional = zip(LABEL_COLUMNS, (labels, groups, weights, folds), strict=True)
    label_frame = pl.DataFrame({name: values for name, values in optional if values is not None})
    run, task = RunFolder(config.run), Task(TASK_NAME, classes)
    test_frame, test, identifiers = None, None, train.select(config.id)
    if config.test_table:
        test_frame, identifiers, more = read_new_rows(
            config.test_table, schema, config.reserved, config.id, config.separator
        )
        remarks += more
        test_hash = hash_file(config.test_table)
        test = TableEvents(run.test_table, schema.names, test_hash, categories=schema.categories)
    remarks += telling_remarks(str(config.table), {name: frame[name].to_numpy() for name in frame.columns}, labels)
    remarks += weight_remarks(str(config.table), weights, labels, classes)
    if groups is None and folds is None:
        quantities = frame.select(column.name for column in columns if column.kind != CATEGORY).to_numpy()
        remarks += heap_remarks(str(config.table), quantities, labels, "name them with --group")
    remarks += repeated_remarks(frame, labels, test_frame)
    remark(LOG, remarks)
    content_hash = hash_file(config.table)
    if file_state(config.table) != before:
        raise Changed(f"{config.table} changed while it was read: start again")
    return Job(
        config=resolved,
        task=task,
        train=TableEvents(run.train_table, schema.names, content_hash, categories=schema.categories),
        test=test,
        devices=devices_for(config.learner_specs(task), config.device),
        table=TableInput(schema, frame, label_frame, identifiers, test_frame),
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


def make_folds(job: Job) -> Folds:
    """Set the holdout apart, assign the other events to folds, and write both where the tasks read them.

    Events that cannot be used are in no fold and not scored, so nothing is trained or measured on them.
    """
    config, train = job.config, job.train
    labels, energy, groups, usable = train.labels(), train.energy(), train.groups(), train.usable()
    in_evaluation, cuts_remark = evaluation_events(train.passes_evaluation_cuts(), labels, job.task.n_classes, usable)
    holdout, holdout_remark = choose_holdout(
        in_evaluation,
        labels,
        config.holdout,
        seed=config.seed,
        energy=energy,
        groups=groups,
        least=config.min_holdout,
    )
    partitions = np.full((config.repeats, len(labels)), -1, dtype=np.int8)
    given_folds = train.folds()
    if given_folds is not None:
        partitions[:] = given_folds
    else:
        rows = np.flatnonzero(~holdout if usable is None else ~holdout & usable)
        for repeat in range(config.repeats):
            partitions[repeat, rows] = assign_folds(
                labels[rows],
                config.n_folds,
                seed=config.seed + 1_000_003 * repeat,
                energy=None if energy is None else energy[rows],
                groups=None if groups is None else groups[rows],
                classes=job.task.classes,
            )
    job.run.write_folds(partitions, in_evaluation)
    remarks = tuple(filter(None, (cuts_remark, holdout_remark)))
    return Folds(partitions, in_evaluation, labels, train.weights(), groups, remarks)


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


FIRST_LEARNERS = ("pretrained", "mlp", "catboost", "xgboost", "lightgbm")
"""Learners in the order in which a time limit begins them; others follow, networks on grids last."""
LIMITED_FOLDS = 3
"""Folds at most under a time limit."""
FOLLOWS_SHARE = 0.2
"""Share of a time limit that is kept for what follows the fits: pool, calibration, predictions, scores, report."""
LEARNER_SHARE, FIT_SHARE = 0.5, 0.75
"""Share of the time left that a learner may take, except the last, and the share of it for learning."""


def order_in_limit(spec: LearnerSpec) -> tuple[int, bool]:
    """Return the place of a learner under a time limit: place among the first, and whether it reads grids."""
    name = spec.name.rpartition(".")[2]
    return (FIRST_LEARNERS.index(name) if name in FIRST_LEARNERS else len(FIRST_LEARNERS), spec.needs_grid)


def share_of_time(fold: int, n_fits: int, workers: int, *, last: bool) -> float:
    """Return the share of the time left, when a fit begins, that it may learn for.

    A learner's fits go in rounds of as many as there are workers; a round leaves the same time to each that follows.
    """
    rounds_left = -(-n_fits // workers) - fold // workers
    return FIT_SHARE * (1.0 if last else LEARNER_SHARE) / max(1, rounds_left)
