"""The eight symmetries of the square array, and small shifts of the sizes: more showers from the same ones.

Mirroring or turning the whole array by 90 degrees gives another shower that could have been recorded as well, provided
that every direction turns along: the azimuth, the core, any other vector among the inputs.
"""

from __future__ import annotations

import numpy as np
import torch

from showers.array import PITCH_M, SIDE, X_M, Y_M

SYMMETRIES: np.ndarray = np.array(
    [[[a, 0], [0, b]] for a in (1, -1) for b in (1, -1)] + [[[0, a], [b, 0]] for a in (1, -1) for b in (1, -1)],
    dtype=np.float64,
)
"""(8, 2, 2): matrices M of the square's symmetries; a shower at ``(x, y)`` moves to ``M (x, y)``. First: identity."""


def _cell_sources() -> np.ndarray:
    positions = np.stack([X_M.ravel(), Y_M.ravel()])
    sources = np.empty((len(SYMMETRIES), SIDE * SIDE), dtype=np.int64)
    for k, matrix in enumerate(SYMMETRIES):
        x_m, y_m = matrix.T @ positions  # the inverse of an orthogonal matrix
        column = np.rint(x_m / PITCH_M + (SIDE - 1) / 2).astype(np.int64)
        row = np.rint(y_m / PITCH_M + (SIDE - 1) / 2).astype(np.int64)
        sources[k] = row * SIDE + column
    return sources


CELL_SOURCES: np.ndarray = _cell_sources()
"""(8, 256) int64: the flat cell from which each cell of the moved grid takes its content."""


def move_grids(grids: torch.Tensor, symmetry: torch.Tensor) -> torch.Tensor:
    """Return each grid moved by its own symmetry; channels stay what they are.

    Parameters
    ----------
    grids
        (n, 16, 16, 2).
    symmetry
        (n,) int64, numbers of :data:`SYMMETRIES`.
    """
    sources = torch.from_numpy(CELL_SOURCES).to(grids.device)[symmetry]
    flat = grids.reshape(len(grids), SIDE * SIDE, -1)
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
