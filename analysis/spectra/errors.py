"""Errors of fluxes and fractions by source, each as a covariance over groups and energies, and the goodness of fit.

=================  ===================================================================================================
source             how
=================  ===================================================================================================
data               statistics of the measured events, exact for Poisson numbers
simulation         finite simulation: showers drawn again with replacement, by group, everything done again
hadronic_model     each model's events alone; the models' scatter about their mean (n - 1), so the mix is a nuisance
energy_scale       reconstructed energies moved up and down by the stated width, half the difference
muon_scale         muon numbers moved by the stated width: energies by KASCADE's formula, posteriors by their slope
=================  ===================================================================================================

Fluxes and flux fractions of bins that could not be used are NaN, and so are their covariances.

Whether the fitted mixture looks like the measured events is tested in the space of observables. In every energy bin the
measured events are counted in bins of lg Ne - lg Nmu that hold equal shares of the fitted mixture. The statistic is
chi-square over all cells. Its distribution is not looked up: toy experiments are drawn from the simulated events (with
Poisson numbers, from showers drawn again, so that the finite simulation counts), fitted and compared as the data are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analysis.spectra.estimate import Setting, SpectrumEstimate, estimate, smooth_shape, solve
from analysis.spectra.response import Simulated, SpectrumEvents, Thrown, corrections
from models.base.posterior import log_softmax

STATISTICAL = ("data", "simulation")
MIN_MODEL_EVENTS = 100
"""Events of each class from which a hadronic model alone can be used."""
REFERENCE_SECANT = 1.0250
"""Reference 1/cos(zenith) of KASCADE's energy formula."""


@dataclass(frozen=True)
class Errors:
    """Covariances by source."""

    flux: dict[str, np.ndarray]
    """(B C, B C) each, in the order of ``flux.ravel()``; in the flux's units squared."""
    remarks: tuple[str, ...]

    def total(self, sources: tuple[str, ...] | None = None) -> np.ndarray:
        """Return the sum of some covariances, or of all."""
        return np.asarray(sum(self.flux[name] for name in self.flux if sources is None or name in sources))

    def standard(self, shape: tuple[int, ...], sources: tuple[str, ...] | None = None) -> np.ndarray:
        """Return standard deviations of the fluxes, (B, C)."""
        return np.sqrt(np.diag(self.total(sources))).reshape(shape)


@dataclass(frozen=True)
class Widths:
    """Widths of nuisances, one standard deviation."""

    lg_energy: float = 0.04
    """Of the energy scale: 0.04 in lg E are 10 %."""
    lg_muon: float = 0.02
    """Of the muon number's scale: 0.02 in lg Nmu are 5 %."""


def all_errors(
    nominal: SpectrumEstimate,
    data: SpectrumEvents,
    simulated: Simulated,
    thrown: Thrown | None,
    *,
    widths: Widths,
    replicas: int = 100,
    seed: int = 1,
) -> Errors:
    """Return the errors of an estimate from all sources that can be had."""
    setting = nominal.setting
    entries = {
        "data": data_covariance(nominal),
        "simulation": simulation_covariance(nominal, simulated, replicas=replicas, seed=seed),
    }
    remarks: list[str] = []
    alone = [one.flux.ravel() for one in by_model(simulated, data, thrown, setting, remarks)]
    entries["hadronic_model"] = (
        np.cov(np.array(alone), rowvar=False) if len(alone) > 1 else np.zeros_like(entries["data"])
    )
    if len(alone) < 2:
        remarks.append("the simulated events tell of one hadronic model only: its error is not known and counted as 0")
    slope = muon_slope(simulated)
    for name, moved in (
        ("energy_scale", [replace(data, lg_energy=data.lg_energy + sign * widths.lg_energy) for sign in (-1, 1)]),
        ("muon_scale", [with_muons(data, sign * widths.lg_muon, slope) for sign in (-1, 1)]),
    ):
        down, up = (estimate(events, simulated, thrown, setting).flux.ravel() for events in moved)
        half = (up - down) / 2
        entries[name] = np.outer(half, half)
    return Errors(entries, tuple(remarks))


def data_covariance(nominal: SpectrumEstimate) -> np.ndarray:
    """Return the covariance (B C, B C) of the fluxes from the statistics of measured events."""
    n_bins, n_classes = nominal.events.shape
    values = np.zeros((n_bins, n_classes, n_bins, n_classes))
    scale = nominal.flux_per_event
    for b, block in enumerate(nominal.events_covariance):
        values[b, :, b, :] = scale[b][:, None] * block * scale[b]
    return values.reshape(n_bins * n_classes, -1)


def simulation_replicas(
    nominal: SpectrumEstimate, simulated: Simulated, *, replicas: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield weights (S,), A (B, J, C) and R (C, B, T) of simulated showers drawn again with replacement, by group."""
    rng = np.random.default_rng(seed)
    sample = nominal.sample
    group = simulated.group
    numbers = np.arange(len(simulated)) if group is None else np.unique(group, return_inverse=True)[1]
    weights = sample.weights(nominal.shape)
    for _ in range(replicas):
        drawn = rng.poisson(1.0, int(numbers.max()) + 1)[numbers].astype(np.float64)
        yield drawn, sample.mixing(nominal.functions, weights * drawn), sample.acceptance(drawn)


def simulation_covariance(nominal: SpectrumEstimate, simulated: Simulated, *, replicas: int, seed: int) -> np.ndarray:
    """Return the covariance (B C, B C) of the fluxes from the finite number of simulated showers."""
    bins = nominal.setting.bins
    fluxes = []
    scale = nominal.setting.exposure_m2_sr_s * bins.widths_ev[:, None]
    for _, mixing, acceptance in simulation_replicas(nominal, simulated, replicas=replicas, seed=seed):
        events = solve(nominal.sums, mixing, nominal.usable & np.isfinite(mixing).all(axis=(1, 2)))
        correction = corrections(acceptance, nominal.shape, bins)
        shape = smooth_shape(events * correction, np.sqrt(nominal.measured)[:, None] * correction, bins)
        fluxes.append((events * corrections(acceptance, shape, bins) / scale).ravel())
    with np.errstate(invalid="ignore"):
        return np.asarray(np.cov(np.array(fluxes), rowvar=False))


def by_model(
    simulated: Simulated, data: SpectrumEvents, thrown: Thrown | None, setting: Setting, remarks: list[str]
) -> list[SpectrumEstimate]:
    """Return the estimates with each hadronic model's events alone, in the order of the models' numbers."""
    if simulated.model is None:
        return []
    result = []
    for number in np.unique(simulated.model):
        mine = simulated.take(simulated.model == number)
        if np.bincount(mine.labels, minlength=len(setting.classes)).min() < MIN_MODEL_EVENTS:
            remarks.append(
                f"hadronic model {number} has fewer than {MIN_MODEL_EVENTS} simulated events of a class: left out"
            )
            continue
        result.append(estimate(data, mine, thrown, setting, models=(int(number),)))
    return result


def muon_slope(simulated: Simulated) -> np.ndarray:
    """Return how posteriors move with the muon number, (C, 3): coefficients of 1, lg Ne - 5 and lg Nmu - 4.5.

    A quadratic regression of the log-posteriors on lg Ne, lg Nmu and zenith over simulated events. It holds what the
    run makes of a larger muon number at the same electron number; features that see muons otherwise are taken to
    move along.
    """
    e, m, z = simulated.lg_ne - 5.0, simulated.lg_nmu - 4.5, simulated.zenith_deg / 30.0
    design = np.stack([np.ones_like(e), e, m, z, e * e, e * m, m * m], axis=1)
    centred = simulated.log_proba - simulated.log_proba.mean(axis=1, keepdims=True)
    result = np.linalg.lstsq(design, np.clip(centred, -30, 30), rcond=None)[0]
    return np.stack([result[2], result[5], 2 * result[6]], axis=1)


def with_muons(data: SpectrumEvents, shift: float, slope: np.ndarray) -> SpectrumEvents:
    """Return measured events as if all muon numbers were larger by ``shift`` in lg Nmu.

    Energies follow KASCADE's formula, ``lg E = ... + 0.66704 b + 0.09277 b^2 - 0.16131 a b`` with a and b the sizes
    corrected to a reference zenith angle (coefficients recomputed from public reconstructed events).
    """
    secant = 1.0 / np.cos(np.radians(np.clip(data.zenith_deg, 0.0, 60.0)))
    a = data.lg_ne + 2.8104 * (secant - REFERENCE_SECANT)
    b = data.lg_nmu + 0.53955 * (secant - REFERENCE_SECANT)
    by_muons = 0.66704 + 0.18554 * b - 0.16131 * a
    local = np.stack([np.ones_like(a), data.lg_ne - 5.0, data.lg_nmu - 4.5], axis=1) @ slope.T
    return replace(
        data,
        log_proba=log_softmax(data.log_proba + shift * local),
        lg_energy=data.lg_energy + shift * by_muons,
        lg_nmu=data.lg_nmu + shift,
    )


CELLS = 8


@dataclass(frozen=True)
class Goodness:
    """Result of the test."""

    chi2: float
    cells: int
    p_value: float
    chi2_by_bin: np.ndarray
    """(B,), NaN where a bin was not used."""
    p_by_bin: np.ndarray
    """(B,)."""
    toys: int


def goodness(
    nominal: SpectrumEstimate, data: SpectrumEvents, simulated: Simulated, *, toys: int = 200, seed: int = 2
) -> Goodness:
    """Test an estimate against the measured events.

    Parameters
    ----------
    nominal
        The estimate.
    data, simulated
        The events it was made from.
    toys
        Toy experiments; the smallest p-value that can be stated is 1 / (toys + 1).
    """
    rng = np.random.default_rng(seed)
    n_bins, n_classes = nominal.events.shape
    sample, usable = nominal.sample, nominal.usable
    weights = sample.weights(nominal.shape)
    where, labels = sample.place, sample.labels
    inside = where >= 0
    expected_events = np.where(usable[:, None], np.maximum(np.nan_to_num(nominal.events), 0.0), 0.0)

    def rates(extra: np.ndarray) -> np.ndarray:
        """Return how often each simulated event is expected in the data, (S,)."""
        cell = where[inside] * n_classes + labels[inside]
        total = np.bincount(cell, (weights * extra)[inside], n_bins * n_classes)
        result = np.zeros(len(labels))
        with np.errstate(invalid="ignore", divide="ignore"):
            result[inside] = (weights * extra)[inside] * np.nan_to_num(expected_events.ravel() / total)[cell]
        return result

    nominal_rates = rates(np.ones(len(labels)))
    borders = _borders(simulated.lg_ne - simulated.lg_nmu, where, nominal_rates, n_bins)
    cell = _cells(simulated.lg_ne - simulated.lg_nmu, where, borders)
    shapes = np.zeros((n_bins * CELLS, n_classes))
    np.add.at(shapes, (cell[inside], labels[inside]), weights[inside])
    totals = shapes.reshape(n_bins, CELLS, n_classes).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shapes = np.nan_to_num(shapes / np.repeat(totals, CELLS, axis=0))

    def statistic(counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return chi-square by bin, (B,), after the fit."""
        result = np.repeat(np.nan_to_num(solve(sums, nominal.mixing, usable)), CELLS, axis=0)
        expected = np.maximum((shapes * result).sum(axis=1), 0.5)
        each = ((counts - expected) ** 2 / expected).reshape(n_bins, CELLS).sum(axis=1)
        return np.asarray(np.where(usable, each, 0.0))

    place = nominal.setting.bins.place(data.lg_energy)
    observed = _cells(data.lg_ne - data.lg_nmu, place, borders)
    ours = statistic(np.bincount(observed[place >= 0], minlength=n_bins * CELLS), nominal.sums)
    drawn = np.zeros((toys, n_bins))
    for t in range(toys):
        number = rng.poisson(rates(rng.poisson(1.0, len(labels)).astype(float)))[inside].astype(float)
        counts = np.bincount(cell[inside], number, n_bins * CELLS)
        sums = np.stack(
            [np.bincount(where[inside], number * one[inside], n_bins) for one in nominal.functions.T], axis=1
        )
        drawn[t] = statistic(counts, sums)
    by_bin = (1 + (drawn >= ours).sum(axis=0)) / (toys + 1)
    p_value = (1 + int((drawn.sum(axis=1) >= ours.sum()).sum())) / (toys + 1)
    unused = ~usable
    return Goodness(
        float(ours.sum()),
        int(usable.sum()) * CELLS,
        float(p_value),
        np.where(unused, np.nan, ours),
        np.where(unused, np.nan, by_bin),
        toys,
    )


def _borders(values: np.ndarray, place: np.ndarray, rates: np.ndarray, n_bins: int) -> np.ndarray:
    """Return inner borders (B, CELLS - 1) that divide the expected events of each bin into equal shares."""
    result = np.zeros((n_bins, CELLS - 1))
    for b in range(n_bins):
        mine = np.flatnonzero((place == b) & (rates > 0))
        if len(mine):
            order = mine[np.argsort(values[mine], kind="stable")]
            reached = np.cumsum(rates[order]) / rates[order].sum()
            result[b] = values[order][np.searchsorted(reached, np.arange(1, CELLS) / CELLS).clip(max=len(order) - 1)]
    return result


def _cells(values: np.ndarray, place: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return the cell of each event, 0 .. B CELLS - 1; meaningless outside the bins."""
    safe = np.maximum(place, 0)
    return np.asarray(safe * CELLS + (values[:, None] >= borders[safe]).sum(axis=1))


def shares(values: np.ndarray) -> np.ndarray:
    """Return shares (B, C) of the sum over groups in each bin."""
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def share_covariance(values: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the covariance of the shares, (B C, B C), by linear propagation.

    Parameters
    ----------
    values
        (B, C) fluxes or numbers.
    covariance
        (B C, B C) theirs.
    """
    n_bins, n_classes = values.shape
    jacobian = np.zeros((n_bins * n_classes, n_bins * n_classes))
    entries = shares(values)
    for b in range(n_bins):
        mine = slice(b * n_classes, (b + 1) * n_classes)
        jacobian[mine, mine] = (np.eye(n_classes) - entries[b][:, None]) / values[b].sum()
    known = np.isfinite(np.diag(covariance)) & np.isfinite(np.diag(jacobian))
    result = np.full_like(covariance, np.nan)
    inside = np.ix_(known, known)
    result[inside] = jacobian[inside] @ covariance[inside] @ jacobian[inside].T
    return result


def total_covariance(covariance: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the covariance (B, B) of the sums over groups."""
    n = len(covariance) // n_bins
    return np.asarray(covariance.reshape(n_bins, n, n_bins, n).sum(axis=(1, 3)))
