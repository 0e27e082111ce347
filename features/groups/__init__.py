"""Feature groups, one file each, which declares ``GROUPS`` and ``FEATURES`` and computes them; and what a feature is.

Files here stand in :data:`ORDER`; installed distributions have entry points. ``compute(fitted)``, if it has one, takes
:class:`showerstack.features.groups.FittedEvents`, a chunk of events with the lateral fits and the sums over stations
made once, and returns columns, each (n,) float32.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Self

from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.fit import RawFit, fit_cuda, fit_fused
from showerstack.features.lateral.muons_alone import fit_muons_alone
from showerstack.features.stations.cuda import grid_cuda, order_cuda, sum_cuda
from showerstack.features.stations.grid import grid_fused, order_fused
from showerstack.features.stations.on_cpu import sum_fused
from showerstack.features.stations.sums import PARTS, Sums
from showerstack.runtime.code import installed_modules

ORDER = ("reconstruction", "deposits", "published", "lateral", "muons", "profile", "times")
"""Files in the order of their columns in a table."""


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of all groups; those of entry points ``showerstack.features`` come last."""
    ours = [importlib.import_module(f"{__name__}.{name}") for name in ORDER]
    return (*ours, *installed_modules("showerstack.features").values())


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


OURS = "this project"
"""Source of features that nobody has published."""
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
    needs_fits
        Whether it needs the lateral fits.
    sums
        Part of the sums over stations that it needs beside the plain ones (:mod:`showerstack.features.stations.sums`),
        or ``""``.
    """

    name: str
    meaning: str
    sets: tuple[str, ...] = ("all",)
    needs_fits: bool = False
    sums: str = ""


def row(name: str, unit: str, low: float, high: float, meaning: str, formula: str, group: str, source: str) -> Feature:
    """Return a feature from the columns of a declaration: what it is, its range, its meaning, where it belongs."""
    return Feature(name, unit, meaning, formula, source, group, low, high)


def fit_showers(events: EventBatch) -> RawFit:
    """Fit the lateral distributions that the array sees, on the device where the events are."""
    if not events.array.has_electron.any():
        return fit_muons_alone(events)
    return fit_fused(events) if events.is_on_cpu else fit_cuda(events)


def sum_stations(events: EventBatch, raw: RawFit, parts: frozenset[str] = PARTS) -> Sums:
    """Return the sums over stations that the features around the core are made of, with the parts asked for."""
    return (sum_fused if events.is_on_cpu else sum_cuda)(events, raw, parts)


def sum_grid(events: EventBatch) -> dict[str, Any]:
    """Return the sums over the grid that need no core (:mod:`showerstack.features.stations.grid`)."""
    return (grid_fused if events.is_on_cpu else grid_cuda)(events)


def order_deposits(events: EventBatch) -> dict[str, Any]:
    """Return largest deposits and quantiles of both channels."""
    return (order_fused if events.is_on_cpu else order_cuda)(events)


@dataclass(frozen=True)
class FittedEvents:
    """What a feature group computes from; fits and sums are made when the first group asks for them."""

    events: EventBatch
    parts: frozenset[str] = PARTS
    """What the sums hold beside the plain ones."""
    columns: dict[str, Any] = field(default_factory=dict)
    """(n,) float32 columns of the groups computed so far, the fits' before those that build on them."""
    groups: frozenset[str] | None = None
    """Groups that are asked for; None: all."""

    @classmethod
    def given(cls, events: EventBatch, fit: RawFit, sums: Sums) -> Self:
        """Return events whose fits and sums were made elsewhere."""
        fitted = cls(events)
        fitted.__dict__.update(fit=fit, sums=sums)
        return fitted

    def wants(self, group: str) -> bool:
        """Return whether a group is asked for: a file with several need not compute the others."""
        return self.groups is None or group in self.groups

    @property
    def xp(self) -> ModuleType:
        """The array namespace."""
        return self.events.xp

    @cached_property
    def fit(self) -> RawFit:
        """Parameters and Fisher matrices of both lateral fits."""
        return fit_showers(self.events)

    @cached_property
    def sums(self) -> Sums:
        """Sums over stations at the fitted core."""
        return sum_stations(self.events, self.fit, self.parts)

    @cached_property
    def grid(self) -> dict[str, Any]:
        """Sums over the grid that need no core (:mod:`showerstack.features.stations.grid`)."""
        return sum_grid(self.events)

    @cached_property
    def order(self) -> dict[str, Any]:
        """Largest deposits and quantiles of both channels."""
        return order_deposits(self.events)
