"""Simulated events counted in cells as scales move them: one compiled pass."""

from __future__ import annotations

import numpy as np

from showerstack.runtime.kernels import kernel
from showerstack.showers.kascade import BY_A, BY_AA, BY_AB, BY_B, BY_BB

ROWS_TOGETHER = 64
"""Consecutive rows that belong to the same half: showers used again stay together, mostly."""


@kernel(nogil=True, error_model="numpy")
def count_moved(
    labels: np.ndarray,
    fine: np.ndarray,
    lg_energy: np.ndarray,
    lg_nmu: np.ndarray,
    sizes: np.ndarray,
    y: np.ndarray,
    y_moved: np.ndarray,
    scales: np.ndarray,
    shifts: np.ndarray,
    lg_nmu_min: float,
    edges: np.ndarray,
    borders: np.ndarray,
    counts: np.ndarray,
    cell: np.ndarray,
) -> None:
    """Add events to counts (2, K, C, T) of two halves, as :class:`showerstack.analysis.spectra.folding.MovableEvents`
    has them.

    Parameters
    ----------
    scales, shifts
        (3,) of energy, muon and electron number: in widths, and in lg.
    edges, borders
        (B + 1,) of the reconstructed lg E, (S - 1,) of y.
    cell
        (N,) is set to the cell of each event, -1 where it is in none.
    """
    n_bins, n_borders = len(edges) - 1, len(borders)
    by_a, by_b = shifts[2], shifts[1]
    # KASCADE's formula of the energy, of the moved sizes minus of the sizes as they are.
    constant = BY_A * by_a + BY_B * by_b + BY_AA * by_a**2 + BY_BB * by_b**2 + BY_AB * by_a * by_b
    slope_a = 2.0 * BY_AA * by_a + BY_AB * by_b
    slope_b = 2.0 * BY_BB * by_b + BY_AB * by_a
    for n in range(len(labels)):
        cell[n] = -1
        if lg_nmu[n] + shifts[1] <= lg_nmu_min:
            continue
        e = lg_energy[n] + shifts[0] + constant + slope_a * sizes[0, n] + slope_b * sizes[1, n]
        if not (edges[0] <= e < edges[n_bins]):
            continue
        b = 0
        while e >= edges[b + 1]:
            b += 1
        mass = (
            y[n]
            + (y_moved[0, n] + y_moved[1, n] * scales[1]) * scales[1]
            + (y_moved[2, n] + y_moved[3, n] * scales[2]) * scales[2]
        )
        s = 0
        while s < n_borders and mass >= borders[s]:
            s += 1
        cell[n] = b * (n_borders + 1) + s
        counts[(n // ROWS_TOGETHER) % 2, labels[n], cell[n], fine[n]] += 1.0
