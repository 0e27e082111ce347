"""Where a test set comes from: the public benchmark, the embedded simulation, or nobody knows.

Public sets are recognised by their exact number of events in each class, never by the absence of a mark; what was
simulated here says so in ``source.json``, through raw archives and conversion too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from report.public.published import TEST_CLASSES
from report.reading.run import is_simulated, read_source
from showers.schema import MATRICES_FILE, SCALARS_FILE, Task
from showers.storage.files import open_npy

SIMULATION = "simulation"
UNKNOWN = "unknown origin"


@dataclass(frozen=True)
class DataOrigin:
    """Origin of one test set."""

    public: bool
    protocol: str
    """``v2``, ``matched`` or ``2026`` of a public set; of others, what they are and what they say they follow."""
    source: dict[str, Any]
    """Content of ``source.json``."""

    @property
    def base(self) -> str:
        """The protocol whose rules hold: of a public set its own, of others the one they say they follow."""
        return self.protocol if self.public else str(self.source.get("protocol", "v2"))


def origin_of(folder: Path, task: Task) -> DataOrigin:
    """Return the origin of a labelled test set.

    Raises
    ------
    InputError
        If its files cannot be read.
    """
    folder = Path(folder)
    source = read_source(folder)
    stated = str(source.get("protocol", "v2"))
    if is_simulated(source):
        made = [source.get("model", "?"), f"{source.get('world', 'default')} world", f"seed {source.get('seed', '?')}"]
        return DataOrigin(False, f"{SIMULATION} of {stated} ({', '.join(map(str, made))})", source)
    protocol = _recognised(folder, task)
    return DataOrigin(True, protocol, source) if protocol else DataOrigin(False, f"{UNKNOWN} ({stated})", source)


def _recognised(folder: Path, task: Task) -> str | None:
    labels = np.asarray(open_npy(folder / str(task.label_file)))
    others = [folder / name for name in (MATRICES_FILE, SCALARS_FILE) if (folder / name).exists()]
    whole = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min(initial=0) >= 0
    if not whole or any(len(open_npy(path)) != len(labels) for path in others):
        return None
    counts = tuple(np.bincount(labels, minlength=task.n_classes).tolist())
    return next(
        (protocol for (name, protocol), known in TEST_CLASSES.items() if (name, counts) == (task.name, known)), None
    )
