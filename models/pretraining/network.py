"""The shower network: residual layers on features and on the position of the world, with a head for each output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from showerstack.models.base.inputs import TARGETS
from showerstack.models.networks.physics import ResidualBlock
from showerstack.models.networks.predictor import LOG_WIDTH_RANGE
from showerstack.models.networks.step import truth_losses
from showerstack.models.pretraining.arrays import description
from showerstack.models.pretraining.stream import N_WORLD
from showerstack.showers.array import DetectorArray
from showerstack.showers.schema import COMPOSITION, GAMMA

IGNORED = -100
"""Label of a shower of the other task."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the network."""

    n_inputs: int
    width: int = 192
    blocks: int = 4
    hidden: int = 256
    n_world: int = N_WORLD
    n_targets: int = len(TARGETS)


class ShowerOutputs(NamedTuple):
    """What the network estimates of (n,) showers."""

    composition: torch.Tensor
    """(n, 5) logits."""
    gamma: torch.Tensor
    """(n, 2) logits."""
    truth: torch.Tensor
    """(n, 2 T) standardised targets, then the logarithms of their errors."""


class ShowerBody(nn.Module):
    """Features and world to an embedding."""

    def __init__(self, sizes: Architecture, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(sizes.n_inputs, sizes.width)
        self.world = nn.Linear(sizes.n_world + 1, sizes.width, bias=False)
        self.blocks = nn.Sequential(*(ResidualBlock(sizes.width, sizes.hidden, dropout) for _ in range(sizes.blocks)))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, inputs: torch.Tensor, world: torch.Tensor) -> torch.Tensor:
        """Return (n, width).

        Parameters
        ----------
        inputs
            (n, n_inputs).
        world
            (n, n_world + 1), or (n_world + 1,) for all: positions in the priors, then 1; or all 0 for an unknown world.
            A network of many arrays has what it is told of the array before the last number, of unknown worlds too.
        """
        return self.norm(self.blocks(self.embed(inputs) + self.world(world)))


def told(state: dict[str, torch.Tensor], array: DetectorArray, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return a body's weights for one array, of those of a body that is told arrays: its numbers are constants.

    They go into the bias of the embedding, and what is left is a body that is told worlds alone.
    """
    world, bias = state[f"{prefix}world.weight"], state[f"{prefix}embed.bias"]
    constants = torch.from_numpy(description(array)).to(world)
    return {
        **{name: value for name, value in state.items() if name.startswith(prefix)},
        f"{prefix}world.weight": torch.cat([world[:, :N_WORLD], world[:, -1:]], dim=1),
        f"{prefix}embed.bias": bias + world[:, N_WORLD:-1] @ constants,
    }


class ShowerNetwork(nn.Module):
    """Body and heads as they are pretrained."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.sizes = sizes
        self.body = ShowerBody(sizes)
        self.composition = nn.Linear(sizes.width, COMPOSITION.n_classes)
        self.gamma = nn.Linear(sizes.width, GAMMA.n_classes)
        self.truth = nn.Linear(sizes.width, 2 * sizes.n_targets)

    def forward(self, inputs: torch.Tensor, world: torch.Tensor) -> ShowerOutputs:
        """Return all estimates; arguments as in :meth:`ShowerBody.forward`."""
        embedding = self.body(inputs, world)
        return ShowerOutputs(self.composition(embedding), self.gamma(embedding), truth_estimates(self.truth, embedding))


def truth_estimates(head: nn.Module, embedding: torch.Tensor) -> torch.Tensor:
    """Return (n, 2 T): estimates of the standardised targets, then the logarithms of their errors."""
    mean, log_width = head(embedding).chunk(2, dim=1)
    return torch.cat([mean, log_width.clamp(*LOG_WIDTH_RANGE)], dim=1)


def pretraining_loss(
    outputs: ShowerOutputs, task: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor, truth_weight: float
) -> torch.Tensor:
    """Return the loss per shower: cross-entropy of its own task, and ``truth_weight`` times that of the truth.

    Parameters
    ----------
    outputs
        Of (n,) showers.
    task
        (n,) int64: 0 composition, 1 gamma.
    labels
        (n,) int64 classes of that task.
    targets
        (n, T) standardised truth.
    """
    losses, known = truth_losses(outputs.truth, targets)
    total = truth_weight * (losses.sum() / known.sum().clamp_min(1))
    for number, logits in enumerate((outputs.composition, outputs.gamma)):
        # Marked, not picked out: on a GPU picking waits for the count.
        labels_of_task = torch.where(task == number, labels, IGNORED)
        total = total + functional.cross_entropy(logits, labels_of_task, ignore_index=IGNORED, reduction="sum") / len(
            labels
        )
    return total
