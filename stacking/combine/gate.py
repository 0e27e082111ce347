"""The gate: the stack ships only if it is better than its best learner on held-out folds, beyond its error.

Beside it stands the leak test: events to be predicted and held-out training events that pass the same cuts are
exchangeable, so a learner must be as sure of the one as of the other. One that is much surer of held-out *training*
events has seen their labels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stacking.combine.judges import GammaJudge, Judge
from stacking.combine.softmax import log_loss_per_event

LEAK_SIGMA = 5.0
LEAK_SHARE = 0.15
"""A leak must be significant *and* large: a small difference may be an honest shift between the two samples."""


@dataclass(frozen=True)
class Gate:
    """Whether the stack ships, and why."""

    shipped: bool
    reason: str
    gain: float
    """Mean log-loss of the best learner minus that of the stack, nats, on nested out-of-fold predictions."""
    standard_error: float
    best_learner: str
    judge_gain: float
    """The same difference in the judge's loss (gamma: mean ln survival)."""
    judge_standard_error: float

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)


def decide_gate(
    stacked: np.ndarray,
    learners: dict[str, np.ndarray],
    labels: np.ndarray,
    judge: Judge,
    groups: np.ndarray | None = None,
) -> Gate:
    """Compare the stack with the best of its learners.

    Parameters
    ----------
    stacked
        (N, C) nested out-of-fold log-probabilities of the stack.
    learners
        Per learner, (N, C) calibrated out-of-fold log-probabilities of the same events.
    labels
        (N,) class numbers.
    judge
        For gamma sets its ln survival has a veto: the stack must not be worse there by more than an error.
    groups
        (N,) or None: events of one group are one observation in the error.
    """
    means = {name: float(log_loss_per_event(z, labels).mean()) for name, z in learners.items()}
    best = min(means, key=lambda name: means[name])
    gains = log_loss_per_event(learners[best], labels) - log_loss_per_event(stacked, labels)
    gain, error = float(gains.mean()), _standard_error(gains, groups)
    worse, judge_error = judge.difference(stacked, learners[best], labels)
    if len(learners) == 1:
        shipped, reason = False, f"{best} is the only learner"
    elif gain <= error:
        shipped = False
        reason = f"the stack gains {gain:.5f} ± {error:.5f} nats over {best}: not more than its error"
    elif isinstance(judge, GammaJudge) and worse > judge_error:
        shipped = False
        reason = f"the stack's ln survival is worse than that of {best} by {worse:.3f} ± {judge_error:.3f}"
    else:
        shipped = True
        reason = f"the stack gains {gain:.5f} ± {error:.5f} nats over {best}"
    return Gate(shipped, reason, gain, error, best, -worse, judge_error)


def _standard_error(gains: np.ndarray, groups: np.ndarray | None) -> float:
    if groups is None:
        return float(gains.std() / np.sqrt(len(gains)))
    _, member = np.unique(groups, return_inverse=True)
    sums = np.bincount(member, gains - gains.mean())
    return float(np.sqrt((sums**2).sum()) / len(gains))


def leak_remark(held_out: np.ndarray, new: np.ndarray) -> str | None:
    """Return why a learner is suspected of having seen held-out labels, or None.

    Parameters
    ----------
    held_out
        (N, C) out-of-fold log-probabilities of training events that pass the evaluation cuts.
    new
        (F, M, C) log-probabilities of the events to be predicted that pass them too, from each fit.
    """
    inside, outside = _entropy(held_out), _entropy(new).mean(axis=0)
    difference = float(outside.mean() - inside.mean())
    error = float(np.hypot(inside.std() / np.sqrt(len(inside)), outside.std() / np.sqrt(len(outside))))
    if difference <= LEAK_SIGMA * error or difference <= LEAK_SHARE * outside.mean():
        return None
    return (
        f"surer of held-out training events (entropy {inside.mean():.3f} nats) than of new ones "
        f"({outside.mean():.3f} ± {error:.3f}): it has seen their labels, or the two samples differ"
    )


def _entropy(log_proba: np.ndarray) -> np.ndarray:
    return -(np.exp(log_proba) * log_proba).sum(axis=-1)
