"""A vision transformer (arXiv:2010.11929) on 4 x 4 patches: a token each, and one of the scalars."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.networks.parts import N_CHANNELS, Attention, mlp
from models.training.step import Output
from showers.array import DetectorArray
from showers.schema import InputError

PATCH = 4


class ViT(nn.Module):
    """Patches to tokens, encoder layers (norm first), head on the scalars' token."""

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        array: DetectorArray,
        width: int,
        layers: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        rows, columns, _ = array.grid_shape
        if rows % PATCH or columns % PATCH:
            raise InputError(f"array {array.name} has {rows} x {columns} cells, which patches of {PATCH} do not divide")
        self.patches = nn.Conv2d(N_CHANNELS, width, PATCH, stride=PATCH)
        self.scalars = mlp((n_inputs, 96, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, array.n_cells // PATCH**2 + 1, width))
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = mlp((width, width, n_classes), dropout=dropout)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits."""
        patches = self.patches(grid).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.scalars(inputs)[:, None].to(patches.dtype), patches], dim=1)
        tokens = tokens + self.position
        for layer in self.layers:
            tokens = layer(tokens, tokens, None)
        return Output(self.head(self.norm(tokens[:, 0])))


class ViTLearner(NetworkLearner):
    """Vision transformer; settings ``width``, ``layers``, ``heads``, ``dropout``."""

    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "width": 128,
        "layers": 4,
        "heads": 4,
        "dropout": 0.1,
        "precision": "float32",
        "epochs": 14,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "warmup": 0.1,
        "patience": 4,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the transformer."""
        chosen = self.chosen
        names = ("width", "layers", "heads", "dropout")
        return ViT(inputs.n_inputs, n_classes, array, *(chosen[name] for name in names))
