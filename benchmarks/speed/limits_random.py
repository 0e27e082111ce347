"""Whether runs on tables keep a time limit: tables of random size stacked within limits of random length, one by one.

    OMP_NUM_THREADS=1 python benchmarks/speed/limits_random.py --work bench/limits_random --runs 8

Every run is a command of its own with one process: starting and the report count as they do for a user. A line
a run tells the limit and what was used of it. ``pace`` is the wall-clock time of a second of processor time in the
fits: how busy the machine was. Means have 95 % intervals of Student's t over the runs. What has been run is kept, and
not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from benchmarks.learning.stack import markdown
from showerstack.runtime.files import read_json, write_json
from showerstack.scoring.metrics.level import LEVEL

N_COLUMNS, N_CLASSES = 25, 3
HEAD = ("rows", "limit s", "used s", "used %", "learners, folds", "left out", "report", "pace")


def main() -> None:
    """Do the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/limits_random"), help="folder for tables and runs")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs=2, default=[5_000, 60_000], help="fewest and most")
    parser.add_argument("--limits", type=int, nargs=2, default=[120, 480], help="shortest and longest, s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    results = []
    for number in range(options.runs):
        rng = np.random.default_rng([options.seed, number])
        # Evenly on a logarithmic scale: short limits and small tables are as frequent as long and large ones.
        rows = round(float(np.exp(rng.uniform(*np.log(options.rows)))))
        limit_s = round(float(np.exp(rng.uniform(*np.log(options.limits)))))
        results.append(finished(options.work, number, rows, limit_s, rng))
        print(*result_line(results[-1]), sep=" | ", flush=True)
    print(f"\n{markdown(list(HEAD), [result_line(result) for result in results])}\n")
    print(f"used within the limit + 5 %: {sum(r['used_s'] <= 1.05 * r['limit_s'] for r in results)} of {len(results)}")
    wanting = [r for r in results if r["left_out"]]
    enough = sum(r["used_s"] >= 0.7 * r["limit_s"] for r in wanting)
    print(f"of those that left learners out, at least 70 % of the limit used: {enough} of {len(wanting)}")
    print(f"share used: {interval([r['used_s'] / r['limit_s'] for r in results])}")


def finished(work: Path, number: int, rows: int, limit_s: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what one run took, s; from its file where it has been run."""
    kept = work / f"run-{number}.json"
    if kept.exists():
        return dict(read_json(kept))
    work.mkdir(parents=True, exist_ok=True)
    table, run = work / f"table-{number}.parquet", work / f"run-{number}"
    drawn(rows, rng).write_parquet(table)
    command = ["stack", "--table", table, "--label", "kind", "--run", run, "--time-limit", f"{limit_s}s"]
    begun = time.time()
    done = subprocess.run(
        [sys.executable, "cli.py", *map(str, command), "--workers", "1", "--device", "cpu", "--quiet"]
    )
    if done.returncode:
        raise SystemExit(f"run {number} ended with exit code {done.returncode}")
    ended = time.time()
    manifest = read_json(run / "manifest.json")
    fits = [step for step in manifest["steps"] if step["step"] == "train"]
    result = {
        "rows": rows,
        "limit_s": limit_s,
        "used_s": ended - begun,
        "learners": [one["name"] for one in manifest["learners"] if one["status"] == "ok"],
        "folds": manifest["identity"]["folds"],
        "left_out": len(manifest["plan"]["left_out"]) + sum(one["status"] != "ok" for one in manifest["learners"]),
        "shortened": "left out of the report" in (run / "report.html").read_text(),
        "pace": sum(step["wall_s"] for step in fits) / sum(step["cpu_s"] for step in fits),
    }
    write_json(kept, result)
    return result


def drawn(rows: int, rng: np.random.Generator) -> pl.DataFrame:
    """Return a table of three overlapping classes, which differ in a third of the columns and in their products."""
    labels = rng.integers(N_CLASSES, size=rows)
    values = rng.standard_normal((rows, N_COLUMNS))
    means = rng.standard_normal((N_CLASSES, N_COLUMNS)) * (np.arange(N_COLUMNS) < N_COLUMNS // 3) * 0.5
    values[:, -1] += 0.5 * values[:, 0] * values[:, 1] * (labels == 1)
    frame = pl.DataFrame((values + means[labels]).astype(np.float32), schema=[f"x{k}" for k in range(N_COLUMNS)])
    return frame.with_columns(kind=pl.Series(labels).replace_strict(list(range(N_CLASSES)), ["a", "b", "c"]))


def result_line(result: dict[str, Any]) -> list[str]:
    """Return one row of the table."""
    return [
        f"{result['rows']:,}",
        f"{result['limit_s']}",
        f"{result['used_s']:.0f}",
        f"{100 * result['used_s'] / result['limit_s']:.0f}",
        f"{len(result['learners'])}, {result['folds']}",
        f"{result['left_out']}",
        "shortened" if result["shortened"] else "whole",
        f"{result['pace']:.1f}",
    ]


def interval(values: list[float]) -> str:
    """Return a mean with its interval."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1)) * error
    return f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"


if __name__ == "__main__":
    main()
