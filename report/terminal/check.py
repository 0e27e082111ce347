"""Is a finished folder what was written? Every file of a run, a feature table or a dataset, compared."""

from __future__ import annotations

from pathlib import Path

from features.table import CATALOGUE_FILE, FeatureTable
from report.reading.belonging import check_run
from scoring.predictions import ORIGIN_KEYS, Origin, read_arrays
from showers.datasets import integrity
from showers.execution.progress import Bars, Progress, silent
from showers.execution.suggestions import did_you_mean
from showers.schema import InputError
from showers.storage.checksums import CHECKSUMS_FILE, Seal
from stacking.run.folder import MANIFEST_FILE, PREDICTIONS_FILE
from stacking.run.sealing import open_sealed, required_names


def check_folder(folder: Path, *, bars: Bars = silent) -> tuple[str, list[str]]:
    """Compare every file of a folder with its checksums, and what belongs together.

    Parameters
    ----------
    folder
        A run, a feature table or a dataset.
    bars
        Opens a progress bar.

    Returns
    -------
    What kind of folder it is, and one line for each problem; none for a sound folder.

    Raises
    ------
    InputError
        If it is none of them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder{did_you_mean(folder)}: give a run, a feature table or a dataset")
    with bars("checking", "parts") as progress:
        if _has(folder, MANIFEST_FILE):
            return "run", _run(folder, progress)
        if _has(folder, CATALOGUE_FILE):
            return "feature table", _table(folder, progress)
        if integrity.is_dataset(folder):
            return "dataset", integrity.problems(folder, progress)
    raise InputError(f"{folder} holds neither a run, nor a feature table, nor a dataset")


def _has(folder: Path, name: str) -> bool:
    """Return whether a folder holds a file, or should."""
    if (folder / name).exists():
        return True
    try:
        return name in Seal.open(folder).files
    except InputError:
        return False


def _run(folder: Path, progress: Progress) -> list[str]:
    found = _compared(folder, progress)
    if found:
        return found
    try:
        sealed, manifest = open_sealed(folder)
        lacking = [name for name in required_names(manifest) if name not in sealed.files]
        if lacking:
            return [f"{folder / name} is not in {CHECKSUMS_FILE}, but every such run has it" for name in lacking]
        if PREDICTIONS_FILE in sealed.files:
            file = folder / PREDICTIONS_FILE
            arrays = read_arrays(file, *ORIGIN_KEYS)
            check_run(file, Origin(*(str(arrays[key]) if key in arrays else None for key in ORIGIN_KEYS)), manifest)
    except InputError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{folder / MANIFEST_FILE} is not the manifest of a finished run ({error!r})"]
    return []


def _table(folder: Path, progress: Progress) -> list[str]:
    found = _compared(folder, progress)
    if found:
        return found
    try:
        parts = FeatureTable.open(folder).parts()
        Seal.open(folder, required=(CATALOGUE_FILE, *(part.name for part in parts)))
    except InputError as error:
        return [str(error)]
    return []


def _compared(folder: Path, progress: Progress) -> list[str]:
    if not (folder / CHECKSUMS_FILE).exists():
        return [f"{folder} has no {CHECKSUMS_FILE} (unfinished, or made by an earlier version): make it again"]
    try:
        return Seal.open(folder).problems(progress)
    except InputError as error:
        return [str(error)]
