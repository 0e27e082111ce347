"""Remarks on data whose numbers may mislead.

Training data: columns that tell the class, weights by which few rows count, rows that are alike. New data: quantities
that are not like those of the training (:class:`Seen`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import polars as pl

SMALL_SHARE = 0.05
"""A class of less weight than so many of its number of rows is remarked on."""
EFFECTIVE_SHARE = 0.1
"""Weighted rows that count like fewer than so many of them are remarked on."""


LEAST_OF_CLASS, FEW_ROWS = 5, 2_000
"""Of a class with fewer rows any column may tell by chance; so many rows are looked at first."""


def telling_remarks(where: str, columns: Mapping[str, np.ndarray], labels: np.ndarray) -> list[str]:
    """Return a remark for each column (N,) that alone tells the class (N,) of every row: it may be the label itself."""
    if np.bincount(labels).min() < LEAST_OF_CLASS:
        return []
    some = np.random.default_rng(0).permutation(len(labels))[:FEW_ROWS]  # most columns do not tell even these
    return [
        f"{where}: column {name!r} alone tells the class of every row: is it the label in other words? If new rows "
        "will not have it, leave it out (--columns), or set it apart (--id)"
        for name, values in columns.items()
        if _tells(values[some], labels[some], len(some) - 1) and _tells(values, labels, len(labels) // LEAST_OF_CLASS)
    ]


def _tells(values: np.ndarray, labels: np.ndarray, most: int) -> bool:
    """Return whether no value has two classes, and values are ``most`` at most, or in one order with the classes."""
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    changes = labels[1:] != labels[:-1]
    equal = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    is_ordered = int(changes.sum()) < len(np.unique(labels))
    return not (changes & equal).any() and (is_ordered or 1 + int(np.count_nonzero(~equal)) <= most)


def weight_remarks(where: str, weights: np.ndarray | None, labels: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Return a remark where weights (N,) let a class or the most rows count little; ``labels`` (N,) are class numbers.

    Notes
    -----
    Rows of weights w determine a mean like ``(sum w)^2 / sum w^2`` equal ones [L. Kish, Survey Sampling (1965)].
    """
    if weights is None or not len(weights):
        return []
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    rows = np.bincount(labels, minlength=len(classes)) / len(labels)
    shares = np.bincount(labels, weights, minlength=len(classes)) / weights.sum()
    little = [
        f"class {name!r} has {share:.1e} of the weight and {part:.2g} of the rows"
        for name, share, part in zip(classes, shares.tolist(), rows.tolist(), strict=True)
        if share < SMALL_SHARE * part
    ]
    if not little and effective >= EFFECTIVE_SHARE * len(weights):
        return []
    what = "".join(f", {line}" for line in little)
    advice = (
        "; learners see little of such a class: give weights that say how rows of one class count" if little else ""
    )
    return [f"{where}: weights are very unequal: {len(weights):,} rows count like {effective:,.1f}{what}{advice}"]


NEIGHBOURS, HEAP_ROWS, HEAP_QUERIES = 20, 50_000, 400
"""Nearest rows that are looked at, of so many rows at most, around so many of them."""
LEAST_HEAP_ROWS, LEAST_COLUMNS = 100, 2
"""Fewer rows or quantities show no heaps."""
JUMP, JUMP_SHARE = 10.0, 0.05
"""A jump in distance so large shows a heap, and so many rows in heaps are remarked on. Of independent rows 1 in 1,000
has one."""


def heap_remarks(where: str, columns: np.ndarray, labels: np.ndarray, remedy: str) -> list[str]:
    """Return a remark where rows lie in small heaps, as those of one shower, patient or run do.

    Parameters
    ----------
    columns
        (N, F) quantities; those of few different values say nothing.
    labels
        (N,) class numbers: heaps are smaller than classes.
    remedy
        How groups are named.

    Notes
    -----
    Of independent rows of d dimensions the distances r_j to the neighbours grow such that d j ln(r_(j+1) / r_j) follows
    the unit exponential law, whatever the density is [E. Facco et al., Scientific Reports 7 (2017) 12140]. A heap of m
    rows has one large jump, from its last row to the next heap.
    """
    if columns.shape[1] < LEAST_COLUMNS:
        return []
    columns, labels = columns[:HEAP_ROWS], labels[:HEAP_ROWS]
    columns = columns[:, np.isfinite(columns).mean(axis=0) > 0.9]
    known = np.isfinite(columns).all(axis=1)
    columns, labels = columns[known], labels[known]
    varied = [k for k in range(columns.shape[1]) if len(np.unique(columns[:, k])) > len(columns) / 2]
    n_neighbours = min(NEIGHBOURS, int(np.bincount(labels).min()) // 2) if len(labels) else 0
    if len(columns) < LEAST_HEAP_ROWS or len(varied) < LEAST_COLUMNS or n_neighbours < 2:
        return []
    ranks = np.argsort(np.argsort(columns[:, varied], axis=0, kind="stable"), axis=0) / len(columns)
    rows = np.random.default_rng(0).choice(len(ranks), min(HEAP_QUERIES, len(ranks)), replace=False)
    from scipy.spatial import cKDTree  # predictions look for no heaps

    distances = cKDTree(ranks).query(ranks[rows], k=n_neighbours + 1)[0][:, 1:]
    distances = distances[distances[:, 0] > 0]
    if len(distances) < len(rows) / 2:
        return []  # copies, which have a remark of their own
    jumps = np.log(distances[:, 1:] / distances[:, :-1]) * np.arange(1, n_neighbours)
    share = float((jumps.max(axis=1) > JUMP * np.median(jumps) / np.log(2)).mean())
    if share < JUMP_SHARE:
        return []
    return [
        f"{where}: {100 * share:.0f} % of the rows lie in small heaps, as rows of one shower, patient or run do: if "
        f"such rows belong together, {remedy}, else held-out scores are too good"
    ]


def repeated_remarks(train: pl.DataFrame, labels: np.ndarray, test: pl.DataFrame | None) -> list[str]:
    """Return remarks on rows that are equal in all columns that learners get.

    Parameters
    ----------
    train, test
        These columns, as learners get them.
    labels
        (N,) class numbers of the training rows.

    Notes
    -----
    Tables of few categories have equal rows by chance: nothing is removed.
    """
    hashes = train.hash_rows().to_numpy()
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    n_copies = int(counts.sum() - len(counts))
    remarks = []
    if n_copies:
        with_labels = np.unique(np.column_stack([hashes, labels.astype(np.uint64)]), axis=0)
        n_contrary = len(with_labels) - len(first)
        contrary = f", {n_contrary} of them with another label" if n_contrary else ""
        remarks.append(
            f"{n_copies} of {len(hashes)} training rows equal another one{contrary}: copies in several folds make "
            "held-out scores too good; remove them, or keep them together with --group"
        )
    if test is not None:
        n_known = int(np.isin(test.hash_rows().to_numpy(), hashes).sum())
        if n_known:
            remarks.append(
                f"{n_known} of {test.height} test rows equal a training row: scores on them say nothing about new rows"
            )
    return remarks


LEAST_ROWS = 20
"""Fewer rows, of training or new, have no distribution."""
CHANCE = 1e-6
"""A quantity that new rows lack, or of which they have one value, is told where chance would do this less often."""
MOST_OUTSIDE = 0.5
"""A larger share of new values outside of what 99 % of the training had is told."""
NARROWER, RARE = 50.0, 0.1
"""Middle halves so many times narrower than in training are told, of quantities of which no value is more common."""


@dataclass(frozen=True)
class Seen:
    """A quantity in training."""

    low: float
    high: float
    """Between these 99 % of its values are."""
    width: float
    """Of the middle half of them."""
    missing: float
    """Share of rows without a value."""
    common: float
    """Share of the most common value among the others."""

    @classmethod
    def of(cls, values: np.ndarray) -> Self | None:
        """Return it for values (N,), NaN where missing; None for too few."""
        present = values[np.isfinite(values)].astype(np.float64)
        if len(present) < LEAST_ROWS:
            return None
        low, first, last, high = np.quantile(present, [0.005, 0.25, 0.75, 0.995]).tolist()
        common = float(np.unique(present, return_counts=True)[1].max()) / len(present)
        return cls(low, high, last - first, 1.0 - len(present) / len(values), common)

    def as_json(self) -> dict[str, float]:
        """Return JSON content."""
        return asdict(self)

    def unlike(
        self, values: np.ndarray, *, scale: float = 1.0, offset: float = 0.0, ordered: bool = True
    ) -> str | None:
        """Return in words how new values (N,) differ from those of the training; None where they may be like them.

        ``scale`` and ``offset`` turn values into those that a user knows; categories are not ``ordered``.
        """
        present = values[np.isfinite(values)].astype(np.float64)
        if len(values) < LEAST_ROWS:
            return None
        if not len(present):
            how = f"in training {100 * self.missing:.0f} % of the rows have no value"
            return f"is empty in all {len(values):,} rows, {how}" if self.missing ** len(values) < CHANCE else None
        if len(present) < LEAST_ROWS:
            return None

        def shown(value: float) -> str:
            return f"{value * scale + offset:.4g}"

        if present.min() == present.max() and self.common ** len(present) < CHANCE:
            value = f" ({shown(present[0])})" if ordered else ""
            return f"is the same in all {len(present):,} rows{value}, in training no value is so common"
        if not ordered:
            return None
        outside = float(((present < self.low) | (present > self.high)).mean())
        first, middle, last = np.quantile(present, [0.25, 0.5, 0.75]).tolist()
        if outside > MOST_OUTSIDE:
            return (
                f"lies outside of what was trained on: half of its values are below {shown(middle)}, in training 99 % "
                f"are {shown(self.low)} to {shown(self.high)}; is it another quantity, or of another unit?"
            )
        if self.common < RARE and last - first < self.width / NARROWER:
            return (
                f"varies {self.width / max(last - first, 1e-300):,.0f} times less than in training (half of it lies "
                f"within {(last - first) * scale:.3g}): is it of another unit?"
            )
        return None


def of_columns(columns: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return what named quantities (N,) each were, as JSON content, without those of too few values."""
    found = {name: Seen.of(values) for name, values in columns.items()}
    return {name: one.as_json() for name, one in found.items() if one is not None}


def unlike_remarks(where: str, seen: Mapping[str, Any], columns: dict[str, np.ndarray]) -> list[str]:
    """Return remarks on named quantities (N,) each that are unlike those of the training."""
    found = ((name, Seen(**seen[name]).unlike(values)) for name, values in columns.items() if name in seen)
    return [f"{where}: {name} {words}" for name, words in found if words]
