"""The run folder: who may write into it, what its finished parts are called, and that they are what was written.

Every file of a finished run has a checksum and is compared when it is used. This shows damage and mix-ups, not forgery:
whoever can replace a file can replace its checksum too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from models.base.saving import HEADER_FILE
from runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from runtime.errors import InputError, did_you_mean
from runtime.files import (
    LOCK_FILE,
    atomic_path,
    check_name,
    locked,
    read_json,
    remove_all_leftovers,
    write_json,
    write_npz,
)
from showers.schema import TASKS
from stacking.fit.tasks import HELD_OUT_FILE, OUTER_FILE, TASK_FILE, TEST_FILE, fold_folder
from stacking.run.chain import CALIBRATION_FILE, DECISION_FILE, META_FILE, STUDENT, Chain, Predictions
from stacking.run.config import SECOND_LEVEL

METRICS_FILE = "metrics_table.json"


PLAN_FILE = "columns.json"
"""In the run's folder ``table``: what each column is."""


EXPORT_FILE = "export.json"
"""In a folder of exported fits: what follows them."""
MANIFEST_FILE = "manifest.json"
PREDICTIONS_FILE = "predictions.npz"
PREDICTIONS_TABLE = "predictions.parquet"
"""Predictions of a run on a table."""
SECOND_LEVEL_FOLDERS = (STUDENT, "meta", "oof", "test")


@contextmanager
def opened_for_writing(run: Path) -> Iterator[None]:
    """Hold the run folder for this process alone.

    Raises
    ------
    InputError
        If the folder holds something else than a run, or is in use.
    """
    if run.exists() and not run.is_dir():
        raise InputError(f"{run} is a file: expected a run folder")
    if run.is_dir() and any(run.iterdir()) and not (run / MANIFEST_FILE).exists() and not (run / LOCK_FILE).exists():
        raise InputError(f"{run} holds other files: choose an empty or new folder for the run")
    was_there, was_empty = run.is_dir(), not run.is_dir() or not any(run.iterdir())
    with locked(run):
        _remove_leftovers(run)
        try:
            yield
        except InputError:
            if was_empty and not (run / MANIFEST_FILE).exists():
                _remove_if_unused(run, keep=was_there)
            raise
        finally:
            # Workers that were stopped half-way had no time to do it.
            if run.is_dir():
                _remove_leftovers(run)


def _remove_if_unused(run: Path, *, keep: bool) -> None:
    """Remove what a refused run wrote into a folder that was empty or not there, so that the name stays free."""
    for entry in run.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not keep:
        run.rmdir()


def _remove_leftovers(run: Path) -> None:
    """Remove what a killed run left half-written."""
    for folder in (run, *run.glob("[!.]*/"), *run.glob("[!.]*/[!.]*/")):
        remove_all_leftovers(folder)


def refuse_other_configuration(run: Path, requested: Mapping[str, Any]) -> None:
    """Refuse a folder whose fits are of another configuration; what differs is named.

    Parameters
    ----------
    requested
        What can change a fit, as it was asked for: before a plan for a time limit decided on learners, rows and folds.
    """
    file = run / MANIFEST_FILE
    if not file.exists():
        return
    manifest = read_json(file)
    before = manifest.get("requested", manifest.get("identity", {}))
    names = [name for name in {**before, **requested} if name not in SECOND_LEVEL]
    changed = [name for name in names if before.get(name) != requested.get(name)]
    if changed:
        raise InputError(
            f"{run} belongs to another configuration (different: {', '.join(changed) if before else 'everything'}): "
            "choose another run folder or remove this one"
        )


def remove_second_level(run: Path) -> None:
    """Remove what follows the fits, and ``checksums.json``: all of it is about to be made anew."""
    (run / CHECKSUMS_FILE).unlink(missing_ok=True)
    for folder in SECOND_LEVEL_FOLDERS:
        shutil.rmtree(run / folder, ignore_errors=True)
    for name in (PREDICTIONS_FILE, PREDICTIONS_TABLE, METRICS_FILE, *MADE_LATER):
        (run / name).unlink(missing_ok=True)


def write_out_of_fold(file: Path, log_proba: np.ndarray, folds: np.ndarray, classes: tuple[str, ...]) -> None:
    """Write out-of-fold log-probabilities: event, fold, ``logp_<class>``; NaN where a row was never predicted."""
    frame = pl.DataFrame(
        {
            "event": np.arange(len(folds), dtype=np.uint32),
            "fold": folds.astype(np.int8),
            **{f"logp_{name}": np.ascontiguousarray(log_proba[:, k]) for k, name in enumerate(classes)},
        }
    )
    with atomic_path(file) as temporary:
        frame.write_parquet(temporary)


def write_test_posteriors(
    run: Path, chain: Chain, posteriors: Mapping[str, np.ndarray], context: np.ndarray | None
) -> None:
    """Write ``test/<name>.npz`` of every learner, the average and the stack."""
    for name, log_proba in posteriors.items():
        decided = chain.procedure.test_arrays(chain.rules.get(name), log_proba, context)
        write_npz(run / "test" / f"{name}.npz", log_proba=log_proba, **decided)


def stored_arrays(predictions: Predictions) -> dict[str, np.ndarray]:
    """Return what ``predictions.npz`` holds: what scoring and the public benchmark read, posteriors, origin."""
    arrays = {**predictions.arrays, "log_proba": predictions.log_proba}
    arrays["config_hash"] = np.array(predictions.config_hash)
    if predictions.test_fingerprint is not None:
        arrays["test_fingerprint"] = np.array(predictions.test_fingerprint)
    return arrays


def write_predictions(file: Path, predictions: Predictions) -> None:
    """Write ``predictions.npz``."""
    write_npz(file, **stored_arrays(predictions))


def write_manifest(run: Path, content: Mapping[str, Any]) -> None:
    """Write ``manifest.json``."""
    write_json(run / MANIFEST_FILE, dict(content))


TABLE_TEST_FILE = "metrics_table_test.json"
"""What a run on a table reaches on a test table with labels."""
MADE_LATER = (
    "report.html",
    "outcome.json",
    "model_card.md",
    "model_card.json",
    "ro-crate-metadata.json",
    TABLE_TEST_FILE,
    *(f"metrics_{task}.json" for task in TASKS),
)
"""What scoring and reporting write into a finished run, as often as one likes."""


def write_run_checksums(run: Path) -> Checksums:
    """Write ``checksums.json`` over all files of a finished run but :data:`MADE_LATER`."""
    files = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    plain = (path.as_posix() for path in files if not any(part.startswith(".") for part in path.parts))
    return write_checksums(run, [name for name in plain if name not in (*MADE_LATER, CHECKSUMS_FILE)])


def is_sealed(run: Path) -> bool:
    """Return whether a run was finished to the last file."""
    return (run / CHECKSUMS_FILE).exists()


def open_finished(run: Path) -> tuple[Checksums, dict[str, Any]]:
    """Open a finished run: its checksums and its manifest; other files are compared as they are used.

    Raises
    ------
    InputError
        If the folder is no finished run, has no checksums, or its manifest is not the one that was written.
    """
    run = Path(run)
    file = run / MANIFEST_FILE
    if not file.exists():
        raise InputError(f"{run} is not a finished run folder{did_you_mean(run)}: it has no {MANIFEST_FILE}")
    if not is_sealed(run):
        manifest = read_json(file)
        if isinstance(manifest, dict) and manifest.get("complete"):
            raise InputError(
                f"{run} has no {CHECKSUMS_FILE}, so that damage could not be noticed (made by an earlier version?): "
                "start the same command again, or train into a new folder"
            )
        raise InputError(f"{run} is not finished: start the same command again to continue it")
    checksums = Checksums.open(run, required=(MANIFEST_FILE,))
    manifest = read_json(checksums.path(MANIFEST_FILE))
    if not isinstance(manifest, dict) or "task" not in manifest:
        raise InputError(f"{file} names no task: expected the manifest of a stacking run")
    for row in manifest.get("learners", []):
        check_name(row["name"], file)
    return checksums, manifest


def required_names(manifest: Mapping[str, Any]) -> list[str]:
    """Return the files that a run with this manifest cannot do without."""
    identity = manifest["identity"]
    n_fits = int(identity["folds"]) * int(identity["repeats"])
    learners = [str(row["name"]) for row in manifest["learners"] if row["status"] == "ok"]
    names = [MANIFEST_FILE, *(f"meta/{name}" for name in (CALIBRATION_FILE, META_FILE, DECISION_FILE))]
    names += [f"learners/{name}/fold-{fold}/{HEADER_FILE}" for name in learners for fold in range(n_fits)]
    if manifest.get(STUDENT):
        names.append(f"{STUDENT}/{HEADER_FILE}")
    systems = [*learners, "average", "stack"]
    names += [f"oof/{name}.parquet" for name in systems]
    if manifest["data"]["n_test"]:
        names += [PREDICTIONS_FILE, *(f"test/{name}.npz" for name in systems)]
    return names


def learner_folder(checksums: Checksums, learner: str, fold: int) -> Path:
    """Return the folder of one fit after comparing all files that a learner reads, and not its predictions.

    Raises
    ------
    InputError
        If a file is missing or not the one that was written.
    """
    return _compared(checksums, fold_folder(checksums.folder, learner, fold))


def student_folder(checksums: Checksums) -> Path:
    """Return the folder of the student after comparing its files; see :func:`learner_folder`."""
    return _compared(checksums, checksums.folder / STUDENT)


def _compared(checksums: Checksums, folder: Path) -> Path:
    inside = f"{folder.relative_to(checksums.folder).as_posix()}/"
    checksums.path(inside + HEADER_FILE)
    for name in checksums.files:
        if name.startswith(inside) and name.removeprefix(inside) not in (
            HELD_OUT_FILE,
            OUTER_FILE,
            TEST_FILE,
            TASK_FILE,
            CHECKSUMS_FILE,
        ):
            checksums.path(name)
    return folder
