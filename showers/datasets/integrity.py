"""Is a dataset folder what it should be: every file compared and every cell looked at; or the set that is wanted?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from showers.datasets.dataset import Dataset
from showers.datasets.event_files import EventFiles
from showers.execution.progress import Progress
from showers.schema import MATRICES_FILE, SOURCE_FILE, TASKS, InputError, Task


def is_dataset(folder: Path) -> bool:
    """Return whether a folder looks like a dataset: it holds (or held) grids or the description of a set."""
    folder = Path(folder)
    return folder.is_dir() and any((folder / name).exists() for name in (MATRICES_FILE, SOURCE_FILE))


def problems(folder: Path, progress: Progress | None = None) -> list[str]:
    """Compare every file of a dataset with its checksums, open it as every reader does, and scan all cells.

    Returns
    -------
    list of str
        One line for each thing that is wrong, naming the file; empty for a sound dataset. A folder without
        ``checksums.json`` is judged by its content alone.
    """
    folder = Path(folder)
    try:
        files = EventFiles.open(folder)
        found = files.seal.problems(progress) if files.seal else []
        if found:
            return found
        labelled = [task for task in TASKS.values() if files.has(str(task.label_file))]
        for task in labelled:
            Dataset.open(folder, task)
        data = Dataset.open(folder, labels=False)
        _ = data.evaluation_cuts
        data.validate(progress)
    except InputError as error:
        return [str(error)]
    return []


def already_made(
    folder: Path,
    n_events: int,
    task: Task,
    source: Mapping[str, Any],
    *,
    advice: str = "choose another folder or ask to overwrite it",
) -> bool:
    """Return whether a folder holds the very set that is wanted, so that an interrupted command can go on after it.

    Returns
    -------
    bool
        False if there is nothing of that name.

    Raises
    ------
    InputError
        If the folder holds anything else, or the set in it is damaged.
    """
    if not folder.exists() and not folder.is_symlink():
        return False
    found = EventFiles.open(folder).source() if folder.is_dir() else {}
    wanted = json.loads(json.dumps(dict(source)))
    differing = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if differing:
        what = f" and differs in {', '.join(differing)}" if found else ""
        raise InputError(f"{folder} exists already{what}: {advice}")
    data = Dataset.open(folder, task)
    if len(data) != n_events:
        raise InputError(f"{folder} exists already with {len(data):,} events instead of {n_events:,}: {advice}")
    data.fingerprint()
    return True
