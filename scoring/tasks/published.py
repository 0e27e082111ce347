"""Results that others published on the benchmark, protocol by protocol, and where a test set comes from.

Published results are never mixed with simulated ones. Public sets are recognised by their exact number of events in
each class, never by the absence of a mark; what was simulated here says so in ``source.json``, through raw archives and
conversion too. All else is of unknown origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.arrays import open_npy
from showerstack.scoring.metrics.intervals import Interval, clopper_pearson
from showerstack.scoring.metrics.level import standard_errors
from showerstack.showers.dataset import is_simulated, read_source
from showerstack.showers.protocols import RAW_LABELS_ONLY
from showerstack.showers.schema import COMPOSITION, GAMMA, MATRICES_FILE, SCALARS_FILE, Task

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
    note: str = ""

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


def _composition(
    protocol: str, *rows: tuple[str, int | None, float | None, float, float | None]
) -> list[PublishedResult]:
    result = []
    for system, n_parameters, accuracy, value, tuned in rows:
        result.append(PublishedResult(COMPOSITION.name, protocol, system, value, accuracy, n_parameters))
        if tuned is not None:
            name = f"{system}, biases"
            result.append(PublishedResult(COMPOSITION.name, protocol, name, tuned, None, n_parameters, True))
    return result


PUBLISHED: tuple[PublishedResult, ...] = (
    *_composition(
        "matched",
        ("CNN + channel attention + MLP, SAM", 731_000, 0.5134, 0.1055, 0.1045),
        ("LeNet, batch norm, 32 channels, 6 features", 139_000, 0.5106, 0.1060, 0.1056),
        ("ViT-128-4", 567_000, 0.5040, 0.1073, 0.1064),
        ("GNN, 3 layers (200 k events)", 77_000, 0.5053, 0.1074, 0.1058),
        ("HistGradientBoosting, 26 scalar + 28 grid features", None, 0.5053, 0.1073, 0.1066),
        ("RandomForest 1000, same features", None, 0.5007, 0.1083, None),
        ("HistGradientBoosting, 24 scalar features", None, 0.4988, 0.1084, None),
        ("LeNet of JINST 2024, as published", 36_600, 0.51, 0.107, None),
        ("LeNet of JINST 2024, reproduced", 36_810, 0.503, 0.1081, None),
    ),
    *_composition(
        "v2",
        ("two CNNs", None, None, 0.1080, 0.1060),
        ("MLP on 63 grid statistics + 13 scalars", None, None, 0.1083, None),
        ("MLP on scalars alone", None, None, 0.118, None),
    ),
    *(
        PublishedResult("composition", "2026", system, value, accuracy, None, tuned)
        for system, value, accuracy, tuned in (
            ("five CNN + MLP networks, 16 views, best of 50 attempts, chosen on the test set", 0.1051, None, True),
            ("CNN + MLP networks, mean of 3 seeds (0.1054 ± 0.0003)", 0.1054, None, False),
            ("a second system, mean of 3 seeds (0.10560 ± 0.00005)", 0.10560, None, False),
            ("a third system, mean of 3 seeds (0.10589 ± 0.00048)", 0.10589, None, False),
            ("the best one, trained again with another seed (0.1053 at first)", 0.10926, None, False),
            ("second best of 50 attempts", 0.1052, None, True),
            ("third best of 50 attempts", 0.1054, None, True),
            ("fourth best of 50 attempts", 0.1063, None, True),
            ("average of the three best of 50 attempts, chosen on the test set", 0.1051, None, True),
            ("logistic stack of the three best, fitted on half of the test", 0.1057, None, True),
            ("balanced stack of the three best, fitted on half of the test", 0.1054, None, True),
            ("MLP stack of the three best, fitted on half of the test", 0.1070, None, True),
            ("LeNet baseline", 0.1073, 0.504, False),
        )
    ),
    *(
        PublishedResult("gamma", "2026", system, value, None, None, tuned)
        for system, value, tuned in (
            ("two-branch CNN, squeeze-and-excitation, 3 seeds, best of 50", 9 / 34_267, True),
            ("second best of 50 attempts", 2.92e-4, True),
            ("best of 7 attempts", 3.21e-4, True),
            ("best of 23 attempts", 3.50e-4, True),
            ("third best of 50 attempts", 3.79e-4, True),
            ("fourth best of 50 attempts", 4.09e-4, True),
            ("random forest baseline (about 1e-2)", 1e-2, False),
        )
    ),
    PublishedResult("gamma", "v2", "attention CNN + ResNet + ViT, weights chosen on test", 3.2e-4, tuned_on_test=True),
    PublishedResult("gamma", "v2", "attention CNN alone, best of 5 seeds", 4.4e-4, tuned_on_test=True),
    PublishedResult("gamma", "v2", "attention CNN alone, worst of 5 seeds", 7.3e-4),
    PublishedResult("gamma", "v2", "MLP ensemble", 6.4e-4),
    PublishedResult("gamma", "v2", "DNN + physics ensemble", 3.2e-3),
    PublishedResult("gamma", "v2", "MLP 512x2", 5.1e-3),
    PublishedResult("gamma", "v2", "MLP 517-512-512", 7.3e-3),
    PublishedResult("gamma", "v2", "trees on 8 to 15 scalars (5.3e-3 to 5.9e-3)", 5.3e-3),
    PublishedResult("gamma", "v2", "random forest of ICRC 2021 (1e-3 to 1e-2)", 1e-3),
)
"""Everything known; where a range was published, its better end, with the range in the name."""


def best_published(task: str) -> float:
    """Return the best published value of a task under the protocol that is scored now."""
    return published_for(task, "2026")[0].value


def published_for(task: str, protocol: str) -> list[PublishedResult]:
    """Return the published results of one task under one protocol, best first."""
    return sorted((p for p in PUBLISHED if (p.task, p.protocol) == (task, protocol)), key=lambda p: p.value)


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
