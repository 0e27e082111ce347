"""How much memory a run needs, estimated before it starts and compared with what the machine has to give.

RunSizes are those of the largest arrays that exist at the same time in one process, per training event:

=================  ====================================================================
boosted trees      4 bytes a feature, and 1 (LightGBM) to 20 (CatBoost) for its own copy
forests            4 bytes a feature, and 1 kB of trees for each of at most 300,000 events
quadratic logit    6 kB for each of at most 200,000 events
networks           8 bytes a feature; grids of 1 kB, as far as they take less than 1 GiB
all                0.6 GB for the libraries
=================  ====================================================================

The process that combines holds 8 bytes for each learner and class of a judged event, three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.registry import LearnerSpec
from models.training.limits import RESIDENT_BYTES

LIBRARIES = 600_000_000
GRID_BYTES = 1024
TABLE_BYTES = 4
COPY_BYTES = {"lightgbm": 5, "xgboost": 10, "catboost": 20, "hist_boosting": 13, "forest": 8, "quadratic": 4}
"""Bytes a feature and event beside the table itself, by kind of learner."""
NETWORK_BYTES = 8
CAPPED_BYTES = {"forest": (300_000, 1000), "quadratic": (200_000, 6000)}
"""Events that count at most, and bytes of each, by kind of learner."""
COPIES = 3


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at its worst."""

    task: dict[str, int]
    """By learner, of one fit's process."""
    combining: int
    """Of the process that combines the learners."""

    def at(self, workers: int) -> int:
        """Return the bytes with so many fits at once: the largest of them together."""
        largest = sorted(self.task.values(), reverse=True)[:1] * workers
        return max(sum(largest), self.combining) + LIBRARIES

    def remark(self, workers: int, available: int | None) -> str | None:
        """Return what to do where memory is short; None where it is not."""
        if available is None or self.at(workers) <= available:
            return None
        name = max(self.task, key=lambda learner: self.task[learner])
        said = (
            f"memory may not suffice: {workers} fits at once may need {_gb(self.at(workers))} (most of all {name}, "
            f"{_gb(self.task[name])} each), {_gb(available)} are free"
        )
        fewer = next((n for n in range(workers - 1, 0, -1) if self.at(n) <= available), None)
        if fewer is not None:
            return f"{said}: --workers {fewer} fits"
        rest = {learner: size for learner, size in self.task.items() if size + LIBRARIES <= available}
        if rest and self.combining + LIBRARIES <= available:
            return f"{said}: --workers 1 --learners {','.join(rest)} fits"
        return f"{said}: give fewer events, or rows = {{{name} = ...}} in a file for --config"


def estimated(
    specs: Sequence[tuple[LearnerSpec, int]], n_train: int, n_classes: int, *, rows: dict[str, int] | None = None
) -> Need:
    """Return what a run needs.

    Parameters
    ----------
    specs
        Learners and the number of their columns.
    n_train
        Training events of a fit.
    rows
        By learner, events of a fit at most.
    """
    task = {}
    for spec, n_columns in specs:
        n = min(n_train, (rows or {}).get(spec.name, n_train))
        kind = spec.kind.rpartition(".")[2]
        own = COPY_BYTES.get(kind, NETWORK_BYTES)
        size = LIBRARIES + n * n_columns * (TABLE_BYTES + own)
        most, each = CAPPED_BYTES.get(kind, (0, 0))
        size += min(n, most) * each
        if spec.needs_grid:
            size += min(n * GRID_BYTES, RESIDENT_BYTES) + 300_000_000
        task[spec.name] = size
    return Need(task, COPIES * 8 * n_train * n_classes * len(specs))


def available_bytes() -> int | None:
    """Return the memory that new processes can take without others losing theirs; None where it is not told."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    for line in file.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
