"""The protocols of the public benchmark: which raw modes they take, which cuts they make, how they store events.

Cuts are compared at the precision of the column. Stored sets are compared in float32, as the benchmark does: 4.8 stored
as float16 reads 4.80078 and passes ``Ne > 4.8``; a raw zenith of 29.997 is stored as 30.0 and fails. Scores of
different protocols cannot be compared, and are never shown in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.showers.kascade import AGE_MAX, AGE_MIN, LG_NE_MIN, LG_NMU_MIN, ZENITH_MAX_DEG
from showerstack.showers.schema import AGE, COMPOSITION, GAMMA, SCALAR_NAMES, Task

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Cut:
    """Limits of one quantity; what is not a number passes none."""

    name: str
    column: str
    low: float | None = None
    high: float | None = None
    """Values lie above ``low`` and below ``high``, compared at the precision of the column."""
    unknown: str | None = None
    """What to call the quantity where a set lacks it, and it is not cut; None: it must be there."""

    def passes(self, columns: Columns) -> np.ndarray:
        """Return which events pass, (N,) bool."""
        values = np.asarray(columns[self.column])
        passed = ~np.isnan(values)
        if self.low is not None:
            passed &= values > self.low
        if self.high is not None:
            passed &= values < self.high
        return passed

    def is_known(self, columns: Columns) -> bool:
        """Return whether the column is there and, where it may lack, defined for some event."""
        if self.column not in columns:
            return False
        return self.unknown is None or bool(np.isfinite(np.asarray(columns[self.column])).any())


Columns: TypeAlias = "Mapping[str, np.ndarray] | pl.DataFrame"


@dataclass(frozen=True)
class CutSet:
    """An ordered selection with a name that ``source.json`` can refer to."""

    name: str
    cuts: tuple[Cut, ...]

    def mask(self, columns: Columns) -> np.ndarray:
        """Return which events pass all cuts, (N,) bool.

        Raises
        ------
        InputError
            If a column that a cut needs is missing.
        """
        passed = np.ones(_height(columns), dtype=bool)
        for cut in self.applicable(columns):
            passed &= cut.passes(columns)
        return passed

    def flow(self, columns: Columns) -> dict[str, int]:
        """Return how many events each cut leaves, one after the other."""
        passed, left = np.ones(_height(columns), dtype=bool), {}
        for cut in self.applicable(columns):
            passed &= cut.passes(columns)
            left[cut.name] = int(passed.sum())
        return left

    def applicable(self, columns: Columns) -> list[Cut]:
        """Return the cuts that can be made: all, or without those on quantities that the set may lack."""
        known = [cut for cut in self.cuts if cut.is_known(columns)]
        for cut in self.cuts:
            if cut not in known and cut.unknown is None:
                raise InputError(f"cut {cut.name!r} of {self.name!r} needs column {cut.column}")
        return known

    def not_applied(self, columns: Columns) -> list[str]:
        """Return the names of the quantities that a set lacks, and that therefore cut nothing."""
        return [cut.unknown for cut in self.cuts if cut.unknown is not None and not cut.is_known(columns)]


def _height(columns: Columns) -> int:
    return len(next(iter(columns.values()))) if isinstance(columns, Mapping) else columns.height


_ZENITH = Cut(f"Ze < {ZENITH_MAX_DEG:g}", "Ze", high=ZENITH_MAX_DEG)
_UPWARD = Cut("Ze > 0", "Ze", low=0.0)
_ELECTRONS = Cut(f"Ne > {LG_NE_MIN:g}", "Ne", low=LG_NE_MIN)
_MUONS = Cut(f"Nmu > {LG_NMU_MIN:g}", "Nmu", low=LG_NMU_MIN)
_AGE = (Cut(f"Age > {AGE_MIN:g}", "Age", low=AGE_MIN), Cut(f"Age < {AGE_MAX:g}", "Age", high=AGE_MAX))

NONE = CutSet("none", ())
TEST = CutSet("test", (_ZENITH, _ELECTRONS))
"""The test's cuts as far as the stored columns show them (the age cut removes almost nothing more)."""
TEST_WITH_AGE = CutSet("test_age", (*TEST.cuts, *_AGE))
TEST_2026 = CutSet("test_2026", (_UPWARD, *TEST.cuts))
"""The cuts of the 2026 protocol's gamma test as far as the stored columns show them."""
TEST_2026_WITH_AGE = CutSet("test_2026_age", (_UPWARD, *TEST_WITH_AGE.cuts))
MATCHED = CutSet("matched", (_UPWARD, *TEST_WITH_AGE.cuts, _MUONS))
"""The matched protocol of the JINST 2024 comparison."""

CUT_SETS: dict[str, CutSet] = {
    cuts.name: cuts for cuts in (NONE, TEST, TEST_WITH_AGE, TEST_2026, TEST_2026_WITH_AGE, MATCHED)
}


def cut_set_named(name: str) -> CutSet:
    """Return the cut set called ``name``."""
    try:
        return CUT_SETS[name]
    except KeyError:
        raise InputError(f"unknown cut set {name!r}: choose one of {', '.join(CUT_SETS)}") from None


def scalar_frame(scalars: np.ndarray, age: np.ndarray | None = None) -> pl.DataFrame:
    """Return the reconstructed scalars as a float32 table with the benchmark's column names.

    Parameters
    ----------
    scalars
        (N, 5) float, columns E, Ze, Az, Ne, Nmu.
    age
        (N,) float or None.
    """
    import polars as pl  # a tenth of a second, which scores do not need

    columns = {name: np.asarray(scalars[:, k], dtype=np.float32) for k, name in enumerate(SCALAR_NAMES)}
    if age is not None:
        columns[AGE.name] = np.asarray(age, dtype=np.float32)
    return pl.DataFrame(columns)


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
LABELS_FROM_TYPE = frozenset({*CUTS_FOR_ALL, ("2026", GAMMA.name)})
"""Where labels are the raw files' first column (1..5, or 0 and 1 for gamma); elsewhere they are the true particle."""
_EVALUATION_CUTS = {**CUTS_FOR_ALL, ("2026", GAMMA.name): TEST_2026.name}
SHUFFLED = frozenset({"v2", "matched"})
"""Protocols whose published rows follow the raw files, class after class; rows of the others are permuted already."""


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
UNROUNDED = Layout(np.float32, np.float32)
"""Of other arrays than KASCADE."""
_LAYOUTS = {
    ("matched", COMPOSITION.name): Layout(scalar_type=np.float32, age="file"),
    ("2026", COMPOSITION.name): Layout(np.float32, np.float32, "column"),
    ("2026", GAMMA.name): UNROUNDED,
}


def layout_of(protocol: str, task: Task) -> Layout:
    """Return how a protocol stores a task's events."""
    return _LAYOUTS.get((protocol, str(task.primaries)), PUBLISHED_LAYOUT)


def evaluation_cuts_of(protocol: str, task: Task) -> str:
    """Return the name of the cuts under which predictions of a task are scored."""
    return _EVALUATION_CUTS.get((protocol, str(task.primaries)), TEST.name)


def modes_of(protocol: str, task: Task) -> tuple[str, ...]:
    """Return the raw modes of a protocol."""
    try:
        return MODES[protocol, str(task.primaries)]
    except KeyError:
        known = ", ".join(f"{p} {t}" for p, t in MODES)
        raise InputError(f"no protocol {protocol!r} for task {task.name!r}: there are {known}") from None
