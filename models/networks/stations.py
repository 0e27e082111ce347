"""Stations as tokens: what each detector saw, and where it stands relative to the shower's core and direction.

All token entries but the last two of :class:`StationTokens` are invariant under the symmetries of the array when core
and direction turn along; a network that uses only those, and only invariant inputs, is exactly invariant.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from models.inputs import AZIMUTH, VECTOR_SCALE_M, VECTORS, ZENITH, InputTransform
from showers.array import DetectorArray

DIRECTION_SCALE = 2.0
"""Inputs hold the horizontal direction of arrival times this (see :mod:`models.inputs`)."""
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
            unit = inputs[:, list(self.direction)] / DIRECTION_SCALE
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
        fitted = inputs[:, list(self.core)] * VECTOR_SCALE_M
        return torch.where((fitted == 0).all(dim=1, keepdim=True), centroid, fitted)


def invariant_inputs(inputs: InputTransform) -> list[int]:
    """Return the positions of the inputs that do not turn with the array."""
    turning = {position for pair in inputs.pairs for position in pair}
    return [k for k in range(inputs.n_inputs) if k not in turning]
