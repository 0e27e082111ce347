"""Shares of classes in a sample, from posteriors: the likelihood of the mixture, and its estimating functions.

With p(k|x) the posterior of an event and pi_k the training prior, ``r_k(x) = p(k|x) / pi_k`` is the density of class k
up to a factor common to all classes. A sample with shares f has the likelihood ``prod_i sum_k f_k r_k(x_i)`` (M.
Saerens, P. Latinne, C. Decaestecker, Neural Computation 14 (2002) 21: the EM algorithm for it).

Posteriors are never exact. :func:`estimating_functions` are the terms of that likelihood's equations, ``g_j(x) = r_j(x)
/ sum_k f*_k r_k(x)``, whose mean over a sample is linear in its shares for *any* posteriors: ``mean g_j = sum_k A_jk
f_k`` with ``A_jk`` the mean of g_j over simulated events of class k. Solving it gives shares without bias wherever the
simulated events of each class are like the measured ones, and as precise as the maximum likelihood where the posteriors
are calibrated (f* near the truth). It is a matrix inverse with the best weights in place of hard labels. Results may be
negative within their errors; they are not clipped, because clipped numbers are biased and their averages wrong.
"""

from __future__ import annotations

import numpy as np

from showerstack.runtime.errors import InputError

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


def maximum_likelihood(ratios: np.ndarray) -> np.ndarray:
    """Return the shares (C,) that maximise ``sum_i ln sum_k f_k r_ik``, by EM steps and then Newton's.

    Parameters
    ----------
    ratios
        (N, C) as :func:`likelihood_ratios` returns them.
    """
    n, n_classes = ratios.shape
    if not n:
        raise InputError("no event: shares of nothing cannot be estimated")
    shares = np.full(n_classes, 1.0 / n_classes)
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
        longest_step = np.min(shares[down] / -step[down], initial=np.inf)
        moved = np.maximum(shares + min(1.0, 0.99 * longest_step) * step, 0.0)
        moved = np.where(moved < 1e-10, 0.0, moved)
        # Newton overshoots far from the maximum: an EM step then, which never does.
        if _log_likelihood(ratios, moved) < _log_likelihood(ratios, shares) - 1e-12:
            moved = shares * terms.mean(axis=0)
        shares, change = moved, np.abs(moved - shares).max()
        if change < TOLERANCE:
            break
    return np.asarray(shares / shares.sum())


def _log_likelihood(ratios: np.ndarray, shares: np.ndarray) -> float:
    return float(np.mean(np.log(np.maximum(ratios @ shares, 1e-300))) - shares.sum())


def estimating_functions(ratios: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return g_j(x), (N, C); ``at`` are the shares f*, (C,) or (N, C), all above zero: ``sum_j f*_j g_j = 1``."""
    return np.asarray(ratios / np.sum(ratios * at, axis=1, keepdims=True))
