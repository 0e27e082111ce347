"""Turn the raw simulation files into dataset folders of one of the protocols.

Archives are read as streams, so that memory holds a few thousand events' grids. The protocols' splits of the public
files are reproduced to the letter; since raw files tell which events are the same simulated shower thrown at other core
positions, ``groups.npy`` is written too and ``source.json`` counts the showers that the protocol's own split spreads
over train and test. Archives of the embedded simulation stay marked as such, and their showers are kept together.

The raw files hold the classes in blocks, so that a row's number tells the class: rows are shuffled. ``order.npy`` says
which row of the published file each event is, so that predictions can be handed in in the published order.

How the protocols divide raw events into training and test sets, reproduced to the letter.

Published splits know nothing of showers that were thrown several times: with ``together`` all events of a shower go
where its first one goes, which is how archives of the embedded simulation are divided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from runtime.code import source_hash
from runtime.context import Bars, Progress, silent
from runtime.errors import InputError
from showers import protocols
from showers.archives.raw import RAW_COLUMNS, TRUE_COLUMNS, SimulatedReader, common_source
from showers.event_files import check_cells, check_true
from showers.protocols import CUTS_FOR_ALL, LABELS_FROM_TYPE, Layout, layout_of, modes_of
from showers.schema import COMPOSITION, GAMMA, TargetQuantity, Task
from showers.writer import CONVERSION, already_made, write_dataset


@dataclass(frozen=True)
class Split:
    """Rows of the concatenated raw files that one folder gets, in the order of the published files."""

    folder: str
    rows: np.ndarray
    part: np.ndarray | None = None
    """Of each row: 0 train, 1 validation (matched protocol's training set)."""

    @property
    def name(self) -> str:
        """``train`` or ``test``."""
        return self.folder.rsplit("_", 1)[1]


def _frame(features: np.ndarray) -> pl.DataFrame:
    """Raw columns at their own precision: the protocols cut before they round."""
    return pl.DataFrame({name: features[:, k].astype(np.float32) for k, name in enumerate(RAW_COLUMNS)})


def split_v2(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """First fifth of a shuffle is the test set, and only there the cuts apply."""
    n = len(features)
    order = np.arange(n)
    np.random.default_rng(2026).shuffle(order)
    in_test = np.zeros(n, dtype=bool)
    in_test[order[: int(0.2 * n)]] = True
    if together:
        in_test = in_test[groups]
    passed = protocols.TEST_WITH_AGE.mask(_frame(features))
    return [
        Split(f"{task.name}_train", np.flatnonzero(~in_test)),
        Split(f"{task.name}_test", np.flatnonzero(in_test & passed)),
    ]


def split_2026(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """One seeded permutation, whose order the published files keep; composition is cut before it, gamma's test after.

    Gamma's split is published in words (80 to 20, seed 2026); its rounding is taken from composition's.
    """
    frame = _frame(features)
    if task.primaries == COMPOSITION.name:
        rows, share, seed = np.flatnonzero(protocols.MATCHED.mask(frame)), 0.7, 42
    else:
        rows, share, seed = np.arange(len(features)), 0.8, 2026
    order = _permutation(len(rows), seed)
    n_test = int(len(rows) * (1 - share))  # 1 - 0.7 is a little more than 0.3 in floating point, 1 - 0.8 a little less
    in_test = np.zeros(len(rows), dtype=bool)
    in_test[order[len(rows) - n_test :]] = True
    if together:
        in_test = _with_first(in_test, groups[rows])
    train, test = rows[order[~in_test[order]]], rows[order[in_test[order]]]
    if task != COMPOSITION:
        test = test[protocols.TEST_WITH_AGE.mask(frame[test])]
    return [Split(f"{task.name}_train", train), Split(f"{task.name}_test", test)]


def _with_first(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Give all events of a shower (n,) the value of its first one."""
    _, first, shower = np.unique(groups, return_index=True, return_inverse=True)
    return values[first[shower]]


def _permutation(n: int, seed: int) -> np.ndarray:
    import torch  # the published splits are defined by torch's generator

    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


def split_matched(task: Task, features: np.ndarray, groups: np.ndarray, *, together: bool) -> list[Split]:
    """Cuts first; then two seeded permutations cut off validation and test."""
    passing = np.flatnonzero(protocols.MATCHED.mask(_frame(features)))
    n_held = int(0.3 * len(passing))
    held = _permutation(len(passing), 42)[len(passing) - n_held :]
    part = np.zeros(len(passing), dtype=np.int8)  # 0 train, 1 validation, 2 test
    part[held] = 1
    part[held[_permutation(n_held, 42)[n_held - int(0.3 * n_held) :]]] = 2
    if together:
        part = _with_first(part, groups[passing])
    return [
        Split(f"{task.name}_train", passing[part < 2], part[part < 2]),
        Split(f"{task.name}_test", passing[part == 2]),
    ]


SPLITS: dict[str, Callable[..., list[Split]]] = {"v2": split_v2, "matched": split_matched, "2026": split_2026}
"""By protocol."""


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
PROTON_ID = 14
TRUE_QUANTITIES = {
    "lg_energy": "E", "core_x_m": "Xc", "core_y_m": "Yc", "zenith_deg": "Ze", "azimuth_deg": "Az", "lg_ne": "Ne",
    "lg_nmu": "Nmu",
}  # fmt: skip
"""Columns of ``truth.parquet`` and the raw true quantities that they are."""

RANGES = {"E": (10.0, 22.0), "Ze": (0.0, 90.0), "Az": (-360.0, 360.0), "Ne": (0.0, 12.0), "Nmu": (0.0, 12.0)}
"""Where reconstructed quantities of air showers can lie; others are in other units, or damaged."""


@dataclass(frozen=True)
class RawEvents:
    """All events of a protocol's modes, but for the grids."""

    archives: list[SimulatedReader]
    features: np.ndarray
    """(N, 10) as in :data:`showers.archives.raw.RAW_COLUMNS`."""
    labels: np.ndarray
    """(N,) int8 class numbers, or float32 true values of a target."""
    groups: np.ndarray
    """(N,) int64: the first row with the same true shower."""
    truth: np.ndarray
    """(N, 10) as in :data:`showers.archives.raw.TRUE_COLUMNS`."""

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
        One of :data:`showers.schema.TASKS`.
    protocol
        ``v2`` (labels from the true particle, float16, no age), ``matched`` (QGSJet only, labels from the first raw
        column, float32 scalars, age) or ``2026`` (split otherwise, float32; composition: as matched, the age among the
        scalars; gamma: as v2).

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
    modes, layout = modes_of(protocol, task), layout_of(protocol, task)
    archives = [SimulatedReader.open(raw, mode) for mode in modes]
    origin = common_source(archives)
    features = [archive.read("features") for archive in archives]
    truth = [archive.read("true_features") for archive in archives]
    _refuse_copies(archives, truth)
    labels = np.concatenate([_labels(task, protocol, *each) for each in zip(archives, features, truth, strict=True)])
    what_happened = np.concatenate(truth)
    events = RawEvents(archives, np.concatenate(features), labels, _groups(what_happened), what_happened)
    splits = SPLITS[protocol](task, events.features, events.groups, together=origin is not None)
    straddling = int(np.intersect1d(*(events.groups[split.rows] for split in splits)).size)
    digest = hashlib.sha256("\n".join(archive.digest for archive in archives).encode()).hexdigest()
    wanted = []
    for split in splits:
        folder = out / split.folder
        _check_scalars(events, split.rows)
        source = {
            "generator": CONVERSION,
            **(origin or {}),
            "code": conversion_code_version(),
            "raw": digest,
            "task": task.name,
            "protocol": protocol,
            "modes": list(modes),
            "split": split.name,
            "evaluation_cuts": CUTS_FOR_ALL.get((protocol, str(task.primaries)), protocols.TEST.name),
            "age": layout.age != "none",
            "showers_in_both_splits": straddling,
        }
        made = already_made(folder, len(split.rows), task, source, advice="choose another folder or remove it")
        wanted.append((folder, split, source, made))
    for folder, split, source, made in wanted:
        if not made:
            with bars(f"writing {split.folder}", "events") as progress:
                _write(folder, task, events, split, source, layout, progress)
    return [folder for folder, *_ in wanted]


@cache
def conversion_code_version() -> str:
    """Return a hash of the code that conversion consists of."""
    here = Path(__file__).parent
    files = [*(here / name for name in ("convert.py", "raw.py"))]
    files.append(here.parent / "protocols.py")
    return source_hash(files, ("numpy", "torch"))


def _labels(
    task: Task, protocol: str, archives: SimulatedReader, features: np.ndarray, truth: np.ndarray
) -> np.ndarray:
    """Return the labels (N,) of one mode.

    int8 class numbers from the first raw column or the true particle; float32 true values where the task has a target.
    """
    if task.target:
        return _true_values(task.target, archives, truth)
    kind, column, values = "true_features", "id", truth[:, TRUE_COLUMNS.index("id")]
    numbers: tuple[int, ...] = COMPOSITION_IDS
    if (protocol, task.name) in LABELS_FROM_TYPE:
        kind, column, values, numbers = "features", "type", features[:, 0], tuple(range(1, task.n_classes + 1))
    if task.primaries == GAMMA.name:
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


def _true_values(target: TargetQuantity, archives: SimulatedReader, truth: np.ndarray) -> np.ndarray:
    if target.raw is None:
        raise InputError(f"{archives.path('true_features')} has no column for {target.meaning}")
    values = truth[:, TRUE_COLUMNS.index(target.raw)].astype(np.float32)
    check_true(values, target, archives.path("true_features"))
    return values


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


def _refuse_copies(archives: list[SimulatedReader], truth: list[np.ndarray]) -> None:
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
    folder: Path,
    task: Task,
    events: RawEvents,
    split: Split,
    source: Mapping[str, Any],
    layout: Layout,
    progress: Progress,
) -> None:
    """Write one folder: columns at once, grids as the archives give them, each to its shuffled place."""
    order = shuffled(len(split.rows), f"{source['raw']} {source['protocol']} {split.folder}")
    rows = split.rows[order]
    features = events.features
    values: dict[str, Any] = {"groups": _renumbered(events.groups, str(source["raw"]))[rows], "order": order}
    values |= {"age": features[rows, RAW_COLUMNS.index("Age")]} if layout.age == "file" else {}
    values |= {"part": split.part[order]} if split.part is not None else {}
    kinds = {name: {"age": np.float32, "part": np.int8}.get(name, np.int64) for name in values}
    columns = layout.columns(features[rows][:, SCALAR_COLUMNS], features[rows, RAW_COLUMNS.index("Age")])
    places = np.argsort(rows)
    ascending = rows[places]
    with write_dataset(folder, len(rows), task, source=source, extras=kinds, layout=layout) as writer:
        writer.put(0, None, columns, events.labels[rows], truth=_true_table(events, rows, values["groups"]), **values)
        start = 0
        for archives in events.archives:
            mode_start = start
            for block in archives.stream("matrices"):
                with np.errstate(over="ignore"):
                    grids = block[..., 1:].astype(layout.grid_type)
                check_cells(grids, archives.path("matrices"), start - mode_start)
                first, last = np.searchsorted(ascending, [start, start + len(block)])
                writer.put_grids(places[first:last], grids[ascending[first:last] - start])
                start += len(block)
                progress(start, len(features))


def _true_table(events: RawEvents, rows: np.ndarray, groups: np.ndarray) -> pl.DataFrame:
    """Return ``truth.parquet`` of these rows, in their order."""
    ends = np.cumsum([archives.n_events for archives in events.archives])
    modes = pl.Series("model", [archives.mode for archives in events.archives])
    model = modes.gather(np.searchsorted(ends, rows, side="right"))
    return true_quantities(events.truth[rows]).with_columns(model, pl.Series("shower", groups))


def true_quantities(truth: np.ndarray) -> pl.DataFrame:
    """Return the true quantities of raw files (n, 10) by our names; infinite values count as unknown."""
    columns = {name: truth[:, TRUE_COLUMNS.index(raw)].astype(np.float32) for name, raw in TRUE_QUANTITIES.items()}
    columns = {name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    ids = np.nan_to_num(truth[:, TRUE_COLUMNS.index("id")]).astype(np.int64)
    # CORSIKA: 14 is a proton, 1 a photon, a nucleus 100 A + Z.
    mass = np.where(ids >= 100, ids // 100, ids == PROTON_ID).astype(np.int16)
    return pl.DataFrame({"particle_id": ids.astype(np.int16), "mass": mass, **columns})


def shuffled(n: int, content: str) -> np.ndarray:
    """Return a permutation (n,) int64 that depends on the content of the files alone."""
    seed = int.from_bytes(hashlib.sha256(content.encode()).digest()[:16], "big")
    return np.random.default_rng(seed).permutation(n).astype(np.int64)


def _renumbered(groups: np.ndarray, content: str) -> np.ndarray:
    """Give every shower (N,) a number that does not follow the raw files' order."""
    return shuffled(len(groups), content)[groups]
