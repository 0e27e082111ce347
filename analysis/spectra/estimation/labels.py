"""Numbers of events from decided labels: the published way and its relatives, to be compared with the likelihood.

``inverse`` solves ``m = D n`` with D the share of decided labels of each true class; ``clipped`` sets negative results
to zero, as published spectra do; ``bayes`` stops D'Agostini's iterations early; ``regularised`` maximises the Poisson
likelihood less ``strength`` times the squared second differences of the shares from bin to bin (A. Tikhonov). Where to
stop and how strong: whatever is nearest to the truth in samples of random composition drawn from simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from analysis.spectra.estimation.estimate import SpectrumEstimate
from analysis.unfolding import apply_bayes

ITERATIONS = (1, 2, 3, 4, 6, 8, 12, 20, 35, 60, 100, 200)
STRENGTHS = (0.0, 1.0, 10.0, 100.0, 1000.0)
TRIALS = 40


@dataclass(frozen=True)
class ByLabels:
    """Numbers of accepted events by method, and what was chosen on simulation."""

    events: dict[str, np.ndarray]
    """(B, C) each."""
    iterations: int
    strength: float


def by_labels(found: SpectrumEstimate, *, seed: int = 3) -> ByLabels:
    """Return all methods' numbers.

    Parameters
    ----------
    found
        An estimate made with ``functions="label"``.
    """
    usable = found.usable
    counts, response = found.plain[usable], found.mixing[usable]
    rng = np.random.default_rng(seed)
    n_bins, n_classes = counts.shape
    truths, trials = [], []
    for _ in range(TRIALS):
        # Shares that drift with energy as nature's do: a line in the logarithm between two random compositions.
        ends = np.log(rng.dirichlet(np.full(n_classes, 2.0), 2) + 1e-3)
        path = np.linspace(0, 1, n_bins)[:, None]
        shares = np.exp(ends[0] * (1 - path) + ends[1] * path)
        truth = counts.sum(axis=1, keepdims=True) * shares / shares.sum(axis=1, keepdims=True)
        truths.append(truth)
        trials.append(rng.poisson(np.maximum(np.einsum("bjc,bc->bj", response, truth), 0)).astype(float))
    weight = 1.0 / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)

    def distance(results: list[np.ndarray]) -> float:
        return float(np.mean([np.abs(r - t) * weight for r, t in zip(results, truths, strict=True)]))

    iterations = min(ITERATIONS, key=lambda k: distance([bayes(trial, response, k) for trial in trials]))
    few = trials[: TRIALS // 4]
    strength = min(
        STRENGTHS,
        key=lambda s: float(
            np.mean([np.abs(regularised(x, response, s) - t) * weight for x, t in zip(few, truths, strict=False)])
        ),
    )
    events = {
        "inverse": found.events,
        "clipped": np.maximum(found.events, 0.0),
        "bayes": _filled(bayes(counts, response, iterations), usable),
        "regularised": _filled(regularised(counts, response, strength), usable),
    }
    return ByLabels(events, iterations, strength)


def bayes(counts: np.ndarray, response: np.ndarray, iterations: int) -> np.ndarray:
    """Return (B, C) events after some applications of Bayes' theorem, from equal shares.

    Parameters
    ----------
    counts
        (B, J) decided labels.
    response
        (B, J, C) share of label j among true class c.
    """
    equal = np.full(response.shape[2], 1.0 / response.shape[2])
    return apply_bayes(counts, response.transpose(0, 2, 1), equal, iterations)[0]


def regularised(counts: np.ndarray, response: np.ndarray, strength: float) -> np.ndarray:
    """Return (B, C) events, none negative, of the penalised Poisson likelihood.

    Parameters
    ----------
    counts
        (B, J) decided labels.
    response
        (B, J, C).
    strength
        Of the penalty on second differences of the shares between neighbouring bins.
    """
    total = np.maximum(counts.sum(axis=1), 1.0)
    shape = (len(counts), response.shape[2])

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        shares = flat.reshape(shape)
        expected = np.maximum(np.einsum("bjc,bc->bj", response, shares) * total[:, None], 1e-9)
        value = float(np.sum(expected - counts * np.log(expected)))
        slope = np.einsum("bjc,bj->bc", response, 1.0 - counts / expected) * total[:, None]
        bend = np.diff(shares, 2, axis=0)
        value += strength * float(np.sum(bend**2))
        slope[2:] += 2 * strength * bend
        slope[1:-1] -= 4 * strength * bend
        slope[:-2] += 2 * strength * bend
        scale = float(total.sum())
        return value / scale, slope.ravel() / scale

    start = np.full(shape[0] * shape[1], 1.0 / shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start))
    return np.asarray(found.x.reshape(shape) * total[:, None])


def _filled(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    found = np.full((len(usable), values.shape[1]), np.nan)
    found[usable] = values
    return found
