"""Small pieces that several networks share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from showerstack.models.base.learner import Batch
from showerstack.runtime.errors import InputError
from showerstack.showers.array import CHANNELS

N_CHANNELS = CHANNELS
FRONT_EVENTS = 20_000
"""Standardisation of the cells is taken from at most this many training events, evenly spaced."""


class GridFront(nn.Module):
    """Raw deposits (n, rows, columns, 2) to float32 channels-first inputs (n, 2, rows, columns).

    Parameters
    ----------
    mode
        ``log1p``: ln(1 + MeV), standardised per channel over the cells that have a detector; ``raw``: MeV as they are.
    """

    mean: torch.Tensor
    width: torch.Tensor

    def __init__(self, mode: str) -> None:
        super().__init__()
        if mode not in ("log1p", "raw"):
            raise InputError(f"grid {mode!r}: choose log1p or raw")
        self.mode = mode
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("width", torch.ones(2))

    def forward(self, grids: torch.Tensor) -> torch.Tensor:
        """Return (n, 2, rows, columns) float32."""
        with torch.autocast(grids.device.type, enabled=False):
            cells = grids.float()
            if self.mode == "log1p":
                cells = (torch.log1p(cells) - self.mean) / self.width
            return cells.permute(0, 3, 1, 2)


def fit_front(front: GridFront, batch: Batch) -> None:
    """Learn the cells' standardisation from training events."""
    if front.mode == "raw":
        return
    assert batch.grids is not None
    rows = np.sort(batch.index[:: max(1, len(batch) // FRONT_EVENTS)])
    cells = np.log1p(batch.grids[rows].astype(np.float32))
    for channel, live in enumerate((batch.array.has_electron, batch.array.has_muon)):
        values = cells[..., channel][:, live]
        front.mean[channel] = float(values.mean(dtype=np.float64))
        front.width[channel] = float(values.std(dtype=np.float64)) or 1.0


def mlp(sizes: tuple[int, ...], *, dropout: float = 0.0, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    """Return linear layers with an activation (and dropout) between them, none after the last."""
    layers: list[nn.Module] = []
    for k, (n_in, n_out) in enumerate(pairwise(sizes)):
        if k:
            layers += [activation(), nn.Dropout(dropout)] if dropout else [activation()]
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Queries look at a set through multi-head attention; residual, with a feed-forward layer, norm first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_query, self.norm_set, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = mlp((width, 2 * width, width))
        self.heads = heads

    def forward(self, queries: torch.Tensor, members: torch.Tensor, present: torch.Tensor | None) -> torch.Tensor:
        """Return (n, Q, width) for queries (n, Q, width), set (n, M, width) and which members count (n, M)."""

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

        key, value = self.key_value(self.norm_set(members)).chunk(2, dim=2)
        mask = None if present is None else present[:, None, None, :]
        query = split(self.query(self.norm_query(queries)))
        attended = nn.functional.scaled_dot_product_attention(query, split(key), split(value), attn_mask=mask)
        queries = queries + self.out(attended.transpose(1, 2).flatten(2))
        return queries + self.feed_forward(self.norm_out(queries))
