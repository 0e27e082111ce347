"""How fast each learner is on this machine: two short fits on few events, in the processes that will do the work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import create, most_events
from showerstack.runtime.cost import Deadline, reached
from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import by_device, in_devices, limited_threads
from showerstack.stacking.fit.running import local_processes
from showerstack.stacking.inputs.events import Events

PILOT_EVENTS = {True: (400, 1600), False: (1000, 5000)}
"""Training events of the two fits, of learners on grids and of those on tables."""
PILOT_WORK = {"epochs": 1, "rounds": 10, "trees": 16, "max_iterations": 6}
"""Settings that a fit's duration is proportional to, and what the pilot's fits have."""
USED = {"rounds": 0.4}
"""Share of the work that early stopping usually leaves."""
PREDICTED_BY_WORK = ("rounds", "trees")
"""Work that also decides how long a prediction takes."""


@dataclass(frozen=True)
class LearnerRate:
    """What a learner costs: seconds of one process."""

    learner: str
    work: str
    """Name of the setting that the duration is proportional to."""
    full: int
    """What the preset sets it to."""
    fixed_s: float
    """Of a unit of work, whatever the number of events."""
    event_s: float
    """Of a unit of work and an event."""
    predict_s: float
    """Of an event to be predicted, at full work."""
    waits: float = 1.0
    """Wall-clock seconds of a second of processor time: more than 1 where others use the machine."""
    device: str = "cpu"
    last_out: bool = False
    """As in :class:`showerstack.models.base.spec.LearnerSpec`."""
    most: int | None = None
    """Training events that it looks at, however many there are; None for all."""

    def fit_s(self, n_train: float, work: float) -> float:
        """Return the duration of a fit."""
        n = n_train if self.most is None else min(n_train, self.most)
        return USED.get(self.work, 1.0) * work * (self.fixed_s + self.event_s * n)

    def task_s(self, n_train: float, n_predict: float, work: float) -> float:
        """Return the duration of a fit and of its predictions."""
        share = work / self.full if self.work in PREDICTED_BY_WORK else 1.0
        return self.fit_s(n_train, work) + share * n_predict * self.predict_s


@dataclass(frozen=True)
class _Pilot:
    spec: LearnerSpec
    events: Events
    columns: tuple[str, ...]
    rows: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    preset: str
    settings: dict[str, Any]
    threads: int
    device: str
    n_rows: int | None
    """Training events of a fit of the run, which settings may depend on."""

    def learner(self, changes: Mapping[str, Any], threads: int = 1) -> Learner:
        """Return an untrained learner with the settings of the run and changes of them."""
        settings = {**self.settings, **changes}
        return create(
            self.spec, self.classes, threads=threads, overrides=settings, preset=self.preset, n_rows=self.n_rows
        )


def measure_rates(
    events: Events,
    specs: tuple[LearnerSpec, ...],
    labels: np.ndarray,
    classes: tuple[str, ...],
    *,
    preset: str,
    settings: dict[str, dict[str, Any]],
    threads: int,
    devices: Mapping[str, str],
    pools: Mapping[str, int],
    n_rows: int | None = None,
    until: Deadline | None = None,
) -> list[LearnerRate]:
    """Return the rate of every learner that could be tried.

    Parameters
    ----------
    n_rows
        Training events of a fit of the run: learners are timed with the settings for so many.
    until
        When no further learner is tried; the first always is. With it learners on tables come first.
    """
    pilots = [
        _Pilot(
            spec,
            events,
            events.columns_for(spec),
            rows := _rows(labels, max(PILOT_EVENTS[spec.needs_grid])),
            labels[rows],
            classes,
            preset,
            settings.get(spec.name, {}),
            threads,
            devices.get(spec.name, "cpu"),
            n_rows,
        )
        for spec in sorted(specs, key=lambda spec: spec.needs_grid == (until is not None))
    ]
    with local_processes(threads):
        parts = by_device(pilots, pools, lambda pilot: pilot.device)
        arguments = {
            device: [(pilot, until if k else None) for k, pilot in enumerate(part)]
            for device, part in parts.items()
            if part
        }
        entries = [rate for rate in in_devices(_measured, arguments, pools, threads=threads) if rate is not None]
    order = [pilot.spec.name for pilot in pilots]
    return sorted(entries, key=lambda rate: order.index(rate.learner))


def _rows(labels: np.ndarray, n: int) -> np.ndarray:
    """Return about n rows, evenly spread over the classes in turn, so that any part of them has every class."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    each = -(-n // len(counts))
    chosen = [
        order[s + np.arange(min(each, c)) * c // max(1, min(each, c))] for s, c in zip(starts, counts, strict=True)
    ]
    columns = [np.resize(part, each) for part in chosen if len(part)]
    return np.stack(columns, axis=1).ravel()


def _measured(pilot: _Pilot, until: Deadline | None) -> LearnerRate | None:
    if reached(until):
        return None
    spec = pilot.spec
    known = spec.settings_for(pilot.preset, pilot.n_rows) | pilot.settings
    learner = pilot.learner({})
    chosen: dict[str, Any] = getattr(learner, "chosen", known)
    work = next((name for name in PILOT_WORK if name in chosen), "")
    full, little = (int(chosen[work]), min(PILOT_WORK[work], int(chosen[work]))) if work else (1, 1)
    sizes = PILOT_EVENTS[spec.needs_grid]
    try:
        with limited_threads(pilot.threads):
            batch = pilot.events.batch(pilot.rows, pilot.columns, grids=spec.needs_grid)
            batch = replace(batch, labels=pilot.labels)
            _timed(pilot, batch, min(sizes) // 4, work, little)  # libraries are loaded and code is compiled
            used, started = time.process_time(), time.perf_counter()
            (short, _), (long, predict_s) = (_timed(pilot, batch, n, work, little) for n in sizes)
            waits = (time.perf_counter() - started) / max(1e-9, time.process_time() - used)
    except (InputError, ValueError, RuntimeError):
        return None
    n_short, n_long = (min(n, len(pilot.rows)) for n in sizes)
    slope = max((long - short) / max(1, n_long - n_short), 0.25 * long / n_long) / little
    fixed = max(0.0, short / little - slope * n_short)
    if work in PREDICTED_BY_WORK:
        predict_s *= full / little
    most, waits = most_events(learner), max(1.0, waits)
    return LearnerRate(spec.name, work, full, fixed, slope, predict_s, waits, pilot.device, spec.last_out, most)


def _timed(pilot: _Pilot, batch: Batch, n: int, work: str, amount: int) -> tuple[float, float]:
    """Return the seconds of a fit on n events, and of an event's prediction."""
    part = batch.take(np.arange(min(n, len(batch))))
    learner = pilot.learner({work: amount} if work else {}, pilot.threads)
    started = time.perf_counter()
    learner.fit(part, part.take(np.arange(min(len(part), 200))), seed=1, device=pilot.device)
    fitted = time.perf_counter()
    learner.predict_log_proba(part)
    return fitted - started, (time.perf_counter() - fitted) / len(part)
