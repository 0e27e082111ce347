"""Remarks on data whose numbers may mislead: rows that are alike, weights by which few rows count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from scipy.spatial import cKDTree

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
