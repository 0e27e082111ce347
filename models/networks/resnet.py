"""A residual convolutional network (arXiv:1512.03385) for 16 x 16 grids."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.networks.parts import N_CHANNELS, mlp
from models.training.step import Output
from showers.array import DetectorArray


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; the first may halve the picture."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out or stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, n_out, h / stride, w / stride)."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, residual stages that halve the picture, mean pooling, head that sees the scalars."""

    def __init__(self, n_inputs: int, n_classes: int, widths: tuple[int, ...], blocks: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(N_CHANNELS, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        layers: list[nn.Module] = []
        width = widths[0]
        for stage, n_out in enumerate(widths):
            for block in range(blocks):
                layers.append(BasicBlock(width, n_out, 2 if stage and not block else 1))
                width = n_out
        self.body = nn.Sequential(*layers)
        self.head = mlp((width + n_inputs, 128, n_classes), dropout=dropout, activation=nn.ReLU)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits."""
        features = self.body(self.stem(grid)).mean(dim=(2, 3))
        return Output(self.head(torch.cat([features, inputs.to(features.dtype)], dim=1)))


class ResNetLearner(NetworkLearner):
    """Residual CNN; settings ``widths`` of the stages, ``blocks`` per stage, ``dropout``."""

    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "widths": (32, 64, 128),
        "blocks": 2,
        "dropout": 0.2,
        "epochs": 12,
        "learning_rate": 2e-3,
        "weight_decay": 0.02,
        "patience": 4,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the ResNet."""
        widths = tuple(int(width) for width in self.chosen["widths"])
        return ResNet(inputs.n_inputs, n_classes, widths, self.chosen["blocks"], self.chosen["dropout"])
