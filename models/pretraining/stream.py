"""An endless stream of simulated showers from randomised worlds, as columns of the feature table; no file is written.

Portion ``k`` of a seed is always the same showers, whatever was drawn before. The showers that a network has to judge
pass the test's cuts; a share that does not comes along, as in training sets without cuts. Grids and scalars are
rounded as the datasets' files are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from features.build import compute_events
from features.catalogue import CATALOGUE, feature_set
from models.pretraining.targets import targets_of
from models.pretraining.worlds import N_WORLD, draw_world
from showers.schema import COMPOSITION, GAMMA, Task
from showers.simulation.blocks import BlockJob, SimulatedEvents, simulate_block
from showers.simulation.settings import Settings

FEATURES = "fits+profile"
"""Feature set that the network reads; columns that a table lacks are told to it as missing."""
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
class Portion:
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
    """(n, N_WORLD) float32: position of the shower's world in the priors."""
    judged: np.ndarray
    """(n,) bool: passes the test's cuts."""

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls, portions: list[Portion]) -> Portion:
        """Return all showers of several portions."""
        names = ("table", "task", "labels", "targets", "world", "judged")
        return cls(*(np.concatenate([getattr(portion, name) for portion in portions]) for name in names))


def draw_portion(seed: int, number: int, split: str = "train") -> Portion:
    """Return portion ``number`` of a seed's stream.

    Parameters
    ----------
    seed, number
        Same numbers, same showers (to the last digit: on the same kind of machine).
    split
        ``train``, or ``test`` for a stream of its own, to validate on.
    """
    pieces = []
    blocks = [(task, cuts) for task, cuts, count in PLAN for _ in range(count)]
    for k, (task, cuts) in enumerate(blocks):
        block = number * len(blocks) + k
        rng = np.random.default_rng([STREAM, seed, int(split == "test"), block])
        pieces.append(_block(task, cuts, split, seed, block, rng))
    return Portion.joined(pieces)


def _block(task: int, cuts: str, split: str, seed: int, block: int, rng: np.random.Generator) -> Portion:
    settings, position = draw_world(rng)
    settings = _enriched(settings, task) if cuts != "none" else settings
    model = str(rng.choice(MODELS))
    job = BlockJob(TASKS[task], split, STREAM + seed, model, cuts, settings, preselection_lg_ne=PRESELECTION_LG_NE)
    events = simulate_block(job, block)
    if cuts == "none":
        events = events.head(MAX_OFF_CUT)
    n = len(events)
    table, reconstructed_core = _features(events, rounded=bool(rng.random() < ROUNDED_SHARE))
    return Portion(
        table=table,
        task=np.full(n, task),
        labels=events.labels.astype(np.int64),
        targets=targets_of(events.truth, *reconstructed_core),
        world=np.broadcast_to(position, (n, N_WORLD)),
        judged=np.full(n, cuts != "none"),
    )


def _enriched(settings: Settings, task: int) -> Settings:
    """Return the world without most of the showers that cannot pass the cuts."""
    changes = {"spectrum__lg_energy_min": LOWEST_LG_ENERGY[task]}
    if TASKS[task] == COMPOSITION:
        changes["spectrum__hadron_zenith_max_deg"] = HIGHEST_ZENITH_DEG
    return settings.changed(**changes)


def _features(events: SimulatedEvents, *, rounded: bool) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return (n, F) float32 features and the fitted core, x and y (n,) each."""
    grids = events.grids.astype(np.float16).astype(np.float32)
    scalars = events.scalars.astype(np.float32)
    if rounded:
        scalars = scalars.astype(np.float16).astype(np.float32)
    found = compute_events(grids, scalars, events.event.age.astype(np.float32), GROUPS | {"position"}, events.array)
    core = (found["fit_core_x_m"].to_numpy(), found["fit_core_y_m"].to_numpy())
    return found.select(COLUMNS).to_numpy().astype(np.float32, order="F"), core
