"""Measured runs in the public archive's form, turned run by run into dataset folders without labels.

A run is ``{run}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon), ``{run}_features.npz`` (N, 8) and
``{run}_extra_features.npz`` (objects, among them the event's time; :mod:`showerstack.showers.archives.raw`). Runs
whose name ends in 0 or 1 are the ones in use. Empty and damaged runs are reported and left out. Events that cannot be
used stay in place; ``left_out.csv`` names them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from showerstack.runtime.cluster import spread_over
from showerstack.runtime.context import Bars, Context, silent
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import check_name
from showerstack.runtime.logs import remark
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import CONVERSION_VERSION
from showerstack.showers import protocols
from showerstack.showers.archives.convert import MAX_UNKNOWN
from showerstack.showers.archives.options import ConvertOptions, names_of
from showerstack.showers.archives.raw import (
    TIMES_KIND,
    ArchiveReader,
    Archives,
    archive_path,
    arrival_times,
    read_times,
)
from showerstack.showers.archives.run_list import RunSummary, dead_detectors, write_run_list
from showerstack.showers.array import KASCADE, RAW_SHAPE
from showerstack.showers.azimuth import (
    FRONT_EVENTS,
    OURS,
    AzimuthConvention,
    azimuth_convention,
    front_azimuth,
)
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import BadValue, EventFiles, bad_cells
from showerstack.showers.protocols import PUBLISHED_LAYOUT, layout_of
from showerstack.showers.schema import COMPOSITION, CONVERSION, RANGES, SCALAR_NAMES, SOURCE_FILE, TIMES_FILE
from showerstack.showers.writer import ARRIVAL_STEM, write_dataset

LOG = logging.getLogger(__name__)

COLUMNS = ("E", "Xc", "Yc", "Ze", "Az", "Ne", "Nmu", "Age")
MEASURED_KINDS: dict[str, tuple[int, ...]] = {"matrices": RAW_SHAPE, "features": (len(COLUMNS),)}
USED_ENDINGS = ("0", "1")
"""Last characters of the names of runs in use."""
MEASUREMENT = f"{CONVERSION} of the measured archive"
PROTOCOLS = {"v2": protocols.TEST.name, "matched": protocols.MATCHED.name, "2026": protocols.MATCHED.name}
"""Which protocol the folders follow: how numbers are rounded, whether learners see the age, the cuts of scoring."""
_LAYOUTS = {
    "v2": PUBLISHED_LAYOUT,
    "matched": layout_of("matched", COMPOSITION),
    "2026": layout_of("2026", COMPOSITION),
}
RUNS_ASKED = 8
"""Runs that are asked how azimuths count, where one does not show it."""
_CORE_RANGES = {"Xc": (-200.0, 200.0), "Yc": (-200.0, 200.0)}


@dataclass(frozen=True)
class LeftOut:
    """A run that has no dataset folder, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class Converted:
    """What became of an archive."""

    folders: list[Path]
    left_out: list[LeftOut]
    remarks: list[str]
    """Runs whose event times could not be read, and those with events that cannot be used."""


def runs_in(raw: Path, wanted: Sequence[str] | None = None) -> list[str]:
    """Return the names of the runs in a folder of archives that are in use, in order; or the wanted ones."""
    raw = Path(raw)
    if not raw.is_dir():
        raise InputError(f"{raw} is not a folder{did_you_mean(raw)}: expected the archives of measured runs")
    names = {path.name.rsplit("_", 1)[0] for kind in MEASURED_KINDS for path in raw.glob(f"*_{kind}.npz")}
    if wanted is not None:
        lacking = [name for name in wanted if check_name(name, raw) not in names]
        if lacking:
            raise InputError(f"{raw} holds no run {lacking[0]} ({len(lacking)} of {len(wanted)} missing)")
        return list(dict.fromkeys(wanted))
    used = sorted(name for name in names if name.endswith(USED_ENDINGS))
    if not used:
        raise InputError(f"{raw} holds no measured run: expected files such as 004000_matrices.npz")
    return used


def convert_measured(
    raw: Path,
    out: Path,
    *,
    runs: Sequence[str] | None = None,
    protocol: str = "v2",
    times: bool = False,
    delete_raw: bool = False,
    strict: bool = False,
    keep_arrival_times: bool = False,
    workers: int | None = 1,
    scheduler: str | None = None,
    bars: Bars = silent,
) -> Converted:
    """Write a dataset folder for every run; folders that are there already, made from the same archives, are kept.

    ``out`` gets a folder ``{run}`` each: grids, scalars, ``age.npy``, ``core_x_m.npy``, ``core_y_m.npy`` and, with
    times, ``times.npy``; its ``source.json`` has the run's summary. Without a list of ``runs`` all in use are
    converted.

    The protocol is that of the sets that learners were trained on: ``v2`` (scalars rounded to float16, no age for
    learners), ``matched`` (float32 scalars, with age) or ``2026`` (float32, the age a column of the scalars).

    With ``delete_raw`` the archive of each run's grids is deleted as soon as its folder is complete; with ``strict``
    runs with events that cannot be used are left out; arrival times are kept in ``arrival_ns.npy``, of which the
    feature group ``times`` is made. So many ``workers`` (None: one a core, at most eight) are at work at once, or all
    those of the Dask cluster at the address ``scheduler``. Azimuths are turned to count from +x towards +y where
    arrival times show that they count otherwise.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    names = runs_in(raw, runs)
    raw, out = (Path(place).absolute() if scheduler else Path(place) for place in (raw, out))
    archive, found = ArchiveAzimuths(raw, tuple(names)), dict[str, MadeRun]()
    asked = [(archive, name, out / name, protocol, times, keep_arrival_times, strict, delete_raw) for name in names]
    if scheduler:
        out.mkdir(parents=True, exist_ok=True)
        results = spread_over(scheduler, _make_run, asked, [raw, out])
    else:
        # Where archives are deleted, runs that are asked for the azimuths of others must be there until then.
        at_once = 1 if delete_raw else workers or min(cores(), MOST_AT_ONCE)
        results = in_threads(_make_run, asked, workers=at_once)
    with bars("convert runs", "runs") as progress:
        for name, one in results:
            found[name] = one
            progress(len(found), len(names), name)
    made = [found[name] for name in names]
    remarks = [remark for one in made for remark in one.remarks]
    turned = [(name, one.turned) for name, one in zip(names, made, strict=True) if one.turned is not None]
    if turned:
        (first, azimuth), runs_words = turned[0], f"{len(turned):,} run{'s' * (len(turned) > 1)}"
        remarks.append(f"{first}: {azimuth.words}; azimuths of {runs_words} are turned: they count {OURS}")
    remark(LOG, remarks)
    left_out = [LeftOut(name, one.reason) for name, one in zip(names, made, strict=True) if one.reason]
    return Converted([one.folder for one in made if one.folder is not None], left_out, remarks)


MOST_AT_ONCE = 8
"""Runs that are converted side by side unless more are asked for: each holds its grids."""


class MadeRun(NamedTuple):
    """What became of one run."""

    folder: Path | None
    reason: str = ""
    """Why there is no folder."""
    remarks: tuple[str, ...] = ()
    turned: AzimuthConvention | None = None
    """How its azimuths counted, where they were turned."""


@dataclass(frozen=True)
class ArchiveAzimuths:
    """How azimuths count in the first run whose arrival times show it, for runs that do not."""

    raw: Path
    names: tuple[str, ...]

    @cached_property
    def convention(self) -> AzimuthConvention:
        """Unknown where no run shows it."""
        for name in self.names[:RUNS_ASKED]:
            try:
                found = _azimuths_of(MeasuredReader.open(self.raw, name))
            except InputError:  # a damaged run, which is left out
                continue
            if found.is_known:
                return found
        return AzimuthConvention(0, 1, 0.0, 0.0)


def _make_run(archive: ArchiveAzimuths, name: str, *asked: Any) -> tuple[str, MadeRun]:
    return name, _made(archive, name, *asked)


def _made(
    archive: ArchiveAzimuths, name: str, folder: Path, protocol: str, times: bool, keep_arrival_times: bool,
    strict: bool, delete_raw: bool,
) -> MadeRun:  # fmt: skip
    """Write the folder of one run, or keep what is there."""
    raw = archive.raw
    if not archive_path(raw, name, "matrices").exists() and _is_kept(folder, name, protocol, times, keep_arrival_times):
        return MadeRun(folder)
    try:
        run = MeasuredReader.open(raw, name)
    except InputError as error:
        return MadeRun(None, str(error))
    source, remarks, turned = _source(run, protocol, times, keep_arrival_times), list[str](), None
    if not _is_made(folder, source):
        seconds = _times(run, remarks) if times else None
        try:
            azimuth = _azimuths_of(run)
            if not azimuth.is_known:
                azimuth = archive.convention
            remarks.extend(_write(folder, run, source, seconds, azimuth, strict=strict))
        except DamagedRun as error:
            return MadeRun(None, str(error), tuple(remarks))
        turned = azimuth if azimuth.is_known and not azimuth.is_ours else None
    remarks.extend(_remarks_on(folder))
    if delete_raw:
        archive_path(raw, name, "matrices").unlink()
    return MadeRun(folder, "", tuple(remarks), turned)


class DamagedRun(InputError):
    """A run whose archives cannot be used."""


@dataclass(frozen=True)
class MeasuredReader(ArchiveReader):
    """The archives of one run."""

    kinds = MEASURED_KINDS
    columns = COLUMNS
    is_simulated = False

    def bad_values(self, values: np.ndarray) -> list[BadValue]:
        """Return why events cannot be used, from their (N, 8) quantities; refuse columns in other units."""
        bad_values = []
        for column, (low, high) in {**RANGES, **_CORE_RANGES}.items():
            quantity = values[:, COLUMNS.index(column)]
            rows = np.flatnonzero(~((quantity >= low) & (quantity <= high)))
            name = self.path("features").name
            bad_values += [BadValue(row, name, f"column {column}", float(quantity[row]), row) for row in rows.tolist()]
            if rows.size > MAX_UNKNOWN * len(values):
                raise DamagedRun(
                    f"{self.path('features')}: row {rows[0]}, column {column} holds {quantity[rows[0]]:g}, "
                    f"expected a number from {low:g} to {high:g} ({rows.size} bad rows of {len(values)})"
                )
        return bad_values


def _source(run: MeasuredReader, protocol: str, times: bool, keep_arrival_times: bool = False) -> dict[str, Any]:
    kept = {"arrival_times": True} if keep_arrival_times else {}
    return kept | {
        **(run.source or {}),
        "generator": MEASUREMENT,
        "simulated": run.source is not None,
        "conversion_version": CONVERSION_VERSION,
        "raw": hashlib.sha256(run.members.encode()).hexdigest(),
        "task": "measured",
        "run": run.name,
        "protocol": protocol,
        "evaluation_cuts": PROTOCOLS[protocol],
        "age": _LAYOUTS[protocol].age != "none",
        "times_asked_for": times,
    }


def _is_made(folder: Path, source: dict[str, Any]) -> bool:
    """Return whether a run's folder is there; refuse one that holds anything else."""
    if not folder.exists() and not folder.is_symlink():
        return False
    stored = EventFiles.open(folder).source() if folder.is_dir() else {}
    differing = [name for name in source if stored.get(name) != source[name]]
    if differing:
        what = f" and differs in {', '.join(differing)}" if stored else ""
        raise InputError(f"{folder} exists already{what}: choose another folder or remove it")
    Dataset.open(folder, labels=False)
    return True


def _is_kept(folder: Path, run: str, protocol: str, times: bool, keep_arrival_times: bool) -> bool:
    """Return whether a run whose raw grids are gone has been converted in the same way."""
    if not folder.is_dir():
        return False
    stored = EventFiles.open(folder).source()
    wanted = {"generator": MEASUREMENT, "run": run, "protocol": protocol, "times_asked_for": times}
    wanted |= {"arrival_times": True} if keep_arrival_times else {}
    if any(stored.get(name) != value for name, value in wanted.items()):
        return False
    Dataset.open(folder, labels=False)
    return True


def _times(run: MeasuredReader, remarks: list[str]) -> np.ndarray | None:
    path = run.path(TIMES_KIND)
    if not path.exists():
        remarks.append(f"{path} is missing: this run has no event times")
        return None
    try:
        return read_times(path, run.n_events)
    except InputError as error:
        remarks.append(f"{error}: this run has no event times")
        return None


def _remarks_on(folder: Path) -> list[str]:
    data = Dataset.open(folder, labels=False)
    words = data.describe_unusable()
    return [*data.remarks, *([f"{words}; they stay in place and get the training prior"] if words else [])]


def _azimuths_of(run: MeasuredReader) -> AzimuthConvention:
    """Return how a run's azimuths count, by the arrival times of its first events."""
    fronts: list[np.ndarray] = []
    features = run.read("features").astype(np.float32)
    for block, arrival in _grids(run, np.float32):
        hit = (block[..., 0] > 0) & (arrival != 0)
        fronts.append(front_azimuth(arrival.astype(np.float32), hit, KASCADE.x_m, KASCADE.y_m))
        if sum(map(len, fronts)) >= FRONT_EVENTS:
            break
    front = np.concatenate(fronts)
    return azimuth_convention(front, *(features[: len(front), COLUMNS.index(name)] for name in ("Az", "Ze")))


def _write(
    folder: Path,
    run: MeasuredReader,
    source: dict[str, Any],
    seconds: np.ndarray | None,
    azimuth: AzimuthConvention,
    *,
    strict: bool = False,
) -> list[str]:
    """Write the folder of a run, whose azimuths count so; return remarks on events that are there again."""
    try:
        features = run.read("features").astype(np.float32)
    except InputError as error:
        raise DamagedRun(str(error)) from None
    bad_rows, layout = run.bad_values(features), _LAYOUTS[str(source["protocol"])]
    is_first = is_first_of_its_kind(features, seconds)
    position = np.cumsum(is_first) - 1
    left_out = [replace(bad, row=int(position[bad.row])) for bad in bad_rows if is_first[bad.row]]
    features, seconds = features[is_first], None if seconds is None else seconds[is_first]
    n_events = len(features)
    columns = {"core_x_m": "Xc", "core_y_m": "Yc"} | ({} if layout.age == "column" else {"age": "Age"})
    extras: dict[str, Any] = dict.fromkeys(columns, np.float32)
    values: dict[str, Any] = {stem: features[:, COLUMNS.index(name)] for stem, name in columns.items()}
    if seconds is not None:
        extras[Path(TIMES_FILE).stem], values[Path(TIMES_FILE).stem] = np.float64, seconds
    scalars = features[:, [COLUMNS.index(name) for name in SCALAR_NAMES]]
    scalars[:, SCALAR_NAMES.index("Az")] = azimuth.ours(scalars[:, SCALAR_NAMES.index("Az")])
    age = features[:, COLUMNS.index("Age")]
    usable = np.ones(n_events, dtype=bool)
    usable[[bad.row for bad in left_out]] = False
    summary = RunSummary(layout.scalar_type)
    written = dict(source)
    with_arrival_times = bool(source.get("arrival_times"))
    with write_dataset(
        folder,
        n_events,
        None,
        source=written,
        extras=extras,
        layout=layout,
        arrival_times=np.float16 if with_arrival_times else None,
    ) as writer:
        start, read, alike, hashes = 0, 0, 0, set[int]()
        for block, arrival in _grids(run, layout.grid_type):
            new = is_first[read : read + len(block)]
            read += len(block)
            block, arrival = block[new], arrival[new]
            rows = slice(start, start + len(block))
            bad = bad_cells(block, run.path("matrices").name, start)
            left_out += [replace(one, file_row=int(np.flatnonzero(is_first)[one.row])) for one in bad]
            usable[[one.row for one in bad]] = False
            if strict and left_out:
                raise DamagedRun(f"{left_out[0]}: leave out --strict to go on without such rows")
            columns_here = {stem: column[rows] for stem, column in values.items()}
            columns_here |= {ARRIVAL_STEM: arrival} if with_arrival_times else {}
            writer.put(start, block, layout.columns(scalars[rows], age[rows]), **columns_here)
            good = usable[rows]
            if seconds is None:
                for number in np.flatnonzero(block.any(axis=(1, 2, 3))):
                    event = hash(block[number].tobytes() + features[start + number].tobytes())
                    alike += event in hashes
                    hashes.add(event)
            summary.add(block[good], scalars[rows][good], age[rows][good], None if seconds is None else seconds[rows])
            start += len(block)
        writer.left_out += left_out
        written["summary"] = summary.as_json()
        written.update(dead_detectors(summary.hits))
        written |= azimuth.source()
    remarks = []
    if n_events < run.n_events:
        repeated = f"{run.n_events - n_events:,} of {run.n_events:,} events are there again, time and quantities alike"
        remarks.append(f"{run.name}: {repeated}: counted once")
    if alike:
        look_alike = f"{alike:,} of {n_events:,} events have deposits and quantities of another one"
        remarks.append(f"{run.name}: {look_alike}: with --times they count once")
    return remarks


def is_first_of_its_kind(features: np.ndarray, seconds: np.ndarray | None) -> np.ndarray:
    """Return (N,) bool: not there before with the same time (N,) and quantities (N, C); all where times are unknown."""
    if seconds is None:  # two failed reconstructions are alike
        return np.ones(len(features), dtype=bool)
    first = np.zeros(len(features), dtype=bool)
    first[np.unique(np.column_stack([seconds, features]), axis=0, return_index=True)[1]] = True
    return first


def _grids(run: MeasuredReader, kind: Any) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield (n, 16, 16, 2) deposits, MeV, and (n, 16, 16) arrival times, ns."""
    blocks = run.stream("matrices")
    while True:
        try:
            block = next(blocks, None)
            if block is None:
                return
            with np.errstate(over="ignore", invalid="ignore"):
                grids = block[..., 1:].astype(kind)
        except InputError as error:
            raise DamagedRun(str(error)) from None
        yield grids, arrival_times(block)


def measured_folders(path: Path) -> list[Path]:
    """Return the dataset folders that ``path`` means: itself, or every run in a folder of runs, in order."""
    path = Path(path)
    if (path / SOURCE_FILE).exists() or (path / "matrices.npy").exists() or not path.is_dir():
        return [path]
    folders = sorted(folder for folder in path.iterdir() if (folder / "matrices.npy").exists())
    if not folders and any(path.glob("*_matrices.npz")):
        raise InputError(
            f"{path} holds raw archives: convert them first (python cli.py convert {path} --times --out "
            "data) and give data/measured"
        )
    if not folders:
        raise InputError(f"{path} is neither a dataset folder nor a folder of runs")
    return folders


class MeasuredArchives(Archives):
    """The format of the public measured runs."""

    name = "raw archives of measured runs"
    holds = "{run}_matrices.npz and {run}_features.npz with 8 columns"
    reader = MeasuredReader
    options = ("protocol", "runs", "times", "delete_raw", "workers", "scheduler", "strict", "times_of_arrival")

    def convert(self, path: Path, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
        """Write a folder for each run and the list of runs; yields what was left out, and what was written."""
        folder = given.out / "measured"
        for option, is_given in (("--workers", given.workers), ("--delete-raw", given.delete_raw)):
            if given.scheduler and is_given:
                raise InputError(f"{option}: with --scheduler its workers convert, in any order: leave it out")
        result = convert_measured(
            path, folder, runs=names_of(given.runs), protocol=given.protocol or "v2", times=given.times,
            delete_raw=given.delete_raw, strict=given.strict, keep_arrival_times=given.times_of_arrival,
            workers=given.workers, scheduler=given.scheduler, bars=ctx.bars,
        )  # fmt: skip
        yield from (f"left out: run {one.run}: {one.reason}" for one in result.left_out)
        if not result.folders:
            raise InputError(f"{path}: none of its {len(result.left_out)} runs can be used")
        table = write_run_list(result.folders, folder / "runs.csv")
        for run, off in table.filter(table["off"] != "").select("run", "off").iter_rows():
            yield f"off: run {run} differs from the others in {off}"
        cuts = table["evaluation_cuts"][0]
        passed = round(float((table[f"pass_{cuts}"] * table["events"]).sum()))
        unusable = sum(len({bad.row for bad in EventFiles.open(one).left_out()}) for one in result.folders)
        yield (
            f"runs: read {len(result.folders) + len(result.left_out)}, written {len(result.folders)}; events: written "
            f"{table['events'].sum():,}, unusable {unusable:,}, pass the evaluation cuts ({cuts}) {passed:,}"
        )
        yield f"wrote {len(result.folders)} runs to {folder}, listed in {folder / 'runs.csv'}"

    def next_commands(self, path: Path) -> list[str]:
        """Return the commands that convert all runs, for learners of each kind of training sets."""
        command = f"python cli.py convert {path} --times --out data"
        return [f"{command} --protocol {protocol}  # for runs of protocol {protocol}" for protocol in PROTOCOLS]


FORMAT = MeasuredArchives()
