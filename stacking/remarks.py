"""Remarks on data whose numbers may mislead: rows that equal others, weights by which few rows count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

SMALL_SHARE = 0.05
"""A class of less weight than so many of its number of rows is remarked on."""
EFFECTIVE_SHARE = 0.1
"""Weighted rows that count like fewer than so many of them are remarked on."""


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
