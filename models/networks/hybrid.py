"""Convolutions with channel attention beside a multilayer perceptron on the scalars, joined before the head.

Channel attention is squeeze-and-excitation (arXiv:1709.01507). With fitted quantities among the inputs the perceptron
carries what is known about the shower as a whole, the convolutions what is left in the picture.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from models.inputs import InputTransform
from models.networks.learner import NetworkLearner
from models.networks.parts import N_CHANNELS, mlp
from models.training.step import Output
from showers.array import DetectorArray


class ChannelGate(nn.Module):
    """Scales each channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.gate = mlp((channels, channels // reduction, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, channels, h, w)."""
        return x * torch.sigmoid(self.gate(x.mean(dim=(2, 3))))[:, :, None, None]


class Stage(nn.Module):
    """Convolution to the stage's width, then a residual convolution with channel attention."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.widen = nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.GELU())
        self.refine = nn.Sequential(
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), ChannelGate(n_out)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, n_out, h, w)."""
        x = self.widen(x)
        return nn.functional.gelu(x + self.refine(x))


class Hybrid(nn.Module):
    """Stages with 2 x 2 mean pooling between them; mean and maximum of the last join the scalars' perceptron."""

    def __init__(
        self, n_inputs: int, n_classes: int, widths: tuple[int, ...], scalar_width: int, head_width: int, dropout: float
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            Stage(n_in, n_out) for n_in, n_out in zip((N_CHANNELS, *widths[:-1]), widths, strict=True)
        )
        self.scalars = mlp((n_inputs, 2 * scalar_width, scalar_width), dropout=dropout)
        self.head = nn.Sequential(
            nn.LayerNorm(2 * widths[-1] + scalar_width),
            nn.Dropout(dropout),
            mlp((2 * widths[-1] + scalar_width, head_width, head_width // 2, n_classes), dropout=dropout),
        )

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits."""
        x = grid
        for k, stage in enumerate(self.stages):
            x = stage(nn.functional.avg_pool2d(x, 2) if k else x)
        pooled = torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3)), self.scalars(inputs)], dim=1)
        return Output(self.head(pooled))


class HybridLearner(NetworkLearner):
    """CNN and MLP; settings ``widths`` of the stages, ``scalar_width``, ``head_width``, ``dropout``."""

    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "widths": (32, 88, 184),
        "scalar_width": 64,
        "head_width": 256,
        "dropout": 0.15,
        "epochs": 14,
        "learning_rate": 1.5e-3,
        "weight_decay": 0.03,
        "patience": 5,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the hybrid."""
        chosen = self.chosen
        widths = tuple(int(width) for width in chosen["widths"])
        return Hybrid(
            inputs.n_inputs, n_classes, widths, chosen["scalar_width"], chosen["head_width"], chosen["dropout"]
        )
