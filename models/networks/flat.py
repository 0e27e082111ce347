"""Multilayer perceptrons on the flattened grid and the scalars, as several published systems use."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.networks.parts import N_CHANNELS
from models.training.step import Output
from showers.array import DetectorArray

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU}


class FlatMLP(nn.Module):
    """Dense layers on all cells and S inputs, each followed by batch norm (if wanted), activation and dropout."""

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        array: DetectorArray,
        hidden: tuple[int, ...],
        activation: str,
        norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = array.n_cells * N_CHANNELS + n_inputs
        for size in hidden:
            layers.append(nn.Linear(width, size))
            if norm:
                layers.append(nn.BatchNorm1d(size))
            layers += [ACTIVATIONS[activation](), nn.Dropout(dropout)]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, n_classes))

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits."""
        return Output(self.layers(torch.cat([grid.flatten(1), inputs], dim=1)))


class FlatMLPLearner(NetworkLearner):
    """MLP on the flattened grid; settings ``hidden``, ``activation`` (relu, elu, gelu), ``norm``, ``dropout``."""

    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "hidden": (512, 512),
        "activation": "elu",
        "norm": True,
        "dropout": 0.2,
        "epochs": 25,
        "learning_rate": 1e-3,
        "weight_decay": 0.02,
        "patience": 6,
        "channels_last": False,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the MLP."""
        chosen = self.chosen
        hidden = tuple(int(size) for size in chosen["hidden"])
        return FlatMLP(
            inputs.n_inputs, n_classes, array, hidden, chosen["activation"], chosen["norm"], float(chosen["dropout"])
        )
