"""Turn the raw simulation files into dataset folders of either protocol.

Archives are read as streams, so that memory holds a few thousand events' grids. Both protocols' splits of the public
files are reproduced to the letter; since raw files tell which events are the same simulated shower thrown at other core
positions, ``groups.npy`` is written too and ``source.json`` counts the showers that the protocol's own split spreads
over train and test. Archives of the embedded simulation stay marked as such, and their showers are kept together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showers import cuts
from showers.archives.raw import MODES, RAW_COLUMNS, TRUE_COLUMNS, Archives, common_source
from showers.archives.splits import Split, split_matched, split_v2
from showers.datasets.event_files import check_cells
from showers.datasets.integrity import already_made
from showers.datasets.writer import CONVERSION, write_dataset
from showers.execution.progress import Bars, Progress, silent
from showers.execution.source_hash import source_hash
from showers.schema import GAMMA, InputError, Task

SCALAR_COLUMNS = (1, 5, 6, 7, 8)
"""E, Ze, Az, Ne, Nmu among the raw columns."""
SHOWER_COLUMNS = ("E", "Ze", "Az", "Ne", "Nmu")
"""True quantities that are equal when the same shower is used again at another core position."""
THROWN_COLUMNS = ("E", "Xc", "Yc", "Ze", "Az")
"""True quantities of a primary before anything happens to it."""
MAX_COPIES = 0.01
"""Share of a mode's showers that may agree with another mode's in all of these by chance or rounding."""

COMPOSITION_IDS = (14, 402, 1206, 2814, 5626)
"""CORSIKA numbers of p, He, C, Si, Fe."""
GAMMA_ID = 1

RANGES = {"E": (10.0, 22.0), "Ze": (0.0, 90.0), "Az": (-360.0, 360.0), "Ne": (0.0, 12.0), "Nmu": (0.0, 12.0)}
"""Where reconstructed quantities of air showers can lie; others are in other units, or damaged."""


@dataclass(frozen=True)
class RawEvents:
    """All events of a protocol's modes, but for the grids."""

    archives: list[Archives]
    features: np.ndarray
    """(N, 10) as in :data:`showers.archives.raw.RAW_COLUMNS`."""
    labels: np.ndarray
    """(N,) int8."""
    groups: np.ndarray
    """(N,) int64: the first row with the same true shower."""

    def place(self, row: int) -> tuple[Path, int]:
        """Return the file of reconstructed quantities that holds a row, and its row there."""
        for archives in self.archives:
            if row < archives.n_events:
                return archives.path("features"), row
            row -= archives.n_events
        raise IndexError(row)


def convert(raw: Path, out: Path, task: Task, *, protocol: str = "v2", bars: Bars = silent) -> list[Path]:
    """Write the dataset folders of a protocol from raw NPZ files.

    A folder that was made from the same archives by the same code is kept: an interrupted conversion is finished by
    starting it again.

    Parameters
    ----------
    raw
        Folder with ``{mode}_matrices.npz``, ``{mode}_features.npz`` and ``{mode}_true_features.npz``.
    out
        Gets ``{task}_train`` and ``{task}_test``.
    task
        Composition or gamma.
    protocol
        ``v2`` (labels from the true particle, float16 scalars, no age) or ``matched`` (QGSJet only, labels from the
        first raw column, float32 scalars, age).

    Returns
    -------
    list of Path
        The folders written.

    Raises
    ------
    InputError
        For an unknown combination; archives that are missing, malformed or were not made together; unknown particles;
        quantities out of range; cells that are not valid; folders that hold something else; or a full disk.
    """
    try:
        modes = MODES[protocol, task.name]
    except KeyError:
        known = ", ".join(f"{p} {t}" for p, t in MODES)
        raise InputError(f"no protocol {protocol!r} for task {task.name!r}: there are {known}") from None
    archives = [Archives.open(raw, mode) for mode in modes]
    origin = common_source(archives)
    features = [archive.read("features") for archive in archives]
    truth = [archive.read("true_features") for archive in archives]
    _refuse_copies(archives, truth)
    labels = np.concatenate([_labels(task, protocol, *each) for each in zip(archives, features, truth, strict=True)])
    events = RawEvents(archives, np.concatenate(features), labels, _groups(np.concatenate(truth)))
    split_by = split_matched if protocol == "matched" else split_v2
    splits = split_by(task, events.features, events.groups, together=origin is not None)
    straddling = int(np.intersect1d(*(events.groups[split.rows] for split in splits)).size)
    wanted = []
    for split in splits:
        folder = out / split.folder
        _check_scalars(events, split.rows)
        source = {
            "generator": CONVERSION,
            **(origin or {}),
            "code": conversion_code_version(),
            "raw": hashlib.sha256("\n".join(archive.digest for archive in archives).encode()).hexdigest(),
            "task": task.name,
            "protocol": protocol,
            "modes": list(modes),
            "split": split.folder.rsplit("_", 1)[1],
            "evaluation_cuts": cuts.MATCHED.name if protocol == "matched" else cuts.TEST.name,
            "age": protocol == "matched",
            "showers_in_both_splits": straddling,
        }
        made = already_made(folder, len(split.rows), task, source, advice="choose another folder or remove it")
        wanted.append((folder, split, source, made))
    for folder, split, source, made in wanted:
        if not made:
            with bars(f"writing {split.folder}", "events") as progress:
                _write(folder, task, events, split, source, progress)
    return [folder for folder, *_ in wanted]


@cache
def conversion_code_version() -> str:
    """Return a hash of the code that conversion consists of."""
    here = Path(__file__).parent
    files = [*(here / name for name in ("convert.py", "splits.py", "raw.py")), here.parent / "cuts.py"]
    return source_hash(files, ("numpy", "torch"))


def _labels(task: Task, protocol: str, archives: Archives, features: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return (N,) int8 class numbers of one mode: from the first raw column (matched), else from the true particle."""
    kind, column, values = "true_features", "id", truth[:, TRUE_COLUMNS.index("id")]
    numbers: tuple[int, ...] = COMPOSITION_IDS
    if protocol == "matched":
        kind, column, values, numbers = "features", "type", features[:, 0], tuple(range(1, task.n_classes + 1))
    if task == GAMMA:
        numbers = (GAMMA_ID, *COMPOSITION_IDS)
    known = np.asarray(numbers, dtype=values.dtype)
    found = values[:, None] == known
    unknown = np.flatnonzero(~found.any(axis=1))
    if unknown.size:
        raise InputError(
            f"{archives.path(kind)}: row {unknown[0]}, column {column} holds {values[unknown[0]]:g}, "
            f"expected one of {', '.join(map(str, numbers))} ({unknown.size} bad rows)"
        )
    return np.minimum(found.argmax(axis=1), task.n_classes - 1).astype(np.int8)


def _check_scalars(events: RawEvents, rows: np.ndarray) -> None:
    """Refuse quantities that are not finite or not an air shower's, in the rows that are written."""
    for name, (low, high) in RANGES.items():
        values = events.features[rows, RAW_COLUMNS.index(name)]
        bad = np.flatnonzero(~((values >= low) & (values <= high)))
        if bad.size:
            path, row = events.place(int(rows[bad[0]]))
            raise InputError(
                f"{path}: row {row}, column {name} holds {values[bad[0]]:g}, "
                f"expected a number from {low:g} to {high:g} ({bad.size} bad rows)"
            )


def _refuse_copies(archives: list[Archives], truth: list[np.ndarray]) -> None:
    """Refuse modes that hold the same showers: the splits would put a shower into train and its copy into test."""
    columns = [TRUE_COLUMNS.index(name) for name in THROWN_COLUMNS]
    thrown = [pl.DataFrame(values[:, columns], schema=THROWN_COLUMNS) for values in truth]
    for later, earlier in combinations(reversed(range(len(archives))), 2):
        copies = thrown[later].join(thrown[earlier], on=THROWN_COLUMNS, how="semi").height
        if copies > MAX_COPIES * thrown[later].height:
            raise InputError(
                f"{archives[later].path('true_features')}: {copies} of {thrown[later].height} showers are thrown "
                f"exactly as in {archives[earlier].mode}: an earlier simulation copied them; simulate again"
            )


def _groups(truth: np.ndarray) -> np.ndarray:
    """(N,) int64: the first row that has the same true shower."""
    frame = pl.DataFrame({name: truth[:, TRUE_COLUMNS.index(name)] for name in SHOWER_COLUMNS})
    first = frame.with_row_index("row").select(pl.col("row").first().over(SHOWER_COLUMNS))
    return first.to_series().to_numpy().astype(np.int64)


def _write(
    folder: Path, task: Task, events: RawEvents, split: Split, source: Mapping[str, Any], progress: Progress
) -> None:
    with_age = bool(source["age"])
    extras: dict[str, type] = {"groups": np.int64}
    extras |= {"age": np.float32} if with_age else {}
    extras |= {"part": np.int8} if split.part is not None else {}
    scalar_type = np.float32 if with_age else np.float16
    features = events.features
    with write_dataset(folder, len(split.rows), task, source=source, extras=extras, scalar_type=scalar_type) as writer:
        start = done = 0
        for archives in events.archives:
            mode_start = start
            for block in archives.stream("matrices"):
                with np.errstate(over="ignore"):
                    grids = block[..., 1:].astype(np.float16)
                check_cells(grids, archives.path("matrices"), start - mode_start)
                first, last = np.searchsorted(split.rows, [start, start + len(block)])
                rows = split.rows[first:last]
                values: dict[str, Any] = {"groups": events.groups[rows]}
                values |= {"age": features[rows, RAW_COLUMNS.index("Age")]} if with_age else {}
                values |= {"part": split.part[first:last]} if split.part is not None else {}
                writer.put(done, grids[rows - start], features[rows][:, SCALAR_COLUMNS], events.labels[rows], **values)
                start += len(block)
                done += len(rows)
                progress(start, len(features))
