"""A stack on a Dask cluster: one worker, two workers, and two of which one is killed; wall-clock time and bytes.

    python -m benchmarks.speed.cluster --work WORK --store

Workers have one thread each and run on this machine: the ratio of their times counts on two cores that nothing else
uses. Feature tables are made before; a round trains one run after the other, from nothing. The killed worker ends
without notice when a third of the fits that the run needs are done; its fit is given to the other, and Dask starts a
new worker in its place. Compared are the bytes of all predictions: of the test showers by the stack, and of every fit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.shared.results import HELP, store
from benchmarks.speed.commands import MANY, ranged, timed
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY_S = 0.2


class ClusterRun(NamedTuple):
    """A run that a cluster has trained."""

    wall_s: float
    fits: int
    digest: str
    """Of all predictions."""


def trained(work: Path, workers: int, preset: str, kill_after: int | None = None) -> ClusterRun:
    """Train a run from nothing with so many workers; kill one when so many fits are done."""
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, local_directory=work) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        process = next(iter(client.run(os.getpid).values()))
        over = threading.Event()
        killer = threading.Thread(target=_kill, args=(process, run, kill_after, over))
        if kill_after is not None:
            killer.start()
        cost = timed(ROOT, "stack", "--task", "composition", "--data", work / "data", "--run", run, "--device", "cpu",
                     "--preset", preset, "--scheduler", cluster.scheduler_address)  # fmt: skip
        over.set()
        if kill_after is not None:
            killer.join()
            if Path(f"/proc/{process}").exists():
                raise SystemExit("the run ended before a worker could be killed")
    return ClusterRun(cost.wall_s, len(fits_of(run)), digest_of(run))


def _kill(process: int, run: Path, after: int, over: threading.Event) -> None:
    while len(fits_of(run)) < after and not over.wait(LOOK_EVERY_S):
        pass
    if not over.is_set():
        time.sleep(LOOK_EVERY_S)
        os.kill(process, signal.SIGKILL)


def fits_of(run: Path) -> list[Path]:
    """Return the headers of the finished fits."""
    return sorted(run.glob("learners/*/fold-*/task.json"))


def digest_of(run: Path) -> str:
    """Return a hash of the stack's predictions and those of every fit."""
    digest = hashlib.sha256()
    for file in [run / "predictions.npz", *sorted(run.glob("learners/*/fold-*/*.npz"))]:
        digest.update(f"{file.relative_to(run)}".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the data, which are made once")
    parser.add_argument("--events", type=int, default=MANY, help="training showers, without cuts")
    parser.add_argument("--preset", default="good")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    work, data = options.work.resolve(), options.work.resolve() / "data"
    if not (data / "composition_test.features").exists():
        shutil.rmtree(data, ignore_errors=True)
        simulate(COMPOSITION, data, n_train=options.events, n_test=options.events // 4, seed=18)
        for part in ("train", "test"):
            timed(ROOT, "features", data / f"composition_{part}", "--quiet")
    rounds = []
    for _ in range(options.rounds):
        row: list[ClusterRun] = []
        for workers, kills in ((1, False), (2, False), (2, True)):
            row.append(trained(work, workers, options.preset, kill_after=row[0].fits // 3 if kills else None))
            print(row[-1], flush=True)
        rounds.append(row)
    lines = ["| cluster | wall s (range) | ratio (range) | fits | all predictions |", "|---|---|---|---|---|"]
    names = ("one worker", "two workers", "two, one of them killed")
    for k, name in enumerate(names):
        walls = [row[k].wall_s for row in rounds]
        ratios = ranged([row[k].wall_s / row[0].wall_s for row in rounds], 2)
        digests = ", ".join(sorted({f"`{row[k].digest}`" for row in rounds}))
        fits = int(np.median([row[k].fits for row in rounds]))
        lines.append(f"| {name} | {ranged(walls, 0)} | {ratios} | {fits} | {digests} |")
    text = f"`stack --preset {options.preset}` of {options.events:,} showers without cuts.\n\n" + "\n".join(lines)
    print(text)
    if options.store:
        store("cluster", "Stacks on a Dask cluster", text, weights="shipped")


if __name__ == "__main__":
    main()
