"""CORSIKA's own particle files, read block by block: which showers they hold, and the particles that reach the ground.

Blocks are read with corsikaio; whether a file is thinned tells the place of the first event header, 273 or 312 words
after the run header. Units are GeV, cm and ns; x points to magnetic north, y to the west, and the array's x and y are
taken for these. The azimuth is that of the flight, so the origin's is 180 degrees from it.

Rows that are no particles at the ground are left out: those of other observation levels, of a muon's or an
electromagnetic particle's history (negative words, and ids that :mod:`showerstack.showers.particles` does not know).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError, need
from showerstack.showers.archives.spectrum import DrawnSpectrum
from showerstack.showers.card import DEPTH_TOLERANCE_G_CM2
from showerstack.showers.particles import PHOTON, charge_and_mass

WORD_BYTES, WORDS, THINNED_WORDS = 4, 273, 312
"""Of a block of an ordinary and of a thinned file."""
RECORD_MARK_BYTES = 4
BLOCKS_AT_ONCE = 100
"""Read from files without record marks."""
HIGHEST = 1e15
"""No number in a particle file is larger."""
CM_PER_M = 100.0
LAYERS_CM = (4e5, 1e6, 4e6, 1e7)
"""Where CORSIKA's atmospheric layers end; the last one is linear."""


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

    @property
    def promised(self) -> int:
        """Showers that the run header promises, at least one."""
        return max(int(self.header["n_showers"]), 1)

    def count_whole(self) -> int:
        """Return how many whole events there are, by the names of the blocks."""
        count, is_begun = 0, False
        for block in _blocks(self.path, self.is_thinned):
            name = block[:4]
            if name == b"EVTH":
                is_begun = True
            elif name == b"EVTE" and is_begun:
                count, is_begun = count + 1, False
            elif name == b"RUNE":
                break
        return count

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
