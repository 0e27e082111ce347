"""The eight symmetries of the square array, and small shifts of the sizes: more showers from the same ones.

Mirroring or turning the whole array by 90 degrees gives another shower that could have been recorded as well, provided
that every direction turns along: the azimuth, the core, any other vector among the inputs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from scipy.spatial import KDTree

from showers.array import DetectorArray
from showers.kascade import KASCADE
from showers.schema import InputError

SYMMETRIES: np.ndarray = np.array(
    [[[a, 0], [0, b]] for a in (1, -1) for b in (1, -1)] + [[[0, a], [b, 0]] for a in (1, -1) for b in (1, -1)],
    dtype=np.float64,
)
"""(8, 2, 2): matrices M of the square's symmetries; a shower at ``(x, y)`` moves to ``M (x, y)``. First: identity."""


@lru_cache(maxsize=8)
def cell_sources(array: DetectorArray) -> np.ndarray:
    """Return (8, cells) int64: the flat cell from which each cell of the moved grid takes its content.

    Raises
    ------
    InputError
        If the array has no such symmetry: a cell would move off the grid, or onto another kind of station.
    """
    positions = np.stack([array.x_m.ravel(), array.y_m.ravel()])
    sources = np.empty((len(SYMMETRIES), array.n_cells), dtype=np.int64)
    for k, matrix in enumerate(SYMMETRIES):
        moved = matrix.T @ positions  # the inverse of an orthogonal matrix
        distance, sources[k] = KDTree(positions.T).query(moved.T)
        same = all(
            np.array_equal(area.ravel()[sources[k]], area.ravel())
            for area in (array.electron_area_m2, array.muon_area_m2)
        )
        if distance.max() > 0.01 * array.pitch_m or not same:
            raise InputError(f"array {array.name} is not symmetric like a square: train with augment=false")
    return sources


def move_grids(grids: torch.Tensor, symmetry: torch.Tensor, array: DetectorArray = KASCADE) -> torch.Tensor:
    """Return each grid moved by its own symmetry; channels stay what they are.

    Parameters
    ----------
    grids
        (n, rows, columns, 2).
    symmetry
        (n,) int64, numbers of :data:`SYMMETRIES`.
    array
        The stations.
    """
    sources = torch.from_numpy(cell_sources(array)).to(grids.device)[symmetry]
    flat = grids.reshape(len(grids), array.n_cells, -1)
    rows = torch.arange(len(grids), device=grids.device)[:, None]
    return flat[rows, sources].reshape(grids.shape)


def move_vectors(inputs: torch.Tensor, pairs: tuple[tuple[int, int], ...], symmetry: torch.Tensor) -> torch.Tensor:
    """Return inputs whose vectors moved along.

    Parameters
    ----------
    inputs
        (n, S) float32.
    pairs
        Positions of the x and y component of each vector among the S inputs; both must be scaled alike, without shift.
    symmetry
        (n,) int64.
    """
    if not pairs:
        return inputs
    moved = inputs.clone()
    matrices = torch.from_numpy(SYMMETRIES).to(inputs)[symmetry]
    for x, y in pairs:
        moved[:, [x, y]] = torch.einsum("nij,nj->ni", matrices, inputs[:, [x, y]])
    return moved


def jitter_sizes(
    inputs: torch.Tensor, columns: tuple[int, ...], scales: tuple[float, ...], generator: torch.Generator
) -> torch.Tensor:
    """Return inputs with one common random shift per event added to all sizes, as if their scale were uncertain.

    Parameters
    ----------
    inputs
        (n, S) float32.
    columns
        Positions of the sizes (lg Ne, lg Nmu) among the S inputs.
    scales
        Standard deviation of the shift in the units of each of these inputs.
    generator
        Source of randomness, on the device of ``inputs``.
    """
    if not columns:
        return inputs
    moved = inputs.clone()
    shift = torch.randn(len(inputs), generator=generator, device=inputs.device)
    for column, scale in zip(columns, scales, strict=True):
        moved[:, column] += scale * shift
    return moved
