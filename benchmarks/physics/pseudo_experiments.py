"""Pseudo-experiments of a known sky, made from simulated showers with their posteriors: what an analysis finds in each.

The truth of spectra is smooth: a raw pool of events is rough, and no scale could be fitted to it. Every event stands
for nine: its true and measured energies together by one fine bin down, as they are, and up; and its measured energy and
y by a little. Counts of the sky are Poisson numbers of that truth, and the simulation that the analysis knows is drawn
from it event by event. Photon searches divide the showers of a test set at random in every experiment: one half is the
simulation that the analysis knows, from the other half the sky is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.physics.estimate import estimating_functions, maximum_likelihood
from showerstack.analysis.exposure import Exposure
from showerstack.analysis.photons.events import HADRON, SearchEvents, SimulatedSearch
from showerstack.analysis.photons.search import SearchOptions, search_events
from showerstack.analysis.spectra.fluxes import (
    FreeFluxes,
    covariance_of_sums,
    free_fluxes,
    mean_ln_mass,
    share_covariance,
    shares,
    variance_of_ln_mass,
)
from showerstack.analysis.spectra.folding import (
    Cells,
    MovableEvents,
    Widths,
    count_parts,
    make_cells,
    make_movable,
    make_response,
)
from showerstack.analysis.spectra.knees import HeldScales, change_of_index
from showerstack.analysis.spectra.likelihood import INDEX_WIDTH, FoldingProblem, Priors
from showerstack.analysis.spectra.response import Binning, Simulated, Thrown
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN
from showerstack.showers.simulation.sky import Sky

Z68, Z95 = 1.0, 1.959964
COPY_ENERGY, COPY_Y = 1 / 60, 0.12
"""By how much the copies of an event differ in measured lg E and in y."""
SUB_STEPS = 10
IRON, IRON_BAND = 4, 1
"""The group and the bin of true energy whose share is followed."""


@dataclass(frozen=True)
class SmoothTruth:
    """Nine copies of every simulated event, and the primaries that they stand for."""

    cells: Cells
    copies: MovableEvents
    thrown: np.ndarray
    """(K, T) of the copies."""

    @classmethod
    def of(
        cls, events: Simulated, thrown: np.ndarray, bins: Binning, least: tuple[float, float] = (LG_NE_MIN, LG_NMU_MIN)
    ) -> SmoothTruth:
        """Copy the simulated events; the fine bins of the true energy must be equally wide."""
        cells, ready = make_cells(bins, events), make_movable(events, bins, Widths(), least)
        step, last = float(bins.fine[1] - bins.fine[0]), thrown.shape[1] - 1
        parts, primaries = [], np.zeros_like(thrown)
        for shift in (-1, 0, 1):
            fine = ready.fine + shift
            inside = np.flatnonzero((fine >= 0) & (fine <= last))
            primaries += 3 * np.roll(thrown, shift, axis=1) * _in_range(shift, thrown.shape[1])
            for small in (-1, 0, 1):
                parts.append(
                    replace(
                        ready.take(inside), fine=fine[inside],
                        lg_energy=ready.lg_energy[inside] + step * shift + COPY_ENERGY * small,
                        y=ready.y[inside] + COPY_Y * small,
                    )
                )  # fmt: skip
        names = ("labels", "fine", "lg_energy", "measured", "sizes", "y", "y_moved", "mirrored")
        joined = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
        return cls(cells, replace(ready, **joined, model=None, group=None), primaries)

    def particles(self, sky: Sky, shift: float = 0.0) -> np.ndarray:
        """Return particles (K, T) per fine bin for an exposure of 1 m2 sr s.

        ``shift`` is by how much in lg E their showers look like those of higher energies.
        """
        fine = self.cells.bins.fine
        inner = fine[:-1, None] + np.diff(fine)[:, None] * (np.arange(SUB_STEPS) + 0.5) / SUB_STEPS - shift
        flux = sky.flux(inner.ravel())[:5].reshape(5, -1, SUB_STEPS)
        return np.asarray((flux * 10.0**inner).mean(axis=2) * np.log(10.0) * np.diff(fine))

    def expected(self, sky: Sky, scales: np.ndarray) -> np.ndarray:
        """Return expected counts (C,) for an exposure of 1 m2 sr s."""
        accepted = count_parts(self.copies, self.cells, scales, parts=1)[0].astype(np.float64)
        particles = self.particles(sky, float(scales[0]) * self.copies.widths.lg_energy)
        weight = np.divide(particles, self.thrown, out=np.zeros_like(self.thrown), where=self.thrown > 0)
        return np.asarray(np.einsum("kct,kt->c", accepted, weight))

    def simulation(self, rng: np.random.Generator, share: float = 1.0) -> tuple[MovableEvents, np.ndarray]:
        """Draw a simulation, as large as ``share`` of the events behind the truth, and return its primaries."""
        number = rng.poisson(share / 9, len(self.copies.labels))
        return self.copies.take(np.repeat(np.arange(len(number)), number)), self.thrown * (share / 9)


def _in_range(shift: int, n: int) -> np.ndarray:
    """Return which fine bins (n,) have a bin to be shifted from."""
    source = np.arange(n) - shift
    return np.asarray((source >= 0) & (source < n), dtype=np.float64)


def mean_fluxes(sky: Sky, edges: np.ndarray) -> np.ndarray:
    """Return true fluxes (J, K), means over bins."""
    truth = []
    for low, high in pairwise(edges):
        energy = 10.0 ** np.linspace(low, high, 401)
        truth.append(np.trapezoid(sky.flux(np.log10(energy))[:5], energy, axis=1) / (energy[-1] - energy[0]))
    return np.array(truth)


def pull_counts(values: np.ndarray, truth: np.ndarray, error: np.ndarray) -> dict[str, float]:
    """Return how many estimates there are, how many lie within one and 1.96 errors, and sums of pulls."""
    pull = np.ravel((values - truth) / error)
    return {
        "n": len(pull),
        "in68": int((np.abs(pull) < Z68).sum()),
        "in95": int((np.abs(pull) < Z95).sum()),
        "pull": float(pull.sum()),
        "pull2": float((pull**2).sum()),
    }


def mass_counts(flux: np.ndarray, true: np.ndarray, covariance: np.ndarray) -> dict[str, dict[str, float]]:
    """Return :func:`pull_counts` of mean and variance of ln A by fluxes (J, K) with a covariance (J K, J K)."""
    result = {}
    for name, moment in (("mean_ln_a", mean_ln_mass), ("variance_of_ln_a", variance_of_ln_mass)):
        value, slope = moment(flux)
        error = np.sqrt(np.diag(covariance_of_sums(covariance, slope)))
        result[name] = pull_counts(value, moment(true)[0], error)
    return result


def spectra_experiment(
    truth: SmoothTruth, sky: Sky, edges: np.ndarray, seed: int, *, events: int, drawn: bool, share: float = 1.0,
    at: tuple[float, float, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure one sky: the common rigidity, fluxes and shares of groups, with what their errors cover.

    Parameters
    ----------
    edges
        (J + 1,) of the true lg(E/eV).
    events
        Expected number of counted events.
    drawn
        Whether energy, muon and electron scales are drawn from their expectations and fitted; else they are exact.
    share
        Size of the analysis's simulation in events of the pool.
    at
        Scales of the sky, in widths, which are fitted; None: drawn or 0.
    """
    rng = np.random.default_rng((seed, 5))
    scales = rng.normal(size=3) * drawn if at is None else np.array(at)
    free = drawn or at is not None
    mean = truth.expected(sky, scales)
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng, share)
    priors = Priors(index=rng.normal(sky.index, INDEX_WIDTH, 5))
    problem = FoldingProblem(
        counts, lambda at: make_response(simulated, truth.cells, thrown, at, scales=free), exposure, sky.sharpness,
        priors,
    )  # fmt: skip
    fit = problem.fit()
    result: dict[str, Any] = {
        "seed": seed, "events": int(counts.sum()), "chi2": fit.chi2, "ndf": fit.ndf, "p_value": fit.p_value(seed),
        "refused": fit.refusal, "scales": scales.tolist(), "fitted_scales": fit.scales.tolist(),
    }  # fmt: skip
    covariance = fit.covariance()
    part = fit.likelihood.layout.scales
    result["scale_errors"] = np.sqrt(np.diag(covariance)[part]).tolist()
    held = HeldScales.of(problem, fit)
    knee, (grid, profile) = held.profile(held.fit, 0)
    away = float(np.interp(lg_knee(sky), grid, profile, left=np.inf, right=np.inf))
    place = knee.likelihood.layout.names.index("lg_r0")
    errors = np.sqrt(np.diag(knee.covariance())[[place, place - 1]])
    result["rigidity"] = {
        "covers": [away < level for level in CHI_SQUARE_LEVELS],
        "open": [bool(profile[0] < level or profile[-1] < level) for level in CHI_SQUARE_LEVELS],
        "lg_rigidity": float(knee.parameters[place]),
        "error": float(errors[0]),
        "held": bool(held.moved),
    }
    result["change"] = {"value": change_of_index(knee), "error": float(errors[1])}
    fluxes, true = free_fluxes(fit, edges), mean_fluxes(sky, edges)
    covariance = np.asarray(sum(fluxes.covariance.values()))
    error = np.sqrt(np.diag(covariance)).reshape(true.shape)
    share_error = np.sqrt(np.diag(share_covariance(fluxes.flux, covariance))).reshape(true.shape)
    result["flux"] = pull_counts(fluxes.flux, true, error)
    result["pulls"] = ((fluxes.flux - true) / error).round(3).tolist()
    result["relative_error"] = (error / true).round(4).tolist()
    result["fraction"] = pull_counts(shares(fluxes.flux), shares(true), share_error)
    iron = (slice(IRON_BAND, IRON_BAND + 1), slice(IRON, IRON + 1))
    result["iron"] = pull_counts(shares(fluxes.flux)[iron], shares(true)[iron], share_error[iron])
    result |= mass_counts(fluxes.flux, true, covariance)
    every = np.ones_like(true)
    error = np.sqrt(np.diag(covariance_of_sums(covariance, every)))
    result["all"] = pull_counts(fluxes.flux.sum(axis=1), true.sum(axis=1), error)
    result["all"]["error"] = float(np.mean(error / true.sum(axis=1)))
    away = (fluxes.flux - true).ravel()
    result["chi2_of_truth"] = float(away @ np.linalg.solve(covariance, away))
    result["free_scales"] = [fluxes.scales.tolist(), fluxes.scale_errors.tolist()]
    result["ideal"], result["noisy"] = (ideal_coverage(fluxes, scales, noisy=noisy) for noisy in (False, True))
    return result


def lg_knee(sky: Sky) -> float:
    """Return lg(R/V) of a sky's knee."""
    return float(np.log10(sky.knee_pev * 1e15))


def ideal_coverage(fluxes: FreeFluxes, scales: np.ndarray, *, noisy: bool) -> dict[str, float]:
    """Return how many fluxes' 68 and 95 % intervals an ideal fit would hold at scales (3,), in the mean over data.

    A linear fit with true derivatives and the information of this one: its estimates are off by ``-C P delta`` and
    scatter by ``C - C P C`` (C covariance, P prior's information, delta the scales). With the noise of this fit's
    response (``noisy``) it states S, the covariance of :mod:`showerstack.analysis.spectra.fluxes`, and scatters by
    ``S - C P C``.
    """
    joint = fluxes.joint
    covariance = np.linalg.inv(joint.information)
    delta = np.zeros(len(covariance))
    delta[len(delta) - len(joint.active) :] = scales[joint.active]
    by_energy = (fluxes.per_width[0] / joint.unit).ravel()
    off = -(covariance @ joint.prior @ delta)[joint.inner] - by_energy * scales[0]
    whole = joint.covariance if noisy else covariance
    variance = np.diag(whole - covariance @ joint.prior @ covariance)[joint.inner]
    scatter = np.sqrt(np.maximum(variance, 1e-12))
    stated = np.sqrt(np.diag(whole)[joint.inner] + by_energy**2)
    return {
        f"in{level}": float(np.sum(ndtr((z * stated - off) / scatter) - ndtr((-z * stated - off) / scatter)))
        for level, z in (("68", Z68), ("95", Z95))
    } | {"n": len(stated)}


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
    mean = rate[other.labels, bins.fine_bin_of(other.true_lg_energy)] * other.weight
    hadron = other.labels == HADRON
    mean *= np.where(hadron, 1.0, fraction / (1 - fraction))
    inside = hadron & (bins.bin_of(other.lg_energy) >= 0)
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
