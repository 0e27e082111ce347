"""Do predictions, run and test set belong together? Equal lengths prove little; fingerprints do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.run_files import MANIFEST_FILE, PREDICTIONS_FILE
from showerstack.scoring.score import Origin
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import MATRICES_FILE, ORDER_FILE

SHOWN = 12
"""Digits of a hash in messages."""


def check_predictions(file: Path, origin: Origin, folder: Path) -> list[str]:
    """Refuse a predictions file that was made for other events, or that replaces another run's file.

    Parameters
    ----------
    file
        The predictions; where a run's manifest lies beside ``predictions.npz``, they must be that run's.
    origin
        What they say of themselves.
    folder
        Test set by which they are to be scored.

    Returns
    -------
    Remarks about what could not be checked.

    Raises
    ------
    InputError
        If they do not belong together.
    """
    manifest = file.parent / MANIFEST_FILE
    if file.name == PREDICTIONS_FILE and manifest.is_file():
        check_run(file, origin, read_json(manifest))
        if (file.parent / CHECKSUMS_FILE).is_file():
            Checksums.open(file.parent).path(PREDICTIONS_FILE)
    if origin.test_fingerprint is None:
        result = [f"{file.name} does not say for which events it was made: only their number could be checked"]
        if (folder / ORDER_FILE).is_file():
            result.append(
                f"rows of {folder.name} were shuffled on conversion: if these are not, give --published-order"
            )
        return result
    return check_events(str(file), origin.test_fingerprint, folder)


def check_run(file: Path, origin: Origin, manifest: Mapping[str, Any]) -> None:
    """Refuse predictions in a run folder that are not those of its manifest."""
    own = Origin(manifest.get("config_hash"), (manifest.get("data") or {}).get("test_fingerprint"))
    if origin != own:
        what = "configuration" if origin.config_hash != own.config_hash else "test events"
        raise InputError(
            f"{file} is not what {MANIFEST_FILE} beside it describes (another {what}): restore the run's own file, "
            "or make a new one outside the run folder with python cli.py predict"
        )


def check_events(what: str, fingerprint: str, folder: Path) -> list[str]:
    """Refuse a test set that is not the one predictions were made for; return a remark where it cannot be told."""
    result = events_fingerprint(folder)
    if result is None:
        return [f"{folder.name} holds no {MATRICES_FILE}: whether the predictions are of its events was not checked"]
    if result != fingerprint:
        raise InputError(
            f"{what} was made for other events than those of {folder} (fingerprints {fingerprint[:SHOWN]} and "
            f"{result[:SHOWN]}): give the test set it was made for, or predict this one with python cli.py predict"
        )
    return []


def events_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of a test set's events, labels not looked at; None where it holds no grids."""
    if not (folder / MATRICES_FILE).exists():
        return None
    return Dataset.open(folder, labels=False).fingerprint()
