"""Measured runs from raw archives straight to predictions: only the run that is being predicted has grids on disk.

Its features are computed in memory (:class:`showerstack.stacking.events.ComputedEvents`): there is no feature table.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context, silent
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import LOCK_FILE, atomic_folder, hash_file, hash_json, locked, read_json, write_json
from showerstack.showers.archives.measured import (
    MEASUREMENT,
    PROTOCOLS,
    LeftOut,
    convert_measured,
    runs_in,
    source_of_conversion,
)
from showerstack.showers.archives.raw import archive_path
from showerstack.showers.schema import MATRICES_FILE, PREDICTIONS_FILE, SOURCE_FILE
from showerstack.stacking.exported import open_predictor
from showerstack.stacking.predict import predict
from showerstack.stacking.run import Run

PREDICTED_FILE = "predicted.json"
UNFINISHED = "unfinished"
"""Folder of the run that is being predicted, with its grids."""
NOT_KEPT = (MATRICES_FILE, CHECKSUMS_FILE, LOCK_FILE)


@dataclass(frozen=True)
class PredictedRuns:
    """The predicted runs of an archive."""

    folders: list[Path]
    left_out: list[LeftOut]
    remarks: list[str]


def predict_measured(
    raw: Path,
    out: Path,
    run: Path,
    *,
    runs: Sequence[str] | None = None,
    protocol: str = "v2",
    times: bool = False,
    delete_raw: bool = False,
    ctx: Context = Context(),
) -> PredictedRuns:
    """Predict every measured run of an archive; what is finished is kept, whenever this is ended and started again.

    Parameters
    ----------
    raw
        Folder with the runs' archives.
    out
        Gets a folder of each run's name, with ``predictions.npz`` (the bytes that conversion and prediction would
        give), scalars, ages, core positions, times if wanted, and ``source.json``; no grids.
    run
        Folder of a finished stack of a task of the benchmark, or of its export.
    runs, protocol, times, delete_raw
        As in :func:`showerstack.showers.archives.measured.convert_measured`.
    ctx
        As in :func:`showerstack.stacking.predict.predict`.

    Raises
    ------
    InputError
        If run or archive cannot be used, or a folder of a run's name holds something else.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    predictor = open_predictor(run)
    predictor.require_showers("a prediction of measured runs")
    need(predictor.needs, what=f"predicting with {run}")
    names = runs_in(raw, runs)
    predicted = PredictedRuns([], [], [])
    with locked(out), ctx.bars("convert and predict runs", "runs") as progress:
        for done, name in enumerate(names, start=1):
            grids = archive_path(raw, name, "matrices")
            try:
                origin = _origin(raw, name, protocol, times)
                if not _is_predicted(out / name, predictor, origin):
                    unfinished = out / UNFINISHED / hash_json(origin)[:12]
                    converted = convert_measured(raw, unfinished, runs=[name], protocol=protocol, times=times)
                    predicted.left_out.extend(converted.left_out)
                    if not converted.folders:
                        continue
                    predicted.remarks.extend(converted.remarks)
                    remarks = _write_predicted(predictor, converted.folders[0], out / name, ctx)
                    predicted.remarks.extend([line for line in remarks if line not in predicted.remarks])
            except _Damaged as error:
                predicted.left_out.append(LeftOut(name, str(error)))
                continue
            shutil.rmtree(out / UNFINISHED, ignore_errors=True)
            predicted.folders.append(out / name)
            if delete_raw:
                grids.unlink(missing_ok=True)
            progress(done, len(names), name)
    return predicted


class _Damaged(Exception):
    """A run whose archives cannot be read."""


def _origin(raw: Path, name: str, protocol: str, times: bool) -> dict[str, Any]:
    """Return the required content of a run's ``source.json``; less where its grids are gone after their prediction."""
    if not archive_path(raw, name, "matrices").exists():
        return {"generator": MEASUREMENT, "run": name, "protocol": protocol, "times_asked_for": times}
    try:
        return source_of_conversion(raw, name, protocol, times)
    except InputError as error:
        raise _Damaged(str(error)) from None


def _is_predicted(folder: Path, predictor: Run, origin: dict[str, Any]) -> bool:
    """Return whether a measured run has been predicted; refuse a folder that holds anything else, or was damaged."""
    if not folder.exists() and not folder.is_symlink():
        return False
    is_complete = all((folder / name).is_file() for name in (SOURCE_FILE, PREDICTED_FILE, PREDICTIONS_FILE))
    source, predicted = (read_json(folder / name) if is_complete else {} for name in (SOURCE_FILE, PREDICTED_FILE))
    differing = [name for name in origin if source.get(name) != origin[name]]
    if predicted.get("config_hash") != predictor.chain.config_hash:
        differing.append("the run that predicted it")
    if differing:
        reason = f" and differs in {', '.join(differing)}" if is_complete else ""
        raise InputError(f"{folder} exists already{reason}: choose another folder or remove it")
    if hash_file(folder / PREDICTIONS_FILE) != predicted.get("sha256"):
        raise InputError(f"{folder / PREDICTIONS_FILE} is not the file that was written: remove {folder}")
    return True


def _write_predicted(predictor: Run, data: Path, folder: Path, ctx: Context) -> tuple[str, ...]:
    """Write a measured run's folder from its dataset folder; return remarks."""
    stream = predict(predictor, data, replace(ctx, bars=silent), no_table=True)
    with atomic_folder(folder) as temporary:
        stream.write(temporary / PREDICTIONS_FILE)
        for file in sorted(data.iterdir()):
            if file.is_file() and file.name not in NOT_KEPT:
                shutil.copyfile(file, temporary / file.name)
        content = {
            "config_hash": predictor.chain.config_hash,
            "run": predictor.name,
            "events": stream.n_events,
            "sha256": hash_file(temporary / PREDICTIONS_FILE),
        }
        write_json(temporary / PREDICTED_FILE, content)
    return stream.remarks
