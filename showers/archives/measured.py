"""Measured runs in the public archive's form, turned run by run into dataset folders without labels.

A run is ``{run}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon), ``{run}_features.npz`` (N, 8) and
``{run}_extra_features.npz`` (objects, among them the event's time; :mod:`showers.archives.measured_times`). Runs whose
name ends in 0 or 1 are the ones in use. Empty and damaged runs are reported and left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from showers import cuts
from showers.archives.convert import RANGES
from showers.archives.measured_summary import RunSummary
from showers.archives.measured_times import TIME_COLUMN as TIME_COLUMN
from showers.archives.measured_times import TIMES_KIND as TIMES_KIND
from showers.archives.measured_times import read_times
from showers.archives.raw import archive_path, head_of, stream_npz
from showers.datasets.dataset import Dataset
from showers.datasets.event_files import EventFiles, check_cells
from showers.datasets.writer import CONVERSION, write_dataset
from showers.execution.progress import Bars, silent
from showers.execution.source_hash import source_hash
from showers.execution.suggestions import did_you_mean
from showers.kascade import RAW_SHAPE
from showers.protocols import Layout
from showers.schema import (
    AGE_FILE,
    CORE_X_FILE,
    CORE_Y_FILE,
    SCALAR_NAMES,
    SOURCE_FILE,
    TIMES_FILE,
    InputError,
)
from showers.storage.files import check_name

COLUMNS = ("E", "Xc", "Yc", "Ze", "Az", "Ne", "Nmu", "Age")
KINDS: dict[str, tuple[int, ...]] = {"matrices": RAW_SHAPE, "features": (len(COLUMNS),)}
USED_ENDINGS = ("0", "1")
"""Last characters of the names of runs in use."""
MEASUREMENT = f"{CONVERSION} of the measured archive"
PROTOCOLS = {"v2": cuts.TEST.name, "matched": cuts.MATCHED.name}
"""Which protocol the folders follow: how scalars are rounded, whether learners see the age, which cuts judge."""
_MORE_RANGES = {"Xc": (-200.0, 200.0), "Yc": (-200.0, 200.0), "Age": (-10.0, 10.0)}


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
    """Runs whose event times could not be read."""


def runs_in(raw: Path, wanted: Sequence[str] | None = None) -> list[str]:
    """Return the names of the runs in a folder of archives that are in use, in order; or the wanted ones.

    Raises
    ------
    InputError
        If the folder does not exist, holds none, or lacks a wanted run.
    """
    raw = Path(raw)
    if not raw.is_dir():
        raise InputError(f"{raw} is not a folder{did_you_mean(raw)}: expected the archives of measured runs")
    found = {path.name.rsplit("_", 1)[0] for kind in KINDS for path in raw.glob(f"*_{kind}.npz")}
    if wanted is not None:
        lacking = [name for name in wanted if check_name(name, raw) not in found]
        if lacking:
            raise InputError(f"{raw} holds no run {lacking[0]} ({len(lacking)} of {len(wanted)} missing)")
        return list(dict.fromkeys(wanted))
    used = sorted(name for name in found if name.endswith(USED_ENDINGS))
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
    bars: Bars = silent,
) -> Converted:
    """Write a dataset folder for every run; folders that are there already, made from the same archives, are kept.

    Parameters
    ----------
    raw
        Folder with the runs' archives.
    out
        Gets a folder ``{run}`` each: grids, scalars, ``age.npy``, ``core_x_m.npy``, ``core_y_m.npy`` and, with times,
        ``times.npy``; its ``source.json`` has the run's summary.
    runs
        Only these; all runs in use if None.
    protocol
        The protocol of the sets that learners were trained on: ``v2`` (scalars rounded to float16, no age for
        learners) or ``matched`` (float32, with age).
    times
        Read the events' times.
    delete_raw
        Delete the archive of each run's grids as soon as its folder is complete.
    bars
        Progress.

    Raises
    ------
    InputError
        If the protocol is unknown, there are no runs, a folder of the same name holds something else, or the disk is
        full.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    names = runs_in(raw, runs)
    result = Converted([], [], [])
    with bars("convert runs", "runs") as progress:
        for done, name in enumerate(names, start=1):
            folder = Path(out) / name
            if not archive_path(raw, name, "matrices").exists() and _is_kept(folder, name, protocol, times):
                result.folders.append(folder)
                continue
            try:
                run = _Opened.open(raw, name)
            except InputError as error:
                result.left_out.append(LeftOut(name, str(error)))
                continue
            source = _source(run, protocol, times)
            if _is_made(folder, source):
                result.folders.append(folder)
            else:
                seconds = _times(run, result.remarks) if times else None
                try:
                    _write(folder, run, source, seconds)
                    result.folders.append(folder)
                except DamagedRun as error:
                    result.left_out.append(LeftOut(name, str(error)))
                    continue
            if delete_raw:
                archive_path(raw, name, "matrices").unlink()
            progress(done, len(names), name)
    return result


class DamagedRun(InputError):
    """A run whose archives cannot be used."""


@dataclass(frozen=True)
class _Opened:
    """A run whose heads have been read and compared."""

    folder: Path
    name: str
    n_events: int
    source: dict[str, Any] | None
    digest: str

    @classmethod
    def open(cls, folder: Path, name: str) -> _Opened:
        lengths, sources, members = {}, {}, []
        for kind, shape in KINDS.items():
            lengths[kind], sources[kind], content = head_of(archive_path(folder, name, kind), kind, shape)
            members += content
        path = archive_path(folder, name, "features")
        if lengths["features"] != lengths["matrices"]:
            raise InputError(f"{path} has {lengths['features']} events, but the grids have {lengths['matrices']}")
        if not lengths["features"]:
            raise InputError(f"{path} holds no events")
        if sources["features"] != sources["matrices"]:
            raise InputError(f"{path} and the grids beside it were not made together")
        digest = hashlib.sha256("\n".join(members).encode()).hexdigest()
        return cls(Path(folder), name, lengths["features"], sources["features"], digest)

    def path(self, kind: str) -> Path:
        return archive_path(self.folder, self.name, kind)

    def features(self) -> np.ndarray:
        """Return (N, 8) float32 reconstructed quantities, checked."""
        values = np.concatenate(list(stream_npz(self.path("features"), "features", 1 << 18))).astype(np.float32)
        for column, (low, high) in {**RANGES, **_MORE_RANGES}.items():
            found = values[:, COLUMNS.index(column)]
            bad = np.flatnonzero(~((found >= low) & (found <= high)))
            if bad.size:
                raise DamagedRun(
                    f"{self.path('features')}: row {bad[0]}, column {column} holds {found[bad[0]]:g}, "
                    f"expected a number from {low:g} to {high:g} ({bad.size} bad rows)"
                )
        return values


def _source(run: _Opened, protocol: str, times: bool) -> dict[str, Any]:
    return {
        **(run.source or {}),
        "generator": MEASUREMENT,
        "simulated": run.source is not None,
        "code": measured_code_version(),
        "raw": run.digest,
        "task": "measured",
        "run": run.name,
        "protocol": protocol,
        "evaluation_cuts": PROTOCOLS[protocol],
        "age": protocol == "matched",
        "times_asked_for": times,
    }


def conversion_of(raw: Path, run: str, protocol: str, times: bool) -> dict[str, Any]:
    """Return what ``source.json`` of a run's folder says of its origin, from the heads of its archives."""
    return _source(_Opened.open(raw, run), protocol, times)


@cache
def measured_code_version() -> str:
    """Return a hash of the code that this conversion consists of."""
    here = Path(__file__).parent
    return source_hash([*sorted(here.glob("measured*.py")), here / "raw.py", here.parent / "cuts.py"], ("numpy",))


def _is_made(folder: Path, source: dict[str, Any]) -> bool:
    """Return whether a run's folder is there; refuse one that holds anything else."""
    if not folder.exists() and not folder.is_symlink():
        return False
    found = EventFiles.open(folder).source() if folder.is_dir() else {}
    differing = [name for name in source if found.get(name) != source[name]]
    if differing:
        what = f" and differs in {', '.join(differing)}" if found else ""
        raise InputError(f"{folder} exists already{what}: choose another folder or remove it")
    Dataset.open(folder, labels=False)
    return True


def _is_kept(folder: Path, run: str, protocol: str, times: bool) -> bool:
    """Return whether a run whose raw grids are gone has been converted in the same way."""
    if not folder.is_dir():
        return False
    found = EventFiles.open(folder).source()
    wanted = {"generator": MEASUREMENT, "run": run, "protocol": protocol, "times_asked_for": times}
    if any(found.get(name) != value for name, value in wanted.items()):
        return False
    Dataset.open(folder, labels=False)
    return True


def _times(run: _Opened, remarks: list[str]) -> np.ndarray | None:
    try:
        return read_times(run.path(TIMES_KIND), run.n_events)
    except InputError as error:
        remarks.append(f"{error}: this run has no event times")
        return None


def _write(folder: Path, run: _Opened, source: dict[str, Any], seconds: np.ndarray | None) -> None:
    try:
        features = run.features()
    except InputError as error:
        raise DamagedRun(str(error)) from None
    float16 = source["protocol"] == "v2"
    extras: dict[str, Any] = {Path(file).stem: np.float32 for file in (AGE_FILE, CORE_X_FILE, CORE_Y_FILE)}
    columns = {"age": "Age", "core_x_m": "Xc", "core_y_m": "Yc"}
    values: dict[str, Any] = {stem: features[:, COLUMNS.index(name)] for stem, name in columns.items()}
    if seconds is not None:
        extras[Path(TIMES_FILE).stem], values[Path(TIMES_FILE).stem] = np.float64, seconds
    scalars = features[:, [COLUMNS.index(name) for name in SCALAR_NAMES]]
    summary = RunSummary(run.name)
    written = dict(source)
    layout = Layout(scalar_type=np.float16 if float16 else np.float32)
    with write_dataset(folder, run.n_events, None, source=written, extras=extras, layout=layout) as writer:
        start = 0
        for block in _grids(run):
            rows = slice(start, start + len(block))
            writer.put(start, block, scalars[rows], **{stem: column[rows] for stem, column in values.items()})
            summary.add(block, scalars[rows], values["age"][rows], None if seconds is None else seconds[rows])
            start += len(block)
        written["summary"] = summary.as_json()


def _grids(run: _Opened) -> Iterable[np.ndarray]:
    """Yield (n, 16, 16, 2) float16 deposits, MeV."""
    path, start, blocks = run.path("matrices"), 0, stream_npz(run.path("matrices"), "matrices")
    while True:
        try:
            block = next(blocks, None)
            if block is None:
                return
            with np.errstate(over="ignore"):
                grids = block[..., 1:].astype(np.float16)
            check_cells(grids, path, start)
        except InputError as error:
            raise DamagedRun(str(error)) from None
        yield grids
        start += len(grids)


def measured_folders(path: Path) -> list[Path]:
    """Return the dataset folders that ``path`` means: itself, or every run in a folder of runs, in order.

    Raises
    ------
    InputError
        If there is none.
    """
    path = Path(path)
    if (path / SOURCE_FILE).exists() or (path / "matrices.npy").exists() or not path.is_dir():
        return [path]
    found = sorted(folder for folder in path.iterdir() if (folder / "matrices.npy").exists())
    if not found:
        raise InputError(f"{path} is neither a dataset folder nor a folder of runs")
    return found
