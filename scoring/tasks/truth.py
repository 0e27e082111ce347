"""Reading test labels, with refusals of all that could silently be misread, and where a test set comes from.

Public sets are recognised by their exact number of events in each class, never by the absence of a mark; what was
simulated here says so in ``source.json``, through raw archives and conversion too. All else is of unknown origin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.arrays import open_array, open_npy
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.scoring.metrics.bins import BENCHMARK, MetricBins
from showerstack.showers.array import KASCADE, array_of
from showerstack.showers.event_files import EventFiles
from showerstack.showers.schema import (
    COMPOSITION,
    GROUPS_FILE,
    MATRICES_FILE,
    ORDER_FILE,
    OWN_LABELS_FILE,
    SCALAR_NAMES,
    SCALARS_FILE,
    WEIGHT_FILE,
    Task,
)
from showerstack.showers.source import checked_weights, is_simulated, read_source

TEST_CLASSES = {
    ("composition", "v2"): (32_804, 26_886, 22_065, 19_584, 17_688),
    ("composition", "matched"): (9_465, 7_832, 6_333, 5_643, 5_246),
    ("composition", "2026"): (31_362, 26_109, 21_430, 18_792, 17_371),
    ("gamma", "v2"): (1_514, 34_237),
    ("gamma", "2026"): (1_579, 34_267),
}
"""Events of each class in the public test sets, by task and protocol: what they are recognised by."""
RAW_LABELS_ONLY = frozenset({("2026", COMPOSITION.name)})
"""Where only the most probable class may be scored: rules that shift decisions between classes are forbidden."""
SIMULATION = "simulation"
UNKNOWN = "unknown origin"


@dataclass(frozen=True)
class Truth:
    """Labels of a test set, and the reconstructed scalars by which it is binned."""

    folder: Path
    labels: np.ndarray
    """(N,) int8 class numbers of :attr:`task`, or float32 true values of a target."""
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
    """(N,) float64 importance weights of mean 1; None where all events count alike."""
    binning: MetricBins = BENCHMARK
    """Bins of energy and zenith angle: the benchmark's, or of another array those that its events fill."""
    task: Task = COMPOSITION
    """The task, of composition with the mass groups of which the set has showers."""

    @property
    def counted(self) -> dict[str, Any]:
        """Arguments ``weights`` and ``groups`` (N,) each, of what counts events: those that there are."""
        found = {"weights": self.weights, "groups": self.groups}
        return {name: values for name, values in found.items() if values is not None}

    def take(self, rows: np.ndarray) -> Truth:
        """Return some events of the test set, by (n,) row numbers or (N,) bool, without their order in the file."""
        names = ("labels", "energy", "zenith_deg", "reference", "groups", "weights")
        columns = {name: getattr(self, name) for name in names}
        taken: dict[str, Any] = {name: None if values is None else values[rows] for name, values in columns.items()}
        return replace(self, order=None, **taken)

    def published(self, values: np.ndarray) -> np.ndarray:
        """Return values (N, ...) of our rows in the order of the published file."""
        return values if self.order is None else values[np.argsort(self.order)]

    def ours(self, values: np.ndarray) -> np.ndarray:
        """Return values (N, ...) in the order of the published file in that of our rows."""
        return values if self.order is None else values[self.order]

    def in_published_order(self) -> Truth:
        """Return the same test set, its rows as in the published file."""
        return self if self.order is None else self.take(np.argsort(self.order))


def labelled_folder(data: Path, task: Task) -> Path:
    """Return ``data/{task}_test``, or ``data`` itself where it holds the labels of the task."""
    folder = Path(data) / f"{task.name}_test"
    own = OWN_LABELS_FILE if task.masses else str(task.label_file)
    if not folder.is_dir() and any((Path(data) / name).exists() for name in (str(task.label_file), own)):
        return Path(data)
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist{did_you_mean(folder)}; name the folder that holds {task.name}_test")
    return folder


def read_truth(data: Path, task: Task) -> Truth:
    """Read the test labels of a :func:`labelled_folder`; neither grids nor anything else there is needed.

    Where the folder has checksums, what is read is compared with them.
    """
    folder = labelled_folder(data, task)
    checksums = Checksums.open(folder) if (folder / CHECKSUMS_FILE).exists() else None
    task = EventFiles(folder, checksums).with_groups(task)

    def checked(name: str) -> Path:
        problem = checksums.problem(name) if checksums else None
        if problem:
            raise InputError(f"{problem}: restore it, or remove {CHECKSUMS_FILE} if the change was meant")
        return folder / name

    def read_optional(name: str, read: Callable[[Path, int], np.ndarray | None]) -> np.ndarray | None:
        return read(checked(name), len(labels)) if (folder / name).exists() else None

    label_file, scalar_file = checked(str(task.label_file)), checked(SCALARS_FILE)
    labels, task = _read_labels(label_file, task)
    scalars = open_npy(scalar_file)
    widths = (len(SCALAR_NAMES), len(SCALAR_NAMES) + 1)
    if scalars.ndim != 2 or scalars.shape[1] not in widths or scalars.dtype.kind != "f":
        raise InputError(
            f"{scalar_file} has shape {scalars.shape} and type {scalars.dtype}, expected (N, 5), or (N, 6) with the age"
        )
    if len(scalars) != len(labels):
        raise InputError(f"{scalar_file} has {len(scalars)} rows, but {label_file.name} beside it has {len(labels)}")

    def scalar(name: str) -> np.ndarray:
        return np.asarray(scalars[:, SCALAR_NAMES.index(name)], dtype=np.float32)

    energy, zenith_deg = scalar("E"), scalar("Ze")
    binning = BENCHMARK if array_of(read_source(folder)).is_of_kascade else MetricBins.of(energy, zenith_deg)
    reference = scalar(task.target.reference) if task.target and task.target.reference else None
    if reference is not None and not np.isfinite(reference).all():  # nobody reconstructed it
        reference = None
    return Truth(
        folder,
        labels,
        energy=energy,
        zenith_deg=zenith_deg,
        order=read_optional(ORDER_FILE, _read_order),
        reference=reference,
        groups=read_optional(GROUPS_FILE, _read_groups),
        weights=read_optional(WEIGHT_FILE, partial(_read_weights, task=task)),
        binning=binning,
        task=task,
    )


def _read_labels(file: Path, task: Task) -> tuple[np.ndarray, Task]:
    """Return the class numbers (N,) of a test set, or its true values, in the task's type, and the task with the mass
    groups that are there; or refuse them."""
    labels = np.asarray(open_npy(file))
    if labels.ndim != 1 or labels.dtype.kind not in ("f" if task.target else "iu"):
        expected = f"(N,) {task.label_type}"
        raise InputError(f"{file} has shape {labels.shape} and type {labels.dtype}, expected {expected}")
    if task.target:
        check_finite(labels, str(file))
        return labels.astype(task.label_type), task
    check_labels(labels, task, str(file))
    task = task.among(labels)
    missing = [name for name, label in zip(task.classes, task.labels, strict=True) if not (labels == label).any()]
    if missing:
        raise InputError(f"{file} holds no event of class {', '.join(missing)} among {len(labels)}: all needed")
    return task.encoded(labels).astype(task.label_type), task


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


def _read_weights(file: Path, n_events: int, task: Task) -> np.ndarray:
    weights = open_array(file, (), np.float32).astype(np.float64)
    if len(weights) != n_events:
        what = f"{len(weights)} rows, but {task.label_file} beside it has {n_events}"
        raise InputError(f"{file} has {what}: make the set again")
    return checked_weights(weights, task, file)


def check_labels(labels: np.ndarray, task: Task, where: str) -> None:
    """Refuse labels (N,) that are none of a task's."""
    bad = np.flatnonzero(~np.isin(labels, task.labels))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(labels)} labels are outside {task.label_words}, "
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


@dataclass(frozen=True)
class DataOrigin:
    """Origin of one test set."""

    public: bool
    protocol: str
    """``v2``, ``matched`` or ``2026`` of a public set; of others, what they are and what they say they follow."""
    source: dict[str, Any]
    """Content of ``source.json``."""

    @property
    def base(self) -> str:
        """The protocol whose rules hold: of a public set its own, of others the one they say they follow."""
        return self.protocol if self.public else str(self.source.get("protocol", "v2"))

    def takes_raw_labels(self, task: Task) -> bool:
        """Return whether its protocol takes the most probable class only."""
        return (self.base, task.name) in RAW_LABELS_ONLY


def origin_of(folder: Path, task: Task) -> DataOrigin:
    """Return the origin of a labelled test set."""
    folder = Path(folder)
    source = read_source(folder)
    array, stated = array_of(source), str(source.get("protocol", "v2"))
    if not array.is_like(KASCADE):  # protocols are of KASCADE, and scores of two arrays stand in no one list
        stated = f"array {array.name}"
    if is_simulated(source):
        made = [source.get("model", "?"), f"{source.get('world', 'default')} world", f"seed {source.get('seed', '?')}"]
        return DataOrigin(False, f"{SIMULATION} of {stated} ({', '.join(map(str, made))})", source)
    protocol = _recognised_protocol(folder, task)
    return DataOrigin(True, protocol, source) if protocol else DataOrigin(False, f"{UNKNOWN} ({stated})", source)


def _recognised_protocol(folder: Path, task: Task) -> str | None:
    if (folder / OWN_LABELS_FILE).exists():
        return None
    labels = np.asarray(open_npy(folder / str(task.label_file)))
    others = [folder / name for name in (MATRICES_FILE, SCALARS_FILE) if (folder / name).exists()]
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min(initial=0) >= 0
    if not is_whole or any(len(open_npy(path)) != len(labels) for path in others):
        return None
    counts = tuple(np.bincount(labels, minlength=task.n_classes).tolist())
    return next(
        (protocol for (name, protocol), known in TEST_CLASSES.items() if (name, counts) == (task.name, known)), None
    )
