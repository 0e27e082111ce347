"""What a data check found, in sentences."""

from __future__ import annotations

import numpy as np

from analysis.datacheck.check import DataCheck
from analysis.datacheck.stations import CHANNELS
from features.catalogue import CATALOGUE

SMALL_P = 0.001


def verdict(check: DataCheck) -> str:
    """Return what share of the data should not be trusted, and why, in plain words."""
    limit = check.alarms / len(check.p_values)
    if not check.raised:
        name, p = min(check.p_values.items(), key=lambda item: item[1])
        return (
            f"Nothing in {check.n_events:,} events speaks against the simulation: the smallest of "
            f"{len(check.p_values)} p-values ({name}) is {p:.2g}, an alarm is given below {limit:.2g}."
        )
    share = check.not_trusted
    start = (
        f"At least {100 * share:.1f} % of the events are not described by the simulation and should not be trusted"
        if share > 0
        else "The simulation does not describe these events; how many of them cannot be told"
    )
    return f"{start}: {'; '.join(reasons(check))}."


def reasons(check: DataCheck) -> list[str]:
    """Return one clause for each test that raises an alarm."""
    found = []
    raised = set(check.raised)
    if "features" in raised:
        best = check.differences[0]
        n = len({d.feature for d in check.differences if d.p < SMALL_P})
        unit = CATALOGUE[best.feature].unit if best.feature in CATALOGUE else ""
        found.append(
            f"{n} features are distributed otherwise, most of all {best.feature} (mean shifted by {best.shift:+.3g} "
            f"{unit}, {best.sigmas:+.2f} standard deviations)"
        )
    if "classifier" in raised:
        c = check.classifier
        names = ", ".join(name for name, _ in c.giving_away[:3])
        found.append(f"a classifier tells them apart (AUC {c.auc:.3f} [{c.low:.3f}, {c.high:.3f}]) by {names}")
    if "distance" in raised:
        tail = min(check.tails, key=lambda t: t.p)
        found.append(
            f"{100 * tail.seen:.2f} % lie farther out than the {100 * tail.quantile:g} % quantile of the simulation, "
            f"where {100 * tail.expected:.2f} % are expected"
        )
    if "stations" in raised:
        found.append(_stations(check))
    if "order" in raised:
        name = min(check.order, key=lambda key: check.order[key])
        found.append(f"rows are ordered: {name} of neighbours agrees, or changes along the file")
    if "runs" in raised:
        worst, feature = np.unravel_index(np.abs(check.run_pulls).argmax(), check.run_pulls.shape)
        found.append(
            f"runs differ from each other, most of all {check.run_names[worst]} in {check.histograms.names[feature]}"
        )
    return found


def _stations(check: DataCheck) -> str:
    off = np.argwhere(check.stations.p * len(check.p_values) < check.alarms)
    dead = [place for place in off if check.stations.data[tuple(place)] == 0]
    pieces = []
    for number, name in enumerate(CHANNELS):
        mine = [place for place in off if place[2] == number]
        silent = sum(1 for place in dead if place[2] == number)
        if mine:
            row, column, _ = mine[0]
            pieces.append(f"{len(mine)} {name} stations (such as row {row}, column {column}; {silent} of them silent)")
    return f"hit too often or too rarely: {' and '.join(pieces)}"
