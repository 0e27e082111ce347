"""What one run works on: configuration, events, device, and what of it decides the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, seconds_of
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.showers.schema import Task
from showerstack.stacking.inputs.events import Events
from showerstack.stacking.meta.sample import Sample
from showerstack.stacking.run.config import SECOND_LEVEL, EngineConfig


@dataclass(frozen=True)
class Job:
    """What one run works on."""

    config: EngineConfig
    task: Task
    train: Events
    test: Events | None
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    costs: list[Cost] = field(default_factory=list)
    """Steps done before the engine starts (feature tables)."""
    prepare: Callable[[], None] | None = None
    """What to write into the run folder first, once it is known to be this run's."""
    conclude: Callable[[dict[str, Any]], None] | None = None
    """What to write into the run folder last, from the run's manifest."""
    remarks: tuple[str, ...] = ()
    """What the user should know about the input."""
    ctx: Context = Context()
    """Progress, log, and when a time limit begins: by default with the first step in ``costs``."""

    @property
    def identity(self) -> dict[str, Any]:
        """Return everything that can change a prediction."""
        return {
            **self.config.identity(),
            "task": self.task.name,
            "classes": list(self.task.classes),
            **(
                {"target": asdict(self.task.target) | {"limits": list(self.task.target.limits)}}
                if self.task.target
                else {}
            ),
            "device": self.device,
            **({"devices": dict(self.devices)} if self.device == "cuda" else {}),
            **({"targets_fingerprint": targets} if (targets := self._targets_fingerprint()) else {}),
            "train_fingerprint": self.train.fingerprint(),
            "test_fingerprint": self.test.fingerprint() if self.test is not None else None,
        }

    @property
    def versions(self) -> dict[str, Any]:
        """Return the version numbers of ours that can change a prediction."""
        learners = {spec.name: spec.version for spec in self.config.learner_specs(self.task)}
        return {
            "stacking_version": STACKING_VERSION,
            "features_version": self.train.features_version(),
            "learner_versions": learners,
        }

    @property
    def fits_identity(self) -> dict[str, Any]:
        """Return what of :attr:`identity` can change a fit of a learner."""
        return {name: value for name, value in self.identity.items() if name not in SECOND_LEVEL}

    def _targets_fingerprint(self) -> str | None:
        """Return the hash of the true quantities that learners of this run are given; None if none is."""
        specs = self.config.learner_specs(self.task)
        return self.train.targets_fingerprint() if any(spec.uses_truth for spec in specs) else None

    @property
    def device(self) -> str:
        """``"cuda"`` if a learner trains there, else ``"cpu"``."""
        return "cuda" if "cuda" in self.devices.values() else "cpu"

    @property
    def workers(self) -> int:
        """Processes at work at once."""
        return self.config.workers or cores()

    @property
    def ends(self) -> float | None:
        """When the time limit ends, seconds since 1970; None without one."""
        limit, began = self.config.time_limit, self.ctx.began
        return None if limit is None or began is None else began + seconds_of(limit)

    @property
    def pools(self) -> dict[str, int]:
        """Processes at once by device: one trains on the GPU, the others beside it.

        A cluster gives the work to its workers itself.
        """
        if self.device == "cpu" or self.config.scheduler:
            return {"cpu": self.workers}
        if "cpu" in self.devices.values() and self.workers > 1:
            return {"cuda": 1, "cpu": self.workers - 1}
        return {"cuda": 1}


@dataclass
class Folds:
    """Who is in which fold."""

    partitions: np.ndarray
    """(R, N) int8; -1 in the outer holdout, the same in every repetition."""
    in_evaluation: np.ndarray
    """(N,) bool."""
    labels: np.ndarray
    """(N,) int64."""
    weights: np.ndarray | None = None
    """(N,) importance weights, where the events have any."""
    groups: np.ndarray | None = None
    """(N,) groups, where the events have any."""
    remarks: tuple[str, ...] = ()

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return int(self.partitions.max()) + 1

    def sample(self, rows: np.ndarray) -> Sample:
        """Return the events that ``rows`` (N,) bool names, with the folds of the first partition."""
        return Sample(self.labels, self.partitions[0], self.groups, self.weights).take(rows)

    @property
    def inner(self) -> np.ndarray:
        """(N,) bool: events under the evaluation cuts that are predicted out-of-fold."""
        return self.in_evaluation & (self.partitions[0] >= 0)

    @property
    def outer(self) -> np.ndarray:
        """(N,) bool: events under the evaluation cuts of the outer holdout, in no learner's training."""
        return self.in_evaluation & (self.partitions[0] < 0)
