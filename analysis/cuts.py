"""The cuts of published analyses, one by one, and how many events pass each: the same on data and simulation.

JINST 19 (2024) P01025: zenith angle, lg Ne, lg Nmu (spectra alone), age, and a core within the disc of the exposure.
Age and core are cut where both sides know them; which were not is remarked upon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AGE, CORE = "Age", "core_m"
"""Columns that a set may lack: NaN there for all events."""
AGE_MIN, AGE_MAX = 0.2, 1.48
CORE_MAX_M = 91.0
LG_NE_MIN, LG_NMU_MIN = 4.8, 3.6


@dataclass(frozen=True)
class Cuts:
    """Limits, compared in float32 as the benchmark does."""

    zenith_max_deg: float
    lg_nmu_min: float | None = None
    lg_ne_min: float = LG_NE_MIN

    def steps(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return which events pass each cut alone, (N,) bool each, by its words.

        Parameters
        ----------
        columns
            (N,) by name: Ze, Ne, Nmu, and where known Age and core_m (distance from the centre, m). A column that is
            missing, or undefined for every event, cuts nothing; an event whose own value is undefined does not pass.
        """
        ze, ne, nmu = (columns[name] for name in ("Ze", "Ne", "Nmu"))
        result = {
            f"zenith < {self.zenith_max_deg:g} deg": ze < np.float32(self.zenith_max_deg),
            f"lg Ne > {self.lg_ne_min:g}": ne > np.float32(self.lg_ne_min),
        }
        if self.lg_nmu_min is not None:
            result[f"lg Nmu > {self.lg_nmu_min:g}"] = nmu > np.float32(self.lg_nmu_min)
        if is_known(columns, AGE):
            age = columns[AGE]
            result[f"{AGE_MIN:g} < age < {AGE_MAX:g}"] = (age > np.float32(AGE_MIN)) & (age < np.float32(AGE_MAX))
        if is_known(columns, CORE):
            result[f"core within {CORE_MAX_M:g} m"] = columns[CORE] < np.float32(CORE_MAX_M)
        return result

    def mask(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Return which events pass all cuts, (N,) bool."""
        return np.logical_and.reduce(list(self.steps(columns).values()))

    def flow(self, columns: dict[str, np.ndarray]) -> dict[str, int]:
        """Return how many events are left after each cut, in order, all of them first."""
        left = np.ones(len(columns["Ze"]), dtype=bool)
        counts = {"all": len(left)}
        for words, passed in self.steps(columns).items():
            left &= passed
            counts[words] = int(left.sum())
        return counts

    def not_cut(self, columns: dict[str, np.ndarray]) -> list[str]:
        """Return the names of the quantities that a set lacks, and that therefore cut nothing."""
        names = ((AGE, "age"), (CORE, "position of the core"))
        return [words for column, words in names if not is_known(columns, column)]


def is_known(columns: dict[str, np.ndarray], name: str) -> bool:
    """Tell whether a column is there and defined for some event."""
    return name in columns and bool(np.isfinite(columns[name]).any())


def added(flows: list[dict[str, int]]) -> dict[str, int]:
    """Return cut-flows of several folders together; a cut that one folder lacks counts what it had before it."""
    words = list(dict.fromkeys(name for flow in flows for name in flow))
    total = dict.fromkeys(words, 0)
    for flow in flows:
        last = 0
        for name in words:
            last = flow.get(name, last)
            total[name] += last
    return total


def flow_words(flows: list[dict[str, int]]) -> str:
    """Return a cut-flow in one line."""
    return ", ".join(f"{name} {count:,}" for name, count in added(flows).items())
