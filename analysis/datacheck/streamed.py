"""Tests made in one pass over the data: distributions of features, hits of stations, and the order of rows.

Every feature's distribution is compared with the weighted simulation's, in bins of energy and run by run; how often
each station is hit shows dead, noisy or miscalibrated ones. Rows ordered by class, energy or time are noticed by two
tests a quantity, since in shuffled data neighbours know nothing of each other: means of 64 consecutive blocks of a
folder (analysis of variance), and the correlation of neighbours. Both are about the order alone: they compare the data
with themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import chdtrc

from showerstack.analysis.datacheck.p_values import TINY_P, histograms_differ, holm, two_sided
from showerstack.analysis.datacheck.sample import Piece
from showerstack.showers.dataset import Dataset

ENERGY_EDGES = (15.25, 15.75, 16.25)
"""Inner borders of the bins in reconstructed lg(E/eV)."""
BINS = 16
"""Bins of a histogram with equal weight of the simulation; one more holds undefined values."""
LEAST_EFFECTIVE = 100.0
"""Events (effective simulated ones, and data) that an energy bin must have."""


@dataclass(frozen=True)
class Difference:
    """One feature in one energy bin (or in all)."""

    feature: str
    energy_bin: int
    p: float
    """Adjusted for the number of features and bins (Holm)."""
    shift: float
    """Mean of the data minus that of the simulation, in the feature's unit."""
    sigmas: float
    """The same in standard deviations of the simulation's distribution."""


@dataclass
class Histograms:
    """Counts of the data and weights of the simulation; fill with :meth:`add`."""

    names: tuple[str, ...]
    edges: list[np.ndarray]
    """Per feature, inner borders of its bins."""
    sums: np.ndarray
    """(E, F, B + 1) simulation's weights; the last bin holds undefined values."""
    squares: np.ndarray
    moments: np.ndarray
    """(E, F, 3): sum of weights, mean, standard deviation of defined values of the simulation."""
    effective: np.ndarray
    """(E,) effective simulated events."""
    n_runs: int
    counts: np.ndarray = field(init=False)
    totals: np.ndarray = field(init=False)
    """(E, F, 3): number of defined values of the data, their sum, sum of squares."""
    by_run: np.ndarray = field(init=False)
    """(runs, F, 3) the same by run, all energies."""

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.sums.shape, dtype=np.int64)
        self.totals = np.zeros((*self.sums.shape[:2], 3))
        self.by_run = np.zeros((self.n_runs, len(self.names), 3))

    @classmethod
    def of(
        cls, names: tuple[str, ...], values: np.ndarray, weights: np.ndarray, energy: np.ndarray, n_runs: int
    ) -> Histograms:
        """Choose the bins by the simulation, (R, F) values with (R,) weights and reconstructed energies."""
        bins, n_energy = np.digitize(energy, ENERGY_EDGES), len(ENERGY_EDGES) + 1
        shape = (n_energy, len(names), BINS + 1)
        sums, squares, moments = np.zeros(shape), np.zeros(shape), np.zeros((*shape[:2], 3))
        edges = []
        for f in range(len(names)):
            column = values[:, f].astype(np.float64)
            good = np.isfinite(column)
            edges.append(_quantiles(column[good], weights[good]))
            number = np.where(good, np.searchsorted(edges[-1], column, side="right"), BINS)
            for e in range(n_energy):
                in_energy_bin = bins == e
                sums[e, f] = np.bincount(number[in_energy_bin], weights[in_energy_bin], minlength=BINS + 1)
                squares[e, f] = np.bincount(number[in_energy_bin], weights[in_energy_bin] ** 2, minlength=BINS + 1)
                moments[e, f] = _moments(column[in_energy_bin & good], weights[in_energy_bin & good])
        effective = np.array([_effective(weights[bins == e]) for e in range(n_energy)])
        return cls(names, edges, sums, squares, moments, effective, n_runs)

    def add(self, piece: Piece) -> None:
        """Count a piece of the data."""
        bins = np.digitize(piece.energy, ENERGY_EDGES)
        n_energy = len(ENERGY_EDGES) + 1
        for f, edges in enumerate(self.edges):
            column = piece.values[:, f].astype(np.float64)
            good = np.isfinite(column)
            number = np.where(good, np.searchsorted(edges, column, side="right"), BINS)
            flat = np.bincount(bins * (BINS + 1) + number, minlength=n_energy * (BINS + 1))
            self.counts[:, f] += flat.reshape(n_energy, BINS + 1)
            x, e = column[good], bins[good]
            sums = np.stack(
                [np.bincount(e, power, minlength=n_energy) for power in (np.ones_like(x), x, x * x)], axis=1
            )
            self.totals[:, f] += sums
            self.by_run[piece.run, f] += sums.sum(axis=0)

    def differences(self) -> list[Difference]:
        """Return all features in all bins that have enough events, most significant first."""
        found = []
        enough = (self.effective >= LEAST_EFFECTIVE) & (self.counts[:, 0].sum(axis=1) >= LEAST_EFFECTIVE)
        for e in np.flatnonzero(enough):
            for f, name in enumerate(self.names):
                p, freedom = histograms_differ(self.counts[e, f], self.sums[e, f], self.squares[e, f])
                if freedom:
                    n, total, _ = self.totals[e, f]
                    _, mean, spread = self.moments[e, f]
                    shift = total / n - mean if n else np.nan
                    found.append(Difference(name, int(e), p, float(shift), float(shift / spread) if spread else np.nan))
        adjusted = holm(np.array([each.p for each in found]))
        found = [
            Difference(d.feature, d.energy_bin, float(p), d.shift, d.sigmas)
            for d, p in zip(found, adjusted, strict=True)
        ]
        return sorted(found, key=lambda d: (d.p, -abs(np.nan_to_num(d.sigmas))))

    def unstable(
        self, expected: np.ndarray | float = 0.0, variances: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return, per feature, Holm's p that the runs' means differ by chance, and (runs, F) residuals of the runs.

        Parameters
        ----------
        expected, variances
            (runs, F) by how much dead detectors move each run's mean, and the variance of that.
        """
        n = np.maximum(self.by_run[..., 0], 1.0)
        mean = self.by_run[..., 1] / n
        whole = self.by_run.sum(axis=0)
        within = np.maximum((self.by_run[..., 2] - n * mean**2).sum(axis=0), 0.0) / np.maximum(
            whole[:, 0] - len(n), 1.0
        )
        used = self.by_run[..., 0] >= 20
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = within / n + variances
            middle = np.average(mean - expected, axis=0, weights=1 / np.where(errors > 0, errors, np.inf) + 1e-300)
            residuals = np.where(used & (within > 0), (mean - expected - middle) / np.sqrt(errors), 0.0)
        freedom = used.sum(axis=0) - 1
        p = np.where(freedom > 0, chdtrc(np.maximum(freedom, 1), (residuals**2).sum(axis=0)), 1.0)
        return holm(np.maximum(p, TINY_P)), residuals


def shifts_of_runs(
    whole: np.ndarray, masked: np.ndarray, weights: np.ndarray, number: np.ndarray, n_runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much dead detectors move the mean of each feature in each run, (runs, F), and the variance.

    Parameters
    ----------
    whole, masked
        (R, F) features of simulated events without and with the dead detectors of a run.
    weights, number
        (R,) of the events, and which run each stands for.
    """
    difference = masked.astype(np.float64) - whole
    known = np.isfinite(difference)
    w = np.where(known, weights[:, None], 0.0)
    difference[~known] = 0.0
    total, shift, square, squares = (np.zeros((n_runs, whole.shape[1])) for _ in range(4))
    for sums, terms in ((total, w), (shift, w * difference), (square, w**2), (squares, (w * difference) ** 2)):
        np.add.at(sums, number, terms)
    total = np.maximum(total, 1e-100)
    mean = shift / total
    crossed = np.zeros_like(mean)
    np.add.at(crossed, number, w**2 * difference)
    return mean, np.maximum(squares - 2 * mean * crossed + mean**2 * square, 0.0) / total**2


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return at most BINS - 1 different borders between bins of equal weight."""
    if not len(values):
        return np.zeros(0)
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(cumulated, np.arange(1, BINS) / BINS)
    return np.unique(values[order][np.minimum(at, len(values) - 1)])


def _moments(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    total = weights.sum()
    if total <= 0:
        return 0.0, np.nan, np.nan
    mean = float((weights * values).sum() / total)
    return float(total), mean, float(np.sqrt((weights * (values - mean) ** 2).sum() / total))


def _effective(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


CHANNELS = ("e/gamma", "muon")
EVENTS_AT_ONCE = 2_048


@dataclass(frozen=True)
class StationHits:
    """Shares of events in which stations are hit."""

    data: np.ndarray
    """(rows, columns, 2), of the folders in which the station is not known to be dead; NaN where there is none."""
    simulation: np.ndarray
    p: np.ndarray
    """(rows, columns, 2) adjusted (Holm); 1 where no detector works."""


def compare_stations(
    data: Sequence[tuple[Dataset, np.ndarray]], simulation: Dataset, rows: np.ndarray, weights: np.ndarray
) -> StationHits:
    """Compare hit stations.

    Parameters
    ----------
    data
        Dataset folders with the rows to look at.
    simulation, rows, weights
        The training set, (R,) rows and weights.
    """
    order = np.argsort(rows)
    w = weights[order] / weights.sum()
    expected = _hits(simulation, rows[order], w)
    hits, n = np.zeros(expected.shape), np.zeros(expected.shape)
    for folder, chosen in data:
        known_dead = np.moveaxis(folder.array.has_detector & ~folder.working.has_detector, 0, -1)
        hits += np.where(known_dead, 0.0, _hits(folder, chosen, np.ones(len(chosen))))
        n += len(chosen) * ~known_dead
    observed = np.divide(hits, n, out=np.full(hits.shape, np.nan), where=n > 0)
    works = (n > 0) & (np.moveaxis(simulation.array.has_detector, 0, -1) | (observed > 0) | (expected > 0))
    least = 0.5 / np.maximum(n, 1.0)
    pooled = np.clip((observed + expected) / 2, least, 1 - least)
    residual = (observed - expected) / np.sqrt(pooled * (1 - pooled) * (2 * least + (w**2).sum()))
    p = np.ones(expected.shape)
    p[works] = holm(two_sided(residual[works]))
    return StationHits(observed, expected, p)


def _hits(data: Dataset, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(data.matrices.shape[1:])
    for start in range(0, len(rows), EVENTS_AT_ONCE):
        part = slice(start, start + EVENTS_AT_ONCE)
        total += np.tensordot(weights[part], (data.matrices[rows[part]] > 0).astype(np.float64), axes=1)
    return total


BLOCKS = 64
LEAST_IN_BLOCK = 5


@dataclass
class RowOrder:
    """Sums over blocks and neighbours; fill with :meth:`add` in row order."""

    names: tuple[str, ...]
    columns: tuple[int, ...]
    """Places of the quantities among the features."""
    lengths: tuple[int, ...]
    """Rows of each folder."""
    centre: np.ndarray
    """(Q,) about the mean of each quantity: keeps sums small."""
    blocks: np.ndarray = field(init=False)
    """(runs, 64, Q, 2) number and sum."""
    squares: np.ndarray = field(init=False)
    neighbours: np.ndarray = field(init=False)
    """(runs, Q, 4): pairs, sum of products, sum of first, sum of second values."""
    _last: tuple[int, np.ndarray] | None = None

    def __post_init__(self) -> None:
        n = len(self.names)
        self.blocks = np.zeros((len(self.lengths), BLOCKS, n, 2))
        self.squares = np.zeros((len(self.lengths), n))
        self.neighbours = np.zeros((len(self.lengths), n, 4))

    def add(self, piece: Piece) -> None:
        """Add the next events."""
        x = np.nan_to_num(piece.values[:, self.columns].astype(np.float64) - self.centre)
        block = piece.rows * BLOCKS // max(self.lengths[piece.run], 1)
        for q in range(len(self.names)):
            self.blocks[piece.run, :, q, 0] += np.bincount(block, minlength=BLOCKS)
            self.blocks[piece.run, :, q, 1] += np.bincount(block, x[:, q], minlength=BLOCKS)
        self.squares[piece.run] += (x**2).sum(axis=0)
        last_of_before = x[:0] if self._last is None or self._last[0] != piece.run else self._last[1][None]
        chain = np.concatenate([last_of_before, x])
        first, second = chain[:-1], chain[1:]
        pairs = np.full(x.shape[1], float(len(first)))
        self.neighbours[piece.run] += np.stack(
            [pairs, (first * second).sum(axis=0), first.sum(axis=0), second.sum(axis=0)], axis=1
        )
        self._last = (piece.run, x[-1])

    def p_values(self) -> dict[str, float]:
        """Return, per quantity, the smaller of both tests' p, adjusted for all of them (Holm)."""
        n, sums = self.blocks[..., 0], self.blocks[..., 1]
        total = n.sum(axis=1)
        mean = sums.sum(axis=1) / np.maximum(total, 1)
        variance = np.maximum(self.squares / np.maximum(total, 1) - mean**2, 1e-30)
        used = n >= LEAST_IN_BLOCK
        terms = np.where(used, (sums - n * mean[:, None]) ** 2 / (np.maximum(n, 1) * variance[:, None]), 0.0)
        freedom = np.maximum(used.sum(axis=1) - 1, 0).sum(axis=0)
        of_blocks = np.where(freedom > 0, chdtrc(np.maximum(freedom, 1), terms.sum(axis=(0, 1))), 1.0)
        pairs, products, first, second = np.moveaxis(self.neighbours, -1, 0)
        safe = np.maximum(pairs, 1)
        covariance = products / safe - first * second / safe**2
        of_pairs = two_sided((pairs * covariance / variance).sum(axis=0) / np.sqrt(np.maximum(pairs.sum(axis=0), 1)))
        adjusted = holm(np.maximum(np.concatenate([of_blocks, of_pairs]), TINY_P)).reshape(2, -1).min(axis=0)
        return {name: float(p) for name, p in zip(self.names, adjusted, strict=True)}
