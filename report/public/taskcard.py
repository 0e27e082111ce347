"""Task folders for composition and gamma, written from a dataset or from new showers, checked by their evaluation.

A variant is a task on showers of a world whose constants are drawn from the priors of pretraining: nobody can have seen
it. :mod:`showerstack.report.public.layouts` says how folders look.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from showerstack.report.public.layouts import ARRAYS, DATASET, LAYOUTS, Card, Facts
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.schema import Task, task_named
from showerstack.showers.simulation import simulate
from showerstack.showers.source import is_simulated

VARIANT = 9_012_026
"""Keeps the worlds of variants apart from those of pretraining."""

CARDS = {
    "composition": Card(
        "ShowersCompositionMeanFractionError",
        "MeanFractionError",
        "label",
        0.32,
        "Mass of the primary of an air shower from the deposits of a detector array",
        "one whole number a row: 0 proton, 1 helium, 2 carbon, 3 silicon, 4 iron",
        {
            "sota_score": 0.1051,
            "sota_year": 2026,
            "sota_venue": "benchmark paper of 2026, best of 50 attempts, chosen on the test set",
        },
    ),
    "gamma": Card(
        "ShowersGammaHadronSurvival",
        "HadronSurvival",
        "gamma_score",
        1.0,
        "Gamma rays among the hadrons: which air showers were begun by a photon",
        "one number a row, higher = more gamma-like",
        {
            "sota_score": 2.63e-4,
            "sota_year": 2026,
            "sota_venue": "benchmark paper of 2026, best of 50 attempts, chosen on the test set",
        },
    ),
}


def write_cards(
    data: Path, out: Path, tasks: tuple[str, ...], layouts: tuple[str, ...] = ("airs",), *, variant: bool = False
) -> dict[str, list[str]]:
    """Write task folders and their shared data, check them, and return what was checked, by folder.

    Parameters
    ----------
    data
        Folder with ``{task}_train`` and ``{task}_test``.
    out
        Gets ``shared/<dataset>/<task>``, and task folders: ``<name>`` (airs), ``mlgym/<name>``.
    tasks
        ``composition``, ``gamma``.
    layouts
        Of :data:`LAYOUTS`.
    variant
        Whether the showers are a variant: names then end in a hash of the test's readings.

    Raises
    ------
    InputError
        If a task has no card, data cannot be read, or a check fails: nothing is then left of that folder.
    """
    result = {}
    for task in tasks:
        if task not in CARDS:
            raise InputError(f"task {task!r} has no card: choose from {', '.join(CARDS)}")
        shared = out / "shared" / DATASET / task
        test = Dataset.open(data / f"{task}_test", task_named(task))
        _write_data(data, shared, task_named(task))
        card = CARDS[task]
        if variant:
            digest = hashlib.sha256((shared / "test" / "features.npy").read_bytes()).hexdigest()
            card = replace(card, name=f"{card.name}Variant{digest[:8].upper()}")
        facts = Facts(card, task, len(test), is_simulated(test.source), test.age is not None, shared)
        origin = "simulated showers: its scores belong beside no published ones" if facts.simulated else "public data"
        for layout in layouts:
            target = out / card.name if layout == "airs" else out / layout / card.name
            with atomic_folder(target) as folder:
                checks = LAYOUTS[layout](folder, facts, target.resolve())
            result[str(target.relative_to(out))] = [f"{facts.n_test:,} test showers, {origin}", *checks]
    return result


def write_variants(
    out: Path, tasks: tuple[str, ...], layouts: tuple[str, ...], *, seed: int, n_train: int, n_test: int
) -> dict[str, list[str]]:
    """Write task folders of new showers: constants drawn from the priors of pretraining, the protocol's rules.

    The same seed gives the same showers. It stands in no file, since who knows it can simulate the labels.

    Parameters
    ----------
    seed
        0 or larger; one that nobody guesses.
    n_train, n_test
        Showers of each task; both sets are under the test's cuts.
    """
    from showerstack.models.pretraining.stream import draw_world

    settings, _ = draw_world(np.random.default_rng((VARIANT, seed)))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".variant-") as folder:
        for task in tasks:
            simulate(
                task_named(task), Path(folder), n_train=n_train, n_test=n_test, seed=seed, train_cuts="test",
                settings=settings,
            )  # fmt: skip
        return write_cards(Path(folder), out, tasks, layouts, variant=True)


def _write_data(data: Path, shared: Path, task: Task) -> None:
    splits = {split: Dataset.open(data / f"{task.name}_{split}", task) for split in ("train", "test")}
    train, test = (each.groups for each in splits.values())
    if train is not None and test is not None and np.isin(np.asarray(train), np.asarray(test)).any():
        raise InputError(f"{data}: a shower is in training and test: a card of it would leak")
    for split, opened in splits.items():
        remark = ordering_of(opened).remark(opened.path.name)
        if remark:
            raise InputError(f"{remark}; convert shuffles rows")
        with atomic_folder(shared / split) as folder:
            for name in ARRAYS:
                shutil.copyfile(opened.path / name, folder / name)
            np.save(folder / "labels.npy", np.asarray(opened.labels), allow_pickle=False)
