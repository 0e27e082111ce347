"""What a feature is: one column of the table, declared once beside the code that computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One column of the feature table.

    Parameters
    ----------
    name
        Column name, with the unit where it is not obvious.
    unit
        ``1`` for pure numbers, ``lg`` for decimal logarithms.
    meaning
        One sentence for people.
    formula
        How it is computed.
    source
        Publication, or ``this project``.
    group
        Name of the group it is switched on and off with.
    low, high
        Range in which defined values lie; outside means a bug or a damaged file.
    """

    name: str
    unit: str
    meaning: str
    formula: str
    source: str
    group: str
    low: float = -math.inf
    high: float = math.inf


FITS = ("fits", "fits+core", "fits+profile")
"""Sets of everything that the fits say; the last two add to the first."""


@dataclass(frozen=True)
class Group:
    """Columns that are switched on and off together.

    Parameters
    ----------
    name
        What the group is called in options and in :attr:`Feature.group`.
    meaning
        What it holds.
    sets
        Named sets that learners ask for and that contain the group.
    fitted
        Whether it needs the lateral fits.
    """

    name: str
    meaning: str
    sets: tuple[str, ...] = ("all",)
    fitted: bool = False


def row(name: str, unit: str, low: float, high: float, meaning: str, formula: str, group: str, source: str) -> Feature:
    """Return a feature from the columns of a declaration: what it is, its range, its meaning, where it belongs."""
    return Feature(name, unit, meaning, formula, source, group, low, high)
