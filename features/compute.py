"""All features of one chunk of events, on whatever device the namespace stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl

from showerstack.features.catalogue import CATALOGUE, FIT_GROUPS, MODULES, PARTS
from showerstack.features.device import chunk_size, columns_to_host, namespace, on_device
from showerstack.features.groups import FittedEvents, times
from showerstack.features.groups.lateral import ELECTRON_GROUP, MUON_GROUP
from showerstack.features.groups.reconstruction import add_derived
from showerstack.features.lateral.events import make_events
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import zero_if_not_finite
from showerstack.showers.protocols import scalar_frame

FIT_RESULT_GROUPS = frozenset({ELECTRON_GROUP, MUON_GROUP})


def warm_up() -> None:
    """Compile the fused kernels if they are not on disk yet, so that worker processes find them there."""
    cells, scalars = np.zeros((1, *KASCADE.grid_shape), np.float16), np.zeros((1, 5), np.float32)
    fitted = FittedEvents(make_events(namespace("cpu"), cells, scalars))
    assert fitted.sums
    assert fitted.grid
    assert fitted.order


def compute_chunk(
    xp: ModuleType,
    grids: Any,
    scalars: np.ndarray,
    groups: frozenset[str],
    array: DetectorArray = KASCADE,
    times_ns: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the features of ``groups`` that need the grids, each (n,) float32 on the device of ``xp``.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) float32, MeV per station; on the CPU float16 too.
    scalars
        (n, 5) float32: E, Ze, Az, Ne, Nmu.
    array
        The stations.
    times_ns
        (n, rows, columns) arrival times; None where no times are known.
    """
    # The fits' own columns are what others are made of in the table: they come with any group that needs fits.
    wanted = groups | (FIT_RESULT_GROUPS if groups & FIT_GROUPS else frozenset())
    parts = frozenset(PARTS[group] for group in wanted & PARTS.keys())
    fitted = FittedEvents(make_events(xp, grids, scalars, array=array, times_ns=times_ns), parts, groups=wanted)
    for module in MODULES:
        if hasattr(module, "compute") and wanted & {group.name for group in module.GROUPS}:
            fitted.columns.update(module.compute(fitted))
    return {name: values for name, values in fitted.columns.items() if CATALOGUE[name].group in wanted}


def compute_rows(dataset: Dataset, start: int, stop: int, groups: frozenset[str], device: str = "cpu") -> pl.DataFrame:
    """Return the features of consecutive events, columns in catalogue order.

    Chunk borders are multiples of the chunk size in absolute rows, so results do not depend on how the work is cut.
    """
    (table,) = compute_parts(dataset, [slice(start, stop)], groups, device)
    return table()


def compute_parts(
    dataset: Dataset, parts: Sequence[slice], groups: frozenset[str], device: str
) -> Iterator[Callable[[], pl.DataFrame]]:
    """Yield for each part (consecutive events) what makes its table of columns on the host, as :func:`compute_rows`.

    Chunks follow each other without a gap between parts, so that a GPU gets the next one while it works.
    """
    xp, size = namespace(device), chunk_size(device)
    chunks_of_parts = (chunk for part in parts for chunk in dataset.chunks(size, part.start, part.stop))
    chunks_on_device = on_device(chunks_of_parts, device)
    for part in parts:
        pieces, n_events = [], 0
        while n_events < part.stop - part.start:
            chunk, grids = next(chunks_on_device)
            columns = compute_chunk(xp, grids, chunk.scalars, groups, dataset.working, chunk.times_ns)
            pieces.append(columns_to_host(columns, xp))
            n_events += len(chunk.scalars)
        yield partial(_finish_part, dataset, part, pieces, groups)


def _finish_part(
    dataset: Dataset, part: slice, pieces: list[dict[str, np.ndarray]], groups: frozenset[str]
) -> pl.DataFrame:
    age = None if dataset.age is None else zero_if_not_finite(np.asarray(dataset.age[part]))
    return _with_scalars(pieces, zero_if_not_finite(np.asarray(dataset.scalars[part], dtype=np.float32)), age, groups)


def compute_events(
    grids: np.ndarray,
    scalars: np.ndarray,
    age: np.ndarray | None,
    groups: frozenset[str],
    array: DetectorArray = KASCADE,
    times_ns: np.ndarray | None = None,
) -> pl.DataFrame:
    """Return the features of events in memory, computed on the CPU; columns in catalogue order.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) float32, MeV per station.
    scalars
        (n, 5) float32: E, Ze, Az, Ne, Nmu.
    age
        (n,) float32, or None where the protocol has none.
    groups
        Feature groups.
    array
        The stations.
    times_ns
        (n, rows, columns) arrival times; None where no times are known.
    """
    xp, size = namespace("cpu"), chunk_size("cpu")
    parts = [slice(start, start + size) for start in range(0, len(grids), size)]
    pieces = [
        compute_chunk(xp, grids[k], scalars[k], groups, array, None if times_ns is None else times_ns[k]) for k in parts
    ]
    return _with_scalars(pieces, scalars, age, groups)


def column_names(has_age: bool, groups: frozenset[str], has_times: bool = False) -> tuple[str, ...]:
    """Return the columns that a table of the given groups has."""
    needs_age = {"Age", "fit_minus_age"}
    there = groups if has_times else groups - {times.GROUP}
    return tuple(
        name for name, feature in CATALOGUE.items() if feature.group in there and (has_age or name not in needs_age)
    )


def columns_of(dataset: Dataset, groups: frozenset[str]) -> tuple[str, ...]:
    """Return the columns that the table of a dataset has."""
    return column_names(dataset.age is not None, groups, has_times=dataset.times_ns is not None)


def _with_scalars(
    pieces: list[dict[str, np.ndarray]], scalars: np.ndarray, age: np.ndarray | None, groups: frozenset[str]
) -> pl.DataFrame:
    """Return the columns of all chunks and those made of the scalars, in catalogue order."""
    table = scalar_frame(scalars, age)
    columns = pieces[0] if len(pieces) == 1 else {}
    if len(pieces) > 1:
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    table = add_derived(
        table.with_columns(**{name: pl.Series(name, values) for name, values in columns.items()}), groups
    )
    return table.select([name for name, f in CATALOGUE.items() if name in table.columns and f.group in groups])
