"""Weights that give simulated events the composition and the spectra of the data.

The data's counts in cells of reconstructed energy and posterior are fitted by the simulation's, each simulated event
weighted by exp(s_class(lg E)) with a piecewise linear s: the maximum of the Poisson likelihood. Where the simulation
tells its true energies these are used, so that migration in energy is taken along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

CELL_LG = 0.1
"""Width of the cells in reconstructed lg E."""
KNOT_LG = 0.5
"""Distance of the knots of s."""
LEAST_IN_KNOT = 200
"""Simulated events of a class between two knots; fewer are joined with their neighbours."""
SMOOTHNESS = 1.0
"""Weight of the squared second differences of s: only keeps knots without events in place."""
LIMIT = 8.0
"""Largest |s|."""


@dataclass(frozen=True)
class FittedWeights:
    """The fitted weights."""

    weights: np.ndarray
    """(R,) of the simulated events, mean 1."""
    fractions: np.ndarray
    """(C,) shares of the classes among the data that pass the cuts."""
    effective: float
    """Number of unweighted events that would know as much."""
    uncovered: float
    """Share of the data in cells of energy where the simulation has no event."""


def fit_weights(
    labels: np.ndarray,
    lg_energy: np.ndarray,
    reconstructed: np.ndarray,
    log_proba: np.ndarray,
    data_reconstructed: np.ndarray,
    data_log_proba: np.ndarray,
) -> FittedWeights:
    """Fit the weights of R simulated events to N data.

    Parameters
    ----------
    labels, lg_energy, reconstructed, log_proba
        Class, energy in which the spectra are described, reconstructed energy and (R, C) posteriors of the simulation.
    data_reconstructed, data_log_proba
        The same of the data, (N,) and (N, C).
    """
    n_classes = log_proba.shape[1]
    middle = np.array(
        [np.median(log_proba[log_proba.argmax(axis=1) == k].max(axis=1, initial=-1.0)) if n else -1.0
         for k, n in enumerate(np.bincount(log_proba.argmax(axis=1), minlength=n_classes))]
    )  # fmt: skip
    low = np.floor(reconstructed.min() / CELL_LG)
    n_energy = int(np.floor(reconstructed.max() / CELL_LG) - low) + 1

    def cells(energy: np.ndarray, posterior: np.ndarray) -> np.ndarray:
        most_probable = posterior.argmax(axis=1)
        sure = posterior.max(axis=1) > middle[most_probable]
        energy_cell = np.floor(energy / CELL_LG) - low
        inside = (energy_cell >= 0) & (energy_cell < n_energy)
        return np.where(inside, (energy_cell * n_classes + most_probable) * 2 + sure, -1).astype(np.int64)

    cell_of_simulated, cell_of_data = cells(reconstructed, log_proba), cells(data_reconstructed, data_log_proba)
    n_cells = n_energy * n_classes * 2
    counts = np.bincount(cell_of_data[cell_of_data >= 0], minlength=n_cells).astype(np.float64)
    covered = np.bincount(cell_of_simulated, minlength=n_cells) > 0
    uncovered = 1.0 - counts[covered].sum() / max(len(cell_of_data), 1)
    basis, penalty = _basis(labels, lg_energy, n_classes)
    start = counts[covered].sum() / len(labels)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        s = np.clip(_evaluate(basis, theta), -LIMIT, LIMIT)
        w = start * np.exp(s)
        expected = np.bincount(cell_of_simulated, w, minlength=n_cells)[covered]
        observed = counts[covered]
        curved = penalty @ theta
        value = expected.sum() - observed @ np.log(expected) + 0.5 * SMOOTHNESS * theta @ curved
        residual = np.zeros(n_cells)
        residual[covered] = 1.0 - observed / expected
        return float(value), _evaluate_transposed(
            basis, residual[cell_of_simulated] * w, len(theta)
        ) + SMOOTHNESS * curved

    fit = minimize(loss, np.zeros(len(penalty)), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    weights = np.exp(np.clip(_evaluate(basis, fit.x), -LIMIT, LIMIT))
    weights /= weights.mean()
    fractions = np.bincount(labels, weights, minlength=n_classes) / weights.sum()
    return FittedWeights(weights, fractions, float(weights.sum() ** 2 / (weights**2).sum()), float(uncovered))


@dataclass(frozen=True)
class _Hats:
    """Piecewise linear functions: for each event the two knots around it and the share of the upper one."""

    lower: np.ndarray
    upper: np.ndarray
    share: np.ndarray


def _basis(labels: np.ndarray, lg_energy: np.ndarray, n_classes: int) -> tuple[_Hats, np.ndarray]:
    """Return the functions of all events, and the matrix of their squared second differences."""
    lower = np.empty(len(labels), dtype=np.int64)
    upper, share = lower.copy(), np.empty(len(labels))
    blocks, first = [], 0
    for k in range(n_classes):
        mine = labels == k
        knots = _knots(lg_energy[mine])
        at = np.clip(np.searchsorted(knots, lg_energy[mine], side="right") - 1, 0, max(len(knots) - 2, 0))
        lower[mine], upper[mine] = first + at, first + np.minimum(at + 1, len(knots) - 1)
        width = np.diff(knots)[at] if len(knots) > 1 else 1.0
        share[mine] = np.clip((lg_energy[mine] - knots[at]) / width, 0.0, 1.0)
        second = np.diff(np.eye(len(knots)), n=2, axis=0)
        blocks.append(second.T @ second)
        first += len(knots)
    penalty = np.zeros((first, first))
    start = 0
    for block in blocks:
        penalty[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return _Hats(lower, upper, share), penalty + 1e-6 * np.eye(first)


def _knots(lg_energy: np.ndarray) -> np.ndarray:
    """Return knots between which there are enough events."""
    if not len(lg_energy):
        return np.zeros(1)
    ordered = np.sort(lg_energy)
    knots = [ordered[0]]
    for knot in np.arange(ordered[0] + KNOT_LG, ordered[-1], KNOT_LG):
        between = np.searchsorted(ordered, [knots[-1], knot])
        if between[1] - between[0] >= LEAST_IN_KNOT and len(ordered) - between[1] >= LEAST_IN_KNOT:
            knots.append(knot)
    return np.array([*knots, ordered[-1]] if ordered[-1] > knots[-1] else knots)


def _evaluate(basis: _Hats, theta: np.ndarray) -> np.ndarray:
    return theta[basis.lower] * (1.0 - basis.share) + theta[basis.upper] * basis.share


def _evaluate_transposed(basis: _Hats, values: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(basis.lower, values * (1.0 - basis.share), minlength=n) + np.bincount(
        basis.upper, values * basis.share, minlength=n
    )
