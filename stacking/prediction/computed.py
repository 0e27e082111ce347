"""Events without a feature table: features are computed while they are predicted, in memory, and only those needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from showerstack.features.build import table_fingerprint
from showerstack.features.catalogue import CATALOGUE, FIT_GROUPS, feature_set
from showerstack.features.compute import columns_of, compute_events, compute_rows, warm_up
from showerstack.features.device import GPU_CHUNK, decoded, resolve_device
from showerstack.features.table import default_path, refuse_missing
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import FileState
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.showers.array import DetectorArray
from showerstack.showers.dataset import Dataset, state_of
from showerstack.showers.event_files import EventFiles, zero_if_not_finite
from showerstack.showers.schema import AGE, SCALAR_NAMES, Task
from showerstack.stacking.events import CONTEXT_SCALARS, CORE_COLUMNS, EVERY, Events, ShowerEvents
from showerstack.stacking.sample import Labelled

BLOCK_EVENTS = 4_096
"""Events whose features a thread computes at once: whole chunks of the feature code, for the last digits of a table."""


@dataclass(frozen=True)
class ComputedEvents(ShowerEvents):
    """A dataset folder without a feature table; use :meth:`of`.

    Several threads compute the features of the events that are taken, and those of the events before are forgotten:
    batches are taken in the order of the events.
    """

    wanted: tuple[str, ...] = ()
    """Features that are computed."""
    device: str = "cpu"
    """Where they are: ``"cpu"`` or ``"cuda"``."""
    workers: int = 1
    opened: tuple[FileState, ...] = ()
    """State of the files when they were opened; see :func:`showerstack.showers.dataset.state_of`."""
    _blocks: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """Features of the last events, (n, F) float32, by the number of their block."""
    _cores: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """Fitted cores, (n, 2) float32, in the same way: they are taken later."""

    @classmethod
    def of(cls, dataset: Path, task: Task, columns: Iterable[str], ctx: Context = Context()) -> Self:
        """Prepare a dataset folder for a prediction that needs these features; labels are not looked at."""
        state, data = state_of(dataset), Dataset.open(dataset, labels=False)
        wanted = tuple(dict.fromkeys(columns))
        refuse_missing(f"{dataset} gives no feature", wanted, columns_of(data, _groups(wanted)))
        device = resolve_device(ctx.device)
        workers = max(1, min(ctx.workers or cores(), -(-len(data) // BLOCK_EVENTS)))
        if workers > 1 and device == "cpu" and FIT_GROUPS & _groups(wanted):
            warm_up()
        return cls(dataset, default_path(dataset), task, wanted=wanted, device=device, workers=workers, opened=state)

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the computed columns of the learner's feature set."""
        if spec.features is None:
            return ()
        if isinstance(spec.features, str):
            return feature_set(spec.features, self.wanted)
        return self._computed(tuple(spec.features))

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        events = super().batch(rows, (), grids=grids)
        if not columns:
            return events
        table = self._gather(self._blocks, self.wanted, self._computed(columns), events.index)
        return replace(events, table=table, columns=columns)

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return the core of the lateral fit, (n, 2) m; None where it is not computed."""
        if not set(CORE_COLUMNS) <= set(self.wanted):
            return None
        index = np.arange(len(self))[rows]
        return self._gather(self._cores, CORE_COLUMNS, CORE_COLUMNS, index).astype(np.float64)

    def fingerprint(self) -> str:
        """Return the hash of the dataset and of the features that are computed."""
        data = self._data
        return f"{data.fingerprint()}:{table_fingerprint(data, _groups(self.wanted), data.fingerprint())}"

    @property
    def _block_size(self) -> int:
        return GPU_CHUNK if self.device == "cuda" else BLOCK_EVENTS

    def _computed(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns; refuse one that is not computed."""
        missing = [name for name in columns if name not in self.wanted]
        if missing:
            raise InputError(f"{self.dataset}: the feature {missing[0]!r} was not asked for and is not computed")
        return columns

    def _gather(
        self, blocks: dict[int, np.ndarray], names: tuple[str, ...], columns: tuple[str, ...], rows: np.ndarray
    ) -> np.ndarray:
        """Return columns of rows, (n, F) float32, Fortran-ordered, from blocks whose columns are ``names``.

        Blocks before these rows are forgotten.
        """
        block_of_row = rows // self._block_size
        needed = np.unique(block_of_row).tolist()
        for number in [number for number in blocks if needed and number < needed[0]]:
            del blocks[number]
        self._compute([number for number in needed if number not in blocks])
        gathered = np.empty((len(rows), len(columns)), dtype=np.float32, order="F")
        places = [names.index(name) for name in columns]
        for number in needed:
            here = np.flatnonzero(block_of_row == number)
            inside, block = rows[here] - number * self._block_size, blocks[number]
            for column, place in enumerate(places):
                gathered[here, column] = block[inside, place]
        return gathered

    def _compute(self, numbers: list[int]) -> None:
        """Compute and keep blocks; refuse a dataset that has changed."""
        if not numbers:
            return
        data, groups, size = self._data, _groups(self.wanted), self._block_size
        parts = [slice(number * size, min((number + 1) * size, len(data))) for number in numbers]
        if self.device == "cuda":
            tables = (compute_rows(data, part.start, part.stop, groups, self.device) for part in parts)
            blocks: Iterable[np.ndarray] = (_matrix(table, self.wanted) for table in tables)
        else:
            tasks = (
                (self.dataset, data.working, part, *_scalars(data, part), _times(data, part), self.wanted)
                for part in parts
            )
            blocks = in_threads(_compute_block, tasks, workers=self.workers)
        core_places = [self.wanted.index(name) for name in CORE_COLUMNS if name in self.wanted]
        for number, block in zip(numbers, blocks, strict=True):
            self._blocks[number] = block
            if len(core_places) == len(CORE_COLUMNS):
                self._cores[number] = block[:, core_places]
        if state_of(self.dataset) != self.opened:
            raise InputError(f"{self.dataset} changed while its features were computed: start again")


@dataclass(frozen=True, eq=False)
class EventsInMemory(Events):
    """Showers in memory with the features that learners read; use :meth:`of`."""

    grids: np.ndarray
    scalars: np.ndarray
    """(N, 5) float32, as rounded in files."""
    age: np.ndarray | None
    columns: tuple[str, ...]
    table: np.ndarray
    """(N, F) float32, Fortran-ordered."""
    array: DetectorArray

    @classmethod
    def of(
        cls, grids: np.ndarray, scalars: np.ndarray, age: np.ndarray | None, columns: tuple[str, ...],
        array: DetectorArray,
    ) -> Self:  # fmt: skip
        """Compute the features of showers as files hold them: (N, rows, columns, 2), (N, 5), (N,)."""
        scalars = zero_if_not_finite(scalars.astype(np.float32))
        age = None if age is None else zero_if_not_finite(age.astype(np.float32))
        table = compute_columns(decoded(grids), scalars, age, columns, array) if columns else np.empty((len(grids), 0))
        return cls(grids, scalars, age, columns, table, array)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the showers of several as one."""
        first = parts[0]
        age = None if first.age is None else np.concatenate([part.age for part in parts])
        grids, scalars = (np.concatenate([getattr(part, one) for part in parts]) for one in ("grids", "scalars"))
        table = np.concatenate([part.table.T for part in parts], axis=1).T
        return cls(grids, scalars, age, first.columns, table, first.array)

    def __len__(self) -> int:
        return len(self.grids)

    @property
    def location(self) -> None:
        return None

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        raise TypeError("these events are for predictions alone")

    def known(self) -> Labelled:
        raise TypeError("these events are for predictions alone")

    def fingerprint(self) -> str:
        return ""

    def events_fingerprint(self) -> None:
        return None

    def context(self, rows: slice = EVERY) -> np.ndarray:
        places = [SCALAR_NAMES.index(name) for name in CONTEXT_SCALARS]
        return self.scalars[rows][:, places].astype(np.float64)

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        places = np.array([self.columns.index(name) for name in columns], dtype=np.int64)
        scalars, names = self.scalars[rows], SCALAR_NAMES
        if self.age is not None:
            scalars, names = np.column_stack([scalars, self.age[rows]]), (*SCALAR_NAMES, AGE.name)
        return Batch(
            index=np.asarray(rows, dtype=np.int64),
            table=np.asfortranarray(self.table[np.ix_(rows, places)]) if columns else None,
            columns=columns,
            grids=self.grids if grids else None,
            scalars=scalars,
            scalar_columns=names,
            array=self.array,
        )


def compute_columns(
    grids: np.ndarray,
    scalars: np.ndarray,
    age: np.ndarray | None,
    wanted: tuple[str, ...],
    array: DetectorArray,
    times_ns: np.ndarray | None = None,
) -> np.ndarray:
    """Return the F wanted features of events in memory, (n, F) float32, Fortran-ordered.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) MeV.
    scalars
        (n, 5) float32.
    age
        (n,) float32, or None where the protocol has none.
    times_ns
        (n, rows, columns) arrival times, or None where there are none.
    """
    return _matrix(compute_events(grids, scalars, age, _groups(wanted), array, times_ns), wanted)


def _compute_block(
    dataset: Path,
    array: DetectorArray,
    part: slice,
    scalars: np.ndarray,
    age: np.ndarray | None,
    times_ns: np.ndarray | None,
    wanted: tuple[str, ...],
) -> np.ndarray:
    # Pages of a mapping count as memory of the process as long as it is open: a new one for each block bounds them.
    cells = EventFiles(dataset, None).matrices(array.grid_shape)[part]
    return compute_columns(decoded(cells), scalars, age, wanted, array, times_ns)


def _matrix(table: pl.DataFrame, wanted: tuple[str, ...]) -> np.ndarray:
    matrix = np.empty((len(table), len(wanted)), dtype=np.float32, order="F")
    for place, name in enumerate(wanted):
        matrix[:, place] = table[name].to_numpy()
    return matrix


def _scalars(data: Dataset, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
    scalars = zero_if_not_finite(np.array(data.scalars[part], dtype=np.float32))
    return scalars, None if data.age is None else zero_if_not_finite(np.array(data.age[part]))


def _times(data: Dataset, part: slice) -> np.ndarray | None:
    return None if data.times_ns is None else np.array(data.times_ns[part], dtype=np.float32)


def _groups(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(CATALOGUE[name].group for name in columns if name in CATALOGUE)
