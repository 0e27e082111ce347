"""Known facts of the real KASCADE simulation sets, with the tolerance within which ours must reproduce them.

The numbers are published ones or were deduced from published tables, weights and event counts of the public benchmark
``vvsotnikov/astro-bench``. Tolerances: means within 0.10 of the real standard deviation, standard deviations within
5 %, correlations within 0.06, class fractions within 0.015, cell moments within 5 %, pass rates within 20 %, fractions
of energy bins within 0.03; where classes are counted in bins of energy, a bin's share within 15 % and the class
fractions in it within 0.03.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from showerstack.showers.schema import COMPOSITION

MEAN_IN_SD = 0.10
SD_RELATIVE = 0.05
CORRELATION = 0.06
CLASS_FRACTION = 0.015
CELLS_RELATIVE = 0.05
PASS_RELATIVE = 0.20
ENERGY_BIN = 0.03
BIN_RELATIVE = 0.15
CLASS_IN_BIN = 0.03

MATCHED = "composition, matched cuts, QGSJet"
BY_ENERGY = "composition, matched cuts, QGSJet, by energy"
FREE = "composition, no cuts, mix"
PROTONS = "gamma sets, no cuts, protons"
GAMMAS = "gamma sets, no cuts, gammas"
GAMMA_TEST = "gamma test sets"

CUT_OUT = 0.981
"""Share of cells that survived the cut-out augmentation still contained in the published products of cells."""
ENERGY_EDGES = (14.0, 14.5, 15.0, 15.5, 16.0, 16.5, 17.0, 18.0)
"""Bins of the hadrons of the gamma test set."""
CLASS_COUNTS = {
    (14.0, 15.0): (3989, 1627, 642, 503, 766),
    (15.0, 15.5): (18510, 15814, 12464, 10407, 8835),
    (15.5, 16.0): (7014, 6917, 6693, 6403, 6274),
    (16.0, 16.5): (1368, 1280, 1143, 1026, 1017),
    (16.5, 17.0): (345, 304, 358, 307, 321),
    (17.0, 18.0): (136, 167, 130, 146, 158),
}
"""Events of each class, matched protocol, by reconstructed lg E."""


@dataclass(frozen=True)
class Fact:
    """One number known of the real data."""

    sample: str
    """Which events it describes."""
    name: str
    real: float
    tolerance: float
    """Largest acceptable absolute deviation."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the fact."""
        return self.sample, self.name


def _moments(sample: str, moments: dict[str, tuple[float, float]]) -> Iterator[Fact]:
    for name, (mean, sd) in moments.items():
        yield Fact(sample, f"mean {name}", mean, MEAN_IN_SD * sd)
        yield Fact(sample, f"sd {name}", sd, SD_RELATIVE * sd)


def _plain(sample: str, values: dict[str, float], tolerance: float) -> Iterator[Fact]:
    for name, value in values.items():
        yield Fact(sample, name, value, tolerance)


def _relative(sample: str, values: dict[str, float], share: float) -> Iterator[Fact]:
    for name, value in values.items():
        yield Fact(sample, name, value, share * value)


def _fractions(sample: str, values: tuple[float, ...]) -> Iterator[Fact]:
    named = {f"fraction {name}": value for name, value in zip(COMPOSITION.classes, values, strict=True)}
    return _plain(sample, named, CLASS_FRACTION)


def _energy_bins() -> Iterator[Fact]:
    fractions = (0.004, 0.150, 0.543, 0.208, 0.065, 0.021, 0.009)
    for (low, high), value in zip(itertools.pairwise(ENERGY_EDGES), fractions, strict=True):
        yield Fact(GAMMA_TEST, f"hadrons in lg E {low:g}-{high:g}", value, ENERGY_BIN)


def _class_counts() -> Iterator[Fact]:
    total = sum(sum(counts) for counts in CLASS_COUNTS.values())
    for (low, high), counts in CLASS_COUNTS.items():
        inside, share = f"lg E {low:g}-{high:g}", sum(counts) / total
        yield Fact(BY_ENERGY, f"share in {inside}", share, BIN_RELATIVE * share)
        for name, count in zip(COMPOSITION.classes, counts, strict=True):
            yield Fact(BY_ENERGY, f"{inside}: fraction {name}", count / sum(counts), CLASS_IN_BIN)


FACTS: tuple[Fact, ...] = (
    *_fractions(MATCHED, (0.276, 0.227, 0.185, 0.162, 0.149)),
    *_moments(
        MATCHED,
        {
            "Ne": (5.237, 0.414),
            "Nmu": (4.455, 0.384),
            "Age": (1.006, 0.117),
            "Ze": (18.20, 7.24),
            "Ne-Nmu": (0.782, 0.221),
            "E": (15.447, 0.377),
        },
    ),
    *_plain(
        MATCHED,
        {
            "corr Ne Nmu": 0.849,
            "corr Ne Age": -0.423,
            "corr Nmu Age": -0.240,
            "corr Age Ze": 0.122,
            "corr Ne E": 0.919,
            "corr Nmu E": 0.973,
            "corr Age E": -0.294,
            "corr Ze E": 0.174,
        },
        CORRELATION,
    ),
    *_relative(
        MATCHED,
        {
            "mean log1p e": 2.56,
            "mean log1p mu": 0.677,
            "mean log1p e, border rows": 1.77,
            "mean log1p mu, border rows": 0.707,
            "product e e, lag 0": 10.86,
            "product e e, lag 1": 9.18,
            "product e e, lag 2": 8.44,
            "product mu mu, lag 0": 1.93,
            "product mu mu, lag 1": 1.08,
            "product mu mu, lag 2": 0.877,
            "product e mu, lag 0": 2.68,
            "zero cells e": 0.34,
            "zero cells mu": 0.79,
        },
        CELLS_RELATIVE,
    ),
    Fact(MATCHED, "below lg E = 15", 0.081, ENERGY_BIN),
    Fact(MATCHED, "below lg E = 15: fraction iron", 766 / 7_527, 0.03),
    Fact(FREE, "pass Ze, Ne, Age cuts", 0.0856, PASS_RELATIVE * 0.0856),
    *_fractions(FREE, (0.2120, 0.2131, 0.2053, 0.1933, 0.1763)),
    Fact(FREE, "below lg E = 15", 0.75, ENERGY_BIN),
    *_moments(PROTONS, {"E": (14.591, 0.478), "Ne": (4.128, 0.661), "Nmu": (3.536, 0.461), "Ze": (25.5, 10.0)}),
    *_relative(
        PROTONS,
        {"median sum e": 975.0, "median sum mu": 77.0, "median max": 139.0, "non-zero cells": 0.165},
        CELLS_RELATIVE,
    ),
    Fact(PROTONS, "pass Ze, Ne, Age cuts", 0.094, PASS_RELATIVE * 0.094),
    *_moments(GAMMAS, {"E": (14.60, 0.66), "Ne": (4.36, 0.91), "Nmu": (3.067, 0.472), "Ze": (30.8, 12.7)}),
    Fact(GAMMAS, "pass Ze, Ne, Age cuts", 0.083, PASS_RELATIVE * 0.083),
    Fact(GAMMAS, "share of all events", 0.0478, PASS_RELATIVE * 0.0478),
    Fact(GAMMA_TEST, "gammas, median Nmu", 2.83, MEAN_IN_SD * 0.472),
    Fact(GAMMA_TEST, "gammas, median Ne-Nmu", 2.65, MEAN_IN_SD * 0.472),
    *_energy_bins(),
    *_class_counts(),
    Fact(FREE, "pass Ze, Ne, Age cuts, QGSJet", 0.0939, PASS_RELATIVE * 0.0939),
    Fact(FREE, "pass Ze, Ne, Age cuts, EPOS", 0.0733, PASS_RELATIVE * 0.0733),
)


TRADES: dict[tuple[str, str], str] = {
    (MATCHED, "fraction proton"): "fewer electrons from nuclei would give it and make the classes too easy to tell",
    (MATCHED, "fraction carbon"): "fewer electrons from nuclei would give it and make the classes too easy to tell",
    (MATCHED, "product e mu, lag 0"): "more punch-through would give it and spoil the muon sums of uncut protons",
    (MATCHED, "below lg E = 15: fraction iron"): "losing muons in the scalar alone would give it and widen Ne-Nmu",
    (FREE, "below lg E = 15"): "fixed by the spectrum share, which the energies under cuts fix too",
    (PROTONS, "mean E"): "a lower energy constant would give it and lower E under cuts",
    (PROTONS, "mean Nmu"): "fewer muons would give it and lower the muon cells under cuts, low already",
    (PROTONS, "sd Nmu"): "a lower muon floor widens it; a higher one lifts the gammas' median",
    (PROTONS, "median max"): "a larger deposit per electron would give it and lift the median sum",
    (PROTONS, "non-zero cells"): "more strays would give it; zero cells under cuts are low already",
    (GAMMAS, "sd E"): "fewer photons of high energy would give it and lower the test gammas' Ne-Nmu further",
    (GAMMAS, "mean Nmu"): "more photon muons would give it and lift the test gammas' median further",
    (GAMMAS, "sd Ze"): "a wider zenith law would give it and raise the pass rate",
    (GAMMAS, "pass Ze, Ne, Age cuts"): "photons thrown at larger zenith would give it and lift their mean zenith",
    (GAMMA_TEST, "gammas, median Nmu"): "fewer soft photon muons would give it and lower the uncut mean further",
    (GAMMA_TEST, "gammas, median Ne-Nmu"): "more photons of high energy would give it and widen the uncut E",
}
"""Facts that the default world misses, and what meeting them would cost."""
