"""Area under the ROC curve with its standard error."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata


def area_under_curve(positive: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error.

    The area is the Mann-Whitney statistic (ties count one half); its variance follows from the placements of each event
    among those of the other kind (E. R. DeLong et al., Biometrics 44 (1988) 837), by ranks in N log N.

    Parameters
    ----------
    positive
        (N,) bool.
    score
        (N,) float, higher = more likely positive.
    """
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(score)
    placed_positive = (ranks[positive] - rankdata(score[positive])) / n_negative
    placed_negative = 1.0 - (ranks[~positive] - rankdata(score[~positive])) / n_positive
    variance = 0.0
    for placed in (placed_positive, placed_negative):
        variance += float(placed.var(ddof=1)) / len(placed) if len(placed) > 1 else 0.25
    return float(placed_positive.mean()), float(np.sqrt(variance))
