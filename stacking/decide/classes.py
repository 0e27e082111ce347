"""Decisions for tasks of classes, and :func:`stacking_of`, which finds the right one for any task.

A table's labels are decided by the most probable class, scored by log-loss. Mass composition has hard labels by the
rule that serves the benchmark's fraction error, made without a label: a rule sends event x to ``argmin_c sum_t G[t, c]
p(t|x) / pi_t``. Given posteriors p, a sample and its class mix pi, a rule has the confusion matrix ``M[t, c] = mean
over x of p(t|x)/pi_t [rule(x) = c]``, and the metric is, up to sampling noise, ``mean |F - F M|`` over the benchmark's
grid of mixtures F. How far these rules are from the best of all rules is printed by ``benchmarks/learning/stack.py``.

The response of a run's decision is true class by decided class, counted on the events on which what ships is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from scipy.optimize import minimize

from showerstack.runtime.checksums import Checksums
from showerstack.runtime.code import plugins
from showerstack.runtime.context import Progress
from showerstack.runtime.files import read_json, write_json
from showerstack.scoring.metrics.composition import confusion_matrix, expected_fraction_error
from showerstack.scoring.metrics.paired import paired_fraction_error
from showerstack.showers.schema import COMPOSITION, Task
from showerstack.stacking import decide
from showerstack.stacking.decide.base import DecisionSample, SavedRule, TaskStacking
from showerstack.stacking.fit.folds import LG_ENERGY_EDGES, subsampled
from showerstack.stacking.meta.scorers import CompositionScorer, LogLossScorer


class ClassesStacking(TaskStacking):
    """Class numbers."""

    name = "classes"
    scorer = LogLossScorer()

    def decide(
        self, held_out: DecisionSample, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take the most probable class: nothing to learn."""
        return {"chosen": "argmax"}, {}

    def labels(self, rule: SavedRule | None, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 hard labels."""
        return np.argmax(log_proba, axis=1).astype(np.int8)

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``predictions``: (N,) int8."""
        return {"predictions": self.labels(rule, log_proba)}

    def test_arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``argmax`` and ``decided``: (N,) int8 each."""
        return {"argmax": np.argmax(log_proba, axis=1).astype(np.int8), "decided": self.labels(rule, log_proba)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield ``argmax``, then ``decided`` where it is there: (N,) int64 each."""
        labels = stored("argmax")
        yield "argmax", log_proba.argmax(axis=1) if labels is None else labels.astype(np.int64)
        decided = stored("decided")
        if decided is not None:
            yield "decided", decided.astype(np.int64)

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return the names of the decided classes."""
        return [pl.Series("decided", [task.classes[k] for k in arrays["predictions"]], dtype=pl.String)]


BIAS_EVENTS = 100_000
"""Of more events a random choice is taken: the biases' own sampling error is then 3e-4 of a rule's fraction error."""


@dataclass(frozen=True)
class Rule:
    """``argmin_c sum_t cost[t, c] p(t|x) / prior_t``."""

    name: str
    cost: np.ndarray
    """(C, C) float64, row = true class."""
    prior: np.ndarray
    """(C,) float64, class mix of the events that the posteriors belong to."""

    def __call__(self, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 labels of (N, C) log-posteriors."""
        return np.argmin(relative(log_proba, self.prior) @ self.cost, axis=1).astype(np.int8)

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"name": self.name, "cost": self.cost.tolist(), "prior": self.prior.tolist()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        return cls(str(content["name"]), np.array(content["cost"], float), np.array(content["prior"], float))


def relative(log_proba: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return ``p(t|x) / pi_t``, (N, C)."""
    return np.exp(log_proba) / prior


def class_mix(log_proba: np.ndarray) -> np.ndarray:
    """Return the class mix that the posteriors themselves imply, (C,): their mean."""
    return np.exp(log_proba).mean(axis=0)


def expected_confusion(log_proba: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return P(predicted | true), (C, C), implied by posteriors; rows sum to one."""
    weight = np.exp(log_proba)
    n_classes = weight.shape[1]
    confusion = np.zeros((n_classes, n_classes))
    np.add.at(confusion.T, predicted, weight)
    return confusion / confusion.sum(axis=1, keepdims=True)


def argmax_rule(prior: np.ndarray) -> Rule:
    """Return the rule "most probable class"."""
    return Rule("argmax", -np.diag(prior), prior)


def likelihood_rule(prior: np.ndarray) -> Rule:
    """Return the rule "largest p / pi", the most probable class if all were equally frequent."""
    return Rule("likelihood", -np.eye(len(prior)), prior)


def bias_rule(log_proba: np.ndarray) -> Rule:
    """Return ``argmax_c (ln p_c + b_c)`` with the biases that minimise the expected fraction error."""
    log_proba = log_proba[subsampled(len(log_proba), BIAS_EVENTS)]
    prior = class_mix(log_proba)
    base = log_proba - np.log(prior)

    def error(bias: np.ndarray) -> float:
        predicted = np.argmax(base + np.append(bias, 0.0), axis=1)
        return expected_fraction_error(expected_confusion(log_proba, predicted))

    start = np.zeros(len(prior) - 1)
    simplex = np.vstack([start, 0.1 * np.eye(len(start))])
    options = {"xatol": 1e-4, "fatol": 1e-7, "maxiter": 400, "initial_simplex": simplex}
    bias = np.append(minimize(error, start, method="Nelder-Mead", options=options).x, 0.0)
    return Rule("biases", -np.diag(np.exp(bias)), prior)


RULES: dict[str, Callable[[np.ndarray], Rule]] = {
    "argmax": lambda log_proba: argmax_rule(class_mix(log_proba)),
    "likelihood": lambda log_proba: likelihood_rule(class_mix(log_proba)),
    "biases": bias_rule,
}
"""How each kind of rule is made from posteriors; simplest first."""


@dataclass(frozen=True)
class Decision:
    """The comparison of rules on labelled events, and the one to ship."""

    chosen: str
    rule: Rule
    """The chosen kind, made from all events."""
    errors: dict[str, float]
    """Per kind, the closed-form fraction error on labelled events, each fold decided by rules made without it."""
    differences: dict[str, tuple[float, float]]
    """Per kind, error minus that of the best kind, and the paired standard error."""
    decided: np.ndarray
    """(N,) int8 labels by the chosen kind, each fold decided by a rule made without it."""

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return {
            "chosen": self.chosen,
            "held_out_fraction_error": self.errors,
            "worse_than_best": {
                name: {"difference": d, "standard_error": e} for name, (d, e) in self.differences.items()
            },
        }


def choose_rule(
    log_proba: np.ndarray, labels: np.ndarray, folds: np.ndarray, groups: np.ndarray | None = None
) -> Decision:
    """Compare the kinds of rules on labelled events and choose the simplest within one standard error of the best.

    Parameters
    ----------
    log_proba
        (N, C) log-posteriors of held-out events that pass the evaluation cuts, as they ship.
    labels
        (N,) their classes; they score the rules, which are made from posteriors alone.
    folds
        (N,) fold numbers.
    groups
        (N,) or None: events of one value are one observation.
    """
    n_classes = log_proba.shape[1]
    decided = {name: np.empty(len(labels), dtype=np.int8) for name in RULES}
    for k in np.unique(folds):
        inside = folds == k
        for name, make in RULES.items():
            decided[name][inside] = make(log_proba[~inside])(log_proba[inside])
    errors = {
        name: expected_fraction_error(confusion_matrix(labels, result, n_classes)) for name, result in decided.items()
    }
    best = min(errors, key=lambda name: errors[name])
    differences = {}
    for name in RULES:
        paired = paired_fraction_error(labels, decided[name], decided[best], groups, n_classes=n_classes)
        differences[name] = (errors[name] - errors[best], paired.standard_error)
    chosen = next(name for name, (worse, error) in differences.items() if worse <= error)
    return Decision(chosen, RULES[chosen](log_proba), errors, differences, decided[chosen])


RESPONSE_FILE = "response.json"


def write_response(
    run: Path, labels: np.ndarray, decided: np.ndarray, energy: np.ndarray | None, edges: tuple[float, ...], n: int
) -> None:
    """Store the response of a run's decision, overall and in bins of reconstructed lg(E/eV), as counts."""
    bins = np.zeros(len(labels), dtype=int) if energy is None else np.digitize(energy, edges)
    counts = np.zeros((len(edges) + 1, n, n), dtype=int)
    np.add.at(counts, (bins, labels, decided), 1)
    content = {"lg_energy_edges": list(edges), "counts": counts.tolist()}
    write_json(run / "meta" / RESPONSE_FILE, content)


def read_response(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner borders (B - 1,) of the lg(E/eV) bins and the response counts (B, C, C); sum over B for all."""
    content = read_json(Checksums.open(run).path(f"meta/{RESPONSE_FILE}"))
    return np.array(content["lg_energy_edges"]), np.array(content["counts"])


class CompositionStacking(ClassesStacking):
    """Class numbers by a rule on posteriors."""

    name = COMPOSITION.name
    scorer = CompositionScorer()

    def decide(
        self, held_out: DecisionSample, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Choose the kind of rule, make it for every system, and write the response of what ships."""
        shipped = held_out.systems[held_out.shipped]
        decision = choose_rule(shipped, held_out.labels, held_out.folds, held_out.groups)
        write_response(run, held_out.labels, decision.decided, held_out.energy, LG_ENERGY_EDGES, COMPOSITION.n_classes)
        rules: dict[str, Rule] = {}
        for number, (name, log_proba) in enumerate(held_out.systems.items()):
            rules[name] = decision.rule if name == held_out.shipped else RULES[decision.chosen](log_proba)
            progress(number + 1, len(held_out.systems), name)
        return decision.as_json(), rules

    def rule_from_json(self, content: Mapping[str, Any]) -> Rule:
        """Read a rule."""
        return Rule.from_json(content)

    def labels(self, rule: SavedRule | None, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 labels by the rule."""
        assert isinstance(rule, Rule)
        return rule(log_proba)


STACKING = (ClassesStacking(), CompositionStacking())


@cache
def task_stackings() -> dict[str, TaskStacking]:
    """Return what stacking does for each task, by the task's name: ``STACKING`` of the modules in this folder."""
    return plugins(decide, "STACKING", attrgetter("name"))


def stacking_of(task: Task) -> TaskStacking:
    """Return what stacking does for a task; for classes of the user's own, the most probable one."""
    return task_stackings().get(task.name, STACKING[0])
