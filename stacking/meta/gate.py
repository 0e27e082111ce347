"""The gate, which decides whether the stack ships and whether a gain of it is claimed, and the leak test.

The stack ships unless the holdout shows it to be worse than its best learner by one standard error. A holdout of a
tenth cannot show gains of a thousandth of a nat that are there in the mean, and a stack that gains nothing costs nearly
nothing. A gain is claimed only where the holdout shows it by two standard errors.

A learner that is far surer of training events out-of-fold than of new ones may have learned from their labels. How sure
learners are of two samples differs also where the samples do, by their class mix for instance: then it differs for all
learners alike. So each learner is compared with the others. The outcome is a remark: unlabelled events that are to be
predicted never choose which learner is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from showerstack.scoring.metrics.intervals import grouped_error
from showerstack.stacking.meta.scorers import Scorer
from showerstack.stacking.meta.softmax import log_loss_per_event


def standard_error(values: np.ndarray, groups: np.ndarray | None) -> float:
    """Return the standard error of the mean of (N,) values; those of one group (N,) are one observation."""
    if groups is None:
        return float(values.std() / np.sqrt(len(values)))
    return grouped_error(values, groups)[0]


WORSE_SIGMA = 1.0
"""Standard errors by which the holdout must show the stack to be worse for its best learner to ship instead."""
CLAIM_SIGMA = 2.0
"""Standard errors by which the holdout must show a gain for it to be claimed: 2 of 100 that are none are claimed."""
ROUNDING = 1e-9
"""Nats below which two systems are the same: a stack of one learner differs from it by last bits alone."""


@dataclass(frozen=True)
class Gate:
    """Whether the stack ships, whether its gain is claimed, and why."""

    shipped: bool
    claimed: bool
    """Whether the stack is shown to be better than its best learner."""
    reason: str
    gain: float
    """Mean log-loss of ``best_learner`` minus that of the stack, nats, both as they ship."""
    standard_error: float
    best_learner: str
    """What ships where the stack does not."""
    judge_gain: float
    """The same difference in the scorer's loss (gamma: mean ln survival)."""
    judge_standard_error: float

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)


def decide_gate(
    stacked: np.ndarray,
    learners: Mapping[str, np.ndarray],
    labels: np.ndarray,
    scorer: Scorer,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Gate:
    """Compare the stack with the best of its learners.

    Parameters
    ----------
    stacked
        (N, C) log-probabilities of the stack: the average of fits on the outer holdout, calibrated as it ships;
        without a holdout nested out-of-fold ones.
    learners
        Per learner, (N, C) log-probabilities of the same events, made in the same way.
    labels
        (N,) class numbers.
    scorer
        One with a veto (the ln survival of gamma sets) closes the gate if the stack is worse by it beyond an error.
    groups
        (N,) or None: events of one group are one observation in the error.
    weights
        (N,) importance weights, or None.
    """
    losses = {name: log_loss_per_event(z, labels, weights) for name, z in learners.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    gains = losses[best] - log_loss_per_event(stacked, labels, weights)
    gain, error = float(gains.mean()), standard_error(gains, groups)
    worse, judge_error = scorer.difference(stacked, learners[best], labels, groups, weights)
    size, shipped = f"{abs(gain):.5f} ± {error:.5f} nats", True
    if len(learners) == 1:
        shipped, reason = False, f"{best} is the only learner"
    elif gain < -max(WORSE_SIGMA * error, ROUNDING):
        shipped, reason = False, f"the stack is {size} worse than {best}"
    elif scorer.veto and worse > WORSE_SIGMA * judge_error:
        shipped = False
        reason = f"the stack's ln survival is worse than that of {best} by {worse:.3f} ± {judge_error:.3f}"
    elif gain > max(CLAIM_SIGMA * error, ROUNDING):
        reason = f"the stack is {size} better than {best}"
    elif max(abs(gain), error) < 0.5e-5:
        reason = f"the stack and {best} are level, less than 0.00001 nats apart"
    elif gain >= 0:
        reason = f"a gain of the stack over {best}, {size}, is not shown"
    else:
        reason = f"a gain of the stack over {best} is not shown: it is {size} worse, not by more than its error"
    return Gate(
        shipped=shipped,
        claimed=shipped and gain > max(CLAIM_SIGMA * error, ROUNDING),
        reason=reason,
        gain=gain,
        standard_error=error,
        best_learner=best,
        judge_gain=-worse,
        judge_standard_error=judge_error,
    )


LEAK_SIGMA = 5.0
LEAK_SHARE = 0.15
"""A leak must be significant *and* large: a small difference may be an honest one."""
LEAK_EVENTS = 30
"""Fewer new events than this have no spread to measure a difference by."""


def entropy(log_proba: np.ndarray) -> np.ndarray:
    """Return the entropy of (..., C) log-probabilities, (...), nats."""
    return -(np.exp(log_proba) * log_proba).sum(axis=-1)


def leak_remarks(entropies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, str]:
    """Return why learners are suspected of having learned from labels of what they predict, by learner.

    Parameters
    ----------
    entropies
        Per learner, entropies (N,) out-of-fold of training events that pass the evaluation cuts, and (M,) of the events
        to be predicted that pass them too, both by single fits. One learner alone cannot be compared.
    """
    shifts = {name: float(new.mean() - values.mean()) for name, (values, new) in entropies.items()}
    remarks = {}
    for name, (values, new) in entropies.items():
        others = [shift for other, shift in shifts.items() if other != name]
        if not others or len(new) < LEAK_EVENTS:
            continue
        usual = float(np.median(others))
        excess = min(shifts[name], shifts[name] - usual)
        error = float(np.hypot(values.std() / np.sqrt(len(values)), new.std() / np.sqrt(len(new))))
        if excess > LEAK_SIGMA * error and excess > LEAK_SHARE * new.mean():
            remarks[name] = (
                f"{name} is surer of held-out training events (entropy {values.mean():.3f} nats) than of new ones "
                f"({new.mean():.3f} ± {error:.3f}; the other learners differ by {usual:+.3f}): it may have seen their "
                "labels, look for events of the same shower in several folds"
            )
    return remarks
