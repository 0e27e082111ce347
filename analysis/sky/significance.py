"""How significant an excess of counts over a measured background is."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy
from scipy.stats import norm


def li_ma(on: np.ndarray, off: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
    """Return the significance of counts by Li and Ma, Astrophysical Journal 272 (1983) 317, equation 17.

    Parameters
    ----------
    on
        Counts where a source is looked for.
    off
        Counts of the background measurement.
    alpha
        Exposure of the first divided by that of the second, so that ``alpha * off`` counts are expected.

    Returns
    -------
    Standard deviations, negative for a deficit; NaN where both counts are zero.
    """
    n_on, n_off = np.asarray(on, dtype=np.float64), np.asarray(off, dtype=np.float64)
    whole = n_on + n_off
    with np.errstate(divide="ignore", invalid="ignore"):
        from_on = xlogy(n_on, (1 + alpha) / alpha * n_on / whole)
        from_off = xlogy(n_off, (1 + alpha) * n_off / whole)
    found = np.sqrt(2 * np.maximum(from_on + from_off, 0.0)) * np.sign(n_on - alpha * n_off)
    return np.where(whole > 0, found, np.nan)


def after_trials(significance: float, trials: int) -> float:
    """Return the probability that the largest of so many independent standard normal numbers is at least this one."""
    return float(-np.expm1(trials * norm.logcdf(significance)))
