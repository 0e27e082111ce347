"""Numbers of events and fluxes by group and energy, from posteriors: estimating functions, solved by simulation.

With p(k|x) the posterior of an event and pi_k the training prior, ``r_k(x) = p(k|x) / pi_k`` is the density of class k
up to a factor common to all classes. A sample with shares f has the likelihood ``prod_i sum_k f_k r_k(x_i)`` (M.
Saerens, P. Latinne, C. Decaestecker, Neural Computation 14 (2002) 21: the EM algorithm for it).

Posteriors are never exact. :func:`estimating_functions` are the terms of that likelihood's equations, ``g_j(x) = r_j(x)
/ sum_k f*_k r_k(x)``, whose mean over a sample is linear in its shares for *any* posteriors: ``mean g_j = sum_k A_jk
f_k`` with ``A_jk`` the mean of g_j over simulated events of class k. Solving it gives shares without bias wherever the
simulated events of each class are like the measured ones, and as precise as the maximum likelihood where the posteriors
are calibrated (f* near the truth). It is a matrix inverse with the best weights in place of hard labels. Results may be
negative within their errors; they are not clipped, because clipped numbers are biased and their averages wrong.

In every bin of the reconstructed energy the sums ``G_j = sum_i g_j(x_i)`` over measured events obey ``G = A n``, so ``n
= A^-1 G`` with covariance ``A^-1 (sum_i g g^T) A^-T`` from the measured events' statistics. The flux of group k in bin
b is ``J = n_kb c_kb / (exposure dE)`` in m^-2 sr^-1 s^-1 eV^-1, with c the correction for efficiency and migration
(:func:`analysis.spectra.response.corrections`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.spectra.response import Binning, ResponseSample, Simulated, SpectrumEvents, Thrown, corrections
from runtime.errors import InputError
from showers.schema import COMPOSITION

EM_STEPS = 30
"""Steps of the EM algorithm before Newton's."""
NEWTON_STEPS = 60
TOLERANCE = 1e-9
TINY = 1e-12


def likelihood_ratios(log_proba: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return r_k(x), scaled to a largest value of one per event.

    Parameters
    ----------
    log_proba
        (N, C) natural logarithms of posteriors.
    prior
        (C,) or (N, C) shares of the classes among the training events like these.

    Returns
    -------
    (N, C) float64 in [0, 1].

    Raises
    ------
    InputError
        If a class has no prior: the run never learned it.
    """
    prior = np.asarray(prior, dtype=np.float64)
    if (prior <= 0).any():
        missing = int(np.flatnonzero((np.atleast_2d(prior) <= 0).any(axis=0))[0])
        raise InputError(f"class {missing} has no training event in an energy bin: widen the bins or train on more")
    z = log_proba - np.log(prior)
    return np.asarray(np.exp(z - z.max(axis=1, keepdims=True)))


def maximum_likelihood(ratios: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Return the shares (C,) that maximise ``sum_i ln sum_k f_k r_ik``, by EM steps and then Newton's.

    Parameters
    ----------
    ratios
        (N, C) as :func:`likelihood_ratios` returns them.
    start
        (C,) first guess; equal shares if None.

    Raises
    ------
    InputError
        If there is no event.
    """
    n, n_classes = ratios.shape
    if not n:
        raise InputError("no event: shares of nothing cannot be estimated")
    shares = np.full(n_classes, 1.0 / n_classes) if start is None else np.maximum(start, TINY) / np.sum(start)
    for _ in range(EM_STEPS):
        shares = shares * (ratios / np.maximum(ratios @ shares, TINY)[:, None]).mean(axis=0)
        shares /= shares.sum()
    for _ in range(NEWTON_STEPS):
        terms = ratios / np.maximum(ratios @ shares, TINY)[:, None]
        slope = terms.mean(axis=0) - 1.0  # of the extended likelihood, whose maximum has sum f = 1
        free = (shares > 1e-9) | (slope > 0)
        hessian = terms[:, free].T @ terms[:, free] / n
        step = np.zeros(n_classes)
        step[free] = np.linalg.lstsq(hessian, slope[free], rcond=1e-12)[0]
        down = step < 0
        room = np.min(shares[down] / -step[down], initial=np.inf)
        moved = np.maximum(shares + min(1.0, 0.99 * room) * step, 0.0)
        moved = np.where(moved < 1e-10, 0.0, moved)
        # Newton overshoots far from the maximum: an EM step then, which never does.
        if _log_likelihood(ratios, moved) < _log_likelihood(ratios, shares) - 1e-12:
            moved = shares * terms.mean(axis=0)
        if np.abs(moved - shares).max() < TOLERANCE:
            return np.asarray(moved / moved.sum())
        shares = moved
    return np.asarray(shares / shares.sum())


def _log_likelihood(ratios: np.ndarray, shares: np.ndarray) -> float:
    return float(np.mean(np.log(np.maximum(ratios @ shares, 1e-300))) - shares.sum())


def estimating_functions(ratios: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return g_j(x), (N, C); ``at`` are the shares f*, (C,) or (N, C), all above zero: ``sum_j f*_j g_j = 1``."""
    return np.asarray(ratios / np.sum(ratios * at, axis=1, keepdims=True))


def one_hot(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Return (N, C) float64: hard labels as estimating functions, which make the solution the matrix inverse."""
    return np.eye(n_classes)[labels]


MIN_SIMULATED = 20
"""Simulated events of a class that an energy bin needs to be used."""
MIN_MEASURED = 10
"""Measured events that an energy bin needs to be used: two for each share."""
SHRINK_EVENTS = 200.0
"""Weight, in events, of the shares of all energies in the expansion point of one bin."""
LEAST_SHARE = 0.02
"""No class is given less at the expansion point: weights of events stay bounded."""
ROUNDS = 3
"""How often simulated events are weighted to the spectrum found."""
SLOPE, SLOPE_WIDTH, CURVATURE_WIDTH = -2.8, 0.4, 0.6
"""Expected d ln J / d ln E, and how far it and its change per decade may stray where the data say little."""


@dataclass(frozen=True)
class Setting:
    """What an estimate is made with."""

    bins: Binning
    exposure_m2_sr_s: float
    prior: np.ndarray
    """(B, C) shares of the classes among the training events of each bin."""
    functions: str = "posterior"
    """``posterior``: the likelihood's own; ``label``: hard labels."""
    classes: tuple[str, ...] = COMPOSITION.classes


@dataclass(frozen=True)
class SpectrumEstimate:
    """Events and fluxes by bin and group; NaN in bins that could not be used."""

    setting: Setting
    usable: np.ndarray
    """(B,) bool."""
    measured: np.ndarray
    """(B,) measured events."""
    sums: np.ndarray
    """G (B, J)."""
    sums_covariance: np.ndarray
    """(B, J, J)."""
    mixing: np.ndarray
    """A (B, J, C)."""
    events: np.ndarray
    """n (B, C) accepted events by group."""
    plain: np.ndarray
    """(B, C) the same by maximum likelihood without the check by simulation; labels: counts of the labels."""
    correction: np.ndarray
    """c (B, C)."""
    shape: np.ndarray
    """(C, T) fitted particles per fine bin of true energy."""
    at: np.ndarray
    """(B, C) expansion points f*."""
    sample: ResponseSample
    functions: np.ndarray
    """(S, J) of the simulated events."""
    acceptance: np.ndarray | None
    """R (C, B, T)."""

    @property
    def flux(self) -> np.ndarray:
        """(B, C) m^-2 sr^-1 s^-1 eV^-1."""
        return self.events * self.flux_per_event

    @property
    def flux_per_event(self) -> np.ndarray:
        """(B, C) by which events are multiplied to give fluxes."""
        return np.asarray(self.correction / (self.setting.exposure_m2_sr_s * self.setting.bins.widths_ev[:, None]))

    @property
    def events_covariance(self) -> np.ndarray:
        """(B, C, C) from the statistics of the measured events."""
        result = np.full((*self.events.shape, self.events.shape[1]), np.nan)
        for b in np.flatnonzero(self.usable):
            inverse = np.linalg.inv(self.mixing[b])
            result[b] = inverse @ self.sums_covariance[b] @ inverse.T
        return result


def estimate(
    data: SpectrumEvents,
    simulated: Simulated,
    thrown: Thrown | None,
    setting: Setting,
    *,
    models: tuple[int, ...] | None = None,
) -> SpectrumEstimate:
    """Estimate numbers of events and fluxes by group and energy.

    Parameters
    ----------
    data
        Measured events, all cuts applied.
    simulated
        Simulated events under the same cuts, predicted by the same run.
    thrown
        The primaries behind them; None where unknown: fluxes then lack efficiency and migration.
    setting
        Bins, exposure, prior.
    models
        The hadronic models that ``simulated`` holds; None: all that were thrown.

    Raises
    ------
    InputError
        If the simulation lacks a class, or no bin can be used.
    """
    bins, n_classes = setting.bins, len(setting.classes)
    place = bins.place(data.lg_energy)
    sample = ResponseSample.of(simulated, bins, thrown, models)
    in_simulation = sample.counts()
    for name, n in zip(setting.classes, in_simulation.sum(axis=0), strict=True):
        if not n:
            raise InputError(f"the simulated events of the response hold no {name} in the energy bins: give more")
    measured = np.bincount(place[place >= 0], minlength=bins.n_bins)
    usable = (in_simulation.min(axis=1) >= MIN_SIMULATED) & (measured >= max(MIN_MEASURED, n_classes))
    if not usable.any():
        raise InputError(
            f"no energy bin has {max(MIN_MEASURED, n_classes)} measured events and {MIN_SIMULATED} "
            f"simulated ones of each class (at most {measured.max()} and {in_simulation.min(axis=1).max()}): give "
            "wider --bins, more measured events in --data, or a larger labelled set by --simulation"
        )
    if setting.functions == "label":
        ours, theirs = one_hot(data.decided, n_classes), one_hot(simulated.decided, n_classes)
        at = np.full((bins.n_bins, n_classes), 1.0 / n_classes)
        plain = np.full((bins.n_bins, n_classes), np.nan)
        for b in np.flatnonzero(usable):
            plain[b] = ours[place == b].sum(axis=0)
    else:
        ours, theirs, at, plain = _likelihood_functions(data, place, simulated, sample.place, usable, setting)
    sums, spread = _sums(ours, place, bins.n_bins)
    acceptance = sample.acceptance()
    shape = np.tile(_power_law(bins, SLOPE), (n_classes, 1))
    for _ in range(ROUNDS):
        mixing = sample.mixing(theirs, sample.weights(shape))
        events = solve(sums, mixing, usable)
        correction = corrections(acceptance, shape, bins)
        shape = smooth_shape(events * correction, np.sqrt(measured)[:, None] * correction, bins)
    return SpectrumEstimate(
        setting,
        usable,
        measured,
        sums,
        spread,
        mixing,
        events,
        plain,
        correction,
        shape,
        at,
        sample,
        theirs,
        acceptance,
    )


def _likelihood_functions(
    data: SpectrumEvents,
    place: np.ndarray,
    simulated: Simulated,
    place_simulated: np.ndarray,
    usable: np.ndarray,
    setting: Setting,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return g of the data (N, C) and of the simulation (S, C), f* (B, C), and the plain likelihood's events (B, C)."""
    ratios = likelihood_ratios(data.log_proba, setting.prior[place])
    n_bins, n_classes = setting.prior.shape
    everywhere = maximum_likelihood(ratios[np.isin(place, np.flatnonzero(usable))])
    at, plain = np.tile(everywhere, (n_bins, 1)), np.full((n_bins, n_classes), np.nan)
    for b in np.flatnonzero(usable):
        mine = place == b
        n = int(mine.sum())
        shares = maximum_likelihood(ratios[mine])
        plain[b] = n * shares
        at[b] = (n * shares + SHRINK_EVENTS * everywhere) / (n + SHRINK_EVENTS)
    at = np.maximum(at, LEAST_SHARE)
    at /= at.sum(axis=1, keepdims=True)
    theirs = likelihood_ratios(simulated.log_proba, setting.prior[place_simulated])
    return (
        estimating_functions(ratios, at[place]),
        estimating_functions(theirs, at[place_simulated]),
        at,
        plain,
    )


def _sums(functions: np.ndarray, place: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sums (B, J) over the events of each bin and their covariance (B, J, J), Poisson numbers."""
    n = functions.shape[1]
    sums, spread = np.zeros((n_bins, n)), np.zeros((n_bins, n, n))
    for b in range(n_bins):
        mine = functions[place == b]
        sums[b], spread[b] = mine.sum(axis=0), mine.T @ mine
    return sums, spread


def solve(sums: np.ndarray, mixing: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return n (B, C) of ``G = A n`` in the usable bins, NaN in the others.

    Raises
    ------
    InputError
        If simulated classes cannot be told apart in a bin.
    """
    result = np.full((len(sums), mixing.shape[2]), np.nan)
    for b in np.flatnonzero(usable):
        try:
            result[b] = np.linalg.solve(mixing[b], sums[b])
        except np.linalg.LinAlgError:
            raise InputError(f"energy bin {b}: the run cannot tell the simulated classes apart there") from None
    return result


def smooth_shape(sent: np.ndarray, errors: np.ndarray, bins: Binning) -> np.ndarray:
    """Fit a parabola in ln J against ln E to each group, and return particles per fine bin (C, T).

    Weak expectations of slope and curvature keep a group with few events from running away; the shape only weights
    simulated events.

    Parameters
    ----------
    sent
        (B, C) particles at the top of the atmosphere.
    errors
        (B, C) their errors.
    """
    x = np.log(bins.centres_ev / 1e15)
    fine = np.log(10.0 ** ((bins.fine[1:] + bins.fine[:-1]) / 2) / 1e15)
    widths = np.diff(10.0**bins.fine)
    shapes = []
    for value, error in zip(sent.T, errors.T, strict=True):
        good = np.isfinite(value) & np.isfinite(error) & (error > 0)
        good &= np.nan_to_num(value) > np.nan_to_num(error)
        expected = np.array([0.0, SLOPE, 0.0])
        pull = np.diag([1e-9, SLOPE_WIDTH**-2, CURVATURE_WIDTH**-2])
        design = np.stack([np.ones_like(x), x, x**2], axis=1)[good]
        weight = np.minimum((value[good] / error[good]) ** 2, 400.0)
        y = np.log(np.maximum(value[good], 1e-300) / bins.widths_ev[good])
        matrix = design.T @ (weight[:, None] * design) + pull
        a, b, c = np.linalg.solve(matrix, design.T @ (weight * y) + pull @ expected)
        inside = np.clip(fine, x[0] - 1.0, x[-1] + 1.0)  # beyond the data, on with the slope reached there
        lg = a + b * inside + c * inside**2 + (b + 2 * c * inside) * (fine - inside)
        shapes.append(np.exp(np.clip(lg, -700, 300)) * widths)
    return np.array(shapes)


def _power_law(bins: Binning, slope: float) -> np.ndarray:
    """Return particles per fine bin (T,) of a power law."""
    lg = (bins.fine[1:] + bins.fine[:-1]) / 2
    return np.asarray(10.0 ** (slope * (lg - 15.0)) * np.diff(10.0**bins.fine))
