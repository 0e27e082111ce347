"""Dataset folders as readers: one, or all that a folder holds, among them the runs in its folder ``measured``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.showers.archives.formats import DEPOSITS, GRID_EVENTS, TABLE_EVENTS, UNITS
from showerstack.showers.array import DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import EventFiles, zero_if_not_finite
from showerstack.showers.schema import AGE, MATRICES_FILE, SCALAR_NAMES, Task

INSIDE = (f"*/{MATRICES_FILE}", f"measured/*/{MATRICES_FILE}")
"""Where a folder of datasets holds them."""


def datasets_in(path: Path) -> list[Path]:
    """Return the dataset folders that a path means: itself, or those inside, in order; none where there are none."""
    if (path / MATRICES_FILE).exists():
        return [path]
    return [file.parent for pattern in INSIDE for file in sorted(path.glob(pattern))] if path.is_dir() else []


def unlabelled_in(path: Path) -> list[Path]:
    """Return the dataset folders inside a folder of measured runs; none where a path is another thing."""
    inside = [] if (path / MATRICES_FILE).exists() else datasets_in(path)
    return [] if any(tasks_of(folder) for folder in inside) else inside


def tasks_of(folder: Path) -> list[Task]:
    """Return the tasks whose labels a dataset folder has."""
    return EventFiles.open(folder).tasks()


class DatasetFolders:
    """The format."""

    name = "dataset folders"
    holds = MATRICES_FILE
    is_foreign = False

    def accepts(self, path: Path) -> bool:
        """Return whether a path is or holds a dataset folder."""
        return bool(datasets_in(path))

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[DatasetEvents]:
        """Open each, without labels."""
        return [DatasetEvents(Dataset.open(folder, labels=False)) for folder in datasets_in(path)]

    def next_commands(self, path: Path) -> list[str]:
        """Return a command for labelled sets, and one for those to be predicted."""
        commands: dict[str, None] = {}
        for folder in datasets_in(path):
            tasks = tasks_of(folder)
            for task in tasks:
                commands[f"python cli.py stack --task {task.name} --data {folder.parent} --run runs/{task.name}"] = None
            if not tasks:
                data = folder if folder == path else folder.parent
                out = "predictions.npz" if folder == path else "predictions"
                commands[f"python cli.py predict --run RUN --data {data} --out {out}"] = None
        return list(commands)


@dataclass(frozen=True)
class DatasetEvents:
    """One folder."""

    data: Dataset

    @property
    def name(self) -> str:
        """Its name."""
        return self.data.path.name

    @property
    def n_events(self) -> int:
        """How many there are."""
        return len(self.data)

    @property
    def array(self) -> DetectorArray:
        """Of the deposits."""
        return self.data.array

    @property
    def is_simulated(self) -> bool:
        """Whether it has labels of a task."""
        return bool(tasks_of(self.data.path))

    @property
    def units(self) -> dict[str, str]:
        """Column to unit."""
        return {name: UNITS[name] for name in (*self.data.quantities, DEPOSITS)}

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events; quantities that are not finite are 0."""
        size = GRID_EVENTS if DEPOSITS in names else TABLE_EVENTS
        for start in range(0, self.n_events, size):
            here = slice(start, start + size)
            scalars = zero_if_not_finite(np.asarray(self.data.scalars[here], dtype=np.float32))
            columns = {name: scalars[:, k] for k, name in enumerate(SCALAR_NAMES)}
            columns |= {} if self.data.age is None else {AGE.name: np.asarray(self.data.age[here])}
            columns |= {DEPOSITS: self.data.matrices[here]} if DEPOSITS in names else {}
            yield {name: columns[name] for name in names}


FORMAT = DatasetFolders()
