"""Sets of classes that hold the true one with a stated probability (split conformal prediction), of a run's posteriors.

    python examples/conformal_sets.py KNOWN.npz LABELLED_FOLDER NEW.npz sets.csv --error 0.1

KNOWN.npz are predictions of the showers in LABELLED_FOLDER, which the run must not have learned from (its test set);
NEW.npz those of others. Of showers that were used several times (``groups.npy``) one use is drawn, since only showers
are independent. The promise holds for showers like the known ones: of other compositions or models it does not.

Source: V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World (Springer, 2005), split as in
A. N. Angelopoulos, S. Bates, arXiv:2107.07511.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.showers.dataset import Dataset


def limit_of(log_proba: np.ndarray, labels: np.ndarray, error: float, groups: np.ndarray | None = None) -> float:
    """Return the least probability of a class that is in a set, from posteriors (N, C) of known classes (N,)."""
    rows = np.arange(len(labels))
    if groups is not None:
        order = np.random.default_rng(1).permutation(len(labels))
        rows = order[np.unique(groups[order], return_index=True)[1]]
    wrong = np.sort(1.0 - np.exp(log_proba[rows, labels[rows]]))
    place = int(np.ceil((len(wrong) + 1) * (1.0 - error)))
    return 1.0 - float(wrong[place - 1]) if place <= len(wrong) else 0.0


def main() -> None:
    """Write a row for each new event: 1 for each class in its set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("known", type=Path)
    parser.add_argument("labelled", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--error", type=float, default=0.1)
    given = parser.parse_args()
    data = Dataset.open(given.labelled)
    assert data.task is not None
    assert data.labels is not None
    task = data.task.among(np.asarray(data.labels))
    with np.load(given.known) as known, np.load(given.new) as new:
        limit = limit_of(known["log_proba"], task.encoded(np.asarray(data.labels)), given.error, data.groups)
        inside = np.exp(new["log_proba"]) >= limit
    pl.DataFrame(inside.astype(np.int8), schema=list(task.classes)).with_row_index("event").write_csv(given.out)
    print(f"classes of probability {limit:.4f} or more: {inside.sum(axis=1).mean():.2f} a shower; wrote {given.out}")


if __name__ == "__main__":
    main()
