"""A chunk of events on a device: flattened planes, scalars as columns, and the array's geometry beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from features.lateral.constants import PUBLISHED, StationResponse
from showers.array import DetectorArray
from showers.kascade import KASCADE


@dataclass(frozen=True)
class StationPlanes:
    """Geometry per cell, (cells,) float32, on the device of a namespace."""

    x_m: Any
    y_m: Any
    electron_area_m2: Any
    muon_area_m2: Any
    has_electron: Any
    """1 where a station stands, else 0."""
    has_muon: Any
    """1 where a muon detector stands, else 0."""
    no_muon: Any
    """1 for stations without a muon detector (at KASCADE the 60 inner ones), else 0."""


@lru_cache(maxsize=16)
def stations(xp: ModuleType, array: DetectorArray = KASCADE) -> StationPlanes:
    """Return the array's geometry as arrays of ``xp``."""

    def plane(values: np.ndarray) -> Any:
        return xp.asarray(values.astype(np.float32).ravel())

    return StationPlanes(
        x_m=plane(array.x_m),
        y_m=plane(array.y_m),
        electron_area_m2=plane(array.electron_area_m2),
        muon_area_m2=plane(array.muon_area_m2),
        has_electron=plane(array.has_station),
        has_muon=plane(array.has_muon),
        no_muon=plane(array.no_muon),
    )


@dataclass(frozen=True)
class EventBatch:
    """``n`` events on a device; all arrays float32 of the namespace ``xp``."""

    xp: ModuleType
    electron_mev: Any
    """(n, cells): deposit of each e/gamma station, 0 where there is none."""
    muon_mev: Any
    """(n, cells): deposit of each muon station, 0 where there is none."""
    zenith_deg: Any
    """(n,)"""
    azimuth_deg: Any
    """(n,)"""
    lg_n_mu: Any
    """(n,): reconstructed lg N_mu."""
    response: StationResponse = PUBLISHED
    array: DetectorArray = KASCADE

    def __len__(self) -> int:
        return int(self.electron_mev.shape[0])

    @property
    def stations(self) -> StationPlanes:
        """The array's geometry on the same device."""
        return stations(self.xp, self.array)

    @cached_property
    def cos_zenith(self) -> Any:
        """(n,): cosine of the zenith angle, not below 0.1 (84 degrees) so that projected areas stay positive."""
        cosine = self.xp.cos(self.zenith_deg * (math.pi / 180.0))
        return self.xp.where(cosine > 0.1, cosine, cosine * 0.0 + 0.1)

    @cached_property
    def direction(self) -> tuple[Any, Any]:
        """Horizontal part of the axis' unit vector: sin(zenith) times cosine and sine of the azimuth, (n,) each."""
        sine = self.xp.sin(self.zenith_deg * (math.pi / 180.0))
        azimuth = self.azimuth_deg * (math.pi / 180.0)
        return sine * self.xp.cos(azimuth), sine * self.xp.sin(azimuth)

    @cached_property
    def electron_hit(self) -> Any:
        """(n, cells) float32: 1 where an e/gamma station reports a deposit."""
        return self.xp.astype(self.electron_mev > 0.0, self.xp.float32)

    @cached_property
    def muon_hit(self) -> Any:
        """(n, cells) float32: 1 where a muon station reports a deposit."""
        return self.xp.astype(self.muon_mev > 0.0, self.xp.float32)

    @cached_property
    def electron_sorted(self) -> Any:
        """(n, cells): deposits of the e/gamma channel in ascending order."""
        return self.xp.sort(self.electron_mev, axis=1, stable=False)

    @cached_property
    def muon_sorted(self) -> Any:
        """(n, cells): deposits of the muon channel in ascending order."""
        return self.xp.sort(self.muon_mev, axis=1, stable=False)


def make_events(
    xp: ModuleType,
    matrices: Any,
    scalars: np.ndarray,
    response: StationResponse = PUBLISHED,
    array: DetectorArray = KASCADE,
) -> EventBatch:
    """Return events on the device of ``xp``.

    Deposits in cells without a station (at KASCADE the centre; inner cells of the muon channel) are set to 0.

    Parameters
    ----------
    xp
        Array namespace.
    matrices
        (n, rows, columns, 2) float32, MeV per station, of NumPy or already of ``xp``.
    scalars
        (n, 5) float32: E, Ze, Az, Ne, Nmu.
    response
        Constants of the detector that the fits are to use.
    array
        The stations.
    """
    here = stations(xp, array)
    flat = xp.reshape(xp.asarray(matrices), (matrices.shape[0], array.n_cells, 2))
    zenith_deg, azimuth_deg, lg_n_mu = (xp.asarray(np.ascontiguousarray(scalars[:, k])) for k in (1, 2, 4))
    return EventBatch(
        xp=xp,
        electron_mev=flat[:, :, 0] * here.has_electron,
        muon_mev=flat[:, :, 1] * here.has_muon,
        zenith_deg=zenith_deg,
        azimuth_deg=azimuth_deg,
        lg_n_mu=lg_n_mu,
        response=response,
        array=array,
    )
