"""Layouts of task folders for evaluations of agents, each with its own check.

``airs`` is AIRS-Bench's as aira-dojo reads it, ``mlgym`` AIRS-Bench's as MLGym reads it. In both a submission is a text
file of one column, scored by the same ``evaluate.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError

DATASET = "kascade-showers"
SCRIPTS = Path(__file__).parent / "scripts"
PERMUTATIONS = 2
SEED = 2026
ARRAYS = ("matrices.npy", "features.npy")
MINUTES = 60.0


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

    def script(self, name: str) -> str:
        """Return a script with this task's words."""
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        for word, value in (("DATASET", DATASET), ("CONFIG", self.task), ("HEADER", self.card.header)):
            text = text.replace(word, value)
        return text

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


def _write_airs(folder: Path, facts: Facts, target: Path) -> list[str]:
    card = facts.card
    (folder / "evaluate.py").write_text(facts.evaluation(), encoding="utf-8")
    for name in ("prepare.py", "evaluate_prepare.py", "custom_labels.py"):
        (folder / name).write_text(facts.script(name), encoding="utf-8")
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
        "sota": [] if facts.simulated else [card.sota],
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
    shared_root = facts.shared.parents[1]
    trial = folder / "trial"
    data = trial / "data"
    trial.mkdir()
    _run_script(
        folder / "custom_labels.py", "--global-shared-data-dir", shared_root, "--output-directory", trial, at=trial
    )
    gold = (trial / "gold_submission.csv").read_text()
    _run_script(
        folder / "prepare.py", "--global-shared-data-dir", shared_root, "--agent-data-mount-dir", data, at=trial
    )
    if (data / "test" / "labels.npy").exists():
        raise InputError(f"{card.name}: the prepared test has labels")

    def score(submission: str) -> float:
        (trial / "submission.csv").write_text(submission)
        _run_script(
            folder / "evaluate_prepare.py", "--global-shared-data-dir", shared_root, "--agent-data-mount-dir", data,
            "--agent-log-dir", trial, at=folder,
        )  # fmt: skip
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
    _link(facts.shared, folder / "prepared")
    data_folder = f"data/{card.name}"
    task = {
        "id": card.name,
        "name": card.name,
        # Braces are places to be filled in; {dataset_docs} is one of MLGym's own.
        "description": facts.description().replace("{", "{{").replace("}", "}}") + "\n{dataset_docs}",
        "dataset_configs": [f"datasets/{DATASET}-{facts.task}.yaml"],
        "task_entrypoint": "CSVSubmissionTasks",
        "training_timeout": int(60 * MINUTES),
        "eval_timeout": int(10 * MINUTES),
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
    about = {"matrices.npy": "(n, 16, 16, 2) MeV", "features.npy": "(n, F)", "train/labels.npy": "(n,) classes"}
    dataset = {
        "name": f"{DATASET}-{facts.task}",
        "description": "; ".join(f"{name}: {what}" for name, what in about.items()),
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

    checks = _check_scores(_gold(facts), score, card)
    shutil.rmtree(trial)
    return checks


LAYOUTS: dict[str, Callable[[Path, Facts, Path], list[str]]] = {
    "airs": _write_airs,
    "mlgym": _write_mlgym,
}
"""Writes a folder of a layout; gets the folder, what to say, and the place where it will lie."""


def _link(shared: Path, target: Path) -> None:
    """Put what an agent may see into ``train`` and ``test``, without copying where the disk can."""
    for split, names in (("train", (*ARRAYS, "labels.npy")), ("test", ARRAYS)):
        for name in names:
            try:
                os.link(shared / split / name, target / split / name)
            except OSError:
                shutil.copyfile(shared / split / name, target / split / name)


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    # JSON is YAML: what reads the one reads the other.
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _gold(facts: Facts) -> str:
    """Return the submission that scores perfectly."""
    labels = np.load(facts.shared / "test" / "labels.npy", allow_pickle=False)
    values = [str(int(label)) if facts.card.header == "label" else str(1 - int(label)) for label in labels]
    return "\n".join([facts.card.header, *values]) + "\n"


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
