"""CORSIKA's own particle files: showers thrown onto an array, each at several places, as a dataset folder.

Blocks are read with corsikaio; whether a file is thinned tells the place of the first event header, 273 or 312 words
after the run header. Units are GeV, cm and ns; x points to magnetic north, y to the west, and the array's x and y are
taken for these. The azimuth is that of the flight, so the origin's is 180 degrees from it.

Rows that are no particles at the ground are left out: those of other observation levels, of a muon's or an
electromagnetic particle's history (negative words, and ids that :mod:`showerstack.showers.particles` does not know).

A **thinned** particle of weight w stands for w particles about it. A station then takes what falls in a sector about
it, 0.2 wide in ln r and 0.3 in azimuth in the shower plane, near the axis as much wider as it takes to hold the
detector, each particle as often as a Poisson number with mean w times the share of the detector in the sector says (P.
Billoir, Astropart. Phys. 30 (2008) 270). Its delay behind the plane front through the core counts as r^2, as that of a
curved front does.

Showers keep the spectrum that they were drawn with, unless another ``slope`` is asked for: ``weight.npy`` then says
what each counts (:mod:`showerstack.showers.archives.spectrum`). Thinning gives a shower no weight: the weights of its
particles are in the signals.

Directions are fitted to the stations' times (:mod:`showerstack.showers.front`), as they are in data; E, Ne and Nmu are
not reconstructed. A shower that was thrown is kept on disk until the folder is complete: an interrupted conversion goes
on, and memory holds one shower at a time.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.context import Bars, Context, silent
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import atomic_path, hash_file, hash_json, locked
from showerstack.runtime.versions import CONVERSION_VERSION
from showerstack.showers.archives.convert import shuffled_order
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.archives.spectrum import (
    DrawnSpectrum,
    check_slope,
    common_energies,
    effective_number,
    spectrum_weights,
)
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.array import DetectorArray
from showerstack.showers.card import DEPTH_TOLERANCE_G_CM2
from showerstack.showers.event_files import EventFiles
from showerstack.showers.front import LIGHT_M_PER_NS, FrontModel, fit_front
from showerstack.showers.nuclei import groups_entry
from showerstack.showers.particles import (
    ELECTRONS,
    MUONS,
    PHOTON,
    DetectorResponse,
    charge_and_mass,
    electron_deposits,
    muon_deposits,
    readings,
)
from showerstack.showers.protocols import Layout
from showerstack.showers.schema import ABSENT, COMPOSITION, CONVERSION, GAMMA, Task
from showerstack.showers.writer import ARRIVAL_STEM, write_dataset

LOG = logging.getLogger(__name__)

WORD_BYTES, WORDS, THINNED_WORDS = 4, 273, 312
"""Of a block of an ordinary and of a thinned file."""
RECORD_MARK_BYTES = 4
BLOCKS_AT_ONCE = 100
"""Read from files without record marks."""
TRIGGER_STATIONS = 4
"""Hit stations below which a shower is not seen."""
CORE_SHARE = 0.875
"""Usual radius of the disc of cores over half the side of the array: KASCADE's 91 m of 104 m."""
RIM = 0.9
"""Share of the disc's radius beyond which its outermost fifth lies."""
LARGE, SEEN_OUTSIDE = 0.25, 0.1
"""Share of the showers, of highest energy, of which no more than a tenth of the uses at the rim should be seen: more
come from outside."""
SECTOR_LN_R, SECTOR_RAD = 0.2, 0.3
"""Width of the sectors from which stations take thinned particles."""
WIDER_LN_R, WIDER_RAD = 1.03, 1.15
"""Factors by which a sector grows until it holds its detector."""
MOST_PARTICLES = 3e7
"""No detector sees more particles of one shower: a weight that asks for more is damage."""
HIGHEST = 1e15
"""No number in a particle file is larger."""
EM_CUT_GEV, MUON_CUT_GEV = 0.01, 0.5
"""Cuts (ECUTS) on electrons and photons, and on muons, beyond which detectors miss particles that they would see."""
LOST_GEV = 10.0
"""With cuts above this no signal of that kind is left."""
CM_PER_M = 100.0
LAYERS_CM = (4e5, 1e6, 4e6, 1e7)
"""Where CORSIKA's atmospheric layers end; the last one is linear."""
MODELS = {0: "hdpm", 1: "venus", 2: "sibyll", 3: "qgs", 4: "dpmjet", 5: "nexus", 6: "epos"}
"""High-energy hadronic models, as event headers number them."""
GENERATOR = f"{CONVERSION} of CORSIKA particle files"
PROTON_ID = 14


class CorsikaFiles:
    """The format; its files need an array, so that :func:`convert_corsika` converts them."""

    name = "CORSIKA particle files"
    holds = "DAT000001 or a folder of such files, with --array"
    is_foreign = True
    options = ("task", "groups", "array", "uses", "seed", "slope", "core_radius")

    def convert(self, path: Path, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
        """Throw the showers onto an array; yields where they are."""
        if given.array is None:
            raise InputError(f"{path}: say onto which array its showers are to be thrown: --array stations.parquet")
        folder = convert_corsika(
            path, given.out, given.labels, array_in(given.array), uses=given.uses, seed=given.seed,
            slope=given.slope, core_radius_m=given.core_radius, bars=ctx.bars,
        )  # fmt: skip
        yield f"wrote {folder}"

    def accepts(self, path: Path) -> bool:
        """Return whether a path is a particle file, or a folder that holds some."""
        return bool(files_in(path))

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[Any]:
        """Refuse: particles are no events of an array."""
        raise InputError(f"{path} holds {self.name}: say onto which array, {self.next_commands(path)[0]}")

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that throws the showers onto an array."""
        return [f"python cli.py convert {path} --array stations.parquet --task composition --out own"]


FORMAT = CorsikaFiles()


def files_in(path: Path) -> list[Path]:
    """Return the particle files that a path means, in order."""
    if path.is_file():
        return [path] if _begins_run(path) else []
    return [file for file in sorted(path.glob("DAT*")) if file.is_file() and _begins_run(file)]


def _begins_run(file: Path) -> bool:
    with file.open("rb") as opened:
        head = opened.read(RECORD_MARK_BYTES + 4)
    return b"RUNH" in (head[:4], head[RECORD_MARK_BYTES:])


@dataclass(frozen=True)
class ParticleFile:
    """One file, its run header read; use :meth:`open`."""

    path: Path
    is_thinned: bool
    header: Any
    """Run header of corsikaio."""
    level: int
    """Observation level that is taken, counted from 0."""
    level_m: float
    depth_g_cm2: float
    """Matter above that level in the run's own atmosphere."""

    @classmethod
    def open(cls, path: Path, depth_g_cm2: float | None) -> ParticleFile:
        """Read the head.

        Parameters
        ----------
        depth_g_cm2
            Of the array's ground, whose nearest level is taken; None: the lowest level.
        """
        need("corsikaio", what=str(path))
        thinned = _is_thinned(path)
        from corsikaio import subblocks

        parse = subblocks.parse_run_header_thin if thinned else subblocks.parse_run_header
        header = parse(next(_blocks(path, thinned)))[0]
        _check_words(header, RUN_WORDS, f"{path}: run header")
        heights = np.atleast_1d(header["observation_height"])[: max(int(header["n_observation_levels"]), 1)]
        depths = np.array([_depth(header, float(height)) for height in heights])
        level = int(np.argmax(depths) if depth_g_cm2 is None else np.argmin(np.abs(depths - depth_g_cm2)))
        found = cls(path, thinned, header, level, float(heights[level]) / CM_PER_M, float(depths[level]))
        if depth_g_cm2 is not None and abs(found.depth_g_cm2 - depth_g_cm2) > DEPTH_TOLERANCE_G_CM2:
            raise InputError(
                f"{path}: the particles are at {found.depth_g_cm2:.0f} g/cm2 ({found.level_m:.0f} m in the run's "
                f"atmosphere), but the array is at {depth_g_cm2:.0f} g/cm2: simulate for the array's ground"
            )
        return found

    @property
    def cuts_gev(self) -> tuple[float, float]:
        """Energies below which electrons or photons, and muons, were not followed; 0 where the header does not say."""
        electron, photon, muon = (float(self.header[f"energy_cutoff_{one}s"]) for one in ("electron", "photon", "muon"))
        return max(electron, photon), muon

    @property
    def spectrum(self) -> DrawnSpectrum:
        """What the energies of the run are drawn from, by its header."""
        slope, least, most = (float(self.header[f"energy_{name}"]) for name in ("spectrum_slope", "min", "max"))
        return DrawnSpectrum(str(self.path), slope, least, most)

    def showers(self, tell: Callable[[str], None]) -> Iterator[tuple[Any, Ground]]:
        """Yield header and particles of each whole event; ``tell`` hears of events that the file lacks."""
        from corsikaio import subblocks

        thin = "_thin" if self.is_thinned else ""
        header_of, rows_of = (getattr(subblocks, f"parse_{what}{thin}") for what in ("event_header", "particle_data"))
        promised, count, is_whole = int(self.header["n_showers"]), 0, False
        header, rows, parts, n_read = None, bytearray(), list[dict[str, np.ndarray]](), 0

        def take() -> None:
            nonlocal rows, n_read
            particles = rows_of(rows)
            _check_rows(particles, f"{self.path}: event {count + 1}", n_read)
            parts.append(seen_columns(particles, self.level))
            rows, n_read = bytearray(), n_read + len(particles)

        for block in _blocks(self.path, self.is_thinned):
            name = block[:4]
            if name == b"EVTH":
                header, rows, n_read = header_of(block)[0], bytearray(), 0
                parts.clear()
                _check_words(header, EVENT_WORDS, f"{self.path}: event {count + 1}")
            elif name == b"EVTE" and header is not None:
                if rows or not parts:
                    take()
                count += 1
                yield header, Ground.of(*parts)
                header = None
            elif name == b"RUNE":
                is_whole = True
                break
            elif name not in (b"RUNH", b"LONG"):
                rows += block
                if header is not None and len(rows) > BYTES_AT_ONCE:
                    take()
        of = f"{count} whole events of {promised}" if promised else f"{count} whole events"
        if not count:
            raise InputError(f"{self.path} is cut, and holds no whole event: is the run finished?")
        if not is_whole:
            tell(f"{self.path} is cut: {of}")
        elif promised > count:
            tell(f"{self.path} holds {of} that its run header promises")


def _blocks(path: Path, thinned: bool) -> Iterator[bytes]:
    """Yield the blocks of a file, of a cut one those that are whole.

    Not by corsikaio, which gives none of the blocks of a record that is cut, or of a hundred without record marks.
    """
    size = WORD_BYTES * (THINNED_WORDS if thinned else WORDS)
    with path.open("rb") as opened:
        is_marked = opened.read(4) != b"RUNH"
        opened.seek(0)
        while True:
            mark = opened.read(RECORD_MARK_BYTES) if is_marked else b""
            length = int.from_bytes(mark, "little") if is_marked else BLOCKS_AT_ONCE * size
            if length % size or (mark and not length):
                raise InputError(
                    f"{path}: a record mark says {length} bytes, no whole blocks of {size}: is it damaged, or still "
                    "being copied?"
                )
            content = opened.read(length)
            for start in range(0, len(content) - size + 1, size):
                yield content[start : start + size]
            if not content or len(content) < length:
                return
            opened.read(RECORD_MARK_BYTES if is_marked else 0)


BYTES_AT_ONCE = 4_000_000
"""Of particles that are taken at once: those of a large shower are many, and most columns are not needed."""
RUN_WORDS = {
    "n_showers": (0, 1e9), "n_observation_levels": (0, 10), "observation_height": (-1e5, 1e7),
    "energy_spectrum_slope": (-10, 10), "energy_min": (0, 1e13), "energy_max": (0, 1e13), "aatm": (-1e4, 1e4),
    "batm": (-1e6, 1e6), "catm": (0, 1e10), **{f"energy_cutoff_{one}s": (0, 1e30) for one in
    ("hadron", "muon", "electron", "photon")},
}  # fmt: skip
EVENT_WORDS = {
    "particle_id": (1, 9999), "total_energy": (1e-3, 1e13), "zenith": (0, np.pi / 2), "azimuth": (-7, 7),
    "first_interaction_height": (-1e8, 1e8), "high_energy_hadron_model": (0, 100),
}  # fmt: skip
"""Words of headers that are read, with the least and the largest value that they can have."""


def _check_words(header: Any, limits: Mapping[str, tuple[float, float]], where: str) -> None:
    for name, (low, high) in limits.items():
        values = np.atleast_1d(header[name]).astype(np.float64)
        wrong = values[~((values >= low) & (values <= high))]
        if wrong.size:
            raise InputError(f"{where}: {name} is {wrong[0]:g}, expected {low:g} to {high:g}: is the file damaged?")


def _check_rows(rows: np.ndarray, where: str, first: int) -> None:
    """Refuse particles (n,) with words that are no numbers; ``first`` is how many came before them."""
    if not len(rows):
        return
    values = np.ascontiguousarray(rows).view("<f4").reshape(len(rows), -1)
    if not (values.max() < HIGHEST and values.min() > -HIGHEST):
        row, word = np.argwhere(~(np.abs(values) < HIGHEST))[0]
        names = rows.dtype.names or ()
        place = f"{where}: particle {first + row + 1}, word {names[word]}"
        raise InputError(f"{place} holds {values[row, word]:g}, expected a number: is the file damaged?")
    weights = rows["thinning_weight"] if "thinning_weight" in (rows.dtype.names or ()) else np.zeros(0)
    if weights.size and weights.min() < 0:
        row = int(weights.argmin())
        raise InputError(f"{where}: particle {first + row + 1} has weight {weights[row]:g}: is the file damaged?")


def _is_thinned(path: Path) -> bool:
    """Return whether a block has 312 words, from where the first event header lies."""
    with path.open("rb") as opened:
        head = opened.read(2 * THINNED_WORDS * WORD_BYTES)
    start = 0 if head[:4] == b"RUNH" else RECORD_MARK_BYTES
    for words, thinned in ((WORDS, False), (THINNED_WORDS, True)):
        place = start + words * WORD_BYTES
        if head[place : place + 4] == b"EVTH":
            return thinned
    raise InputError(f"{path} holds no event: no event header follows the run header; is the run finished?")


def _depth(header: Any, height_cm: float) -> float:
    """Return the matter above a height, g/cm2, in the atmosphere of a run header."""
    layer = int(np.searchsorted(LAYERS_CM, height_cm, side="right"))
    a, b, c = (float(header[name][layer]) for name in ("aatm", "batm", "catm"))
    return a - b * height_cm / c if layer == len(LAYERS_CM) else a + b * float(np.exp(-height_cm / c))


LEAVES_SOMETHING = charge_and_mass(np.arange(9901))[0] > 0
"""Of CORSIKA's particles, by number: what has a charge, and photons."""
LEAVES_SOMETHING[PHOTON] = True


def seen_columns(rows: np.ndarray, level: int) -> dict[str, np.ndarray]:
    """Return of particles (n,) of a file those of an observation level that can leave something in a detector.

    Columns are those of :class:`Ground`, but x is in cm as in the file, and weights are there if it is thinned.
    """
    words = rows["particle_description"].astype(np.int32)
    here = (words > 0) & (words % 10 == (level + 1) % 10) & (rows["pz"] > 0)
    words //= 1000
    here &= LEAVES_SOMETHING[np.clip(words, 0, len(LEAVES_SOMETHING) - 1)]
    rows, ids = rows[here], words[here].astype(np.int16)
    # Words are float32, and remain so: a large shower has ten million particles.
    px, py, pz = (rows[name] for name in ("px", "py", "pz"))
    momentum = np.sqrt(px * px + py * py + pz * pz)
    found = {
        "ids": ids, "momentum_gev": momentum, "secant": momentum / pz, "x_cm": rows["x"].copy(),
        "y_m": rows["y"] / np.float32(CM_PER_M), "time_ns": rows["t"].copy(),
    }  # fmt: skip
    return found | ({"weight": rows["thinning_weight"].copy()} if "thinning_weight" in (rows.dtype.names or ()) else {})


@dataclass(frozen=True)
class Ground:
    """The particles of one shower that reach the ground, about its core: (n,) each, float32 but for the numbers."""

    ids: np.ndarray
    """int16."""
    momentum_gev: np.ndarray
    secant: np.ndarray
    x_m: np.ndarray
    y_m: np.ndarray
    """Sorted by x."""
    time_ns: np.ndarray
    weight: np.ndarray
    """Particles for which each stands; 1 without thinning."""

    @classmethod
    def of(cls, *parts: dict[str, np.ndarray]) -> Ground:
        """Take what :func:`seen_columns` returned of all particles, by x; the parts are emptied to save memory."""
        x_cm = np.concatenate([part.pop("x_cm") for part in parts])
        order = np.argsort(x_cm, kind="stable").astype(np.int32)
        found = {"x_m": x_cm[order] / np.float32(CM_PER_M)}
        del x_cm
        for name in list(parts[0]):
            found[name] = np.concatenate([part.pop(name) for part in parts])[order]
        return cls(**{"weight": np.broadcast_to(np.float32(1), len(order))} | found)

    def number(self, ids: tuple[int, ...]) -> float:
        """Return how many particles of some kinds there are."""
        return float(self.weight[np.isin(self.ids, ids)].sum(dtype=np.float64))


@dataclass(frozen=True)
class Axis:
    """Direction of a shower's origin."""

    zenith_rad: float
    azimuth_rad: float
    """From +x towards +y."""

    @classmethod
    def of(cls, header: Any) -> Axis:
        """Turn the direction of flight, from an event header, around."""
        return cls(float(header["zenith"]), (float(header["azimuth"]) + np.pi) % (2 * np.pi))

    @property
    def horizontal(self) -> tuple[float, float]:
        """Horizontal part of the unit vector."""
        sine = np.sin(self.zenith_rad)
        return float(sine * np.cos(self.azimuth_rad)), float(sine * np.sin(self.azimuth_rad))

    def polar(self, x_m: np.ndarray, y_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return distance from the axis (m) and azimuth in the shower plane (rad) of places about the core."""
        cosine, sine = np.cos(self.azimuth_rad), np.sin(self.azimuth_rad)
        along, across = (x_m * cosine + y_m * sine) * np.cos(self.zenith_rad), y_m * cosine - x_m * sine
        return np.hypot(along, across), np.arctan2(across, along)


@dataclass(frozen=True)
class ThrownShower:
    """One shower at several places."""

    core_m: np.ndarray
    """(U, 2) true cores of the uses that are seen."""
    direction_deg: np.ndarray
    """(U, 2) zenith and azimuth of the fitted fronts."""
    signals_mev: np.ndarray
    """(U, S, 2) float32 by station."""
    times_ns: np.ndarray
    """(U, S) float32, NaN where the e/gamma detectors (of an array without any, the muon detectors) have no signal."""

    def __len__(self) -> int:
        return len(self.core_m)


def throw(
    ground: Ground, axis: Axis, array: DetectorArray, uses: int, rng: np.random.Generator, radius_m: float | None = None
) -> ThrownShower:
    """Throw a shower onto an array; cores are uniform in a disc, usually of 0.875 of half the array's side.

    Uses with fewer than four hit stations, or whose times no direction fits, are not seen.
    """
    cells = array.cells
    station_x, station_y = array.x_m.ravel()[cells], array.y_m.ravel()[cells]
    areas = [plane.ravel()[cells] for plane in (array.electron_area_m2, array.muon_area_m2)]
    response, model = DetectorResponse.of(array), FrontModel(**array.card.times)
    radius = (radius_m or usual_radius_m(array)) * np.sqrt(rng.random(uses))
    angle = 2 * np.pi * rng.random(uses)
    cores = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    find = _Sectors(ground, axis) if (ground.weight > 1).any() else _Squares(ground)
    timing = 0 if array.has_electron.any() else 1
    signals = np.zeros((uses, len(cells), 2))
    times = np.full((uses, len(cells)), np.inf)
    electrons = np.zeros((uses, len(cells)))
    for use, core in enumerate(cores):
        places = np.column_stack([station_x, station_y]) - core
        for channel, deposits_of in enumerate((electron_deposits, muon_deposits)):
            found = [
                find(place[0], place[1], area, rng) if area else NOTHING
                for place, area in zip(places, areas[channel], strict=True)
            ]
            station = np.repeat(np.arange(len(cells)), [len(rows) for rows, _ in found])
            rows, time = (np.concatenate(one) for one in zip(*found, strict=True))
            deposits = deposits_of(ground.ids[rows], ground.momentum_gev[rows], ground.secant[rows], response, rng)
            np.add.at(signals[use, :, channel], station, deposits)
            if channel == 1:
                np.add.at(electrons[use], station, np.isin(ground.ids[rows], ELECTRONS))
            if channel == timing:
                np.minimum.at(times[use], station, np.where(deposits > 0, time, np.inf))
    hit = signals[..., 0] >= response.threshold_mev, signals[..., 1] >= response.muon_threshold_mev
    triggers = ((hit[0] & (signals[..., 0] > 0)) | (hit[1] & (signals[..., 1] > 0))).sum(axis=1) >= TRIGGER_STATIONS
    away = np.stack([axis.polar(station_x - x, station_y - y)[0] for x, y in cores])
    signals += beside_particles(electrons, away, array, areas, rng)
    signals[..., 0] = readings(signals[..., 0], response.threshold_mev, response.saturation_mev)
    signals[..., 1] = readings(signals[..., 1], response.muon_threshold_mev, response.muon_saturation_mev)
    u, v = axis.horizontal
    ahead_ns = (u * station_x + v * station_y) / LIGHT_M_PER_NS
    known = np.isfinite(times)
    at_core_ns = [np.median(row[of]) if of.any() else 0.0 for row, of in zip(times + ahead_ns, known, strict=True)]
    # What no particle made comes with the others' front.
    times = np.where(known, times, np.array(at_core_ns)[:, None] - ahead_ns)
    times += model.resolution_ns * rng.standard_normal(times.shape)
    times = np.where(signals[..., timing] > 0, times, np.nan)
    mip = (response.electron_deposit_mev, response.muon_deposit_mev)[timing]
    front = fit_front(times, signals[..., timing] / mip, station_x, station_y, model=model)
    direction = np.column_stack(front.zenith_azimuth_deg())
    seen = triggers & np.isfinite(direction).all(axis=1)
    return ThrownShower(
        cores[seen], direction[seen], signals[seen].astype(np.float32), times[seen].astype(np.float32)
    )  # fmt: skip


def beside_particles(
    electrons: np.ndarray, r_m: np.ndarray, array: DetectorArray, areas: list[np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Return what strays leave, and electrons that punch through to muon detectors, (U, S, 2) MeV, as the fits have it.

    Parameters
    ----------
    electrons
        (U, S) electrons above the muon detectors.
    r_m
        (U, S) distances of the stations from the axis.
    areas
        (S,) of both channels.
    """
    r, result = array.response, np.zeros((*electrons.shape, 2))
    deposits, strays = (r.electron_deposit_mev, r.muon_deposit_mev), (r.electron_strays, r.muon_strays)
    for channel, (deposit, mean) in enumerate(zip(deposits, strays, strict=True)):
        result[..., channel] = deposit * rng.poisson(mean * (areas[channel] > 0), electrons.shape)
    # Exponential deposits, whose variance over mean is twice their mean.
    each = 0.5 * r.punch_through_dispersion
    punched = rng.poisson(electrons * r.punch_through / each * np.exp(-r_m / r.punch_through_scale_m))
    result[..., 1] += r.muon_deposit_mev * each * rng.standard_gamma(np.maximum(punched, 1e-9)) * (punched > 0)
    return result


NOTHING = (np.empty(0, np.int64), np.empty(0))
"""Rows and times of no particles."""


class _Squares:
    """Particles that cross a detector, a square of its area."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def __call__(
        self, x_m: float, y_m: float, area_m2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        half = 0.5 * np.sqrt(area_m2)
        first, last = np.searchsorted(self.ground.x_m, [x_m - half, x_m + half])
        rows = first + np.flatnonzero(np.abs(self.ground.y_m[first:last] - y_m) <= half)
        return rows, self.ground.time_ns[rows]


class _Sectors:
    """Particles for which those of a thinned shower in a sector about a detector stand."""

    def __init__(self, ground: Ground, axis: Axis) -> None:
        r_m, phi = axis.polar(ground.x_m, ground.y_m)
        self.order = np.argsort(r_m, kind="stable")
        self.r_m, self.phi, self.axis = r_m[self.order], phi[self.order], axis
        u, v = axis.horizontal
        # Behind the plane front through the core.
        self.late_ns = (ground.time_ns.astype(np.float64) + (u * ground.x_m + v * ground.y_m) / LIGHT_M_PER_NS)[
            self.order
        ]
        self.weight = ground.weight[self.order]
        # Of the plane front itself: the earliest particle of the innermost hundredth.
        self.early_ns = float(self.late_ns[: max(len(self.late_ns) // 100, 1)].min(initial=np.inf))

    def __call__(
        self, x_m: float, y_m: float, area_m2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        r_m, phi = self.axis.polar(np.array([x_m]), np.array([y_m]))
        r = max(float(r_m[0]), 1.0)
        width, turn, area = SECTOR_LN_R, SECTOR_RAD, area_m2 * np.cos(self.axis.zenith_rad)
        while turn * r * r * np.sinh(width) < area:
            width, turn = WIDER_LN_R * width, min(WIDER_RAD * turn, 2 * np.pi)
        low, high = r * np.exp(-width / 2), r * np.exp(width / 2)
        first, last = np.searchsorted(self.r_m, [low, high])
        turned = np.abs((self.phi[first:last] - phi[0] + np.pi) % (2 * np.pi) - np.pi)
        rows = first + np.flatnonzero(turned <= turn / 2)
        expected = self.weight[rows] * (area / (0.5 * turn * (high**2 - low**2)))
        if expected.sum() > MOST_PARTICLES:
            raise InputError(
                f"a detector of {area_m2:g} m2 at {r:.0f} m would see {expected.sum():.2g} particles, the largest "
                f"weight is {self.weight[rows].max():.3g}: is the file damaged?"
            )
        rows = np.repeat(rows, rng.poisson(expected))
        u, v = self.axis.horizontal
        late = (self.late_ns[rows] - self.early_ns) * (r / np.maximum(self.r_m[rows], 1.0)) ** 2
        return self.order[rows], self.early_ns + late - (u * x_m + v * y_m) / LIGHT_M_PER_NS


def class_of(particle_id: int, task: Task) -> int | None:
    """Return the class number of a primary; None where it has none.

    Nuclei belong to the group of the nucleus with the nearest ln A: of the five, oxygen counts as carbon.
    """
    mass = mass_of(particle_id)
    if task.primaries == GAMMA.name:
        return 0 if mass == 0 else 1 if mass else None
    if not mass:
        return None
    return int((task if task.masses else COMPOSITION).class_of_mass(mass))


def mass_of(particle_id: int) -> int | None:
    """Return the mass number of a primary, 0 of a photon; None of what is neither photon nor nucleus."""
    if particle_id >= 200:
        mass, charge = divmod(particle_id, 100)
        return mass if charge <= mass else None
    return {PHOTON: 0, PROTON_ID: 1}.get(particle_id)


def convert_corsika(
    path: Path,
    out: Path,
    task: Task,
    array: DetectorArray,
    *,
    uses: int = 10,
    seed: int = 1,
    slope: float | None = None,
    core_radius_m: float | None = None,
    tell: Callable[[str], None] = lambda line: LOG.warning("%s", line),
    bars: Bars = silent,
) -> Path:
    """Write the showers of a particle file, or of a folder of them, as a dataset folder of an array.

    Parameters
    ----------
    path
        ``DAT000001``, or a folder with files of that name.
    out
        Gets a folder of the path's name.
    task
        One of :data:`showerstack.showers.schema.TASKS`; labels are the primaries' classes, or the true energy.
    array
        The stations; with ``[times]`` in its card the arrival times are kept.
    uses
        How often each shower is thrown; ``groups.npy`` says which events are of one.
    seed
        Of cores, deposits and clocks.
    slope
        Of the energy spectrum dN/dE that ``weight.npy`` gives the showers, such as -2.7; None: that of the files, and
        no weights.
    core_radius_m
        Of the disc in which cores are uniform; None: :func:`usual_radius_m`. A line says how many of the largest
        showers are seen from its rim.
    """
    if uses < 1:
        raise InputError(f"--uses must be at least 1, got {uses}")
    if core_radius_m is not None and not 0 < core_radius_m < np.inf:
        raise InputError(f"--core-radius must be a number of metres above 0, got {core_radius_m:g}")
    if slope is not None:
        check_slope(slope)
        if task.target:
            raise InputError(f"--slope: task {task.name} has no weights: leave it out")
    files = [ParticleFile.open(file, array.depth_g_cm2) for file in files_in(path)]
    _same_ground(files)
    unseen = _what_cuts_hide(files, array, tell)
    if array.depth_g_cm2 is None:
        tell(f"the array's card gives no depth: its ground is taken to be at {files[0].depth_g_cm2:.0f} g/cm2")
    folder = out / path.resolve().name
    digests = {file.path.name: hash_file(file.path) for file in files}
    first = dict[str, str]()
    for name, digest in digests.items():
        if digest in first:
            raise InputError(f"{path_of(files)}: {name} is a copy of {first[digest]}, whose showers would count twice")
        first[digest] = name
    source = {
        "generator": GENERATOR,
        "conversion_version": CONVERSION_VERSION,
        "task": task.name,
        "array": array.as_json(),
        ABSENT: ["E", "Ne", "Nmu"],
        "evaluation_cuts": "none",
        **groups_entry(task),
        "corsika": {
            "files": digests,
            "uses": uses,
            "seed": seed,
            "depth_g_cm2": round(files[0].depth_g_cm2, 1),
            "energy_spectrum_slope": float(files[0].header["energy_spectrum_slope"]),
        }
        | ({} if slope is None else {"slope": slope})
        | ({} if core_radius_m is None else {"core_radius_m": core_radius_m}),
    }
    parts = out / f".{folder.name}.showers-{hash_json(source)[:12]}"
    if folder.exists():
        stored = EventFiles.open(folder).source()
        if {name: stored.get(name) for name in source} != source:
            raise InputError(f"{folder} exists already, made otherwise: choose another folder or remove it")
        if parts.exists():  # of a conversion that was killed while it removed them
            with suppress(InputError), locked(parts):
                shutil.rmtree(parts)
        return folder
    with locked(parts), bars(f"throwing {folder.name}", "showers") as progress:
        radius = core_radius_m or usual_radius_m(array)
        known = _throw_all(files, parts, task, array, uses, seed, radius, tell, progress, unseen)
        _tell_rim(files, known, uses, radius, tell)
        weights = None if slope is None else _weights(files, known, slope, tell)
        _write(folder, parts, known, source, task, array, weights)
    shutil.rmtree(parts)
    return folder


def _weights(files: list[ParticleFile], known: list[Known], slope: float, tell: Callable[[str], None]) -> np.ndarray:
    """Return what each shower counts, (n,) float64, and say what that costs."""
    kind, run = (np.array([getattr(one, name) for one in known]) for name in ("particle_id", "run"))
    energy = 10.0 ** (np.array([one.truth["lg_energy"] for one in known]) - 9.0)
    spectra = [file.spectrum for file in files]
    weights = spectrum_weights(spectra, run, kind, energy, slope)
    slopes = sorted({f"E^{one.slope:g}" for one in spectra})
    tell(
        f"{path_of(files)}: showers drawn from {', '.join(slopes)} are weighted to E^{slope:g}: {len(known):,} are "
        f"worth {effective_number(weights):,.0f} of equal weight"
    )
    if len({(spectra[number].least_gev, spectra[number].most_gev) for number in np.unique(run)}) > 1:
        low, high = common_energies(spectra, run, kind)
        kinds, number = np.unique(kind, return_counts=True)
        sums = [weights[kind == one].sum() for one in kinds]
        tell(
            f"{path_of(files)}: from {1e9 * low:.3g} to {1e9 * high:.3g} eV, where every primary was drawn, they count "
            f"as simulated; at all energies primaries {' : '.join(map(str, kinds))} count "
            f"{' : '.join(f'{one:.3g}' for one in sums)} for {' : '.join(f'{one:,}' for one in number)} showers"
        )
    return weights


def _what_cuts_hide(files: list[ParticleFile], array: DetectorArray, tell: Callable[[str], None]) -> list[str]:
    """Return the true sizes that particles below the energy cuts (ECUTS) hide, and say what detectors miss.

    Raises
    ------
    InputError
        Where no particle is left that a kind of detector could see.
    """
    hidden = []
    kinds = (
        ("electrons and photons", "e/gamma", array.has_electron, EM_CUT_GEV, "lg_ne", "some MeV"),
        (
            "muons",
            "muon",
            array.has_muon,
            MUON_CUT_GEV,
            "lg_nmu",
            f"{DetectorResponse.of(array).muon_energy_gev:g} GeV",
        ),
    )
    for number, (particles, detectors, there, most, size, seen) in enumerate(kinds):
        cuts = [file.cuts_gev[number] for file in files]
        if max(cuts) <= most:
            continue
        hidden.append(size)
        line = (
            f"{files[int(np.argmax(cuts))].path}: {particles} below {max(cuts):.3g} GeV were not followed (ECUTS), but "
            f"{detectors} detectors see them from {seen} on"
        )
        if there.any() and max(cuts) > LOST_GEV:
            areas = "electron_area_m2" if number == 0 else "muon_area_m2"
            raise InputError(f"{line}: nothing is left for them to see; leave out {areas}, or simulate with lower cuts")
        tell(f"{line}: signals are too small, and {size} of the truth is unknown" if there.any() else
             f"{line}: {size} of the truth is unknown")  # fmt: skip
    return hidden


def _same_ground(files: list[ParticleFile]) -> None:
    for file in files[1:]:
        if abs(file.depth_g_cm2 - files[0].depth_g_cm2) > DEPTH_TOLERANCE_G_CM2:
            raise InputError(
                f"{file.path}: the particles are at {file.depth_g_cm2:.0f} g/cm2, but those of {files[0].path.name} at "
                f"{files[0].depth_g_cm2:.0f} g/cm2: convert them one by one"
            )


@dataclass(frozen=True)
class Known:
    """What is known of a shower that was thrown."""

    part: Path
    events: int
    label: float
    truth: dict[str, Any]
    run: int
    """Number of its file."""
    at_rim: int
    """Events with a core in the outermost fifth of the disc."""

    @property
    def particle_id(self) -> int:
        """Its primary."""
        return int(self.truth["particle_id"])


def _throw_all(
    files: list[ParticleFile],
    parts: Path,
    task: Task,
    array: DetectorArray,
    uses: int,
    seed: int,
    radius_m: float,
    tell: Callable[[str], None],
    progress: Callable[..., None],
    hidden: Collection[str] = (),
) -> list[Known]:
    """Throw every shower that has no part yet, and say what is known of each, but for what is ``hidden``."""
    known: list[Known] = []
    unseen = 0
    promised = sum(max(int(file.header["n_showers"]), 1) for file in files)
    others: dict[int, int] = {}
    for run, file in enumerate(files):
        for number, (header, ground) in enumerate(file.showers(tell)):
            particle_id = int(header["particle_id"])
            if header["angle_array_x_magnetic_north"]:
                raise InputError(f"{file.path}: event {number + 1} is turned from magnetic north (ARRANG): not read")
            label = class_of(particle_id, task)
            if label is None:
                raise InputError(
                    f"{file.path}: event {number + 1} is of primary {particle_id}, no class of task {task.name}"
                )
            if mass_of(particle_id) not in (0, *chain(*task.masses)):
                others[particle_id] = others.get(particle_id, 0) + 1
            part = parts / f"{len(known):06d}.npz"
            axis = Axis.of(header)
            if not part.exists():
                rng = np.random.default_rng([seed, len(known)])
                with atomic_path(part) as temporary, temporary.open("wb") as opened:
                    np.savez(opened, **vars(throw(ground, axis, array, uses, rng, radius_m)))
            with np.load(part, allow_pickle=False) as stored:
                distance = np.hypot(*stored["core_m"].T)
            events = len(distance)
            unseen += uses - events
            truth = {name: one for name, one in _truth(header, ground, axis, particle_id).items() if name not in hidden}
            value = truth[task.target.name] if task.target else label
            known.append(Known(part, events, value, truth, run, int((distance > RIM * radius_m).sum())))
            progress(len(known), max(promised, len(known)))
            del ground  # before the next one is read
    if others and not task.target and task.primaries == COMPOSITION.name:
        named = ", ".join(f"{n} of {particle}" for particle, n in sorted(others.items()))
        tell(f"{path_of(files)}: nuclei count as the class with the nearest ln A (--groups names others): {named}")
    if not any(one.events for one in known):
        raise InputError(
            f"{path_of(files)}: none of {len(known)} showers at {uses} places hits {TRIGGER_STATIONS} stations: "
            "is the energy too low for the array's spacing?"
        )
    if not task.target:
        counts = np.bincount([int(one.label) for one in known if one.events], minlength=task.n_classes)
        if absent := task.absent(counts):
            tell(f"{path_of(files)}: {len(known):,} showers{absent}")
    if unseen:
        tell(f"{path_of(files)}: {unseen:,} of {uses * len(known):,} uses hit fewer than {TRIGGER_STATIONS} stations")
    return known


def usual_radius_m(array: DetectorArray) -> float:
    """Return the radius, m, of the disc in which cores are uniform unless another is asked for."""
    return CORE_SHARE * array.half_side_m


def _tell_rim(
    files: list[ParticleFile], known: list[Known], uses: int, radius_m: float, tell: Callable[[str], None]
) -> None:
    """Say how many of the largest showers are seen from the rim of the disc, if measured ones come from outside too."""
    large = sorted(known, key=lambda one: one.truth["lg_energy"])[-max(int(LARGE * len(known)), 1) :]
    share = sum(one.at_rim for one in large) / (len(large) * uses * (1 - RIM**2))
    if share > SEEN_OUTSIDE:
        tell(
            f"{path_of(files)}: cores lie within {radius_m:.0f} m, but of the {100 * LARGE:.0f} % of showers with the "
            f"highest energy about {100 * min(share, 1):.0f} % of the uses at that rim are seen: measured showers come "
            "from outside too, which training then does not know; give a larger --core-radius, or cut both on the "
            "fitted core"
        )


def path_of(files: list[ParticleFile]) -> Path:
    """Return the file, or the folder of several."""
    return files[0].path if len(files) == 1 else files[0].path.parent


def _truth(header: Any, ground: Ground, axis: Axis, particle_id: int) -> dict[str, Any]:
    mass = mass_of(particle_id)
    sizes = {"lg_ne": ground.number(ELECTRONS), "lg_nmu": ground.number(MUONS)}
    return {
        "particle_id": particle_id,
        "mass": mass,
        "model": MODELS.get(int(header["high_energy_hadron_model"]), "unknown"),
        "lg_energy": float(np.log10(float(header["total_energy"]))) + 9.0,
        "zenith_deg": float(np.degrees(axis.zenith_rad)),
        "azimuth_deg": float(np.degrees(axis.azimuth_rad)),
        "first_interaction_m": abs(float(header["first_interaction_height"])) / CM_PER_M,
        **{name: float(np.log10(number)) if number > 0 else float("nan") for name, number in sizes.items()},
    }


def _write(
    folder: Path,
    parts: Path,
    known: list[Known],
    source: dict[str, Any],
    task: Task,
    array: DetectorArray,
    weights: np.ndarray | None,
) -> None:
    """Write the dataset folder from the parts; its rows and the showers' numbers do not follow the files."""
    n = sum(one.events for one in known)
    content = hash_json(source)
    place = np.argsort(shuffled_order(n, content))
    shower = shuffled_order(len(known), f"{content} showers")
    of_event = np.repeat(np.arange(len(known)), [one.events for one in known])
    scalars = np.full((n, 5), np.nan, np.float32)
    cores = np.empty((n, 2), np.float32)
    with_times = bool(array.card.times)
    rows, columns, channels = array.grid_shape
    extras: dict[str, Any] = {"groups": np.int64} | ({} if weights is None else {"weight": np.float32})
    with write_dataset(
        folder, n, task, source=source, extras=extras,
        layout=Layout(np.float32, np.float32), arrival_times=np.float32 if with_times else None,
    ) as writer:  # fmt: skip
        start = 0
        for one in known:
            with np.load(one.part, allow_pickle=False) as part:
                here = place[start : start + one.events]
                scalars[here, 1:3], cores[here] = part["direction_deg"], part["core_m"]
                grids = np.zeros((one.events, array.n_cells, channels), np.float32)
                grids[:, array.cells] = part["signals_mev"]
                writer.put_grids(here, grids.reshape(one.events, rows, columns, channels))
                if with_times:
                    times = np.full((one.events, array.n_cells), np.nan, np.float32)
                    times[:, array.cells] = part["times_ns"]
                    writer.put_grids(here, times.reshape(one.events, rows, columns), ARRIVAL_STEM)
            start += one.events
        order = np.argsort(place)
        of_row = of_event[order]
        truth = pl.DataFrame([one.truth for one in known])[of_row].with_columns(
            core_x_m=cores[:, 0], core_y_m=cores[:, 1], shower=shower[of_row]
        )
        labels = task.decoded(np.array([one.label for one in known]))[of_row]
        more = {} if weights is None else {"weight": weights[of_row]}
        writer.put(0, None, scalars, labels, truth=truth, groups=shower[of_row], **more)
