"""Simulated events counted in cells as scales move them: one compiled pass."""

from __future__ import annotations

import numpy as np

from showerstack.runtime.kernels import kernel
from showerstack.showers.kascade import BY_A, BY_AA, BY_AB, BY_B, BY_BB

ROWS_TOGETHER = 64
"""Consecutive rows that belong to the same part: showers used again stay together, mostly."""


@kernel(nogil=True, error_model="numpy")
def count_moved(
    labels: np.ndarray,
    fine: np.ndarray,
    lg_energy: np.ndarray,
    measured: np.ndarray,
    sizes: np.ndarray,
    y: np.ndarray,
    y_moved: np.ndarray,
    mirrored: np.ndarray,
    scales: np.ndarray,
    shifts: np.ndarray,
    least: np.ndarray,
    edges: np.ndarray,
    borders: np.ndarray,
    counts: np.ndarray,
    cell: np.ndarray,
) -> None:
    """Add events to counts (P, K, C, T) of parts, as :class:`showerstack.analysis.spectra.folding.MovableEvents`
    has them.

    Parameters
    ----------
    measured
        (2, N) lg Ne and lg Nmu, which are cut.
    mirrored
        (2, N) bool: events of a set without showers below the cut in lg Ne, in lg Nmu. Where more particles let showers
        enter that the set does not hold, those that leave its lowest strip stand for them: they are counted once more
        without that move.
    scales, shifts
        (2,) of the electron and the muon number: in widths, and in lg.
    least
        (2,) the cuts in lg Ne and lg Nmu.
    edges, borders
        (B + 1,) of the reconstructed lg E, (S - 1,) of y.
    cell
        (N,) is set to the cell of each event as moved, -1 where it is in none.
    """
    n_bins, n_borders, parts = len(edges) - 1, len(borders), len(counts)
    for n in range(len(labels)):
        cell[n] = -1
        for copy in range(3):
            if copy > 0:
                above = measured[copy - 1, n] - least[copy - 1]
                if not (mirrored[copy - 1, n] and 0.0 < above <= shifts[copy - 1]):
                    continue
            by_a, x_a = (0.0, 0.0) if copy == 1 else (shifts[0], scales[0])
            by_b, x_b = (0.0, 0.0) if copy == 2 else (shifts[1], scales[1])
            if measured[0, n] + by_a <= least[0] or measured[1, n] + by_b <= least[1]:
                continue
            # KASCADE's formula of the energy, of the moved sizes minus of the sizes as they are.
            e = lg_energy[n] + BY_A * by_a + BY_B * by_b + BY_AA * by_a**2 + BY_BB * by_b**2 + BY_AB * by_a * by_b
            e += (2.0 * BY_AA * by_a + BY_AB * by_b) * sizes[0, n] + (2.0 * BY_BB * by_b + BY_AB * by_a) * sizes[1, n]
            if not (edges[0] <= e < edges[n_bins]):
                continue
            b = 0
            while e >= edges[b + 1]:
                b += 1
            mass = y[n] + (y_moved[0, n] + y_moved[1, n] * x_b) * x_b + (y_moved[2, n] + y_moved[3, n] * x_a) * x_a
            s = 0
            while s < n_borders and mass >= borders[s]:
                s += 1
            place = b * (n_borders + 1) + s
            if copy == 0:
                cell[n] = place
            counts[(n // ROWS_TOGETHER) % parts, labels[n], place, fine[n]] += 1.0
