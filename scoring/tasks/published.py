"""Results that others published on the benchmark, protocol by protocol, and where a test set comes from.

Published results are never mixed with simulated ones. Public sets are recognised by their exact number of events in
each class, never by the absence of a mark; what was simulated here says so in ``source.json``, through raw archives and
conversion too. All else is of unknown origin.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.arrays import open_npy
from showerstack.scoring.metrics.intervals import Interval, clopper_pearson
from showerstack.scoring.metrics.level import standard_errors
from showerstack.showers.schema import COMPOSITION, GAMMA, MATRICES_FILE, SCALARS_FILE, Task
from showerstack.showers.source import is_simulated, read_source

TEST_CLASSES = {
    ("composition", "v2"): (32_804, 26_886, 22_065, 19_584, 17_688),
    ("composition", "matched"): (9_465, 7_832, 6_333, 5_643, 5_246),
    ("composition", "2026"): (31_362, 26_109, 21_430, 18_792, 17_371),
    ("gamma", "v2"): (1_514, 34_237),
    ("gamma", "2026"): (1_579, 34_267),
}
"""Events of each class in the public test sets, by task and protocol: what they are recognised by."""
N_HADRON = {protocol: counts[1] for (task, protocol), counts in TEST_CLASSES.items() if task == "gamma"}
"""Hadrons among the gamma test events, by protocol."""
ERROR_OF_FRACTION_ERROR = {"v2": 0.0003, "matched": 0.0006, "2026": 0.0003}
"""Sampling error (one standard deviation) of the fraction error with the test sets of these protocols."""
CITATIONS = {
    "v2": "public benchmark github.com/vvsotnikov/astro-bench; random forest: Kostunin et al., arXiv:2108.03407",
    "matched": "public benchmark github.com/vvsotnikov/astro-bench; LeNet: Kuznetsov et al., JINST 19 (2024) P01025",
    "2026": "paper of the public benchmark's author (github.com/vvsotnikov/astro-bench), the best of up to 50 attempts "
    "chosen on the test set, hence optimistic; baseline: Kuznetsov et al., JINST 19 (2024) P01025. Raw labels only.",
}
"""Where the published results of each protocol come from."""
SURVIVAL_CURVE = {0.50: 3e-5, 0.75: 3e-4, 0.90: 0.017, 0.95: 0.29, 0.99: 0.78}
"""Hadron survival of the best published systems by gamma efficiency, on the benchmark's own test set."""


@dataclass(frozen=True)
class PublishedResult:
    """One published result."""

    task: str
    protocol: str
    system: str
    value: float
    """Fraction error, or hadron survival at 75 % gamma efficiency."""
    accuracy: float | None = None
    n_parameters: int | None = None
    tuned_on_test: bool = False
    source: str = ""

    @property
    def n_trials(self) -> int | None:
        """Hadrons behind a survival."""
        return N_HADRON[self.protocol] if self.task == GAMMA.name else None

    @property
    def interval(self) -> Interval:
        """Confidence interval from the size of the test set alone."""
        if self.n_trials:
            return clopper_pearson(round(self.value * self.n_trials), self.n_trials)
        half = standard_errors() * ERROR_OF_FRACTION_ERROR[self.protocol]
        return Interval(self.value - half, self.value + half)


def _read(row: dict[str, str]) -> PublishedResult:
    accuracy, parameters = row["accuracy"], row["n_parameters"]
    return PublishedResult(
        row["task"], row["protocol"], row["system"], float(row["value"]), float(accuracy) if accuracy else None,
        int(parameters) if parameters else None, row["tuned_on_test"] == "yes", row["source"],
    )  # fmt: skip


with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as _file:
    PUBLISHED = tuple(map(_read, csv.DictReader(_file)))
"""Everything known; where a range was published, its better end, with the range in the name."""


def best_published(task: str) -> float:
    """Return the best published value of a task under the protocol that is scored now."""
    return published_for(task, "2026")[0].value


def published_for(task: str, protocol: str) -> list[PublishedResult]:
    """Return the published results of one task under one protocol, best first."""
    return sorted((p for p in PUBLISHED if (p.task, p.protocol) == (task, protocol)), key=lambda p: p.value)


RAW_LABELS_ONLY = frozenset({("2026", COMPOSITION.name)})
"""Where only the most probable class may be scored: rules that shift decisions between classes are forbidden."""
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

    def takes_raw_labels(self, task: Task) -> bool:
        """Return whether its protocol takes the most probable class only."""
        return (self.base, task.name) in RAW_LABELS_ONLY


def origin_of(folder: Path, task: Task) -> DataOrigin:
    """Return the origin of a labelled test set."""
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
