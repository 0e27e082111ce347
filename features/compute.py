"""All features of one chunk of events, on whatever device the namespace stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl

from showerstack.features.available import is_available
from showerstack.features.catalogue import CATALOGUE, FIT_GROUPS, MODULES, PARTS
from showerstack.features.device import chunk_size, columns_to_host, namespace, on_device
from showerstack.features.groups import FittedEvents, times
from showerstack.features.groups.lateral import ELECTRON_GROUP, MUON_GROUP
from showerstack.features.groups.reconstruction import (
    CONTRAST_GROUP,
    DERIVED_GROUP,
    add_derived,
    derivable,
    derived,
)
from showerstack.features.lateral.events import make_events
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import zero_if_not_finite
from showerstack.showers.protocols import scalar_frame
from showerstack.showers.schema import AGE, SCALAR_NAMES

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
    scalars = zero_if_not_finite(np.asarray(dataset.scalars[part], dtype=np.float32))
    return _with_scalars(pieces, scalars, age, columns_of(dataset, groups), dataset.array)


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
    quantities = SCALAR_NAMES if age is None else (*SCALAR_NAMES, AGE.name)
    return _with_scalars(pieces, scalars, age, column_names(groups, array, quantities, times_ns is not None), array)


@lru_cache(maxsize=64)
def column_names(
    groups: frozenset[str],
    array: DetectorArray = KASCADE,
    quantities: tuple[str, ...] = (*SCALAR_NAMES, AGE.name),
    has_times: bool = False,
) -> tuple[str, ...]:
    """Return the columns that a table of the given groups has, of an array and of these reconstructed quantities."""
    formulas = derived(frozenset({DERIVED_GROUP, CONTRAST_GROUP}))
    plain = [name for name in CATALOGUE if name not in formulas and is_available(name, array, quantities)]
    there = {*plain, *derivable(frozenset({DERIVED_GROUP, CONTRAST_GROUP}), plain)}
    chosen = groups if has_times else groups - {times.GROUP}
    return tuple(name for name, feature in CATALOGUE.items() if feature.group in chosen and name in there)


def columns_of(dataset: Dataset, groups: frozenset[str]) -> tuple[str, ...]:
    """Return the columns that the table of a dataset has."""
    return column_names(groups, dataset.array, dataset.quantities, dataset.times_ns is not None)


def _with_scalars(
    pieces: list[dict[str, np.ndarray]],
    scalars: np.ndarray,
    age: np.ndarray | None,
    wanted: tuple[str, ...],
    array: DetectorArray,
) -> pl.DataFrame:
    """Return the wanted columns of all chunks and those made of the scalars."""
    table = scalar_frame(scalars, age)
    columns = pieces[0] if len(pieces) == 1 else {}
    if len(pieces) > 1:
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    table = table.with_columns(**{name: pl.Series(name, values) for name, values in columns.items()})
    table = add_derived(table, frozenset(CATALOGUE[name].group for name in wanted), array)
    return table.select(wanted)
