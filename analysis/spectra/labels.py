"""Numbers of events from decided labels, by D'Agostini's unfolding.

Use :func:`unfold_composition` for mass fractions in a sample of new events, with the response that a run measured on
its own holdout (:func:`showerstack.stacking.decide.classes.read_response`); :func:`unfold` for any other spectrum
whose response is known, such as energy bins. G. D'Agostini, Nucl. Instrum. Meth. A 362 (1995) 487: with P(m|t) the
response, the estimate of the true counts is updated by Bayes' theorem, ``t' = t sum_m P(m|t) n_m / sum_t' P(m|t')
t'``. Few iterations regularise (and keep some of the prior); iterated on, it converges to the maximum-likelihood
solution. Uncertainties come from repeating everything with the counts (Poisson) and the response (the simulated events
behind it, resampled) varied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showerstack.runtime.errors import InputError

REPLICAS = 200
MAX_ITERATIONS = 1000
TOLERANCE = 1e-4
"""Converged when ten iterations would change no bin by more than this share of the total."""
LEAST_SHARE = 1e-3
"""A bin that the inverse makes negative starts with this share of all events."""


@dataclass(frozen=True)
class Unfolded:
    """Estimated true counts."""

    counts: np.ndarray
    """(T,) float64."""
    covariance: np.ndarray
    """(T, T) float64, from the counts' and the response's statistics."""
    iterations: int

    @property
    def errors(self) -> np.ndarray:
        """Standard deviations of the counts, (T,)."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def fractions(self) -> np.ndarray:
        """Shares of the total, (T,)."""
        return self.counts / self.counts.sum()

    @property
    def fraction_errors(self) -> np.ndarray:
        """Standard deviations of the shares, (T,), by linear propagation."""
        share, total = self.fractions, self.counts.sum()
        jacobian = (np.eye(len(share)) - share[:, None]) / total
        return np.sqrt(np.diag(jacobian @ self.covariance @ jacobian.T))


def unfold(
    measured: np.ndarray,
    response_counts: np.ndarray,
    *,
    generated: np.ndarray | None = None,
    prior: np.ndarray | None = None,
    iterations: int | None = None,
    replicas: int = REPLICAS,
    seed: int = 1,
) -> Unfolded:
    """Unfold measured counts.

    Parameters
    ----------
    measured
        (M,) counts in bins of what is measured.
    response_counts
        (T, M) simulated events: row = true bin, column = measured bin.
    generated
        (T,) simulated events per true bin, including those that were not measured; None if all were.
    prior
        (T,) first guess of the true spectrum; None: flat (with ``iterations``) or the inverse (without).
    iterations
        How often to apply Bayes' theorem; None: until it no longer changes (unregularised, unbiased, noisier).
    replicas
        Repetitions for the covariance.
    seed
        Of the repetitions.

    Raises
    ------
    InputError
        If a true bin has no simulated event, or shapes disagree.
    """
    measured = np.asarray(measured, dtype=np.float64)
    response_counts = np.asarray(response_counts, dtype=np.float64)
    n_true, n_measured = response_counts.shape
    if measured.shape != (n_measured,):
        raise InputError(f"{measured.shape} measured bins, but the response has {n_measured}")
    missed = np.zeros(n_true) if generated is None else np.asarray(generated, float) - response_counts.sum(axis=1)
    totals = response_counts.sum(axis=1) + missed
    if (totals <= 0).any() or (missed < 0).any():
        bad = int(np.flatnonzero((totals <= 0) | (missed < 0))[0])
        raise InputError(f"true bin {bad} of the response has {totals[bad]:g} simulated events, {missed[bad]:g} missed")
    guess = None if prior is None else np.asarray(prior, float) / np.sum(prior)
    if guess is None and iterations is not None:
        guess = np.full(n_true, 1.0 / n_true)
    counts, used = apply_bayes(measured[None], (response_counts / totals[:, None])[None], guess, iterations)
    rng = np.random.default_rng(seed)
    varied = rng.poisson(measured, (replicas, n_measured)).astype(float)
    with_missed = np.concatenate([response_counts, missed[:, None]], axis=1)
    toys = rng.gamma(with_missed + 1e-9, size=(replicas, *with_missed.shape))
    toys /= toys.sum(axis=2, keepdims=True)
    spread, _ = apply_bayes(varied, toys[:, :, :n_measured], guess, iterations)
    return Unfolded(counts[0], np.atleast_2d(np.cov(spread, rowvar=False)), used)


def apply_bayes(
    measured: np.ndarray, response: np.ndarray, guess: np.ndarray | None, iterations: int | None
) -> tuple[np.ndarray, int]:
    """Apply Bayes' theorem repeatedly, to many samples at once.

    Parameters
    ----------
    measured
        (R, M) counts.
    response
        (R, T, M) probabilities P(m|t); rows sum to the efficiency.
    guess
        (T,) shares to start from; None: the inverse.
    iterations
        How often; None: until nothing changes.

    Returns
    -------
    (np.ndarray, int)
        (R, T) counts and the iterations done.
    """
    efficiency = response.sum(axis=2)
    total = measured.sum(axis=1, keepdims=True)
    if guess is None:
        # Iterating to the end forgets the start: begin at the inverse, which is the end wherever it is positive.
        inverse = np.einsum("rm,rmt->rt", measured, np.linalg.pinv(response))
        counts = np.maximum(inverse, LEAST_SHARE * total)
    else:
        counts = total * guess
    for done in range(1, (iterations or MAX_ITERATIONS) + 1):
        folded = np.einsum("rtm,rt->rm", response, counts)
        ratio = np.divide(measured, folded, out=np.zeros_like(measured), where=folded > 0)
        update = counts * np.einsum("rtm,rm->rt", response, ratio) / np.maximum(efficiency, 1e-300)
        change = np.abs(update - counts).max(initial=0.0)
        counts = update
        if iterations is None and 10 * change < TOLERANCE * total.max():
            return counts, done
    return counts, iterations or MAX_ITERATIONS


def unfold_composition(decided: np.ndarray, response_counts: np.ndarray, *, seed: int = 1) -> Unfolded:
    """Estimate how many events of each class a sample holds, from its hard labels.

    Parameters
    ----------
    decided
        (N,) hard labels of the sample.
    response_counts
        (C, C) held-out events: row = true class, column = hard label by the same rule, as
        :func:`showerstack.stacking.decide.classes.read_response` returns them. The sample must be like those events
        but for its class mix.
    """
    measured = np.bincount(decided, minlength=response_counts.shape[1])
    return unfold(measured, response_counts, seed=seed)
