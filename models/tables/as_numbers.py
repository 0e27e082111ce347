"""Any learner of numbers behind a step that turns columns of categories into numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from models.base import Batch, Learner
from models.catalogue.average import member_class
from models.checks import check_settings, check_training
from models.saving import read_header, write_header
from models.tables.categories import Numbers
from showers.execution.progress import Progress
from showers.schema import InputError


class AsNumbers(Learner):
    """A learner that is shown categories as numbers and columns without names.

    Settings: ``learner``, its ``module:Class``; every other setting is that learner's own.
    """

    defaults: ClassVar[dict[str, Any]] = {"learner": ""}

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        own = {name: value for name, value in self.settings.items() if name in self.defaults}
        chosen = check_settings(type(self).__name__, own, self.defaults)
        inner = {name: value for name, value in self.settings.items() if name not in self.defaults}
        self.inner = member_class(str(chosen["learner"]))(classes, inner, threads=threads)
        self.numbers_: Numbers | None = None

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Learn how categories become numbers, then train the learner."""
        check_training(train, valid, self.classes, table=True, grid=False)
        self.numbers_, as_numbers = Numbers.fit(train, seed)
        if self.checkpoint is not None:
            self.inner.checkpoint = self.checkpoint
        self.inner.fit(as_numbers, self.numbers_.apply(valid), seed=seed, device=device, progress=progress)
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64 log-posteriors with natural priors."""
        if self.numbers_ is None:
            raise InputError(f"this {type(self).__name__} has not been trained yet")
        return self.inner.predict_log_proba(self.numbers_.apply(batch))

    def importances(self) -> dict[str, float] | None:
        """Return the gain of each column, summing to one, where the learner counts any."""
        inner = self.inner.importances()
        if inner is None or self.numbers_ is None:
            return None
        found = dict.fromkeys(self.numbers_.columns, 0.0)
        for owner, share in zip(self.numbers_.owners(), inner.values(), strict=True):
            found[owner] += share
        return found

    @property
    def n_parameters(self) -> int | None:
        """Those of the learner."""
        return self.inner.n_parameters

    def save(self, folder: Path) -> None:
        """Write the learner into a folder of its own, then the header."""
        if self.numbers_ is None:
            raise InputError(f"this {type(self).__name__} has not been trained yet")
        self.inner.save(Path(folder) / "inner")
        content = {"classes": self.classes, "settings": self.settings, "threads": self.threads}
        write_header(Path(folder), type(self).__name__, (), {**content, "numbers": self.numbers_.state()})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        header = read_header(Path(folder), cls.__name__)
        learner = cls(tuple(header["classes"]), header["settings"], threads=header["threads"])
        learner.numbers_ = Numbers.from_state(header["numbers"])
        learner.inner = type(learner.inner).load(Path(folder) / "inner")
        return learner
