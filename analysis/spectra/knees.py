"""Knees of the groups: positions with profile intervals and systematic errors, and hypotheses on what they share.

Intervals are those of the profile of chi-square, by Minuit; a limit that the profile never reaches is left open.
Likelihood ratios do not follow chi-square here (a knee outside the data is no parameter), so p-values come from toy
experiments. The fits are those of :mod:`analysis.spectra.power_law`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from analysis.spectra.errors import STATISTICAL, Errors
from analysis.spectra.estimate import SpectrumEstimate
from analysis.spectra.power_law import (
    BEYOND,
    HYPOTHESES,
    SHARPNESS,
    SHARPNESS_RANGE,
    KneeData,
    KneeFit,
    fit,
    fit_from,
    knee_data,
    parameter_names,
    start_minuit,
)

PROFILE_POINTS = 41
LARGEST_MOVES = 3
"""Independent ways in which a source of systematic errors moves the fluxes; all others are smaller."""


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
    """Standard deviation of lg E by source; NaN where the source's covariance is not known."""
    grid: np.ndarray
    profile: np.ndarray
    """Difference of chi-square to its minimum, along :attr:`grid`."""


@dataclass(frozen=True)
class LikelihoodRatio:
    """A hypothesis against a more general, or another one."""

    null: str
    other: str
    gained: float
    """Chi-square of the null less that of the other."""
    p_value: float
    """Share of toy experiments, made as the null says, in which the other gains as much."""
    gained_moved: tuple[float, float]
    """Range of the gain when each systematic source is moved by one standard deviation."""


@dataclass(frozen=True)
class Knees:
    """All fits."""

    data: KneeData
    classes: tuple[str, ...]
    fits: dict[str, KneeFit]
    rigidity: Knee
    groups: tuple[Knee, ...]
    comparisons: tuple[LikelihoodRatio, ...]
    goodness: dict[str, float]
    """p-value of chi-square of each hypothesis, from toy experiments."""
    toys: int

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
            "sharpness": self.data.sharpness,
            "toys": self.toys,
            "hypotheses": {
                name: {"chi2": one.chi2, "p_value": self.goodness[name], "index": one.index.tolist(),
                       "change_of_index": one.change, "lg_knee_eV": [number(value) for value in one.lg_knee]}
                for name, one in self.fits.items()
            },
            "likelihood_ratios": [
                {"null": one.null, "against": one.other, "chi2_difference": one.gained, "p_value": one.p_value,
                 "chi2_difference_with_systematics": list(one.gained_moved)}
                for one in self.comparisons
            ],
        }  # fmt: skip


def number(value: float) -> float | None:
    """Return a number for JSON, None where it is not finite."""
    return float(value) if np.isfinite(value) else None


COMPARED = (("none", "rigidity"), ("rigidity", "free"), ("constant", "free"), ("constant", "rigidity"),
            ("rigidity", "constant"), ("mass", "rigidity"), ("rigidity", "mass"))  # fmt: skip


def fit_knees(
    spectrum_estimate: SpectrumEstimate, errors: Errors, *, sharpness: float = SHARPNESS, toys: int = 100, seed: int = 4
) -> Knees | str:
    """Fit all hypotheses, profile the knees, and compare; or say why not.

    Parameters
    ----------
    spectrum_estimate
        Fluxes.
    errors
        Their covariances by source.
    sharpness
        Of the knee.
    toys
        Toy experiments a hypothesis; the smallest p-value that can be stated is 1 / (toys + 1).
    """
    data = knee_data(spectrum_estimate, errors, sharpness)
    if isinstance(data, str):
        return data
    classes = spectrum_estimate.setting.classes
    fits = {name: fit(data, name) for name in HYPOTHESES}
    moved = _moved(data, spectrum_estimate, errors)
    again = {source: [_all_again(one, fits) for one in every] for source, every in moved.items()}
    drawn = {name: _toys(data, fits, name, toys, seed + k) for k, name in enumerate(HYPOTHESES)}
    comparisons = []
    for null, other in COMPARED:
        gained = fits[null].chi2 - fits[other].chi2
        toy = drawn[null][null] - drawn[null][other]
        ranged = [one[null].chi2 - one[other].chi2 for every in again.values() for one in every] + [gained]
        comparisons.append(LikelihoodRatio(null, other, gained, _p(toy, gained), (min(ranged), max(ranged))))
    unknown = [source for source in errors.flux if source not in STATISTICAL and source not in again]
    groups = tuple(_knee(data, fits, "free", k, name, again, unknown) for k, name in enumerate(classes))
    rigidity = _knee(data, fits, "rigidity", 0, "rigidity", again, unknown)
    goodness = {name: _p(drawn[name][name], fits[name].chi2) for name in HYPOTHESES}
    return Knees(data, classes, fits, rigidity, groups, tuple(comparisons), goodness, toys)


def _all_again(data: KneeData, fits: dict[str, KneeFit]) -> dict[str, KneeFit]:
    """Fit all hypotheses to moved data; a general one from the fits of the special ones as well."""
    result = {name: fit(data, name, fits[name]) for name in HYPOTHESES}
    for name in ("rigidity", "constant"):
        other = fit(data, "free", replace(_like(result[name], "free", data), covariance=fits["free"].covariance))
        result["free"] = min(result["free"], other, key=lambda one: one.chi2)
    return result


def _moved(data: KneeData, spectrum_estimate: SpectrumEstimate, errors: Errors) -> dict[str, list[KneeData]]:
    """Return the data as each systematic source moves them by one standard deviation, up and down.

    Sources whose covariance is not finite in all bins have none.
    """
    n_classes = spectrum_estimate.flux.shape[1]
    used = np.isin(spectrum_estimate.setting.bins.edges[:-1], data.edges[:, 0])
    rows = np.repeat(used, n_classes)
    unit = np.repeat(data.unit, n_classes)
    every = {}
    for source, covariance in errors.flux.items():
        if source in STATISTICAL:
            continue
        relative = covariance[np.ix_(rows, rows)] / np.outer(unit, unit)
        if not np.isfinite(relative).all():
            continue
        values, vectors = np.linalg.eigh(relative)
        large = np.flatnonzero(values > 1e-6 * max(values.max(), 1e-12))[-LARGEST_MOVES:]
        moves = [(np.sqrt(values[k]) * vectors[:, k] * unit).reshape(-1, n_classes) for k in large]
        every[source] = [replace(data, flux=data.flux + sign * move) for move in moves for sign in (-1, 1)]
    every["sharpness"] = [replace(data, sharpness=value) for value in SHARPNESS_RANGE]
    return {source: moved for source, moved in every.items() if moved}


def _toys(data: KneeData, fits: dict[str, KneeFit], truth: str, toys: int, seed: int) -> dict[str, np.ndarray]:
    """Return chi-square (toys,) of the hypotheses that are compared with ``truth``, in data that it describes."""
    rng = np.random.default_rng(seed)
    wanted = {truth, *(other for null, other in COMPARED if null == truth)}
    covariance = fits[truth].covariance
    root = np.linalg.cholesky(covariance)
    drawn = np.zeros((toys, len(wanted)))
    for t in range(toys):
        noise = np.einsum("bij,bj->bi", root, rng.normal(size=data.flux.shape))
        toy = replace(data, flux=fits[truth].flux + noise)
        for k, name in enumerate(wanted):
            starts = [fits[name]] if name == truth else [fits[name], _like(fits[truth], name, data)]
            drawn[t, k] = min(fit_from(toy, name, start.parameters, covariance).chi2 for start in starts)
    return {name: drawn[:, k] for k, name in enumerate(wanted)}


def _like(other: KneeFit, hypothesis: str, data: KneeData) -> KneeFit:
    """Return a start for one hypothesis from the fit of another."""
    n_classes = data.flux.shape[1]
    knees = np.where(np.isfinite(other.lg_knee), other.lg_knee, data.middle)
    first = {"free": knees, "none": knees[:0]}.get(hypothesis, knees[:1])
    rest = (max(other.change, 0.2), *first) if hypothesis != "none" else ()
    return replace(other, hypothesis=hypothesis, parameters=(*other.parameters[:n_classes], *rest))


def _p(toys: np.ndarray, observed: float) -> float:
    return float((1 + np.count_nonzero(toys >= observed)) / (len(toys) + 1))


def _knee(
    data: KneeData,
    fits: dict[str, KneeFit],
    hypothesis: str,
    place: int,
    name: str,
    again: dict[str, list[dict[str, KneeFit]]],
    unknown: list[str],
) -> Knee:
    """Profile one knee and collect its systematic errors; those of unknown sources are NaN."""
    best = fits[hypothesis]
    at = float(best.lg_knee[place])
    grid, profile, lowest, intervals = profiled(data, best, place)
    systematic = dict.fromkeys(unknown, np.nan)
    for source, every in again.items():
        moves = np.array([one[hypothesis].lg_knee[place] for one in every]) - at
        if source == "sharpness":
            systematic[source] = float(np.abs(moves).max())
        else:  # up and down in pairs: half the difference of each, in quadrature
            systematic[source] = float(np.sqrt(((moves[1::2] - moves[::2]) ** 2 / 4).sum()))
    return Knee(name, lowest, *intervals, systematic, grid, profile)


def profiled(
    data: KneeData, best: KneeFit, place: int
) -> tuple[np.ndarray, np.ndarray, float, tuple[KneeInterval, KneeInterval]]:
    """Profile one knee of a fit.

    Returns
    -------
    Positions lg E, chi-square above its minimum there, the lowest position, its 68 and 95 % intervals.
    """
    low, high = data.edges.min() - BEYOND, data.edges.max() + BEYOND
    at = float(best.parameters[data.flux.shape[1] + 1 + place])
    grid = np.concatenate([np.linspace(low, high, PROFILE_POINTS), at + np.linspace(-0.3, 0.3, 13)])
    grid = np.unique(grid[(grid >= low) & (grid <= high)])
    profile = np.array([_fixed(data, best, f"k{place}", lg, at) for lg in grid])
    profile = profile - min(profile.min(), best.chi2)
    lowest = float(grid[profile.argmin()])
    first, second = (_crossing(grid, profile, lowest, level) for level in (1.0, 3.841459))
    return grid, profile, lowest, (first, second)


def _fixed(data: KneeData, best: KneeFit, parameter: str, value: float, at: float) -> float:
    """Return chi-square with one knee held, the least of starts from the best fit with and without a bend."""
    entries = []
    n_classes = data.flux.shape[1]
    for change in {best.change, 0.3}:
        start = list(best.parameters)
        start[n_classes] = change
        start[parameter_names(best.hypothesis, n_classes).index(parameter)] = value
        minuit, _ = start_minuit(data, best.hypothesis, best.covariance, tuple(start))
        minuit.fixed[parameter] = True
        minuit.migrad()
        entries.append(float(minuit.fval or 0.0))
        if abs(value - at) < 1e-9:
            break
    return min(entries)


def _crossing(grid: np.ndarray, profile: np.ndarray, at: float, level: float) -> KneeInterval:
    """Return where a profile crosses a level, nearest to its minimum on either side, by linear interpolation."""

    def side(x: np.ndarray, y: np.ndarray) -> float | None:
        above = np.flatnonzero(y > level)
        if not len(above) or above[0] == 0:
            return None
        k = above[0]
        return float(np.interp(level, [y[k - 1], y[k]], [x[k - 1], x[k]]))

    down, up = grid <= at, grid >= at
    return KneeInterval(side(grid[down][::-1], profile[down][::-1]), side(grid[up], profile[up]))
