"""Whether a run, a feature table, a dataset or an export is still what was written, by the checksums of its files."""

from __future__ import annotations

from pathlib import Path

from showerstack.features.table import CATALOGUE_FILE, FeatureTable
from showerstack.report.shared.subject import stated_origin
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.context import Bars, Progress, silent
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.scoring.score import ORIGIN_KEYS, Origin, check_run
from showerstack.showers import writer
from showerstack.showers.schema import EXPORT_FILE, MANIFEST_FILE, PREDICTIONS_FILE, SUBMISSION_FILE
from showerstack.stacking.prediction.run import Run


def check_folder(folder: Path, *, bars: Bars = silent) -> tuple[str, list[str]]:
    """Compare every file of a folder with its checksums, and what belongs together.

    Returns
    -------
    What kind of folder it is, and one line for each problem; none for a sound folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder{did_you_mean(folder)}: give a run, a feature table, a dataset or an export"
        )
    kinds = {MANIFEST_FILE: "run", CATALOGUE_FILE: "feature table", EXPORT_FILE: "export"}
    kind = next((kind for name, kind in kinds.items() if _has(folder, name)), None)
    with bars("checking", "parts") as progress:
        if kind is not None:
            return kind, _problems(folder, kind, progress)
        if writer.is_dataset(folder):
            return "dataset", writer.problems(folder, progress)
    if _has(folder, SUBMISSION_FILE) and _has(folder, PREDICTIONS_FILE):
        raise InputError(
            f"{folder} is a submission, which was checked when it was written; its scores: python verify.py "
            f"--task TASK {folder / PREDICTIONS_FILE}"
        )
    raise InputError(f"{folder} holds neither a run, nor a feature table, nor a dataset, nor an export")


def _has(folder: Path, name: str) -> bool:
    """Return whether a folder holds a file, or should."""
    if (folder / name).exists():
        return True
    try:
        return name in Checksums.open(folder).files
    except InputError:
        return False


def _problems(folder: Path, kind: str, progress: Progress) -> list[str]:
    """Return what is wrong with a folder that has checksums: files that differ, else what does not belong together."""
    if not (folder / CHECKSUMS_FILE).exists():
        return [f"{folder} has no {CHECKSUMS_FILE} (unfinished, or made by an earlier version): make it again"]
    try:
        if damage := Checksums.open(folder).problems(progress):
            return damage
        if kind == "run":
            return _problems_of_run(Run.open(folder))
        if kind == "feature table":
            parts = FeatureTable.open(folder).parts()
            Checksums.open(folder, required=(CATALOGUE_FILE, *(part.name for part in parts)))
    except InputError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{folder / MANIFEST_FILE} is not the manifest of a finished run ({error!r})"]
    return []


def _problems_of_run(run: Run) -> list[str]:
    unlisted = [name for name in run.required_files if name not in run.checksums.files]
    if not unlisted and PREDICTIONS_FILE in run.checksums.files:
        arrays = read_arrays(run.predictions, *ORIGIN_KEYS)
        origin = Origin(*(str(arrays[key]) if key in arrays else None for key in ORIGIN_KEYS))
        check_run(run.predictions, origin, stated_origin(run))
    return [f"{run.folder / name} is not in {CHECKSUMS_FILE}, but every such run has it" for name in unlisted]
