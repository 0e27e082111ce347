"""A residual multilayer perceptron on the feature table: the strongest single learner on fitted quantities.

Class borders in lg Ne, lg Nmu, age and zenith are smooth and oblique: a small, well-regularised network follows them
better than trees do.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.training.step import Output
from showers.array import DetectorArray


class ResidualBlock(nn.Module):
    """``x + W2 dropout(gelu(W1 norm(x)))``."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, width)."""
        return x + self.narrow(self.dropout(nn.functional.gelu(self.widen(self.norm(x)))))


class ResidualMLP(nn.Module):
    """Linear embedding, residual blocks, norm, linear head."""

    def __init__(self, n_inputs: int, n_classes: int, width: int, blocks: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(n_inputs, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width, hidden, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, grid: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        """Return class logits; ``grid`` is not used."""
        return Output(self.head(self.norm(self.blocks(self.embed(inputs)))))


class TabularMLP(NetworkLearner):
    """Residual MLP on the table; settings ``width``, ``blocks``, ``hidden``, ``dropout``."""

    needs_table = True
    defaults: ClassVar[dict[str, Any]] = {
        "width": 128,
        "blocks": 3,
        "hidden": 128,
        "dropout": 0.25,
        "scalars": (),
        "augment": False,
        "epochs": 14,
        "batch_size": 256,
        "learning_rate": 2e-3,
        "weight_decay": 0.1,
        "patience": 6,
        "precision": "float32",
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the residual MLP."""
        chosen = self.chosen
        return ResidualMLP(
            inputs.n_inputs, n_classes, chosen["width"], chosen["blocks"], chosen["hidden"], chosen["dropout"]
        )
