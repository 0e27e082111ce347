"""Knees of the groups: positions with profile intervals and systematic errors, and hypotheses on what they share.

All come from one likelihood (:mod:`showerstack.analysis.spectra.likelihood`): intervals are where its profile crosses
1 and 3.84, and hold the statistics of data and simulation and the scales. Where data do not tell the muon and electron
scales above the noise of the response, these are held, and the profile is made flatter by what a knee moves with each
(:meth:`HeldScales.widening`): left free, they follow that noise, and intervals hold too seldom. A limit that the
profile never reaches is left open. Likelihood ratios do not follow chi-square here: a knee outside the data is no
parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.spectra.fluxes import spread_of_models
from showerstack.analysis.spectra.folding import SCALES, FoldedResponse
from showerstack.analysis.spectra.likelihood import (
    HYPOTHESES,
    KNEE_RANGE,
    SHARPNESS_RANGE,
    FoldedFit,
    FoldingProblem,
    fit_once,
    minimise,
)
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS

STEP_GROWTH = 1.2
"""Steps of a profile grow: where it is flat, few are needed."""
COMPARED = (("none", "rigidity"), ("rigidity", "free"), ("constant", "rigidity"), ("mass", "rigidity"))


@dataclass(frozen=True)
class KneeInterval:
    """Where a knee may be; a limit is None where the profile never rises to it."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Knee:
    """Position of one group's knee, or of the common one."""

    name: str
    lg_energy: float
    """lg(E/eV); for the rigidity lg(R/V)."""
    interval68: KneeInterval
    interval95: KneeInterval
    systematic: dict[str, float]
    """Standard deviation of lg E by source; NaN where it is not known."""
    grid: np.ndarray
    profile: np.ndarray
    """Difference of -2 ln L to its minimum, along :attr:`grid`."""


@dataclass(frozen=True)
class LikelihoodRatio:
    """A hypothesis against a more general, or another one."""

    null: str
    other: str
    gained: float
    """-2 ln L of the null less that of the other."""


@dataclass(frozen=True)
class Knees:
    """All fits."""

    fits: dict[str, FoldedFit]
    rigidity: Knee
    groups: tuple[Knee, ...]
    comparisons: tuple[LikelihoodRatio, ...]

    def table(self) -> pl.DataFrame:
        """Return one row per knee: the groups' own, and the common rigidity."""
        rows = []
        for one in (*self.groups, self.rigidity):
            limits = {f"{side}_{level}": getattr(interval, side)
                      for level, interval in (("68", one.interval68), ("95", one.interval95))
                      for side in ("low", "high")}  # fmt: skip
            errors = {f"lg_knee_error_{source}": value for source, value in one.systematic.items()}
            total = float(np.sqrt(sum(value**2 for value in one.systematic.values())))
            rows.append(
                {"group": one.name, "lg_knee_eV": one.lg_energy}
                | {f"lg_knee_{name}_eV": value for name, value in limits.items()}
                | errors
                | {"lg_knee_error_all_systematic": total}
            )
        return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.selectors.float().fill_nan(None))

    def as_json(self) -> dict[str, Any]:
        """Return what is said of the fits."""
        return {
            "sharpness": next(iter(self.fits.values())).likelihood.sharpness,
            "hypotheses": {
                name: {"minus_2_ln_likelihood": one.cost, "chi2": one.chi2, "ndf": one.ndf,
                       "index": one.parameters[one.likelihood.layout.indices].tolist(),
                       "change_of_index": change_of_index(one),
                       "lg_knee_eV": [number_or_none(lg_knee)
                                      for lg_knee in one.likelihood.layout.lg_knees(one.parameters)]}
                for name, one in self.fits.items()
            },
            "likelihood_ratios": [
                {"null": one.null, "against": one.other, "gained": one.gained}
                for one in self.comparisons
            ],
        }  # fmt: skip


def number_or_none(value: float) -> float | None:
    """Return a number for JSON, None where it is not finite."""
    return float(value) if np.isfinite(value) else None


def change_of_index(fit: FoldedFit) -> float:
    """Return d of a fit, 0 without knees."""
    layout = fit.likelihood.layout
    return float(fit.parameters[layout.knees.start - 1]) if layout.n_knees else 0.0


@dataclass(frozen=True)
class HeldScales:
    """A fit of the knees, with the muon and electron scales held where data do not tell them."""

    problem: FoldingProblem
    fit: FoldedFit
    moved: tuple[tuple[FoldedResponse, FoldedResponse], ...] = ()
    """By held scale: the response at plus and at minus one width."""

    @classmethod
    def of(cls, problem: FoldingProblem, best: FoldedFit) -> HeldScales:
        """Hold the scales of a fit if they have to be."""
        moving = best.likelihood.response.moving
        if not moving or best.tells_scales:
            return cls(problem, best)

        def still(at: np.ndarray) -> FoldedResponse:
            return replace(problem.respond(at), moved={}, parts={})

        unit, nominal = np.eye(len(SCALES)), still(np.zeros(len(SCALES)))
        fit = replace(problem, respond=lambda at: nominal).fit(best.likelihood.layout.hypothesis)
        return cls(problem, fit, tuple((still(unit[k]), still(-unit[k])) for k in moving))

    def widening(self, fit: FoldedFit, place: int) -> float:
        """Return 1 + sum of (dR)^2 / V, by which the profile of a knee is divided: dR is half the difference of its
        positions with a scale at plus and minus one width, V the variance of its position as fitted."""
        column = fit.likelihood.layout.names.index(f"lg_r{place}")
        shifts = []
        for pair in self.moved:
            positions = []
            for response in pair:
                likelihood, start = replace(fit.likelihood, response=response), fit.parameters.copy()
                start[likelihood.layout.scales][1:] = response.at[1:]
                positions.append(float(fit_once(likelihood, start).parameters[column]))
            shifts.append((positions[0] - positions[1]) / 2)
        variance = float(fit.covariance()[column, column])
        return 1.0 + sum(shift**2 for shift in shifts) / variance if variance > 0 else 1.0

    def profile(self, fit: FoldedFit, place: int) -> tuple[FoldedFit, tuple[np.ndarray, np.ndarray]]:
        """Return :func:`profile_knee` of a fit, flattened."""
        factor = self.widening(fit, place) if self.moved else 1.0
        fit, (grid, profile) = profile_knee(fit, place, factor)
        return fit, (grid, profile / factor)


def fit_knees(problem: FoldingProblem, best: FoldedFit, by_model: list[FoldedFit]) -> Knees:
    """Fit all hypotheses with the response of a fit, profile the knees, and compare."""
    held = HeldScales.of(problem, best)
    best, common_curve = held.profile(held.fit, 0)
    fits = {"rigidity": best} | {name: _fit_like(problem, best, name) for name in HYPOTHESES if name != "rigidity"}
    free, curves = fits["free"], []
    names = best.likelihood.layout.groups.names
    for k in range(len(names)):
        free, curve = held.profile(free, k)  # which may have come upon a lower minimum
        curves.append(curve)
    fits["free"] = free
    comparisons = tuple(LikelihoodRatio(one, other, fits[one].cost - fits[other].cost) for one, other in COMPARED)
    by_sharpness = {
        "sharpness": [fit_once(replace(best.likelihood, sharpness=value), best.parameters) for value in SHARPNESS_RANGE]
    }
    rigidity = _knee("rigidity", best, common_curve, 0, by_sharpness["sharpness"], by_model)
    sharp = [fit_once(replace(free.likelihood, sharpness=value), free.parameters) for value in SHARPNESS_RANGE]
    models = [_fit_like(problem, one, "free") for one in by_model]
    groups = (_knee(name, free, curves[k], k, sharp, models) for k, name in enumerate(names))
    return Knees(fits, rigidity, tuple(groups), comparisons)


def _fit_like(problem: FoldingProblem, best: FoldedFit, hypothesis: str) -> FoldedFit:
    """Fit another hypothesis with the response of a fit, from its parameters."""
    likelihood = problem.likelihood(best.likelihood.response, hypothesis)
    layout, old = likelihood.layout, best.likelihood.layout
    start = likelihood.start()
    for part in ("heights", "indices", "scales"):
        start[getattr(layout, part)] = best.parameters[getattr(old, part)]
    starts = [start]
    if layout.n_knees:
        start[layout.knees.start - 1] = max(change_of_index(best), 0.1)
        lg_knees = np.clip(old.lg_knees(best.parameters), *KNEE_RANGE)
        for knees in (lg_knees[: layout.n_knees], np.full(layout.n_knees, lg_knees[0] + 0.3)):
            starts.append(start.copy())
            starts[-1][layout.knees] = knees
        starts = starts[1:]
    return min((fit_once(likelihood, one) for one in starts), key=lambda one: one.cost)


def profile_knee(fit: FoldedFit, place: int, factor: float = 1.0) -> tuple[FoldedFit, tuple[np.ndarray, np.ndarray]]:
    """Profile one knee of a fit, up to twice the highest level times a factor.

    Returns
    -------
    The fit, from a lower start if the profile found one; positions lg E and -2 ln L above the minimum there.
    """
    name = f"lg_r{place}"
    column = fit.likelihood.layout.names.index(name)
    for _ in range(3):
        grid, profile, starts = _walk_profile(fit, name, column, 2 * factor * CHI_SQUARE_LEVELS[1])
        lowest = int(profile.argmin())
        if profile[lowest] > fit.cost - 0.02:
            break
        cost, parameters, valid = minimise(fit.likelihood, starts[lowest])
        chi2 = float(fit.likelihood.terms(parameters).sum())
        fit = replace(fit, parameters=parameters, cost=cost, chi2=chi2, valid=valid)
    return fit, (grid, profile - min(profile.min(), fit.cost))


def _walk_profile(fit: FoldedFit, name: str, column: int, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions on both sides of a fit, the costs there and the parameters, until the costs are high enough."""
    at = float(fit.parameters[column])
    step = float(np.clip(np.sqrt(fit.covariance()[column, column]) / 2, 0.01, 0.1))
    rows = [(at, fit.cost, fit.parameters)]
    for sign in (-1, 1):
        start, position, length, cost = fit.parameters, at, step, fit.cost
        while cost - fit.cost < top and position != KNEE_RANGE[sign > 0]:
            position = float(np.clip(position + sign * length, *KNEE_RANGE))
            cost, start = fit.profile(name, position, start)
            rows.append((position, cost, start))
            length *= STEP_GROWTH
    rows.sort(key=lambda row: row[0])
    grid, costs, starts = zip(*rows, strict=True)
    return np.array(grid), np.array(costs), np.array(starts)


def _knee(
    name: str, fit: FoldedFit, values: tuple[np.ndarray, np.ndarray], place: int, sharp: list[FoldedFit],
    models: list[FoldedFit],
) -> Knee:  # fmt: skip
    """Collect a knee's intervals and systematic errors; those of unknown sources are NaN."""
    grid, profile = values
    at = float(grid[profile.argmin()])
    first, second = (crossing(grid, profile, at, level) for level in CHI_SQUARE_LEVELS)

    def position(one: FoldedFit) -> float:
        return float(one.parameters[column(one)])

    def column(one: FoldedFit) -> int:
        return one.likelihood.layout.names.index(f"lg_r{place}")

    def noise(one: FoldedFit) -> float:
        """Return what the finite response adds to the variance of the position."""
        whole, of_counts = (np.diag(one.covariance(simulation=finite))[column(one)] for finite in (True, False))
        return max(float(whole - of_counts), 0.0)

    systematic = {
        "hadronic_model": model_error([position(one) for one in models], [noise(one) for one in models]),
        "sharpness": max(abs(position(one) - position(fit)) for one in sharp),
    }
    return Knee(name, at, first, second, systematic, grid, profile)


def model_error(positions: list[float], noise: list[float]) -> float:
    """Return the error that positions by several models, and the variances of their responses' noise, make likely.

    It is that of :func:`spread_of_models`; NaN by one model.
    """
    if len(positions) < 2:
        return np.nan
    spread = spread_of_models([np.array([at]) for at in positions], [np.array([[variance]]) for variance in noise])
    return float(np.sqrt(spread[0, 0]))


def crossing(grid: np.ndarray, profile: np.ndarray, at: float, level: float) -> KneeInterval:
    """Return where a profile crosses a level, nearest to its minimum on either side; straight in its square root."""

    def side(x: np.ndarray, y: np.ndarray) -> float | None:
        above = np.flatnonzero(y > level)
        if not len(above) or above[0] == 0:
            return None
        k = above[0]
        return float(np.interp(np.sqrt(level), np.sqrt(np.maximum([y[k - 1], y[k]], 0)), [x[k - 1], x[k]]))

    down, up = grid <= at, grid >= at
    return KneeInterval(side(grid[down][::-1], profile[down][::-1]), side(grid[up], profile[up]))
