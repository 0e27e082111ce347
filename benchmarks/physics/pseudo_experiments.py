"""Pseudo-experiments of a known sky, made from simulated showers with their posteriors: what an analysis finds in each.

The showers of a test set are divided at random in every experiment: one half is the simulation that the analysis
knows, from the other half the sky is drawn, each shower with the probability that its true energy and primary demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.exposure import Exposure
from analysis.photons.events import HADRON, SearchEvents, SimulatedSearch
from analysis.photons.search import SearchOptions, search_events
from analysis.spectra.errors import Widths, all_errors, data_covariance, share_covariance, shares, simulation_covariance
from analysis.spectra.estimate import Setting, SpectrumEstimate, estimate, estimating_functions, maximum_likelihood
from analysis.spectra.knees import profiled
from analysis.spectra.labels import by_labels
from analysis.spectra.power_law import KneeData, fit, knee_data
from analysis.spectra.response import Binning, Simulated, SpectrumEvents, Thrown
from showers.simulation.sky import Sky

Z68, Z95 = 1.0, 1.959964
BY_METHODS = 60
"""Experiments in which all methods are compared, which takes longer than all else."""


@dataclass(frozen=True)
class SpectraPool:
    """Simulated events of a test set that passed the cuts, and the primaries behind them."""

    events: Simulated
    thrown: Thrown

    def halves(self, rng: np.random.Generator) -> tuple[Simulated, Thrown, Simulated, Thrown]:
        """Return the analysis's simulation and the pool of the sky, with half of the primaries each."""
        assert self.events.group is not None
        numbers = np.unique(self.events.group, return_inverse=True)[1]
        first = (rng.random(int(numbers.max()) + 1) < 0.5)[numbers]
        half = replace(self.thrown, counts=self.thrown.counts / 2)
        return self.events.take(first), half, self.events.take(~first), half


def draw_sky(
    sky: Sky, pool: Simulated, thrown: Thrown, bins: Binning, events: int, rng: np.random.Generator,
    model: int | None = None,
) -> tuple[SpectrumEvents, float, np.ndarray]:  # fmt: skip
    """Draw measured events of a sky.

    Parameters
    ----------
    events
        Expected number of accepted events in the energy bins, unless a shower would be needed twice: each is drawn at
        most once, so that the sky's events are Poisson as real ones are.
    model
        Only showers of one hadronic model.

    Returns
    -------
    The events, the exposure in m2 sr s, and the true fluxes (B, C).
    """
    assert pool.true_lg_energy is not None
    counts = thrown.counts.sum(axis=0) if model is None else thrown.counts[model]
    if model is not None:
        assert pool.model is not None
        pool = pool.take(pool.model == model)
        assert pool.true_lg_energy is not None
    fine = thrown.lg_energy_edges
    middle = (fine[1:] + fine[:-1]) / 2
    sent = sky.flux(middle)[:5] * np.diff(10.0**fine)
    rate = np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)
    mean = np.where(
        bins.place(pool.lg_energy) >= 0, rate[pool.labels, bins.place_fine(pool.true_lg_energy)], 0.0
    )  # beyond the bins no event is used
    exposure = min(events / mean.sum(), 1.0 / mean.max())
    drawn = np.flatnonzero(rng.random(len(pool)) < mean * exposure)
    columns = {name: value for name, value in vars(pool.take(drawn)).items() if name in SpectrumEvents.__annotations__}
    truth = []
    for low, high in zip(bins.edges[:-1], bins.edges[1:], strict=True):
        energy = 10.0 ** np.linspace(low, high, 201)
        flux = sky.flux(np.log10(energy))[:5]
        truth.append(np.trapezoid(flux, energy, axis=1) / (energy[-1] - energy[0]))
    return SpectrumEvents(**columns), float(exposure), np.array(truth)


def pull_counts(values: np.ndarray, truth: np.ndarray, error: np.ndarray) -> dict[str, float]:
    """Return how many estimates there are, how many lie within one and 1.96 errors, and sums of pulls."""
    pull = ((values - truth) / error).ravel()
    pull = pull[np.isfinite(pull)]
    return {
        "n": len(pull),
        "in68": int((np.abs(pull) < Z68).sum()),
        "in95": int((np.abs(pull) < Z95).sum()),
        "pull": float(pull.sum()),
        "pull2": float((pull**2).sum()),
    }


def spectra_experiment(
    pool: SpectraPool, sky: Sky, bins: Binning, prior: np.ndarray, seed: int, *, events: int, replicas: int = 40,
    model: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure one sky: coverage of fluxes and fractions, every method's shares, and the common rigidity."""
    rng = np.random.default_rng((seed, 5))
    simulated, thrown, other, other_thrown = pool.halves(rng)
    data, exposure, truth = draw_sky(sky, other, other_thrown, bins, events, rng, model)
    setting = Setting(bins, exposure, prior)
    values = estimate(data, simulated, thrown, setting)
    if model is None:
        total = simulation_covariance(values, simulated, replicas=replicas, seed=seed) + data_covariance(values)
    else:
        errors = all_errors(values, data, simulated, thrown, widths=Widths(), replicas=replicas, seed=seed)
        total = errors.total()
        statistical = errors.total(("data", "simulation"))
    result: dict[str, Any] = {"seed": seed, "events": len(data), **covered(values, truth, total)}
    if model is not None:
        result["statistical_only"] = covered(values, truth, statistical)
        return result
    if seed < BY_METHODS:
        result["methods"] = _methods(data, simulated, thrown, setting, values, truth)
    covariances = {"data": data_covariance(values), "simulation": total - data_covariance(values)}
    knees = knee_data(values, _Covariances(covariances), sky.sharpness)  # type: ignore[arg-type]
    if isinstance(knees, KneeData):
        best = fit(knees, "rigidity")
        _, _, lowest, intervals = profiled(knees, best, 0)
        lg = float(np.log10(sky.knee_pev * 1e15))
        result["rigidity"] = {
            "found": lowest,
            "chi2": best.chi2,
            "covers": [_inside(lg, one.low, one.high) for one in intervals],
            "open": [one.low is None or one.high is None for one in intervals],
        }
    return result


def _methods(
    data: SpectrumEvents, simulated: Simulated, thrown: Thrown, setting: Setting, spectrum_estimate: SpectrumEstimate,
    truth: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """Return the errors of the accepted events' shares by every method."""
    hard = estimate(data, simulated, thrown, replace(setting, functions="label"))
    true_events = truth / spectrum_estimate.flux_per_event
    methods = {
        "likelihood_checked": spectrum_estimate.events,
        "likelihood_plain": spectrum_estimate.plain,
        **by_labels(hard).events,
    }
    used, errors = spectrum_estimate.usable, {}
    for name, values in methods.items():
        error = shares(values)[used] - shares(true_events)[used]
        errors[name] = {"bias": np.mean(error, axis=0).tolist(), "absolute": float(np.abs(error).mean())}
    return errors


@dataclass(frozen=True)
class _Covariances:
    flux: dict[str, np.ndarray]


def _inside(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def covered(spectrum_estimate: SpectrumEstimate, truth: np.ndarray, covariance: np.ndarray) -> dict[str, Any]:
    """Return coverage of fluxes and of fractions."""
    shape = spectrum_estimate.flux.shape
    flux_error = np.sqrt(np.diag(covariance)).reshape(shape)
    share_error = np.sqrt(np.diag(share_covariance(spectrum_estimate.flux, covariance))).reshape(shape)
    return {
        "flux": pull_counts(spectrum_estimate.flux, truth, flux_error),
        "fraction": pull_counts(shares(spectrum_estimate.flux), shares(truth), share_error),
    }


@dataclass(frozen=True)
class PhotonPool:
    """Simulated photons and protons with their scores, and the primaries behind them."""

    events: SimulatedSearch
    thrown: Thrown


def photon_experiment(
    pool: PhotonPool, bins: Binning, options: SearchOptions, seed: int, *, events: int, fraction: float
) -> dict[str, Any]:
    """Search one sky of protons, E^-2.7, with a true fraction of photons above the lowest energy."""
    rng = np.random.default_rng((seed, 6))
    numbers = np.unique(pool.events.group, return_inverse=True)[1]
    first = (rng.random(int(numbers.max()) + 1) < 0.5)[numbers]
    half = replace(pool.thrown, counts=pool.thrown.counts / 2)
    other = pool.events.take(~first)
    assert other.true_lg_energy is not None
    middle = (bins.fine[1:] + bins.fine[:-1]) / 2
    sent = 10.0 ** (-1.7 * (middle - 15.0)) * np.diff(bins.fine)
    counts = half.counts.sum(axis=0)
    rate = np.divide(sent, counts, out=np.zeros_like(counts), where=counts > 0)
    mean = rate[other.labels, bins.place_fine(other.true_lg_energy)] * other.weight
    hadron = other.labels == HADRON
    mean *= np.where(hadron, 1.0, fraction / (1 - fraction))
    inside = hadron & (bins.place(other.lg_energy) >= 0)
    exposure = min(events / mean[inside].sum(), 1.0 / mean.max())
    drawn = np.flatnonzero(rng.random(len(other)) < mean * exposure)
    columns = {name: value for name, value in vars(other.take(drawn)).items() if name in SearchEvents.__annotations__}
    values = search_events(
        SearchEvents(**columns), pool.events.take(first), half, bins, options, Exposure(1.0, None, True)
    )
    result = []
    for one in values.limits:
        per = one.fraction_per_event
        back = one.backgrounds
        result.append(
            {
                "integral": one.integral, "low": one.lg_energy_low, "candidates": one.candidates,
                "background": back.data.mean, "limit": one.limit * per, "limit_simulation": one.limit_simulation * per,
                "interval": [value * per for value in one.interval], "expected": float(one.expected[2] * per),
            }
        )  # fmt: skip
    return {"seed": seed, "fraction": fraction, "limits": result}


def mixture_errors(
    ratios: np.ndarray, decided: np.ndarray, labels: np.ndarray, first: np.ndarray, events: int, seed: int
) -> dict[str, list[float]]:
    """Return the mean error of the shares of 1,001 mixtures by several methods.

    Parameters
    ----------
    ratios
        (N, 5) likelihood ratios of all events.
    decided, labels
        (N,) hard and true labels.
    first
        (N,) bool: the half that is the simulation.
    events
        Events of a mixture.
    """
    rng = np.random.default_rng(seed)
    sky = [np.flatnonzero(~first & (labels == k)) for k in range(5)]
    response = np.stack([np.bincount(decided[first & (labels == k)], minlength=5) for k in range(5)], axis=1)
    response = response / response.sum(axis=0)
    result: dict[str, list[float]] = {name: [] for name in ("labels", "clipped", "inverse", "likelihood", "checked")}
    for shares_ in mixtures():
        numbers = np.round(shares_ * events).astype(int)
        rows = np.concatenate([rng.choice(sky[k], n, replace=False) for k, n in enumerate(numbers)])
        truth = numbers / numbers.sum()
        hard = np.bincount(decided[rows], minlength=5) / len(rows)
        inverse = np.linalg.solve(response, hard)
        plain = maximum_likelihood(ratios[rows])
        at = np.maximum(plain, 0.02)
        at /= at.sum()
        functions = estimating_functions(ratios, at)
        mixing = np.stack([functions[first & (labels == k)].mean(axis=0) for k in range(5)], axis=1)
        checked = np.linalg.solve(mixing, functions[rows].mean(axis=0))
        clipped = np.maximum(inverse, 0.0)
        for name, value in zip(result, (hard, clipped / clipped.sum(), inverse, plain, checked), strict=True):
            result[name].append(float(np.abs(value - truth).mean()))
    return result


def mixtures() -> Iterator[np.ndarray]:
    """Yield the 1,001 mixtures of five classes in steps of a tenth."""
    for a in range(11):
        for b in range(11 - a):
            for c in range(11 - a - b):
                for d in range(11 - a - b - c):
                    yield np.array([a, b, c, d, 10 - a - b - c - d]) / 10
