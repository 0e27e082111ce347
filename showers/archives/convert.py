"""Turn the raw simulation files into dataset folders of one of the protocols, with their splits to the letter.

Archives are read as streams, so that memory holds a few thousand events' grids. Raw files tell which events are the
same simulated shower thrown at other core positions: ``groups.npy`` is written, and ``source.json`` counts the showers
that the protocol's own split spreads over train and test. Archives of the embedded simulation stay marked as such; with
``together`` all events of one of their showers go where its first one goes.

The raw files hold the classes in blocks, so that a row's number tells the class: rows of protocols that keep this order
are shuffled. ``order.npy`` says which row of the published file each event is, so that predictions can be handed in in
the published order. Rows of the 2026 protocol are permuted already and stay where they are.

Events that cannot be used (a cell that is no deposit, a quantity that is no air shower's) stay in the arrays, which are
the published ones bit by bit; ``left_out.csv`` names them, and nothing is trained on them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.context import Context, Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import locked
from showerstack.runtime.versions import CONVERSION_VERSION
from showerstack.showers import protocols
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.archives.raw import (
    RAW_COLUMNS,
    TRUE_COLUMNS,
    TRUTH_KIND,
    Archives,
    SimulatedReader,
    archive_path,
    arrival_times,
    common_source,
    sets_in,
)
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import BadValue, bad_cells
from showerstack.showers.kascade import MASS_NUMBERS, PARTICLE_IDS
from showerstack.showers.protocols import (
    LABELS_FROM_TYPE,
    MODES,
    SHUFFLED,
    Layout,
    evaluation_cuts_of,
    layout_of,
    modes_of,
)
from showerstack.showers.schema import AGE, COMPOSITION, CONVERSION, GAMMA, RANGES, Task, task_named
from showerstack.showers.writer import ARRIVAL_STEM, already_made, write_dataset

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Rows of the concatenated raw files that one folder gets, in the order of the published files."""

    folder: str
    rows: np.ndarray
    part: np.ndarray | None = None
    """Of each row: 0 train, 1 validation (matched protocol's training set)."""
    flow: tuple[tuple[str, int], ...] = ()
    """Steps from all raw events to these rows, and the number of events after each."""

    @property
    def name(self) -> str:
        """``train`` or ``test``."""
        return self.folder.rpartition("_")[2]

    def after(self, step: str) -> Split:
        """Return the split with one more step in its flow."""
        return replace(self, flow=(*self.flow, (step, len(self.rows))))


def _raw_frame(features: np.ndarray, kind: type = np.float32) -> pl.DataFrame:
    """Raw columns as a table: the protocols cut before they store, v2 at the raw files' own precision."""
    return pl.DataFrame({name: features[:, k].astype(kind) for k, name in enumerate(RAW_COLUMNS)})


def _flow(cuts: protocols.CutSet, frame: pl.DataFrame) -> tuple[tuple[str, int], ...]:
    return tuple(cuts.flow(frame).items())


def split_v2(task: Task, features: np.ndarray, groups: np.ndarray | None, *, together: bool) -> list[Split]:
    """First fifth of a shuffle is the test set, and only there the cuts apply."""
    n = len(features)
    order = np.arange(n)
    np.random.default_rng(2026).shuffle(order)
    in_test = np.zeros(n, dtype=bool)
    in_test[order[: int(0.2 * n)]] = True
    if together and groups is not None:
        in_test = in_test[groups]
    frame = _raw_frame(features, np.float64)
    passed = protocols.TEST_WITH_AGE.mask(frame)
    share = (("share of the test", int(in_test.sum())),)
    return [
        Split(f"{task.name}_train", np.flatnonzero(~in_test)).after("share of the training"),
        Split(
            f"{task.name}_test",
            np.flatnonzero(in_test & passed),
            flow=share + _flow(protocols.TEST_WITH_AGE, frame.filter(in_test)),
        ),
    ]


def split_2026(task: Task, features: np.ndarray, groups: np.ndarray | None, *, together: bool) -> list[Split]:
    """One seeded permutation, in whose order the files are published; composition is cut before, gamma's test after."""
    frame = _raw_frame(features)
    if task.primaries == COMPOSITION.name:
        rows, share, seed = np.flatnonzero(protocols.MATCHED.mask(frame)), 0.7, 42
        flow = _flow(protocols.MATCHED, frame)
    else:
        rows, share, seed, flow = np.arange(len(features)), 0.8, 2026, ()
    order = permutation(len(rows), seed)
    n_test = int(len(rows) * (1 - share))  # 1 - 0.7 is a little more than 0.3 in floating point, 1 - 0.8 a little less
    in_test = np.zeros(len(rows), dtype=bool)
    in_test[order[len(rows) - n_test :]] = True
    if together and groups is not None:
        in_test = _as_first_event(in_test, groups[rows])
    train = Split(f"{task.name}_train", rows[order[~in_test[order]]], flow=flow).after("share of the training")
    test = Split(f"{task.name}_test", rows[order[in_test[order]]], flow=flow).after("share of the test")
    if task != COMPOSITION:
        cuts, test_frame = protocols.TEST_2026_WITH_AGE, frame[test.rows]
        test = replace(test, rows=test.rows[cuts.mask(test_frame)], flow=test.flow + _flow(cuts, test_frame))
    return [train, test]


def _as_first_event(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Give all events of a shower (n,) the value of its first one."""
    _, first, shower = np.unique(groups, return_index=True, return_inverse=True)
    return values[first[shower]]


def permutation(n: int, seed: int) -> np.ndarray:
    """Return the permutation (n,) int64 by which the splits were published.

    It is ``torch.randperm(n, generator=torch.Generator().manual_seed(seed))``: each place in turn is exchanged with one
    of those from it on, drawn as a 32-bit number of the Mersenne Twister (mt19937, seeded by ``init_genrand``) modulo
    how many they are. For more than 2^32 / 20 events torch draws otherwise.
    """
    if n >= (2**32 - 1) // 20:
        raise InputError(f"{n:,} events: published splits are defined for fewer than {(2**32 - 1) // 20:,}")
    drawn = np.random.RandomState(seed).randint(0, 2**32, max(n - 1, 0), dtype=np.uint32)
    partners = np.arange(n - 1) + drawn % np.arange(n, 1, -1)
    order = list(range(n))
    for k, other in enumerate(partners.tolist()):
        order[k], order[other] = order[other], order[k]
    return np.array(order, dtype=np.int64)


def split_matched(task: Task, features: np.ndarray, groups: np.ndarray | None, *, together: bool) -> list[Split]:
    """Cuts first; then two seeded permutations cut off validation and test."""
    frame = _raw_frame(features)
    passing = np.flatnonzero(protocols.MATCHED.mask(frame))
    flow = _flow(protocols.MATCHED, frame)
    n_set_aside = int(0.3 * len(passing))
    set_aside = permutation(len(passing), 42)[len(passing) - n_set_aside :]
    part = np.zeros(len(passing), dtype=np.int8)  # 0 train, 1 validation, 2 test
    part[set_aside] = 1
    part[set_aside[permutation(n_set_aside, 42)[n_set_aside - int(0.3 * n_set_aside) :]]] = 2
    if together and groups is not None:
        part = _as_first_event(part, groups[passing])
    return [
        Split(f"{task.name}_train", passing[part < 2], part[part < 2], flow).after("share of the training"),
        Split(f"{task.name}_test", passing[part == 2], flow=flow).after("share of the test"),
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

GAMMA_ID, *COMPOSITION_IDS = (PARTICLE_IDS[mass] for mass in (0, *MASS_NUMBERS))
TRUE_QUANTITIES = {
    "lg_energy": "E", "core_x_m": "Xc", "core_y_m": "Yc", "zenith_deg": "Ze", "azimuth_deg": "Az", "lg_ne": "Ne",
    "lg_nmu": "Nmu",
}  # fmt: skip
"""Columns of ``truth.parquet`` and the raw true quantities that they are."""

MAX_UNKNOWN = 0.25
"""Share of a set's events above which unknown classes, or quantities out of range, mean another kind of file."""


@dataclass(frozen=True)
class RawEvents:
    """All events of a protocol's modes, but for the grids."""

    readers: list[SimulatedReader]
    features: np.ndarray
    """(N, 10) as in :data:`showerstack.showers.archives.raw.RAW_COLUMNS`."""
    labels: np.ndarray
    """(N,) int8 class numbers, or float32 true values of a target."""
    known: np.ndarray
    """(N,) bool: whether the label is known."""
    groups: np.ndarray | None
    """(N,) int64: the first row with the same true shower; None without true quantities."""
    truth: np.ndarray | None
    """(N, 10) as in :data:`showerstack.showers.archives.raw.TRUE_COLUMNS`."""

    def locate(self, row: int, kind: str) -> tuple[Path, int]:
        """Return the archive of a kind that holds a row, and its row there."""
        for reader in self.readers:
            if row < reader.n_events:
                return reader.path(kind), row
            row -= reader.n_events
        raise IndexError(row)

    def bad_value(self, row: int, position: int, kind: str, column: str, value: float) -> BadValue:
        """Return why the event of a row, which a folder has at ``position``, cannot be used."""
        path, file_row = self.locate(row, kind)
        return BadValue(position, path.name, column, float(value), file_row)


def convert(
    raw: Path,
    out: Path,
    task: Task,
    *,
    protocol: str = "v2",
    strict: bool = False,
    keep_arrival_times: bool = False,
    ctx: Context = Context(),
) -> list[Path]:
    """Write the dataset folders of a protocol from raw NPZ files.

    A folder that was made from the same archives by the same code is kept: an interrupted conversion is finished by
    starting it again.

    Parameters
    ----------
    raw
        Folder with ``{mode}_matrices.npz``, ``{mode}_features.npz`` and, where there is one,
        ``{mode}_true_features.npz``; without it there are no groups and no truth, and v2 has no labels.
    out
        Gets ``{task}_train`` and ``{task}_test``.
    task
        One of :data:`showerstack.showers.schema.TASKS`.
    protocol
        ``v2`` (labels from the true particle, float16, no age), ``matched`` (QGSJet only, labels from the first raw
        column, float32 scalars, age) or ``2026`` (split otherwise, labels from the first raw column, float32;
        composition has the age among the scalars).
    strict
        Refuse events that cannot be used, instead of listing them in ``left_out.csv``.
    keep_arrival_times
        Also keep the arrival times, in ``arrival_ns.npy``, of which the feature group ``times`` is made.
    ctx
        Progress. Logged are remarks, and as information a line for each folder: how many events were read, were left by
        each cut, and can be used.

    Returns
    -------
    list of Path
        The folders written.

    Raises
    ------
    InputError
        For an unknown combination; archives that are missing, malformed or were not made together; more than a few
        unknown particles or quantities out of range; folders that hold something else; or a full disk.
    """
    modes, layout = modes_of(protocol, task), layout_of(protocol, task)
    lacking = [mode for mode in modes if not any(Path(raw).glob(f"{mode}_*.npz"))]
    if lacking and len(lacking) < len(modes):
        raise InputError(
            f"{raw} has no archives of {', '.join(lacking)}: protocol {protocol} needs {' and '.join(modes)} for "
            f"{task.name}; get them, or choose another --protocol"
        )
    readers = [SimulatedReader.open(raw, mode) for mode in modes]
    origin = common_source(readers)
    events = _read(readers, task, protocol)
    splits = SPLITS[protocol](task, events.features, events.groups, together=origin is not None)
    splits = [_with_labels(task, events, split) for split in splits]
    straddling = None
    if events.groups is not None:
        straddling = int(np.intersect1d(*(events.groups[split.rows] for split in splits)).size)
    digest = hashlib.sha256("\n".join(archive.members for archive in readers).encode()).hexdigest()
    jobs = []
    for split in splits:
        folder = out / split.folder
        source = {
            "generator": CONVERSION,
            **(origin or {}),
            "conversion_version": CONVERSION_VERSION,
            "raw": digest,
            "task": task.name,
            "protocol": protocol,
            "modes": list(modes),
            "split": split.name,
            "evaluation_cuts": evaluation_cuts_of(protocol, task),
            "age": layout.age != "none",
            "showers_in_both_splits": straddling,
        } | ({"arrival_times": True} if keep_arrival_times else {})
        is_made = already_made(folder, len(split.rows), task, source, advice="choose another folder or remove it")
        left_out = _bad_scalars(task, protocol, events, split, strict=strict)
        jobs.append((folder, split, source, left_out, is_made))
    # So that both sets are those of one call.
    with nullcontext() if all(is_made for *_, is_made in jobs) else locked(out, f".{task.name}.lock"):
        for folder, split, source, left_out, is_made in jobs:
            if not is_made:
                with ctx.bars(f"writing {split.folder}", "events") as progress:
                    _write(folder, task, events, split, source, layout, left_out, progress, strict=strict)
    for folder, split, *_ in jobs:
        data = Dataset.open(folder, task)
        unusable = data.describe_unusable()
        if unusable:
            LOG.warning("%s; %s", unusable, CONSEQUENCE[split.name])
        steps = [("read", len(events.features)), *split.flow, ("written", len(data))]
        steps.append(("usable", int(data.usable.sum())))
        LOG.info("%s: %s", split.folder, ", ".join(f"{step} {count:,}" for step, count in steps))
    return [folder for folder, *_ in jobs]


CONSEQUENCE = {
    "train": "they stay in the arrays, and nothing is trained on them",
    "test": "they stay in place and get the training prior",
}
"""Of events that cannot be used, by the set."""


def _read(readers: list[SimulatedReader], task: Task, protocol: str) -> RawEvents:
    """Read everything but the grids."""
    features = [archive.read("features") for archive in readers]
    truth = None
    lacking = [archive.path(TRUTH_KIND) for archive in readers if not archive.has_truth]
    if not lacking:
        truth = [archive.read(TRUTH_KIND) for archive in readers]
        _refuse_copies(readers, truth)
    elif task.target or (protocol, task.name) not in LABELS_FROM_TYPE:
        raise InputError(f"{lacking[0]} is missing: {task.name} of protocol {protocol} takes its labels from it")
    else:
        LOG.warning("%s is missing: repeated use of one shower cannot be seen (no groups, no truth)", lacking[0].name)
    parts = zip(readers, features, [None] * len(readers) if truth is None else truth, strict=True)
    labels, known = zip(*(_labels(task, protocol, *each) for each in parts), strict=True)
    all_truth = None if truth is None else np.concatenate(truth)
    groups = None if all_truth is None else _groups(all_truth)
    all_features = np.concatenate(features)
    return RawEvents(readers, all_features, np.concatenate(labels), np.concatenate(known), groups, all_truth)


def _labels(
    task: Task,
    protocol: str,
    reader: SimulatedReader,
    features: np.ndarray,
    truth: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels (N,) of one mode, and which of them are known.

    int8 class numbers from the first raw column or the true particle; float32 true values where the task has a target.
    An unknown first column becomes the number that the public scripts make of it.
    """
    if task.target:
        assert truth is not None
        if task.target.raw is None:
            raise InputError(f"{reader.path(TRUTH_KIND)} has no column for {task.target.meaning}")
        values = truth[:, TRUE_COLUMNS.index(task.target.raw)].astype(np.float32)
        low, high = task.target.limits
        known = (values >= low) & (values <= high)
        return np.where(known, values, np.float32(low)), known
    if (protocol, task.name) not in LABELS_FROM_TYPE:
        assert truth is not None
        return _labels_of_particles(task, truth)
    first = 0 if task.primaries == GAMMA.name else 1
    kinds = features[:, RAW_COLUMNS.index("type")]
    known = np.isin(kinds, np.arange(first, first + task.n_classes))
    with np.errstate(invalid="ignore"):
        labels = (kinds - first).astype(np.int8)
    if truth is not None:
        true_labels, true_known = _labels_of_particles(task, truth)
        differing = int(np.count_nonzero((labels != true_labels) & known & true_known))
        if differing:
            file = reader.path("features").name
            LOG.warning("%s: %d rows have another type than the true particle's", file, differing)
    return labels, known


def _labels_of_particles(task: Task, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class numbers (N,) int8 of the true particles, -1 where it is unknown, and where it is not."""
    particle_ids = (GAMMA_ID, *COMPOSITION_IDS) if task.primaries == GAMMA.name else COMPOSITION_IDS
    is_particle = truth[:, TRUE_COLUMNS.index("id")][:, None] == np.asarray(particle_ids, dtype=truth.dtype)
    known = is_particle.any(axis=1)
    return np.where(known, np.minimum(is_particle.argmax(axis=1), task.n_classes - 1), -1).astype(np.int8), known


def _with_labels(task: Task, events: RawEvents, split: Split) -> Split:
    """Return a split without test events whose class nobody knows; refuse files where these are many."""
    unknown = ~events.known[split.rows]
    if not unknown.any():
        return split
    path, row = events.locate(int(split.rows[np.argmax(unknown)]), "features")
    if unknown.mean() > MAX_UNKNOWN:
        raise InputError(
            f"{path}: row {row} and {unknown.sum() - 1:,} others of {len(unknown):,} have no label of {task.name}: "
            "are these archives of another task, or in other units?"
        )
    if split.name == "train":
        return split
    without = f"{split.folder} is without {unknown.sum():,} event(s) of unknown class (first: {path.name}, row {row})"
    LOG.warning("%s", without)
    return replace(split, rows=split.rows[~unknown]).after("known class")


def _bad_scalars(task: Task, protocol: str, events: RawEvents, split: Split, *, strict: bool) -> list[BadValue]:
    """Return why rows of a split cannot be used: unknown labels, and quantities that are not an air shower's.

    ``row`` of each entry is the place among the split's rows.
    """
    bad = []
    for position in np.flatnonzero(~events.known[split.rows]).tolist():
        row = int(split.rows[position])
        kind, column, values = "features", "column type", events.features[:, 0]
        if events.truth is not None and (task.target or (protocol, task.name) not in LABELS_FROM_TYPE):
            name = str(task.target.raw) if task.target else "id"
            kind, column, values = TRUTH_KIND, f"column {name}", events.truth[:, TRUE_COLUMNS.index(name)]
        bad.append(events.bad_value(row, position, kind, column, values[row]))
    for name, (low, high) in RANGES.items():
        if name == AGE.name and layout_of(protocol, task).age == "none":
            continue
        values = events.features[split.rows, RAW_COLUMNS.index(name)]
        wrong = ~((values >= low) & (values <= high))
        for position in np.flatnonzero(wrong).tolist():
            bad.append(
                events.bad_value(int(split.rows[position]), position, "features", f"column {name}", values[position])
            )
        if wrong.size and wrong.mean() > MAX_UNKNOWN:
            raise InputError(
                f"{bad[-1]}, expected a number from {low:g} to {high:g} ({wrong.sum():,} bad rows of {len(wrong):,}: "
                "is the column in other units?)"
            )
    if bad and strict:
        raise InputError(
            f"{events.readers[0].folder}: {bad[0]} ({len({one.row for one in bad})} bad rows): "
            "leave out --strict to go on without them"
        )
    return bad


def _refuse_copies(readers: list[SimulatedReader], truth: list[np.ndarray]) -> None:
    """Refuse modes that hold the same showers: the splits would put a shower into train and its copy into test."""
    columns = [TRUE_COLUMNS.index(name) for name in THROWN_COLUMNS]
    thrown = [pl.DataFrame(values[:, columns], schema=THROWN_COLUMNS) for values in truth]
    for later, earlier in combinations(reversed(range(len(readers))), 2):
        copies = thrown[later].join(thrown[earlier], on=THROWN_COLUMNS, how="semi").height
        if copies > MAX_COPIES * thrown[later].height:
            raise InputError(
                f"{readers[later].path('true_features')}: {copies} of {thrown[later].height} showers are "
                f"exactly those of {readers[earlier].name}: an earlier simulation copied them; simulate again"
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
    left_out: list[BadValue],
    progress: Progress,
    *,
    strict: bool,
) -> None:
    """Write one folder: columns at once, grids as the archives give them, each to its place."""
    order = np.arange(len(split.rows))
    values: dict[str, Any] = {}
    if source["protocol"] in SHUFFLED:
        order = shuffled_order(len(split.rows), f"{source['raw']} {source['protocol']} {split.folder}")
        values["order"] = order
    rows = split.rows[order]
    features, truth = events.features, None
    if events.groups is not None:
        values["groups"] = _renumber(events.groups, str(source["raw"]))[rows]
        truth = _true_table(events, rows, values["groups"])
    position_of = np.argsort(order)
    left_out = [replace(bad, row=int(position_of[bad.row])) for bad in left_out]
    values |= {"age": features[rows, RAW_COLUMNS.index("Age")]} if layout.age == "file" else {}
    values |= {"part": split.part[order]} if split.part is not None else {}
    types = {name: {"age": np.float32, "part": np.int8}.get(name, np.int64) for name in values}
    columns = layout.columns(features[rows][:, SCALAR_COLUMNS], features[rows, RAW_COLUMNS.index("Age")])
    positions = np.argsort(rows)
    ascending = rows[positions]
    with_arrival_times = bool(source.get("arrival_times"))
    with write_dataset(
        folder,
        len(rows),
        task,
        source=source,
        extras=types,
        layout=layout,
        arrival_times=np.float16 if with_arrival_times else None,
    ) as writer:
        writer.put(0, None, columns, events.labels[rows], truth=truth, **values)
        writer.left_out += left_out
        start = 0
        for reader in events.readers:
            for block in reader.stream("matrices"):
                first, last = np.searchsorted(ascending, [start, start + len(block)])
                raw_grids = block[ascending[first:last] - start]
                with np.errstate(over="ignore", invalid="ignore"):
                    grids = raw_grids[..., 1:].astype(layout.grid_type)
                for bad in bad_cells(grids, ""):
                    row, position = int(ascending[first + bad.row]), int(positions[first + bad.row])
                    writer.left_out.append(events.bad_value(row, position, "matrices", bad.column, bad.value))
                    if strict:
                        raise InputError(
                            f"{reader.folder}: {writer.left_out[-1]}: leave out --strict to go on without such rows"
                        )
                writer.put_grids(positions[first:last], grids)
                if with_arrival_times:
                    writer.put_grids(positions[first:last], arrival_times(raw_grids), ARRIVAL_STEM)
                start += len(block)
                progress(start, len(features))


def _true_table(events: RawEvents, rows: np.ndarray, groups: np.ndarray) -> pl.DataFrame:
    """Return ``truth.parquet`` of these rows, in their order."""
    assert events.truth is not None
    ends = np.cumsum([reader.n_events for reader in events.readers])
    modes = pl.Series("model", [reader.name for reader in events.readers])
    model = modes.gather(np.searchsorted(ends, rows, side="right"))
    return true_quantities(events.truth[rows]).with_columns(model, pl.Series("shower", groups))


def true_quantities(truth: np.ndarray) -> pl.DataFrame:
    """Return the true quantities of raw files (n, 10) by our names; infinite values count as unknown.

    Only in ``lg_nhadron``, lg of the number of hadrons at the ground, minus infinity stays: there are none.
    """
    columns = {name: truth[:, TRUE_COLUMNS.index(raw)].astype(np.float32) for name, raw in TRUE_QUANTITIES.items()}
    columns = {name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    hadrons = truth[:, TRUE_COLUMNS.index("Nhadron")].astype(np.float32)
    columns["lg_nhadron"] = np.where(hadrons == np.inf, np.float32(np.nan), hadrons)
    ids = np.nan_to_num(truth[:, TRUE_COLUMNS.index("id")]).astype(np.int64)
    # CORSIKA: 14 is a proton, 1 a photon, a nucleus 100 A + Z.
    mass = np.where(ids >= 100, ids // 100, ids == PARTICLE_IDS[1]).astype(np.int16)
    return pl.DataFrame({"particle_id": ids.astype(np.int16), "mass": mass, **columns})


def shuffled_order(n: int, content: str) -> np.ndarray:
    """Return a permutation (n,) int64 that depends on the content of the files alone."""
    seed = int.from_bytes(hashlib.sha256(content.encode()).digest()[:16], "big")
    return np.random.default_rng(seed).permutation(n).astype(np.int64)


def _renumber(groups: np.ndarray, content: str) -> np.ndarray:
    """Give every shower (N,) a number that does not follow the raw files' order."""
    return shuffled_order(len(groups), content)[groups]


class SimulatedArchives(Archives):
    """The format of the public simulation."""

    name = "raw archives of simulated modes"
    holds = "{mode}_matrices.npz and {mode}_features.npz with 10 columns"
    reader = SimulatedReader
    options = ("task", "protocol", "strict", "times_of_arrival")

    def convert(self, path: Path, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
        """Write training and test set; yields a line for each."""
        folders = convert(
            path, given.out, task_named(given.task), protocol=given.protocol or "2026", strict=given.strict,
            keep_arrival_times=given.times_of_arrival, ctx=ctx,
        )  # fmt: skip
        yield from (f"wrote {folder}" for folder in folders)

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that makes the sets of each possible protocol, newest first."""
        present = set(sets_in(path))
        with_truth = {mode for mode in present if archive_path(path, mode, TRUTH_KIND).exists()}
        commands = [
            f"python cli.py convert {path} --task {task} --protocol {protocol} --out data"
            for (protocol, task), modes in reversed(MODES.items())
            if set(modes) <= (present if (protocol, task) in LABELS_FROM_TYPE else with_truth)
        ]
        return commands or ["no protocol can be made: modes are missing (see docs/data.md)"]


FORMAT = SimulatedArchives()
