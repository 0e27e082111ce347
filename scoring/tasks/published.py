"""Results that others published on the benchmark, protocol by protocol; never mixed with simulated ones."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from showerstack.scoring.metrics.intervals import Interval, clopper_pearson
from showerstack.scoring.metrics.level import standard_errors
from showerstack.scoring.tasks.truth import TEST_CLASSES
from showerstack.showers.schema import GAMMA

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


def _result_of(row: dict[str, str]) -> PublishedResult:
    accuracy, parameters = row["accuracy"], row["n_parameters"]
    return PublishedResult(
        row["task"], row["protocol"], row["system"], float(row["value"]), float(accuracy) if accuracy else None,
        int(parameters) if parameters else None, row["tuned_on_test"] == "yes", row["source"],
    )  # fmt: skip


with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as _file:
    PUBLISHED = tuple(map(_result_of, csv.DictReader(_file)))
"""Everything known; where a range was published, its better end, with the range in the name."""


def best_published(task: str) -> float:
    """Return the best published value of a task under the protocol that is scored now."""
    return published_for(task, "2026")[0].value


def published_for(task: str, protocol: str) -> list[PublishedResult]:
    """Return the published results of one task under one protocol, best first."""
    return sorted((p for p in PUBLISHED if (p.task, p.protocol) == (task, protocol)), key=lambda p: p.value)
