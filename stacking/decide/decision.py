"""From posteriors to hard labels: the rule that minimises the benchmark's fraction error over *all* rules.

A rule sends event x to ``argmin_c sum_t G[t, c] p(t|x) / pi_t``. Given posteriors p, a sample and its class mix pi, a
rule has the confusion matrix ``M[t, c] = mean over x of p(t|x)/pi_t [rule(x) = c]``, and the metric is, up to sampling
noise, ``mean |F - F M|`` over the benchmark's grid of mixtures F: convex in M. The set of reachable M is the convex
hull of those of deterministic rules, so the optimum is found by column generation on the dual linear program; no label
is needed. Written out in :func:`optimal_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import linprog, minimize

from scoring.metrics.composition import confusion_matrix, expected_fraction_error, mixture_fractions
from scoring.uncertainty.paired import paired_fraction_error

GAP = 2e-6
"""Column generation stops when upper and rigorous lower bound are closer than this."""
MAX_COLUMNS = 400
MAX_EVENTS = 100_000
"""More events are thinned evenly: the solution's own sampling error is then 3e-4 of a rule's."""


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


@dataclass(frozen=True)
class Optimum:
    """The solved decision problem; all errors are expected ones, from posteriors alone."""

    rule: Rule
    """The best single rule found."""
    lower_bound: float
    """No rule, mixed or not, has a smaller expected fraction error."""
    mixed_error: float
    """Expected error of the best mixture of rules (upper bound of the optimum)."""
    rule_error: float
    """Expected error of the single rule that ships; minus ``mixed_error`` is what not mixing costs."""
    columns: int

    @property
    def gap(self) -> float:
        """Upper minus lower bound."""
        return self.mixed_error - self.lower_bound


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


def optimal_rule(log_proba: np.ndarray, *, gap: float = GAP) -> Optimum:
    """Find the rule with the least expected fraction error.

    Parameters
    ----------
    log_proba
        (N, C) calibrated log-posteriors of events that pass the evaluation cuts (thinned above
        :data:`MAX_EVENTS`).
    gap
        Wanted distance of upper and lower bound.

    Notes
    -----
    With n = |F| entries of the grid F and S_j the confusion matrices of the rules found so far, the dual of
    ``min over mixtures of mean |F - F M|`` is: maximise ``<s, F>/n + v`` over s in [-1, 1]^F and v, subject to
    ``v + <s, F S_j>/n <= 0``. Its value is the upper bound. For its s, the rule with ``G = -F's/n`` has the largest
    ``<s, F S>`` of all rules, so ``<s, F - F S>/n`` is a lower bound that holds for every rule; S joins the S_j.
    """
    thin = slice(None, None, max(1, -(-len(log_proba) // MAX_EVENTS)))
    log_proba = log_proba[thin]
    prior = class_mix(log_proba)
    ratio = relative(log_proba, prior)
    fractions = mixture_fractions(len(prior))
    n = fractions.size
    # Good single rules to start from: the optimum may be a mixture, and what ships is the best single rule met.
    rules = [argmax_rule(prior), likelihood_rule(prior), bias_rule(log_proba)]
    columns = [_confusion_of(rule, ratio) for rule in rules]
    lower = -np.inf
    while True:
        upper, s = _solve_dual(fractions, columns)
        rule = Rule("optimal", -(fractions.T @ s) / n, prior)
        vertex = _confusion_of(rule, ratio)
        lower = max(lower, float((s * (fractions - fractions @ vertex)).sum() / n))
        if upper - lower < gap or len(columns) >= MAX_COLUMNS:
            break
        rules.append(rule)
        columns.append(vertex)
    errors = [float(np.abs(fractions - fractions @ column).mean()) for column in columns]
    best = int(np.argmin(errors))
    chosen = Rule("optimal", rules[best].cost, prior)
    return Optimum(chosen, lower, upper, errors[best], len(columns))


def _confusion_of(rule: Rule, ratio: np.ndarray) -> np.ndarray:
    """Return M (C, C) of a deterministic rule: its rows sum to one because mean p/pi is one for every class."""
    predicted = np.argmin(ratio @ rule.cost, axis=1)
    n_classes = ratio.shape[1]
    return np.stack([np.bincount(predicted, ratio[:, t], minlength=n_classes) for t in range(n_classes)]) / len(ratio)


def _solve_dual(fractions: np.ndarray, columns: list[np.ndarray]) -> tuple[float, np.ndarray]:
    n = fractions.size
    objective = -np.append(fractions.ravel() / n, 1.0)
    constraints = np.stack([np.append((fractions @ column).ravel() / n, 1.0) for column in columns])
    bounds = [(-1.0, 1.0)] * n + [(None, None)]
    found = linprog(objective, A_ub=constraints, b_ub=np.zeros(len(columns)), bounds=bounds, method="highs")
    if found.status != 0:
        raise RuntimeError(f"the linear program of the decision rule was not solved: {found.message}")
    return -float(found.fun), found.x[:-1].reshape(fractions.shape)


RULES: dict[str, Callable[[np.ndarray], Rule]] = {
    "argmax": lambda log_proba: argmax_rule(class_mix(log_proba)),
    "likelihood": lambda log_proba: likelihood_rule(class_mix(log_proba)),
    "biases": bias_rule,
    "optimal": lambda log_proba: optimal_rule(log_proba).rule,
}
"""How each kind of rule is made from posteriors; simplest first."""


@dataclass(frozen=True)
class Decision:
    """The comparison of rules on labelled events, and the one to ship."""

    chosen: str
    rule: Rule
    """The chosen kind, made from all events."""
    optimum: Optimum
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
            "optimum": {
                "lower_bound": self.optimum.lower_bound,
                "mixed_error": self.optimum.mixed_error,
                "rule_error": self.optimum.rule_error,
                "cost_of_not_mixing": self.optimum.rule_error - self.optimum.mixed_error,
                "columns": self.optimum.columns,
            },
        }


def choose_rule(log_proba: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> Decision:
    """Compare the kinds of rules on labelled events and choose the simplest within one standard error of the best.

    Parameters
    ----------
    log_proba
        (N, C) log-posteriors of held-out events that pass the evaluation cuts, as they ship.
    labels
        (N,) their classes; they judge the rules, which are made from posteriors alone.
    folds
        (N,) fold numbers.
    """
    n_classes = log_proba.shape[1]
    decided = {name: np.empty(len(labels), dtype=np.int8) for name in RULES}
    for k in np.unique(folds):
        inside = folds == k
        for name, make in RULES.items():
            decided[name][inside] = make(log_proba[~inside])(log_proba[inside])
    errors = {
        name: expected_fraction_error(confusion_matrix(labels, found, n_classes)) for name, found in decided.items()
    }
    best = min(errors, key=lambda name: errors[name])
    differences = {}
    for name in RULES:
        paired = paired_fraction_error(labels, decided[name], decided[best], n_classes=n_classes)
        differences[name] = (errors[name] - errors[best], paired.standard_error)
    chosen = next(name for name, (worse, error) in differences.items() if worse <= error)
    optimum = optimal_rule(log_proba)
    rule = optimum.rule if chosen == "optimal" else RULES[chosen](log_proba)
    return Decision(chosen, rule, optimum, errors, differences, decided[chosen])
