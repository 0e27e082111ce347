"""Measured runs in the public archive's form, turned run by run into dataset folders without labels.

A run is ``{run}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon), ``{run}_features.npz`` (N, 8) and
``{run}_extra_features.npz`` (objects, among them the event's time; :mod:`showers.archives.raw`). Runs whose
name ends in 0 or 1 are the ones in use. Empty and damaged runs are reported and left out.

What a run was like in a few numbers, and the list of all runs that shows which ones are off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from runtime.code import source_hash
from runtime.context import Bars, silent
from runtime.errors import InputError, did_you_mean
from runtime.files import atomic_path, check_name
from showers import protocols
from showers.archives.convert import RANGES
from showers.archives.raw import TIMES_KIND, archive_path, head_of, read_times, stream_npz
from showers.array import KASCADE, RAW_SHAPE
from showers.dataset import Dataset
from showers.event_files import EventFiles, check_cells
from showers.protocols import Layout
from showers.schema import AGE_FILE, CORE_X_FILE, CORE_Y_FILE, SCALAR_NAMES, SOURCE_FILE, TIMES_FILE
from showers.writer import CONVERSION, write_dataset

MEANS = (*SCALAR_NAMES[:2], *SCALAR_NAMES[3:], "Age", "e_hits", "mu_hits", "lg_e_sum", "lg_mu_sum")
"""Whose means by run are listed: scalars but the azimuth, age, hit stations, lg of the deposits' sum (MeV)."""
OFF_SIGMAS = 5.0
"""A run is off where a mean differs from the median run by so many of its standard deviations (error and scatter)."""


@dataclass
class RunSummary:
    """Sums over a run's events, filled block by block."""

    run: str
    n_events: int = 0
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(protocols.CUT_SETS, 0))
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, len(MEANS))))
    """Sum and sum of squares of :data:`MEANS`, over events that pass the test's cuts."""
    hits: np.ndarray = field(default_factory=lambda: np.zeros(KASCADE.grid_shape, dtype=np.int64))
    first_s: float | None = None
    last_s: float | None = None

    def add(self, grids: np.ndarray, scalars: np.ndarray, age: np.ndarray, seconds: np.ndarray | None) -> None:
        """Add consecutive events: (n, 16, 16, 2) MeV, (n, 5), (n,) and (n,) seconds."""
        frame = protocols.scalar_frame(scalars, age)
        masks = {name: cut_set.mask(frame) for name, cut_set in protocols.CUT_SETS.items()}
        self.n_events += len(grids)
        for name, mask in masks.items():
            self.passed[name] += int(mask.sum())
        good = masks[protocols.TEST_WITH_AGE.name]
        here = grids[good].astype(np.float32)
        hit = here > 0
        self.hits += (grids > 0).sum(axis=0)
        with np.errstate(divide="ignore"):
            sums = np.log10(np.maximum(here.sum(axis=(1, 2)), 1.0))
        values = np.column_stack(
            [scalars[good][:, [0, 1, 3, 4]], age[good], hit.sum(axis=(1, 2)), sums],
        ).astype(np.float64)
        self.sums += np.stack([values.sum(axis=0), (values**2).sum(axis=0)])
        if seconds is not None and len(seconds):
            self.first_s = float(min(seconds.min(), self.first_s if self.first_s is not None else np.inf))
            self.last_s = float(max(seconds.max(), self.last_s if self.last_s is not None else -np.inf))

    def as_json(self) -> dict[str, Any]:
        """Return what ``source.json`` keeps."""
        quiet_e = KASCADE.has_station & (self.hits[..., 0] == 0)
        quiet_mu = KASCADE.has_muon & (self.hits[..., 1] == 0)
        return {
            "n_events": self.n_events,
            "passed": self.passed,
            "sums": self.sums.tolist(),
            "silent_stations": int(quiet_e.sum()),
            "silent_muon_detectors": int(quiet_mu.sum()),
            "first_s": self.first_s,
            "last_s": self.last_s,
        }


def run_list(folders: Sequence[Path]) -> pl.DataFrame:
    """Return one row a run: events, pass rates of the cuts, means with errors, and what is off.

    The live-time share is the run's share of the time between first and last events, null where times were not read.
    Means and errors are over events that pass the cuts with age; ``off`` names the means that lie more than 5 standard
    deviations from the median run, the scatter of the runs included, and pass rates likewise.

    Parameters
    ----------
    folders
        Dataset folders as the conversion of measured runs writes them.

    Raises
    ------
    InputError
        If a folder has no summary.
    """
    rows, means, errors = [], [], []
    for folder in folders:
        source = EventFiles.open(folder).source()
        summary = source.get("summary")
        if not isinstance(summary, dict):
            raise InputError(f"{folder} has no summary of a measured run in its source.json: convert the archive again")
        n, passed = summary["n_events"], summary["passed"]
        n_good = max(passed[protocols.TEST_WITH_AGE.name], 1)
        mean, square = np.asarray(summary["sums"]) / n_good
        error = np.sqrt(np.maximum(square - mean**2, 0.0) / n_good)
        rate = passed[protocols.TEST_WITH_AGE.name] / n
        means.append([*mean, rate])
        errors.append([*error, np.sqrt(max(rate * (1 - rate), 1 / n) / n)])
        timed = summary["first_s"] is not None
        rows.append(
            {
                "run": str(source.get("run", Path(folder).name)),
                "events": n,
                "seconds": summary["last_s"] - summary["first_s"] if timed else None,
                **{f"pass_{name}": passed[name] / n for name in protocols.CUT_SETS if name != protocols.NONE.name},
                **{f"mean_{name}": float(value) for name, value in zip(MEANS, mean, strict=True)},
                **{f"error_{name}": float(value) for name, value in zip(MEANS, error, strict=True)},
                "silent_stations": summary["silent_stations"],
                "silent_muon_detectors": summary["silent_muon_detectors"],
            }
        )
    off = _off(np.array(means), np.array(errors), (*MEANS, "pass rate"))
    table = pl.DataFrame(rows, infer_schema_length=None)
    whole = table["seconds"].cast(pl.Float64).sum() or None
    share = pl.col("seconds").cast(pl.Float64) / pl.lit(whole, dtype=pl.Float64)
    return table.with_columns(live_time_share=share, off=pl.Series(off, dtype=pl.String))


def _off(means: np.ndarray, errors: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return for each run the quantities that are off, (R,) comma-separated."""
    middle = np.median(means, axis=0)
    scatter = 1.4826 * np.median(np.abs(means - middle), axis=0)
    pull = np.abs(means - middle) / np.sqrt(
        errors**2 + np.maximum(scatter**2 - np.median(errors, axis=0) ** 2, 0.0) + 1e-30
    )
    return [", ".join(name for name, far in zip(names, row > OFF_SIGMAS, strict=True) if far) for row in pull]


def write_run_list(folders: Sequence[Path], out: Path) -> pl.DataFrame:
    """Write the list of runs as CSV or Parquet, by the name of ``out``; return it."""
    table = run_list(folders)
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{out}: name a .csv or .parquet file")
    with atomic_path(out) as temporary:
        if out.suffix.lower() == ".csv":
            table.write_csv(temporary)
        else:
            table.write_parquet(temporary)
    return table


COLUMNS = ("E", "Xc", "Yc", "Ze", "Az", "Ne", "Nmu", "Age")
MEASURED_KINDS: dict[str, tuple[int, ...]] = {"matrices": RAW_SHAPE, "features": (len(COLUMNS),)}
USED_ENDINGS = ("0", "1")
"""Last characters of the names of runs in use."""
MEASUREMENT = f"{CONVERSION} of the measured archive"
PROTOCOLS = {"v2": protocols.TEST.name, "matched": protocols.MATCHED.name}
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
    found = {path.name.rsplit("_", 1)[0] for kind in MEASURED_KINDS for path in raw.glob(f"*_{kind}.npz")}
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
                run = MeasuredReader.open(raw, name)
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
class MeasuredReader:
    """A run whose heads have been read and compared."""

    folder: Path
    name: str
    n_events: int
    source: dict[str, Any] | None
    digest: str

    @classmethod
    def open(cls, folder: Path, name: str) -> MeasuredReader:
        lengths, sources, members = {}, {}, []
        for kind, shape in MEASURED_KINDS.items():
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


def _source(run: MeasuredReader, protocol: str, times: bool) -> dict[str, Any]:
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
    return _source(MeasuredReader.open(raw, run), protocol, times)


@cache
def measured_code_version() -> str:
    """Return a hash of the code that this conversion consists of."""
    here = Path(__file__).parent
    return source_hash([here / "measured.py", here / "raw.py", here.parent / "protocols.py"], ("numpy",))


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


def _times(run: MeasuredReader, remarks: list[str]) -> np.ndarray | None:
    try:
        return read_times(run.path(TIMES_KIND), run.n_events)
    except InputError as error:
        remarks.append(f"{error}: this run has no event times")
        return None


def _write(folder: Path, run: MeasuredReader, source: dict[str, Any], seconds: np.ndarray | None) -> None:
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


def _grids(run: MeasuredReader) -> Iterable[np.ndarray]:
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
