"""Newton's method beside L-BFGS for the convex fits of the second level: the same loss, in how much processor time?

    OMP_NUM_THREADS=1 python benchmarks/speed/newton.py --run demo/runs/composition --rounds 5

On the out-of-fold posteriors of a finished run: the logistic meta-learner over all learners, and the matrix calibration
of each learner. Both methods minimise the same penalised loss from the same start with analytic gradients and stop at
the same relative decrease (``scipy.optimize.minimize(method="L-BFGS-B")`` is the other one); they take turns. Printed
are the processor time of each, the ratio with a 95 % interval over rounds, and by how much the losses reached differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.stats import t as student_t

from benchmarks.learning.stack import markdown
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.errors import InputError
from showerstack.showers.dataset import Dataset
from showerstack.stacking.fit.folds import subsampled
from showerstack.stacking.inputs.events import class_numbers
from showerstack.stacking.meta.calibration import MATRIX_L2
from showerstack.stacking.meta.corrections import LOGISTIC_L2_EVENTS
from showerstack.stacking.meta.softmax import MAX_ITERATIONS, TOLERANCE, fit_linear
from showerstack.stacking.run.read import Run

Fitted = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Time both on every fit and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a finished run")
    parser.add_argument("--rounds", type=int, default=5, help="at least two")
    options = parser.parse_args()
    names, log_proba, labels = out_of_fold(options.run)
    n_events, n_classes = log_proba.shape[1:]
    stacked = np.concatenate(list(log_proba), axis=1)
    fits = {
        f"logistic meta-learner of {len(names)} learners": (
            stacked, np.tile(np.eye(n_classes) / len(names), (len(names), 1)), LOGISTIC_L2_EVENTS / n_events,
        )
    }  # fmt: skip
    l2 = MATRIX_L2 * n_classes * (n_classes - 1) / n_events
    fits |= {f"matrix of {name}": (z, np.eye(n_classes), l2) for name, z in zip(names, log_proba, strict=True)}
    rows = []
    for what, (inputs, centre, strength) in fits.items():
        seconds: dict[str, list[float]] = {"newton": [], "lbfgs": []}
        for _ in range(options.rounds):
            ours, took = timed(lambda: fit_linear(inputs, labels, centre, l2=strength))  # noqa: B023
            seconds["newton"].append(took)
            theirs, took = timed(lambda: lbfgs(inputs, labels, centre, strength))  # noqa: B023
            seconds["lbfgs"].append(took)
        gap = penalised(inputs, labels, centre, strength, ours) - penalised(inputs, labels, centre, strength, theirs)
        newton, other = np.array(seconds["newton"]), np.array(seconds["lbfgs"])
        logs = np.log(other / newton)
        half = student_t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
        low, ratio, high = np.exp(logs.mean() + np.array([-half, 0.0, half]))
        rows.append(
            [what, f"{newton.mean():.2f}", f"{other.mean():.2f}", f"{ratio:.1f} [{low:.1f}, {high:.1f}]", f"{gap:+.1e}"]
        )
        print(" | ".join(rows[-1]), flush=True)
    print(f"\n{n_events:,} events, {n_classes} classes, {options.rounds} rounds\n")
    print(markdown(["fit", "Newton, CPU s", "L-BFGS, CPU s", "ratio", "loss, Newton minus L-BFGS"], rows))


def out_of_fold(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return a run's learners, their (L, N, C) out-of-fold log-probabilities and the (N,) class numbers."""
    run = Run.open(folder)
    names = list(run.learners)
    every, folds = zip(*map(run.oof, names), strict=True)
    z = np.stack(every)
    known = np.isfinite(z).all(axis=(0, 2)) & (folds[0] >= 0)
    if not known.any():
        raise InputError(f"{folder} keeps no out-of-fold posteriors")
    labels = class_numbers(Dataset.open(Path(run.manifest["data"]["train"]), run.task, labels=True))
    return names, z[:, known].astype(np.float64), labels[known]


def timed(fit: Callable[[], Fitted]) -> tuple[Fitted, float]:
    """Return what a fit returns and its processor time in seconds."""
    begun = time.process_time()
    result = fit()
    return result, time.process_time() - begun


def lbfgs(inputs: np.ndarray, labels: np.ndarray, centre: np.ndarray, l2: float) -> Fitted:
    """Fit what :func:`showerstack.stacking.meta.softmax.fit_linear` fits, by SciPy."""
    thin = subsampled(len(labels))
    x, y = inputs[thin], labels[thin]
    start = np.vstack([centre, np.zeros(centre.shape[1])])
    events = np.arange(len(y))

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(start.shape)
        log_proba = log_softmax(x @ theta[:-1] + theta[-1])
        slope = np.exp(log_proba)
        slope[events, y] -= 1.0
        slope /= len(y)
        away = theta - start
        gradient = np.vstack([x.T @ slope, slope.sum(axis=0)]) + l2 * away
        return -float(log_proba[events, y].mean()) + 0.5 * l2 * float((away**2).sum()), gradient.ravel()

    limits = {"maxiter": MAX_ITERATIONS, "ftol": TOLERANCE}
    theta = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=limits).x.reshape(start.shape)
    return theta[:-1], theta[-1]


def penalised(inputs: np.ndarray, labels: np.ndarray, centre: np.ndarray, l2: float, fitted: Fitted) -> float:
    """Return the loss that both minimise, in nats."""
    thin = subsampled(len(labels))
    matrix, bias = fitted
    log_proba = log_softmax(inputs[thin] @ matrix + bias)
    away = ((matrix - centre) ** 2).sum() + (bias**2).sum()
    return -float(log_proba[np.arange(len(log_proba)), labels[thin]].mean()) + 0.5 * l2 * float(away)


if __name__ == "__main__":
    main()
