"""Writing dataset folders, and checking that a folder is what it should be.

Space is reserved first, checksums are written last, and nothing has the final name until it is complete.
:func:`problems` compares every file and looks at every cell; :func:`already_made` tells whether a folder is the set
that is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.arrays import ArrayFile, full_disk_as_input_error
from showerstack.runtime.checksums import CHECKSUMS_FILE, write_checksums
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, write_json
from showerstack.showers.array import array_of
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import LEFT_OUT_SCHEMA, BadValue, EventFiles
from showerstack.showers.protocols import PUBLISHED_LAYOUT, Layout
from showerstack.showers.schema import (
    AGE_FILE,
    ARRIVAL_FILE,
    CORE_X_FILE,
    CORE_Y_FILE,
    GENERATORS,
    GROUPS_FILE,
    LABEL_FILES,
    LEFT_OUT_FILE,
    MATRICES_FILE,
    ORDER_FILE,
    PART_FILE,
    SCALARS_FILE,
    SIMULATION,
    SOURCE_FILE,
    TIMES_FILE,
    TRUTH_FILE,
    WEIGHT_FILE,
    Task,
)

_DATASET_FILES = {MATRICES_FILE, SCALARS_FILE, GROUPS_FILE, AGE_FILE, PART_FILE, ORDER_FILE, SOURCE_FILE, TRUTH_FILE}
_DATASET_FILES |= {CHECKSUMS_FILE, LEFT_OUT_FILE, WEIGHT_FILE}
_DATASET_FILES |= {CORE_X_FILE, CORE_Y_FILE, TIMES_FILE, ARRIVAL_FILE}
_DATASET_FILES |= set(LABEL_FILES)

ARRIVAL_STEM = Path(ARRIVAL_FILE).stem
EVENTS, PRIMARIES, BLOCKS = "events", "primaries", "blocks"
"""Entries of ``source.json`` that say what came out: number of events, and of simulated sets the primaries thrown up to
the last of them, and the first and the last block of primaries."""


@dataclass
class DatasetWriter:
    """Fills the files of a new dataset; see :func:`write_dataset`."""

    files: dict[str, ArrayFile]
    """File stem to open file."""
    label_stem: str | None
    truth: list[pl.DataFrame] = field(default_factory=list)
    left_out: list[BadValue] = field(default_factory=list)
    """Events that cannot be used, for ``left_out.csv``; of several values of an event the first counts."""
    came_out: dict[str, Any] = field(default_factory=dict)
    """Further entries of ``source.json``, known at the end."""

    def put(
        self,
        start: int,
        matrices: np.ndarray | None,
        scalars: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        truth: pl.DataFrame | None = None,
        **extras: Any,
    ) -> None:
        """Store consecutive events from row ``start`` on; ``truth`` tables must come in row order.

        Without ``matrices`` the grids are to come by :meth:`put_grids`.
        """
        rows = {"features": scalars, **extras} | ({} if matrices is None else {"matrices": matrices})
        if self.label_stem is not None and labels is not None:
            rows[self.label_stem] = labels
        for stem, values in rows.items():
            self.files[stem].put(start, values)
        if truth is not None:
            self.truth.append(truth)

    def put_grids(self, rows: np.ndarray, grids: np.ndarray, stem: str = "matrices") -> None:
        """Store the grids of events, or their arrival times, at any rows (n,)."""
        for row, grid in zip(rows.tolist(), grids, strict=True):
            self.files[stem].put(row, grid[None])


@contextmanager
def write_dataset(
    path: str | Path,
    n_events: int,
    task: Task | None,
    *,
    source: Mapping[str, Any],
    extras: Mapping[str, Any] | None = None,
    layout: Layout = PUBLISHED_LAYOUT,
    arrival_times: Any = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a dataset folder; it appears under its name only when complete.

    Parameters
    ----------
    n_events
        Number of events; every row must be filled.
    task
        Whose label file to write; None for a folder without labels.
    source
        Content of ``source.json``; its entry ``array`` describes an array that is not KASCADE.
    extras
        Other per-event files to make: file stem (``groups``, ``age``, ``part``, ``order``) to NumPy type.
    layout
        Types of grids and scalars, and whether the scalars' last column is the age.
    arrival_times
        Type of the file of arrival times; None: there is none.
    overwrite
        Replace an existing dataset that was simulated or converted here.
    """
    path = Path(path)
    if overwrite:
        refuse_foreign(path)
    columns: dict[str, tuple[tuple[int, ...], Any]] = {
        "matrices": (array_of(source).grid_shape, layout.grid_type),
        "features": ((len(layout.scalars),), layout.scalar_type),
    }
    columns |= {ARRIVAL_STEM: (array_of(source).grid_shape[:2], arrival_times)} if arrival_times else {}
    label_stem = Path(task.label_file).stem if task and task.label_file else None
    columns |= {label_stem: ((), task.label_type)} if task and label_stem else {}
    columns |= {stem: ((), dtype) for stem, dtype in (extras or {}).items()}
    with full_disk_as_input_error(path), atomic_folder(path, overwrite=overwrite) as folder:
        with ExitStack() as opened:
            files = {
                stem: opened.enter_context(ArrayFile(folder / f"{stem}.npy", (n_events, *shape), dtype))
                for stem, (shape, dtype) in columns.items()
            }
            writer = DatasetWriter(files, label_stem)
            yield writer
            for stem, file in files.items():
                if file.rows_written != n_events:
                    raise ValueError(f"{stem}.npy got {file.rows_written} rows of {n_events}")
                file.close()
        if writer.truth:
            try:
                pl.concat(writer.truth).write_parquet(folder / TRUTH_FILE)
            except pl.exceptions.ComputeError as error:  # what a full disk is to Polars
                raise InputError(f"{path}: {TRUTH_FILE} cannot be written: {error}") from None
        if writer.left_out:
            _write_left_out(folder / LEFT_OUT_FILE, writer.left_out)
        write_json(folder / SOURCE_FILE, {**source, EVENTS: n_events, **writer.came_out})
        write_checksums(folder, [file.name for file in folder.iterdir()])
        if overwrite:
            refuse_foreign(path)  # what came there meanwhile


def _write_left_out(file: Path, left_out: list[BadValue]) -> None:
    by_row = {bad.row: bad for bad in reversed(left_out)}
    in_order = [by_row[row] for row in sorted(by_row)]
    columns = {name: [getattr(bad, name) for bad in in_order] for name in LEFT_OUT_SCHEMA}
    pl.DataFrame(columns, schema=LEFT_OUT_SCHEMA).write_csv(file)


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace a folder that is not, all of it, a dataset that was simulated or converted here."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise InputError(f"{folder} is not a folder and is not overwritten: remove it yourself or choose another name")
    names = sorted(file.name for file in folder.iterdir())
    strange = [name for name in names if name not in _DATASET_FILES or not (folder / name).is_file()]
    if strange:
        raise InputError(
            f"{folder} holds {strange[0]}, which is no file of a dataset, and is not overwritten: "
            "remove the folder yourself or choose another name"
        )
    generator = str(EventFiles(folder, None).source().get("generator", "")) if names else SIMULATION
    if not generator.startswith(GENERATORS):
        raise InputError(
            f"{folder} was not simulated or converted here ({SOURCE_FILE} does not say so) and is not overwritten: "
            "remove it yourself or choose another name"
        )


def is_dataset(folder: Path) -> bool:
    """Return whether a folder looks like a dataset: it holds (or held) grids or the description of a set."""
    folder = Path(folder)
    return folder.is_dir() and any((folder / name).exists() for name in (MATRICES_FILE, SOURCE_FILE))


def problems(folder: Path, progress: Progress | None = None) -> list[str]:
    """Compare every file of a dataset with its checksums, open it as every reader does, and scan all cells.

    Returns
    -------
    list of str
        One line for each thing that is wrong, naming the file; empty for a sound dataset. A folder without
        ``checksums.json`` is compared by its content alone.
    """
    folder = Path(folder)
    try:
        files = EventFiles.open(folder)
        differing = files.checksums.problems(progress) if files.checksums else []
        if differing:
            return differing
        for task in files.tasks():
            Dataset.open(folder, task)
        data = Dataset.open(folder, labels=False)
        _ = data.evaluation_cuts
        listed = {one.row for one in files.left_out()}
        bad = [one for one in data.validate(progress) if one.row not in listed]
    except InputError as error:
        return [str(error)]
    return [f"{folder / bad[0].file}{str(bad[0]).removeprefix(bad[0].file)} ({len(bad)} bad values)"] if bad else []


def already_made(
    folder: Path,
    n_events: int,
    task: Task,
    source: Mapping[str, Any],
    *,
    advice: str = "choose another folder or ask to overwrite it",
) -> bool:
    """Return whether a folder holds the very set that is wanted, so that an interrupted command can go on after it.

    Returns
    -------
    bool
        False if there is nothing of that name.
    """
    if not folder.exists() and not folder.is_symlink():
        return False
    stored = EventFiles.open(folder).source() if folder.is_dir() else {}
    wanted = json.loads(json.dumps(dict(source)))
    names = [name for name in {**stored, **wanted} if name not in (EVENTS, PRIMARIES, BLOCKS)]
    differing = [name for name in names if stored.get(name) != wanted.get(name)]
    if differing:
        what = f" and differs in {', '.join(differing)}" if stored else ""
        raise InputError(f"{folder} exists already{what}: {advice}")
    data = Dataset.open(folder, task)
    if len(data) != n_events:
        raise InputError(f"{folder} exists already with {len(data):,} events instead of {n_events:,}: {advice}")
    data.fingerprint()
    return True
