"""How much of the work is done and how long the rest will take, corrected by what finished tasks really took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

TRUST = 3.0
"""Weight of what was expected of a learner against what others took, in fits of its own."""
Key = tuple[str, int]
"""Learner and fold."""


class Outlook:
    """The tasks of a run that begin in their order, ``workers`` at once.

    Parameters
    ----------
    expected
        Seconds of every task, in the order in which they begin; equal numbers where nothing is known.
    workers
        Tasks at once.
    clock
        Seconds.
    """

    def __init__(
        self, expected: Mapping[Key, float], workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected, self._workers, self._clock = dict(expected), max(1, workers), clock
        self._begun = dict.fromkeys(list(self._expected)[: self._workers], clock())
        self._took: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._expected

    def finished(self, key: Key) -> None:
        """Note that a task has ended: the next one begins."""
        now = self._clock()
        self._took[key] = now - self._begun.pop(key, now)
        following = next((k for k in self._expected if k not in self._took and k not in self._begun), None)
        if following is not None:
            self._begun[following] = now

    def left_s(self) -> float:
        """Return the seconds until the last task ends."""
        now = self._clock()
        free = [max(0.1 * self._guess(key), self._guess(key) - (now - begun)) for key, begun in self._begun.items()]
        free += [0.0] * (self._workers - len(free))
        # In their order, each by whoever is free first: the last task may run alone.
        for key in self._expected:
            if key not in self._took and key not in self._begun:
                free[free.index(min(free))] += self._guess(key)
        return max(free)

    def done_s(self) -> float:
        """Return the seconds of work behind us, in units of which :meth:`left_s` counts."""
        now = self._clock()
        return (sum(self._took.values()) + sum(now - begun for begun in self._begun.values())) / self._workers

    def _guess(self, key: Key) -> float:
        same = [took for (learner, _), took in self._took.items() if learner == key[0]]
        if same:
            return float(np.mean(same))
        if self._took:
            # What other learners took says the less of this one the smaller they are.
            own = self._expected[key]
            known = sum(self._expected[done] for done in self._took)
            return own * (sum(self._took.values()) + TRUST * own) / (known + TRUST * own)
        now = self._clock()
        slower = max((now - begun) / self._expected[running] for running, begun in self._begun.items())
        return self._expected[key] * max(1.0, slower)
