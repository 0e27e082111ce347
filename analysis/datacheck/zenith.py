"""Composition in zenith bands: at equal energy the same composition arrives in all of them.

The mean ln A by the run's posteriors, data minus weighted simulation, is compared between three bands of equal solid
angle. No composition and no spectrum can make a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from showerstack.analysis.datacheck.p_values import TINY_P
from showerstack.runtime.rows import Rows

BANDS = 3
ENERGY_STEP = 0.25
"""Width of the cells of equal lg E."""
LEAST = 30
"""Events of both samples that a cell needs."""


@dataclass(frozen=True)
class ZenithTest:
    """The band that is farthest from the mean of all."""

    p: float
    """That all bands have one difference of mean ln A."""
    effect: float
    """In mean ln A."""
    error: float


@dataclass(frozen=True)
class MassEvents(Rows):
    """Events with their masses; (N,) each."""

    lg_energy: np.ndarray
    zenith_deg: np.ndarray
    mean_ln_a: np.ndarray
    """Mean ln A by the posteriors."""
    weight: np.ndarray


def zenith_bands(data: MassEvents, simulation: MassEvents) -> ZenithTest | None:
    """Compare the bands; None where one has no cell with enough events."""
    top = np.sin(np.radians(data.zenith_deg.max())) ** 2
    band_of = [
        np.minimum((np.sin(np.radians(events.zenith_deg)) ** 2 / top * BANDS).astype(int), BANDS)
        for events in (data, simulation)
    ]
    differences = [
        _difference(data.take(band_of[0] == band), simulation.take(band_of[1] == band)) for band in range(BANDS)
    ]
    values, errors = np.array(differences).T
    if not np.isfinite(values).all():
        return None
    precision = errors**-2
    centre = precision @ values / precision.sum()
    farthest = int(np.argmax(np.abs(values - centre)))
    p = float(chdtrc(BANDS - 1, precision @ (values - centre) ** 2))
    return ZenithTest(max(p, TINY_P), float(values[farthest] - centre), float(errors[farthest]))


def _mean(values: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return a weighted mean and its variance."""
    total = weight.sum()
    mean = float(weight @ values / total)
    return mean, float((weight**2 @ (values - mean) ** 2) / total**2)


def _difference(data: MassEvents, simulation: MassEvents) -> tuple[float, float]:
    """Return the difference of mean ln A at equal energy, and its error; NaN without common cells."""
    values, variances, counts = [], [], []
    cells = [np.floor(events.lg_energy / ENERGY_STEP).astype(int) for events in (data, simulation)]
    for cell in np.unique(cells[0]):
        in_data, in_simulation = (c == cell for c in cells)
        if in_data.sum() < LEAST or (in_simulation & (simulation.weight > 0)).sum() < LEAST:
            continue
        of_data = _mean(data.mean_ln_a[in_data], data.weight[in_data])
        of_simulation = _mean(simulation.mean_ln_a[in_simulation], simulation.weight[in_simulation])
        values.append(of_data[0] - of_simulation[0])
        variances.append(of_data[1] + of_simulation[1])
        counts.append(in_data.sum())
    if not values:
        return float("nan"), float("nan")
    share = np.array(counts) / sum(counts)
    return float(share @ values), float(np.sqrt(share**2 @ np.array(variances)))
