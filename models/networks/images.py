"""Networks on the picture of a shower: perceptrons on the flattened grid, LeNet, ResNet, vision transformer, hybrid.

Flat perceptrons on grid and scalars are used by several published systems. LeNet for KASCADE (JINST 19 (2024) P01025)
has four convolutions of 16 channels (2x2, 3x3, 4x4, 2x2), ReLU, max-pooling 2/1, 2/1, 2/2 after the first three; the
scalars join before the dense layers 120-84-C, and an auxiliary linear head on the convolutions helps training. A wider
one stands beside it. The residual network (arXiv:1512.03385) is one for 16 x 16 grids; the vision transformer
(arXiv:2010.11929) reads 4 x 4 patches, a token each, and one of the scalars.

The hybrid joins convolutions with channel attention (squeeze-and-excitation, arXiv:1709.01507) and a multilayer
perceptron on the scalars before the head. With fitted quantities among the inputs the perceptron carries what is known
about the shower as a whole, the convolutions what is left in the picture.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from showerstack.models.base.inputs import InputTransform
from showerstack.models.networks.layers import N_CHANNELS, Attention, mlp
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.step import Output
from showerstack.runtime.errors import InputError
from showerstack.showers.array import DetectorArray

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU}


class FlatMLP(nn.Module):
    """Dense layers on all cells and S inputs, each followed by batch norm (if wanted), activation and dropout."""

    def __init__(
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        hidden: tuple[int, ...],
        activation: str,
        norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = array.n_cells * N_CHANNELS + inputs.n_inputs
        for size in hidden:
            layers.append(nn.Linear(width, size))
            if norm:
                layers.append(nn.BatchNorm1d(size))
            layers += [ACTIVATIONS[activation](), nn.Dropout(dropout)]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, n_classes))

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        return Output(self.layers(torch.cat([grid.flatten(1), inputs], dim=1)))


class FlatMLPLearner(NetworkLearner):
    """MLP on the flattened grid; settings ``hidden``, ``activation`` (relu, elu, gelu), ``norm``, ``dropout``."""

    architecture = FlatMLP
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


def pooled_side(side: int) -> int:
    """Return the side of the last feature map; 16 cells: 15, 14, 12, 11, 8, 4, 3."""
    return (side - 8) // 2 - 1


class LeNet(nn.Module):
    """See the module; ``norm`` puts batch norm after every convolution."""

    def __init__(
        self,
        inputs: InputTransform,
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
        first, second = dense
        self.auxiliary = nn.Linear(n_features, n_classes) if auxiliary else None
        self.dense = nn.Sequential(
            nn.Linear(n_features + inputs.n_inputs, first),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, n_classes),
        )

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits and the auxiliary head's."""
        features = self.convolutions(grid)
        logits = self.dense(torch.cat([features, inputs.to(features.dtype)], dim=1))
        return Output(logits, None if self.auxiliary is None else self.auxiliary(features))


class LeNetLearner(NetworkLearner):
    """LeNet; settings ``channels``, ``dense`` widths, ``norm`` (batch norm), ``auxiliary`` head, ``dropout``."""

    architecture = LeNet
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

    def __init__(
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        widths: tuple[int, ...],
        blocks: int,
        dropout: float,
    ) -> None:
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
        self.head = mlp((width + inputs.n_inputs, 128, n_classes), dropout=dropout, activation=nn.ReLU)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        features = self.body(self.stem(grid)).mean(dim=(2, 3))
        return Output(self.head(torch.cat([features, inputs.to(features.dtype)], dim=1)))


class ResNetLearner(NetworkLearner):
    """Residual CNN; settings ``widths`` of the stages, ``blocks`` per stage, ``dropout``."""

    architecture = ResNet
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


PATCH = 4


class ViT(nn.Module):
    """Patches to tokens, encoder layers (norm first), head on the scalars' token."""

    def __init__(
        self,
        inputs: InputTransform,
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
        self.scalars = mlp((inputs.n_inputs, 96, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, array.n_cells // PATCH**2 + 1, width))
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = mlp((width, width, n_classes), dropout=dropout)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        patches = self.patches(grid).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.scalars(inputs)[:, None].to(patches.dtype), patches], dim=1)
        tokens = tokens + self.position
        for layer in self.layers:
            tokens = layer(tokens, tokens, None)
        return Output(self.head(self.norm(tokens[:, 0])))


class ViTLearner(NetworkLearner):
    """Vision transformer; settings ``width``, ``layers``, ``heads``, ``dropout``."""

    architecture = ViT
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
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        widths: tuple[int, ...],
        scalar_width: int,
        head_width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            Stage(n_in, n_out) for n_in, n_out in zip((N_CHANNELS, *widths[:-1]), widths, strict=True)
        )
        self.scalars = mlp((inputs.n_inputs, 2 * scalar_width, scalar_width), dropout=dropout)
        self.head = nn.Sequential(
            nn.LayerNorm(2 * widths[-1] + scalar_width),
            nn.Dropout(dropout),
            mlp((2 * widths[-1] + scalar_width, head_width, head_width // 2, n_classes), dropout=dropout),
        )

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        x = grid
        for k, stage in enumerate(self.stages):
            x = stage(nn.functional.avg_pool2d(x, 2) if k else x)
        pooled = torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3)), self.scalars(inputs)], dim=1)
        return Output(self.head(pooled))


class HybridLearner(NetworkLearner):
    """CNN and MLP; settings ``widths`` of the stages, ``scalar_width``, ``head_width``, ``dropout``."""

    architecture = Hybrid
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
