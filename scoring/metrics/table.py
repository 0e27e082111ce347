"""What is reported for tables of any origin: accuracy, log-loss and area under the ROC curve, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from scoring.metrics.roc import area_under_curve
from scoring.uncertainty.intervals import LEVEL, accuracy_interval


def table_metrics(labels: np.ndarray, log_proba: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return accuracy, log-loss (nats) and AUC, each with its 95 % interval.

    Parameters
    ----------
    labels
        (N,) class numbers.
    log_proba
        (N, C) log-probabilities of rows that were held out.
    classes
        Names. With two, the AUC is that of the second against the first; with more, the mean of one against the rest.
    """
    loss = -log_proba[np.arange(len(labels)), labels]
    predicted = np.argmax(log_proba, axis=1)
    right = accuracy_interval(labels, predicted)
    counts = np.bincount(labels, minlength=len(classes))
    # A class without a row, or with all of them, has no such area.
    columns = [k for k in ([1] if len(classes) == 2 else range(len(classes))) if 0 < counts[k] < len(labels)]
    margins = [log_proba[:, k] - np.log(np.maximum(-np.expm1(log_proba[:, k]), 1e-300)) for k in columns]
    areas = [area_under_curve(labels == k, margin) for k, margin in zip(columns, margins, strict=True)]
    area = float(np.mean([value for value, _ in areas])) if areas else float("nan")
    # One-against-rest areas share their events; adding their errors as if fully correlated is the safe bound.
    error = float(np.mean([e for _, e in areas])) if areas else float("nan")
    return {
        "accuracy": _entry(float(np.mean(predicted == labels)), right.low, right.high),
        "log_loss": _normal(float(loss.mean()), float(loss.std() / np.sqrt(len(loss)))),
        "auc": _normal(area, error, 0.0, 1.0),
        "auc_by_class": {classes[k]: _normal(value, e, 0.0, 1.0) for k, (value, e) in zip(columns, areas, strict=True)},
        "confusion": np.histogram2d(labels, predicted, [np.arange(len(classes) + 1) - 0.5] * 2)[0].astype(int).tolist(),
    }


def _normal(value: float, error: float, low: float = -np.inf, high: float = np.inf) -> dict[str, float]:
    half = float(ndtri(0.5 + LEVEL / 2)) * error
    return _entry(value, max(low, value - half), min(high, value + half))


def _entry(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
