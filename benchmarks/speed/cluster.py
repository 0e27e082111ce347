"""Commands on a Dask cluster: one worker, two workers, and two of which one is killed; time, memory and bytes.

    python -m benchmarks.speed.cluster stack --work WORK --store
    python -m benchmarks.speed.cluster features --work WORK --events 1000000 --store
    python -m benchmarks.speed.cluster predict --work WORK --events 1000000 --store
    python -m benchmarks.speed.cluster convert --work WORK --events 1000000 --store

Workers have one thread each and run on this machine: the ratio of their times counts on two cores that nothing else
uses. A round does one after the other, from nothing; ``predict`` has a feature table and a run of 8,000 showers. The
killed worker ends without notice when a third of what the command makes is there (of predictions nothing is, before
the end: none is killed); its work is given to the other, and Dask starts a new worker in its place. Compared are the
bytes of what was made: all predictions, the shards of the table, or the folders of 16 measured runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.shared.results import HELP, store
from benchmarks.speed.commands import MANY, ranged, timed
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.measured import simulate_measured

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY_S = 0.2
TRAINED = 8_000
RUNS, EVENTS_AN_HOUR = 16, 1_600
"""Measured runs, and what an hour of one holds, about."""
CLUSTERS = (("one worker", 1, False), ("two workers", 2, False), ("two, one of them killed", 2, True))


class Assignment(NamedTuple):
    """What a cluster does."""

    arguments: tuple[Any, ...]
    """Of the command."""
    out: Path
    pieces: Callable[[], list[Path]]
    """Finds what is there of it."""


class ClusterRun(NamedTuple):
    """Work that a cluster has done."""

    wall_s: float
    client_gb: float
    worker_gb: float
    """Largest of any."""
    digest: str
    pieces: int


def done_by(work: Assignment, scratch: Path, workers: int, kill_after: int | None = None) -> ClusterRun:
    """Do work from nothing with so many workers; kill one when so many pieces are there."""
    shutil.rmtree(work.out, ignore_errors=True)
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, local_directory=scratch
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        process = next(iter(client.run(os.getpid).values()))
        over = threading.Event()
        killer = threading.Thread(target=_kill, args=(process, work, kill_after, over))
        if kill_after is not None:
            killer.start()
        cost = timed(ROOT, *work.arguments, "--scheduler", cluster.scheduler_address)
        over.set()
        if kill_after is not None:
            killer.join()
            if Path(f"/proc/{process}").exists():
                raise SystemExit("the work ended before a worker could be killed")
        worker_gb = max(client.run(peak_gb).values())
    return ClusterRun(cost.wall_s, cost.peak_gb, worker_gb, digest_of(work), len(work.pieces()))


def peak_gb() -> float:
    """Return the largest memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _kill(process: int, work: Assignment, after: int, over: threading.Event) -> None:
    while len(work.pieces()) < after and not over.wait(LOOK_EVERY_S):
        pass
    if not over.is_set():
        os.kill(process, signal.SIGKILL)


def digest_of(work: Assignment) -> str:
    """Return a hash of what was made."""
    digest = hashlib.sha256()
    for file in work.pieces():
        content = [file] if file.is_file() else sorted(file.glob("*.np[yz]"))
        for one in content:
            digest.update(f"{one.relative_to(work.out)}".encode() + one.read_bytes())
    return digest.hexdigest()[:16]


def prepared(command: str, scratch: Path, events: int, preset: str) -> Assignment:
    """Make the data of a command; return what is to be done with them."""
    data, out, device = scratch / f"data-{events}", scratch / command, ("--device", "cpu")
    if command == "convert":
        raw = scratch / f"raw-{events}"
        if not (raw / "exposure.json").exists():
            sky = f"runs = {RUNS}\nlive_time_h = {events / RUNS / EVENTS_AN_HOUR}\n"
            (scratch / "sky.toml").write_text(sky)
            simulate_measured(scratch / "sky.toml", raw, seed=18)
        arguments = ("convert", raw, "--times", "--out", out)
        return Assignment(arguments, out, lambda: sorted(file.parent for file in out.glob("measured/*/source.json")))
    run = ("stack", "--task", "composition", "--preset", preset, *device)
    if not (data / "composition_test.features").exists():
        shutil.rmtree(data, ignore_errors=True)
        simulate(COMPOSITION, data, n_train=events, n_test=events // 4, seed=18)
        for part in ("train", "test"):
            timed(ROOT, "features", data / f"composition_{part}", "--quiet")
    if command == "stack":
        arguments = (*run, "--data", data, "--run", out)
        return Assignment(
            arguments, out, lambda: sorted(file.parent for file in out.glob("learners/*/fold-*/task.json"))
        )
    if command == "features":
        arguments = ("features", data / "composition_train", "--out", out, *device)
        return Assignment(arguments, out, lambda: sorted(out.glob("*.parquet")))
    small = scratch / "small"
    if not (small / "run" / "manifest.json").exists():
        shutil.rmtree(small, ignore_errors=True)
        simulate(COMPOSITION, small / "data", n_train=TRAINED, n_test=200, seed=19, train_cuts="test")
        timed(ROOT, *run, "--data", small / "data", "--run", small / "run", "--learners", "pretrained,mlp")
    out_file = out / "predictions.npz"
    arguments = ("predict", "--run", small / "run", "--data", data / "composition_train", "--out", out_file, *device)
    return Assignment(arguments, out, lambda: [file for file in (out_file,) if file.exists()])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="stack", choices=("stack", "features", "predict", "convert"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the data, which are made once")
    parser.add_argument("--events", type=int, default=MANY, help="showers, without cuts")
    parser.add_argument("--preset", default="good")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    scratch = options.work.resolve()
    work = prepared(options.command, scratch, options.events, options.preset)
    clusters = [one for one in CLUSTERS if options.command != "predict" or not one[2]]
    rounds = []
    for _ in range(options.rounds):
        row: list[ClusterRun] = []
        for _, workers, kills in clusters:
            row.append(done_by(work, scratch, workers, kill_after=row[0].pieces // 3 if kills else None))
            print(row[-1], flush=True)
        rounds.append(row)
    heads = ("cluster", "wall s (range)", "ratio (range)", "client, GB", "largest worker, GB", "bytes")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for k, (name, *_) in enumerate(clusters):
        runs = [row[k] for row in rounds]
        ratios = ranged([one.wall_s / row[0].wall_s for one, row in zip(runs, rounds, strict=True)], 2)
        memory = " | ".join(f"{np.median(values):.2f}" for values in list(zip(*runs, strict=True))[1:3])
        digests = ", ".join(sorted({f"`{one.digest}`" for one in runs}))
        lines.append(f"| {name} | {ranged([one.wall_s for one in runs], 0)} | {ratios} | {memory} | {digests} |")
    asked = f"{options.command} --preset {options.preset}" if options.command == "stack" else options.command
    text = f"`{asked}` of {options.events:,} showers without cuts.\n\n" + "\n".join(lines)
    print(text)
    if options.store:
        name = "cluster" if options.command == "stack" else f"cluster_{options.command}"
        weights = "shipped" if options.command in ("stack", "predict") else ""
        store(name, f"On a Dask cluster: {options.command}", text, weights=weights)


if __name__ == "__main__":
    main()
