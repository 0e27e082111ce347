"""Scoring a predictions file against the test labels: metrics, intervals, warnings, and the metrics file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scoring.composition import composition_metrics, confusion_matrix, energy_bins, expected_fraction_error
from scoring.gamma import EFFICIENCIES, efficiency_name, energy_zenith_grid, gamma_metrics, hadron_survival, zenith_bins
from scoring.intervals import MIN_CLASS_EVENTS, RESAMPLES, clopper_pearson, confusion_intervals, survival_interval
from scoring.read import Origin, Truth, read_output, read_truth
from showers.schema import COMPOSITION, GAMMA, InputError, Task
from showers.storage.files import write_json

BIN_RESAMPLES = 1000
"""Bootstrap replicas in each bin: their limits then wobble by a twelfth of a standard error."""


def score_file(
    predictions: Path,
    data: Path,
    task: Task,
    *,
    intervals: bool = True,
    write: bool = True,
    check: Callable[[Path, Origin, Path], list[str]] | None = None,
) -> dict[str, Any]:
    """Score ``predictions`` against the labels of ``data/{task}_test``.

    Parameters
    ----------
    predictions
        ``predictions.npz``.
    data
        Folder that holds ``{task}_test``.
    task
        :data:`showers.schema.COMPOSITION` or :data:`showers.schema.GAMMA`.
    intervals
        Add 95 % intervals (and ``too_few_events`` to bins that cannot carry a number).
    write
        Write ``metrics_{task}.json`` beside the predictions, atomically, after everything succeeded.
    check
        Given the predictions, what they say of their origin and the test folder, refuses what does not belong together
        or returns remarks, which go into ``warnings``.

    Returns
    -------
    The benchmark's keys; beside them ``n_events``, ``warnings``, the intervals, and ``config_hash`` and
    ``test_fingerprint`` where the predictions carry them.

    Raises
    ------
    InputError
        For anything that cannot be scored; no metrics file is then written or changed.
    """
    if task.name not in (COMPOSITION.name, GAMMA.name):
        raise InputError(f"task {task.name!r} has no public metric: choose {COMPOSITION.name} or {GAMMA.name}")
    truth = read_truth(data, task)
    output, origin = read_output(predictions, task, len(truth.labels))
    remarks = check(Path(predictions), origin, truth.folder) if check else []
    metrics = score_arrays(truth, output, task, intervals=intervals)
    metrics["warnings"] += remarks
    metrics |= {key: value for key, value in asdict(origin).items() if value is not None}
    if write:
        write_json(metrics_path(predictions, task), metrics)
    return metrics


def metrics_path(predictions: Path, task: Task) -> Path:
    """Return where the metrics of a predictions file are written."""
    return Path(predictions).parent / f"metrics_{task.name}.json"


def score_arrays(truth: Truth, output: np.ndarray, task: Task, *, intervals: bool = True) -> dict[str, Any]:
    """Return the metrics of hard labels or scores (N,) that :func:`scoring.read.read_output` has checked."""
    if task.name == COMPOSITION.name:
        metrics = composition_metrics(truth.labels, output, truth.energy)
        if intervals:
            add_composition_intervals(metrics)
            metrics["zenith_binned"] = composition_by_zenith(truth, output)
        notes: list[str] = []
    else:
        metrics = gamma_metrics(truth.labels, output, truth.energy, truth.zenith_deg)
        if intervals:
            add_gamma_intervals(metrics, truth, output)
        notes = tie_warnings(truth.labels, output)
    return metrics | {"n_events": len(truth.labels), "warnings": notes}


def add_composition_intervals(metrics: dict[str, Any]) -> None:
    """Add 95 % intervals to the metrics of :func:`scoring.composition.composition_metrics`, in place."""
    metrics["intervals"] = _confusion_part(np.array(metrics["confusion_matrix"]), metrics["fraction_error_details"])
    metrics["intervals"]["recall"] = {
        name: clopper_pearson(metrics["confusion_matrix"][k][k], int(row["support"])).as_dict()
        for k, (name, row) in enumerate(metrics["per_class"].items())
    }
    for found in metrics["energy_binned"].values():
        matrix = np.array(found["confusion_matrix"])
        found["too_few_events"] = bool(matrix.sum(axis=1).min() < MIN_CLASS_EVENTS)
        found["intervals"] = _confusion_part(matrix, found.get("fraction_error"), BIN_RESAMPLES)


def composition_by_zenith(truth: Truth, predicted: np.ndarray) -> dict[str, Any]:
    """Return accuracy and expected fraction error (closed form, without draws) by zenith, with 95 % intervals.

    The public metrics have no such table, so nothing is drawn for it. Bins without events have no key, those that
    lack a class no fraction error.
    """
    found: dict[str, Any] = {}
    for name, mask in zenith_bins(truth.zenith_deg):
        if not mask.any():
            continue
        matrix = confusion_matrix(truth.labels[mask], predicted[mask])
        per_class = matrix.sum(axis=1)
        found[name] = {
            "accuracy": float(np.trace(matrix) / matrix.sum()),
            "count": int(matrix.sum()),
            "too_few_events": bool(per_class.min() < MIN_CLASS_EVENTS),
            "intervals": {"accuracy": clopper_pearson(int(np.trace(matrix)), int(matrix.sum())).as_dict()},
        }
        if per_class.min() > 0:
            value = expected_fraction_error(matrix)
            found[name]["expected_fraction_error"] = value
            found[name]["intervals"]["expected_fraction_error"] = confusion_intervals(
                matrix, value, n_resamples=BIN_RESAMPLES
            )[0].as_dict()
    return found


def _confusion_part(matrix: np.ndarray, error: dict[str, Any] | None, n_resamples: int = RESAMPLES) -> dict[str, Any]:
    part: dict[str, Any] = {"accuracy": clopper_pearson(int(np.trace(matrix)), int(matrix.sum())).as_dict()}
    if error is not None:
        overall, classes = confusion_intervals(
            matrix,
            error["mean_fraction_error"],
            np.array(error["per_class_fraction_error"]),
            n_resamples=n_resamples,
        )
        part["mean_fraction_error"] = overall.as_dict()
        part["per_class_fraction_error"] = [interval.as_dict() for interval in classes]
    return part


def add_gamma_intervals(metrics: dict[str, Any], truth: Truth, scores: np.ndarray) -> None:
    """Add 95 % intervals to the metrics of :func:`scoring.gamma.gamma_metrics`, in place.

    ``interval`` includes the uncertainty of the threshold, ``interval_at_threshold`` (Clopper-Pearson) does not.
    """
    everything = np.ones(len(scores), dtype=bool)
    for share in EFFICIENCIES:
        found = metrics["survival_rates"][efficiency_name(share)]
        _survival_part(found, truth.labels, scores, everything, share)
        found["n_tied_hadrons"] = hadron_survival(truth.labels, scores, share).n_tied_hadrons
    hits = round(metrics["accuracy_at_0.5"] * len(scores))
    metrics["intervals"] = {
        "key_metric": metrics["survival_rates"]["75%"]["interval"],
        "accuracy_at_0.5": clopper_pearson(hits, len(scores)).as_dict(),
    }
    binned = [(metrics["energy_binned"].get(name), mask) for name, mask in energy_bins(truth.energy)]
    binned += [(metrics["zenith_binned"].get(name), mask) for name, mask in zenith_bins(truth.zenith_deg)]
    binned += [
        (metrics["energy_zenith_grid"].get(row, {}).get(name), mask)
        for row, name, mask in energy_zenith_grid(truth.energy, truth.zenith_deg)
    ]
    for found, mask in binned:
        if found is not None:
            _survival_part(found, truth.labels, scores, mask)
            found["too_few_events"] = min(found["n_gamma"], found["n_hadron"]) < MIN_CLASS_EVENTS


def _survival_part(
    found: dict[str, Any], labels: np.ndarray, scores: np.ndarray, mask: np.ndarray, efficiency: float = 0.75
) -> None:
    labels, scores = labels[mask], scores[mask]
    found["interval"] = survival_interval(labels, scores, efficiency).as_dict()
    n_hadron = int(np.count_nonzero(labels == 1))
    found["interval_at_threshold"] = clopper_pearson(found["hadron_surviving"], n_hadron).as_dict()


def tie_warnings(labels: np.ndarray, scores: np.ndarray) -> list[str]:
    """Say what tied scores at a threshold cost: hadrons survive that no smaller score separates from gammas."""
    notes = []
    for share in EFFICIENCIES:
        found = hadron_survival(labels, scores, share)
        if found.n_tied_hadrons and found.n_tied_hadrons + found.n_tied_gammas > 2:
            without = (found.n_surviving - found.n_tied_hadrons) / found.n_hadron
            notes.append(
                f"at {efficiency_name(share)} gamma efficiency {found.n_tied_gammas} gammas and "
                f"{found.n_tied_hadrons} hadrons share the score at the threshold ({found.threshold:.9g}): survival is "
                f"{found.hadron_survival:.3g}, gamma efficiency {found.gamma_efficiency:.4f}; without the tied hadrons "
                f"it would be {without:.3g}. Save scores as float64 logits."
            )
    return notes
