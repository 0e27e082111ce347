"""From a dataset folder to its feature table: streamed in chunks, written in shards, resumed where it stopped.

One process writes a table at a time. ``checksums.json`` grows with the shards and names ``catalogue.json`` last: killed
at any moment, the table is continued from the shards that are listed, and no file is hashed twice.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from multiprocessing import current_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from showerstack.features.catalogue import CATALOGUE, GROUPS, check_groups
from showerstack.features.compute import columns_of, compute_parts, compute_rows, warm_up
from showerstack.features.device import resolve_device
from showerstack.features.groups.times import GROUP as TIMES
from showerstack.features.table import (
    CATALOGUE_FILE,
    EVENT_COLUMN,
    FeatureTable,
    default_path,
    n_parts,
    part_path,
    read_head,
)
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, checksum
from showerstack.runtime.cluster import spread_over
from showerstack.runtime.code import installed_versions, versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import LOCK_FILE, FileState, atomic_path, locked, write_json
from showerstack.runtime.logs import remark
from showerstack.runtime.processes import in_own_process, in_processes, in_threads, limited_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.showers.dataset import Dataset, state_of
from showerstack.showers.schema import ARRIVAL_FILE

LOG = logging.getLogger(__name__)
_SHARD = r"part-[0-9]{5,}\.parquet"
_TABLE_FILE = rf"({_SHARD}|{re.escape(CATALOGUE_FILE)}|{re.escape(CHECKSUMS_FILE)})"
_TEMPORARY = r"\.partial-[0-9]+-([0-9a-f]{16}-)?"
_OUR_FILE = re.compile(rf"{re.escape(LOCK_FILE)}|({_TEMPORARY})?{_TABLE_FILE}")
_LEFTOVER = re.compile(rf"{_TEMPORARY}{_TABLE_FILE}")


@dataclass(frozen=True)
class TableWriter:
    """The folder of an unfinished table; use :func:`opened_for_writing`."""

    folder: Path
    head: dict[str, Any]
    """Content of ``catalogue.json``."""
    checksums: Checksums
    """The shards that are finished."""

    def missing(self) -> list[int]:
        """Return the numbers of the shards still to be made."""
        parts = n_parts(self.head)
        return [k for k in range(parts) if part_path(self.folder, k).name not in self.checksums.files]

    def add(self, number: int, n_bytes: int, digest: str) -> None:
        """Record a shard that was written, with its length and SHA-256."""
        self.checksums.files[part_path(self.folder, number).name] = (n_bytes, digest)
        with os_error_as_input_error(self.folder):
            self.checksums.write()

    def finish(self) -> None:
        """Mark the table as complete."""
        with os_error_as_input_error(self.folder):
            write_json(self.folder / CATALOGUE_FILE, {**self.head, "complete": True})
            self.checksums.files[CATALOGUE_FILE] = checksum(self.folder / CATALOGUE_FILE)
            self.checksums.write()


@contextmanager
def opened_for_writing(folder: Path, head: dict[str, Any], *, replace: bool) -> Iterator[TableWriter]:
    """Hold the folder of a table and prepare it: what fits ``head`` is kept, everything else of ours removed.

    Parameters
    ----------
    head
        Content of ``catalogue.json`` of the unfinished table.
    replace
        Whether a table of another dataset may be replaced.
    """
    _check_owner(folder, head, replace)
    with locked(folder):
        # Looked at again: another process may have just finished with it.
        owner = _check_owner(folder, head, replace)
        with os_error_as_input_error(folder):
            for path in folder.iterdir():
                if _LEFTOVER.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
                    path.unlink(missing_ok=True)
            same = owner is not None and all(owner[key] == head[key] for key in ("fingerprint", "shard_events"))
            files = _listed_shards(folder, n_parts(head)) if same else {}
            _remove_other_shards(folder, files)
            writer = TableWriter(folder, head, Checksums(folder, files))
            writer.checksums.write()
            write_json(folder / CATALOGUE_FILE, head)
        yield writer


@contextmanager
def os_error_as_input_error(folder: Path) -> Iterator[None]:
    """Tell in one line that a table cannot be written (full disk, no permission)."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error}): what is finished is kept") from None


def _check_owner(folder: Path, head: dict[str, Any], replace: bool) -> dict[str, Any] | None:
    """Return the head of the table that is there, if any, after making sure that the folder may be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: expected the folder of a feature table")
    head_there = read_head(folder)
    if head_there is None:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if names and not (LOCK_FILE in names and all(_OUR_FILE.fullmatch(name) for name in names)):
            raise InputError(f"{folder} exists and is not a feature table: choose another folder or remove it")
    elif not replace and head_there["dataset_fingerprint"] != head["dataset_fingerprint"]:
        raise InputError(f"{folder} holds the features of another dataset: choose another folder or remove it")
    return head_there


def _listed_shards(folder: Path, parts: int) -> dict[str, tuple[int, str]]:
    """Return the checksums of the shards that are listed and there, at full length."""
    try:
        files = Checksums.open(folder).files
    except InputError:
        return {}
    shards = (part_path(folder, k) for k in range(parts))
    return {
        path.name: files[path.name]
        for path in shards
        if path.name in files and path.is_file() and path.stat().st_size == files[path.name][0]
    }


def _remove_other_shards(folder: Path, shards: dict[str, tuple[int, str]]) -> None:
    """Remove shards that no longer fit; the head goes first: a half-removed table is never taken as complete."""
    (folder / CATALOGUE_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if re.fullmatch(_SHARD, path.name) and path.name not in shards:
            path.unlink()


SHARD_EVENTS = 16_384
"""Events per shard on a CPU: what is lost at most by an interruption, and what a worker is handed at once."""
FEW_EVENTS = SHARD_EVENTS // 2
"""So few need no process of their own, whose start takes as long as their features."""
MOST_THREADS = 4
"""A third of the work holds the interpreter's lock, for which more threads would wait: then processes do it."""
GPU_SHARD_EVENTS = 262_144
WRITERS = 2
"""Threads that write shards of a GPU, which is faster than one; each holds some 0.6 GB."""


def build_table(
    dataset: str | Path,
    out: str | Path | None = None,
    *,
    elsewhere: str | Path | None = None,
    groups: Iterable[str] | None = None,
    ctx: Context = Context(),
    apart: bool = False,
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
    groups
        Feature groups, by default all.
    ctx
        Device, progress, and threads (``workers``; one a core; processes where these are many), or a cluster's
        ``scheduler``.
    apart
        Whether another process computes the shards of more than :data:`FEW_EVENTS`: what libraries keep of the memory
        ends with it.

    Raises
    ------
    InputError
        For a bad dataset or one without events, an unknown group, a device that is not there, or a folder that holds
        something else, is being written by another process or cannot be written.
    """
    if ctx.scheduler and ctx.device == "cuda":
        raise InputError("option scheduler: a cluster computes features on CPUs: leave --device out")
    device = "cpu" if ctx.scheduler else resolve_device(ctx.device)
    chosen = check_groups(GROUPS if groups is None else groups)
    # Before the data are read: a dataset that changes from here on is noticed.
    state = state_of(Path(dataset))
    data = Dataset.open(dataset, labels=False)
    if not len(data):
        raise InputError(f"{dataset} holds no events")
    if groups is not None and TIMES in chosen and data.times_ns is None:
        raise InputError(
            f"{dataset} has no {ARRIVAL_FILE}: the features of the group {TIMES} are made of arrival times"
        )
    with ctx.bars(f"reading {data.path.name}", "files") as progress:
        source = Source(data.path, data.fingerprint(progress), state)
    folder = Path(out) if out else default_path(Path(dataset))
    head = _head(data, chosen, source.fingerprint, device)
    if out is None and elsewhere and not _is_finished(folder, head) and not _can_be_written(folder):
        folder = Path(elsewhere)
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not _is_finished(folder, head):
        with opened_for_writing(folder, head, replace=out is None) as writer:
            _make_missing_shards(writer, source, tuple(sorted(chosen)), device, ctx, apart=apart)
            writer.finish()
    table = FeatureTable.open(folder)
    remark(LOG, table.remarks)
    return table


def _can_be_written(folder: Path) -> bool:
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)


def table_fingerprint(data: Dataset, groups: frozenset[str], dataset_fingerprint: str) -> str:
    """Return the hash of dataset, versions of the features and columns that decides whether a table can be reused."""
    content = [
        dataset_fingerprint,
        str(FEATURES_VERSION),
        *installed_versions("showerstack.features"),
        *columns_of(data, groups),
    ]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _head(data: Dataset, groups: frozenset[str], dataset_fingerprint: str, device: str) -> dict[str, Any]:
    columns = [asdict(CATALOGUE[name]) for name in columns_of(data, groups)]
    for column in columns:
        # Strict JSON knows no infinity: an open end of the range is null.
        column.update({end: None for end in ("low", "high") if not np.isfinite(column[end])})
    return {
        "complete": False,
        "fingerprint": table_fingerprint(data, groups, dataset_fingerprint),
        "dataset_fingerprint": dataset_fingerprint,
        "features_version": FEATURES_VERSION,
        "versions": versions(),
        "n_events": len(data),
        "shard_events": GPU_SHARD_EVENTS if device == "cuda" else SHARD_EVENTS,
        "device": device,
        "groups": sorted(groups if data.times_ns is not None else groups - {TIMES}),
        "columns": columns,
    }


def _is_finished(folder: Path, head: dict[str, Any]) -> bool:
    """Return whether the table is there; one that lacks a file is not."""
    head_there = read_head(folder)
    if head_there is None or not head_there["complete"] or head_there["fingerprint"] != head["fingerprint"]:
        return False
    try:
        FeatureTable.open(folder)
    except InputError:
        return False
    return True


def _make_missing_shards(
    writer: TableWriter, source: Source, groups: tuple[str, ...], device: str, ctx: Context, *, apart: bool
) -> None:
    missing, shard_events, total = writer.missing(), writer.head["shard_events"], writer.head["n_events"]
    done = total - sum(_shard_length(k, shard_events, total) for k in missing)
    jobs = min(ctx.workers or cores(), max(len(missing), 1))
    with ctx.bars("features", "events") as progress, limited_threads(1):
        progress(done, total)
        if device == "cuda":
            written = in_own_process(_shards_from_gpu, missing, source, writer.folder, shard_events, groups)
        elif ctx.scheduler and missing:
            # Workers have working directories of their own.
            path, folder = source.path.resolve(), writer.folder.resolve()
            tasks = [(k, source._replace(path=path), folder, shard_events, groups) for k in missing]
            written = spread_over(ctx.scheduler, write_shard, tasks, [path, folder])
        else:
            arguments = [(k, source, writer.folder, shard_events, groups) for k in missing]
            if jobs > MOST_THREADS:
                written = in_processes(write_shard, arguments, workers=jobs)
            elif apart and total > FEW_EVENTS and missing and not current_process().daemon:
                written = in_own_process(_shards_by_threads, arguments, jobs)
            else:
                written = _shards_by_threads(arguments, jobs)
        for number, n_bytes, digest in written:
            writer.add(number, n_bytes, digest)
            done += _shard_length(number, shard_events, total)
            progress(done, total)


def _shard_length(number: int, shard_events: int, total: int) -> int:
    return min(total - number * shard_events, shard_events)


def _shards_by_threads(arguments: Sequence[tuple[Any, ...]], jobs: int) -> Generator[Any, None, None]:
    if jobs > 1:
        warm_up()
    yield from in_threads(write_shard, arguments, workers=jobs)


def _shards_from_gpu(
    numbers: Sequence[int], source: Source, folder: Path, shard_events: int, groups: tuple[str, ...]
) -> Iterator[Written]:
    """Compute shards on the GPU one after the other, while threads make files of those before."""
    state = state_of(source.path)
    data = _open_unchanged(source, state)
    parts = [slice(k * shard_events, min((k + 1) * shard_events, len(data))) for k in numbers]
    tables = compute_parts(data, parts, frozenset(groups), "cuda")
    files = (
        (number, part.start, table, source.path, state, folder)
        for number, part, table in zip(numbers, parts, tables, strict=True)
    )
    yield from in_threads(_write, files, workers=WRITERS)


def write_shard(number: int, source: Source, folder: Path, shard_events: int, groups: tuple[str, ...]) -> Written:
    """Compute and write one shard atomically on the CPU; opens the dataset itself, so it runs anywhere."""
    state = state_of(source.path)
    data = _open_unchanged(source, state)
    start = number * shard_events
    stop = min(start + shard_events, len(data))
    table = partial(compute_rows, data, start, stop, frozenset(groups))
    return _write(number, start, table, source.path, state, folder)


class Written(NamedTuple):
    """A shard on disk."""

    number: int
    n_bytes: int
    digest: str
    """SHA-256."""


def _write(
    number: int,
    start: int,
    columns: Callable[[], pl.DataFrame],
    dataset: Path,
    state: tuple[FileState, ...],
    folder: Path,
) -> Written:
    """Write the shard that begins with event ``start``, if the dataset's files are still those of ``state``."""
    table = columns()
    if state_of(dataset) != state:
        raise InputError(f"{dataset} changed while its features were computed: start again")
    event = pl.Series(EVENT_COLUMN, np.arange(start, start + len(table), dtype=np.uint32))
    content = io.BytesIO()
    table.insert_column(0, event).write_parquet(content, compression="lz4", statistics=False)
    with os_error_as_input_error(folder), atomic_path(part_path(folder, number)) as temporary:
        temporary.write_bytes(content.getbuffer())
    return Written(number, content.getbuffer().nbytes, hashlib.sha256(content.getbuffer()).hexdigest())


class Source(NamedTuple):
    """A dataset as it was when its features were asked for."""

    path: Path
    fingerprint: str
    state: tuple[FileState, ...]
    """States of its files; see :func:`showerstack.showers.dataset.state_of`."""


@lru_cache(maxsize=4)
def _open_unchanged(source: Source, stamp: tuple[FileState, ...]) -> Dataset:
    data = Dataset.open(source.path, labels=False)
    # Files seen from another machine may carry other stamps, so only the content tells.
    if stamp != source.state and data.fingerprint() != source.fingerprint:
        raise InputError(f"{source.path} changed while its features were computed: start again")
    return data
