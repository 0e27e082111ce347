"""Do the rows of a dataset follow its classes? Then a row's number gives the class away, to whoever may see it.

Known of the public v2 test sets, whose rows keep the order of the raw files, class after class. Nothing in this project
sees a row's number; whoever shows the files to other programs should know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showers.datasets.dataset import Dataset
from showers.schema import SCALAR_NAMES

STRONG = 6.0
"""Standard deviations from chance above which rows count as ordered: once in a thousand million shuffled sets."""
MIN_EVENTS = 50


@dataclass(frozen=True)
class Ordering:
    """How far the order of rows is from chance."""

    deviation: float
    """Standard deviations; positive where neighbours are more alike than chance has it."""
    words: str

    @property
    def is_ordered(self) -> bool:
        """Whether rows follow the classes."""
        return self.deviation > STRONG

    def remark(self, name: str) -> str | None:
        """Return one line about the dataset called ``name``, None where there is nothing to say."""
        if not self.is_ordered:
            return None
        return f"the rows of {name} are ordered by class ({self.words}): a row's number must not reach any model"


def ordering_of(dataset: Dataset) -> Ordering:
    """Return how rows are ordered: by the labels where the folder was opened with them, else by lg Ne - lg Nmu.

    Of showers thrown several times only the first event counts, since their events lie side by side.
    """
    rows = np.arange(len(dataset))
    if dataset.groups is not None:
        rows = np.sort(np.unique(np.asarray(dataset.groups), return_index=True)[1])
    if dataset.labels is not None:
        return by_labels(np.asarray(dataset.labels)[rows])
    n_e, n_mu = (
        np.asarray(dataset.scalars[:, SCALAR_NAMES.index(name)], dtype=np.float64)[rows] for name in ("Ne", "Nmu")
    )
    return by_values(n_e - n_mu)


def by_labels(labels: np.ndarray) -> Ordering:
    """Return the runs test for several classes.

    Parameters
    ----------
    labels
        (N,) class numbers.

    Notes
    -----
    With n_i of n rows in class i and S_k = sum of n_i^k, a random order has n + 1 - S_2 / n runs on average, with the
    variance (S_2 (S_2 + n (n + 1)) - 2 n S_3 - n^3) / (n^2 (n - 1)) [Barton and David, Biometrika 44 (1957) 168].
    """
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    n = float(len(labels))
    if n < MIN_EVENTS or len(counts) < 2:
        return Ordering(0.0, "too few rows to tell")
    squares, cubes = float((counts**2).sum()), float((counts**3).sum())
    expected = n + 1 - squares / n
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))
    found = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    words = f"{found:,} runs of equal labels, {expected:,.0f} in random order"
    return Ordering((expected - found) / float(np.sqrt(variance)) if variance > 0 else 0.0, words)


def by_values(values: np.ndarray) -> Ordering:
    """Return the serial correlation of the ranks of a quantity (N,) that follows the class."""
    n = len(values)
    if n < MIN_EVENTS:
        return Ordering(0.0, "too few rows to tell")
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    correlation = float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())
    words = f"lg Ne - lg Nmu of neighbouring rows correlates by {correlation:.2f}"
    return Ordering((correlation + 1 / n) * float(np.sqrt(n)), words)
