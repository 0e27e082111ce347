"""Peak memory of a process that fits one learner, beside what a run reckons with.

    python -m benchmarks.speed.fit_memory --rows 100000 400000

Each learner is fitted in a process of its own, once on few rows, which loads its library, and once on random numbers
in ``--columns`` columns. Rounds and epochs are few: memory does not depend on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.cost import timed
from showerstack.runtime.processes import in_own_process
from showerstack.stacking.training.schedule import LIBRARIES_BYTES, TABLE_COPIES

SHORT = {name: {"rounds": 6} for name in ("lightgbm", "xgboost", "catboost")} | {"mlp": {"epochs": 1}}


def peaks(name: str, n_rows: int, n_columns: int) -> Iterator[tuple[float, float]]:
    """Yield the peaks (MB) of fits on 2,000 and on so many rows."""
    rng = np.random.default_rng(1)
    columns = tuple(f"c{k}" for k in range(n_columns))

    def drawn(n: int) -> Batch:
        table = np.asfortranarray(rng.standard_normal((n, n_columns), dtype=np.float32))
        return Batch(np.arange(n), table, columns, labels=rng.integers(0, 5, n))

    valid, result = drawn(2_000), []
    for n in (2_000, n_rows):
        train = drawn(n)
        with timed(name) as cost:
            create(spec(name), tuple("abcde"), overrides=SHORT.get(name)).fit(train, valid, seed=1)
        result.append(cost.peak_mb)
    yield result[0], result[1]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", nargs="+", default=list(SHORT))
    parser.add_argument("--rows", nargs="+", type=int, default=[100_000, 400_000])
    parser.add_argument("--columns", type=int, default=160)
    given = parser.parse_args()
    print("| learner | rows | table, MB | 2,000 rows, MB | peak, MB | reckoned with, MB |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in given.learners:
        for n_rows in given.rows:
            ((few, peak),) = in_own_process(peaks, name, n_rows, given.columns)
            table = n_rows * given.columns * 4 / (1 << 20)
            reckoned = LIBRARIES_BYTES / (1 << 20) + TABLE_COPIES * table
            print(f"| `{name}` | {n_rows:,} | {table:.0f} | {few:.0f} | {peak:.0f} | {reckoned:.0f} |", flush=True)


if __name__ == "__main__":
    main()
