"""Grids of signals and first arrival times in one .npz, as teaching sets of the field have them, as events.

The file holds ``signal`` (N, rows, columns), and what it has of ``time`` (the same shape, s or ns), ``logE`` or
``energy``, ``mass``, ``showeraxis`` (N, 3) and ``detector`` (places of the stations, m), by these names and usual
others. An ``array.toml`` beside it says what a signal is; without it signals are in units of a particle.
"""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.formats import DIRECTION, LABEL, write_set
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.archives.station_lists import CHANNELS, TIME, ListedEvents, array_of_stations
from showerstack.showers.card import CARD_FILE, NO_CARD, read_card
from showerstack.showers.schema import COMPOSITION, Task

LOG = logging.getLogger(__name__)

NAMES = {
    "signal": ("signal", "signals", "charge", "charges", "total_signal", "deposit", "deposits"),
    "time": ("time", "times", "arrival_time", "arrival_times", "t0"),
    "lg_energy": ("loge", "log_e", "lge", "lg_e", "log_energy", "lg_energy", "log10_energy"),
    "energy": ("energy", "energies", "e"),
    "mass": ("mass", "masses", "mass_number", "a"),
    "axis": ("showeraxis", "shower_axis", "axis", "axes"),
    "place": ("detector", "detectors", "positions", "station_positions", "detector_positions"),
}
"""What an array is, by its name in small letters."""
SECONDS_BELOW = 1e-3
"""Times that span less are in s: a shower crosses no array in a millisecond of ns."""
EEV_BELOW = 1e6
"""Energies below are in EeV."""
AREA_M2 = 10.0
"""Of a station, where nobody says it: a water tank's."""


def members_in(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name and shape of each array of an .npz that is known, by what it is; nothing but heads is read."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                what = next((what for what, names in NAMES.items() if name.lower() in names), None)
                if what is None or what in found:
                    continue
                with archive.open(member) as stream:
                    version = np.lib.format.read_magic(stream)
                    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else (
                        np.lib.format.read_array_header_2_0)  # fmt: skip
                    found[what] = name, read(stream)[0]
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}
    return found


class GridFile:
    """The format."""

    name = "grids in one .npz"
    holds = "an .npz with signal (N, rows, columns); time, logE, mass, detector where they are known"
    is_foreign = True
    options = ("task", "groups", "pitch", "area")

    def accepts(self, path: Path) -> bool:
        """Return whether a path is an .npz with grids of signals."""
        return path.suffix == ".npz" and path.is_file() and len(members_in(path).get("signal", ("", ()))[1]) == 3

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[ListedEvents]:
        """Open the grids, labelled with mass groups where masses are there."""
        return [read_grids(path, COMPOSITION, None, None, tell)]

    def convert(self, path: Path, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
        """Write a dataset folder; yields where it is."""
        task = given.labels

        def tell(line: str) -> None:
            LOG.warning("%s", line)

        reader = read_grids(path, task, given.pitch, given.area, tell)
        yield f"wrote {write_set(reader, given.out, self, task, tell)}"

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that writes a dataset folder."""
        pitch = "" if "place" in members_in(path) else " --pitch METRES"
        return [f"python cli.py convert {path} --task composition{pitch} --out data"]


def read_grids(
    path: Path, task: Task, pitch_m: float | None, area_m2: float | None, tell: Callable[[str], None]
) -> ListedEvents:
    """Return the events of an .npz: labels of the task where they follow, directions of the fronts of the times.

    Parameters
    ----------
    pitch_m
        Spacing of the stations, m, where the file has no places.
    area_m2
        Of a station; None: 10 m2.
    """
    members = members_in(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {what: np.asarray(stored[name], dtype=np.float64) for what, (name, _) in members.items()}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read as arrays of numbers: {error}") from None
    signal = arrays["signal"]
    n, rows, columns = signal.shape
    shapes = {"time": signal.shape, "axis": (n, 3)}
    for what, values in arrays.items():
        fits = values.shape == shapes[what] if what in shapes else values.size == n
        if what not in ("place", "signal") and not fits:
            expected = " by ".join(map(str, shapes.get(what, (n,))))
            raise InputError(f"{path}: {members[what][0]} has shape {values.shape}, expected {expected}")
    if not n or np.isinf(signal).any() or (signal < 0).any():
        row = int(np.argwhere(np.isinf(signal) | (signal < 0))[0][0]) if n else 0
        raise InputError(f"{path}: row {row}, {members['signal'][0]} holds no number of at least 0")
    x, y = _places(path, arrays.get("place"), (rows, columns), pitch_m)
    standing = (np.nan_to_num(signal) > 0).any(axis=0).ravel()
    if not standing.any():
        raise InputError(f"{path}: {members['signal'][0]} holds no signal")
    if not standing.all():
        tell(f"{path.name}: {int((~standing).sum())} cells never have a signal: no station stands there")
    tell(
        f"{path.name}: stations of {area_m2 or AREA_M2:g} m2{'' if area_m2 else ' are assumed: --area says otherwise'}"
    )
    stations = pl.DataFrame({"id": np.flatnonzero(standing), "x_m": x[standing], "y_m": y[standing],
                             "electron_area_m2": np.full(int(standing.sum()), area_m2 or AREA_M2)})  # fmt: skip
    card = path.parent / CARD_FILE
    array, cells = array_of_stations(
        path.stem, stations, read_card(card, stations.height) if card.exists() else (None, NO_CARD)
    )
    if not card.exists():
        tell(
            f"{path.name}: signals in units of a particle, and sea level, are assumed: {CARD_FILE} beside it says more"
        )
    scale = array.response.electron_deposit_mev if not card.exists() or array.card.unit != "mev" else 1.0
    events: dict[str, np.ndarray] = {"event": np.arange(n)}
    label = _labels(path, arrays, task)
    if label is not None:
        events[LABEL] = label
    flat = np.nan_to_num(signal.reshape(n, -1)[:, standing])
    event, station = np.nonzero(flat > 0)
    signals = {"row": event, "cell": cells[station], CHANNELS["mev"][0]: scale * flat[event, station]}
    if "time" in arrays:
        times = arrays["time"].reshape(n, -1)[:, standing][event, station]
        known = times[np.isfinite(times)]
        if known.size and np.ptp(known) < SECONDS_BELOW:
            tell(f"{path.name}: {members['time'][0]} is taken to be in s")
            times = 1e9 * times
        signals[TIME] = times
    elif "axis" in arrays:
        events |= dict(zip(DIRECTION, _directions(arrays["axis"]), strict=True))
        tell(f"{path.name}: no times: directions are those of {members['axis'][0]}")
    listed = ListedEvents(path.stem, array, pl.DataFrame(events), pl.DataFrame(signals))
    return listed.with_directions(tell) if "time" in arrays else listed


def _places(
    path: Path, place: np.ndarray | None, shape: tuple[int, int], pitch_m: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y (cells,) of the stations, m."""
    rows, columns = shape
    if place is not None:
        places = place.reshape(-1, place.shape[-1])
        if len(places) != rows * columns or places.shape[1] not in (2, 3) or not np.isfinite(places[:, :2]).all():
            raise InputError(
                f"{path}: places of stations have shape {place.shape}, expected {rows * columns} by 2 or 3"
            )
        return places[:, 0], places[:, 1]
    if pitch_m is None:
        raise InputError(f"{path} has no places of its stations: say how far apart they stand, --pitch METRES")
    j, i = np.meshgrid(np.arange(columns), np.arange(rows))
    return pitch_m * j.ravel(), pitch_m * i.ravel()


def _labels(path: Path, arrays: dict[str, np.ndarray], task: Task) -> np.ndarray | None:
    """Return labels (N,) of a task: the mass group of the nearest ln A, photons and hadrons, or lg(E/eV)."""
    if task.target is not None:
        if "lg_energy" in arrays:
            return arrays["lg_energy"].ravel()
        energy = arrays.get("energy")
        if energy is None:
            return None
        return np.asarray(np.log10(energy.ravel()) + (18.0 if energy.max() < EEV_BELOW else 0.0))
    mass = arrays.get("mass")
    if mass is None:
        return None
    mass, least = mass.ravel(), 1.0 if task.masses else 0.0
    wrong = np.flatnonzero(~(mass >= least))
    if wrong.size:
        raise InputError(f"{path}: row {wrong[0]} has mass {mass[wrong[0]]:g}, expected a number of at least {least:g} "
                         f"({wrong.size} such rows): is --task {task.name} meant?")  # fmt: skip
    return task.decoded(task.class_of_mass(mass)) if task.masses else np.where(mass == 0, 0, 1)


def _directions(axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return zenith and azimuth (N,) deg of where showers come from, by vectors (N, 3) along their axes."""
    up = axis * np.where(axis[:, 2:] < 0, -1.0, 1.0) / np.linalg.norm(axis, axis=1, keepdims=True)
    zenith = np.degrees(np.arccos(np.clip(up[:, 2], 0.0, 1.0)))
    return zenith, np.degrees(np.arctan2(up[:, 1], up[:, 0])) % 360.0


FORMAT = GridFile()
