"""An endless stream of simulated showers from randomised worlds, as columns of the feature table; no file is written.

Portion ``k`` of a seed is always the same showers, whatever was drawn before. Most showers pass the test's cuts, as
those do that a network is meant for; a share that does not comes along, as in training sets without cuts. Some are
given without their age, some without their world. Grids and scalars are rounded as the datasets' files are.

In a randomised world every uncertain constant of the simulation is drawn from a prior. The priors are absolute: where
the default world lies within them does not matter. Their widths cover the published values, both fits to the real data
that this project has made, and the size of the guesses; a prior in ``lg`` units multiplies. Positions of a world within
its priors, in widths, and its hadronic model are inputs of the network (:data:`N_WORLD` numbers).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import polars as pl
import torch

from showerstack.features.catalogue import CATALOGUE, feature_set
from showerstack.features.compute import column_names, compute_events
from showerstack.models.base.inputs import InputTransform, targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.arrays import (
    DEPTH_NOT_SAID,
    KASCADE_SHARE,
    LG_ENERGY,
    description,
    draw_array,
    in_clusters,
    lowest_energy,
    triggering,
    without_depth,
)
from showerstack.runtime.rows import Rows
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import AGE, COMPOSITION, GAMMA, Task
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, quantities_of, simulate_block
from showerstack.showers.simulation.ground import covering
from showerstack.showers.simulation.settings import Settings

LIMIT = 2.2
"""Constants are drawn within so many widths of the centre."""


@dataclass(frozen=True)
class Prior:
    """A constant's prior: normal around ``centre`` (of its logarithm with ``factor``), cut at :data:`LIMIT` widths."""

    name: str
    """``section__field`` of :class:`showerstack.showers.simulation.settings.Settings`."""
    centre: float
    width: float
    factor: bool = False
    """Whether the width is one of ln(value)."""
    low: float = -np.inf
    high: float = np.inf

    def value(self, position: float) -> float:
        """Return the constant at a position in widths from the centre."""
        shift = self.width * position
        value = self.centre * np.exp(shift) if self.factor else self.centre + shift
        return float(np.clip(value, self.low, self.high))


PRIORS: tuple[Prior, ...] = (
    Prior("cascade__xmax_scale", 0.75, 0.15, low=0.2),
    Prior("cascade__muon_scale", 0.87, 0.12, low=0.2),
    Prior("cascade__size_scale", 0.67, 0.12, low=0.2),
    Prior("cascade__lg_ne_offset", 0.05, 0.08),
    Prior("cascade__lg_ne_mass", 0.055, 0.03),
    Prior("cascade__lg_ne_energy", -0.015, 0.03),
    Prior("cascade__lg_ne_inclination", 0.6, 0.5),
    Prior("cascade__lg_nmu_offset", 0.08, 0.08),
    Prior("cascade__lg_nmu_mass", 0.022, 0.015),
    Prior("cascade__lg_nmu_energy", -0.004, 0.025),
    Prior("cascade__lg_nmu_inclination", -0.03, 0.15),
    Prior("cascade__photon_lg_ne_offset", 0.1, 0.1),
    Prior("cascade__photon_lg_ne_inclination", 0.15, 0.3),
    Prior("cascade__photon_lg_nmu_offset", -0.5, 0.35),
    Prior("cascade__photon_muon_spread", 0.05, 0.05, low=0.0),
    Prior("cascade__photonuclear_scale", 1.0, 0.4, factor=True),
    Prior("cascade__epos_xmax", 8.0, 6.0),
    Prior("cascade__epos_lg_nmu", 0.015, 0.015),
    Prior("cascade__sibyll_xmax", 12.0, 6.0),
    Prior("cascade__sibyll_lg_nmu", 0.03, 0.02),
    Prior("shape__electron_r0_m", 39.0, 2.0),
    Prior("shape__age_offset", 0.955, 0.05),
    Prior("shape__age_longitudinal", 0.88, 0.2),
    Prior("shape__age_depth", 0.06, 0.025),
    Prior("shape__age_energy", -0.035, 0.03),
    Prior("shape__age_inclination", -0.2, 0.3),
    Prior("shape__age_spread", 0.035, 0.025, low=0.0),
    Prior("shape__muon_age_offset", 0.06, 0.09),
    Prior("shape__muon_age_spread", 0.03, 0.025, low=0.0),
    Prior("shape__clump_sigma", 0.07, 0.35, factor=True),
    Prior("shape__clump_iron_factor", 2.2, 0.3, factor=True),
    Prior("detector__electron_mev", 8.1, 0.6),
    Prior("detector__electron_shape", 0.76, 0.12),
    Prior("detector__muon_in_electron_shape", 5.0, 1.0),
    Prior("detector__photon_share", 0.276, 0.06),
    Prior("detector__photon_share_core", 1.27, 0.4),
    Prior("detector__photon_core_m", 10.0, 2.5),
    Prior("detector__electron_threshold_mev", 1.9, 0.7, low=0.3),
    Prior("detector__electron_stray", 0.025, 0.5, factor=True),
    Prior("detector__electrons_per_muon", 0.3, 0.3, low=0.0),
    Prior("detector__muon_mev", 8.15, 0.4),
    Prior("detector__muon_shape", 6.7, 1.6),
    Prior("detector__muon_threshold_mev", 3.5, 0.6),
    Prior("detector__muon_stray", 0.004, 0.6, factor=True),
    Prior("detector__punch", 0.12, 0.35, factor=True),
    Prior("detector__punch_range_m", 15.2, 2.5),
    Prior("detector__punch_mev", 12.0, 1.5),
    Prior("detector__punch_photon", 0.15, 0.7, factor=True),
    Prior("detector__punch_photon_range_m", 8.0, 0.35, factor=True),
    Prior("detector__dead", 0.0, 0.012, low=0.0),
    Prior("spectrum__index", 2.0, 0.07),
    Prior("spectrum__low_share", 0.6, 0.15, low=0.0, high=1.0),
    Prior("spectrum__contamination", 0.003, 0.4, factor=True),
    Prior("spectrum__protons_per_photon", 4.0, 0.7, factor=True),
    Prior("spectrum__photon_hard_share", 0.06, 0.03, low=0.0),
    Prior("spectrum__photon_hard_lg_energy_min", 15.6, 0.25),
    Prior("spectrum__photon_zenith_power", 0.75, 0.2),
    Prior("reconstruction__core_m", 2.16, 0.4),
    Prior("reconstruction__angle_deg", 0.33, 0.07),
    Prior("reconstruction__lg_nmu_error", 0.02, 0.02, low=0.0),
    Prior("reconstruction__age_error", 0.01, 0.015, low=0.0),
    Prior("reconstruction__muon_round", 0.1, 0.08),
    Prior("reconstruction__min_muons", 250.0, 0.45, factor=True),
    Prior("reconstruction__muon_failure", 0.0075, 0.4, factor=True),
    Prior("reconstruction__muon_loss", 0.0, 0.01, low=0.0),
)
"""Constants without a prior keep the values of :class:`Settings`: published ones, limits and thresholds of cuts."""
HADRONIC_MODELS = ("qgs", "epos", "sibyll")
"""Hadronic models among the inputs: each has a number, 1 in a world with this model alone, else 0."""
N_WORLD = len(PRIORS) + len(HADRONIC_MODELS)

STATIONS = (3, 4, 4, 4, 5)
"""Hit stations that trigger, one of these with equal probability."""


def draw_world(rng: np.random.Generator) -> tuple[Settings, np.ndarray]:
    """Return a world and its position in the priors.

    Returns
    -------
    settings
        Validated settings.
    position
        (P,) float32, one for each of :data:`PRIORS`, in widths and within :data:`LIMIT`.
    """
    position = rng.standard_normal(len(PRIORS))
    while (far := np.abs(position) > LIMIT).any():
        position[far] = rng.standard_normal(int(far.sum()))
    values: dict[str, float | int] = {
        prior.name: prior.value(float(x)) for prior, x in zip(PRIORS, position, strict=True)
    }
    values["trigger__stations"] = int(rng.choice(STATIONS))
    return Settings().changed(**values), position.astype(np.float32)


FEATURES = "fits+profile"
"""Feature set that the network reads; columns that a table lacks are missing values to it."""
COLUMNS: tuple[str, ...] = feature_set(FEATURES, CATALOGUE)
GROUPS = frozenset(CATALOGUE[name].group for name in COLUMNS)
TASKS: tuple[Task, ...] = (COMPOSITION, GAMMA)

PLAN: tuple[tuple[int, str, int], ...] = ((0, "test", 14), (1, "test", 4), (0, "none", 1), (1, "none", 1))
"""Blocks of a portion: task, cuts, how many."""
MAX_OFF_CUT = 1_200
"""Showers kept of a block without cuts."""
LOWEST_LG_ENERGY = (14.3, 14.2)
"""With cuts, thrown from here on: below, fewer than .3 % of the showers that pass."""
HIGHEST_ZENITH_DEG = 33.0
"""The same for composition sets' zenith angles (cut: 30 deg)."""
PRESELECTION_LG_NE = 4.2
MODELS = ("mix", "mix", "qgs", "epos", "sibyll")
"""Hadronic models of a world, one of these with equal probability."""
ROUNDED_SHARE = 0.5
"""Share of blocks whose scalars are float16, as in the v2 protocol; those of the matched one are float32."""
STREAM = 0x5EED_0000_0000
"""Added to seeds: no shower of the stream is one of a simulated dataset with the same seed."""


@dataclass(frozen=True)
class SimulatedBatch(Rows):
    """Showers of several worlds."""

    table: np.ndarray
    """(n, len(COLUMNS)) float32, NaN where undefined."""
    task: np.ndarray
    """(n,) int64: index into :data:`TASKS`."""
    labels: np.ndarray
    """(n,) int64: class of that task."""
    targets: np.ndarray
    """(n, len(TARGETS)) float32, standardised truth; NaN where it has no meaning."""
    world: np.ndarray
    """(n, N_WORLD) float32: position of the shower's world in the priors, then :data:`HADRONIC_MODELS`; in a stream of
    many arrays N_ARRAY numbers more that tell the shower's."""
    in_evaluation: np.ndarray
    """(n,) bool: passes the test's cuts; at other arrays than KASCADE all."""

    def __len__(self) -> int:
        return len(self.labels)


def draw_portion(seed: int, number: int, split: str = "train", array: DetectorArray | None = KASCADE) -> SimulatedBatch:
    """Return portion ``number`` of a seed's stream, as the stations of an array see it.

    Same numbers, same showers (to the last digit: on the same kind of machine). The split ``test`` is a stream of its
    own, to validate on. Without an array every block has one of its own
    (:func:`showerstack.models.pretraining.arrays.draw_array`), or KASCADE, and is told which.
    """
    pieces = []
    blocks = [(task, cuts) for task, cuts, count in PLAN for _ in range(count)]
    for k, (task, cuts) in enumerate(blocks):
        block = number * len(blocks) + k
        rng = np.random.default_rng([STREAM, seed, int(split == "test"), block])
        here = array or (KASCADE if rng.random() < KASCADE_SHARE else draw_array(rng))
        if here == KASCADE:
            pieces.append(_block(task, cuts, split, seed, block, rng, told=array is None))
        else:
            pieces.append(_block_elsewhere(task, split, seed, block, rng, here, told=array is None))
    return SimulatedBatch.joined(pieces)


def draw_at(array: DetectorArray, task: Task, number: int) -> SimulatedBatch:
    """Return showers of a world of its own at an array, fully reconstructed; no portion's, whatever its seed."""
    rng = np.random.default_rng([STREAM, number])
    if array == KASCADE:
        return _block(TASKS.index(task), "test", "test", -1, number, rng).take(slice(MAX_OFF_CUT))
    return _block_elsewhere(TASKS.index(task), "test", -1, number, rng, array, without_sizes=0.0)


def _block(
    task: int, cuts: str, split: str, seed: int, block: int, rng: np.random.Generator, *, told: bool = False
) -> SimulatedBatch:
    """Return a block of showers at KASCADE."""
    settings, position = draw_world(rng)
    if cuts != "none":
        settings = _enriched(settings, task)
    model = str(rng.choice(MODELS))
    job = BlockJob(TASKS[task], split, STREAM + seed, model, cuts, settings, preselection_lg_ne=PRESELECTION_LG_NE)
    events = simulate_block(job, block)
    if cuts == "none":
        events = events.head(MAX_OFF_CUT)
    world = _numbers(position, model, KASCADE if told else None)
    return _as_batch(events, task, world, rng, KASCADE, quantities_of(KASCADE), in_evaluation=cuts != "none")


OPEN_SHARE = 0.5
"""Share of blocks of other arrays without the test's cuts, which are KASCADE's."""
WITHOUT_SIZES = 0.3
"""Share of these blocks that are shown without the reconstruction's energy and sizes."""
ENERGIES_ABOVE = 1.5
"""Decades above the lowest energy at which most showers end."""
EDGE = 17.5
"""lg(E/eV) that the lowest energy does not exceed."""


def suited(settings: Settings, task: int, array: DetectorArray, rng: np.random.Generator) -> Settings:
    """Return a world as an array sees it: stations answer as its card says, cores lie all over it, and energies begin
    where a tenth of the showers triggers. ``task`` is an index into :data:`TASKS`."""
    settings = triggering(covering(settings, array), array)
    lowest = min(max(lowest_energy(TASKS[task], settings, array, rng), LOWEST_LG_ENERGY[task]), EDGE)
    soft_end = min(max(settings.spectrum.low_lg_energy_max, lowest + ENERGIES_ABOVE), LG_ENERGY[1])
    changes = {"spectrum__lg_energy_min": lowest, "spectrum__low_lg_energy_max": soft_end}
    if TASKS[task] == COMPOSITION:
        changes["spectrum__hadron_zenith_max_deg"] = HIGHEST_ZENITH_DEG
    return settings.changed(**changes)


def _block_elsewhere(
    task: int,
    split: str,
    seed: int,
    block: int,
    rng: np.random.Generator,
    array: DetectorArray,
    *,
    told: bool = False,
    without_sizes: float = WITHOUT_SIZES,
) -> SimulatedBatch:
    """Return a block of showers at another array, from the energy on from where a tenth triggers."""
    array = in_clusters(array)
    settings, position = draw_world(rng)
    cuts = "none" if rng.random() < OPEN_SHARE else "test"
    settings = suited(settings, task, array, rng)
    model = str(rng.choice(MODELS))
    job = BlockJob(
        TASKS[task], split, STREAM + seed, model, cuts, settings, array=array, preselection_lg_ne=PRESELECTION_LG_NE
    )
    events = simulate_block(job, block).head(MAX_OFF_CUT)
    seen_as = without_depth(array) if told and rng.random() < DEPTH_NOT_SAID else array
    quantities = quantities_of(array)
    if rng.random() < without_sizes:
        quantities = tuple(name for name in quantities if name in ("Ze", "Az"))
    world = _numbers(position, model, seen_as if told else None)
    return _as_batch(events, task, world, rng, seen_as, quantities)


def _numbers(position: np.ndarray, model: str, array: DetectorArray | None) -> np.ndarray:
    """Return a world's position in the priors and its hadronic model, then the array's description where one is
    given, float32."""
    told = np.empty(0) if array is None else description(array)
    return np.concatenate([position, [np.float32(model == name) for name in HADRONIC_MODELS], told]).astype(np.float32)


def _as_batch(
    events: SimulatedEvents,
    task: int,
    world: np.ndarray,
    rng: np.random.Generator,
    array: DetectorArray,
    quantities: tuple[str, ...],
    *,
    in_evaluation: bool = True,
) -> SimulatedBatch:
    n = len(events)
    table, reconstructed_core = _features(events, array, quantities, rounded=bool(rng.random() < ROUNDED_SHARE))
    return SimulatedBatch(
        table=table,
        task=np.full(n, task),
        labels=events.labels.astype(np.int64),
        targets=targets_of(events.truth, *reconstructed_core),
        world=np.broadcast_to(world, (n, len(world))),
        in_evaluation=np.full(n, in_evaluation),
    )


def _enriched(settings: Settings, task: int) -> Settings:
    """Return the world without most of the showers that cannot pass the cuts."""
    changes = {"spectrum__lg_energy_min": LOWEST_LG_ENERGY[task]}
    if TASKS[task] == COMPOSITION:
        changes["spectrum__hadron_zenith_max_deg"] = HIGHEST_ZENITH_DEG
    return settings.changed(**changes)


def _features(
    events: SimulatedEvents, array: DetectorArray, quantities: tuple[str, ...], *, rounded: bool
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return (n, F) float32 features of events with these reconstructed quantities, and the fitted core, x and y (n,)
    each."""
    grids = events.grids.astype(np.float16).astype(np.float32)
    scalars = events.scalars.astype(np.float32)
    if rounded:
        scalars = scalars.astype(np.float16).astype(np.float32)
    table = compute_events(grids, scalars, events.event.age.astype(np.float32), GROUPS | {"position"}, array)
    core = (table["fit_core_x_m"].to_numpy(), table["fit_core_y_m"].to_numpy())
    # What the array cannot have is missing, as where the network is used.
    there = set(column_names(GROUPS, array, quantities)).intersection(table.columns)
    columns = [pl.col(name) if name in there else pl.lit(np.nan).alias(name) for name in COLUMNS]
    return table.select(columns).to_numpy().astype(np.float32, order="F"), core


AGE_COLUMNS = (AGE.name, "fit_minus_age")
HIDDEN_AGE = 0.5
"""Share of showers shown without the reconstructed age, which one of the protocols lacks."""
UNKNOWN_WORLD = 0.25
"""Share of showers shown without the position of their world."""


@dataclass(frozen=True)
class Prepared:
    """Showers as the network reads them."""

    inputs: torch.Tensor
    world: torch.Tensor
    """(n, N_WORLD + 1), or N_ARRAY more: see :meth:`showerstack.models.pretraining.network.ShowerBody.forward`."""
    task: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor
    in_evaluation: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str) -> Prepared:
        """Return the same showers on a device."""
        return Prepared(*(getattr(self, field.name).to(device) for field in fields(self)))

    @classmethod
    def of(cls, portion: SimulatedBatch, inputs: InputTransform, seed: int, number: int) -> Prepared:
        """Hide ages and worlds of some showers and turn columns into inputs."""
        rng = np.random.default_rng([seed, number, 1])
        table = hide_ages(portion.table, rng)
        n_told = portion.world.shape[1]
        world = np.ones((len(portion), n_told + 1), dtype=np.float32)
        world[:, :-1] = portion.world
        # The array is always known.
        unknown = np.r_[0:N_WORLD, n_told]
        world[np.ix_(rng.random(len(portion)) < UNKNOWN_WORLD, unknown)] = 0.0
        return cls(
            torch.from_numpy(inputs.apply(batch_of(table))),
            torch.from_numpy(world),
            torch.from_numpy(portion.task),
            torch.from_numpy(portion.labels),
            torch.from_numpy(portion.targets),
            torch.from_numpy(portion.in_evaluation),
        )


def hide_ages(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the table without the reconstructed age of some showers."""
    table = table.copy(order="F")
    hidden = rng.random(len(table)) < HIDDEN_AGE
    for name in AGE_COLUMNS:
        table[hidden, COLUMNS.index(name)] = np.nan
    return table


def batch_of(table: np.ndarray) -> Batch:
    """Return a table of the stream's columns as learners are given it."""
    return Batch(index=np.arange(len(table)), table=table, columns=COLUMNS)
