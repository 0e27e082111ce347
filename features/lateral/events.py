"""A chunk of events on a device: flattened planes, scalars as columns, and the station model applied to all of them.

The formulas are in :mod:`showerstack.features.lateral.station`; any array library will do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import is_cupy_namespace, is_numpy_namespace

from showerstack.features.lateral.translate import on_arrays
from showerstack.runtime.kernels import kernel_of
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.response import PUBLISHED, StationResponse

_split = kernel_of("showerstack.features.lateral.compiled", "split")


@dataclass(frozen=True)
class StationPlanes:
    """Geometry per cell, (cells,) float32, on the device of a namespace, in the fits' unit of length."""

    x_m: Any
    y_m: Any
    electron_area_m2: Any
    muon_area_m2: Any
    has_electron: Any
    """1 where a station stands, else 0."""
    has_muon: Any
    """1 where a muon detector stands, else 0."""
    no_muon: Any
    """1 for stations built without a muon detector (at KASCADE the 60 inner ones), else 0."""


@lru_cache(maxsize=16)
def stations(xp: ModuleType, array: DetectorArray = KASCADE) -> StationPlanes:
    """Return the array's geometry as arrays of ``xp``."""

    def plane(values: np.ndarray) -> Any:
        return xp.asarray(values.astype(np.float32).ravel())

    x_m, y_m, electron_area_m2, muon_area_m2 = (plane(values) for values in array.fit_geometry)
    return StationPlanes(
        x_m=x_m,
        y_m=y_m,
        electron_area_m2=electron_area_m2,
        muon_area_m2=muon_area_m2,
        has_electron=plane(array.has_electron),
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
    times_ns: Any = None
    """(n, cells): arrival time at each station, not finite where it has none; None where no times are known."""
    response: StationResponse = PUBLISHED
    array: DetectorArray = KASCADE

    def __len__(self) -> int:
        return int(self.electron_mev.shape[0])

    @property
    def is_on_cpu(self) -> bool:
        """Whether the arrays are not CuPy's."""
        return not is_cupy_namespace(self.xp)

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
    response: StationResponse | None = None,
    array: DetectorArray = KASCADE,
    times_ns: np.ndarray | None = None,
) -> EventBatch:
    """Return events on the device of ``xp``.

    Deposits in cells without a station (at KASCADE the centre; inner cells of the muon channel) are set to 0.

    Parameters
    ----------
    matrices
        (n, rows, columns, 2) float32, MeV per station, of NumPy or already of ``xp``; on the CPU float16 too, as
        :func:`showerstack.showers.event_files.bad_cells` does not name.
    scalars
        (n, 5) float32: E, Ze, Az, Ne, Nmu.
    response
        Constants of the detector that the fits are to use, by default the array's.
    times_ns
        (n, rows, columns) arrival times, not finite where a station has none; None where no times are known.
    """
    here = stations(xp, array)
    zenith_deg, azimuth_deg, lg_n_mu = (xp.asarray(np.ascontiguousarray(scalars[:, k])) for k in (1, 2, 4))
    if is_numpy_namespace(xp) and matrices.dtype == np.float16:
        bits = np.ascontiguousarray(matrices).view(np.uint16).reshape(len(matrices), array.n_cells, 2)
        electron_mev, muon_mev = (np.empty(bits.shape[:2], np.float32) for _ in range(2))
        _split(bits, here.has_electron, here.has_muon, electron_mev, muon_mev)
    else:
        flat = xp.reshape(xp.asarray(matrices), (matrices.shape[0], array.n_cells, 2))
        electron_mev, muon_mev = flat[:, :, 0] * here.has_electron, flat[:, :, 1] * here.has_muon
    return EventBatch(
        xp=xp,
        electron_mev=electron_mev,
        muon_mev=muon_mev,
        zenith_deg=zenith_deg,
        azimuth_deg=azimuth_deg,
        lg_n_mu=lg_n_mu,
        times_ns=None if times_ns is None else xp.asarray(times_ns.reshape(len(times_ns), -1).astype(np.float32)),
        response=array.response if response is None else response,
        array=array,
    )


def energy_correction(r_m: Any, response: StationResponse, xp: ModuleType) -> Any:
    """Return a(r): deposit per electron at distance r in units of a single electron's."""
    return on_arrays(xp).energy_correction(response, r_m)


def electron_density(r_m: Any, level: Any, age: Any, xp: ModuleType) -> Any:
    """Return rho_e at r; ``level`` is ln rho at the pivot without the fixed exponents."""
    return on_arrays(xp).electron_density(r_m, level, age)


def muon_density(r_m: Any, level: Any, muon_age: Any, xp: ModuleType) -> Any:
    """Return rho_mu at r; ``level`` as in :func:`electron_density`."""
    return on_arrays(xp).muon_density(r_m, level, muon_age)
