"""The run folder: who may write into it, and what the finished parts are called."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showers.schema import InputError
from showers.storage.files import atomic_path, read_json, remove_all_leftovers, write_json, write_npz
from showers.storage.locks import LOCK_FILE, locked
from stacking.predict.chain import Chain, Predictions

MANIFEST_FILE = "manifest.json"
PREDICTIONS_FILE = "predictions.npz"


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
                _give_back(run, keep=was_there)
            raise
        finally:
            # Workers that were stopped half-way had no time to do it.
            if run.is_dir():
                _remove_leftovers(run)


def _give_back(run: Path, *, keep: bool) -> None:
    """Remove what a refused run wrote into a folder that was empty or not there, so that the name stays free."""
    for entry in run.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not keep:
        run.rmdir()


def _remove_leftovers(run: Path) -> None:
    """Remove what a killed run left half-written."""
    for folder in (run, *run.glob("[!.]*/"), *run.glob("[!.]*/[!.]*/")):
        remove_all_leftovers(folder)


def refuse_other_configuration(run: Path, config_hash: str, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that belongs to a run of another configuration; what differs is named."""
    file = run / MANIFEST_FILE
    if not file.exists():
        return
    manifest = read_json(file)
    if manifest.get("config_hash") == config_hash:
        return
    before = manifest.get("identity", {})
    changed = [key for key in {**before, **identity} if before.get(key) != identity.get(key)]
    raise InputError(
        f"{run} belongs to another configuration (different: {', '.join(changed) or 'everything'}): "
        "choose another run folder or remove this one"
    )


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
    """Return what ``predictions.npz`` holds: what the scorer and the public benchmark read, posteriors, origin."""
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
