"""The run folder: who may write into it, what its finished parts are called, and that they are what was written.

Every file of a finished run has a checksum (:mod:`showerstack.stacking.run` compares it when the file is used).
This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import (
    LOCK_FILE,
    atomic_path,
    locked,
    read_json,
    remove_all_leftovers,
    write_json,
    write_npz,
)
from showerstack.showers.schema import LOG_FILE, MANIFEST_FILE, PREDICTIONS_FILE, TASKS
from showerstack.stacking.chain import Chain, Predictions
from showerstack.stacking.config import SECOND_LEVEL

METRICS_FILE = "metrics_table.json"


PLAN_FILE = "columns.json"
"""In the run's folder ``table``: what each column is."""


PREDICTIONS_TABLE = "predictions.parquet"
"""Predictions of a run on a table."""
SECOND_LEVEL_FOLDERS = ("meta", "oof", "test")


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
        What can change a fit.
    """
    file = run / MANIFEST_FILE
    if not file.exists():
        return
    manifest = read_json(file)
    before = manifest.get("identity", {})
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


def write_test_posteriors(run: Path, chain: Chain, predictions: Predictions, context: np.ndarray | None) -> None:
    """Write ``test/<name>.npz`` of every learner, the average and the stack; what ships as it is predicted."""
    for name, log_proba in predictions.by_name.items():
        arrays = chain.procedure.test_arrays(chain.rules.get(name), log_proba, context)
        if name == chain.shipped:
            arrays |= {key: predictions.arrays[key] for key in arrays.keys() & predictions.arrays.keys()}
        write_npz(run / "test" / f"{name}.npz", log_proba=log_proba, **arrays)


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
    "model_card.md",
    TABLE_TEST_FILE,
    *(f"metrics_{task}.json" for task in TASKS),
)
"""What scoring and reporting write into a finished run, as often as one likes."""


def write_run_checksums(run: Path) -> Checksums:
    """Write ``checksums.json`` over the files of a finished run but :data:`MADE_LATER`; a fit has its own list,
    and the log none."""
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    parts = {file.parent for file in files if file.name == CHECKSUMS_FILE}
    alone = [file for file in files if file.name == CHECKSUMS_FILE or not parts.intersection(file.parents[:-1])]
    plain = (file.as_posix() for file in alone if not any(part.startswith(".") for part in file.parts))
    return write_checksums(run, [name for name in plain if name not in (*MADE_LATER, LOG_FILE, CHECKSUMS_FILE)])


def has_checksums(run: Path) -> bool:
    """Return whether a run was finished to the last file."""
    return (run / CHECKSUMS_FILE).exists()
