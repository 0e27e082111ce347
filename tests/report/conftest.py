"""A synthetic run folder and test set, so that the report's tests need no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from showerstack.report.run_page import write_report
from showerstack.runtime.files import write_json, write_npz
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.writer import write_dataset
from showerstack.stacking.folder import RunFolder

CLASS_SHIFT = 0.9
"""Distance of neighbouring classes on the hidden axis, in standard deviations: accuracy about one half."""


def posteriors(labels: np.ndarray, n_classes: int, rng: np.random.Generator, noise: float) -> np.ndarray:
    """Posteriors (N, C) of a hidden Gaussian variable whose mean is the label: calibrated when noise is 1."""
    x = labels * CLASS_SHIFT + rng.normal(0, noise, len(labels))
    log_density = -0.5 * ((x[:, None] - CLASS_SHIFT * np.arange(n_classes)) / noise) ** 2
    return log_density - np.logaddexp.reduce(log_density, axis=1, keepdims=True)


LEARNER = {
    "status": "ok", "error": None, "features": ["E", "Ze", "Ne", "Nmu"], "needs_grid": False, "source": "showerstack",
    "n_parameters": None, "one_network": None, "log_loss": None, "accuracy": None,
}  # fmt: skip
"""A manifest's entry of a learner."""


def make_dataset(folder: Path, task: Task, labels: np.ndarray, rng: np.random.Generator) -> Path:
    """Write a dataset folder with plausible scalars and sparse grids."""
    n = len(labels)
    energy = 15 + rng.exponential(0.45, n).clip(0, 2.9)
    n_e = energy - 10.2 + rng.normal(0, 0.15, n)
    per_class = 0.0 if task.target else 0.06 if task.name == COMPOSITION.name else 1.0
    n_mu = energy - 11 + per_class * labels + rng.normal(0, 0.1, n)
    scalars = np.stack([energy, rng.uniform(0, 29.9, n), rng.uniform(0, 360, n), n_e, n_mu], axis=1)
    grids = rng.gamma(1.0, 30.0, (n, 16, 16, 2)) * (rng.random((n, 16, 16, 2)) < 0.4)
    grids[:, 4:12, 4:12, 1] = 0
    grids[:, 7:9, 7:9] = 0
    source = {
        "generator": "showers.simulation",
        "protocol": "v2",
        "evaluation_cuts": "test",
        "age": False,
        "model": "mix",
        "seed": 1,
    }
    with write_dataset(folder, n, task, source=source) as writer:
        writer.put(0, grids.astype(np.float16), scalars.astype(np.float16), labels.astype(task.label_type))
    return folder


def make_run(run: Path, task: Task, labels: np.ndarray, rng: np.random.Generator, *, train: Path, test: Path) -> Path:
    """Write a run folder by the contract, with three learners of rising quality."""
    n_classes = task.n_classes
    entries = {}
    for name, noise in (("random_forest", 1.3), ("lightgbm", 1.1), ("mlp", 1.0)):
        entries[name] = posteriors(labels, n_classes, rng, noise)
    entries["average"] = np.mean(list(entries.values()), axis=0)
    entries["average"] -= np.logaddexp.reduce(entries["average"], axis=1, keepdims=True)
    entries["stack"] = entries["mlp"]
    for name, log_proba in entries.items():
        arrays = {"log_proba": log_proba}
        if task.name == COMPOSITION.name:
            arrays["predictions"] = log_proba.argmax(axis=1).astype(np.int8)
        else:
            arrays["scores"] = log_proba[:, 0] - log_proba[:, 1] + 0.5
        write_npz(run / "test" / f"{name}.npz", **arrays)
    stack = entries["stack"]
    key = "predictions" if task.name == COMPOSITION.name else "gamma_scores"
    shifted = (stack + 0.05 * np.arange(n_classes)).argmax(axis=1).astype(np.int8)
    chosen = shifted if task.name == COMPOSITION.name else arrays["scores"]
    origin = {"config_hash": "c0ffee", "test_fingerprint": Dataset.open(test, labels=False).fingerprint()}
    write_npz(run / "predictions.npz", log_proba=stack, **{key: chosen}, **{k: np.array(v) for k, v in origin.items()})
    write_json(run / "manifest.json", _manifest(task, list(entries)[:3], len(labels), train, test))
    RunFolder(run).write_checksums()
    return run


def _manifest(task: Task, learners: list[str], n_test: int, train: Path, test: Path) -> dict:
    return {
        "complete": True,
        "task": task.name,
        "classes": list(task.classes),
        "config": {"task": task.name, "preset": "quick", "folds": 3, "seed": 1},
        "config_hash": "c0ffee",
        "seed": 1,
        "data": {
            "train": str(train),
            "test": str(test),
            "train_fingerprint": "a" * 64,
            "test_fingerprint": Dataset.open(test, labels=False).fingerprint(),
            "n_train": 5 * n_test,
            "n_test": n_test,
        },
        "versions": {"numpy": np.__version__},
        "git_revision": "0" * 40,
        "device": "cpu",
        "learners": [
            LEARNER | {"name": name, "log_loss": 1.1, "accuracy": 0.5, "n_parameters": 1000} for name in learners
        ]
        + [LEARNER | {"name": "lenet", "status": "failed", "error": "out of memory"}],
        "judged": {"on": "held-out events", "events": n_test, "fits": 3},
        "pool": {"chosen": "average", "weights": dict.fromkeys(learners, 1 / 3), "log_losses": {}, "left_out": []},
        "remarks": [],
        "identity": {"folds": 3, "repeats": 1},
        "started": "2026-01-01 00:00 UTC",
        "machine": "Linux",
        "command": None,
        "gate": {
            "shipped": True,
            "reason": "the log-loss of the stack is 0.004 ± 0.001 lower than that of mlp",
            "gain": 0.004,
            "standard_error": 0.001,
            "claimed": True,
            "best_learner": "mlp",
        },
        "decision": {"chosen": "argmax"},
        "steps": [
            {"step": "fit", "learner": name, "fold": fold, "wall_s": 12.0, "cpu_s": 11.0, "peak_mb": 400.0}
            for name in learners
            for fold in range(3)
        ],
    }


def make_world(folder: Path, task: Task, n_test: int, seed: int = 5) -> tuple[Path, Path]:
    """Write a test set and a run on it; return (run, data)."""
    rng = np.random.default_rng(seed)
    if task.name == COMPOSITION.name:
        labels = rng.integers(0, task.n_classes, n_test)
    else:
        labels = (rng.random(n_test) > 0.1).astype(np.int64)
    labels[: task.n_classes] = np.arange(task.n_classes)
    test = make_dataset(folder / "data" / f"{task.name}_test", task, labels, rng)
    run = make_run(folder / "runs" / task.name, task, labels, rng, train=folder / "data" / "none", test=test)
    return run, folder / "data"


@pytest.fixture(scope="session")
def composition_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(run, data) with 3,000 test showers."""
    return make_world(tmp_path_factory.mktemp("composition"), COMPOSITION, 3000)


@pytest.fixture(scope="session")
def gamma_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(run, data) with 3,000 test showers."""
    return make_world(tmp_path_factory.mktemp("gamma"), GAMMA, 3000)


@pytest.fixture(scope="session")
def composition_report(composition_world: tuple[Path, Path]) -> Path:
    """The report of ``composition_world``, written once."""
    return write_report(*composition_world)


@pytest.fixture(scope="session")
def gamma_report(gamma_world: tuple[Path, Path]) -> Path:
    """The report of ``gamma_world``, written once."""
    return write_report(*gamma_world)
