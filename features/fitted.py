"""A chunk of events with what most features are made of: the lateral fits and the sums over stations, made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Self

from array_api_compat import is_cupy_namespace, is_numpy_namespace

from features.events import EventBatch
from features.lateral.compiled.cpu import fit_fused
from features.lateral.fit import RawFit
from features.lateral.gpu import fit_cuda
from features.stations.cpu import sum_fused
from features.stations.sums import Sums, sum_reference


def fit_showers(events: EventBatch) -> RawFit:
    """Fit both lateral distributions, on the device where the events are."""
    return fit_cuda(events) if is_cupy_namespace(events.xp) else fit_fused(events)


def sum_stations(events: EventBatch, raw: RawFit) -> Sums:
    """Return the sums over stations that the features around the core are made of."""
    if is_numpy_namespace(events.xp):
        return sum_fused(events, raw)
    return sum_reference(events, raw)


@dataclass(frozen=True)
class FittedEvents:
    """What a feature group computes from; fits and sums are made when the first group asks for them."""

    events: EventBatch
    columns: dict[str, Any] = field(default_factory=dict)
    """(n,) float32 columns of the groups computed so far, the fits' before those that build on them."""

    @classmethod
    def given(cls, events: EventBatch, fit: RawFit, sums: Sums) -> Self:
        """Return events whose fits and sums were made elsewhere."""
        seen = cls(events)
        seen.__dict__.update(fit=fit, sums=sums)
        return seen

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
        return sum_stations(self.events, self.fit)
