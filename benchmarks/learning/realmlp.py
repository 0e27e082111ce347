"""RealMLP (D. Holzmueller et al., NeurIPS 2024) as a peer of our learners, where pytabkit is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.impute import SimpleImputer

from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec

EPOCHS = 64
"""A quarter of its default."""


class RealMLP:
    """RealMLP-TD with its settings but for the epochs, chosen by cross-entropy and without label smoothing.

    Undefined values become the median of their column, which it does not take itself.
    """

    n_parameters = None
    checkpoint: Path | None = None

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        self.classes, self.threads, self.fill = classes, threads, SimpleImputer(strategy="median")

    def fit(self, train: Batch, valid: Batch, *, seed: int) -> Self:
        """Learn from ``train``; ``valid`` chooses the epoch."""
        from pytabkit import RealMLP_TD_Classifier

        x, x_valid = self.fill.fit_transform(train.table), self.fill.transform(valid.table)
        self.model = RealMLP_TD_Classifier(
            device="cpu", random_state=seed, n_threads=self.threads, n_epochs=EPOCHS, use_ls=False,
            val_metric_name="cross_entropy",
        )  # fmt: skip
        self.model.fit(x, train.labels, x_valid, valid.labels)
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (N, C) log-probabilities."""
        return np.log(np.maximum(self.model.predict_proba(self.fill.transform(batch.table)), 1e-12))


PEER = LearnerSpec("realmlp", f"{__name__}:RealMLP", "RealMLP-TD of pytabkit", "fits", source="NeurIPS 2024")
