"""Rows that are there twice: in the training table, or in training and test."""

from __future__ import annotations

import numpy as np
import polars as pl


def repeated_remarks(train: pl.DataFrame, labels: np.ndarray, test: pl.DataFrame | None) -> list[str]:
    """Return remarks on equal rows, all columns that learners see compared.

    Parameters
    ----------
    train, test
        Columns as learners see them.
    labels
        (N,) class numbers of the training rows.

    Notes
    -----
    Tables of few categories have equal rows by chance: nothing is removed.
    """
    hashes = train.hash_rows().to_numpy()
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    n_again = int(counts.sum() - len(counts))
    remarks = []
    if n_again:
        with_labels = np.unique(np.column_stack([hashes, labels.astype(np.uint64)]), axis=0)
        contrary = len(with_labels) - len(first)
        words = f", {contrary} of them with another label" if contrary else ""
        remarks.append(
            f"{n_again} of {len(hashes)} training rows equal another one{words}: copies in several folds make held-out "
            "scores too good; remove them, or keep them together with --group"
        )
    if test is not None:
        n_known = int(np.isin(test.hash_rows().to_numpy(), hashes).sum())
        if n_known:
            remarks.append(
                f"{n_known} of {test.height} test rows equal a training row: scores on them say nothing about new rows"
            )
    return remarks
