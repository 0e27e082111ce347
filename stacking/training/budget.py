"""The time limit of a run: which learners begin, how long each fit may learn, which are given up.

Three folds at most, the learners that win most often first. A learner may take half of the time that is left, the last
one all of it; a fifth of the limit is kept for what follows the fits. Fits that are late are left out, but one
learner is not, so that a late run predicts at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Clock, Cost, now_s, seconds_of
from showerstack.stacking.config import RunConfig

C = TypeVar("C", bound=RunConfig)

LIMITED_FOLDS = 3
"""Folds at most under a time limit."""
FOLLOWS_SHARE = 0.2
"""Share of a time limit that is kept for what follows the fits: pool, calibration, predictions, scores, report."""
FIRST_LEARNERS = ("pretrained", "mlp", "catboost", "xgboost", "lightgbm")
"""Learners in the order in which a time limit begins them; others follow, networks on grids last."""
LEARNER_SHARE, FIT_SHARE = 0.5, 0.75
"""Share of the time left that a learner may take, except the last, and the share of it for learning."""


class TimeLimitReached(Exception):
    """The run's time limit was reached before a fit was finished."""


@dataclass(frozen=True)
class FitTime:
    """How long a fit may take; by default as long as it needs."""

    deadline: float | None = None
    """When it has to be done, seconds of :func:`showerstack.runtime.cost.now_s`; None without a limit."""
    share: float = 1.0
    """Share of the time left until then, when it begins, that it may learn for."""
    gives_up: bool = True
    """Whether it is given up at the deadline."""

    def is_over(self, *, late: bool = False) -> bool:
        """Return whether the fit is given up now; ``late`` says that another of its learner was."""
        return self.gives_up and self.deadline is not None and (late or now_s() >= self.deadline)

    def learns_until(self, now: float) -> float | None:
        """Return when a fit that begins now stops learning."""
        return None if self.deadline is None else now + self.share * max(0.0, self.deadline - now)

    def by(self, clock: Clock | None) -> FitTime:
        """Return the same by the clock of this machine; ``clock`` is that of the machine that sent the fit."""
        if clock is None or self.deadline is None:
            return self
        return replace(self, deadline=clock.on_this_machine(self.deadline))


@dataclass(frozen=True)
class Budget:
    """The time of a run; by default without a limit."""

    ends: float | None = None
    """Seconds of :func:`showerstack.runtime.cost.now_s`."""
    limit_s: float = 0.0

    @classmethod
    def of(cls, config: RunConfig, costs: Sequence[Cost], ctx: Context) -> Self:
        """Return what a configuration allows. The limit begins with ``costs``, unless ``ctx`` says when."""
        if config.time_limit is None:
            return cls()
        began = now_s() - sum(cost.wall_s for cost in costs) if ctx.began is None else ctx.began
        limit_s = seconds_of(config.time_limit)
        return cls(began + limit_s, limit_s)

    def configured(self, config: C) -> C:
        """Return the configuration with three folds at most, once, where there is a limit."""
        if self.ends is None or config.has_own_folds:
            return config
        return config.model_copy(update={"folds": min(LIMITED_FOLDS, config.n_folds), "repeats": 1})

    def in_order(self, specs: Sequence[LearnerSpec]) -> list[LearnerSpec]:
        """Return learners in the order in which they begin."""
        # Networks on grids take longest: they go first, so that no worker is left alone with one at the end.
        return sorted(specs, key=(lambda spec: not spec.needs_grid) if self.ends is None else order_in_limit)

    def of_fit(
        self, spec: LearnerSpec, fold: int, n_fits: int, workers: int, ordered: Sequence[LearnerSpec]
    ) -> FitTime:
        """Return the time of a learner's fit, of ``n_fits``, on so many workers at once."""
        if self.ends is None:
            return FitTime()
        share = share_of_time(fold, n_fits, workers, last=spec is ordered[-1])
        return FitTime(self.ends - FOLLOWS_SHARE * self.limit_s, share, spec.name != kept_late(ordered))


def order_in_limit(spec: LearnerSpec) -> tuple[int, bool]:
    """Return the place of a learner under a time limit: place among the first, and whether it reads grids."""
    name = spec.name.rpartition(".")[2]
    return (FIRST_LEARNERS.index(name) if name in FIRST_LEARNERS else len(FIRST_LEARNERS), spec.needs_grid)


def share_of_time(fold: int, n_fits: int, workers: int, *, last: bool) -> float:
    """Return the share of the time left, when a fit begins, that it may learn for.

    A learner's fits go in rounds of as many as there are workers; a round leaves the same time to each that follows.
    """
    rounds_left = -(-n_fits // workers) - fold // workers
    return FIT_SHARE * (1.0 if last else LEARNER_SHARE) / max(1, rounds_left)


def kept_late(specs: Sequence[LearnerSpec]) -> str:
    """Return the learner that is not given up at the end of a time limit: the last one that reads no grids."""
    return next((spec.name for spec in reversed(specs) if not spec.needs_grid), specs[-1].name)
