"""Generalised least-squares fit of a world's constants to facts of the real data and to networks trained on it.

Deviations of the facts are in units of their tolerances (those beyond tolerance count more), deviations of the
posteriors that networks trained on the real data give to simulated showers as in :mod:`benchmarks.world.targets`; a
prior keeps constants near where they start. Slopes are one-sided differences with common random numbers (every station
of every event keeps its random stream when a constant changes) and are improved by every step (C. G. Broyden, Math.
Comp. 19 (1965) 577).

EPOS is fitted against QGSJet by what a network trained on QGSJet makes of either, and by how many events pass the cuts.
What is known of the real simulations are one network's accuracies and mean class numbers on test events of both models
and the pass rates of their sets; differences between the models are compared, so that it does not matter which network
it was, nor what the simulated sky has wrong for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import lsq_linear

from benchmarks.world.facts import Fact
from benchmarks.world.moments import Sizes, sample_moments
from benchmarks.world.networks import Published, inputs, posteriors
from benchmarks.world.targets import POSTERIORS, SCORES, Look, NetworkTarget
from showerstack.runtime.files import atomic_path
from showerstack.showers.schema import COMPOSITION, Task
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, passes_cuts
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.settings import Settings

REACH = 0.7
"""A step changes no constant by more than so many widths of its prior; halved after a step that did not help."""
SIGNED = ("offset", "mass", "energy", "inclination", "depth", "slope", "curvature", "xmax", "lg_ne", "lg_nmu")
"""Endings of the names of constants that may be negative."""

CALIBRATION_EVENTS = 4_096
"""Events on which the effect of augmentation and dropout on the batch norms is measured."""


@dataclass(frozen=True)
class Free:
    """A free constant: its name ``section__field``, the step of its numerical derivative, the width of its prior."""

    name: str
    step: float
    prior: float
    centre: float | None = None
    """Middle of the prior: the Monte Carlo's value; where the fit starts if None."""
    most: float = np.inf
    """Largest value allowed."""


class Problem:
    """Deviations from the chosen targets as a function of the chosen constants."""

    def __init__(
        self,
        start: Settings,
        free: Sequence[Free],
        targets: Sequence[Fact],
        networks: Sequence[Published],
        tasks: tuple[Task, ...],
        *,
        scorers: Sequence[Published] = (),
        sizes: Sizes,
        seed: int,
        workers: int | None = None,
    ) -> None:
        self.start, self.free, self.facts, self.tasks = start, free, targets, tasks
        self.sizes, self.seed, self.workers = sizes, seed, workers
        self.networks = [NetworkTarget(published) for published in networks]
        self.scorers = [NetworkTarget(published) for published in scorers]
        """Networks that are looked at and reported, but pull at nothing."""
        self.judged: list[np.ndarray] = []
        """What they said last."""
        self.origin = self.values_of(start)
        self.prior = np.array([free.prior for free in self.free])
        self.centre = np.array(
            [old if free.centre is None else free.centre for free, old in zip(self.free, self.origin, strict=True)]
        )

    def values_of(self, settings: Settings) -> np.ndarray:
        """Return the free constants' values."""
        content = settings.model_dump()
        return np.array([content[s][f] for s, f in (free.name.split("__") for free in self.free)])

    def settings(self, values: np.ndarray) -> Settings:
        """Return the settings with the free constants set; validated."""
        named = {free.name: float(value) for free, value in zip(self.free, values, strict=True)}
        return self.start.changed(**named)

    def deviations(self, values: np.ndarray, *, slopes_only: bool = False, size: float = 1.0) -> np.ndarray:
        """Simulate and return the deviations: of the facts in tolerances, then the fitted networks' mean one.

        For slopes the first network stands for all of them.
        """
        looks = [Look(target) for target in (self.networks[:1] if slopes_only else self.networks + self.scorers)]
        labels: list[np.ndarray] = []
        first: list[tuple[torch.Tensor, torch.Tensor]] = []

        def look(events: SimulatedEvents) -> None:
            e = events.event
            scalars = {"E": e.lg_energy, "Ze": e.zenith_deg, "Ne": e.lg_ne, "Nmu": e.lg_nmu, "Age": e.age}
            read = inputs(events.grids, scalars)
            labels.append(events.labels.astype(np.int64))
            for each in looks:
                each.add(*read)
            if not slopes_only and sum(len(part) for part, _ in first) < CALIBRATION_EVENTS:
                first.append(read)

        result = sample_moments(
            self.settings(values),
            self.sizes.times(size),
            seed=self.seed,
            workers=self.workers,
            tasks=self.tasks,
            watch=look if looks else None,
        )
        own = np.array([(result[fact.key] - fact.real) / fact.tolerance for fact in self.facts])
        if not labels:
            return own
        classes = np.concatenate(labels)
        for each in looks:
            if each.target.shift is None and first:
                each.target.calibrate(each.norms(), *(torch.cat(parts) for parts in zip(*first, strict=True)))
        visited = [each.deviations(classes) for each in looks]
        n = len(visited) if slopes_only else len(self.networks)
        self.judged = visited[n:]
        return np.concatenate([own, np.mean(visited[:n], axis=0)]) if n else own

    def weights(self, deviations: np.ndarray) -> np.ndarray:
        """Return 1 for small deviations of facts, more beyond half a tolerance; the networks' count as they are."""
        n = len(self.facts)
        return np.concatenate([1.0 + np.minimum((deviations[:n] / 0.8) ** 2, 4.0), np.ones(len(deviations) - n)])

    def cost(self, deviations: np.ndarray, values: np.ndarray) -> float:
        """Return the weighted sum of squared deviations and of the prior's pulls."""
        return float((self.weights(deviations) * deviations**2).sum() + (self.pulls(values) ** 2).sum())

    def pulls(self, values: np.ndarray) -> np.ndarray:
        """Return how far the constants are from the middles of their priors, in widths of these."""
        return (values - self.centre) / self.prior


def jacobian(problem: Problem, values: np.ndarray, size: float, state: Path | None = None) -> np.ndarray:
    """Return d deviation / d constant by one-sided differences with common random numbers.

    Columns are kept in the file ``state``, and an interrupted run goes on where it was.
    """
    base = problem.deviations(values, slopes_only=True, size=size)
    columns: list[np.ndarray] = []
    if state is not None and state.exists():
        with np.load(state, allow_pickle=False) as result:
            same = np.array_equal(result["values"], values) and np.array_equal(result["base"], base)
            columns = list(result["columns"]) if same else []
    for k, free in enumerate(problem.free):
        if k < len(columns):
            continue
        moved = values.copy()
        moved[k] += free.step
        columns.append((problem.deviations(moved, slopes_only=True, size=size) - base) / free.step)
        print(f"  {free.name:38s} moves {describe(problem, columns[-1] * free.step)}", flush=True)
        if state is not None:
            with atomic_path(state) as temporary, temporary.open("wb") as file:
                np.savez(file, values=values, base=base, columns=np.array(columns))
    return np.column_stack(columns)


def describe(problem: Problem, change: np.ndarray, n: int = 3) -> str:
    """Return how far the facts and the posteriors move together, and the facts that move most."""
    own, theirs = change[: len(problem.facts)], change[len(problem.facts) :]
    order = np.argsort(-np.abs(own))[:n]
    named = ", ".join(f"{problem.facts[k].name} {own[k]:+.2f}" for k in order)
    return f"facts by {np.linalg.norm(own):.2f}, posteriors by {np.linalg.norm(theirs):.2f}: {named}"


def fit(
    problem: Problem,
    iterations: int,
    slope_size: float,
    keep: Callable[[Settings], None],
    state: Path | None = None,
) -> np.ndarray:
    """Run the steps, hand the settings after each that helped to ``keep``, and return the fitted constants."""
    values = problem.origin.copy()
    base = problem.deviations(values)
    print(f"start: {summary(problem, base, values)}", flush=True)
    slope = jacobian(problem, values, slope_size, state)
    reach = REACH
    for iteration in range(iterations):
        step = next_step(problem, values, base, slope, reach)
        result = problem.deviations(values + step)
        print(f"step {iteration}: {summary(problem, result, values + step)}", flush=True)
        relative = step / problem.prior
        wrong = result - base - slope @ step
        slope += np.outer(wrong, relative / problem.prior) / (relative @ relative)
        if problem.cost(result, values + step) < problem.cost(base, values):
            values, base = values + step, result
            keep(problem.settings(values))
        else:
            reach *= 0.5
    report(problem, values, base)
    return values


def next_step(problem: Problem, values: np.ndarray, base: np.ndarray, slope: np.ndarray, reach: float) -> np.ndarray:
    """Return the step to the minimum of the linearised problem, within reach and without leaving what is allowed."""
    root = np.sqrt(problem.weights(base))
    matrix = np.vstack([root[:, None] * slope, np.diag(1.0 / problem.prior)])
    right = -np.concatenate([root * base, problem.pulls(values)])
    low, high = -reach * problem.prior, reach * problem.prior
    positive = np.array([not free.name.endswith(SIGNED) for free in problem.free])
    low = np.where(positive, np.maximum(low, -values), low)
    high = np.minimum(high, np.array([free.most for free in problem.free]) - values)
    # The solver wants room on both sides; the limits themselves are put back.
    bounds = (np.minimum(low, -1e-9), np.maximum(high, 1e-9))
    step = np.minimum(lsq_linear(matrix, right, bounds=bounds, method="bvls").x, high)
    return np.asarray(np.where(positive, np.maximum(step, -values), step))


def summary(problem: Problem, base: np.ndarray, values: np.ndarray) -> str:
    """Return the cost, its parts, those of networks that only test, and the number of facts outside."""
    own, theirs = base[: len(problem.facts)], base[len(problem.facts) :]
    outside = int((np.abs(own) > 1.0).sum())
    message = f"cost {problem.cost(base, values):.1f}, {outside} of {len(own)} facts outside"
    names = ("networks", *(target.published.name for target in problem.scorers))
    for name, visited in zip(names, (theirs, *problem.judged), strict=False):
        if visited.size:
            message += f"; {name}: posteriors {(visited[:POSTERIORS] ** 2).sum():.1f}, "
            good_for = ", ".join(f"{value:+.2f}" for value in visited[POSTERIORS : POSTERIORS + SCORES])
            message += f"accuracies and log-loss {good_for}, norms {(visited[POSTERIORS + SCORES :] ** 2).sum():.1f}"
    return message


def report(problem: Problem, values: np.ndarray, base: np.ndarray) -> None:
    """Print the constants with their pulls, and the facts that remain outside."""
    print(f"cost {problem.cost(base, values):.1f}")
    for free, old, new, pull in zip(problem.free, problem.origin, values, problem.pulls(values), strict=True):
        print(f"  {free.name:38s} {old:9.4f} -> {new:9.4f}  ({pull:+.1f} prior widths)")
    for k in np.argsort(-np.abs(base[: len(problem.facts)]))[:25]:
        print(f"  {problem.facts[k].sample:36s} {problem.facts[k].name:34s} {base[k]:+.2f}")


SAMPLE = "EPOS less QGSJet"
FACTS = (
    Fact(SAMPLE, "accuracy", 0.489 - 0.520, 0.010),
    Fact(SAMPLE, "mean class number, proton", 0.767 - 0.665, 0.025),
    Fact(SAMPLE, "mean class number, carbon", 1.938 - 1.824, 0.025),
    Fact(SAMPLE, "mean class number, iron", 3.179 - 3.162, 0.025),
    Fact(SAMPLE, "lg pass rate", float(np.log10(0.0733 / 0.0939)), 0.08),
)


class ModelProblem(Problem):
    """Deviations of the differences between EPOS and QGSJet as a function of the shifts of EPOS."""

    def __init__(
        self,
        start: Settings,
        free: Sequence[Free],
        networks: Sequence[Published],
        *,
        sizes: Sizes,
        seed: int,
        workers: int | None = None,
    ) -> None:
        super().__init__(start, free, FACTS, networks, (COMPOSITION,), sizes=sizes, seed=seed, workers=workers)
        self.reference: dict[float, np.ndarray] = {}
        """What QGSJet's events give, by sample size: the shifts do not move it."""

    def deviations(self, values: np.ndarray, *, slopes_only: bool = False, size: float = 1.0) -> np.ndarray:
        """Simulate and return the deviations in tolerances."""
        settings, sizes = self.settings(values), self.sizes.times(size)
        if size not in self.reference:
            self.reference[size] = self._seen(settings, "qgs", sizes)
        result = self._seen(settings, "epos", sizes) - self.reference[size]
        return np.array([(f - fact.real) / fact.tolerance for f, fact in zip(result, self.facts, strict=True)])

    def _seen(self, settings: Settings, model: str, sizes: Sizes) -> np.ndarray:
        """Return accuracy, mean class numbers of protons, carbon and iron, mean of the networks, and lg pass rate."""

        def events(cuts: str, n: int) -> Iterator[SimulatedEvents]:
            return accepted_events(BlockJob(COMPOSITION, "test", self.seed, model, cuts, settings), n, self.workers)

        visited = []
        for portion in events("matched", sizes.matched):
            e = portion.event
            scalars = {"E": e.lg_energy, "Ze": e.zenith_deg, "Ne": e.lg_ne, "Nmu": e.lg_nmu, "Age": e.age}
            said = [posteriors(t.published.network, *inputs(portion.grids, scalars)) for t in self.networks]
            visited.append((portion.labels.astype(np.int64), np.stack(said, axis=1).astype(np.float64)))
        labels, result = (np.concatenate(parts) for parts in zip(*visited, strict=True))
        accuracy = (result.argmax(axis=2) == labels[:, None]).mean()
        index = (result @ np.arange(COMPOSITION.n_classes)).mean(axis=1)
        free = np.concatenate([passes_cuts(portion.event, "test") for portion in events("none", sizes.free)])
        return np.array([accuracy, *(index[labels == k].mean() for k in (0, 2, 4)), np.log10(free.mean())])
