"""From a dataset folder to its feature table: streamed in chunks, written in shards, resumed where it stopped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import polars as pl

from features.catalogue import CATALOGUE, FIT_GROUPS, GROUPS, check_groups
from features.compute import compute_chunk, warm_up
from features.device import chunk_size, namespace, resolve_device, to_host
from features.groups.reconstruction import add
from features.source import code_version
from features.table import CATALOGUE_FILE, EVENT_COLUMN, FeatureTable, default_path, part_path, read_head
from features.transfer import on_device
from showers.cuts import scalar_frame
from showers.dataset import Dataset, check_cells
from showers.files import atomic_path, write_json
from showers.progress import Bars, silent
from showers.schema import MATRICES_FILE, InputError

SHARD_EVENTS = 16_384
"""Events per shard on a CPU: what is lost at most by an interruption, and what a worker is handed at once."""
GPU_SHARD_EVENTS = 262_144


def build_table(
    dataset: str | Path,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    groups: Iterable[str] | None = None,
    bars: Bars = silent,
) -> FeatureTable:
    """Compute the features of a dataset, or reuse a valid table of it.

    An existing table is reused if dataset, code and groups are the same, and completed if it is unfinished; otherwise
    it is replaced. Memory is bounded by shards, whatever the number of events.

    Parameters
    ----------
    dataset
        Dataset folder; its labels are not looked at.
    out
        Folder of the table, by default ``<dataset>.features``.
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
        For a bad dataset, an unknown group, cells that are not finite and positive, or a device that is not there.
    """
    device = resolve_device(device)
    chosen = check_groups(GROUPS if groups is None else groups)
    data = Dataset.open(dataset, labels=False)
    folder = Path(out) if out else default_path(Path(dataset))
    dataset_fingerprint = data.fingerprint()
    fingerprint = table_fingerprint(data, chosen, dataset_fingerprint)
    shard_events = GPU_SHARD_EVENTS if device == "cuda" else SHARD_EVENTS
    head = read_head(folder)
    if head is not None and head["fingerprint"] == fingerprint and head["complete"]:
        return FeatureTable.open(folder)
    if folder.exists() and head is None and any(folder.iterdir()):
        raise InputError(f"{folder} exists and is not a feature table: choose another folder or remove it")
    if head is None or head["fingerprint"] != fingerprint or head["shard_events"] != shard_events:
        _clear(folder)
        head = _head(data, chosen, fingerprint, shard_events, device)
        head["dataset_fingerprint"] = dataset_fingerprint
        write_json(folder / CATALOGUE_FILE, head)
    starts = range(0, len(data), shard_events)
    missing = [k for k in range(len(starts)) if not part_path(folder, k).exists()]
    _run(data, folder, missing, shard_events, tuple(sorted(chosen)), device, workers, bars)
    write_json(folder / CATALOGUE_FILE, {**head, "complete": True})
    return FeatureTable.open(folder)


def compute_rows(dataset: Dataset, start: int, stop: int, groups: frozenset[str], device: str = "cpu") -> pl.DataFrame:
    """Return the features of consecutive events, columns in catalogue order.

    Chunk borders are multiples of the chunk size in absolute rows, so results do not depend on how the work is cut.
    """
    xp = namespace(device)
    pieces: list[dict[str, np.ndarray]] = []
    for chunk, grids in on_device(dataset.chunks(chunk_size(device), start, stop), device):
        check_cells(chunk.matrices, dataset.path / MATRICES_FILE, chunk.start)
        computed = compute_chunk(xp, grids, chunk.scalars, groups)
        pieces.append({name: to_host(values) for name, values in computed.items()})
    age = None if dataset.age is None else np.asarray(dataset.age[start:stop])
    table = scalar_frame(np.asarray(dataset.scalars[start:stop], dtype=np.float32), age)
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
    content = [dataset_fingerprint, code_version(), *column_names(data.age is not None, groups)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _head(data: Dataset, groups: frozenset[str], fingerprint: str, shard_events: int, device: str) -> dict[str, Any]:
    columns = [asdict(CATALOGUE[name]) for name in column_names(data.age is not None, groups)]
    for column in columns:
        # Strict JSON knows no infinity: an open end of the range is null.
        column.update({end: None for end in ("low", "high") if not np.isfinite(column[end])})
    return {
        "complete": False,
        "fingerprint": fingerprint,
        "code_version": code_version(),
        "n_events": len(data),
        "shard_events": shard_events,
        "device": device,
        "groups": sorted(groups),
        "columns": columns,
    }


def _clear(folder: Path) -> None:
    """Remove a table that no longer fits; its head goes first: a half-removed one is never taken as complete."""
    (folder / CATALOGUE_FILE).unlink(missing_ok=True)
    for path in folder.glob("part-*.parquet"):
        path.unlink()


def _run(
    data: Dataset,
    folder: Path,
    missing: list[int],
    shard_events: int,
    groups: tuple[str, ...],
    device: str,
    workers: int | None,
    bars: Bars,
) -> None:
    total = len(data)
    done = total - sum(_length(k, shard_events, total) for k in missing)
    jobs = 1 if device == "cuda" else min(workers or joblib.cpu_count(), max(len(missing), 1))
    with bars("features", "events") as progress:
        progress(done, total)
        if jobs > 1 and FIT_GROUPS.intersection(groups):
            warm_up()
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
        arguments = (data.path, folder, shard_events, groups, device)
        for number in parallel(joblib.delayed(write_shard)(k, *arguments) for k in missing):
            done += _length(number, shard_events, total)
            progress(done, total)


def _length(number: int, shard_events: int, total: int) -> int:
    return min(total - number * shard_events, shard_events)


def write_shard(
    number: int, dataset: Path, folder: Path, shard_events: int, groups: tuple[str, ...], device: str
) -> int:
    """Compute and write one shard atomically; returns its number. Opens the dataset itself, so it runs anywhere."""
    data = _opened(dataset, os.getpid())
    start = number * shard_events
    stop = min(start + shard_events, len(data))
    table = compute_rows(data, start, stop, frozenset(groups), device)
    event = pl.Series(EVENT_COLUMN, np.arange(start, stop, dtype=np.uint32))
    with atomic_path(part_path(folder, number)) as temporary:
        table.insert_column(0, event).write_parquet(temporary, compression="lz4", statistics=False)
    return number


@lru_cache(maxsize=4)
def _opened(dataset: Path, process: int) -> Dataset:
    return Dataset.open(dataset, labels=False)
