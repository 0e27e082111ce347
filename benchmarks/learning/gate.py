"""What the gate costs: how often a stack ships, and what is lost, at one and at two standard errors.

    OMP_NUM_THREADS=1 python benchmarks/learning/gate.py

Toys: three simulated learners of three classes, whose log-odds are the truth's times their skill plus noise, a part of
which they share. A log-linear pool is fitted on events of its own, as a stack is on out-of-fold predictions, and so are
strength and biases of each learner and of the plain average; the gate compares the pool with these on a holdout; 20,000
further events tell what it really gains.
``1 - 2`` is the log-loss of what ships at one standard error minus that at two: positive where the second error pays.
The holdout speaks alone here; runs sharpen it with single fits (stacking.meta.gate), so that they miss less at two
errors. Shares have Clopper-Pearson intervals, means Student's t over the toys: 95 %.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.learning.stack import markdown
from showerstack.models.base.posterior import log_softmax
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.scoring.metrics.level import LEVEL
from showerstack.stacking.meta.gate import SIGMA, decide_gate
from showerstack.stacking.meta.scorers import LogLossScorer
from showerstack.stacking.meta.softmax import fit_pool, log_loss_per_event, pooled

N_CLASSES, SHARED, N_NEW = 3, 0.6, 20_000
WORLDS = {
    "equal learners": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "unequal learners": ((1.1, 1.0, 0.8), (1.0, 1.0, 1.0)),
    "unequal and too sure": ((1.2, 1.0, 0.6), (1.0, 1.6, 2.0)),
}
"""By world: skills of the learners, and how many times as sure they are as their noise allows."""
ERRORS = (1.0, SIGMA)
HEAD = (
    "world", "holdout", "true gain, mnat", *(f"ships at {e:g} se, %" for e in ERRORS),
    *(f"lost at {e:g} se, mnat" for e in ERRORS), "1 - 2, mnat",
)  # fmt: skip
"""Lost: against always shipping what is really better."""


@dataclass(frozen=True)
class Toy:
    """One gate."""

    significance: float
    """Gain on the holdout over its error."""
    gain: float
    """True gain of the stack over what ships where the gate is closed, nats."""


def toy(world: str, n_holdout: int, seed: int) -> Toy:
    """Draw the events, fit the pool, let the gate decide."""
    rng = np.random.default_rng([seed, n_holdout])
    inner, holdout, new = (learners(rng, n, *WORLDS[world]) for n in (9 * n_holdout, n_holdout, N_NEW))
    pool = fit_pool(*inner)
    strengths = {name: fit_pool(z[None], inner[1]) for name, z in _systems(inner[0]).items()}

    def systems(log_proba: np.ndarray) -> dict[str, np.ndarray]:
        return {name: pooled(z[None], *strengths[name]) for name, z in _systems(log_proba).items()}

    gate = decide_gate(pooled(holdout[0], *pool), systems(holdout[0]), holdout[1], LogLossScorer())
    other = log_loss_per_event(systems(new[0])[gate.best_learner], new[1])
    gain = float((other - log_loss_per_event(pooled(new[0], *pool), new[1])).mean())
    return Toy(gate.gain / gate.standard_error, gain)


def learners(
    rng: np.random.Generator, n: int, skills: tuple[float, ...], sureness: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities (L, n, C) of simulated learners, and labels (n,)."""
    labels = rng.integers(N_CLASSES, size=n)
    shared = rng.standard_normal((n, N_CLASSES))
    each = []
    for skill, sure in zip(skills, sureness, strict=True):
        noise = np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * rng.standard_normal((n, N_CLASSES))
        # Signal s with unit noise in every class: s times what is seen are the log-odds of a calibrated learner.
        each.append(log_softmax(sure * skill * (skill * np.eye(N_CLASSES)[labels] + noise)))
    return np.stack(each), labels


def _systems(log_proba: np.ndarray) -> dict[str, np.ndarray]:
    single = {f"learner {k}": z for k, z in enumerate(log_proba)}
    return single | {"average": log_softmax(log_proba.mean(axis=0))}


def line(world: str, n_holdout: int, toys: list[Toy]) -> list[str]:
    """Return one row of the table."""
    gain, significance = (np.array([getattr(one, name) for one in toys]) for name in ("gain", "significance"))
    opened = {error: significance > error for error in ERRORS}
    lost = {error: np.maximum(gain, 0.0) - np.where(opened[error], gain, 0.0) for error in ERRORS}
    shares = []
    for each in opened.values():
        span = clopper_pearson(int(each.sum()), len(each))
        shares.append(f"{100 * each.mean():.0f} [{100 * span.low:.0f}, {100 * span.high:.0f}]")
    return [
        world, f"{n_holdout:,}", _mean(gain), *shares, *map(_mean, lost.values()), _mean(lost[1.0] - lost[SIGMA]),
    ]  # fmt: skip


def _mean(nats: np.ndarray) -> str:
    half = float(stats.t.ppf(0.5 + LEVEL / 2, len(nats) - 1) * stats.sem(nats))
    return f"{1e3 * nats.mean():+.2f} [{1e3 * (nats.mean() - half):+.2f}, {1e3 * (nats.mean() + half):+.2f}]"


def main() -> None:
    """Draw the toys and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toys", type=int, default=200)
    parser.add_argument("--holdouts", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--write", type=Path, help="put the table into this file as well")
    options = parser.parse_args()
    rows = []
    for world in WORLDS:
        for n in options.holdouts:
            rows.append(line(world, n, [toy(world, n, seed) for seed in range(options.toys)]))
            print(*rows[-1], sep=" | ", flush=True)
    table = markdown(list(HEAD), rows)
    print(f"\n{table}\n")
    if options.write:
        options.write.write_text(f"{table}\n")


if __name__ == "__main__":
    main()
