"""Which showers dataset folders hold: whether two of them share some, and whether one is a part of what was written.

Showers are known by their reconstructed quantities, rounded to float16, in copies, parts and larger sets alike: two
different ones have the same five once in some 10^12 pairs. Sets without all of them are compared by their deposits,
rounded alike. Where both sets have event times, those must be equal as well, to the second. Of a set that is gone, and
of showers that were thrown at several cores, ``source.json`` tells: seed, world, model and blocks of primaries, or the
digests of CORSIKA's files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import FileState
from showerstack.showers.dataset import SCAN_EVENTS, Chunk, Dataset, state_of
from showerstack.showers.schema import SCALAR_NAMES, SIMULATION, TIMES_FILE
from showerstack.showers.writer import BLOCKS, EVENTS

CORSIKA = "corsika"
"""Entry of ``source.json`` on CORSIKA's files."""
LEAST_CELLS = 4
"""Events with fewer signals have too few deposits to be known by."""
STREAM = ("task", "split", "seed", "model", "settings_hash")
"""Entries of ``source.json`` that fix the showers of all blocks of primaries; cuts and reuse choose among them."""
CHANCE_ROWS, CHANCE_SHARE = 3, 1e-4
"""So many rows, and such a share of the smaller set, may be equal by chance."""


def shared_showers(a: Dataset, b: Dataset) -> str | None:
    """Return in words which showers two sets share, None where they share none."""
    return _thrown_again(a.source, b.source) or next((words for *_, words in _equal_rows([a, b])), None)


def _thrown_again(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return the same of sets whose showers were thrown at several cores, where rows differ."""
    return _same_files(a, b) or (same_blocks(a, b) if a.get("reuse", 1) != 1 else None)


def _same_files(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return in words which CORSIKA files two sets share by their digests; None where they share none."""
    files, others = (dict(source.get(CORSIKA, {}).get("files", {})) for source in (a, b))
    shared = [name for name, digest in files.items() if digest in others.values()]
    if not shared:
        return None
    more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
    return f"both hold the showers of {shared[0]}{more}"


def same_blocks(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return in words which blocks two sets share by what ``source.json`` says; None where they share none."""
    streams = [_stream(source) for source in (a, b)]
    if streams[0] is None or streams[0] != streams[1]:
        return None
    (first, last), (other_first, other_last) = _blocks(a), _blocks(b)
    if max(first, other_first) > min(last, other_last):
        return None
    return f"both hold showers of seed {a['seed']} of the same simulation, from the same blocks of primaries"


def _stream(source: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what fixes the showers of a set; None where it was not written by the simulation itself."""
    if source.get("generator") != SIMULATION or any(name not in source for name in STREAM) or "raw" in source:
        return None
    return tuple(json.dumps(source.get(name)) for name in (*STREAM, "rare"))


def _blocks(source: Mapping[str, Any]) -> tuple[float, float]:
    """Return the first and the last block of primaries; all of a set that does not say."""
    blocks = source.get(BLOCKS)
    return (float(blocks[0]), float(blocks[1])) if isinstance(blocks, list) and len(blocks) == 2 else (0.0, math.inf)


def _equal_rows(sets: Sequence[Dataset]) -> Iterator[tuple[int, int, str]]:
    """Yield the pairs of sets that have rows in common by more than chance, and how many, in words."""
    complete = all(set(SCALAR_NAMES) <= set(data.quantities) for data in sets)
    hashes = [_row_hashes(data.path, state_of(data.path), deposits=not complete) for data in sets]
    owner = np.repeat(np.arange(len(sets)), [len(rows) for rows in hashes])
    every = np.concatenate([np.zeros(0, np.uint64), *hashes])
    order = np.argsort(every, kind="stable")
    same = every[order][1:] == every[order][:-1]
    pairs = np.column_stack([owner[order][:-1][same], owner[order][1:][same]])
    for (a, b), n in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
        chance = max(CHANCE_ROWS, CHANCE_SHARE * min(len(hashes[a]), len(hashes[b])))
        if n > chance and all(sets[k].files.has(TIMES_FILE) for k in (a, b)):
            one, other = (
                _row_hashes(sets[k].path, state_of(sets[k].path), timed=True, deposits=not complete) for k in (a, b)
            )
            n = len(np.intersect1d(one, other, assume_unique=True))
        if n > chance:
            yield int(a), int(b), f"{n:,} showers are in both"


@lru_cache(maxsize=4)
def _row_hashes(
    folder: Path, state: tuple[FileState, ...], *, timed: bool = False, deposits: bool = False
) -> np.ndarray:
    """Return a number for each different shower by its reconstructed quantities, or its deposits (and its second).

    Sorted uint64.
    """
    dataset = Dataset.open(folder, labels=False)
    with np.errstate(over="ignore"):
        if deposits:
            numbers = np.concatenate([np.zeros((0, 2), np.uint64), *map(_numbers_of, dataset.chunks(SCAN_EVENTS))])
            known = numbers[:, 1] >= LEAST_CELLS
            table = pl.DataFrame({"deposits": numbers[known, 0]})
        else:
            values = np.asarray(dataset.scalars[:, : len(SCALAR_NAMES)]).astype(np.float16)
            known = np.asarray(np.isfinite(values).all(axis=1))
            table = pl.DataFrame(np.ascontiguousarray(values[known]).view(np.uint16))
    if timed:
        table = table.with_columns(second=np.floor(dataset.files.times()[known]))
    return np.unique(table.hash_rows().to_numpy())


def _numbers_of(chunk: Chunk) -> np.ndarray:
    """Return a number for each event by its deposits as float16, and how many there are, (n, 2) uint64."""
    grids = np.asarray(chunk.matrices).astype(np.float16).reshape(len(chunk.matrices), -1)
    factors = np.random.default_rng(0).integers(1, 2**64 - 1, grids.shape[1], np.uint64)
    # Overflow is meant: sums modulo 2^64.
    bits = np.ascontiguousarray(grids).view(np.uint16).astype(np.uint64)
    return np.column_stack([bits @ factors, (grids > 0).sum(axis=1).astype(np.uint64)])


def refuse_shared(sets: Sequence[tuple[str, Dataset]]) -> None:
    """Refuse sets, each with the option that gave it, of which two share showers: these would count twice."""
    of_blocks = (
        (j, k, words) for k in range(len(sets)) for j in range(k)
        if (words := _thrown_again(sets[j][1].source, sets[k][1].source))
    )  # fmt: skip
    found = next(of_blocks, None) or next(_equal_rows([dataset for _, dataset in sets]), None)
    if found is None:
        return
    (one, a), (other, b) = (sets[place] for place in found[:2])
    raise InputError(
        f"{one} {a.path} and {other} {b.path} hold the same showers ({found[2]}), which would count twice: give each "
        "shower once"
    )


def refuse_part(dataset: Dataset) -> None:
    """Refuse a set that has not as many events as were written into it: the primaries behind a part are not known."""
    written = dataset.source.get(EVENTS)
    if written is not None and written != len(dataset):
        raise InputError(
            f"{dataset.path} holds {len(dataset):,} events, {written:,} were written (source.json): nobody can tell "
            "how many primaries are behind a part of a set; give the whole set, or simulate one of that size"
        )
