"""Stacking on the benchmark's dataset folders: feature tables where missing, then the engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from features.build import build_table
from features.device import resolve_device
from models.devices import device_remarks, devices_for
from showers.datasets.dataset import Dataset
from showers.datasets.ordering import ordering_of
from showers.execution.progress import Bars, silent
from showers.schema import InputError, task_named
from stacking.events import ShowerEvents
from stacking.run.config import StackConfig
from stacking.run.engine import Job, StackResult, run
from stacking.targets import class_numbers
from stacking.tasks.resources import Cost, measured

__all__ = ["StackResult", "stack"]


def stack(
    config: StackConfig,
    *,
    bars: Bars = silent,
    tell: Callable[[str], None] = lambda line: None,
    say: Callable[[str], None] = lambda line: None,
    began: float | None = None,
) -> StackResult:
    """Train base learners and the stack on ``DATA/{task}_train``, predict ``DATA/{task}_test``.

    Killed at any moment and started again, it continues and ends with the same bytes in ``predictions.npz``. The
    test folder's labels are neither needed nor looked at. ``tell`` gets remarks on the data and ``say`` the plan
    before the work begins. A time limit counts from ``began`` (seconds since 1970), by default from the feature tables.

    Raises
    ------
    InputError
        For data that cannot be used, too few events of a class, an unknown learner, a device that is not there, or a
        run folder of another configuration.
    """
    task = task_named(config.task)
    device = resolve_device(config.device)
    # Before any work: both folders must be readable, and every fold must be able to hold every class.
    opened = Dataset.open(config.train_folder, task)
    test_set = Dataset.open(config.test_folder, labels=False)
    if not len(test_set):
        raise InputError(f"{config.test_folder} holds no events")
    counts = np.bincount(class_numbers(opened), minlength=task.n_classes)
    for name, count in zip(task.classes, counts, strict=True):
        if count < config.n_folds:
            raise InputError(
                f"{config.train_folder}: class {name!r} has {count} events, fewer than the {config.n_folds} folds"
            )
    devices = devices_for(config.learner_specs(task), config.device)
    ordered = (ordering_of(each).remark(each.path.name) for each in (opened, test_set))
    remarks = (*opened.remarks, *test_set.remarks, *(remark for remark in ordered if remark), *device_remarks(devices))
    for remark in remarks:
        tell(remark)
    costs: list[Cost] = []
    tables = {}
    for split, folder in (("train", config.train_folder), ("test", config.test_folder)):
        with measured(f"features {split}", device=device) as cost:
            name = f"{folder.name}.features"
            tables[split] = build_table(
                folder,
                config.features / name if config.features else None,
                elsewhere=config.run.with_name(f"{config.run.name}.features") / name,
                device=device,
                workers=config.workers,
                bars=bars,
            ).folder
        costs.append(cost)
    train = ShowerEvents(config.train_folder, tables["train"], task, labelled=True)
    test = ShowerEvents(config.test_folder, tables["test"], task)
    return run(Job(config, task, train, test, devices, costs, remarks=remarks, began=began), bars=bars, say=say)
