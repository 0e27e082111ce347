"""What a dataset folder holds, and what its users should know: origin, cuts, classes, checksums, order of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.table import Table

from report.public.origin import origin_of
from report.terminal.findings import Finding, findings_table
from showers.datasets.dataset import Dataset
from showers.datasets.event_files import EventFiles
from showers.datasets.ordering import ordering_of
from showers.schema import TASKS, Task


def examine_dataset(folder: Path) -> Table:
    """Return what is to be said of a dataset folder; its cells are not scanned (``check`` does).

    Raises
    ------
    InputError
        If it cannot be opened.
    """
    return findings_table(str(folder), dataset_findings(Path(folder)))


def dataset_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a dataset folder, its labels included where it has some."""
    task = _labelled(folder)
    data = Dataset.open(folder, task, labels=task is not None)
    kinds = f"grids {data.matrices.dtype}, scalars {data.scalars.dtype}{', with age' if data.age is not None else ''}"
    yield Finding("events", f"{len(data):,}; {kinds}", "ok" if len(data) else "bad")
    if task is None:
        yield Finding("labels", "none: events to be predicted", "ok")
    else:
        origin = origin_of(folder, task)
        yield Finding("origin", f"{task.name}, {'public, ' if origin.public else ''}{origin.protocol}", "ok")
        counts = np.bincount(np.asarray(data.labels), minlength=task.n_classes)
        named = ", ".join(f"{name} {count:,}" for name, count in zip(task.classes, counts, strict=True))
        yield Finding("classes", named, "ok" if counts.min() else "note")
    if len(data):
        passed = float(data.evaluation_cuts.mask(data.scalar_frame()).mean())
        yield Finding("evaluation cuts", f"{data.evaluation_cuts.name}: {100 * passed:.1f} % of the events pass", "ok")
    if data.groups is not None:
        n = len(np.unique(np.asarray(data.groups)))
        yield Finding("showers", f"{n:,}, thrown {len(data) / max(n, 1):.2f} times on average", "ok")
    yield from (Finding("checksums", line, "note") for line in data.remarks)
    ordering = ordering_of(data)
    remark = ordering.remark(folder.name)
    yield Finding("order of rows", remark or ordering.words, "note" if remark else "ok")


def _labelled(folder: Path) -> Task | None:
    files = EventFiles.open(folder)
    found = [task for task in TASKS.values() if task.label_file and files.has(task.label_file)]
    return found[0] if len(found) == 1 else None
