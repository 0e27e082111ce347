"""Networks on stations as tokens: a set transformer over hit stations, and a transformer encoder over raw hits.

A token holds what a detector measured and where it stands relative to the shower's core and direction. All entries but
the last two of :class:`StationTokens` are invariant under the symmetries of the array when core and direction turn
along; a network that uses only those, and only invariant inputs, is exactly invariant. The set transformer
(arXiv:1810.00825) reads the set through a few seed vectors, so its cost grows with the number of hits and not with its
square.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from showerstack.models.base.inputs import AZIMUTH, VECTOR_SCALE_M, VECTORS, ZENITH, InputTransform
from showerstack.models.networks.layers import Attention, mlp
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.step import Output
from showerstack.showers.array import DetectorArray

DIRECTION_SCALE = 2.0
"""Inputs hold the horizontal direction of arrival times this (see :mod:`showerstack.models.base.inputs`)."""
LENGTH_M = 50.0
"""Distances are divided by this."""
NEAR_M = 5.0
"""Added to distances before the logarithm: about the size of the core's error and a station."""
DEPOSIT_SCALE = 0.3
"""ln(1 + MeV) is multiplied by this to be of order one."""
CENTROID_POWER = 1.5
"""Without a fitted core, the centroid of the e/gamma density to this power stands for it."""
N_INVARIANT = 9
N_TOKEN = N_INVARIANT + 2


class StationTokens(nn.Module):
    """Raw grids (n, 2, rows, columns) in MeV to tokens (n, S, 11) and hits (n, S) of the S stations.

    Entries: distance to the axis, its logarithm, distance along the shower's direction, both deposits, both hit flags,
    no muon detector, muon detector; then x and y relative to the core.
    """

    x_m: torch.Tensor
    y_m: torch.Tensor
    fixed: torch.Tensor
    cells: torch.Tensor
    area: torch.Tensor

    def __init__(self, inputs: InputTransform, array: DetectorArray) -> None:
        super().__init__()
        pairs = dict(zip(inputs.vectors, inputs.pairs, strict=True))
        self.core = pairs.get(VECTORS[0])
        self.direction = pairs.get((ZENITH, AZIMUTH))

        def plane(values: np.ndarray) -> torch.Tensor:
            return torch.tensor(values.ravel()[array.cells], dtype=torch.float32)

        self.register_buffer("x_m", plane(array.x_m), persistent=False)
        self.register_buffer("y_m", plane(array.y_m), persistent=False)
        self.register_buffer("fixed", torch.stack([plane(array.no_muon), plane(array.has_muon)], 1), persistent=False)
        self.register_buffer("cells", torch.tensor(array.cells), persistent=False)
        area = plane(array.electron_area_m2)
        self.register_buffer("area", area / area.min(), persistent=False)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens (n, S, 11) float32 and which stations were hit (n, S) bool."""
        deposits = grid.flatten(2)[:, :, self.cells]
        core = self._core(deposits[:, 0], inputs)
        dx_m, dy_m = self.x_m - core[:, :1], self.y_m - core[:, 1:]
        along = torch.zeros_like(dx_m)
        if self.direction is not None:
            unit = pair_of(inputs, self.direction) / DIRECTION_SCALE
            along = dx_m * unit[:, :1] + dy_m * unit[:, 1:]
        r_m = (dx_m.square() + dy_m.square() - along.square()).clamp_min(1.0).sqrt()
        hits = deposits > 0
        parts = [
            r_m / LENGTH_M,
            torch.log((r_m + NEAR_M) / LENGTH_M),
            along / LENGTH_M,
            *(DEPOSIT_SCALE * torch.log1p(deposits)).unbind(1),
            *hits.float().unbind(1),
            *self.fixed.expand(grid.shape[0], -1, -1).unbind(2),
            dx_m / LENGTH_M,
            dy_m / LENGTH_M,
        ]
        return torch.stack(parts, dim=2), hits.any(dim=1)

    def _core(self, electron_mev: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return the core (n, 2) in m: the fitted one, where the inputs have it and the fit exists."""
        weight = (electron_mev / self.area) ** CENTROID_POWER + 1e-6
        total = weight.sum(dim=1)
        centroid = torch.stack([(weight * self.x_m).sum(1) / total, (weight * self.y_m).sum(1) / total], dim=1)
        if self.core is None:
            return centroid
        fitted = pair_of(inputs, self.core) * VECTOR_SCALE_M
        return torch.where((fitted == 0).all(dim=1, keepdim=True), centroid, fitted)


def pair_of(inputs: torch.Tensor, positions: tuple[int, int]) -> torch.Tensor:
    """Return two columns, (n, 2); a list as an index would go to a GPU in each step, and the host wait for it."""
    return torch.stack([inputs[:, k] for k in positions], dim=1)


def invariant_inputs(inputs: InputTransform) -> torch.Tensor:
    """Return the positions of the inputs that do not turn with the array, int64."""
    turning = {position for pair in inputs.pairs for position in pair}
    return torch.tensor([k for k in range(inputs.n_inputs) if k not in turning], dtype=torch.int64)


class SetTransformer(nn.Module):
    """Tokens of hit stations; in each block the seeds look at the tokens, then at each other."""

    invariant: torch.Tensor

    def __init__(
        self,
        inputs: InputTransform,
        n_classes: int,
        array: DetectorArray,
        width: int,
        blocks: int,
        heads: int,
        seeds: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = StationTokens(inputs, array)
        self.register_buffer("invariant", invariant_inputs(inputs), persistent=False)
        self.embed = mlp((N_INVARIANT, width, width))
        self.scalars = mlp((len(self.invariant), 2 * width, width), dropout=dropout)
        self.seeds = nn.Parameter(torch.randn(1, seeds, width))
        self.gather = nn.ModuleList(Attention(width, heads) for _ in range(blocks))
        self.confer = nn.ModuleList(Attention(width, heads) for _ in range(blocks))
        n_features = (seeds + 1) * width
        self.head = nn.Sequential(nn.LayerNorm(n_features), nn.Dropout(dropout), mlp((n_features, width, n_classes)))

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        with torch.autocast(grid.device.type, enabled=False):
            tokens, present = self.tokens(grid, inputs)
        tokens, present = pack(tokens[..., :N_INVARIANT], present)
        scalars = self.scalars(inputs[:, self.invariant])[:, None]
        members = self.embed(tokens)
        points = self.seeds + scalars
        for gather, confer in zip(self.gather, self.confer, strict=True):
            points = gather(points, members, present)
            points = confer(points, points, None)
        return Output(self.head(torch.cat([points, scalars], dim=1).flatten(1)))


class SetTransformerLearner(NetworkLearner):
    """Set transformer; settings ``width``, ``blocks``, ``heads``, ``seeds``, ``dropout``."""

    architecture = SetTransformer
    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "width": 48,
        "blocks": 2,
        "heads": 4,
        "seeds": 8,
        "dropout": 0.1,
        "grid": "raw",
        "augment": False,
        "precision": "float32",
        "epochs": 12,
        "learning_rate": 1.5e-3,
        "weight_decay": 0.02,
        "warmup": 0.1,
        "patience": 4,
        "channels_last": False,
    }


class HitTransformer(nn.Module):
    """Transformer encoder over hits as they are (array coordinates), mean over hits, head that sees the scalars."""

    def __init__(
        self, inputs: InputTransform, n_classes: int, array: DetectorArray, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.tokens = StationTokens(inputs, array)
        self.embed = nn.Linear(N_TOKEN, width)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = mlp((width + inputs.n_inputs, 2 * width, n_classes))

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        with torch.autocast(grid.device.type, enabled=False):
            tokens, present = self.tokens(grid, inputs)
        tokens, present = pack(tokens, present)
        encoded = self.embed(tokens)
        for layer in self.layers:
            encoded = layer(encoded, encoded, present)
        share = present[:, :, None].to(encoded.dtype)
        mean = (encoded * share).sum(dim=1) / share.sum(dim=1)
        return Output(self.head(torch.cat([mean, inputs.to(mean.dtype)], dim=1)))


class HitTransformerLearner(NetworkLearner):
    """Transformer over raw hits; settings ``width``, ``layers``, ``heads``."""

    architecture = HitTransformer
    needs_grid = True
    defaults: ClassVar[dict[str, Any]] = {
        "width": 16,
        "layers": 2,
        "heads": 2,
        "grid": "raw",
        "precision": "float32",
        "epochs": 8,
        "learning_rate": 2e-3,
        "patience": 3,
        "channels_last": False,
    }


def pack(tokens: torch.Tensor, present: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens with those present first, cut to the batch's fullest event; in each at least one counts.

    While the network is exported nothing is cut or moved, since a graph has no length that depends on the events; sets
    have no order, so the result is the same.
    """
    if torch.compiler.is_exporting():
        none = ~present.any(dim=1, keepdim=True)
        return tokens, torch.cat([present[:, :1] | none, present[:, 1:]], dim=1)
    longest = max(1, int(present.sum(dim=1).max()))
    order = torch.argsort(present.int(), dim=1, descending=True, stable=True)[:, :longest]
    packed = torch.take_along_dim(tokens, order[:, :, None], dim=1)
    counts = torch.take_along_dim(present, order, dim=1)
    # An event without any hit keeps one (empty) station, so that its attention is defined.
    counts = torch.cat([torch.ones_like(counts[:, :1]), counts[:, 1:]], dim=1)
    return packed, counts
