"""The gate: the stack ships only if it is better than its best learner, beyond its error, as both would ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stacking.combine.control import SingleFits, mean_and_error, standard_error
from stacking.combine.judges import Judge
from stacking.combine.softmax import log_loss_per_event

ROUNDING = 1e-9
"""Nats below which two systems are the same: a stack of one learner differs from it by last bits alone."""


@dataclass(frozen=True)
class Gate:
    """Whether the stack ships, and why."""

    shipped: bool
    reason: str
    gain: float
    """Mean log-loss of the best learner minus that of the stack, nats, both as they ship."""
    standard_error: float
    best_learner: str
    judge_gain: float
    """The same difference in the judge's loss (gamma: mean ln survival)."""
    judge_standard_error: float
    holdout_gain: float
    """``gain`` from the judged events alone, without the help of single fits out-of-fold."""
    holdout_standard_error: float
    single_fit_gain: float | None
    """Gain of single fits out-of-fold: what the average of fits leaves of it is ``gain``. None without a holdout."""
    single_fit_standard_error: float | None

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)


def decide_gate(
    stacked: np.ndarray,
    learners: Mapping[str, np.ndarray],
    labels: np.ndarray,
    judge: Judge,
    groups: np.ndarray | None = None,
    single: SingleFits | None = None,
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
    judge
        One with a veto (the ln survival of gamma sets) closes the gate if the stack is worse by it beyond an error.
    groups
        (N,) or None: events of one group are one observation in the error.
    single
        Losses of single fits of learners and ``stack``, which sharpen what the holdout says.
    """
    losses = {name: log_loss_per_event(z, labels) for name, z in learners.items()}
    inner_groups = None if single is None else single.inner_groups

    def mean_loss(name: str) -> float:
        control = None if single is None else (single.outer[name], single.inner[name])
        return mean_and_error(losses[name], groups, control, inner_groups)[0]

    best = min(losses, key=mean_loss)
    gains = losses[best] - log_loss_per_event(stacked, labels)
    control = None if single is None else single.gain("stack", best)
    gain, error = mean_and_error(gains, groups, control, inner_groups)
    worse, judge_error = judge.difference(stacked, learners[best], labels)
    if len(learners) == 1:
        shipped, reason = False, f"{best} is the only learner"
    elif gain <= max(error, ROUNDING):
        shipped = False
        reason = f"the stack gains {gain:.5f} ± {error:.5f} nats over {best}: not more than its error"
    elif judge.veto and worse > judge_error:
        shipped = False
        reason = f"the stack's ln survival is worse than that of {best} by {worse:.3f} ± {judge_error:.3f}"
    else:
        shipped = True
        reason = f"the stack gains {gain:.5f} ± {error:.5f} nats over {best}"
    return Gate(
        shipped=shipped,
        reason=reason,
        gain=gain,
        standard_error=error,
        best_learner=best,
        judge_gain=-worse,
        judge_standard_error=judge_error,
        holdout_gain=float(gains.mean()),
        holdout_standard_error=standard_error(gains, groups),
        single_fit_gain=None if control is None else float(control[1].mean()),
        single_fit_standard_error=None if control is None else standard_error(control[1], inner_groups),
    )
