"""Simulated samples that benchmarks keep between runs, in folders named after everything that defines their showers.

A folder named by sizes alone would be used again for another seed, another world or other code, and the table printed
would name what was asked for and not what was measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from benchmarks.shared.drawn import FOREIGN, foreign_detector
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.versions import SIMULATION_VERSION
from showerstack.showers.schema import Task
from showerstack.showers.simulation import load_settings, simulate


def sample_name(
    task: Task,
    *,
    n_train: int,
    n_test: int,
    seed: int,
    world: str = "default",
    model: str = "mix",
    protocol: str = "v2",
) -> str:
    """Return a sample's name: task, sizes and seed, then a hash of these, the world's constants and its version."""
    whole = {
        "task": task.name, "train": n_train, "test": n_test, "seed": seed, "model": model, "protocol": protocol,
        "settings": load_settings(_settings(world)).digest(), "foreign": world == FOREIGN,
        "version": SIMULATION_VERSION,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]
    return f"{task.name}-{n_train}-{n_test}-seed{seed}-{key}"


def sample(
    task: Task,
    parent: Path,
    *,
    n_train: int,
    n_test: int,
    seed: int,
    world: str = "default",
    model: str = "mix",
    protocol: str = "v2",
    workers: int | None = None,
    bars: Bars = silent,
) -> Path:
    """Return the folder below ``parent`` that holds a training and a test set under the test's cuts.

    Simulated where it is missing. Arguments are those of :func:`showerstack.showers.simulation.simulate`; the world
    may also be :data:`benchmarks.shared.drawn.FOREIGN`, which is drawn in this process.
    """
    identity = {"n_train": n_train, "n_test": n_test, "seed": seed, "model": model, "protocol": protocol}
    folder = parent / sample_name(task, world=world, **identity)
    if not all((folder / f"{task.name}_{split}").exists() for split in ("train", "test")):
        with foreign_detector() if world == FOREIGN else contextlib.nullcontext():
            simulate(
                task, folder, **identity, train_cuts="test", world=_settings(world), overwrite=True, bars=bars,
                workers=1 if world == FOREIGN else workers,
            )  # fmt: skip
    return folder


def _settings(world: str) -> str:
    """Return whose constants a world has: another detector's are the default world's."""
    return "default" if world == FOREIGN else world
