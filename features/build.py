"""From a dataset folder to its feature table: streamed in chunks, written in shards, resumed where it stopped."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from features.catalogue import CATALOGUE, FIT_GROUPS, GROUPS, check_groups
from features.compute import compute_chunk, warm_up
from features.device import chunk_size, namespace, resolve_device, to_host
from features.groups.reconstruction import add
from features.source import feature_code_version
from features.table import EVENT_COLUMN, FeatureTable, default_path, part_path, read_head
from features.transfer import on_device
from features.writer import TableWriter, one_line, opened_for_writing
from showers.array import DetectorArray
from showers.cuts import scalar_frame
from showers.datasets.dataset import Dataset, check_cells
from showers.execution.processes import in_processes
from showers.execution.progress import Bars, silent
from showers.kascade import KASCADE
from showers.schema import AGE_FILE, MATRICES_FILE, SCALARS_FILE, SOURCE_FILE, InputError
from showers.storage.files import atomic_path

SHARD_EVENTS = 16_384
"""Events per shard on a CPU: what is lost at most by an interruption, and what a worker is handed at once."""
GPU_SHARD_EVENTS = 262_144


def build_table(
    dataset: str | Path,
    out: str | Path | None = None,
    *,
    elsewhere: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    groups: Iterable[str] | None = None,
    bars: Bars = silent,
) -> FeatureTable:
    """Compute the features of a dataset, or reuse a valid table of it.

    An existing table is reused if dataset, code and groups are the same, and completed if it is unfinished or lacks a
    file; otherwise it is replaced, but never one of another dataset in a folder that was asked for. Memory is bounded
    by shards, whatever the number of events.

    Parameters
    ----------
    dataset
        Dataset folder; its labels are not looked at.
    out
        Folder of the table, by default ``<dataset>.features``.
    elsewhere
        Folder of the table if nothing can be written beside the dataset and no valid table lies there.
    device
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    workers
        Processes; by default one per core for large datasets. Under another joblib backend (such as Dask), that
        backend's workers.
    groups
        Feature groups, by default all.
    bars
        Opens progress bars.

    Raises
    ------
    InputError
        For a bad dataset or one without events, an unknown group, cells that are not finite and positive, a device that
        is not there, or a folder that holds something else, is being written by another process or cannot be written.
    """
    device = resolve_device(device)
    chosen = check_groups(GROUPS if groups is None else groups)
    # Before the data are read: a dataset that changes from here on is noticed.
    stamp = _stamp(Path(dataset))
    data = Dataset.open(dataset, labels=False)
    if not len(data):
        raise InputError(f"{dataset} holds no events")
    with bars(f"comparing {data.path.name} with its checksums", "files") as progress:
        source = Source(data.path, data.fingerprint(progress), stamp)
    folder = Path(out) if out else default_path(Path(dataset))
    head = _head(data, chosen, source.fingerprint, device)
    if out is None and elsewhere and not _is_finished(folder, head) and not _can_be_written(folder):
        folder = Path(elsewhere)
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not _is_finished(folder, head):
        with opened_for_writing(folder, head, replace=out is None) as writer:
            _run(writer, source, tuple(sorted(chosen)), device, workers, bars)
            writer.finish()
    return FeatureTable.open(folder)


def _can_be_written(folder: Path) -> bool:
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)


def compute_rows(dataset: Dataset, start: int, stop: int, groups: frozenset[str], device: str = "cpu") -> pl.DataFrame:
    """Return the features of consecutive events, columns in catalogue order.

    Chunk borders are multiples of the chunk size in absolute rows, so results do not depend on how the work is cut.
    """
    xp = namespace(device)
    pieces: list[dict[str, np.ndarray]] = []
    for chunk, grids in on_device(dataset.chunks(chunk_size(device), start, stop), device):
        check_cells(chunk.matrices, dataset.path / MATRICES_FILE, chunk.start)
        computed = compute_chunk(xp, grids, chunk.scalars, groups, dataset.array)
        pieces.append({name: to_host(values) for name, values in computed.items()})
    age = None if dataset.age is None else np.asarray(dataset.age[start:stop])
    return _with_scalars(pieces, np.asarray(dataset.scalars[start:stop], dtype=np.float32), age, groups)


def compute_events(
    grids: np.ndarray,
    scalars: np.ndarray,
    age: np.ndarray | None,
    groups: frozenset[str],
    array: DetectorArray = KASCADE,
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
    """
    xp, size = namespace("cpu"), chunk_size("cpu")
    parts = [slice(start, start + size) for start in range(0, len(grids), size)]
    pieces = [compute_chunk(xp, grids[part], scalars[part], groups, array) for part in parts]
    return _with_scalars(pieces, scalars, age, groups)


def _with_scalars(
    pieces: list[dict[str, np.ndarray]], scalars: np.ndarray, age: np.ndarray | None, groups: frozenset[str]
) -> pl.DataFrame:
    """Return the columns of all chunks and those made of the scalars, in catalogue order."""
    table = scalar_frame(scalars, age)
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else {})}
    table = add(table.with_columns(**{name: pl.Series(name, values) for name, values in columns.items()}), groups)
    return table.select([name for name, f in CATALOGUE.items() if name in table.columns and f.group in groups])


def column_names(has_age: bool, groups: frozenset[str]) -> tuple[str, ...]:
    """Return the columns that a table of the given groups has."""
    needs_age = {"Age", "fit_minus_age"}
    return tuple(
        name for name, feature in CATALOGUE.items() if feature.group in groups and (has_age or name not in needs_age)
    )


def table_fingerprint(data: Dataset, groups: frozenset[str], dataset_fingerprint: str) -> str:
    """Return the hash of dataset, code version and columns that decides whether a table can be reused."""
    content = [dataset_fingerprint, feature_code_version(), *column_names(data.age is not None, groups)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _head(data: Dataset, groups: frozenset[str], dataset_fingerprint: str, device: str) -> dict[str, Any]:
    columns = [asdict(CATALOGUE[name]) for name in column_names(data.age is not None, groups)]
    for column in columns:
        # Strict JSON knows no infinity: an open end of the range is null.
        column.update({end: None for end in ("low", "high") if not np.isfinite(column[end])})
    return {
        "complete": False,
        "fingerprint": table_fingerprint(data, groups, dataset_fingerprint),
        "dataset_fingerprint": dataset_fingerprint,
        "code_version": feature_code_version(),
        "n_events": len(data),
        "shard_events": GPU_SHARD_EVENTS if device == "cuda" else SHARD_EVENTS,
        "device": device,
        "groups": sorted(groups),
        "columns": columns,
    }


def _is_finished(folder: Path, head: dict[str, Any]) -> bool:
    """Return whether the table is there; one that lacks a file is not."""
    found = read_head(folder)
    if found is None or not found["complete"] or found["fingerprint"] != head["fingerprint"]:
        return False
    try:
        FeatureTable.open(folder)
    except InputError:
        return False
    return True


def _run(
    writer: TableWriter, source: Source, groups: tuple[str, ...], device: str, workers: int | None, bars: Bars
) -> None:
    missing, shard_events, total = writer.missing(), writer.head["shard_events"], writer.head["n_events"]
    done = total - sum(_length(k, shard_events, total) for k in missing)
    jobs = 1 if device == "cuda" else min(workers or joblib.cpu_count(), max(len(missing), 1))
    with bars("features", "events") as progress:
        progress(done, total)
        if jobs > 1 and FIT_GROUPS.intersection(groups):
            warm_up()
        arguments = [(k, source, writer.folder, shard_events, groups, device) for k in missing]
        for number, n_bytes, digest in in_processes(write_shard, arguments, workers=jobs, ordered=False):
            writer.add(number, n_bytes, digest)
            done += _length(number, shard_events, total)
            progress(done, total)


def _length(number: int, shard_events: int, total: int) -> int:
    return min(total - number * shard_events, shard_events)


def write_shard(
    number: int, source: Source, folder: Path, shard_events: int, groups: tuple[str, ...], device: str
) -> tuple[int, int, str]:
    """Compute and write one shard atomically; opens the dataset itself, so it runs anywhere.

    Returns
    -------
    tuple
        Its number, length in bytes and SHA-256.

    Raises
    ------
    InputError
        If the dataset is no longer the one whose features are asked for, or the shard cannot be written.
    """
    before = _stamp(source.path)
    data = _opened(source, before)
    start = number * shard_events
    stop = min(start + shard_events, len(data))
    table = compute_rows(data, start, stop, frozenset(groups), device)
    if _stamp(source.path) != before:
        raise InputError(f"{source.path} changed while its features were computed: start again")
    event = pl.Series(EVENT_COLUMN, np.arange(start, stop, dtype=np.uint32))
    content = io.BytesIO()
    table.insert_column(0, event).write_parquet(content, compression="lz4", statistics=False)
    with one_line(folder), atomic_path(part_path(folder, number)) as temporary:
        temporary.write_bytes(content.getbuffer())
    return number, content.getbuffer().nbytes, hashlib.sha256(content.getbuffer()).hexdigest()


class Source(NamedTuple):
    """A dataset as it was when its features were asked for."""

    path: Path
    fingerprint: str
    stamp: tuple[tuple[int, int, int], ...]
    """Length, time and inode of its files; see :func:`_stamp`."""


def _stamp(dataset: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes when a file of the dataset is written again or replaced, at the price of a look."""
    files = (dataset / name for name in (MATRICES_FILE, SCALARS_FILE, AGE_FILE, SOURCE_FILE))
    states = [file.stat() for file in files if file.exists()]
    return tuple((state.st_size, state.st_mtime_ns, state.st_ino) for state in states)


@lru_cache(maxsize=4)
def _opened(source: Source, stamp: tuple[tuple[int, int, int], ...]) -> Dataset:
    data = Dataset.open(source.path, labels=False)
    # Files seen from another machine may carry other stamps, so only the content tells.
    if stamp != source.stamp and data.fingerprint() != source.fingerprint:
        raise InputError(f"{source.path} changed while its features were computed: start again")
    return data
