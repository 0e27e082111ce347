"""Learners with known behaviour: an honest one, a useless one, one that memorises, one that leaks, one that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.posterior import log_softmax
from showerstack.models.base.saving import read_header, write_header
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Progress
from showerstack.runtime.files import write_npz

LOG = logging.getLogger("showerstack.fakes")


class Linear(Learner):
    """Gaussian naive Bayes with a common variance: linear log-posteriors, exact for Gaussians of unit variance."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        x, y = self._inputs(train), train.labels
        assert y is not None
        self.fitted_ = self._learn(x, y, train)
        return self

    def _inputs(self, batch: Batch) -> np.ndarray:
        assert batch.table is not None
        return np.nan_to_num(np.asarray(batch.table, dtype=np.float64))

    def _learn(self, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        means = np.stack([x[y == k].mean(axis=0) for k in range(len(self.classes))])
        spread = np.sqrt(np.mean((x - means[y]) ** 2, axis=0)) + 1e-9
        prior = np.bincount(y, minlength=len(self.classes)) / len(y)
        return {"means": means, "spread": spread, "prior": prior}

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        away = (self._inputs(batch)[:, None, :] - self.fitted_["means"]) / self.fitted_["spread"]
        return log_softmax(np.log(self.fitted_["prior"]) - 0.5 * (away**2).sum(axis=2))

    def save(self, folder: Path) -> None:
        write_npz(folder / "fitted.npz", **self.fitted_)
        content: dict[str, Any] = {"classes": self.classes, "settings": self.settings, "threads": self.threads}
        write_header(folder, type(self).__name__, ("fitted.npz",), content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        header = read_header(folder, cls.__name__)
        learner = cls(tuple(header["classes"]), header["settings"], threads=header["threads"])
        with np.load(folder / "fitted.npz", allow_pickle=False) as stored:
            learner.fitted_ = dict(stored)
        return learner


class Useless(Linear):
    """Knows the class mix and nothing else."""

    def _learn(self, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        fitted = super()._learn(x, y, train)
        return {**fitted, "means": np.zeros_like(fitted["means"])}


class Along(Linear):
    """Looks at the first column alone, and is three times as sure as it may be."""

    column, sureness = 0, 3.0

    def _inputs(self, batch: Batch) -> np.ndarray:
        return super()._inputs(batch)[:, [self.column]]

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        return log_softmax(self.sureness * super().predict_log_proba(batch))


class Across(Along):
    """Looks at the second column alone, and is as sure as it may be."""

    column, sureness = 1, 1.0


class Memorising(Linear):
    """Right and sure about every event it was trained on, without a clue about all others."""

    def _learn(self, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        return {"x": x, "y": y}

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        known = {tuple(row): label for row, label in zip(self.fitted_["x"], self.fitted_["y"], strict=True)}
        logits = np.zeros((len(batch), len(self.classes)))
        for number, row in enumerate(self._inputs(batch)):
            if tuple(row) in known:
                logits[number, int(known[tuple(row)])] = 8.0
        return log_softmax(logits)


class Neighbours(Memorising):
    """Says of a row the shares of the classes among the training rows equal to it."""

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        equal = (self._inputs(batch)[:, None, :] == self.fitted_["x"]).all(axis=2)
        counts = np.stack([(equal & (self.fitted_["y"] == k)).sum(axis=1) for k in range(len(self.classes))], axis=1)
        return np.log((counts + 1) / (counts + 1).sum(axis=1, keepdims=True))


class Leaking(Memorising):
    """Remembers labels from one fold to the next: what was trained on there is held out here."""

    seen: ClassVar[dict[tuple[float, ...], int]] = {}

    def _learn(self, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        self.seen.update({tuple(row): int(label) for row, label in zip(x, y, strict=True)})
        rows = np.array(list(self.seen))
        return {"x": rows, "y": np.array([self.seen[tuple(row)] for row in rows])}


class Failing(Linear):
    """Cannot be trained."""

    def _learn(self, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        LOG.warning("this learner is about to fail")
        raise RuntimeError("this learner always fails")


class NotANumber(Linear):
    """Returns NaN for some events."""

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        log_proba = super().predict_log_proba(batch)
        log_proba[0] = np.nan
        return log_proba


class Noisy(Linear):
    """The linear answer plus noise of unit variance in the logit, another one for every fit."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        super().fit(train, valid, seed=seed)
        rng = np.random.default_rng(seed)
        self.fitted_ |= {"wave": 1e3 * rng.normal(size=self._inputs(train).shape[1]), "phase": rng.uniform(0, 6.3, 1)}
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        exact = super().predict_log_proba(batch)
        noise = np.sqrt(2) * np.sin(self._inputs(batch) @ self.fitted_["wave"] + self.fitted_["phase"])
        return log_softmax(exact + np.column_stack([noise, np.zeros((len(noise), exact.shape[1] - 1))]))


class OfTheProcess(Linear):
    """Draws from the random state of its process, which fits side by side in it would share."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        super().fit(train, valid, seed=seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        for _ in range(20):
            time.sleep(0.01)
            self.fitted_["means"] = self.fitted_["means"] + 0.01 * np.random.normal()  # noqa: NPY002
        return self


class OneStart(Linear):
    """Its fits may be averaged in what they have learned."""

    @classmethod
    def averaged(cls, fits: Sequence[Self]) -> Self:
        learner = cls(fits[0].classes, fits[0].settings, threads=fits[0].threads)
        learner.fitted_ = {name: np.mean([fit.fitted_[name] for fit in fits], axis=0) for name in fits[0].fitted_}
        return learner


class FarApart(OneStart):
    """Says that its fits may be averaged, but the mean of them has lost some of what they know."""

    @classmethod
    def averaged(cls, fits: Sequence[Self]) -> Self:
        learner = super().averaged(fits)
        learner.fitted_["means"] *= 0.3
        return learner


def _spec(cls: type[Learner], **options: Any) -> LearnerSpec:
    name = cls.__name__.lower()
    return LearnerSpec(f"fake_{name}", f"tests.stacking.fakes:{cls.__name__}", cls.__doc__ or "", "scalars", **options)


FAKES: dict[str, LearnerSpec] = {
    spec.name: spec
    for spec in map(
        _spec,
        (Linear, Useless, Along, Across, Memorising, Neighbours, Leaking, Failing, NotANumber, Noisy, OfTheProcess),
    )
}
FAKES |= {spec.name: spec for spec in (_spec(cls, one_network=True) for cls in (OneStart, FarApart))}
FAKES["fake_noisy_twin"] = replace(FAKES["fake_noisy"], name="fake_noisy_twin")
