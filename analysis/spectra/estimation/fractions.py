"""Shares of the groups from fluxes or numbers, with their covariance."""

from __future__ import annotations

import numpy as np


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
    found = shares(values)
    for b in range(n_bins):
        mine = slice(b * n_classes, (b + 1) * n_classes)
        jacobian[mine, mine] = (np.eye(n_classes) - found[b][:, None]) / values[b].sum()
    known = np.isfinite(np.diag(covariance)) & np.isfinite(np.diag(jacobian))
    result = np.full_like(covariance, np.nan)
    inside = np.ix_(known, known)
    result[inside] = jacobian[inside] @ covariance[inside] @ jacobian[inside].T
    return result


def total_covariance(covariance: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the covariance (B, B) of the sums over groups."""
    n = len(covariance) // n_bins
    return np.asarray(covariance.reshape(n_bins, n, n_bins, n).sum(axis=(1, 3)))
