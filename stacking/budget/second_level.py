"""What comes after the fits: how long it takes, and how many events its largest part may have under a time limit.

Seconds of processor time, read off the steps of two finished runs (60,000 and 5.6 million training events,
``benchmarks/speed/scale.py``) on a machine that others used too: estimates, not a fit. What Newton's method and the
calibrated pool changed since was measured on the out-of-fold predictions of the larger one. A pilot that had to wait
for others says how much longer the same takes now.
"""

from __future__ import annotations

from dataclasses import dataclass

FIXED_S = 20.0
"""Collection, decision, scores and report."""
META_EVENT_S = 1.9e-4
"""Choice of the meta-learner: an event with out-of-fold predictions; its fits are shared by all workers."""
CHOICE_EVENT_S, CHOICE_EVENTS = 2.1e-4, 20_000
"""Calibration: choosing its kind for one system, a judged event; and the events that count at most."""
SCALING_EVENT_S, SCALING_EVENTS = 4e-5, 200_000
"""Calibration: fitting what was chosen."""
STUDENT_STEP_S = 5.5e-5
"""The student: an event and an epoch."""
STUDENT_SHARE = 0.15
"""Of a time limit, what the student may take; it learns from fewer events where that is not enough."""
OTHER_SYSTEMS = 3
"""Average, stack and student: calibrated beside the learners."""


@dataclass(frozen=True)
class SecondLevel:
    """How much there is to do after the fits."""

    n_inner: int = 0
    """Events with out-of-fold predictions that count."""
    n_judged: int = 0
    """Events that systems are judged on."""
    student_epochs: int = 0
    """0 without a student."""
    student_events: int = 0
    """Events that the student learns from at most."""

    def seconds(self, n_learners: int, workers: int, student_events: int) -> float:
        """Return what all of it takes, s."""
        meta = META_EVENT_S * self.n_inner / workers
        choice = CHOICE_EVENT_S * min(self.n_judged, CHOICE_EVENTS)
        scaling = SCALING_EVENT_S * min(self.n_judged, SCALING_EVENTS)
        systems = (n_learners + OTHER_SYSTEMS) * (choice + scaling) / workers
        return FIXED_S + meta + systems + self._student_s(student_events)

    def student_events_within(self, limit_s: float | None, waits: float) -> int:
        """Return how many events the student may learn from.

        Parameters
        ----------
        limit_s
            Seconds of the whole run; None for no limit.
        waits
            Wall-clock seconds of a second of processor time.
        """
        most = min(self.n_inner, self.student_events)
        if limit_s is None or not self.student_epochs:
            return most
        return min(most, int(STUDENT_SHARE * limit_s / (waits * STUDENT_STEP_S * self.student_epochs)))

    def _student_s(self, n: int) -> float:
        return STUDENT_STEP_S * self.student_epochs * min(n, self.n_inner)
