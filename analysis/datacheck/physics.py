"""Checks of the simulation that composition and spectrum alone cannot pass: what has to agree if it is right.

* **Zenith bands**: at equal energy the same composition arrives in all of them. The mean ln A by the run's posteriors,
  data minus weighted simulation, is compared between three bands of equal solid angle.
* **Muons against electrons**: ln A inferred from lg Nmu alone and from the electrons' age alone, at equal energy and
  zenith angle, must differ in mean and spread as much as simulation says. (At equal energy lg Ne follows from lg Nmu.)
* **Muon-poor tail**: below the tenth part of the events with the fewest muons, at equal lg Ne, their number falls
  exponentially, as the fluctuations of light nuclei's showers do; the slope is compared, which composition hardly
  moves.

Each gives a p-value and an effect size: with a million events everything differs significantly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm

BANDS = 3
ENERGY_STEP, NE_STEP = 0.25, 0.2
"""Widths of the cells of equal lg E and of equal lg Ne."""
LEAST = 30
"""Events of both samples that a cell needs."""
POOR = 0.1
"""Share of the events of a cell that is its muon-poor tail."""
TINY_P = 1e-300


@dataclass(frozen=True)
class Consistency:
    """One check."""

    p: float
    effect: float
    """How large the difference is, in :attr:`unit`."""
    error: float
    unit: str


@dataclass(frozen=True)
class CheckedEvents:
    """What the checks need of events; (N,) each."""

    lg_energy: np.ndarray
    zenith_deg: np.ndarray
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    age: np.ndarray
    """Age of the electrons' lateral distribution."""
    mean_ln_a: np.ndarray | None
    """Mean ln A by the posteriors; None where classes are not nuclei."""
    weight: np.ndarray

    def take(self, rows: np.ndarray) -> CheckedEvents:
        """Return some of the events."""
        return replace(self, **{name: value[rows] for name, value in vars(self).items() if value is not None})

    def finite(self) -> CheckedEvents:
        """Return the events whose columns are all defined."""
        return self.take(self.defined())

    def defined(self) -> np.ndarray:
        """Return which events have all columns, (N,) bool."""
        columns = [value for value in vars(self).values() if value is not None]
        return np.asarray(np.isfinite(columns).all(axis=0))


def consistency(data: CheckedEvents, simulation: CheckedEvents, ln_a: np.ndarray | None) -> dict[str, Consistency]:
    """Return the checks that can be made, by name.

    Parameters
    ----------
    data, simulation
        Events under the same cuts; the simulation's weights give it the data's composition and spectrum.
    ln_a
        (N,) true ln A of the simulated events; None where classes are not nuclei: then the tail alone is compared.
    """
    used = simulation.defined()
    ours, theirs = data.finite(), simulation.take(used)
    checks = {"tail": _tail(ours, theirs)}
    if ln_a is not None:
        checks |= {"zenith": _zenith(ours, theirs), "muons": _muons(ours, theirs, ln_a[used])}
    return {name: one for name, one in checks.items() if one is not None}


def _mean(values: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return a weighted mean and its variance."""
    total = weight.sum()
    mean = float(weight @ values / total)
    return mean, float((weight**2 @ (values - mean) ** 2) / total**2)


def _difference(ours: CheckedEvents, theirs: CheckedEvents, mine: np.ndarray, their: np.ndarray) -> tuple[float, float]:
    """Return the mean difference of two quantities at equal energy, and its error; NaN without common cells."""
    values, variances, counts = [], [], []
    cells = [np.floor(events.lg_energy / ENERGY_STEP).astype(int) for events in (ours, theirs)]
    for cell in np.unique(cells[0]):
        here, there = (c == cell for c in cells)
        if here.sum() < LEAST or (there & (theirs.weight > 0)).sum() < LEAST:
            continue
        one, other = _mean(mine[here], ours.weight[here]), _mean(their[there], theirs.weight[there])
        values.append(one[0] - other[0])
        variances.append(one[1] + other[1])
        counts.append(here.sum())
    if not values:
        return float("nan"), float("nan")
    share = np.array(counts) / sum(counts)
    return float(share @ values), float(np.sqrt(share**2 @ np.array(variances)))


def _zenith(ours: CheckedEvents, theirs: CheckedEvents) -> Consistency | None:
    assert ours.mean_ln_a is not None
    assert theirs.mean_ln_a is not None
    top = np.sin(np.radians(ours.zenith_deg.max())) ** 2
    place = [
        np.minimum((np.sin(np.radians(events.zenith_deg)) ** 2 / top * BANDS).astype(int), BANDS)
        for events in (ours, theirs)
    ]
    differences = []
    for band in range(BANDS):
        a, b = ours.take(place[0] == band), theirs.take(place[1] == band)
        assert a.mean_ln_a is not None
        assert b.mean_ln_a is not None
        differences.append(_difference(a, b, a.mean_ln_a, b.mean_ln_a))
    values, errors = np.array(differences).T
    if not np.isfinite(values).all():
        return None
    precision = errors**-2
    centre = precision @ values / precision.sum()
    far = int(np.argmax(np.abs(values - centre)))
    p = float(chi2.sf(precision @ (values - centre) ** 2, BANDS - 1))
    return Consistency(max(p, TINY_P), float(values[far] - centre), float(errors[far]), "in mean ln A, of one band")


def _muons(ours: CheckedEvents, theirs: CheckedEvents, ln_a: np.ndarray) -> Consistency | None:
    estimates = []
    for name in ("lg_nmu", "age"):
        columns = [_design(events, name) for events in (ours, theirs)]
        root = np.sqrt(theirs.weight)
        coefficients = np.linalg.lstsq(columns[1] * root[:, None], ln_a * root, rcond=None)[0]
        estimates.append([x @ coefficients for x in columns])
    middle = [_mean(side[1], theirs.weight)[0] for side in estimates]
    muons, electrons = ([one - centre for one in side] for side, centre in zip(estimates, middle, strict=True))
    # Means that agree do not suffice: muons that tell masses apart less move light and heavy nuclei to the middle.
    results = [
        (*_difference(ours, theirs, *(m - e for m, e in zip(muons, electrons, strict=True))), "in mean ln A"),
        (
            *_difference(ours, theirs, *(m**2 - e**2 for m, e in zip(muons, electrons, strict=True))),
            "in the variance of ln A",
        ),
    ]
    if not all(np.isfinite(value) and error > 0 for value, error, _ in results):
        return None
    p = float(chi2.sf(sum((value / error) ** 2 for value, error, _ in results), len(results)))
    value, error, unit = max(results, key=lambda one: abs(one[0] / one[1]))
    return Consistency(max(p, TINY_P), value, error, unit)


def _design(events: CheckedEvents, name: str) -> np.ndarray:
    """Return polynomials of energy, zenith angle and one more quantity, (N, 8)."""
    e, s = events.lg_energy - 15.5, 1 / np.cos(np.radians(events.zenith_deg)) - 1.05
    x = getattr(events, name)
    x = x - (4.5 + 0.9 * e if name == "lg_nmu" else 1.0)
    return np.stack([np.ones(len(e)), e, e**2, s, x, x**2, x * e, x * s], axis=1)


def _tail(ours: CheckedEvents, theirs: CheckedEvents) -> Consistency | None:
    """Compare the mean distance of muon-poor events from the border of their tail, in logarithms."""
    values, variances = [], []
    cells = [np.floor(events.lg_ne / NE_STEP).astype(int) for events in (ours, theirs)]
    for cell in np.unique(cells[0]):
        both = [_poor(events, c == cell) for events, c in zip((ours, theirs), cells, strict=True)]
        if all(both):
            (one, variance), (other, more) = (pair for pair in both if pair is not None)
            values.append(np.log(one / other))
            variances.append(variance + more)
    if not values:
        return None
    precision = 1 / np.array(variances)
    value, error = float(precision @ values / precision.sum()), float(precision.sum() ** -0.5)
    p = max(2 * float(norm.sf(abs(value) / error)), TINY_P)
    return Consistency(p, float(np.expm1(-value)), error, "of the slope, relative")


def _poor(events: CheckedEvents, inside: np.ndarray) -> tuple[float, float] | None:
    """Return the mean distance below the border and its relative variance; None with too few events."""
    muons, weight = events.lg_nmu[inside], events.weight[inside]
    if len(muons) < LEAST / POOR:
        return None
    order = np.argsort(muons)
    reached = np.cumsum(weight[order])
    last = int(np.searchsorted(reached, POOR * reached[-1]))
    if last < LEAST / 2:
        return None
    below = muons[order[last]] - muons[order[:last]]
    mean, variance = _mean(below, weight[order[:last]])
    return mean, variance / mean**2
