"""The leak test: a learner that is far surer of held-out training events than of new ones may have seen their labels.

How sure learners are of two samples differs also where the samples do, by their class mix for instance: then it
differs for all learners alike. So each learner is compared with the others. The outcome is a remark: unlabelled events
that are to be predicted never choose which learner is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LEAK_SIGMA = 5.0
LEAK_SHARE = 0.15
"""A leak must be significant *and* large: a small difference may be an honest one."""
LEAK_EVENTS = 30
"""Fewer new events than this have no spread to judge a difference by."""


def entropy(log_proba: np.ndarray) -> np.ndarray:
    """Return the entropy of (..., C) log-probabilities, (...), nats."""
    return -(np.exp(log_proba) * log_proba).sum(axis=-1)


def leak_remarks(entropies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, str]:
    """Return why learners are suspected of having seen held-out labels, by learner.

    Parameters
    ----------
    entropies
        Per learner, entropies (N,) of held-out training events that pass the evaluation cuts, and (M,) of the events
        to be predicted that pass them too, both by single fits. One learner alone cannot be judged.
    """
    shifts = {name: float(new.mean() - held.mean()) for name, (held, new) in entropies.items()}
    remarks = {}
    for name, (held, new) in entropies.items():
        others = [shift for other, shift in shifts.items() if other != name]
        if not others or len(new) < LEAK_EVENTS:
            continue
        usual = float(np.median(others))
        excess = min(shifts[name], shifts[name] - usual)
        error = float(np.hypot(held.std() / np.sqrt(len(held)), new.std() / np.sqrt(len(new))))
        if excess > LEAK_SIGMA * error and excess > LEAK_SHARE * new.mean():
            remarks[name] = (
                f"{name} is surer of held-out training events (entropy {held.mean():.3f} nats) than of new ones "
                f"({new.mean():.3f} ± {error:.3f}; the other learners differ by {usual:+.3f}): it may have seen their "
                "labels, look for events of the same shower in several folds"
            )
    return remarks
