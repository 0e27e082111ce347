"""The protocols of the public benchmark: which raw modes they take, which cuts they make, how they store events.

Scores of different protocols cannot be compared, and are never shown in one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from showers.schema import AGE, COMPOSITION, GAMMA, SCALAR_NAMES, InputError, Task

MODES: dict[tuple[str, str], tuple[str, ...]] = {
    ("v2", COMPOSITION.name): ("qgs_spectra", "epos_spectra"),
    ("v2", GAMMA.name): ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr"),
    ("matched", COMPOSITION.name): ("qgs_spectra",),
    ("2026", COMPOSITION.name): ("qgs_spectra",),
    ("2026", GAMMA.name): ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr"),
}
"""Which raw modes (hadronic models) a protocol concatenates for a task, in order."""
PROTOCOLS = tuple(dict.fromkeys(protocol for protocol, _ in MODES))
"""Names of the protocols."""
CUTS_FOR_ALL = {("matched", COMPOSITION.name): "matched", ("2026", COMPOSITION.name): "matched"}
"""Cuts that a protocol makes on training and test events alike; elsewhere only the test has cuts."""
LABELS_FROM_TYPE = frozenset(CUTS_FOR_ALL)
"""Where labels are the raw files' first column; elsewhere they come from the true particle."""
RAW_LABELS_ONLY = frozenset({("2026", COMPOSITION.name)})
"""Where only the most probable class may be scored: rules that shift decisions between classes are forbidden."""


@dataclass(frozen=True)
class Layout:
    """How the files of a dataset folder store events."""

    grid_type: Any = np.float16
    scalar_type: Any = np.float16
    age: Literal["none", "file", "column"] = "none"
    """Whether the shower age is part of the protocol: as ``age.npy``, or as the last column of ``features.npy``."""

    @property
    def scalars(self) -> tuple[str, ...]:
        """Columns of ``features.npy``."""
        return (*SCALAR_NAMES, AGE.name) if self.age == "column" else SCALAR_NAMES

    def columns(self, scalars: np.ndarray, age: np.ndarray) -> np.ndarray:
        """Return the rows of ``features.npy`` for E, Ze, Az, Ne, Nmu (n, 5) and ages (n,)."""
        values = np.column_stack([scalars, age]) if self.age == "column" else scalars
        return values.astype(self.scalar_type)


PUBLISHED_LAYOUT = Layout()
"""Of the published v2 files."""
_LAYOUTS = {
    ("matched", COMPOSITION.name): Layout(scalar_type=np.float32, age="file"),
    ("2026", COMPOSITION.name): Layout(np.float32, np.float32, "column"),
    ("2026", GAMMA.name): Layout(np.float32, np.float32),
}


def layout_of(protocol: str, task: Task) -> Layout:
    """Return how a protocol stores a task's events."""
    return _LAYOUTS.get((protocol, str(task.primaries)), PUBLISHED_LAYOUT)


def modes_of(protocol: str, task: Task) -> tuple[str, ...]:
    """Return the raw modes of a protocol.

    Raises
    ------
    InputError
        If there is no such protocol for the task.
    """
    try:
        return MODES[protocol, str(task.primaries)]
    except KeyError:
        known = ", ".join(f"{p} {t}" for p, t in MODES)
        raise InputError(f"no protocol {protocol!r} for task {task.name!r}: there are {known}") from None
