"""Showers whose features are computed while they are predicted: in memory, piece by piece, no feature table on disk.

Only columns that the asked learners see are made, by several processes; :mod:`showerstack.stacking.predict` asks
for the next events while learners work on those before, so both use the cores at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from showerstack.features.build import table_fingerprint
from showerstack.features.catalogue import CATALOGUE, FIT_GROUPS, feature_set
from showerstack.features.compute import column_names, compute_events, compute_rows, warm_up
from showerstack.features.device import GPU_CHUNK, decoded, resolve_device
from showerstack.features.table import default_path
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
from showerstack.showers.schema import Task
from showerstack.stacking.events import CORE_COLUMNS, EVERY, ShowerEvents

BLOCK_EVENTS = 4_096
"""Events that a process is handed at once: whole chunks of the feature code, for the last digits that a table has."""


@dataclass(frozen=True)
class ComputedEvents(ShowerEvents):
    """A dataset folder without a feature table; use :meth:`of`. To be asked in the order of the events."""

    wanted: tuple[str, ...] = ()
    """Features that are computed."""
    device: str = "cpu"
    """Where: ``"cpu"`` or ``"cuda"``."""
    workers: int = 1
    state: tuple[FileState, ...] = ()
    """Of the files when they were opened; see :func:`showerstack.showers.dataset.state_of`."""
    _blocks: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """Blocks of the events asked for last: (n, F) float32 by number."""
    _cores: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """(n, 2) float32 fitted cores by block, until they are asked for."""

    @classmethod
    def of(cls, dataset: Path, task: Task, columns: Iterable[str], ctx: Context = Context()) -> Self:
        """Prepare events for prediction.

        Parameters
        ----------
        dataset
            Dataset folder; labels are not looked at.
        task
            What is predicted.
        columns
            Features that learners will ask for.
        ctx
            Device and processes; on a GPU features are computed in this process.
        """
        state, data = state_of(dataset), Dataset.open(dataset, labels=False)
        wanted = tuple(dict.fromkeys(columns))
        missing = [name for name in wanted if name not in column_names(data.age is not None, _groups(wanted))]
        if missing:
            raise InputError(f"{dataset} gives no feature {missing[0]!r} ({len(missing)} missing of {len(wanted)})")
        device = resolve_device(ctx.device)
        jobs = max(1, min(ctx.workers or cores(), -(-len(data) // BLOCK_EVENTS)))
        if jobs > 1 and device == "cpu" and FIT_GROUPS & _groups(wanted):
            warm_up()
        return cls(dataset, default_path(dataset), task, wanted=wanted, device=device, workers=jobs, state=state)

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the computed columns of the learner's feature set."""
        if spec.features is None:
            return ()
        if isinstance(spec.features, str):
            return feature_set(spec.features, self.wanted)
        return self._known(tuple(spec.features))

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled events; features of those before the first of ``rows`` are forgotten."""
        events = super().batch(rows, (), grids=grids)
        if not columns:
            return events
        table = self._gathered(self._blocks, self.wanted, self._known(columns), events.index)
        return replace(events, table=table, columns=columns)

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return the core of the lateral fit, (n, 2) m, where it was wanted; those before are forgotten."""
        if not set(CORE_COLUMNS) <= set(self.wanted):
            return None
        index = np.arange(len(self))[rows]
        return self._gathered(self._cores, CORE_COLUMNS, CORE_COLUMNS, index).astype(np.float64)

    def fingerprint(self) -> str:
        """Return the hash of the dataset and of the features that are computed."""
        data = self._opened
        return f"{data.fingerprint()}:{table_fingerprint(data, _groups(self.wanted), data.fingerprint())}"

    @property
    def _size(self) -> int:
        return GPU_CHUNK if self.device == "cuda" else BLOCK_EVENTS

    def _known(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        missing = [name for name in columns if name not in self.wanted]
        if missing:
            raise InputError(f"{self.dataset}: the feature {missing[0]!r} was not asked for and is not computed")
        return columns

    def _gathered(
        self, blocks: dict[int, np.ndarray], names: tuple[str, ...], columns: tuple[str, ...], rows: np.ndarray
    ) -> np.ndarray:
        """Return columns as (n, F) float32, Fortran-ordered, of held blocks with the columns ``names``."""
        number = rows // self._size
        requested = [int(one) for one in np.unique(number)]
        for one in [one for one in blocks if requested and one < requested[0]]:
            del blocks[one]
        self._compute([one for one in requested if one not in blocks])
        result = np.empty((len(rows), len(columns)), dtype=np.float32, order="F")
        places = [names.index(name) for name in columns]
        for one in requested:
            here = np.flatnonzero(number == one)
            inside, block = rows[here] - one * self._size, blocks[one]
            for column, place in enumerate(places):
                result[here, column] = block[inside, place]
        return result

    def _compute(self, blocks: list[int]) -> None:
        """Hold more blocks; refuse a dataset that has changed."""
        if not blocks:
            return
        data, groups = self._opened, _groups(self.wanted)
        parts = [slice(one * self._size, min((one + 1) * self._size, len(data))) for one in blocks]
        if self.device == "cuda":
            tables = (compute_rows(data, part.start, part.stop, groups, self.device) for part in parts)
            made: Iterable[np.ndarray] = (_columns(table, self.wanted) for table in tables)
        else:
            tasks = ((self.dataset, data.working, part, *_scalars(data, part), self.wanted) for part in parts)
            made = in_threads(compute_block, tasks, workers=self.workers)
        cores = [self.wanted.index(name) for name in CORE_COLUMNS if name in self.wanted]
        for number, block in zip(blocks, made, strict=True):
            self._blocks[number] = block
            if len(cores) == len(CORE_COLUMNS):
                self._cores[number] = block[:, cores]
        if state_of(self.dataset) != self.state:
            raise InputError(f"{self.dataset} changed while its features were computed: start again")


def compute_block(
    dataset: Path,
    array: DetectorArray,
    part: slice,
    scalars: np.ndarray,
    age: np.ndarray | None,
    wanted: tuple[str, ...],
) -> np.ndarray:
    """Return features of consecutive events, (n, F) float32, Fortran-ordered; maps the grids itself, for so long only.

    Parameters
    ----------
    dataset
        Dataset folder.
    array
        The stations.
    part
        Which events; the first is the first of a chunk of the feature code.
    scalars
        (n, 5) float32 of these events.
    age
        (n,) float32, or None where the protocol has none.
    wanted
        The F features.
    """
    # Pages of a mapping count as memory of the process as long as it is open: a new one for each block bounds them.
    cells = EventFiles(dataset, None).matrices(array.grid_shape)[part]
    return compute_columns(decoded(cells), scalars, age, wanted, array)


def compute_columns(
    grids: np.ndarray, scalars: np.ndarray, age: np.ndarray | None, wanted: tuple[str, ...], array: DetectorArray
) -> np.ndarray:
    """Return features of events in memory, (n, F) float32, Fortran-ordered; see :func:`compute_block`."""
    return _columns(compute_events(grids, scalars, age, _groups(wanted), array), wanted)


def _columns(table: pl.DataFrame, wanted: tuple[str, ...]) -> np.ndarray:
    result = np.empty((len(table), len(wanted)), dtype=np.float32, order="F")
    for place, name in enumerate(wanted):
        result[:, place] = table[name].to_numpy()
    return result


def _scalars(data: Dataset, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
    scalars = zero_if_not_finite(np.array(data.scalars[part], dtype=np.float32))
    return scalars, None if data.age is None else zero_if_not_finite(np.array(data.age[part]))


def _groups(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(CATALOGUE[name].group for name in columns if name in CATALOGUE)
