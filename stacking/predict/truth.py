"""Energy and core of a shower with errors, by the learner of a run that was taught true quantities.

Every fit gives an estimate and an error. What ships is the mean of the estimates; its variance is the mean of the fits'
variances and that of their estimates (moments of an equal mixture), times a factor by which 68 % of the training events
that no fit has learned from lie within one error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from models.pretraining.targets import TARGETS
from scoring.residuals import residual_metrics, resolution

ESTIMATES_FILE = "estimates.json"
"""Below ``meta/``: which learner, and the factors of its errors."""
UNITS = {
    "lg_energy": "lg(E/eV)", "lg_energy_error": "lg(E/eV)",
    "core_x_m": "m", "core_x_error_m": "m", "core_y_m": "m", "core_y_error_m": "m",
}  # fmt: skip
"""Arrays of estimates in ``predictions.npz`` and their units."""
ENERGY, OUTWARD, SIDEWAYS = (
    [target.name for target in TARGETS].index(name) for name in ("lg_energy", "core_outward_m", "core_sideways_m")
)
USED = (ENERGY, OUTWARD, SIDEWAYS)
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
class Estimator:
    """From the fits' standardised estimates to quantities with units."""

    learner: str
    """Whose estimates they are."""
    scale: tuple[float, float, float]
    """Factors of the errors of energy, core outward and core sideways; 0 for what was not taught."""

    @classmethod
    def of(cls, learner: str, fits: np.ndarray, targets: np.ndarray) -> tuple[Self, dict[str, Any]]:
        """Measure the errors on events that no fit has learned from.

        Parameters
        ----------
        learner
            Name of the learner.
        fits
            (F, n, T, 2) standardised estimates and errors.
        targets
            (n, T) standardised truth, NaN where unknown.

        Returns
        -------
        Estimator
            With factors of the errors.
        dict
            The manifest's entry: bias and resolution, and those of estimate minus truth in errors, with intervals.
        """
        found = mixture(fits)
        record: dict[str, Any] = {"learner": learner, "units": UNITS, "held_out": {}}
        scale = []
        for k in USED:
            known = ~np.isnan(targets[:, k]) & ~np.isnan(found[:, k]).any(axis=1)
            if known.sum() < MIN_EVENTS:
                scale.append(0.0)
                continue
            residual = found[known, k, 0] - targets[known, k]
            pull = residual / found[known, k, 1]
            scale.append(resolution(pull))
            record["held_out"][TARGETS[k].name] = {
                "unit": TARGETS[k].unit,
                **residual_metrics(residual * TARGETS[k].width),
                "in_errors": residual_metrics(pull / scale[-1]),
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
            found = mixture(fits)
        value, error = [], []
        for k, scale in zip(USED, self.scale, strict=True):
            target = TARGETS[k]
            value.append(found[:, k, 0] * target.width + target.centre)
            error.append(found[:, k, 1] * target.width * scale)
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
