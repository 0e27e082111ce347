"""Integrity of a finished run: every file has a checksum and is compared when it is used.

This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.saving import HEADER_FILE
from showers.execution.suggestions import did_you_mean
from showers.schema import TASKS, InputError
from showers.storage.checksums import CHECKSUMS_FILE, Seal, seal
from showers.storage.files import check_name, read_json
from stacking.predict.chain import STUDENT
from stacking.predict.saving import CALIBRATION_FILE, DECISION_FILE, META_FILE
from stacking.run.folder import MANIFEST_FILE, PREDICTIONS_FILE
from stacking.tasks.finished import HELD_OUT_FILE, OUTER_FILE, TASK_FILE, TEST_FILE, fold_folder

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


def seal_run(run: Path) -> Seal:
    """Write ``checksums.json`` over all files of a finished run but :data:`MADE_LATER`."""
    files = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    plain = (path.as_posix() for path in files if not any(part.startswith(".") for part in path.parts))
    return seal(run, [name for name in plain if name not in (*MADE_LATER, CHECKSUMS_FILE)])


def break_seal(run: Path) -> None:
    """Remove ``checksums.json``: the run is about to be changed."""
    (run / CHECKSUMS_FILE).unlink(missing_ok=True)


def is_sealed(run: Path) -> bool:
    """Return whether a run was finished to the last file."""
    return (run / CHECKSUMS_FILE).exists()


def open_sealed(run: Path) -> tuple[Seal, dict[str, Any]]:
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
    sealed = Seal.open(run, required=(MANIFEST_FILE,))
    manifest = read_json(sealed.path(MANIFEST_FILE))
    if not isinstance(manifest, dict) or "task" not in manifest:
        raise InputError(f"{file} names no task: expected the manifest of a stacking run")
    for row in manifest.get("learners", []):
        check_name(row["name"], file)
    return sealed, manifest


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


def learner_folder(sealed: Seal, learner: str, fold: int) -> Path:
    """Return the folder of one fit after comparing all files that a learner reads, and not its predictions.

    Raises
    ------
    InputError
        If a file is missing or not the one that was written.
    """
    return _compared(sealed, fold_folder(sealed.folder, learner, fold))


def student_folder(sealed: Seal) -> Path:
    """Return the folder of the student after comparing its files; see :func:`learner_folder`."""
    return _compared(sealed, sealed.folder / STUDENT)


def _compared(sealed: Seal, folder: Path) -> Path:
    inside = f"{folder.relative_to(sealed.folder).as_posix()}/"
    sealed.path(inside + HEADER_FILE)
    for name in sealed.files:
        if name.startswith(inside) and name.removeprefix(inside) not in (
            HELD_OUT_FILE,
            OUTER_FILE,
            TEST_FILE,
            TASK_FILE,
            CHECKSUMS_FILE,
        ):
            sealed.path(name)
    return folder
