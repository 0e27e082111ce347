"""Several learners trained one after the other on the same events and averaged: how published ensembles work."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from showerstack.models.base.learner import Batch, Enough, Learner, check_settings
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.context import NO_VALUES, Progress
from showerstack.runtime.errors import InputError

_MEMBER = re.compile(r"(showerstack\.models(?:\.\w+)+):(\w+)")
"""Members are classes of this package only: a name in a saved file imports nothing else."""


class LearnerAverage(Learner):
    """Average of learners.

    Settings: ``members``, a list of ``{"learner": "module:Class", "settings": {...}}``; ``common``, settings that all
    of them get; ``space``: average ``probability`` or ``log`` (probabilities, then normalised).
    """

    needs_table = False
    defaults: ClassVar[dict[str, Any]] = {"members": (), "common": {}, "space": "log"}

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        self.chosen = check_settings(type(self).__name__, self.settings, self.defaults)
        if not self.chosen["members"] or self.chosen["space"] not in ("probability", "log"):
            raise InputError('an average needs members and space "probability" or "log"')
        self.members = [self._member(entry) for entry in self.chosen["members"]]
        self.fitted_ = False

    def _member(self, entry: dict[str, Any]) -> Learner:
        member = member_class(str(entry.get("learner", "")))
        settings = {**entry.get("settings", {}), **self.chosen["common"]}
        return member(self.classes, settings, threads=self.threads)

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Train the members in turn, each with its own seed."""
        for k, member in enumerate(self.members):
            if self.checkpoint is not None:
                member.checkpoint = self.checkpoint / f"member-{k}"
            ended: list[None] = []
            report = None if progress is None else _part_of_progress(progress, k, len(self.members), ended)
            member_seed = int(np.random.SeedSequence([seed, k]).generate_state(1)[0] >> 1)
            member.fit(train, valid, seed=member_seed, device=device, progress=report)
            if ended:  # what no time was left for would only be noise beside the others
                self.members = self.members[: max(1, k)]
                break
        self.fitted_ = True
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        self._check_fitted()
        each = np.stack([member.predict_log_proba(batch) for member in self.members])
        if self.chosen["space"] == "log":
            return log_softmax(each.mean(axis=0)) if len(batch) else each[0]
        return np.logaddexp.reduce(each, axis=0) - np.log(len(self.members))

    @property
    def precision(self) -> Literal["float32", "bf16"] | None:
        """That of the members."""
        return self.members[0].precision

    @property
    def n_parameters(self) -> int:
        """Sum over the members."""
        return sum(member.n_parameters or 0 for member in self.members)

    def save(self, folder: Path) -> None:
        """Write each member into a folder of its own, then the header."""
        self._check_fitted()
        for k, member in enumerate(self.members):
            member.save(Path(folder) / f"member-{k}")
        self.write_saved(Path(folder), (), {"members": len(self.members)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        learner, header = cls.from_saved(Path(folder))
        members = learner.members[: int(header.get("members", len(learner.members)))]
        learner.members = [type(member).load(Path(folder) / f"member-{k}") for k, member in enumerate(members)]
        learner.fitted_ = True
        return learner

    def _check_fitted(self) -> None:
        if not self.fitted_:
            raise InputError("this average has not been trained yet")


def member_class(path: str) -> type[Learner]:
    """Return the learner's class at ``module:Class`` in this package."""
    refusal = InputError(
        f"{path!r} cannot be a member of another learner: expected showerstack.models.<module>:<learner's class>"
    )
    match = _MEMBER.fullmatch(path)
    if not match:
        raise refusal
    try:
        found = getattr(importlib.import_module(match[1]), match[2])
    except (ImportError, AttributeError):
        raise refusal from None
    if not (isinstance(found, type) and issubclass(found, Learner)) or found is LearnerAverage:
        raise refusal
    return found


def _part_of_progress(progress: Progress, k: int, n_parts: int, ended: list[None]) -> Progress:
    """Return what member ``k`` reports to; it notes in ``ended`` that the member was asked to end."""

    def report(done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
        try:
            progress(k + done / max(total, 1e-9), n_parts, note, values)
        except Enough:
            ended.append(None)
            raise

    return report
