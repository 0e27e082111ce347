"""Task folders for composition and gamma, written from a dataset and checked by their own evaluation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from report.public.crate import CRATE_FILE, CROISSANT_FILE, MEANINGS, croissant, data_crate
from runtime.errors import InputError
from runtime.files import atomic_folder, write_json
from showers.dataset import Dataset, is_simulated, ordering_of
from showers.schema import Task, task_named

DATASET = "kascade-showers"
HERE = Path(__file__).parent / "scripts"
PERMUTATIONS = 2
SEED = 2026


@dataclass(frozen=True)
class Card:
    """What a task folder says."""

    name: str
    metric: str
    header: str
    worst: float
    problem: str
    submission: str
    sota: dict[str, Any]


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


def write_cards(data: Path, out: Path, tasks: tuple[str, ...]) -> dict[str, list[str]]:
    """Write task folders and their shared data, check them, and return what was checked, by folder.

    Parameters
    ----------
    data
        Folder with ``{task}_train`` and ``{task}_test``.
    out
        Gets ``<task folder>`` and ``shared/<dataset>/<task>``.
    tasks
        ``composition``, ``gamma``.

    Raises
    ------
    InputError
        If a task has no card, data cannot be read, or a check fails: nothing is then left of that task.
    """
    result = {}
    for task in tasks:
        if task not in CARDS:
            raise InputError(f"task {task!r} has no card: choose from {', '.join(CARDS)}")
        card = CARDS[task]
        shared = out / "shared" / DATASET / task
        _write_data(data, shared, task_named(task))
        write_json(shared / CROISSANT_FILE, croissant(shared, f"{DATASET}-{task}", card.problem))
        write_json(shared / CRATE_FILE, _crate(data, shared, task))
        with atomic_folder(out / card.name) as folder:
            n_test, simulated = _write_folder(folder, card, task, data)
            checks = _checked(folder, out / "shared", shared, card)
        origin = "simulated showers: its scores belong beside no published ones" if simulated else "public data"
        result[card.name] = [f"{n_test:,} test showers, {origin}", *checks]
    return result


def _crate(data: Path, shared: Path, task: str) -> dict[str, Any]:
    meanings = {f"{split}/{file}": words for split in ("train", "test") for file, words in MEANINGS.items()}
    meanings[CROISSANT_FILE] = "the same data described as Croissant 1.0"
    simulated = is_simulated(Dataset.open(data / f"{task}_test", labels=False).source)
    return data_crate(shared, f"{DATASET}-{task}", meanings, simulated=simulated)


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
            for name in ("matrices.npy", "features.npy"):
                shutil.copyfile(opened.path / name, folder / name)
            np.save(folder / "labels.npy", np.asarray(opened.labels), allow_pickle=False)


def _write_folder(folder: Path, card: Card, task: str, data: Path) -> tuple[int, bool]:
    test = Dataset.open(data / f"{task}_test", task_named(task))
    evaluate = (HERE / f"evaluate_{task}.py").read_text(encoding="utf-8")
    (folder / "evaluate.py").write_text(evaluate, encoding="utf-8")
    for name in ("prepare.py", "evaluate_prepare.py", "custom_labels.py"):
        text = (HERE / name).read_text(encoding="utf-8")
        for word, value in (("DATASET", DATASET), ("CONFIG", task), ("HEADER", card.header)):
            text = text.replace(word, value)
        (folder / name).write_text(text, encoding="utf-8")
    simulated = is_simulated(test.source)
    info = {
        "name": card.name,
        "dataset": DATASET,
        "config": task,
        "metric": card.metric,
        "shape": f"({len(test)},)",
        "input_columns": ["matrices", "features"],
        "scoring_column": card.header,
        "train_split": "train",
        "test_split": "test",
        "category": "Astroparticle physics",
        "research_problem": card.problem,
        "output_type": card.submission,
        "custom_gold_labels": True,
        "custom_rad_class": False,
        "dataset_paper_url": "https://doi.org/10.1088/1748-0221/19/01/P01025",
        "sota": [] if simulated else [card.sota],
        "estimated_worst_score": card.worst,
        "optimal_score": 0.0,
    }
    metadata = {
        "metric_lower_is_better": True,
        "file_export_globs": ["submission.csv"],
        "container_python_requirements": ["numpy"],
        "evaluate_container_python_requirements": ["numpy"],
        "logging_info": info,
    }
    # JSON is YAML: what reads the one reads the other.
    (folder / "metadata.yaml").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    scalars = "E (lg eV), zenith and azimuth (degrees), lg Ne, lg Nmu" + (", age" if test.age is not None else "")
    (folder / "project_description.md").write_text(
        f"# {card.problem}\n\n`data/train` and `data/test` hold `matrices.npy` ({len(test)} test rows, 16 x 16 "
        f"stations, channels e/gamma and muon, MeV) and `features.npy` ({scalars}); `data/train/labels.npy` the "
        "classes.\n\n"
        f"Write `submission.csv`: a header `{card.header}`, then {len(test)} rows in the order of the test: "
        f"{card.submission}. {card.metric} counts, lower is better, 0 is perfect.\n\n```python\n{evaluate}```\n",
        encoding="utf-8",
    )
    return len(test), simulated


def _checked(folder: Path, shared_root: Path, shared: Path, card: Card) -> list[str]:
    """Run the folder's scripts: gold must be perfect, submissions with rows exchanged worse and different."""
    trial = folder / "trial"
    trial.mkdir()
    _python(folder / "custom_labels.py", "--global-shared-data-dir", shared_root, "--output-directory", trial, at=trial)
    gold = (trial / "gold_submission.csv").read_text().splitlines()
    data = trial / "data"
    _python(folder / "prepare.py", "--global-shared-data-dir", shared_root, "--agent-data-mount-dir", data, at=trial)
    if (data / "test" / "labels.npy").exists():
        raise InputError(f"{card.name}: the prepared test has labels")
    rng = np.random.default_rng(SEED)
    scores = []
    for k in range(1 + PERMUTATIONS):
        rows = _exchanged(np.array(gold[1:]), k, rng)
        (trial / "submission.csv").write_text("\n".join([gold[0], *rows]) + "\n")
        _python(
            folder / "evaluate_prepare.py", "--global-shared-data-dir", shared_root, "--agent-data-mount-dir", data,
            "--agent-log-dir", trial, at=folder,
        )  # fmt: skip
        log_proba = _python(folder / "evaluate.py", "--submission-file", folder / "submission.csv", at=trial)
        scores.append(float(json.loads(log_proba.split("--- EVALUATION RESULT ---")[1])[card.metric]))
    (folder / "submission.csv").unlink()
    shutil.rmtree(trial)
    if scores[0] != 0.0 or min(scores[1:]) <= 0.0 or len(set(scores)) != len(scores):
        raise InputError(f"{card.name}: gold and exchanged submissions score {scores}, expected 0 and worse ones")
    exchanged = ", ".join(f"{score:.4f}" for score in scores[1:])
    return [
        f"gold {scores[0]:g}, with rows exchanged {exchanged}",
        "rows are not ordered by class, the prepared test has no labels, no shower is in both splits as far as known",
    ]


def _exchanged(gold: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the gold answers (N,) with ``k`` tenths of the rarest one's rows exchanged with rows of others.

    A permutation of all rows would leave every threshold on two tied scores at the lower one, and say nothing.
    """
    values, counts = np.unique(gold, return_counts=True)
    rare = gold == values[counts.argmin()]
    n = k * max(1, int(counts.min()) // 10)
    one, other = (rng.permutation(np.flatnonzero(rows))[:n] for rows in (rare, ~rare))
    result = gold.copy()
    result[one], result[other] = gold[other], gold[one]
    return result


def _python(script: Path, *arguments: str | Path, at: Path) -> str:
    words = [str(a.resolve()) if isinstance(a, Path) else a for a in arguments]
    command = [sys.executable, str(script.resolve()), *words]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{script.name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
