"""How long scoring takes at the benchmark's size, beside the metric's plain definition, in one run.

Synthetic labels and predictions of the public test sets' sizes are written to a temporary folder. Measured alternately:
the whole ``python verify.py`` process with and without intervals, the scoring inside it, and the definition written
out plainly with ``rng.choice`` (without intervals, without reading files). On a busy machine the CPU time is the fair
comparison.

    OMP_NUM_THREADS=1 python benchmarks/speed/verify_speed.py
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from showerstack.scoring.metrics.composition import ENERGY_BINS, SEED, composition_metrics, mixture_counts
from showerstack.scoring.metrics.gamma import gamma_metrics
from showerstack.scoring.score import read_output, score_arrays
from showerstack.scoring.tasks.truth import read_truth
from showerstack.showers.schema import COMPOSITION, GAMMA

ROOT = Path(__file__).resolve().parents[2]
EVENTS = {"composition": 119_027, "gamma": 35_751}
N_GAMMA = 1_514
LIMIT_S = 5.0
"""What the whole process may take."""


def write_sets(folder: Path, seed: int) -> None:
    """Write both test sets and predictions of realistic quality."""
    rng = np.random.default_rng(seed)
    for task, n in EVENTS.items():
        if task == "composition":
            labels = rng.choice(5, n, p=[0.276, 0.226, 0.185, 0.164, 0.149])
            output = {"predictions": np.clip(labels + rng.integers(-1, 2, n), 0, 4).astype(np.int8)}
        else:
            labels = (rng.permutation(n) >= N_GAMMA).astype(np.int64)
            output = {"gamma_scores": rng.normal(5.0 * (labels == 0), 1.0)}
        energy = 15 + rng.exponential(0.45, n).clip(0, 2.9)
        scalars = np.stack([energy, rng.uniform(0, 30, n), rng.uniform(0, 360, n), energy - 10, energy - 11], axis=1)
        place = folder / f"{task}_test"
        place.mkdir()
        np.save(place / f"labels_{task}.npy", labels.astype(np.int8))
        np.save(place / "features.npy", scalars.astype(np.float16))
        np.savez(folder / f"{task}.npz", **output)


def plain_composition(labels: np.ndarray, predicted: np.ndarray, energy: np.ndarray) -> list[float]:
    """The definition, plainly: overall and by energy bin."""

    def error(truth: np.ndarray, guess: np.ndarray, rng: np.random.Generator) -> float:
        indices = [np.flatnonzero(truth == k) for k in range(5)]
        errors = []
        for counts in mixture_counts(5):
            drawn = [
                guess[rng.choice(members, size=n, replace=True)]
                for members, n in zip(indices, counts, strict=True)
                if n
            ]
            tally = np.bincount(np.concatenate(drawn), minlength=5)
            errors.append(np.abs(counts / 5000 - tally / 5000))
        return float(np.mean(errors))

    result = [error(labels, predicted, np.random.default_rng(SEED))]
    shared = np.random.default_rng(SEED)
    for low, high in ENERGY_BINS:
        inside = (energy >= low) & (energy < high)
        if inside.any() and len(np.unique(labels[inside])) == 5:
            result.append(error(labels[inside], predicted[inside], shared))
    return result


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock and CPU time of one call, child processes included."""

    def cpu() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    started, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - started, cpu() - before


def process(folder: Path, task: str, *options: str) -> None:
    """Run the command as a user does."""
    command = [sys.executable, "verify.py", "--task", task, "--data", folder, folder / f"{task}.npz", *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Measure, print, and return 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sets(folder, options.seed)
        work: dict[str, Callable[[], object]] = {}
        for task in (COMPOSITION, GAMMA):
            truth = read_truth(folder, task)
            output, _ = read_output(folder / f"{task.name}.npz", task, len(truth.labels))
            if task is COMPOSITION:
                args = (truth.labels, output, truth.energy)
                ours = composition_metrics(*args)
                bins = [row["fraction_error"]["mean_fraction_error"] for row in ours["energy_binned"].values()]
                np.testing.assert_allclose([ours["mean_fraction_error"], *bins], plain_composition(*args), atol=1e-12)
                work["composition: plain definition"] = lambda args=args: plain_composition(*args)
                work["composition: all metrics"] = lambda args=args: composition_metrics(*args)
            else:
                scored = (truth.labels, output, truth.energy, truth.zenith_deg)
                work["gamma: all metrics"] = lambda scored=scored: gamma_metrics(*scored)
            both = (truth, output, task)
            work[f"{task.name}: all metrics with intervals"] = lambda both=both: score_arrays(*both)
            for option in ((), ("--no-intervals",)):
                label = f"{task.name}: python verify.py {' '.join(option)}".rstrip()
                work[label] = lambda task=task, option=option: process(folder, task.name, *option)
        times: dict[str, list[tuple[float, float]]] = {label: [] for label in work}
        for _ in range(options.repeats):
            for label, call in work.items():
                times[label].append(seconds(call))
    print(
        f"{EVENTS['composition']:,} and {EVENTS['gamma']:,} events, {options.repeats} rounds, seconds: median (range)"
    )
    print(f"{'':<48} {'wall-clock':>22} {'CPU time':>22}")
    for label, result in times.items():
        spans = [
            f"{np.median(column):.3f} ({min(column):.3f}-{max(column):.3f})" for column in zip(*result, strict=True)
        ]
        print(f"{label:<48} {spans[0]:>22} {spans[1]:>22}")
    plain, ours = (
        np.array(times[f"composition: {label}"])[:, 1] for label in ("plain definition", "all metrics with intervals")
    )
    ratio = plain / ours
    print(
        "CPU time of the plain definition / ours with intervals: "
        f"{np.median(ratio):.2f} ({ratio.min():.2f}-{ratio.max():.2f})"
    )
    slow = [label for label in times if "verify.py" in label and np.median(times[label], axis=0)[0] > LIMIT_S]
    for label in slow:
        print(f"above {LIMIT_S} s: {label}")
    return 1 if slow or np.median(ratio) < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
