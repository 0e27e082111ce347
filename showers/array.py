"""A detector array: where its stations stand, what each of them carries, and which trigger together; and KASCADE's.

Everything that simulates, reads or draws events takes an array (:data:`showerstack.showers.array.KASCADE` by default),
so that another one needs no more than another :class:`DetectorArray`.

KASCADE has the positions and areas published by T. Antoni et al., Nucl. Instrum. Meth. A 513 (2003) 490: a 16 x 16 grid
of 13 m pitch whose four central positions have no station; the 60 inner stations have four e/gamma detectors and no
muon detector, the 192 outer ones two e/gamma detectors above a muon detector; 4 x 4 stations trigger together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.showers.atmosphere import air_density
from showerstack.showers.card import KASCADE_CARD, NO_CARD, ArrayCard
from showerstack.showers.lateral import ELECTRON_R0_M
from showerstack.showers.response import StationResponse

CHANNELS = 2
"""Readings per cell: e/gamma and muon deposit."""
_TYPES = {"cluster": np.int64}
KASCADE_SIDE, KASCADE_PITCH_M = 16, 13.0
"""KASCADE's grid: cells along a side, and their distance."""
CORE_LIMIT_PITCHES = 3.5
"""How far beyond the cells the fits look for cores, in pitches."""


@dataclass(frozen=True, eq=False)
class DetectorArray:
    """Stations in the cells of a rectangular grid; two arrays with the same content are equal.

    Raises
    ------
    InputError
        For planes of different shapes, positions or areas that are not finite, negative areas, an array without
        stations, or a pitch that is not positive.
    """

    name: str
    pitch_m: float
    """Distance between neighbouring cells, m."""
    x_m: np.ndarray
    """(R, C) float64, m: x of each cell's centre, from the array's centre."""
    y_m: np.ndarray
    """(R, C) float64, m: y of each cell's centre."""
    electron_area_m2: np.ndarray
    """(R, C) float64, m2: sensitive e/gamma area, 0 where there is no station."""
    muon_area_m2: np.ndarray
    """(R, C) float64, m2: sensitive muon area, 0 where there is no muon detector."""
    cluster: np.ndarray
    """(R, C) int64: number 0.. of the trigger unit a cell belongs to."""
    card: ArrayCard = NO_CARD
    """What the array says of itself; KASCADE's own where stations stand at its places and nothing is said."""

    def __post_init__(self) -> None:
        for name in PLANES:
            plane = np.array(getattr(self, name), dtype=_TYPES.get(name, np.float64))
            plane.setflags(write=False)
            object.__setattr__(self, name, plane)
        shapes = {getattr(self, name).shape for name in PLANES}
        if len(shapes) != 1 or len(self.x_m.shape) != 2:
            raise InputError(f"array {self.name}: planes of shapes {sorted(shapes)}, expected one (rows, columns)")
        if not all(np.isfinite(getattr(self, name)).all() for name in PLANES) or not self.pitch_m > 0:
            raise InputError(f"array {self.name}: positions, areas and pitch must be finite, and the pitch positive")
        if (self.electron_area_m2 < 0).any() or (self.muon_area_m2 < 0).any() or (self.cluster < 0).any():
            raise InputError(f"array {self.name}: areas and cluster numbers must not be negative")
        if not self.has_station.any():
            raise InputError(f"array {self.name}: no station has an area, expected some that do")
        if self.card == NO_CARD:
            object.__setattr__(self, "card", self._default_card)

    @property
    def _default_card(self) -> ArrayCard:
        """The card of an array that says nothing."""
        x_m, y_m = lattice(KASCADE_SIDE, KASCADE_PITCH_M)
        at_kascade = np.array_equal(self.x_m, x_m) and np.array_equal(self.y_m, y_m)
        return KASCADE_CARD if at_kascade else NO_CARD

    @property
    def grid_shape(self) -> tuple[int, int, int]:
        """(rows, columns, channels) of one event."""
        return (*self.x_m.shape, CHANNELS)

    @property
    def n_cells(self) -> int:
        """Cells of the grid, with or without a station."""
        return self.x_m.size

    @cached_property
    def has_station(self) -> np.ndarray:
        """(R, C) bool: a detector of either kind."""
        return self.has_electron | self.has_muon

    @cached_property
    def has_electron(self) -> np.ndarray:
        """(R, C) bool: stations with an e/gamma detector; at KASCADE all."""
        return self.electron_area_m2 > 0

    @cached_property
    def has_muon(self) -> np.ndarray:
        """(R, C) bool: stations with a muon detector."""
        return self.muon_area_m2 > 0

    @cached_property
    def complete(self) -> Self:
        """The array as it was built, before :meth:`without`."""
        return self

    @cached_property
    def no_muon(self) -> np.ndarray:
        """(R, C) bool: stations built without one (at KASCADE the inner ones); :meth:`without` adds none."""
        return self.has_station & ~self.has_muon

    @cached_property
    def cells(self) -> np.ndarray:
        """(S,) int64: flat cell number of each station."""
        return np.flatnonzero(self.has_station)

    @property
    def n_stations(self) -> int:
        """Stations, S."""
        return len(self.cells)

    @property
    def n_muon_detectors(self) -> int:
        """Stations with a muon detector."""
        return int(self.has_muon.sum())

    @property
    def title(self) -> str:
        """Name and numbers of detectors, for messages."""
        return f"{self.name} ({self.n_stations} stations, {self.n_muon_detectors} with a muon detector)"

    @cached_property
    def half_side_m(self) -> float:
        """Half the side of the square that the cells cover, m."""
        return float(max(np.abs(self.x_m).max(), np.abs(self.y_m).max()) + self.pitch_m / 2)

    @cached_property
    def square_ring(self) -> np.ndarray:
        """(R, C) int64: number of the square ring about the array's centre on which a cell lies, 0 the innermost."""
        return np.floor(np.maximum(np.abs(self.x_m), np.abs(self.y_m)) / self.pitch_m + 0.01).astype(np.int64)

    @property
    def depth_g_cm2(self) -> float | None:
        """Vertical atmospheric depth of the ground, g/cm2; None where nobody said."""
        return self.card.depth_g_cm2

    @cached_property
    def core_limit_m(self) -> float:
        """Largest coordinate of a fitted core from the centre, m: 3.5 pitches beyond the cells (KASCADE 150)."""
        return self.card.fit.get("core_limit_m", self.half_side_m + CORE_LIMIT_PITCHES * self.pitch_m)

    @cached_property
    def core_spread_m(self) -> float:
        """Prior spread of a core's coordinates, m: that of cores all over the square of the cells (KASCADE 60)."""
        return self.card.fit.get("core_spread_m", self.half_side_m / math.sqrt(3.0))

    @property
    def optimum_m(self) -> float:
        """Distance from the axis at which the stations tell a density best, m: two thirds of their spacing."""
        return 2.0 / 3.0 * self.pitch_m

    @cached_property
    def fit_unit_m(self) -> float:
        """Unit of length of the fits, m: showers are wider in thinner air, and all their lengths with them.

        It is the scale radius of the electrons over 40 m, by default the density of KASCADE's air over that of the
        array's depth; 1 where nobody said the depth.
        """
        radius, depth = self.card.fit.get("electron_radius_m"), self.depth_g_cm2
        if radius is not None:
            return radius / ELECTRON_R0_M
        kascade = KASCADE_CARD.depth_g_cm2
        return 1.0 if depth is None or kascade is None else float(air_density(kascade) / air_density(depth))

    @cached_property
    def fit_geometry(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """x, y, e/gamma and muon areas (R, C) float64 in the fits' unit of length and its square."""
        unit, square = self.fit_unit_m, self.fit_unit_m**2
        return self.x_m / unit, self.y_m / unit, self.electron_area_m2 / square, self.muon_area_m2 / square

    @cached_property
    def response(self) -> StationResponse:
        """How a station answers to particles, in the fits' unit of length."""
        return self.card.station_response(self.core_spread_m, self.fit_unit_m)

    @property
    def has_detector(self) -> np.ndarray:
        """(2, R, C) bool: which cells have an electron detector, and which a muon detector."""
        return np.stack([self.has_electron, self.has_muon])

    def without(self, stations: Sequence[int] | np.ndarray, muon_detectors: Sequence[int] | np.ndarray) -> Self:
        """Return the array in which these flat cells have no working station, and those no working muon detector.

        Raises
        ------
        InputError
            If a cell does not exist, or no station is left.
        """
        electron, muon = self.electron_area_m2.copy(), self.muon_area_m2.copy()
        for cell in (*stations, *muon_detectors):
            if not 0 <= cell < self.n_cells:
                raise InputError(f"array {self.name}: there is no cell {cell}, expected 0 to {self.n_cells - 1}")
        electron.ravel()[np.asarray(stations, dtype=np.int64)] = 0.0
        muon.ravel()[np.asarray([*stations, *muon_detectors], dtype=np.int64)] = 0.0
        array = replace(self, electron_area_m2=electron, muon_area_m2=muon)
        array.__dict__["no_muon"] = self.no_muon & array.has_station
        array.__dict__["complete"] = self.complete
        return array

    def as_json(self) -> dict[str, Any]:
        """Return what JSON needs to rebuild the array; float64 survives JSON exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "card"}
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        # An array that says nothing is described as it was before there were cards: its digest is in use.
        return plain if self.card == self._default_card else {**plain, "card": self.card.as_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`as_json`.

        Raises
        ------
        InputError
            If an entry is missing or is not a table of numbers.
        """
        try:
            planes = {name: np.array(content[name], dtype=_TYPES.get(name, np.float64)) for name in PLANES}
            card = ArrayCard.from_json(content.get("card", {}))
            return cls(name=str(content["name"]), pitch_m=float(content["pitch_m"]), **planes, card=card)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the description of the detector array cannot be read: {error}") from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of name, positions, areas, clusters and card, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    @property
    def is_of_kascade(self) -> bool:
        """Whether it is KASCADE, whole or in part, whose the cuts of protocols and published analyses are."""
        return self.card == KASCADE.card

    def is_like(self, other: DetectorArray) -> bool:
        """Return whether stations stand and answer alike: names, sites and units of lists change no shower."""
        card = replace(self.card, site=other.card.site, unit=other.card.unit)
        return replace(self, name=other.name, card=card) == other

    def difference(self, other: DetectorArray) -> str:
        """Return in words in what another array differs."""
        if self.n_stations != other.n_stations:
            return f"{self.n_stations} stations instead of {other.n_stations}"
        here, there = (np.column_stack([one.x_m.ravel(), one.y_m.ravel()])[one.cells] for one in (self, other))
        differing = []
        apart = float(np.hypot(*(here - there).T).max())
        if apart > 0:
            in_order = [np.lexsort(places.round(3).T) for places in (here, there)]
            reordered = np.abs(here[in_order[0]] - there[in_order[1]]).max() < 1e-3
            differing.append("the order of the stations" if reordered else f"places by up to {apart:.3g} m")
        for kind in ("electron", "muon"):
            areas = [getattr(one, f"{kind}_area_m2").ravel()[one.cells] for one in (self, other)]
            if not np.array_equal(*areas):
                differing.append(f"{kind} areas by up to {np.abs(areas[0] - areas[1]).max():.3g} m2")
        if self.depth_g_cm2 != other.depth_g_cm2:
            depths = ("not said" if one.depth_g_cm2 is None else f"{one.depth_g_cm2:.0f}" for one in (self, other))
            differing.append("depth in g/cm2, {} instead of {}".format(*depths))
        cards = [one.card.as_json() for one in (self, other)]
        told = ("depth_g_cm2", "site", "unit")
        keys = [key for key in cards[0] | cards[1] if cards[0].get(key) != cards[1].get(key) and key not in told]
        differing += [f"[{key}] of the card" for key in keys]
        return ", ".join(differing) or "clusters or the shape of the grid"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DetectorArray) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


PLANES = ("x_m", "y_m", "electron_area_m2", "muon_area_m2", "cluster")


def lattice(side: int, pitch_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of the cells of a square grid about the origin, (side, side) float64 each, m.

    x of the cell in row i, column j is (j - (side - 1) / 2) pitch, y the same with i.
    """
    steps = (np.arange(side, dtype=np.float64) - (side - 1) / 2) * pitch_m
    x_m = np.broadcast_to(steps[None, :], (side, side)).copy()
    return x_m, x_m.T.copy()


def square_clusters(side: int, width: int) -> np.ndarray:
    """Return the number of the square of ``width`` x ``width`` cells that each cell lies in, (side, side) int64."""
    index = np.arange(side) // width
    return (index[:, None] * -(-side // width) + index[None, :]).astype(np.int64)


def _kascade() -> DetectorArray:
    x_m, y_m = lattice(KASCADE_SIDE, KASCADE_PITCH_M)
    from_centre = np.maximum(np.abs(x_m), np.abs(y_m))
    station, inner = from_centre > KASCADE_PITCH_M, from_centre < 4 * KASCADE_PITCH_M
    return DetectorArray(
        name="KASCADE",
        pitch_m=KASCADE_PITCH_M,
        x_m=x_m,
        y_m=y_m,
        electron_area_m2=np.where(station, np.where(inner, 3.14, 1.57), 0.0),
        muon_area_m2=np.where(station & ~inner, 3.24, 0.0),
        cluster=square_clusters(KASCADE_SIDE, 4),
    )


KASCADE = _kascade()
"""252 stations, 192 of them with a muon detector."""
RAW_SHAPE = (*KASCADE.grid_shape[:2], 3)
"""Cells of one event in the raw archives: row, column; arrival time (ns), e/gamma and muon deposit (MeV)."""


def array_of(source: Mapping[str, Any]) -> DetectorArray:
    """Return the array that a dataset's ``source.json`` describes; KASCADE where it does not say."""
    return DetectorArray.from_json(source["array"]) if "array" in source else KASCADE


def array_entry(array: DetectorArray) -> dict[str, Any]:
    """Return what :func:`array_of` reads: no entry for KASCADE."""
    return {} if array == KASCADE else {"array": array.as_json()}


DEAD_STATIONS, DEAD_MUON_DETECTORS = "dead_stations", "dead_muon_detectors"
"""Entries of ``source.json``: flat cells of stations, and of muon detectors alone, that read nothing in these data."""


def working_array(array: DetectorArray, source: Mapping[str, Any]) -> DetectorArray:
    """Return an array without what ``source.json`` calls dead; the array itself where it names nothing."""
    dead = []
    for name in (DEAD_STATIONS, DEAD_MUON_DETECTORS):
        cells = source.get(name, [])
        if not isinstance(cells, list) or not all(type(cell) is int for cell in cells):
            raise InputError(f"source.json: {name} is no list of cell numbers: convert the archive again")
        dead.append(cells)
    return array.without(*dead) if any(dead) else array
