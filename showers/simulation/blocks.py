"""One block of primaries, from the top of the atmosphere to accepted events.

Blocks are seeded by (seed, task, split, block, hadronic model) and hold 4,096 primaries whatever is kept of them, so
that a simulation has the same events for any number of workers, and two models share no shower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from showerstack.showers import protocols
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.kascade import PARTICLE_IDS
from showerstack.showers.schema import AGE, SCALAR_NAMES, TASKS, Task
from showerstack.showers.simulation.cascade import Deviates, Proposal, Showers, develop
from showerstack.showers.simulation.deposits import CLUMP_AMPLITUDE
from showerstack.showers.simulation.detector import read_out
from showerstack.showers.simulation.ground import ground_of
from showerstack.showers.simulation.primaries import MODELS, Primaries, throw_cores, throw_primaries
from showerstack.showers.simulation.reconstruction import Reconstructed, passes_selection, reconstruct, triggered
from showerstack.showers.simulation.settings import Settings

PRIMARIES_PER_BLOCK = 4096
RARE_STREAM = 3
"""Stream of random numbers of rare showers; those of hadronic models are the other numbers, in the models' order."""
SPLITS = ("train", "test")
CUTS = {"none": protocols.NONE, "test": protocols.TEST_WITH_AGE, "matched": protocols.MATCHED}
"""What a simulated set's selection means: as the benchmark's test sets were made, or as its matched protocol's."""
PRESELECTION_LG_NE = 3.8
"""Showers with a smaller true lg Ne are not read out where the test's cuts (lg Ne > 4.8) are applied."""
PRESELECTION_ZENITH_DEG = 32.0
"""The same for larger zenith angles (cut: 30 deg, resolution about 0.35 deg)."""


def quantities_of(array: DetectorArray) -> tuple[str, ...]:
    """Return what the standard reconstruction gives at an array: without muon detectors neither muon number nor energy,
    which is made of it."""
    known = (*SCALAR_NAMES, AGE.name)
    if not array.has_electron.any():
        return tuple(name for name in known if name not in ("E", "Ne", AGE.name))
    return known if array.n_muon_detectors else tuple(name for name in known if name not in ("E", "Nmu"))


@dataclass(frozen=True)
class BlockJob:
    """What decides the content of all blocks of one split."""

    task: Task
    split: str
    seed: int
    model: str
    cuts: str
    """A name in :data:`CUTS`."""
    settings: Settings
    reuse: int = 1
    """How many times each shower is thrown, at different cores."""
    preselect: bool = True
    """With cuts, skip showers that have no chance to pass before they are read out."""
    array: DetectorArray = KASCADE
    preselection_lg_ne: float = PRESELECTION_LG_NE
    proposal: Proposal | None = None
    """Density of muon-poor protons; None for the natural one."""


@dataclass(frozen=True)
class SimulatedEvents:
    """Accepted events of a block, in order."""

    showers: Showers
    rows: np.ndarray
    """Indices of the accepted events among the showers."""
    grids: np.ndarray
    """(n, rows, columns, 2) float32, MeV."""
    event: Reconstructed
    group: np.ndarray
    """(n,) int64: number of the shower; equal where a shower was reused."""
    array: DetectorArray

    def __len__(self) -> int:
        return len(self.rows)

    def head(self, n: int) -> SimulatedEvents:
        """Return the first ``n`` events."""
        rows, grids, group = self.rows[:n], self.grids[:n], self.group[:n]
        return replace(self, rows=rows, grids=grids, event=self.event.take(slice(n)), group=group)

    @property
    def labels(self) -> np.ndarray:
        """(n,) int8 class numbers of the primaries."""
        return self.showers.primaries.label[self.rows]

    @property
    def weight(self) -> np.ndarray | None:
        """(n,) float32 importance weights; None where all are thrown from the natural density."""
        weight = self.showers.weight
        return None if weight is None else weight[self.rows].astype(np.float32)

    @cached_property
    def scalars(self) -> np.ndarray:
        """(n, 5) float64: E, Ze, Az, Ne, Nmu."""
        e = self.event
        return np.column_stack([e.lg_energy, e.zenith_deg, e.azimuth_deg, e.lg_ne, e.lg_nmu])

    @property
    def truth(self) -> pl.DataFrame:
        """What really happened: primary, direction, core, depth of maximum, sizes and shapes."""
        s, p, rows = self.showers, self.showers.primaries, self.rows
        values = {
            "lg_energy": p.lg_energy,
            "core_x_m": p.core_x_m,
            "core_y_m": p.core_y_m,
            "zenith_deg": p.zenith_deg,
            "azimuth_deg": p.azimuth_deg,
            "xmax": s.xmax,
            "lg_ne": s.lg_ne,
            "lg_nmu": s.lg_nmu,
            "age": s.age,
            "muon_age": s.muon_age,
        }
        identity = {
            "particle_id": _particle_ids(p.mass[rows]),
            "mass": p.mass[rows].astype(np.int16),
            "model": p.model[rows],
            "shower": self.group,
        } | ({} if self.weight is None else {"weight": self.weight})
        reconstructed = {
            "reconstructed_core_x_m": self.event.core_x_m.astype(np.float32),
            "reconstructed_core_y_m": self.event.core_y_m.astype(np.float32),
            "reconstructed_age": self.event.age.astype(np.float32),
        }
        return pl.DataFrame(identity | {k: v[rows].astype(np.float32) for k, v in values.items()} | reconstructed)


def names_of_showers(group: np.ndarray, core_x_m: np.ndarray) -> np.ndarray:
    """Return (n,) complex128 names of showers at their cores: number and core x in float32, as files have them."""
    return group + 1j * core_x_m.astype(np.float32)


@dataclass(frozen=True)
class Draws:
    """What was drawn of some showers of a block: the world's offsets move none of it."""

    primaries: Primaries
    deviates: Deviates
    group: np.ndarray
    keys: np.ndarray
    modes: np.ndarray
    errors: np.ndarray
    chance: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return those of several blocks as one."""
        axes = {"group": 0, "keys": 0, "modes": 0, "errors": 1, "chance": 1}
        return cls(
            Primaries.joined([part.primaries for part in parts]),
            Deviates.joined([part.deviates for part in parts]),
            *(np.concatenate([getattr(part, name) for part in parts], axis=axis) for name, axis in axes.items()),
        )


def draw_block(job: BlockJob, block: int, only: np.ndarray) -> Draws:
    """Draw a block's random numbers as :func:`simulate_block` does; return those of the showers of these names."""
    rng = random_generator(job, block)
    n_showers = -(-PRIMARIES_PER_BLOCK // job.reuse)
    primaries = throw_primaries(job.task, n_showers, job.model, job.settings.spectrum, rng)
    deviates = Deviates.draw(n_showers, rng)
    of_copy = np.arange(n_showers)
    core_x_m, core_y_m = primaries.core_x_m, primaries.core_y_m
    if job.reuse > 1:
        of_copy = np.repeat(of_copy, job.reuse)[:PRIMARIES_PER_BLOCK]
        core_x_m, core_y_m = throw_cores(len(of_copy), job.settings.spectrum.core_radius_m, rng)
    n, group = len(of_copy), block * PRIMARIES_PER_BLOCK + of_copy
    keys, modes, errors, chance = _observation(n, rng)
    rows = np.flatnonzero(np.isin(names_of_showers(group, core_x_m), only))
    thrown = replace(primaries.take(of_copy[rows]), core_x_m=core_x_m[rows], core_y_m=core_y_m[rows])
    return Draws(
        thrown, deviates.take(of_copy[rows]), group[rows], keys[rows], modes[rows], errors[:, rows],
        chance[:, rows],
    )  # fmt: skip


def observe_drawn(draws: Draws, job: BlockJob) -> SimulatedEvents:
    """Return what passes the job's cuts of drawn showers, the same to the bit as among all of their blocks."""
    showers = develop(
        draws.primaries, job.settings, np.random.default_rng(0), None, ground_of(job.array).depth_g_cm2, draws.deviates
    )
    return _observe(showers, draws.group, job, (draws.keys, draws.modes, draws.errors, draws.chance), None)


def _observation(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    keys = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    modes = rng.standard_normal((n, len(CLUMP_AMPLITUDE), 2))
    errors, chance = rng.standard_normal((4, n)), rng.random((4, n))
    return keys, modes, np.concatenate([errors, rng.standard_normal((2, n))]), chance


def simulate_block(job: BlockJob, block: int) -> SimulatedEvents:
    """Simulate one block.

    Returns
    -------
    SimulatedEvents
        What triggered, was reconstructed and passed the job's cuts.
    """
    rng = random_generator(job, block)
    n_showers = -(-PRIMARIES_PER_BLOCK // job.reuse)
    primaries = throw_primaries(job.task, n_showers, job.model, job.settings.spectrum, rng)
    showers = develop(primaries, job.settings, rng, job.proposal, ground_of(job.array).depth_g_cm2)
    group = block * PRIMARIES_PER_BLOCK + np.arange(n_showers)
    if job.reuse > 1:
        showers, group = _rethrow(showers, group, job, rng)
    return observe(showers, group, job, rng)


def observe(
    showers: Showers, group: np.ndarray, job: BlockJob, rng: np.random.Generator, detector: Settings | None = None
) -> SimulatedEvents:
    """Let the array see showers: read out, trigger, reconstruct, select.

    Parameters
    ----------
    showers
        N showers at the ground.
    group
        (N,) int64 numbers of the showers.
    job
        World, cuts and array.
    detector
        The world that the detectors read in, where it is not the one that the reconstruction assumes.

    Returns
    -------
    SimulatedEvents
        What triggered, was reconstructed and passed the job's cuts.
    """
    return _observe(showers, group, job, _observation(len(group), rng), detector)


def _observe(
    showers: Showers, group: np.ndarray, job: BlockJob,
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], detector: Settings | None,
) -> SimulatedEvents:  # fmt: skip
    keys, modes, errors, chance = drawn
    rows = np.arange(len(group))
    if job.cuts != "none" and job.preselect:
        rows = np.flatnonzero(
            (showers.lg_ne > job.preselection_lg_ne) & (showers.primaries.zenith_deg < PRESELECTION_ZENITH_DEG)
        )
    readings = read_out(showers, rows, detector or job.settings, keys, modes, job.array)
    fired = triggered(readings.largest_cluster, job.settings.trigger)
    rows, readings = rows[fired], readings.take(fired)
    event = reconstruct(showers, rows, readings, job.settings, errors[:, rows], chance[:, rows])
    good = np.flatnonzero(passes_selection(event, job.settings.trigger) & passes_cuts(event, job.cuts))
    return SimulatedEvents(
        showers, rows[good], readings.take(good).grids(), event.take(good), group[rows[good]], job.array
    )


def random_generator(job: BlockJob, *number: int) -> np.random.Generator:
    """Return the random numbers of one block, or of whatever else the numbers name.

    Rare showers, and the models of one seed, have streams of their own: with a common one, their showers are copies of
    each other but for the model's small shifts.
    """
    entropy = (job.seed, list(TASKS).index(job.task.name), SPLITS.index(job.split), *number)
    place = 0 if job.model == "mix" else list(MODELS).index(job.model)
    model = () if job.model == "mix" else (place + (place >= RARE_STREAM),)
    rare = () if job.proposal is None else (RARE_STREAM,)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy, spawn_key=(*model, *rare))))


def passes_cuts(event: Reconstructed, name: str) -> np.ndarray:
    """Return which events pass the named cuts (:data:`CUTS`) on the unrounded quantities, (N,) bool."""
    scalars = np.column_stack([event.lg_energy, event.zenith_deg, event.azimuth_deg, event.lg_ne, event.lg_nmu])
    return CUTS[name].mask(protocols.scalar_frame(scalars, event.age))


def _particle_ids(mass: np.ndarray) -> np.ndarray:
    masses = np.asarray(sorted(PARTICLE_IDS))
    return np.asarray([PARTICLE_IDS[a] for a in masses], dtype=np.int16)[np.searchsorted(masses, mass)]


def _rethrow(
    showers: Showers, group: np.ndarray, job: BlockJob, rng: np.random.Generator
) -> tuple[Showers, np.ndarray]:
    """Repeat every shower ``job.reuse`` times with cores of its own."""
    rows = np.repeat(np.arange(len(group)), job.reuse)[:PRIMARIES_PER_BLOCK]
    core_x_m, core_y_m = throw_cores(len(rows), job.settings.spectrum.core_radius_m, rng)
    repeated = showers.take(rows)
    primaries = replace(repeated.primaries, core_x_m=core_x_m, core_y_m=core_y_m)
    return replace(repeated, primaries=primaries), group[rows]
