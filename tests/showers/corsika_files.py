"""CORSIKA's binary particle files, written by the user's guide, with showers of a toy generator of known truth.

A run header, for each event a header, blocks of 39 particles of 7 words (8 in thinned files) and an end, then a run
end; all blocks of 273 words (312). Record marks, if any, stand about 21 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.showers.lateral import ELECTRON_R0_M, MUON_R0_M

LIGHT = 0.299792458
BLOCKS_PER_RECORD = 21
AATM, BATM = (-186.5562, -94.919, 0.61289, 0.0, 0.01128292), (1222.6562, 1144.9069, 1305.5948, 540.1778, 1.0)
CATM = (994186.38, 878153.55, 636143.04, 772170.16, 1e9)
COLUMNS = ("word", "px", "py", "pz", "x", "y", "t", "weight")


@dataclass
class Shower:
    """One event: particle rows (n, 8) as :data:`COLUMNS` say, in CORSIKA's units."""

    rows: np.ndarray
    particle_id: int = 14
    energy_gev: float = 1e6
    zenith_deg: float = 0.0
    azimuth_deg: float = 0.0
    """Of the flight."""
    arrang_rad: float = 0.0


def word(particle_id: int, level: int = 1, generation: int = 1) -> float:
    """Return a description word."""
    return float(particle_id * 1000 + generation * 10 + level)


def write_file(
    file: Path,
    showers: Sequence[Shower],
    *,
    thinned: bool = False,
    marks: bool = True,
    heights_m: Sequence[float] = (110.0,),
    promised: int | None = None,
    run_end: bool = True,
    spectrum: tuple[float, float, float] = (-2.0, 1e5, 1e7),
    cuts_gev: tuple[float, float, float, float] = (0.3, 0.3, 0.003, 0.003),
) -> Path:
    """Write a particle file; ``spectrum`` is its slope, least and largest energy, GeV, cuts are ECUTS."""
    words = 312 if thinned else 273

    def block(name: str, values: dict[int, float]) -> bytes:
        content = np.zeros(words, "<f4")
        for position, value in values.items():
            content[position - 1] = value
        return name.encode() + content.tobytes()[4:]

    levels = {47 + k: h * 100 for k, h in enumerate(heights_m, start=1)}
    run = {2: 1, 3: 250101, 4: 7.75, 5: len(heights_m)} | {16 + k: value for k, value in enumerate(spectrum)}
    run |= {5 + k: h * 100 for k, h in enumerate(heights_m, start=1)}
    run |= {20 + k: value for k, value in enumerate(cuts_gev, start=1)}
    run |= {93: len(showers) if promised is None else promised}
    for first, values in ((255, AATM), (260, BATM), (265, CATM)):
        run |= {first + k: value for k, value in enumerate(values)}
    blocks = [block("RUNH", run)]
    for number, shower in enumerate(showers, start=1):
        head = {2: number, 3: shower.particle_id, 4: shower.energy_gev, 7: -1.9e6, 46: 7.75, 47: len(heights_m)}
        head |= {11: np.radians(shower.zenith_deg), 12: np.radians(shower.azimuth_deg), 58: spectrum[0], 76: 3}
        head |= {93: shower.arrang_rad, **levels}
        blocks.append(block("EVTH", head))
        width = 8 if thinned else 7
        rows = shower.rows[:, :width].astype("<f4")
        for start in range(0, len(rows), 39):
            blocks.append(rows[start : start + 39].tobytes().ljust(words * 4, b"\0"))
        blocks.append(block("EVTE", {2: number, 7: len(rows)}))
    if run_end:
        blocks.append(block("RUNE", {2: 1, 3: len(showers)}))
    if not marks:
        file.write_bytes(b"".join(blocks))
        return file
    with file.open("wb") as opened:
        for start in range(0, len(blocks), BLOCKS_PER_RECORD):
            record = b"".join(blocks[start : start + BLOCKS_PER_RECORD]).ljust(BLOCKS_PER_RECORD * words * 4, b"\0")
            mark = np.array(len(record), "<i4").tobytes()
            opened.write(mark + record + mark)
    return file


def draw_shower(
    rng: np.random.Generator,
    *,
    mass: int = 1,
    lg_energy_gev: float = 6.0,
    zenith_deg: float = 20.0,
    azimuth_deg: float = 30.0,
    share: float = 1.0,
    thin: float = 1.0,
) -> Shower:
    """Draw a shower of NKG electrons, photons and muons on a curved front.

    lg Ne = 1.13 (lg E/GeV - 6) + 5.2 - 0.1 lg A and lg Nmu = 0.9 (lg E/GeV - 6) + 4.3 + 0.15 lg A, about; ``share`` of
    them is kept, and with ``thin`` one in so many with that weight.
    """
    lg_a = np.log10(max(mass, 1))
    n_e = 10 ** (1.13 * (lg_energy_gev - 6) + 5.2 - 0.1 * lg_a + rng.normal(0, 0.08)) * share
    n_mu = 10 ** (0.9 * (lg_energy_gev - 6) + 4.3 + 0.15 * lg_a + rng.normal(0, 0.05)) * share
    zenith, flight = np.radians(zenith_deg), np.radians(azimuth_deg)
    origin = flight + np.pi
    u, v = np.sin(zenith) * np.cos(origin), np.sin(zenith) * np.sin(origin)
    rows = []
    for ids, number, scale, (a, b), energy in (
        ((2, 3), n_e, ELECTRON_R0_M, (1.0, 1.6), 0.03),
        ((1, 1), 3 * n_e, ELECTRON_R0_M, (1.0, 1.6), 0.01),
        ((5, 6), n_mu, MUON_R0_M, (1.2, 2.2), 3.0),
    ):
        n = rng.poisson(number / thin)
        ratio = rng.beta(a, b, n)
        r = scale * ratio / (1 - ratio)
        phi = 2 * np.pi * rng.random(n)
        # From the shower plane to the ground, along the axis.
        along, across = r * np.cos(phi) / np.cos(zenith), r * np.sin(phi)
        x, y = along * np.cos(origin) - across * np.sin(origin), along * np.sin(origin) + across * np.cos(origin)
        late = 2.6 * (1 + r / 30) ** 1.5 * rng.standard_exponential(n)
        t = 5e4 + (r**2 / (2 * 3460) - (u * x + v * y)) / LIGHT + late
        p = energy * (0.3 + rng.standard_exponential(n))
        out = np.stack([-u * p, -v * p, np.cos(zenith) * p])
        words = np.where(rng.random(n) < 0.5, word(ids[0]), word(ids[1]))
        rows.append(np.column_stack([words, *out, 100 * x, 100 * y, t, np.full(n, thin)]))
    particle_id = {0: 1, 1: 14}.get(mass) or 100 * mass + {4: 2, 12: 6, 16: 8, 28: 14, 56: 26}[mass]
    return Shower(np.concatenate(rows), particle_id, 10**lg_energy_gev, zenith_deg, azimuth_deg)
