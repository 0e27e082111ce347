"""How wrong are shares when nature is one place and the simulation another?"""

from __future__ import annotations

import numpy as np

from analysis.spectra.estimation.mixture import estimating_functions, likelihood_ratios, maximum_likelihood

LEAST_SHARE = 0.02
"""No class is given less at the expansion point: weights of events stay bounded."""


def share_bias(
    log_proba: np.ndarray, labels: np.ndarray, response: list[tuple[np.ndarray, np.ndarray]], prior: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return found minus true shares (C,), and their errors from both samples' statistics.

    Parameters
    ----------
    log_proba, labels
        The place that is tested.
    response
        Posteriors and labels of the training places' test showers. Where it is the tested place itself, the bias is
        zero by construction and says nothing; halves are then used for either.
    prior
        (C,) shares of the training events.
    """
    theirs, true = (np.concatenate(parts) for parts in zip(*response, strict=True))
    if len(response) == 1 and response[0][0] is log_proba:
        half = np.random.default_rng(seed).random(len(labels)) < 0.5
        theirs, true, log_proba, labels = theirs[half], true[half], log_proba[~half], labels[~half]
    ours = likelihood_ratios(log_proba, prior)
    at = np.maximum(maximum_likelihood(ours), LEAST_SHARE)
    at /= at.sum()
    g, s = estimating_functions(ours, at), estimating_functions(likelihood_ratios(theirs, prior), at)
    n_classes = len(at)
    truth = np.bincount(labels, minlength=n_classes) / len(labels)
    mixing = np.stack([s[true == k].mean(axis=0) for k in range(n_classes)], axis=1)
    found = np.linalg.solve(mixing, g.mean(axis=0))
    inverse = np.linalg.inv(mixing)
    # The tested shares are those of the very events: only the scatter of g within each class counts.
    within = np.concatenate([g[labels == k] - g[labels == k].mean(axis=0) for k in range(n_classes)])
    spread = within.T @ within / len(g) ** 2
    for k in range(n_classes):
        spread = spread + found[k] ** 2 * np.cov(s[true == k], rowvar=False) / max((true == k).sum(), 1)
    return found - truth, np.sqrt(np.diag(inverse @ spread @ inverse.T))
