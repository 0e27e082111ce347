"""Reading test labels, with refusals of everything that could silently be misread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.runtime.arrays import open_array, open_npy
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.showers.schema import (
    GROUPS_FILE,
    ORDER_FILE,
    SCALAR_NAMES,
    SCALARS_FILE,
    WEIGHT_FILE,
    Task,
)
from showerstack.showers.source import check_weights


@dataclass(frozen=True)
class Truth:
    """Labels of a test set, and the reconstructed scalars by which it is binned."""

    folder: Path
    labels: np.ndarray
    """(N,) int8 class numbers, or float32 true values of a target."""
    energy: np.ndarray
    """(N,) float32, lg(E/eV); what is not finite is in no bin."""
    zenith_deg: np.ndarray
    """(N,) float32."""
    order: np.ndarray | None = None
    """(N,) int64: the row of each event in the published file, where rows were shuffled on conversion."""
    reference: np.ndarray | None = None
    """(N,) float32 reconstructed scalar that estimates the target, where there is one."""
    groups: np.ndarray | None = None
    """(N,) int64: events of one value are the same simulated shower; None where each is of its own."""
    weights: np.ndarray | None = None
    """(N,) float64 importance weights; None where all events count alike."""

    def published(self, values: np.ndarray) -> np.ndarray:
        """Return values (N, ...) of our rows in the order of the published file."""
        if self.order is None:
            return values
        restored = np.empty_like(values)
        restored[self.order] = values
        return restored

    def ours(self, values: np.ndarray) -> np.ndarray:
        """Return values (N, ...) in the order of the published file in that of our rows."""
        return values if self.order is None else values[self.order]

    def in_published_order(self) -> Truth:
        """Return the same test set, its rows as in the published file."""
        values = (self.published(column) for column in (self.labels, self.energy, self.zenith_deg))
        reference = None if self.reference is None else self.published(self.reference)
        labels, energy, zenith_deg = values
        groups = None if self.groups is None else self.published(self.groups)
        weights = None if self.weights is None else self.published(self.weights)
        return Truth(self.folder, labels, energy, zenith_deg, reference=reference, groups=groups, weights=weights)


def labelled_folder(data: Path, task: Task) -> Path:
    """Return ``data/{task}_test``, or ``data`` itself where it holds the labels of the task."""
    folder = Path(data) / f"{task.name}_test"
    if not folder.is_dir() and (Path(data) / str(task.label_file)).exists():
        return Path(data)
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist{did_you_mean(folder)}; name the folder that holds {task.name}_test")
    return folder


def read_truth(data: Path, task: Task) -> Truth:
    """Read the test labels of a :func:`labelled_folder`; neither grids nor anything else there is needed.

    Where the folder has checksums, what is read is compared with them.

    Raises
    ------
    InputError
        For a missing folder or file, one that is not the file that was written, wrong shapes or types, labels out of
        range, or a class without events; names the file, the count and the first offending row.
    """
    folder = labelled_folder(data, task)
    checksums = Checksums.open(folder) if (folder / CHECKSUMS_FILE).exists() else None

    def compared(name: str) -> Path:
        problem = checksums.problem(name) if checksums else None
        if problem:
            raise InputError(f"{problem}: restore it, or remove {CHECKSUMS_FILE} if the change was meant")
        return folder / name

    label_file, scalar_file = compared(str(task.label_file)), compared(SCALARS_FILE)
    labels = np.asarray(open_npy(label_file))
    if labels.ndim != 1 or labels.dtype.kind not in ("f" if task.target else "iu"):
        expected = f"(N,) {task.label_type}"
        raise InputError(f"{label_file} has shape {labels.shape} and type {labels.dtype}, expected {expected}")
    if task.target:
        check_finite(labels, str(label_file))
    else:
        check_classes(labels, task, label_file)
    scalars = open_npy(scalar_file)
    widths = (len(SCALAR_NAMES), len(SCALAR_NAMES) + 1)
    if scalars.ndim != 2 or scalars.shape[1] not in widths or scalars.dtype.kind != "f":
        raise InputError(
            f"{scalar_file} has shape {scalars.shape} and type {scalars.dtype}, expected (N, 5), or (N, 6) with the age"
        )
    if len(scalars) != len(labels):
        raise InputError(f"{scalar_file} has {len(scalars)} rows, but {label_file.name} beside it has {len(labels)}")
    columns = []
    own = [task.target.reference] if task.target and task.target.reference else []
    for name in ("E", "Ze", *own):
        values = np.asarray(scalars[:, SCALAR_NAMES.index(name)], dtype=np.float32)
        columns.append(values)
    labels = labels.astype(task.label_type)
    reference = columns[2] if own else None
    order = _read_order(compared(ORDER_FILE), len(labels)) if (folder / ORDER_FILE).exists() else None
    groups = _read_groups(compared(GROUPS_FILE), len(labels)) if (folder / GROUPS_FILE).exists() else None
    weights = None
    if (folder / WEIGHT_FILE).exists():
        weights = open_array(compared(WEIGHT_FILE), (), np.float32).astype(np.float64)
        if len(weights) != len(labels):
            what = f"{len(weights)} rows, but {label_file.name} beside it has {len(labels)}"
            raise InputError(f"{folder / WEIGHT_FILE} has {what}: simulate the set again")
        check_weights(weights, task, folder / WEIGHT_FILE)
    return Truth(folder, labels, columns[0], columns[1], order, reference, groups, weights)


def _read_groups(file: Path, n_events: int) -> np.ndarray | None:
    """Return the groups (N,) of a test set; None where every event is a group of its own."""
    groups = np.asarray(open_npy(file))
    if groups.shape != (n_events,) or groups.dtype != np.int64:
        raise InputError(f"{file} has shape {groups.shape} and type {groups.dtype}, expected ({n_events},) int64")
    return None if len(np.unique(groups)) == n_events else groups


def _read_order(file: Path, n_events: int) -> np.ndarray:
    order = np.asarray(open_npy(file))
    if order.dtype != np.int64 or not np.array_equal(np.sort(order), np.arange(n_events)):
        raise InputError(f"{file} is no permutation of {n_events} rows: convert the raw files again")
    return order


def check_classes(labels: np.ndarray, task: Task, file: Path) -> None:
    """Refuse labels (N,) out of range, and a truth without all classes."""
    check_range(labels, task.n_classes, str(file))
    missing = [name for k, name in enumerate(task.classes) if not (labels == k).any()]
    if missing:
        raise InputError(f"{file} holds no event of class {', '.join(missing)} among {len(labels)}: all needed")


def check_range(labels: np.ndarray, n_classes: int, where: str) -> None:
    """Refuse labels (N,) outside ``0..n_classes - 1``."""
    bad = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(labels)} labels are outside 0..{n_classes - 1}, "
            f"the first at index {bad[0]} ({labels[bad[0]]})"
        )


def check_finite(values: np.ndarray, where: str) -> None:
    """Refuse NaN and infinite values (N,)."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(values)} values are NaN or infinite, "
            f"the first at index {bad[0]} ({values[bad[0]]})"
        )
