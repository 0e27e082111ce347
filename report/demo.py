"""The whole job on the embedded simulation, both tasks: what ``make demo`` runs."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from report.reading.finished import kept_outcome
from report.terminal.outcome import outcome
from showers.datasets.dataset import Dataset
from showers.execution.progress import Bars, silent
from showers.schema import COMPOSITION, GAMMA, InputError, Task
from showers.simulation import simulate
from stacking.pipeline import stack
from stacking.run.config import StackConfig


def run_demo(
    out: Path,
    *,
    n_train: int,
    n_test: int,
    seed: int = 1,
    workers: int | None = None,
    console: Console,
    bars: Bars = silent,
) -> None:
    """Simulate, extract features, stack, predict, verify and report, for both tasks.

    Simulated sets and finished runs that are there already, made with the same numbers, are used again; a run
    that was killed is continued.

    Parameters
    ----------
    out
        Gets ``data/`` and ``runs/``.
    n_train, n_test
        Showers a task, drawn under the test's cuts.

    Raises
    ------
    InputError
        If ``out`` holds sets of another size or seed.
    """
    started = time.monotonic()
    data = out / "data"
    for task in (COMPOSITION, GAMMA):
        console.rule(f"{task.name}: {n_train:,} training and {n_test:,} test showers")
        if not _simulated_already(data, task, n_train, n_test, seed):
            simulate(
                task,
                data,
                n_train=n_train,
                n_test=n_test,
                seed=seed,
                train_cuts="test",
                workers=workers,
                overwrite=True,  # a set left alone by a killed demo has the same bytes
                bars=bars,
            )
        run = out / "runs" / task.name
        asked, inputs = (
            {"demo": [n_train, n_test, seed]},
            [data / f"{task.name}_{split}" for split in ("train", "test")],
        )
        kept = kept_outcome(run, asked, inputs)
        if kept is not None:
            console.print(kept, end="", markup=False, highlight=False, soft_wrap=True)
            continue
        stack(StackConfig(task=task.name, data=data, run=run, preset="quick", seed=seed, workers=workers), bars=bars)
        found = outcome(run, data, task, bars=bars)
        console.print(found.shown, soft_wrap=True)
        found.keep(asked, inputs)
    console.rule(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    console.print(
        "The showers are simulated: scores tell how the methods compare here, not what they reach on KASCADE data.\n"
        f"Score again with: python verify.py --data {data} {out / 'runs' / 'composition' / 'predictions.npz'}",
        soft_wrap=True,
    )


def _simulated_already(data: Path, task: Task, n_train: int, n_test: int, seed: int) -> bool:
    folders = {data / f"{task.name}_train": n_train, data / f"{task.name}_test": n_test}
    present = [folder for folder in folders if folder.exists()]
    for folder in present:
        wanted = folders[folder]
        found = Dataset.open(folder, task, labels=False)
        if len(found) != wanted or found.source.get("seed") != seed:
            raise InputError(
                f"{folder} holds {len(found):,} events of seed {found.source.get('seed')}, "
                f"the demo asked for {wanted:,} of seed {seed}: remove {data.parent} or choose another --out"
            )
    return len(present) == len(folders)
