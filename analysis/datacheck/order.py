"""Are rows ordered, by class, energy or time? In shuffled data neighbours know nothing of each other.

Two tests a quantity: means of 64 consecutive blocks of a folder (analysis of variance), and the correlation of
neighbours. Both are about the order alone: they compare the data with themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import chi2

from analysis.datacheck.sample import Piece
from analysis.datacheck.statistics import TINY_P, holm, two_sided

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
        before = x[:0] if self._last is None or self._last[0] != piece.run else self._last[1][None]
        chain = np.concatenate([before, x])
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
        pulls = np.where(used, (sums - n * mean[:, None]) ** 2 / (np.maximum(n, 1) * variance[:, None]), 0.0)
        freedom = np.maximum(used.sum(axis=1) - 1, 0).sum(axis=0)
        of_blocks = np.where(freedom > 0, chi2.sf(pulls.sum(axis=(0, 1)), np.maximum(freedom, 1)), 1.0)
        pairs, products, first, second = np.moveaxis(self.neighbours, -1, 0)
        safe = np.maximum(pairs, 1)
        covariance = products / safe - first * second / safe**2
        of_pairs = two_sided((pairs * covariance / variance).sum(axis=0) / np.sqrt(np.maximum(pairs.sum(axis=0), 1)))
        adjusted = holm(np.maximum(np.concatenate([of_blocks, of_pairs]), TINY_P)).reshape(2, -1).min(axis=0)
        return {name: float(p) for name, p in zip(self.names, adjusted, strict=True)}
