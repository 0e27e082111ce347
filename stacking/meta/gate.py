"""The gate, by which a stack ships or not, and the leak test.

The stack ships only if it is better than what it is made of by two standard errors, as both would ship. That is the
best of its learners and their plain average, which has nothing to learn: hard to beat where events are few.

The average of fits can be scored on the outer holdout alone. Single fits can be scored there *and* out-of-fold, on many
more events, and event by event their losses move with those of the average: they are a control variate. Where single
fits happen to do better on the holdout than out-of-fold, the average was lucky too, and the luck is taken off.

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


@dataclass(frozen=True)
class SingleFits:
    """Log-losses per event of single fits, by system: nats."""

    outer: Mapping[str, np.ndarray]
    """(m,) on the outer holdout, mean over the fits."""
    inner: Mapping[str, np.ndarray]
    """(n,) out-of-fold."""
    inner_groups: np.ndarray | None = None
    """(n,) or None: out-of-fold events of one group are one observation."""

    def gain(self, of: str, over: str) -> tuple[np.ndarray, np.ndarray]:
        """Return loss(over) - loss(of) on the outer holdout (m,) and out-of-fold (n,)."""
        return self.outer[over] - self.outer[of], self.inner[over] - self.inner[of]


def standard_error(values: np.ndarray, groups: np.ndarray | None) -> float:
    """Return the standard error of the mean of (N,) values; those of one group (N,) are one observation."""
    if groups is None:
        return float(values.std() / np.sqrt(len(values)))
    return grouped_error(values, groups)[0]


def mean_and_error(
    values: np.ndarray,
    groups: np.ndarray | None,
    control: tuple[np.ndarray, np.ndarray] | None = None,
    inner_groups: np.ndarray | None = None,
) -> tuple[float, float]:
    """Return the mean of (m,) values and its standard error, by the control where there is one.

    Parameters
    ----------
    values
        (m,) of the outer holdout.
    groups
        (m,) or None.
    control
        The same quantity of single fits: (m,) on the same events, (n,) on others.
    inner_groups
        (n,) or None.

    Notes
    -----
    ``mean(v) - b (mean(c_outer) - mean(c_inner))`` has the expectation of ``mean(v)`` for any b, and the least
    variance at ``b = cov(v, c_outer) / (var(c_outer) + m var(mean(c_inner)))``.
    """
    if control is None:
        return float(values.mean()), standard_error(values, groups)
    outer, inner = control
    inner_error = standard_error(inner, inner_groups)
    spread = float(outer.var()) + len(outer) * inner_error**2
    slope = float(np.mean((values - values.mean()) * (outer - outer.mean()))) / spread if spread > 0 else 0.0
    mean = float(values.mean() - slope * (outer.mean() - inner.mean()))
    return mean, float(np.hypot(standard_error(values - slope * outer, groups), slope * inner_error))


SIGMA = 2.0
"""Standard errors by which the stack must be better: a stack that gains nothing then ships in 2 of 100 runs."""
ROUNDING = 1e-9
"""Nats below which two systems are the same: a stack of one learner differs from it by last bits alone."""


@dataclass(frozen=True)
class Gate:
    """Whether the stack ships, and why."""

    shipped: bool
    reason: str
    gain: float
    """Mean log-loss of ``best_learner`` minus that of the stack, nats, both as they ship."""
    standard_error: float
    best_learner: str
    """The best of the learners and their plain ``average``: what ships where the stack does not."""
    judge_gain: float
    """The same difference in the scorer's loss (gamma: mean ln survival)."""
    judge_standard_error: float
    holdout_gain: float
    """``gain`` from the scored events alone, without the help of single fits out-of-fold."""
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
    scorer: Scorer,
    groups: np.ndarray | None = None,
    single: SingleFits | None = None,
    weights: np.ndarray | None = None,
) -> Gate:
    """Compare the stack with the best of its learners and their average.

    Parameters
    ----------
    stacked
        (N, C) log-probabilities of the stack: the average of fits on the outer holdout, calibrated as it ships;
        without a holdout nested out-of-fold ones.
    learners
        Per learner, and of ``average`` where there are several, (N, C) log-probabilities of the same events, made in
        the same way.
    labels
        (N,) class numbers.
    scorer
        One with a veto (the ln survival of gamma sets) closes the gate if the stack is worse by it beyond an error.
    groups
        (N,) or None: events of one group are one observation in the error.
    single
        Losses of single fits of learners and ``stack``, which sharpen what the holdout says.
    weights
        (N,) importance weights, or None.
    """
    losses = {name: log_loss_per_event(z, labels, weights) for name, z in learners.items()}
    inner_groups = None if single is None else single.inner_groups

    def mean_loss(name: str) -> float:
        control = None if single is None else (single.outer[name], single.inner[name])
        return mean_and_error(losses[name], groups, control, inner_groups)[0]

    best = min(losses, key=mean_loss)
    gains = losses[best] - log_loss_per_event(stacked, labels, weights)
    control = None if single is None else single.gain("stack", best)
    gain, error = mean_and_error(gains, groups, control, inner_groups)
    worse, judge_error = scorer.difference(stacked, learners[best], labels, groups, weights)
    if len(learners) == 1:
        shipped, reason = False, f"{best} is the only learner"
    elif gain <= max(SIGMA * error, ROUNDING):
        shipped = False
        beyond = ": not by more than twice its error" if gain >= 0 else ""
        word = "better" if gain >= 0 else "worse"
        reason = f"the stack is {abs(gain):.5f} ± {error:.5f} nats {word} than {best}{beyond}"
        if max(abs(gain), error) < 0.5e-5:
            reason = f"the stack and {best} are level, less than 0.00001 nats apart"
    elif scorer.veto and worse > judge_error:
        shipped = False
        reason = f"the stack's ln survival is worse than that of {best} by {worse:.3f} ± {judge_error:.3f}"
    else:
        shipped = True
        reason = f"the stack is {gain:.5f} ± {error:.5f} nats better than {best}"
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
