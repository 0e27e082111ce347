"""An array's card, ``array.toml`` beside ``stations.parquet``: what the fits need to know beside places and areas.

Every key is optional; docs/own_array.md lists them with their units and defaults. What the card does not say, the array
answers from its extent and pitch (:class:`showerstack.showers.array.DetectorArray`), or with KASCADE's detectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from showerstack.runtime.errors import InputError, most_similar
from showerstack.runtime.files import read_toml
from showerstack.showers.atmosphere import altitude_of, depth_at
from showerstack.showers.response import PUBLISHED, StationResponse

CARD_FILE = "array.toml"
UNITS = ("mev", "mip", "vem")
"""What signals are counted in: MeV, or the mean signal of one vertical particle (two names of the same thing)."""
DEPTHS_G_CM2 = (300.0, 1090.0)
"""Where surface arrays are: some 9 km above to 400 m below sea level."""
FOOT_M, HIGHEST_ARRAY_M = 0.3048, 5_500.0
"""A foot, and an altitude above every array of detectors."""
MOST_SHOWN = 100
"""Characters of a value in a message."""
DEPTH_TOLERANCE_G_CM2 = 10.0
"""Depth and altitude that differ by no more agree: the weather changes it by as much."""
THRESHOLD, MUON_THRESHOLD = "threshold_mev", "muon_threshold_mev"
"""Keys of ``[response]`` that stand for the share of deposits, and of muons, lost below them."""
MUON_ENERGY = "muon_energy_gev"
"""Key of ``[response]``: kinetic energy of vertical muons from which on the shield lets them through, for CORSIKA's."""
FIT_KEYS = {
    "core_limit_m": (1.0, 1e5),
    "core_spread_m": (0.1, 1e5),
    "electron_radius_m": (5.0, 1000.0),
}
"""Keys of ``[fit]`` with smallest and largest value."""
TIMES_KEYS = {
    "resolution_ns": (0.0, 1e4),
    "curvature_m": (1.0, 1e6),
    "thickness_ns": (0.0, 1e4),
    "thickness_scale_m": (0.1, 1e5),
}
"""Keys of ``[times]`` with smallest and largest value."""
CLOCK_NS = 1.0
"""Resolution of a station's clock where the card says none."""
_SIGNED = frozenset({"muon_age_size", "muon_age_inclination"})
RESPONSE_KEYS = {
    name: ((-10.0, 10.0) if name in _SIGNED else (0.0, 1e9))
    for name in (*StationResponse._fields, THRESHOLD, MUON_THRESHOLD, MUON_ENERGY)
    if name != "core_spread_m"
}
"""Keys of ``[response]`` with smallest and largest value; the spread of cores is a matter of ``[fit]``."""
NARROWEST = 0.01
"""Smallest relative variance of a muon's deposit."""
_NOT_ZERO = frozenset(
    name for name in RESPONSE_KEYS if name.endswith(("_deposit_mev", "_scale_m", "_dispersion", "_spread"))
) | {"saturation_mev", "muon_saturation_mev"}
SITE_KEYS = {"latitude_deg": (-90.0, 90.0), "longitude_deg": (-180.0, 360.0), "x_azimuth_deg": (0.0, 360.0)}
"""Keys of ``[site]``: degrees north and east, and where +x points, from north over east."""
TABLES = {"response": RESPONSE_KEYS, "fit": FIT_KEYS, "times": TIMES_KEYS, "site": SITE_KEYS}


@dataclass(frozen=True)
class ArrayCard:
    """What an array says of itself; empty where it says nothing."""

    depth_g_cm2: float | None = None
    """Vertical atmospheric depth of the ground."""
    unit: str = "mev"
    """What the signals of lists are counted in, one of :data:`UNITS`; deposits in dataset folders are MeV."""
    response: Mapping[str, float] = field(default_factory=dict)
    """Constants of :class:`showerstack.showers.response.StationResponse` that differ from KASCADE's, and
    :data:`THRESHOLD`."""
    fit: Mapping[str, float] = field(default_factory=dict)
    """Settings of the lateral fit, keys of :data:`FIT_KEYS`."""
    times: Mapping[str, float] = field(default_factory=dict)
    """What arrival times are like, keys of :data:`TIMES_KEYS`."""
    site: Mapping[str, float] = field(default_factory=dict)
    """Where on Earth the array stands, keys of :data:`SITE_KEYS`."""

    def as_json(self) -> dict[str, Any]:
        """Return what is said, for JSON; empty where nothing is."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return {name: value for name, value in plain.items() if value not in (None, "mev", {})}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "the array's card") -> Self:
        """Rebuild from :meth:`as_json`."""
        _check_keys(content, [one.name for one in fields(cls)], where)
        if "depth_g_cm2" in content:
            _check_number(content["depth_g_cm2"], DEPTHS_G_CM2, f"{where}: depth_g_cm2")
        unit = content.get("unit", "mev")
        if unit not in UNITS:
            raise InputError(f"{where}: unit is {unit!r}, expected one of {', '.join(UNITS)}")
        tables = {name: _table(content.get(name, {}), keys, f"{where}: [{name}]") for name, keys in TABLES.items()}
        depth = content.get("depth_g_cm2")
        return cls(depth_g_cm2=None if depth is None else float(depth), unit=unit, **tables)

    def station_response(self, core_spread_m: float, unit_m: float = 1.0) -> StationResponse:
        """Return the response that the fits use, in their unit of length: the card's constants, else KASCADE's.

        What the card does not give in metres is counted in that unit: it grows with showers in thinner air.
        Saturation is KASCADE's in particles where the card gives another deposit of a particle alone. A threshold t
        takes the share 1 - (1 + t / m) exp(-t / m) of exponential deposits of mean m; of muons, whose deposits are
        Gamma distributed with the variance that their dispersion says, those below it.
        """
        given = {name: value / unit_m if name.endswith("_m") else value for name, value in self.response.items()}
        threshold, muon_threshold = given.pop(THRESHOLD, None), given.pop(MUON_THRESHOLD, None)
        given.pop(MUON_ENERGY, None)
        known = PUBLISHED._asdict() | given
        for deposit, saturation in (
            ("electron_deposit_mev", "saturation_mev"),
            ("muon_deposit_mev", "muon_saturation_mev"),
        ):
            if deposit in given and saturation not in given:
                known[saturation] *= given[deposit] / getattr(PUBLISHED, deposit)
        if threshold is not None and "lost_share" not in given:
            below = threshold / known["electron_deposit_mev"]
            known["lost_share"] = 1.0 - (1.0 + below) * math.exp(-below)
        if muon_threshold is not None and "muon_miss" not in given:
            from scipy.special import gammainc

            shape = 1.0 / max(known["muon_dispersion"] - 1.0, NARROWEST)
            known["muon_miss"] = float(gammainc(shape, shape * muon_threshold / known["muon_deposit_mev"]))
        return StationResponse(**(known | {"core_spread_m": core_spread_m / unit_m}))


NO_CARD = ArrayCard()
"""Of an array that says nothing."""


def read_card(file: Path, n_stations: int | None = None) -> tuple[str | None, ArrayCard]:
    """Return the name of the array that a card gives, if any, and the card.

    Parameters
    ----------
    n_stations
        How many stations the list beside it has: a card that says ``stations`` is refused where the two differ.
    """
    content = read_toml(file)
    known = ("name", "stations", "altitude_m", *(one.name for one in fields(ArrayCard)))
    _check_keys(content, known, str(file))
    name, stations = content.pop("name", None), content.pop("stations", None)
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InputError(f"{file}: name is {name!r}, expected a text")
    if stations is not None and n_stations is not None and stations != n_stations:
        raise InputError(
            f"{file} is the card of an array of {_short(stations)} stations, but {n_stations} are listed beside it: "
            "is it of another array?"
        )
    if (altitude := content.pop("altitude_m", None)) is not None:
        low, high = sorted(round(float(altitude_of(depth))) for depth in DEPTHS_G_CM2)
        is_foot = isinstance(altitude, int | float) and high < altitude < high / FOOT_M
        feet = "; is it in feet?" if is_foot else ""
        _check_number(altitude, (low, high), f"{file}: altitude_m", feet)
        from_altitude = float(depth_at(altitude))
        depth = content.setdefault("depth_g_cm2", from_altitude)
        _check_number(depth, DEPTHS_G_CM2, f"{file}: depth_g_cm2")
        if abs(depth - from_altitude) > DEPTH_TOLERANCE_G_CM2:
            raise InputError(
                f"{file}: {altitude:g} m above sea level are {from_altitude:.0f} g/cm2 in the US standard atmosphere, "
                f"but depth_g_cm2 is {depth:g}: leave one of them out"
            )
    if content.get("times") == {}:  # that there are times is said
        content["times"] = {"resolution_ns": CLOCK_NS}
    return name, ArrayCard.from_json(content, str(file))


def _check_keys(content: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(content, Mapping):
        raise InputError(f"{where} is not a table of names and values")
    for key in content:
        if key not in (names := list(known)):
            near = most_similar(key, names)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(names)}"
            raise InputError(f"{where}: unknown key {key}: {hint}")


def _check_number(value: Any, limits: tuple[float, float], where: str, hint: str = "") -> None:
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{where} is {_short(value)}, expected a number from {low:g} to {high:g}{hint}")


def _short(value: Any) -> str:
    """Return a value for a message; a number may have more digits than Python writes."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def altitude_remarks(file: Path) -> list[str]:
    """Return a remark on an altitude that looks like km or feet instead of m."""
    altitude = read_toml(file).get("altitude_m")
    if altitude is None or not (0.5 < altitude < 9.0 or altitude > HIGHEST_ARRAY_M):
        return []
    unit, metres = ("feet", FOOT_M * altitude) if altitude > HIGHEST_ARRAY_M else ("km", 1e3 * altitude)
    return [f"{file}: altitude_m is {altitude:g}: is it in {unit}? Then give {metres:.0f}"]


def _table(content: Any, keys: Mapping[str, tuple[float, float]], where: str) -> dict[str, float]:
    _check_keys(content, keys, where)
    for key, value in content.items():
        _check_number(value, keys[key], f"{where} {key}")
        if key in _NOT_ZERO and value == 0:
            raise InputError(f"{where} {key} is 0, expected a positive number")
    return {key: float(value) for key, value in content.items()}


KASCADE_CARD = ArrayCard(depth_g_cm2=1023.0, fit={"core_limit_m": 150.0, "core_spread_m": 60.0})
"""Its ground is 110 m above sea level; cores of the data lie within 91 m of the centre (45 m rms)."""
