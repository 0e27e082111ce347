"""What the whole measured archive costs: stand-ins of a small share of its runs, and the slopes taken to all of it.

    python -m benchmarks.speed.archive --work WORK --store

The archive has 1,308 runs with 73.3 million events. Simulated runs of the same size are converted, predicted (features
are computed on the way and not kept) by a run of two networks, and unfolded, in two numbers; the difference is what
another event costs, the rest what a program costs to start. Everything is done by one process of one thread. A job
array (``examples/slurm/runs.sh``) starts a program in each task: its cost grows with the cores, that of the events does
not. ``spectra`` reads all events in one program and keeps their features, 0.8 kB each.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.shared.results import HELP, store
from benchmarks.speed.commands import CommandCost, timed
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
RUNS, EVENTS = 1_308, 73_300_000
LIVE_TIME_H = 35.0
"""Of a simulated run, which then has as many events as the mean run of the archive."""
CORES = (1, 16, 256)


def run_of_two(scratch: Path) -> Path:
    """Train what predicts, once."""
    run, data = scratch / "run", scratch / "train"
    if not (run / "manifest.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        simulate(COMPOSITION, data, n_train=8_000, n_test=2_000, seed=19, train_cuts="test")
        timed(ROOT, "stack", "--task", "composition", "--preset", "good", "--data", data, "--run", run,
              "--learners", "pretrained,mlp", "--device", "cpu")  # fmt: skip
    return run


def measured(scratch: Path, run: Path, runs: int) -> tuple[int, dict[str, CommandCost], dict[str, float]]:
    """Return the number of events of so many runs, what each command took, and GB on disk."""
    place = scratch / f"runs-{runs}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "sky.toml").write_text(f"runs = {runs}\nlive_time_h = {LIVE_TIME_H}\n", encoding="utf-8")
    timed(ROOT, "simulate", "--task", "measured", "--spectrum", place / "sky.toml", "--out", place)
    folders = place / "measured"
    costs = {
        "convert": timed(ROOT, "convert", place / "measured_raw", "--out", place, "--times", "--workers", 1),
        "predict": timed(ROOT, "predict", "--run", run, "--data", folders, "--out", place / "out", "--no-table"),
    }  # fmt: skip
    events = sum(len(Dataset.open(one, labels=False)) for one in folders.iterdir() if one.is_dir())
    sizes = {name: size_gb(place / name) for name in ("measured_raw", "measured", "out")}
    costs["spectra"] = timed(ROOT, "spectra", "--run", run, "--data", folders, "--out", place / "spectra")
    return events, costs, sizes


def size_gb(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9


def extrapolated(found: list[tuple[int, dict[str, CommandCost], dict[str, float]]]) -> str:
    """Return a table: what a program and an event cost, and the minutes of the archive by number of cores."""
    (few, first, _), (many, last, sizes) = found
    rows = []
    for name in first:
        slope = (last[name].cpu_s - first[name].cpu_s) / (many - few)
        start = max(first[name].cpu_s - slope * few, 0.0)
        minutes = [(start + slope * EVENTS / (1 if name == "spectra" else n)) / 60 for n in CORES]
        rows.append({
            "command": f"`{name}`", "start, s": f"{start:.1f}", "event, us": f"{1e6 * slope:.1f}",
            "peak GB": f"{first[name].peak_gb:.2f}, {last[name].peak_gb:.2f}",
            **{f"{n} core{'s' if n > 1 else ''}, min": f"{one:.1f}" for n, one in zip(CORES, minutes, strict=True)},
        })  # fmt: skip
    frame = pl.DataFrame(rows)
    lines = [f"| {' | '.join(frame.columns)} |", "|" + "---|" * frame.width]
    lines += [f"| {' | '.join(row)} |" for row in frame.rows()]
    disk = ", ".join(f"`{name}` {size * EVENTS / many:.0f}" for name, size in sizes.items())
    return "\n".join([*lines, "", f"GB on disk: {disk}."])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the data")
    parser.add_argument("--runs", default="3,13", help="two numbers of runs; 13 are 1 % of the archive")
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    scratch = options.work.resolve()
    run, found = run_of_two(scratch), []
    for n in options.runs.split(","):
        found.append(measured(scratch, run, int(n)))
        print(found[-1], flush=True)
    shares = " and ".join(f"{np.round(100 * events / EVENTS, 1)} %" for events, *_ in found)
    text = f"{shares} of {EVENTS:,} events; peaks are of the two.\n\n{extrapolated(found)}"
    print(text)
    if options.store:
        store("archive", "The measured archive", text, weights="shipped")


if __name__ == "__main__":
    main()
