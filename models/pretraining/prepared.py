"""Showers of the stream as the network reads them: some without their age, some from a world that is not told."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from models.base import Batch
from models.inputs import InputTransform
from models.pretraining.stream import COLUMNS, Portion
from models.pretraining.worlds import N_WORLD
from showers.schema import AGE

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
    """(n, N_WORLD + 1): see :meth:`models.pretraining.network.ShowerBody.forward`."""
    task: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor
    judged: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str) -> Prepared:
        """Return the same showers on a device."""
        return Prepared(*(getattr(self, field.name).to(device) for field in fields(self)))

    @classmethod
    def of(cls, portion: Portion, inputs: InputTransform, seed: int, number: int) -> Prepared:
        """Hide ages and worlds of some showers and turn columns into inputs."""
        rng = np.random.default_rng([seed, number, 1])
        table = hide_ages(portion.table, rng)
        world = np.ones((len(portion), N_WORLD + 1), dtype=np.float32)
        world[:, :-1] = portion.world
        world[rng.random(len(portion)) < UNKNOWN_WORLD] = 0.0
        return cls(
            torch.from_numpy(inputs.apply(batch_of(table))),
            torch.from_numpy(world),
            torch.from_numpy(portion.task),
            torch.from_numpy(portion.labels),
            torch.from_numpy(portion.targets),
            torch.from_numpy(portion.judged),
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
