"""LeNet for KASCADE (JINST 19 (2024) P01025) and a wider one.

Four convolutions of 16 channels (2x2, 3x3, 4x4, 2x2), ReLU, max-pooling 2/1, 2/1, 2/2 after the first three; the
scalars join before the dense layers 120-84-C. An auxiliary linear head on the convolutions helps training.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.networks.parts import N_CHANNELS
from models.training.step import Output
from showers.array import DetectorArray


def pooled_side(side: int) -> int:
    """Return the side of the last feature map; 16 cells: 15, 14, 12, 11, 8, 4, 3."""
    return (side - 8) // 2 - 1


class LeNet(nn.Module):
    """See the module; ``norm`` puts batch norm after every convolution."""

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        array: DetectorArray,
        channels: int,
        dense: tuple[int, int],
        norm: bool,
        auxiliary: bool,
        dropout: float,
    ) -> None:
        super().__init__()

        def convolution(n_in: int, kernel: int, pool: tuple[int, int] | None) -> list[nn.Module]:
            layers: list[nn.Module] = [nn.Conv2d(n_in, channels, kernel)]
            if norm:
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU())
            if pool:
                layers.append(nn.MaxPool2d(*pool))
            return layers

        self.convolutions = nn.Sequential(
            *convolution(N_CHANNELS, 2, (2, 1)),
            *convolution(channels, 3, (2, 1)),
            *convolution(channels, 4, (2, 2)),
            *convolution(channels, 2, None),
            nn.Flatten(),
        )
        n_features = channels * pooled_side(array.grid_shape[0]) * pooled_side(array.grid_shape[1])
        self.auxiliary = nn.Linear(n_features, n_classes) if auxiliary else None
        self.dense = nn.Sequential(
            nn.Linear(n_features + n_inputs, dense[0]),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(*dense),
            nn.ReLU(),
            nn.Linear(dense[1], n_classes),
        )

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits and the auxiliary head's."""
        features = self.convolutions(grid)
        logits = self.dense(torch.cat([features, inputs.to(features.dtype)], dim=1))
        return Output(logits, None if self.auxiliary is None else self.auxiliary(features))


class LeNetLearner(NetworkLearner):
    """LeNet; settings ``channels``, ``dense`` widths, ``norm`` (batch norm), ``auxiliary`` head, ``dropout``."""

    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "channels": 16,
        "dense": (120, 84),
        "norm": False,
        "auxiliary": True,
        "dropout": 0.0,
        "epochs": 30,
        "batch_size": 256,
        "learning_rate": 2e-3,
        "weight_decay": 1e-3,
        "auxiliary_weight": 0.3,
        "patience": 6,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the LeNet."""
        chosen = self.chosen
        first, second = (int(width) for width in chosen["dense"])
        return LeNet(
            inputs.n_inputs,
            n_classes,
            array,
            chosen["channels"],
            (first, second),
            chosen["norm"],
            chosen["auxiliary"],
            float(chosen["dropout"]),
        )
