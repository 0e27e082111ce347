"""Does this installation compute what it should? Known answers of every stage, in about a minute, without a network."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from showerstack.report.shared.text import Finding
from showerstack.runtime.context import Context
from showerstack.runtime.logs import logging_to
from showerstack.scoring.metrics.composition import composition_metrics
from showerstack.scoring.metrics.gamma import gamma_metrics
from showerstack.showers.archives.convert import convert
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig
from showerstack.stacking.events import CORE_COLUMNS
from showerstack.stacking.predict import predict
from showerstack.stacking.run import PREDICTIONS_FILE, load
from showerstack.stacking.train import stack

N_EVENTS = 3_000
"""Events of a generated mode."""
HASHES = {
    "composition": "401f4c50168a9aeec8a85ff32c548fe1eef6a57a54ac3057e3f785d9f08091cc",
    "gamma": "611e821008f6263a1061df4532514a19db5cd95c89e0723fa4b9313a303b2f7a",
}
"""SHA-256 of the arrays that the 2026 protocol makes of :func:`write_archives` archives, training set first."""
CORE_M = 6.0
"""Median distance of fitted and true cores, m, that the fit stays below."""


def selftest(workers: int | None = None) -> Iterator[Finding]:
    """Yield one line for each stage; the state is ``bad`` where an answer is not the known one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task in (COMPOSITION, GAMMA):
            yield _line(f"conversion, {task.name}", lambda task=task: _conversion(folder, task))  # type: ignore[misc]
        yield _line("scorer", _scorer)
        yield _line("features", lambda: _features(folder, workers))
        yield _line("saved run", lambda: _saved_run(folder, workers))


def _line(what: str, check: Callable[[], tuple[bool, str]]) -> Finding:
    try:
        with logging_to(level="ERROR"):  # remarks on made-up archives are none on this installation
            good, answer = check()
    except Exception as error:  # whatever fails here is what the test is for
        good, answer = False, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Finding(what, answer, "ok" if good else "bad")


def write_archives(folder: Path, mode: str, n: int, *, gamma: bool) -> None:
    """Write raw archives of numbers that are the same on every machine: integers and halves, no random generator."""
    row = np.arange(n)

    def spread(factor: int, low: float, high: float) -> np.ndarray:
        return low + (high - low) * ((row * factor + len(mode)) % 1009) / 1024

    features = np.zeros((n, 10))
    features[:, 0] = row % 3 > 0 if gamma else 1 + row * 5 // n
    ranges = ((1, 37, 14, 17), (5, 101, 0, 40), (6, 53, 0, 360), (7, 71, 4.5, 6), (8, 89, 3.5, 5))
    for column, factor, low, high in ranges:
        features[:, column] = spread(factor, low, high)
    features[:, 9] = spread(29, 0.1, 1.6)
    cells = np.arange(16 * 16 * 3).reshape(16, 16, 3)
    matrices = ((row[:, None, None, None] * 31 + cells * 17) % 997 % 61).astype(np.float32)
    np.savez_compressed(folder / f"{mode}_features.npz", features=features)
    np.savez_compressed(folder / f"{mode}_matrices.npz", matrices=matrices)


def converted_hash(folder: Path, task: Task) -> str:
    """Return the SHA-256 of what conversion of generated archives gives."""
    modes = ("qgs_spectra",) if task == COMPOSITION else ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    for mode in modes:
        write_archives(folder, mode, N_EVENTS, gamma=task == GAMMA)
    digest = hashlib.sha256()
    for converted in convert(folder, folder / "converted", task, protocol="2026"):
        for name in ("matrices.npy", "features.npy", str(task.label_file)):
            digest.update(np.load(converted / name).tobytes())
    return digest.hexdigest()


def _conversion(folder: Path, task: Task) -> tuple[bool, str]:
    found = converted_hash(folder, task)
    good = found == HASHES[task.name]
    return good, "arrays of the 2026 protocol are the known ones" if good else f"other arrays than known: {found}"


def _scorer() -> tuple[bool, str]:
    labels = np.arange(5_000) % 5
    energy = np.full(len(labels), 15.2, np.float32)
    perfect = composition_metrics(labels, labels, energy)["mean_fraction_error"]
    constant = composition_metrics(labels, np.zeros_like(labels), energy)["mean_fraction_error"]
    is_hadron = (np.arange(1_100) >= 100).astype(np.int8)
    scores = np.where(is_hadron == 0, np.arange(1_100), -1.0)
    scores[100:107] = 1e6
    lg_energy = np.full(len(scores), 15.2, np.float32)
    survival = gamma_metrics(is_hadron, scores, lg_energy, lg_energy)["key_metric"]
    good = perfect == 0 and abs(constant - 0.32) < 1e-9 and survival == 0.007
    return good, f"perfect {perfect:g} (0), one class {constant:.4f} (0.32), 7 of 1,000 hadrons {survival:g} (0.007)"


def _features(folder: Path, workers: int | None) -> tuple[bool, str]:
    from showerstack.features.build import build_table

    simulate(COMPOSITION, folder / "data", n_train=1_200, n_test=400, seed=1, train_cuts="test", workers=workers)
    data = Dataset.open(folder / "data" / "composition_train", COMPOSITION)
    fitted = build_table(data.path, ctx=Context(workers=workers)).matrix(CORE_COLUMNS)
    truth = data.truth().select("core_x_m", "core_y_m").to_numpy()
    distance = float(np.nanmedian(np.hypot(*(fitted - truth).T)))
    return distance < CORE_M, f"median distance of fitted and true cores {distance:.1f} m (below {CORE_M:g} m)"


def _saved_run(folder: Path, workers: int | None) -> tuple[bool, str]:
    config = StackConfig(
        task=COMPOSITION.name, data=folder / "data", run=folder / "run", preset="quick", workers=workers,
        learners=("quadratic_logit", "lightgbm"), device="cpu",
    )  # fmt: skip
    stack(config)
    again = folder / "again.npz"
    ctx = Context(device="cpu", workers=workers)
    predict(load(config.run), folder / "data" / "composition_test", ctx).write(again)
    with np.load(folder / "run" / PREDICTIONS_FILE) as first, np.load(again) as second:
        good = np.array_equal(first["log_proba"], second["log_proba"])
        n_events = len(first["log_proba"])
    return good, f"{n_events} events predicted again {'to the last bit' if good else 'with other bits'}"
