"""Decisions for tasks with a target, such as primary energy: estimates with errors, from posteriors and from learners.

A posterior over the bins of a target gives its mean as the estimate and its width as the error, for the energy in lg E.
The learner of a run that learns true quantities gives energy and core of a shower directly: every fit gives an estimate
and an error. What ships is the mean of the estimates; its variance is the mean of the fits' variances and that of their
estimates (moments of an equal mixture), times a factor by which 68 % of the training events that no fit has learned
from lie within one error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from models.base.inputs import TARGETS
from runtime.context import Progress
from scoring.metrics.residuals import residual_metrics, resolution
from showers.schema import ENERGY, TargetQuantity, Task
from stacking.decide.base import DecisionSample, SavedRule, TaskStacking
from stacking.inputs.events import CONTEXT_SCALARS
from stacking.meta.scorers import OrderedScorer


@dataclass(frozen=True)
class PosteriorMean:
    """Mean and width of a posterior over bins, each of which has a mean and a variance of its own."""

    mean: np.ndarray
    """(C,) mean of each bin."""
    variance: np.ndarray
    """(C,) variance inside each bin."""
    scale: float = 1.0
    """Errors are this times the posterior's width: the open bins at both ends make it too wide."""

    @classmethod
    def of(cls, values: np.ndarray, bins: np.ndarray, n_bins: int) -> Self:
        """Learn means and variances from values (N,) and their bins (N,), none of which is empty."""
        count = np.bincount(bins, minlength=n_bins)
        mean = np.bincount(bins, values, minlength=n_bins) / count
        return cls(mean, np.bincount(bins, (values - mean[bins]) ** 2, minlength=n_bins) / count)

    def __call__(self, log_proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and standard deviation, (N,) each, of log-posteriors (N, C)."""
        share = np.exp(log_proba)
        share /= share.sum(axis=1, keepdims=True)
        estimate = share @ self.mean
        square = share @ (self.variance + self.mean**2)
        return estimate, self.scale * np.sqrt(np.maximum(square - estimate**2, 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        mean, variance = (np.array(content[name], float) for name in ("mean", "variance"))
        return cls(mean, variance, float(content["scale"]))


class TargetStacking(TaskStacking):
    """Estimates with errors; a task's own class says which task it is."""

    task: ClassVar[Task]
    scorer = OrderedScorer()

    def __init_subclass__(cls) -> None:
        """Take the name from the task."""
        cls.name = cls.task.name

    @property
    def target(self) -> TargetQuantity:
        """What is estimated."""
        assert self.task.target is not None
        return self.task.target

    def decide(
        self, held_out: DecisionSample, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take bins from the training events, and the scale of the errors from those that no fit learned from."""
        assert held_out.training is not None
        assert held_out.offsets is not None
        rule = PosteriorMean.of(held_out.training.offsets, held_out.training.labels, self.task.n_classes)
        estimate, error = rule(held_out.systems[held_out.shipped])
        record: dict[str, Any] = {"chosen": "posterior mean"}
        record["held_out"] = residual_metrics(estimate - held_out.offsets)
        record["held_out_in_widths"] = residual_metrics((estimate - held_out.offsets) / np.maximum(error, 1e-12))
        rules = {name: self._scaled(rule, z, held_out.offsets) for name, z in held_out.systems.items()}
        return record, rules

    def _scaled(self, rule: PosteriorMean, log_proba: np.ndarray, offsets: np.ndarray) -> PosteriorMean:
        """Return the rule whose errors hold 68 % of events that no fit learned from."""
        estimate, error = rule(log_proba)
        return replace(rule, scale=resolution((estimate - offsets) / np.maximum(error, 1e-12)))

    def rule_from_json(self, content: Mapping[str, Any]) -> PosteriorMean:
        """Read means and variances."""
        return PosteriorMean.from_json(content)

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return estimates and errors: (N,) float64 each."""
        assert isinstance(rule, PosteriorMean)
        estimate, error = rule(log_proba)
        if self.target.reference is not None:
            assert context is not None
            estimate = estimate + context[:, CONTEXT_SCALARS.index(self.target.reference)]
        return {self.target.name: estimate, f"{self.target.name}_error": error}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the estimates as rule ``estimate``."""
        estimate = stored(self.target.name)
        if estimate is not None:
            yield "estimate", estimate

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return estimates and errors."""
        return [pl.Series(name, values) for name, values in arrays.items()]


class EnergyStacking(TargetStacking):
    """What all targets have in common is all it needs."""

    task = ENERGY


STACKING = EnergyStacking()


ESTIMATES_FILE = "estimates.json"
"""Below ``meta/``: which learner, and the factors of its errors."""
UNITS = {
    "lg_energy": "lg(E/eV)", "lg_energy_error": "lg(E/eV)",
    "core_x_m": "m", "core_x_error_m": "m", "core_y_m": "m", "core_y_error_m": "m",
}  # fmt: skip
"""Arrays of estimates in ``predictions.npz`` and their units."""
OWN_ENERGY, OUTWARD, SIDEWAYS = (
    [target.name for target in TARGETS].index(name) for name in ("lg_energy", "core_outward_m", "core_sideways_m")
)
USED = (OWN_ENERGY, OUTWARD, SIDEWAYS)
MIN_EVENTS = 100
"""Events whose truth is known that the errors' scale takes at least."""


def fits_of(learner: str) -> str:
    """Return the name under which a learner's estimates stand among the predictions of fits."""
    return f"{learner}/truth"


def mixture(fits: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation (n, T, 2) of an equal mixture of the (F, n, T, 2) fits."""
    mean = fits[..., 0].mean(axis=0)
    variance = (fits[..., 1] ** 2).mean(axis=0) + fits[..., 0].var(axis=0)
    return np.stack([mean, np.sqrt(variance)], axis=-1)


@dataclass(frozen=True)
class TargetCalibration:
    """From the fits' standardised estimates to quantities with units."""

    learner: str
    """Whose estimates they are."""
    scale: tuple[float, float, float]
    """Factors of the errors of energy, core outward and core sideways; 0 for what was not learned."""

    @classmethod
    def of(
        cls, learner: str, fits: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[Self, dict[str, Any]]:
        """Measure the errors on events that no fit has learned from.

        Parameters
        ----------
        learner
            Name of the learner.
        fits
            (F, n, T, 2) standardised estimates and errors.
        targets
            (n, T) standardised truth, NaN where unknown.
        weights
            (n,) importance weights, or None: the errors' factors, bias and resolution are then those of weight.

        Returns
        -------
        TargetCalibration
            With factors of the errors.
        dict
            The manifest's entry: bias and resolution, and those of estimate minus truth in errors, with intervals.
        """
        result = mixture(fits)
        record: dict[str, Any] = {"learner": learner, "units": UNITS, "held_out": {}}
        scale = []
        for k in USED:
            known = ~np.isnan(targets[:, k]) & ~np.isnan(result[:, k]).any(axis=1)
            if known.sum() < MIN_EVENTS:
                scale.append(0.0)
                continue
            residual = result[known, k, 0] - targets[known, k]
            in_errors = residual / result[known, k, 1]
            own = None if weights is None else weights[known]
            scale.append(resolution(in_errors, own))
            record["held_out"][TARGETS[k].name] = {
                "unit": TARGETS[k].unit,
                **residual_metrics(residual * TARGETS[k].width, own),
                "in_errors": residual_metrics(in_errors / scale[-1], own),
                "factor_of_errors": scale[-1],
            }
        return cls(learner, (scale[0], scale[1], scale[2])), record

    def arrays(self, fits: np.ndarray, fitted_core: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return estimates and errors (n,) float64 by the names of :data:`UNITS`.

        Parameters
        ----------
        fits
            (F, n, T, 2).
        fitted_core
            (n, 2) m, from which cores are counted; None where there is none.
        """
        with np.errstate(invalid="ignore"):
            result = mixture(fits)
        value, error = [], []
        for k, scale in zip(USED, self.scale, strict=True):
            target = TARGETS[k]
            value.append(result[:, k, 0] * target.width + target.centre)
            error.append(result[:, k, 1] * target.width * scale)
        arrays: dict[str, np.ndarray] = {}
        if self.scale[0]:
            arrays |= {"lg_energy": value[0], "lg_energy_error": error[0]}
        if self.scale[1] and self.scale[2] and fitted_core is not None:
            x, y = fitted_core.T
            r = np.maximum(np.hypot(x, y), 1e-3)
            cos, sin = x / r, y / r
            arrays |= {
                "core_x_m": x + value[1] * cos - value[2] * sin,
                "core_x_error_m": np.hypot(error[1] * cos, error[2] * sin),
                "core_y_m": y + value[1] * sin + value[2] * cos,
                "core_y_error_m": np.hypot(error[1] * sin, error[2] * cos),
            }
        return arrays

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"learner": self.learner, "scale": list(self.scale)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        first, second, third = (float(x) for x in content["scale"])
        return cls(str(content["learner"]), (first, second, third))
