"""Samples to try the data check on: a fresh one, and damaged ones, each a dataset folder without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.protocols import Layout
from showerstack.showers.writer import write_dataset

CLUSTER = (slice(0, 4), slice(8, 12))
"""Cells of the cluster that is dead in one of the samples."""


def damaged(source: Path, out: Path, kind: str, *, seed: int = 1, rows: np.ndarray | None = None) -> Path:
    """Write a copy of a dataset without labels, damaged in one way.

    Parameters
    ----------
    source
        Dataset folder.
    kind
        ``fresh`` (not damaged), ``muons`` (lg Nmu higher by .035, and the energy that follows from it), ``deposits``
        (5 % larger), ``cluster`` (16 stations silent), ``swapped`` (1 % of the events with the channels exchanged) or
        ``ordered`` (sorted by class).
    rows
        Only these events.
    """
    data = Dataset.open(source)
    rows = np.arange(len(data)) if rows is None else rows
    grids, scalars = data.matrices[rows].astype(np.float32), data.scalars[rows].astype(np.float64)
    labels = np.asarray(data.labels)[rows]
    if kind == "muons":
        scalars[:, 4] += 0.035
        scalars[:, 0] = reconstructed_energy(scalars[:, 3], scalars[:, 4], scalars[:, 1])
    elif kind == "deposits":
        grids *= 1.05
    elif kind == "cluster":
        grids[:, *CLUSTER] = 0.0
    elif kind == "swapped":
        chosen = np.random.default_rng(seed).permutation(len(rows))[: max(len(rows) // 100, 1)]
        grids[chosen] = grids[chosen][..., ::-1]
    elif kind == "ordered":
        order = np.argsort(labels, kind="stable")
        grids, scalars = grids[order], scalars[order]
    dtype = data.scalars.dtype
    with write_dataset(
        out, len(rows), None, source={"generator": "damaged"}, layout=Layout(scalar_type=dtype)
    ) as writer:
        writer.put(0, grids.astype(np.float16), scalars.astype(dtype))
    return out
