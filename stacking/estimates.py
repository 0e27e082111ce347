"""What learners say of events: posteriors, and estimates with errors made of them.

A posterior over the bins of a target gives its mean as the estimate and its width as the error, for the energy in lg E.
The learner of a run that learns true quantities gives energy and core of a shower directly: every fit gives an estimate
and an error. Shipped is the mean of the estimates; its variance is the mean of the fits' variances plus the variance of
their estimates (moments of an equal mixture), times a factor by which 68 % of the training events that no fit has
learned from lie within one error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
from scipy.special import softmax

from showerstack.models.base.inputs import TARGETS
from showerstack.scoring.metrics.residuals import residual_metrics, resolution, shown_median

OWN = "own estimate"
"""Name, among the estimates that are pooled, of the one by the learner of true quantities."""
POOL = "pool of estimates"
"""Name of the pool among the rules of a run's systems."""
MAX_LOG_STRENGTH = 12.0
"""Logarithm of a strength, either way, beyond which an estimate's share no longer changes."""
SMALLEST_ERROR = 1e-6
UNITS = {
    "lg_energy": "lg(E/eV)", "lg_energy_error": "lg(E/eV)",
    "core_x_m": "m", "core_x_error_m": "m", "core_y_m": "m", "core_y_error_m": "m",
}  # fmt: skip
"""Arrays of estimates in ``predictions.npz`` and their units."""
OWN_ENERGY, OUTWARD, SIDEWAYS = (
    [target.name for target in TARGETS].index(name) for name in ("lg_energy", "core_outward_m", "core_sideways_m")
)
USED = (OWN_ENERGY, OUTWARD, SIDEWAYS)
MIN_EVENTS = 30
"""Showers of known truth without which errors are not measured: by so many to an eighth."""


@dataclass(frozen=True)
class Posterior:
    """What the F fits of a learner, or one of them, say of n events."""

    log_proba: np.ndarray | None
    """(F, n, C) or (n, C) float64 log-probabilities; None where they are not wanted."""
    estimates: np.ndarray | None = None
    """(F, n, T, 2) or (n, T, 2) standardised estimates of true quantities and their errors; None where they are not
    wanted, or the learner gives none."""

    def take(self, rows: slice | np.ndarray) -> Self:
        """Return what the fits say of some of the events."""
        log_proba, estimates = (None if z is None else z[:, rows] for z in (self.log_proba, self.estimates))
        return type(self)(log_proba, estimates)

    @classmethod
    def stacked(cls, fits: Sequence[Self]) -> Self:
        """Return as one what single fits say of the same events."""
        parts = ([fit.log_proba for fit in fits], [fit.estimates for fit in fits])
        log_proba, estimates = (None if part[0] is None else np.stack(part) for part in parts)  # type: ignore[arg-type]
        return cls(log_proba, estimates)


@dataclass(frozen=True)
class PosteriorMean:
    """Mean and width of a posterior over bins, each of which has a mean and a variance of its own."""

    mean: np.ndarray
    """(C,) mean of each bin."""
    variance: np.ndarray
    """(C,) variance inside each bin."""
    scale: float = 1.0
    """Error over the posterior's width, which the open bins at both ends make too large."""

    @classmethod
    def of(cls, values: np.ndarray, bins: np.ndarray, n_bins: int) -> Self:
        """Learn means and variances from values (N,) and their bins (N,), none of which is empty."""
        count = np.bincount(bins, minlength=n_bins)
        mean = np.bincount(bins, values, minlength=n_bins) / count
        variance = np.bincount(bins, (values - mean[bins]) ** 2, minlength=n_bins) / count
        return cls(mean, variance)

    def __call__(self, log_proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and standard deviation, (N,) each, of log-posteriors (N, C)."""
        probability = np.exp(log_proba)
        probability /= probability.sum(axis=1, keepdims=True)
        estimate = probability @ self.mean
        mean_square = probability @ (self.variance + self.mean**2)
        return estimate, self.scale * np.sqrt(np.maximum(mean_square - estimate**2, 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        mean, variance = (np.array(content[name], float) for name in ("mean", "variance"))
        return cls(mean, variance, float(content["scale"]))


def _shares(log_strength: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the weights (J, n) in proportion to ``strength_j / error_j^2``, which add up to 1 in each shower."""
    return np.asarray(softmax(log_strength[:, None] - 2.0 * np.log(np.maximum(errors, SMALLEST_ERROR)), axis=0))


@dataclass(frozen=True)
class EstimatePool:
    """One estimate of several.

    In each shower estimate j counts in proportion to ``strength_j / error_j^2``, so that one with a large error there,
    such as a posterior in an open bin, gives way. The strengths minimise the squared loss. The pool's variance is that
    of a weighted mean of correlated estimates, times the square of a factor by which 68 % of the showers lie within one
    error.
    """

    names: tuple[str, ...]
    """Of the J estimates: systems, and :data:`OWN`."""
    strengths: np.ndarray
    """(J,) positive, their mean logarithm 0."""
    biases: np.ndarray
    """(J,) mean of each estimate minus the truth, which is subtracted."""
    correlation: np.ndarray
    """(J, J) of the estimates' deviations, in errors."""
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        values: np.ndarray,
        errors: np.ndarray,
        truth: np.ndarray,
        importance: np.ndarray | None = None,
    ) -> Self:
        """Learn from showers that no fit has learned from.

        Parameters
        ----------
        values, errors
            (J, n) estimates and their errors.
        truth
            (n,).
        importance
            (n,) importance weights of the showers; None where all count alike.
        """
        biases = np.average(values - truth, axis=1, weights=importance)
        unbiased = values - biases[:, None]

        def loss(log_strength: np.ndarray) -> tuple[float, np.ndarray]:
            shares = _shares(log_strength, errors)
            pooled = (shares * unbiased).sum(axis=0)
            residual = pooled - truth
            slope = 2.0 * np.average(shares * (unbiased - pooled) * residual, axis=1, weights=importance)
            return float(np.average(residual**2, weights=importance)) / spread, slope / spread

        spread = float(np.average((unbiased.mean(axis=0) - truth) ** 2, weights=importance)) or 1.0
        bounds = [(-MAX_LOG_STRENGTH, MAX_LOG_STRENGTH)] * len(names)
        from scipy.optimize import minimize  # predictions need no fit

        best = minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B", bounds=bounds).x
        in_errors = (unbiased - truth) / np.maximum(errors, SMALLEST_ERROR)
        covariance = np.cov(in_errors, aweights=importance).reshape(len(names), -1)
        widths = np.sqrt(np.diag(covariance))
        correlation = np.clip(covariance / np.outer(widths, widths), -1, 1)
        pool = cls(names, np.exp(best - best.mean()), biases, correlation)
        estimate, error = pool(values, errors)
        return replace(pool, scale=resolution((estimate - truth) / error, importance))

    def __call__(self, values: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and error, (n,) each, of (J, n) estimates and errors."""
        errors = np.maximum(errors, SMALLEST_ERROR)
        shares = _shares(np.log(self.strengths), errors)
        estimate = (shares * (values - self.biases[:, None])).sum(axis=0)
        parts = shares * errors
        variance = np.einsum("jn,jk,kn->n", parts, self.correlation, parts)
        return estimate, self.scale * np.sqrt(np.maximum(variance, SMALLEST_ERROR**2))

    def shares(self, errors: np.ndarray) -> dict[str, float]:
        """Return the mean weight of each estimate over showers with these errors (J, n)."""
        shares = _shares(np.log(self.strengths), errors)
        return dict(zip(self.names, shares.mean(axis=1).tolist(), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        arrays = {name: getattr(self, name).tolist() for name in ("strengths", "biases", "correlation")}
        return {"names": list(self.names), **arrays, "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        strengths, biases, correlation = (np.array(content[k], float) for k in ("strengths", "biases", "correlation"))
        return cls(tuple(map(str, content["names"])), strengths, biases, correlation, float(content["scale"]))


Rule: TypeAlias = PosteriorMean | EstimatePool
"""How a task makes estimates from posteriors; kept in ``meta/decision.json``."""


def rule_from_json(content: Mapping[str, Any]) -> Rule:
    """Read what a rule's ``as_json`` returned."""
    return EstimatePool.from_json(content) if "strengths" in content else PosteriorMean.from_json(content)


def mixture(fits: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation (n, T, 2) of an equal mixture of the (F, n, T, 2) fits."""
    mean = fits[..., 0].mean(axis=0)
    variance = (fits[..., 1] ** 2).mean(axis=0) + fits[..., 0].var(axis=0)
    return np.stack([mean, np.sqrt(variance)], axis=-1)


def of_other_half(statistic: Callable[..., float], *parts: np.ndarray | None) -> np.ndarray:
    """Return for each event, (n,), a statistic of parts (n,), or None, of the half of the events in which it is not.

    Halves are the first and the last rows: rows of one shower follow each other.
    """
    (n,) = {len(part) for part in parts if part is not None}
    first = np.arange(n) < n // 2
    halves = [statistic(*(None if part is None else part[half] for part in parts)) for half in (~first, first)]
    return np.where(first, *halves)


@dataclass(frozen=True)
class TargetCalibration:
    """From the fits' standardised estimates to quantities with units."""

    learner: str
    """Whose estimates they are."""
    scale: tuple[float, float, float]
    """Factors of the errors of energy, core outward and core sideways; 0 for what was not learned."""
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Medians of estimate minus truth, standardised, which are subtracted; 0 where they are not shown to be another."""

    @classmethod
    def of(
        cls,
        learner: str,
        fits: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> tuple[Self, dict[str, Any]]:
        """Measure the errors on events that no fit has learned from.

        Parameters
        ----------
        fits
            (F, n, T, 2) standardised estimates and errors.
        targets
            (n, T) standardised truth, NaN where unknown.
        weights
            (n,) importance weights, or None: the errors' factors, bias and resolution are then those of weight.
        groups
            (n,) events of one value are one shower, or None where all are different ones.

        Returns
        -------
        TargetCalibration
            With factors of the errors.
        dict
            The manifest's entry: bias and resolution, and those of estimate minus truth in errors, with intervals.
        """
        estimates = mixture(fits)
        record: dict[str, Any] = {"learner": learner, "units": UNITS, "held_out": {}}
        scale, offset = [0.0] * len(USED), [0.0] * len(USED)
        for place, k in enumerate(USED):
            known = ~np.isnan(targets[:, k]) & ~np.isnan(estimates[:, k]).any(axis=1)
            importance, shower = (None if part is None else part[known] for part in (weights, groups))
            if (known.sum() if shower is None else len(np.unique(shower))) < MIN_EVENTS:
                continue
            residual, error = estimates[known, k, 0] - targets[known, k], estimates[known, k, 1]
            offset[place] = shown_median(residual, importance, shower)
            scale[place] = resolution((residual - offset[place]) / error, importance)
            residual = residual - of_other_half(shown_median, residual, importance, shower)
            in_errors = residual / error
            record["held_out"][TARGETS[k].name] = {
                "unit": TARGETS[k].unit,
                **residual_metrics(residual * TARGETS[k].width, importance),
                "in_errors": residual_metrics(in_errors / of_other_half(resolution, in_errors, importance), importance),
                "factor_of_errors": scale[place],
            }
        return cls(learner, (scale[0], scale[1], scale[2]), (offset[0], offset[1], offset[2])), record

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
            estimates = mixture(fits)
        value, error = [], []
        for k, scale, offset in zip(USED, self.scale, self.offset, strict=True):
            target = TARGETS[k]
            value.append((estimates[:, k, 0] - offset) * target.width + target.centre)
            error.append(estimates[:, k, 1] * target.width * scale)
        (lg_energy, outward, sideways), (lg_energy_error, outward_error, sideways_error) = value, error
        arrays: dict[str, np.ndarray] = {}
        if self.scale[0]:
            arrays |= {"lg_energy": lg_energy, "lg_energy_error": lg_energy_error}
        if self.scale[1] and self.scale[2] and fitted_core is not None:
            x, y = fitted_core.T
            r = np.maximum(np.hypot(x, y), 1e-3)
            cos, sin = x / r, y / r
            arrays |= {
                "core_x_m": x + outward * cos - sideways * sin,
                "core_x_error_m": np.hypot(outward_error * cos, sideways_error * sin),
                "core_y_m": y + outward * sin + sideways * cos,
                "core_y_error_m": np.hypot(outward_error * sin, sideways_error * cos),
            }
        return arrays

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"learner": self.learner, "scale": list(self.scale), "offset": list(self.offset)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        (energy, outward, sideways), offset = (tuple(map(float, content[name])) for name in ("scale", "offset"))
        return cls(str(content["learner"]), (energy, outward, sideways), (offset[0], offset[1], offset[2]))
