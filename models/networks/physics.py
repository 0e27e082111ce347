"""Our own networks: ``physics``, which pools two readings of one shower, and a perceptron on the feature table.

The first reading is of stations: a residual perceptron on the fits, and beside it all stations, empty ones included, as
tokens in core-centred coordinates (distance to the axis, position along the shower's direction, both deposits), read in
the light of the scalars and pooled by attention. It is invariant under the array's symmetries by construction, and a
second head estimates lg A, which tells it that classes have an order. The second is of the picture: convolutions with
channel attention beside a perceptron (:class:`showerstack.models.networks.images.Hybrid`), which the symmetries
augment. Each is trained by its own cross-entropy, as if alone; the network's posterior is their geometric mean. They
err differently, so it beats either by more than any single reading that was tried (see the documentation).

The residual perceptron on the feature table is the strongest single learner on fitted quantities: class borders in lg
Ne, lg Nmu, age and zenith are smooth and oblique, and a small, well-regularised network follows them better than trees
do.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from showerstack.models.base.inputs import InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.networks.images import Hybrid
from showerstack.models.networks.layers import N_CHANNELS
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.stations import N_INVARIANT, StationTokens, invariant_inputs
from showerstack.models.networks.step import Output
from showerstack.showers.array import DetectorArray
from showerstack.showers.kascade import MASS_NUMBERS
from showerstack.showers.schema import COMPOSITION


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

    def __init__(
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        width: int,
        blocks: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs.n_inputs, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width, hidden, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, grid: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        """Return class logits; ``grid`` is not used."""
        return Output(self.head(self.norm(self.blocks(self.embed(inputs)))))


class TabularMLP(NetworkLearner):
    """Residual MLP on the table; settings ``width``, ``blocks``, ``hidden``, ``dropout``."""

    architecture = ResidualMLP
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

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        if self.device_ != "cpu" or type(self).architecture is not ResidualMLP:
            return super().predict_log_proba(batch)
        self._check_fitted()
        return self._predictor().predict_log_proba(batch)


LG_A = {name: math.log10(mass) for name, mass in zip(COMPOSITION.classes, MASS_NUMBERS, strict=True)}
"""Logarithm of the mass number of the composition task's classes."""


class StationReader(nn.Module):
    """Reads all stations in the light of the shower's scalars and pools them with several attentions."""

    def __init__(self, context: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Linear(N_INVARIANT, width)
        self.context = nn.Linear(context, width)
        self.mix = nn.Linear(width, width)
        self.score = nn.Linear(width, heads)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return (n, (heads + 1) * width): one attention-weighted mean per head, and the plain mean."""
        hidden = nn.functional.gelu(self.token(tokens) + self.context(context)[:, None])
        hidden = nn.functional.gelu(self.mix(self.dropout(hidden)))
        weight = torch.softmax(self.score(hidden), dim=1)
        pooled = torch.einsum("nsh,nsw->nhw", weight, hidden).flatten(1)
        return torch.cat([pooled, hidden.mean(dim=1)], dim=1)


class StationNetwork(nn.Module):
    """Fits and stations around the core; exactly invariant under the symmetries of the array."""

    invariant: torch.Tensor

    def __init__(
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        width: int,
        blocks: int,
        station_width: int,
        heads: int,
        dropout: float,
        regress: bool,
    ) -> None:
        super().__init__()
        self.tokens = StationTokens(inputs, array)
        self.register_buffer("invariant", invariant_inputs(inputs), persistent=False)
        self.embed = nn.Linear(len(self.invariant), width)
        self.first = ResidualBlock(width, width, dropout)
        self.reader = StationReader(width, station_width, heads, dropout)
        self.join = nn.Sequential(
            nn.LayerNorm((heads + 1) * station_width),
            nn.Dropout(dropout),
            nn.Linear((heads + 1) * station_width, width),
        )
        self.blocks = nn.Sequential(*(ResidualBlock(width, width, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)
        self.lg_a = nn.Linear(width, 1) if regress else None

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits and the estimate of lg A."""
        with torch.autocast(grid.device.type, enabled=False):
            tokens, _ = self.tokens(grid, inputs)
        shower = self.first(self.embed(inputs[:, self.invariant]))
        shower = shower + self.join(self.reader(tokens[..., :N_INVARIANT], shower))
        out = self.norm(self.blocks(shower))
        return Output(self.head(out), regression=None if self.lg_a is None else self.lg_a(out)[:, 0])


class PhysicsNetwork(nn.Module):
    """Stations and picture, each with a posterior of its own, and the geometric mean of the two."""

    def __init__(self, stations: StationNetwork, picture: Hybrid) -> None:
        super().__init__()
        self.stations, self.picture = stations, picture
        # No weights: it only brings ln(1 + MeV) to order one.
        self.front = nn.BatchNorm2d(N_CHANNELS, affine=False)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return the pooled log-posterior as logits, both members' logits and the estimate of lg A."""
        with torch.autocast(grid.device.type, enabled=False):
            cells = self.front(torch.log1p(grid))
        first, second = self.stations(grid, inputs), self.picture(cells, inputs)
        members = torch.stack([first.logits, second.logits], dim=1).float()
        return Output(torch.log_softmax(members, dim=2).mean(dim=1), regression=first.regression, members=members)


class PhysicsLearner(NetworkLearner):
    """Own network.

    Settings: ``width``, ``blocks``, ``station_width``, ``heads`` of the stations' reading; ``widths``,
    ``scalar_width``, ``head_width`` of the picture's, as in the hybrid; ``dropout`` of both.
    """

    needs_grid = True
    class_values: ClassVar[dict[str, float]] = LG_A
    defaults: ClassVar[dict[str, Any]] = {
        "width": 128,
        "blocks": 2,
        "station_width": 48,
        "heads": 4,
        "widths": (32, 88, 184),
        "scalar_width": 64,
        "head_width": 256,
        "dropout": 0.25,
        "grid": "raw",
        "regression_weight": 0.2,
        "epochs": 14,
        "learning_rate": 2e-3,
        "weight_decay": 0.1,
        "patience": 5,
    }

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the network; the lg A head is there only where the classes have mass numbers."""
        chosen = self.chosen
        sizes = {name: chosen[name] for name in ("width", "blocks", "station_width", "heads", "dropout")}
        regress = set(self.classes) <= set(self.class_values)
        picture = {name: chosen[name] for name in ("widths", "scalar_width", "head_width", "dropout")}
        return PhysicsNetwork(
            StationNetwork(inputs, n_classes, array, **sizes, regress=regress),
            Hybrid(inputs, n_classes, array, **picture),
        )
