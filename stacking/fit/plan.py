"""Which learners, rows, epochs and folds fit into the time, and what all of it is expected to take.

What comes after the fits is planned too: how long it takes, and how many events its largest part may have under a time
limit. Its seconds of processor time were read off the steps of two finished runs (60,000 and 5.6 million training
events, ``benchmarks/speed/scale.py``) on a machine that others used too: estimates, not a fit. What Newton's method and
the calibrated pool changed since was timed on the out-of-fold predictions of the larger one. A pilot that had to wait
for others says how much longer the same takes now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from showerstack.runtime.cost import in_words
from showerstack.runtime.processes import by_device
from showerstack.stacking.fit.speed import LearnerRate

STUDENT_SETTINGS: dict[str, Any] = {"width": 160, "hidden": 160, "dropout": 0.1, "epochs": 30}
"""Soft labels hold little noise: less dropout and more epochs than labels would bear."""


QUICK_EPOCHS = 10


FIXED_S = 8.0
"""Collection, gate, decision, prediction, scores and a report without its slow parts: seconds of processor time."""
META_EVENT_S = 1.9e-4
"""Choice of the meta-learner: an event with out-of-fold predictions; its fits are shared by all workers."""
CHOICE_EVENT_S, CHOICE_EVENTS = 2.1e-4, 20_000
"""Calibration: choosing its kind for one system, an event of its sample; and the events that count at most."""
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
    n_holdout: int = 0
    """Events on which systems are scored."""
    student_epochs: int = 0
    """0 without a student."""
    student_events: int = 0
    """Events that the student learns from at most."""
    students: float = 1.0
    """Trainings of a student on all its events: without an outer holdout one on each half is scored beside it."""

    def seconds(self, n_learners: int, workers: int, student_events: int) -> float:
        """Return what all of it takes, s."""
        meta = META_EVENT_S * self.n_inner / workers
        return FIXED_S + meta + self.calibration_s(n_learners, workers) + self._student_s(student_events)

    def calibration_s(self, n_learners: int, workers: int) -> float:
        """Return what the calibration of all systems takes, s."""
        choice = CHOICE_EVENT_S * min(self.n_holdout, CHOICE_EVENTS)
        scaling = SCALING_EVENT_S * min(self.n_holdout, SCALING_EVENTS)
        return (n_learners + OTHER_SYSTEMS) * (choice + scaling) / workers

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
        return min(most, int(STUDENT_SHARE * max(0.0, limit_s) / (waits * self._student_event_s)))

    def _student_s(self, n: int) -> float:
        return self._student_event_s * min(n, self.n_inner)

    @property
    def _student_event_s(self) -> float:
        return STUDENT_STEP_S * self.student_epochs * self.students


RESERVED = 0.15
"""Share of a limit that is kept for what estimates do not foresee."""
FEWEST_FOLDS = 3
FEWEST_ROWS = 5000
"""A learner is rather left out than trained on fewer rows than this, or than a hundredth of all."""
LARGEST_PART = 0.4
"""Share of the time that a learner which is left out last may need at least, so that others remain beside it."""
LEAST_WORK = 0.4
"""Share of a preset's epochs or rounds that a learner keeps at least."""


Timed = TypeVar("Timed", bound="LearnerRate | Share")


@dataclass(frozen=True)
class RunSizes:
    """How much there is to do."""

    n_train: int
    """Training events outside the holdout."""
    n_predict: int
    """Events that every fit predicts: its fold, the holdout, the test events."""
    n_folds: int
    repeats: int
    workers: int
    second: SecondLevel = field(default_factory=SecondLevel)
    pools: Mapping[str, int] = field(default_factory=dict)
    """Processes at once by device, where fits on a GPU and on the CPU go on side by side; empty for ``workers``."""

    def by_device(self, learners: Sequence[Timed]) -> list[tuple[list[Timed], int]]:
        """Return the learners of every device, as rates or shares, and its processes."""
        pools = self.pools or {"cpu": self.workers}
        parts = by_device(learners, pools, lambda one: one.device)
        return [(part, pools[device]) for device, part in parts.items() if part]


@dataclass(frozen=True)
class Share:
    """What a learner gets."""

    learner: str
    rows: int | None
    """Training events of each fit at most; None for all."""
    work: str
    """Setting that is reduced: ``epochs``, ``rounds``, ``trees``; empty for none."""
    amount: int
    task_s: float
    """Seconds of one fit with its predictions, one process."""
    device: str = "cpu"


@dataclass(frozen=True)
class RunPlan:
    """What a run does."""

    limit_s: float | None
    folds: int
    shares: tuple[Share, ...]
    """Cheapest first: that is their order, so that what is not finished is what costs most."""
    left_out: tuple[str, ...]
    """Learners whose speed is not known: there was no time to try them, or they failed."""
    training_s: float
    """Wall-clock seconds of all fits."""
    second_level_s: float
    student_events: int = 0
    """Events that the student of ``predict --fast`` learns from at most."""
    waits: float = 1.0
    """Wall-clock seconds of a second of processor time when the plan was made."""
    spare: tuple[Share, ...] = ()
    """Learners that the limit has no room for, with the least that they can be given: trained if time is left."""

    @property
    def total_s(self) -> float:
        """Wall-clock seconds of what is still to come."""
        return self.training_s + self.second_level_s

    @property
    def every(self) -> tuple[Share, ...]:
        """What is begun, in this order."""
        return *self.shares, *self.spare

    def options(self, settings: dict[str, dict[str, Any]], full: dict[str, int]) -> dict[str, Any]:
        """Return the run's options that the plan decides.

        Parameters
        ----------
        settings
            Those of the run so far.
        full
            By learner, the amount of work that is no change.
        """
        merged = {name: dict(values) for name, values in settings.items()}
        for share in self.every:
            if share.work and share.amount != full[share.learner]:
                merged.setdefault(share.learner, {})[share.work] = share.amount
        rows = {share.learner: share.rows for share in self.every if share.rows is not None}
        learners = tuple(share.learner for share in self.every)
        return {
            "folds": self.folds,
            "learners": learners,
            "settings": merged,
            "rows": rows,
            "student_events": max(1, self.student_events),
        }

    def lines(self) -> list[str]:
        """Return what is told before the run begins."""
        within = f" of the {in_words(self.limit_s)} that are left" if self.limit_s is not None else ""
        result = [
            f"plan: {len(self.shares)} learners x {self.folds} folds, about {in_words(self.total_s)}{within} "
            f"on this machine (fits {in_words(self.training_s)}, the rest {in_words(self.second_level_s)})"
        ]
        two_devices = len({share.device for share in self.shares}) > 1
        for share in self.shares:
            rows = "all rows" if share.rows is None else f"{share.rows:,} rows"
            work = f", {share.amount} {share.work.replace('_', ' ')} at most" if share.work else ""
            where = f" on {share.device}" if two_devices else ""
            result.append(f"  {share.learner}: {rows}{work}, {in_words(share.task_s)} a fit{where}")
        if self.limit_s is not None and self.total_s > self.limit_s:
            result.append("  the limit cannot be kept: the cheapest learner alone is trained, on few events")
        if self.spare:
            names = ", ".join(share.learner for share in self.spare)
            result.append(f"  too slow for the limit, trained on few events if time is left: {names}")
        if self.left_out:
            result.append(f"  left out, of unknown speed: {', '.join(self.left_out)}")
        return result

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        shares, spare = (tuple(Share(**share) for share in content.get(name, ())) for name in ("shares", "spare"))
        return cls(**{**content, "shares": shares, "spare": spare, "left_out": tuple(content["left_out"])})


def make_plan(rates: list[LearnerRate], sizes: RunSizes, limit_s: float | None) -> RunPlan:
    """Return a plan that fits into the limit; without one, what the whole run is expected to take.

    Parameters
    ----------
    rates
        One per learner.
    limit_s
        Seconds that are left; None for no limit.

    Notes
    -----
    What does not fit gets fewer folds, down to three. Where that is not enough, every learner may take an equal part
    of the time; those that need less leave the rest to the others. One that needs more gets fewer epochs, then fewer
    rows. Where that is not enough at :data:`LEAST_WORK` and :data:`FEWEST_ROWS`, the slowest learner is left out and
    the time is divided anew: it is trained with that little if time is left in the end. If none of the others is
    reduced then, they get as many folds as fit. Where fits on a GPU and on the CPU go on side by side, each device is
    planned by itself, with the same folds. Learners to be left out last stay as long as they need no more than
    :data:`LARGEST_PART` of the time. A limit that cannot be kept leaves the cheapest learner with the least that it
    can be given: a run that ships late is better than none.
    """
    waits = float(np.median([rate.waits for rate in rates]))
    student = sizes.second.student_events_within(limit_s, waits)

    def second(n_learners: int) -> float:
        return waits * sizes.second.seconds(n_learners, sizes.workers, student)

    def room(n_learners: int) -> float:
        return float("inf") if limit_s is None else (1 - RESERVED) * limit_s - second(n_learners)

    result = _whole(rates, sizes, room(len(rates)))
    if result is not None:
        return _plan(result[1], sizes, result[0], limit_s, second(len(rates)), student, waits)
    folds = min(sizes.n_folds, FEWEST_FOLDS)
    shares: list[Share] = []
    for rates_of_device, workers in sizes.by_device(rates):
        candidates = sorted(rates_of_device, key=lambda rate: _cost(rate, sizes, folds))
        others = len(rates) - len(candidates)
        rooms = [workers * room(number + others) for number in range(len(candidates) + 1)]
        shares += _shares(candidates, sizes, folds, rooms)
    if not shares:
        cheapest = min(rates, key=lambda rate: _least_s(rate, sizes, folds))
        shares = [_least(cheapest, sizes, folds)]
    names = {share.learner for share in shares}
    result = _whole([rate for rate in rates if rate.learner in names], sizes, room(len(names)))
    if result is not None:
        folds, shares = result
    plan = _plan(shares, sizes, folds, limit_s, second(len(names)), student, waits)
    spare = (_least(rate, sizes, folds) for rate in rates if rate.learner not in names)
    return replace(plan, spare=tuple(sorted(spare, key=lambda share: share.task_s)))


def _whole(rates: list[LearnerRate], sizes: RunSizes, room: float) -> tuple[int, list[Share]] | None:
    """Return the largest number of folds at which nothing has to be reduced, and the shares; None if there is none."""
    for folds in range(sizes.n_folds, min(sizes.n_folds, FEWEST_FOLDS) - 1, -1):
        shares = [_share(rate, sizes, folds, None, rate.full) for rate in rates]
        if _training_s(shares, sizes, folds) <= room:
            return folds, shares
    return None


def _shares(candidates: list[LearnerRate], sizes: RunSizes, folds: int, rooms: Sequence[float]) -> list[Share]:
    """Return what the learners of a device get, cheapest first; ``rooms[n]`` seconds of one process are for n of them.

    What follows the fits takes the less time the fewer learners there are.
    """
    largest = LARGEST_PART * rooms[-1] / (folds * sizes.repeats)
    worthier = sorted(candidates, key=lambda rate: not (rate.last_out and _least_s(rate, sizes, folds) <= largest))
    for number in range(len(candidates), 0, -1):
        selected = worthier[:number]
        shares = _parts([rate for rate in candidates if rate in selected], sizes, folds, rooms[number])
        if len(shares) == number:
            return shares
    return []


def _parts(candidates: list[LearnerRate], sizes: RunSizes, folds: int, room: float) -> list[Share]:
    """Return what each candidate gets, cheapest first, of so many seconds of one process; those without are missing."""
    shares: list[Share] = []
    for position, rate in enumerate(candidates):
        part = room / (len(candidates) - position)
        share = _within(rate, sizes, folds, part / (folds * sizes.repeats))
        if share is not None:
            shares.append(share)
            room -= share.task_s * folds * sizes.repeats
    return shares


def _plan(
    shares: list[Share],
    sizes: RunSizes,
    folds: int,
    limit_s: float | None,
    second: float,
    student: int,
    waits: float,
) -> RunPlan:
    ordered = tuple(sorted(shares, key=lambda share: share.task_s))
    return RunPlan(limit_s, folds, ordered, (), _training_s(shares, sizes, folds), second, student, waits)


def _training_s(shares: list[Share], sizes: RunSizes, folds: int) -> float:
    """Return the wall-clock seconds of all fits: none is shared, so the longest is a lower bound."""
    seconds = [
        max(sum(share.task_s for share in part) * folds * sizes.repeats / workers, *(share.task_s for share in part))
        for part, workers in sizes.by_device(shares)
    ]
    return max(seconds, default=0.0)


def _rows_of_fit(sizes: RunSizes, folds: int) -> int:
    return round(sizes.n_train * (folds - 1) / folds)


def _cost(rate: LearnerRate, sizes: RunSizes, folds: int) -> float:
    return rate.task_s(_rows_of_fit(sizes, folds), sizes.n_predict, rate.full)


def _share(rate: LearnerRate, sizes: RunSizes, folds: int, rows: int | None, amount: int) -> Share:
    n = _rows_of_fit(sizes, folds) if rows is None else rows
    return Share(rate.learner, rows, rate.work, amount, rate.task_s(n, sizes.n_predict, amount), rate.device)


def _fewest(sizes: RunSizes, folds: int) -> int:
    return min(_rows_of_fit(sizes, folds), max(FEWEST_ROWS, sizes.n_train // 100))


def _least(rate: LearnerRate, sizes: RunSizes, folds: int) -> Share:
    return _share(rate, sizes, folds, _fewest(sizes, folds), max(1, round(LEAST_WORK * rate.full)))


def _least_s(rate: LearnerRate, sizes: RunSizes, folds: int) -> float:
    return _least(rate, sizes, folds).task_s


def _within(rate: LearnerRate, sizes: RunSizes, folds: int, task_s: float) -> Share | None:
    """Return the largest share whose tasks take at most these seconds; None if there is none."""
    n = _rows_of_fit(sizes, folds)
    if rate.task_s(n, sizes.n_predict, rate.full) <= task_s:
        return _share(rate, sizes, folds, None, rate.full)
    if _least_s(rate, sizes, folds) > task_s:
        return None
    least = max(1, round(LEAST_WORK * rate.full))
    amounts = range(rate.full, least - 1, -max(1, rate.full // 20))
    amount = next((a for a in amounts if rate.task_s(n, sizes.n_predict, a) <= task_s), least)
    low, high = _fewest(sizes, folds), n
    if rate.task_s(high, sizes.n_predict, amount) <= task_s:
        return _share(rate, sizes, folds, None, amount)
    while high - low > max(1, n // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if rate.task_s(middle, sizes.n_predict, amount) <= task_s else (low, middle)
    return _share(rate, sizes, folds, low, amount)


def student_epochs(preset: str) -> int:
    """Return how often the student sees its events at most."""
    return QUICK_EPOCHS if preset == "quick" else int(STUDENT_SETTINGS["epochs"])
