"""Class frequencies of the training events, whatever the event: what every other learner has to beat."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from showerstack.models.base.learner import Batch, Learner, check_training
from showerstack.models.base.saving import read_header, write_header
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Progress

LEARNERS = (LearnerSpec("frequencies", f"{__name__}:Frequencies", "class frequencies", "fits"),)


class Frequencies(Learner):
    """The logarithm of each class's share of the training events."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Count the classes."""
        check_training(train, valid, self.classes, table=True, grid=False)
        self.share_ = np.bincount(train.labels, minlength=len(self.classes)) / len(train)
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, classes) float64, the same row for every event."""
        return np.tile(np.log(self.share_), (len(batch), 1))

    def save(self, folder: Path) -> None:
        """Write the shares."""
        content = {"classes": self.classes, "settings": self.settings, "threads": self.threads, "share": self.share_}
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, "Frequencies", (), content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        header = read_header(folder, "Frequencies")
        learner = cls(tuple(header["classes"]), header["settings"], threads=header["threads"])
        learner.share_ = np.asarray(header["share"])
        return learner
