"""Task folders for composition and gamma, written from a dataset or from new showers, checked by their evaluation.

Layouts are those of AIRS-Bench: ``airs`` as aira-dojo reads it, ``mlgym`` as MLGym does. In both a submission is a text
file of one column, scored by the same ``evaluate.py``. A variant is a task on showers of a world whose constants are
drawn from the priors of pretraining: nobody can have seen it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.schema import Task, task_named
from showerstack.showers.simulation import simulate
from showerstack.showers.source import is_simulated

VARIANT = 9_012_026
"""Keeps the worlds of variants apart from those of pretraining."""
DATASET = "kascade-showers"
SCRIPTS = Path(__file__).parent / "scripts"
ARRAYS = ("matrices.npy", "features.npy")
PERMUTATIONS, SEED = 2, 2026
"""Of the answers by which an evaluation is checked."""


@dataclass(frozen=True)
class Card:
    """What a task folder says."""

    name: str
    metric: str
    header: str
    worst: float
    problem: str
    submission: str
    best: float
    """Published in 2026."""


CARDS = {
    "composition": Card(
        "ShowersCompositionMeanFractionError", "MeanFractionError", "label", 0.32,
        "Mass of the primary of an air shower from the deposits of a detector array",
        "one whole number a row: 0 proton, 1 helium, 2 carbon, 3 silicon, 4 iron", 0.1051,
    ),
    "gamma": Card(
        "ShowersGammaHadronSurvival", "HadronSurvival", "gamma_score", 1.0,
        "Gamma rays among the hadrons: which air showers were begun by a photon",
        "one number a row, higher = more gamma-like", 2.63e-4,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """A card on the showers at hand."""

    card: Card
    task: str
    n_test: int
    simulated: bool
    has_age: bool
    shared: Path
    """``train`` and ``test`` with ``labels.npy``."""

    def evaluation(self) -> str:
        """Return the text of ``evaluate.py``."""
        return (SCRIPTS / f"evaluate_{self.task}.py").read_text(encoding="utf-8")

    def description(self) -> str:
        """Return the task in words, with the evaluation."""
        card = self.card
        scalars = "E (lg eV), zenith and azimuth (degrees), lg Ne, lg Nmu" + (", age" if self.has_age else "")
        return (
            f"# {card.problem}\n\n`data/train` and `data/test` hold `matrices.npy` ({self.n_test} test rows, "
            "16 x 16 stations, channels e/gamma and muon, MeV) and `features.npy` "
            f"({scalars}); `data/train/labels.npy` the classes.\n\n"
            f"Write `submission.csv`: a header `{card.header}`, then {self.n_test} rows in the order of the test: "
            f"{card.submission}. {card.metric} counts, lower is better, 0 is perfect.\n\n"
            f"```python\n{self.evaluation()}```\n"
        )


def write_cards(
    data: Path, out: Path, tasks: tuple[str, ...], layouts: tuple[str, ...] = ("airs",), *, variant: bool = False
) -> dict[str, list[str]]:
    """Write task folders and their shared data, check them, and return what was checked, by folder.

    ``out`` gets ``shared/<dataset>/<task>`` and task folders: ``<name>`` of the layout airs, ``mlgym/<name>``. Where a
    check fails, nothing is left of that folder. The names of a variant end in a hash of the test's readings.
    """
    _refuse_without_card(tasks)
    result = {}
    for task in tasks:
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
                checks = (
                    _write_airs(folder, facts) if layout == "airs" else _write_mlgym(folder, facts, target.resolve())
                )
            result[str(target.relative_to(out))] = [f"{facts.n_test:,} test showers, {origin}", *checks]
    return result


def write_variants(
    out: Path, tasks: tuple[str, ...], layouts: tuple[str, ...], *, seed: int, n_train: int, n_test: int
) -> dict[str, list[str]]:
    """Write task folders of new showers: constants drawn from the priors of pretraining, the protocol's rules.

    The same seed gives the same showers. It stands in no file, since who knows it can simulate the labels: take one
    that nobody guesses. Both sets are under the test's cuts.
    """
    from showerstack.models.pretraining.stream import draw_world

    _refuse_without_card(tasks)
    settings, _ = draw_world(np.random.default_rng((VARIANT, seed)))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".variant-") as folder:
        for task in tasks:
            simulate(
                task_named(task), Path(folder), n_train=n_train, n_test=n_test, seed=seed, train_cuts="test",
                settings=settings,
            )  # fmt: skip
        return write_cards(Path(folder), out, tasks, layouts, variant=True)


def _refuse_without_card(tasks: tuple[str, ...]) -> None:
    if others := [task for task in tasks if task not in CARDS]:
        raise InputError(f"task {others[0]!r} has no card: choose from {', '.join(CARDS)}")


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


def _write_airs(folder: Path, facts: Facts) -> list[str]:
    """Write metadata, description and scripts; return what was checked by them."""
    card = facts.card
    (folder / "evaluate.py").write_text(facts.evaluation(), encoding="utf-8")
    for name in ("prepare.py", "evaluate_prepare.py", "custom_labels.py"):
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        for word, value in (("DATASET", DATASET), ("CONFIG", facts.task), ("HEADER", card.header)):
            text = text.replace(word, value)
        (folder / name).write_text(text, encoding="utf-8")
    sota = {
        "sota_score": card.best,
        "sota_year": 2026,
        "sota_venue": "benchmark paper of 2026, best of 50 attempts, chosen on the test set",
    }
    info = {
        "name": card.name,
        "dataset": DATASET,
        "config": facts.task,
        "metric": card.metric,
        "shape": f"({facts.n_test},)",
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
        "sota": [] if facts.simulated else [sota],
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
    _write_yaml(folder / "metadata.yaml", metadata)
    (folder / "project_description.md").write_text(facts.description(), encoding="utf-8")
    trial, shared = folder / "trial", ("--global-shared-data-dir", facts.shared.parents[1])
    data = trial / "data"
    trial.mkdir()
    _run_script(folder / "custom_labels.py", *shared, "--output-directory", trial, at=trial)
    gold = (trial / "gold_submission.csv").read_text()
    _run_script(folder / "prepare.py", *shared, "--agent-data-mount-dir", data, at=trial)
    if (data / "test" / "labels.npy").exists():
        raise InputError(f"{card.name}: the prepared test has labels")

    def score(submission: str) -> float:
        (trial / "submission.csv").write_text(submission)
        folders = ("--agent-data-mount-dir", data, "--agent-log-dir", trial)
        _run_script(folder / "evaluate_prepare.py", *shared, *folders, at=folder)
        return _evaluate(folder / "evaluate.py", folder / "submission.csv", card.metric, at=trial)

    checks = _check_scores(gold, score, card)
    (folder / "submission.csv").unlink()
    shutil.rmtree(trial)
    return checks


def _write_mlgym(folder: Path, facts: Facts, target: Path) -> list[str]:
    """Write configurations, the evaluation and the data that the agent may see."""
    card = facts.card
    for part in ("configs/tasks", "configs/datasets", "data", "prepared/train", "prepared/test"):
        (folder / part).mkdir(parents=True)
    (folder / "data" / "evaluate.py").write_text(facts.evaluation(), encoding="utf-8")
    (folder / "data" / "requirements.txt").write_text("numpy\nscikit-learn\n")
    for split, names in (("train", (*ARRAYS, "labels.npy")), ("test", ARRAYS)):
        for name in names:
            source, copy = facts.shared / split / name, folder / "prepared" / split / name
            try:
                os.link(source, copy)
            except OSError:
                shutil.copyfile(source, copy)
    data_folder = f"data/{card.name}"
    task = {
        "id": card.name,
        "name": card.name,
        # Braces are places to be filled in; {dataset_docs} is one of MLGym's own.
        "description": facts.description().replace("{", "{{").replace("}", "}}") + "\n{dataset_docs}",
        "dataset_configs": [f"datasets/{DATASET}-{facts.task}.yaml"],
        "task_entrypoint": "CSVSubmissionTasks",
        "training_timeout": 3600,
        "eval_timeout": 600,
        "metric_lower_is_better": True,
        "requirements_path": f"{data_folder}/requirements.txt",
        "use_generic_conda": False,
        "use_separate_eval_container": True,
        "cleanup_eval_on_failure": False,
        "starter_code": [f"{data_folder}/evaluate.py"],
        "evaluation_paths": ["evaluate.py"],
        "evaluation_read_only": True,
        "memory_path": f"{data_folder}/memory.json",
    }
    _write_yaml(folder / "configs" / "tasks" / f"{card.name}.yaml", task)
    dataset = {
        "name": f"{DATASET}-{facts.task}",
        "description": "matrices.npy: (n, 16, 16, 2) MeV; features.npy: (n, F); train/labels.npy: (n,) classes",
        "data_path": str(target / "prepared"),
        "is_local": True,
    }
    _write_yaml(folder / "configs" / "datasets" / f"{DATASET}-{facts.task}.yaml", dataset)
    trial = folder / "trial"
    (trial / "data" / "test_with_labels").mkdir(parents=True)
    shutil.copyfile(facts.shared / "test" / "labels.npy", trial / "data" / "test_with_labels" / "labels.npy")

    def score(submission: str) -> float:
        (trial / "submission.csv").write_text(submission)
        return _evaluate(folder / "data" / "evaluate.py", trial / "submission.csv", card.metric, at=trial)

    labels = np.load(facts.shared / "test" / "labels.npy", allow_pickle=False).astype(int)
    answers = labels if facts.task == "composition" else 1 - labels
    checks = _check_scores("\n".join([card.header, *map(str, answers)]) + "\n", score, card)
    shutil.rmtree(trial)
    return checks


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    # JSON is YAML: what reads the one reads the other.
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _check_scores(gold: str, score: Callable[[str], float], card: Card) -> list[str]:
    """Score the gold submission, which must be perfect, and two with rows exchanged: worse and different."""
    header, *rows = gold.splitlines()
    rng = np.random.default_rng(SEED)
    scores = []
    for k in range(1 + PERMUTATIONS):
        scores.append(score("\n".join([header, *_exchange_rows(np.array(rows), k, rng)]) + "\n"))
    if scores[0] != 0.0 or min(scores[1:]) <= 0.0 or len(set(scores)) != len(scores):
        raise InputError(f"{card.name}: gold and exchanged submissions score {scores}, expected 0 and worse ones")
    exchanged = ", ".join(f"{value:.4f}" for value in scores[1:])
    return [
        f"gold {scores[0]:g}, with rows exchanged {exchanged}",
        "rows are not ordered by class, the prepared test has no labels, no shower is in both splits as far as known",
    ]


def _evaluate(script: Path, submission: Path, metric: str, at: Path) -> float:
    printed = _run_script(script, "--submission-file", submission, at=at)
    return float(json.loads(printed.split("--- EVALUATION RESULT ---")[1])[metric])


def _exchange_rows(gold: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the gold answers (N,) with ``k`` tenths of the rarest one's rows exchanged with rows of others.

    A permutation of all rows would leave every threshold on two tied scores at the lower one, and say nothing.
    """
    values, counts = np.unique(gold, return_counts=True)
    rare = gold == values[counts.argmin()]
    n = k * max(1, int(counts.min()) // 10)
    one, other = (rng.permutation(np.flatnonzero(rows))[:n] for rows in (rare, ~rare))
    exchanged = gold.copy()
    exchanged[one], exchanged[other] = gold[other], gold[one]
    return exchanged


def _run_script(script: Path, *arguments: str | Path, at: Path) -> str:
    words = [str(a.resolve()) if isinstance(a, Path) else a for a in arguments]
    # No byte code: it would be left in the task folder.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(script.resolve()), *words]
    finished = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True)
    if finished.returncode:
        reason = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{script.name} failed: {reason}")
    return finished.stdout
