"""The least fraction error that any decision rule can have, given posteriors: a bound beside the rules that ship.

The metric ``mean |F - F M|`` is convex in the confusion matrix M (:mod:`showerstack.stacking.decide.classes`). The set
of reachable M is the convex hull of those of deterministic rules, so the optimum is found by column generation on the
dual linear program; no label is needed. Written out in :func:`optimal_rule`. ``stack.py`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from showerstack.scoring.metrics.composition import expected_fraction_error, mixture_fractions
from showerstack.stacking.decide.classes import (
    RULES,
    Rule,
    argmax_rule,
    bias_rule,
    class_mix,
    expected_confusion,
    likelihood_rule,
    relative,
)

GAP = 2e-6
"""Column generation stops when upper and rigorous lower bound are closer than this."""
MAX_COLUMNS = 400
MAX_EVENTS = 100_000
"""More events are subsampled evenly: the solution's own sampling error is then 3e-4 of a rule's."""


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
    """Expected error of that single rule; minus ``mixed_error`` is what not mixing costs."""
    columns: int

    @property
    def gap(self) -> float:
        """Upper minus lower bound."""
        return self.mixed_error - self.lower_bound


def expected_errors(log_proba: np.ndarray) -> dict[str, float]:
    """Return the fraction error of each kind of rule that may ship, expected from log-posteriors (N, C) alone."""
    return {
        name: expected_fraction_error(expected_confusion(log_proba, make(log_proba)(log_proba)))
        for name, make in RULES.items()
    }


def optimal_rule(log_proba: np.ndarray, *, gap: float = GAP) -> Optimum:
    """Find the rule with the least expected fraction error.

    Parameters
    ----------
    log_proba
        (N, C) calibrated log-posteriors of events that pass the evaluation cuts (subsampled above
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
    # Good single rules to start from: the optimum may be a mixture.
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
    result = linprog(objective, A_ub=constraints, b_ub=np.zeros(len(columns)), bounds=bounds, method="highs")
    if result.status != 0:
        raise RuntimeError(f"the linear program of the decision rule was not solved: {result.message}")
    return -float(result.fun), result.x[:-1].reshape(fractions.shape)
