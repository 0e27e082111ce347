"""What one run works on: configuration, events, device, and what of it decides the outcome."""

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
from showerstack.models.registry import device_remarks, devices_for
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, seconds_of, timed
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, write_json
from showerstack.runtime.logs import remark
from showerstack.runtime.resources import cores, memory_bytes
from showerstack.runtime.tables import read_table
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.schema import Task, task_named
from showerstack.stacking.columns import Schema, learned_columns, repeated_remarks
from showerstack.stacking.config import SECOND_LEVEL, EngineConfig, StackConfig, TableConfig
from showerstack.stacking.events import (
    TRUTH_COLUMNS,
    Events,
    ShowerEvents,
    TableEvents,
    class_numbers,
    truth_file,
    unusable_remarks,
)
from showerstack.stacking.folder import (
    METRICS_FILE,
    PLAN_FILE,
    PREDICTIONS_TABLE,
)
from showerstack.stacking.folds import class_counts
from showerstack.stacking.run import COMBINED, evaluated_rows, finished_learners, read_oof, shipped_system
from showerstack.stacking.tables import (
    check_identifiers,
    probabilities,
    read_folds,
    read_groups,
    read_labels,
    read_new_rows,
    read_weights,
    write_table,
)

LOG = logging.getLogger(__name__)

TASK_NAME = "table"
TABLE_FOLDER = "table"
"""Folder of a run with the tables that its fits read."""
TRAIN_FILE, TEST_FILE = "train.parquet", "test.parquet"


@dataclass(frozen=True)
class TableInput:
    """The user's table as it was read, and what a run on it writes beside its fits."""

    schema: Schema
    train: pl.DataFrame
    """The columns of training as float32."""
    truth: pl.DataFrame
    """Labels, groups, weights and folds, under the names of :data:`TRUTH_COLUMNS`."""
    identifiers: pl.DataFrame
    """Of the rows that are predicted: the test table's, without one the training table's."""
    test: pl.DataFrame | None

    def write(self, run: Path) -> None:
        """Write the tables that fits read, and the schema that new tables are read by."""
        folder = run / TABLE_FOLDER
        write_table(folder / TRAIN_FILE, self.train)
        write_table(truth_file(folder / TRAIN_FILE), self.truth)
        write_json(folder / PLAN_FILE, self.schema.as_json())
        if self.test is not None:
            write_table(folder / TEST_FILE, self.test)

    def write_results(self, run: Path, manifest: Mapping[str, Any]) -> None:
        """Write ``metrics_table.json`` and ``predictions.parquet`` of a run whose other files are written."""
        classes, shipped = self.schema.classes, shipped_system(manifest)
        systems = (*finished_learners(manifest), *COMBINED)
        oof = {name: read_oof(run / "oof" / f"{name}.parquet", classes) for name in systems}
        evaluated = evaluated_rows(*oof["stack"], holdout=bool(manifest["data"]["n_holdout"]))
        rows = self.truth.filter(evaluated)
        label, _, weight, _ = TRUTH_COLUMNS
        labels, weights = rows[label].to_numpy(), rows[weight].to_numpy() if weight in rows.columns else None
        metrics = {
            name: table_metrics(labels, log_proba[evaluated], classes, weights) for name, (log_proba, _) in oof.items()
        }
        on = f"{manifest['judged']['on']} rows of the training table"
        write_json(run / METRICS_FILE, {"judged_on": on, "shipped": shipped, "systems": metrics})
        if manifest["data"]["n_test"]:
            with np.load(run / "test" / f"{shipped}.npz", allow_pickle=False) as stored:
                log_proba = stored["log_proba"]
        else:
            log_proba, _ = oof[shipped]
        write_table(run / PREDICTIONS_TABLE, probabilities(log_proba, classes, self.identifiers))


LIBRARIES_BYTES, TABLE_COPIES = 700 << 20, 3
"""What a process that fits learners takes without events, and how often it holds its table, so that no fit took more
(``benchmarks/speed/fit_memory.py``)."""


@dataclass(frozen=True)
class Job:
    """What one run works on."""

    config: EngineConfig
    task: Task
    train: Events
    test: Events | None
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    costs: list[Cost] = field(default_factory=list)
    """Steps done before the engine starts (feature tables)."""
    table: TableInput | None = None
    """What the events were read from, if from a table."""
    remarks: tuple[str, ...] = ()
    """What the user should know about the input."""
    ctx: Context = Context()
    """Progress, and when a time limit begins: by default with the first step in ``costs``."""

    @property
    def identity(self) -> dict[str, Any]:
        """Return everything that can change a prediction."""
        return {
            **self.config.identity(),
            "task": self.task.name,
            "classes": list(self.task.classes),
            **(
                {"target": asdict(self.task.target) | {"limits": list(self.task.target.limits)}}
                if self.task.target
                else {}
            ),
            "device": self.device,
            **({"devices": dict(self.devices)} if self.device == "cuda" else {}),
            **({"targets_fingerprint": targets} if (targets := self._targets_fingerprint()) else {}),
            "train_fingerprint": self.train.fingerprint(),
            "test_fingerprint": self.test.fingerprint() if self.test is not None else None,
        }

    @property
    def versions(self) -> dict[str, Any]:
        """Return the version numbers of ours that can change a prediction."""
        learners = {spec.name: spec.version for spec in self.config.learner_specs(self.task)}
        return {
            "stacking_version": STACKING_VERSION,
            "features_version": self.train.features_version(),
            "learner_versions": learners,
        }

    @property
    def fits_identity(self) -> dict[str, Any]:
        """Return what of :attr:`identity` can change a fit of a learner."""
        return {name: value for name, value in self.identity.items() if name not in SECOND_LEVEL}

    def _targets_fingerprint(self) -> str | None:
        """Return the hash of the true quantities that learners of this run are given; None if none is."""
        specs = self.config.learner_specs(self.task)
        return self.train.targets_fingerprint() if any(spec.uses_truth for spec in specs) else None

    @property
    def device(self) -> str:
        """``"cuda"`` if a learner trains there, else ``"cpu"``."""
        return "cuda" if "cuda" in self.devices.values() else "cpu"

    @property
    def workers(self) -> int:
        """Processes at work at once: as many as were asked for, else as there are cores and memory for."""
        return self.config.workers or max(1, min(cores(), memory_bytes() // self.process_bytes))

    @property
    def process_bytes(self) -> int:
        """Memory that a process takes at most while it fits a learner."""
        cells = max(
            min(len(self.train), self.config.rows_of(spec.name)) * len(self.train.columns_for(spec))
            for spec in self.config.learner_specs(self.task)
        )
        return LIBRARIES_BYTES + TABLE_COPIES * cells * np.dtype(np.float32).itemsize

    def memory_remark(self) -> str | None:
        """Return a remark where all processes together may take more memory than this job was given."""
        needed, given = self.workers * self.process_bytes, memory_bytes()
        if self.config.scheduler or needed <= given:
            return None
        those = f"{self.workers} processes" if self.workers > 1 else "a process"
        fewer = f"give --workers {max(1, given // self.process_bytes)}, or " if self.workers > 1 else "give "
        return (
            f"{those} may take {needed / 1e9:.1f} GB of memory, and this job was given {given / 1e9:.1f} GB: {fewer}"
            "fewer training events a fit (rows, in a file for --config)"
        )

    @property
    def ends(self) -> float | None:
        """When the time limit ends, seconds since 1970; None without one."""
        limit, began = self.config.time_limit, self.ctx.began
        return None if limit is None or began is None else began + seconds_of(limit)

    @property
    def pools(self) -> dict[str, int]:
        """Processes at once by device: one trains on the GPU, the others beside it.

        A cluster gives the work to its workers itself.
        """
        if self.device == "cpu" or self.config.scheduler:
            return {"cpu": self.workers}
        if "cpu" in self.devices.values() and self.workers > 1:
            return {"cuda": 1, "cpu": self.workers - 1}
        return {"cuda": 1}


def shower_job(config: StackConfig, ctx: Context, *, strict: bool) -> Job:
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
    train = ShowerEvents(config.train_folder, tables["train"], task, labelled=True)
    test = ShowerEvents(config.test_folder, tables["test"], task)
    return Job(config, task, train, test, devices, costs, remarks=remarks, ctx=ctx)


TINY = 20_000
"""Rows times columns times classes below which the fits of ``quick`` take less time than another process to begin."""


def table_job(config: TableConfig, ctx: Context) -> Job:
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
    folder, task = config.run / TABLE_FOLDER, Task(TASK_NAME, classes)
    hashes = {"train": hash_file(config.table)}
    test_frame, test, identifiers = None, None, train.select(config.id)
    if config.test_table:
        test_frame, identifiers, more = read_new_rows(
            config.test_table, schema, config.reserved, config.id, config.separator
        )
        remarks += more
        hashes["test"] = hash_file(config.test_table)
        test = TableEvents(folder / TEST_FILE, schema.names, hashes["test"], categories=schema.categories)
    remarks += repeated_remarks(frame, label, test_frame)
    remark(LOG, remarks)

    return Job(
        config=resolved,
        task=task,
        train=TableEvents(
            folder / TRAIN_FILE,
            schema.names,
            hashes["train"],
            categories=schema.categories,
        ),
        test=test,
        devices=devices_for(config.learner_specs(task), config.device),
        table=TableInput(schema, frame, truth, identifiers, test_frame),
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
