"""Places to be trained and tested in: a simulated world with a hadronic model, its showers and their features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.protocols import Layout
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings, simulate
from showerstack.showers.simulation.primaries import model_shares
from showerstack.showers.writer import write_dataset
from showerstack.stacking.events import ShowerEvents

PLACES = ("default/qgs", "default/epos", "default/sibyll", "harder/mix", "easier/mix")
MAX_GRID = 65_504.0
"""Largest deposit that float16 holds, MeV."""


@dataclass(frozen=True)
class Place:
    """A simulated world with a hadronic model."""

    world: str
    model: str

    @property
    def name(self) -> str:
        """As the user names it."""
        return f"{self.world}/{self.model}"

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{Path(self.world).stem}-{self.model}"


def parse_places(text: str) -> tuple[Place, ...]:
    """Return the places in a comma-separated list such as ``default/qgs,default/epos,harder/mix``.

    Raises
    ------
    InputError
        If one is not a world and a model, is unknown, is given twice, or there are fewer than two.
    """
    entries = []
    for part in text.split(","):
        world, _, model = part.strip().rpartition("/")
        if not world:
            raise InputError(f"--places {part!r}: give world/model, such as default/qgs or harder/mix")
        model_shares(COMPOSITION, model)
        load_settings(world)
        entries.append(Place(world, model))
    if len({place.folder for place in entries}) < len(entries):
        raise InputError(f"--places {text!r}: a place is given twice")
    if len(entries) < 2:
        raise InputError(f"--places {text!r}: give two or more, the first is home")
    return tuple(entries)


@dataclass(frozen=True)
class PlaceShowers:
    """Training and test events of a place."""

    place: Place
    train: Batch
    test: Batch


def showers_of(
    place: Place, spec: LearnerSpec, work: Path, *, train: int, test: int, seed: int, ctx: Context,
) -> PlaceShowers:  # fmt: skip
    """Simulate a place's showers under the test's cuts, unless they are there, and compute their features."""
    folder = work / place.folder
    simulate(
        COMPOSITION, folder, n_train=train, n_test=test, seed=seed, model=place.model, world=place.world,
        train_cuts="test", workers=ctx.workers, bars=ctx.bars,
    )  # fmt: skip
    sets = (folder / f"composition_{split}" for split in ("train", "test"))
    return PlaceShowers(place, *(batch_of(each, spec, ctx) for each in sets))


def batch_of(folder: Path, spec: LearnerSpec, ctx: Context) -> Batch:
    """Return all events of a labelled dataset folder as a learner sees them."""
    dataset = Dataset.open(folder, COMPOSITION)
    table = build_table(folder, ctx=ctx)
    assert dataset.labels is not None
    events = ShowerEvents(folder, table.folder, COMPOSITION)
    batch = events.batch(np.arange(len(dataset)), events.columns_for(spec), grids=spec.needs_grid)
    return replace(batch, labels=np.asarray(dataset.labels, dtype=np.int64))


def jittered(folder: Path, out: Path, width: float, seed: int) -> Path:
    """Write a copy of a dataset in which every shower's sizes are changed at random.

    Each shower's muon deposits and lg Nmu are shifted by a normal number of ``width`` in lg, its e/gamma deposits and
    lg Ne by another; the energy follows by the reconstruction's formula.
    """
    if out.exists():
        return out
    dataset = Dataset.open(folder, COMPOSITION)
    rng = np.random.default_rng(seed)
    shifts = rng.normal(0.0, width, (len(dataset), 2))
    grids = np.asarray(dataset.matrices, dtype=np.float32) * 10.0 ** shifts[:, None, None, :]
    scalars = dataset.scalars.astype(np.float64)
    scalars[:, 3] += shifts[:, 0]
    scalars[:, 4] += shifts[:, 1]
    scalars[:, 0] = reconstructed_energy(scalars[:, 3], scalars[:, 4], scalars[:, 1])
    dtype = dataset.scalars.dtype
    source = {"generator": "jittered copy", "width": width, "seed": seed}
    with write_dataset(out, len(dataset), COMPOSITION, source=source, layout=Layout(scalar_type=dtype)) as writer:
        writer.put(0, np.minimum(grids, MAX_GRID).astype(np.float16), scalars.astype(dtype), labels=dataset.labels)
    return out
