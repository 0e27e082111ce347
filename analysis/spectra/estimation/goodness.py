"""Does the fitted mixture look like the measured events? A test in the space of observables, its p-value from toys.

In every energy bin the measured events are counted in bins of lg Ne - lg Nmu that hold equal shares of the fitted
mixture. The statistic is chi-square over all cells. Its distribution is not looked up: toy experiments are drawn from
the simulated events (with Poisson numbers, from showers drawn again, so that the finite simulation counts), fitted and
compared as the data are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.spectra.estimation.estimate import SpectrumEstimate, solve
from analysis.spectra.inputs.events import Simulated, SpectrumEvents

CELLS = 8


@dataclass(frozen=True)
class Goodness:
    """Result of the test."""

    chi2: float
    cells: int
    p_value: float
    chi2_by_bin: np.ndarray
    """(B,), NaN where a bin was not used."""
    p_by_bin: np.ndarray
    """(B,)."""
    toys: int


def goodness(
    nominal: SpectrumEstimate, data: SpectrumEvents, simulated: Simulated, *, toys: int = 200, seed: int = 2
) -> Goodness:
    """Test an estimate against the measured events.

    Parameters
    ----------
    nominal
        The estimate.
    data, simulated
        The events it was made from.
    toys
        Toy experiments; the smallest p-value that can be stated is 1 / (toys + 1).
    """
    rng = np.random.default_rng(seed)
    n_bins, n_classes = nominal.events.shape
    sample, usable = nominal.sample, nominal.usable
    weights = sample.weights(nominal.shape)
    where, labels = sample.place, sample.labels
    inside = where >= 0
    expected_events = np.where(usable[:, None], np.maximum(np.nan_to_num(nominal.events), 0.0), 0.0)

    def rates(extra: np.ndarray) -> np.ndarray:
        """Return how often each simulated event is expected in the data, (S,)."""
        cell = where[inside] * n_classes + labels[inside]
        total = np.bincount(cell, (weights * extra)[inside], n_bins * n_classes)
        found = np.zeros(len(labels))
        with np.errstate(invalid="ignore", divide="ignore"):
            found[inside] = (weights * extra)[inside] * np.nan_to_num(expected_events.ravel() / total)[cell]
        return found

    nominal_rates = rates(np.ones(len(labels)))
    borders = _borders(simulated.lg_ne - simulated.lg_nmu, where, nominal_rates, n_bins)
    cell = _cells(simulated.lg_ne - simulated.lg_nmu, where, borders)
    shapes = np.zeros((n_bins * CELLS, n_classes))
    np.add.at(shapes, (cell[inside], labels[inside]), weights[inside])
    totals = shapes.reshape(n_bins, CELLS, n_classes).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shapes = np.nan_to_num(shapes / np.repeat(totals, CELLS, axis=0))

    def statistic(counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return chi-square by bin, (B,), after the fit."""
        found = np.repeat(np.nan_to_num(solve(sums, nominal.mixing, usable)), CELLS, axis=0)
        expected = np.maximum((shapes * found).sum(axis=1), 0.5)
        each = ((counts - expected) ** 2 / expected).reshape(n_bins, CELLS).sum(axis=1)
        return np.asarray(np.where(usable, each, 0.0))

    place = nominal.setting.bins.place(data.lg_energy)
    observed = _cells(data.lg_ne - data.lg_nmu, place, borders)
    ours = statistic(np.bincount(observed[place >= 0], minlength=n_bins * CELLS), nominal.sums)
    drawn = np.zeros((toys, n_bins))
    for t in range(toys):
        number = rng.poisson(rates(rng.poisson(1.0, len(labels)).astype(float)))[inside].astype(float)
        counts = np.bincount(cell[inside], number, n_bins * CELLS)
        sums = np.stack(
            [np.bincount(where[inside], number * one[inside], n_bins) for one in nominal.functions.T], axis=1
        )
        drawn[t] = statistic(counts, sums)
    by_bin = (1 + (drawn >= ours).sum(axis=0)) / (toys + 1)
    p_value = (1 + int((drawn.sum(axis=1) >= ours.sum()).sum())) / (toys + 1)
    unused = ~usable
    return Goodness(
        float(ours.sum()),
        int(usable.sum()) * CELLS,
        float(p_value),
        np.where(unused, np.nan, ours),
        np.where(unused, np.nan, by_bin),
        toys,
    )


def _borders(values: np.ndarray, place: np.ndarray, rates: np.ndarray, n_bins: int) -> np.ndarray:
    """Return inner borders (B, CELLS - 1) that divide the expected events of each bin into equal shares."""
    found = np.zeros((n_bins, CELLS - 1))
    for b in range(n_bins):
        mine = np.flatnonzero((place == b) & (rates > 0))
        if len(mine):
            order = mine[np.argsort(values[mine], kind="stable")]
            reached = np.cumsum(rates[order]) / rates[order].sum()
            found[b] = values[order][np.searchsorted(reached, np.arange(1, CELLS) / CELLS).clip(max=len(order) - 1)]
    return found


def _cells(values: np.ndarray, place: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return the cell of each event, 0 .. B CELLS - 1; meaningless outside the bins."""
    safe = np.maximum(place, 0)
    return np.asarray(safe * CELLS + (values[:, None] >= borders[safe]).sum(axis=1))
