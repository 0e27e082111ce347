"""Every number of the features, beside the numbers they gave before.

Fits stop where less than a decrement of 5e-4 is left: another processor stops a thousandth of a standard error away,
so that moments of columns are compared to 1e-3, and medians, which a single fit does not move.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import compute_events
from showerstack.features.device import namespace
from showerstack.features.groups import FittedEvents
from showerstack.features.lateral import elementwise
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.recipe import RECIPE
from showerstack.features.stations.tail import asymptotic, flat_table, summed, tail_table
from showerstack.showers.array import KASCADE
from showerstack.showers.response import PUBLISHED
from tests.features.conftest import draw_showers
from tests.references import summary

Reference = Callable[..., None]
XP = namespace("cpu")
N = 120


def hostile() -> tuple[np.ndarray, np.ndarray]:
    """Return grids and scalars of showers of all sizes; some with hand-made cells: none, few, saturated, far beside."""
    parts = [draw_showers(N // 2, 71, (3.6, 5.2)), draw_showers(N // 2, 72, (5.2, 7.4), max_core_m=120.0)]
    grids = np.concatenate([part.matrices for part in parts]).astype(np.float32)
    scalars = np.concatenate([part.scalars for part in parts])
    grids[0] = 0.0
    grids[1, ..., 0], grids[1, 3, 4, 0], grids[1, 3, 5, 0], grids[1, 4, 4, 0] = 0.0, 30.0, 20.0, 9.0
    grids[2, ..., 0], grids[2, 3, 4, 0], grids[2, 3, 5, 0] = 0.0, 30.0, 20.0
    grids[3, ..., 1] = 0.0
    grids[4, ..., 0] *= 200.0
    scalars[5, 1], scalars[6, 1], scalars[7, 4], scalars[8, 4] = 0.0, 60.0, 0.0, 9.5
    np.minimum(grids, 60_000, out=grids)
    return grids, scalars


def robust(values: np.ndarray) -> dict[str, float]:
    """Return the moments of a column, and its median."""
    return summary(values) | {"median": float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0}


@pytest.mark.parametrize("array", ["whole", "damaged"])
def test_columns(array: str, reference: Reference) -> None:
    """All columns of the catalogue for showers of all kinds."""
    grids, scalars = hostile()
    stations = KASCADE.without([20, 105], [3, 200]) if array == "damaged" else KASCADE
    age = np.random.default_rng(73).uniform(0.3, 1.4, N).astype(np.float32)
    table = compute_events(grids, scalars, age, frozenset(GROUPS), stations)
    reference({column.name: robust(column.to_numpy().astype(np.float64)) for column in table}, rtol=1e-3, atol=1e-6)


def test_minima_of_the_fits(reference: Reference) -> None:
    fit = FittedEvents(make_events(XP, *hostile())).fit
    kept = {name: value for name, value in vars(fit).items() if not name.endswith("steps") and name != "numbers"}
    got = {
        name: [robust(one.astype(np.float64)) for one in (value if isinstance(value, list) else [value])]
        for name, value in kept.items()
    }
    reference(got, rtol=3e-3, atol=1e-5)


def test_constants(reference: Reference) -> None:
    reference({"recipe": RECIPE._asdict(), "response": PUBLISHED})


def test_a_changed_constant_names_the_version_to_raise(reference: Reference) -> None:
    reference({"recipe": RECIPE._asdict()})
    changed = RECIPE._asdict() | {next(iter(RECIPE._asdict())): 0.123}
    with pytest.raises(AssertionError, match=r"raise FEATURES_VERSION in runtime/versions\.py"):
        reference({"recipe": changed})


def test_tails(reference: Reference) -> None:
    """Tables of tail probabilities, their two formulas, and where these meet."""
    signal = np.array([0.01, 0.5, 20.0, 29.999, 30.0, 30.001, 45.0, 400.0])
    tails = np.linspace(0.2, 1.0, 12).reshape(3, 4)
    reference(
        {
            "tables": [summary(tail_table(dispersion)[::7]) for dispersion in (1.17, 2.1)],
            "flat": summary(flat_table(1.2, np)),
            "asymptotic": [asymptotic(signal, 30.0, shape) for shape in (0.9, 6.0)],
            "summed": [summed(tails, mean) for mean in (0.01, 3.0)],
        },
        rtol=1e-5,
    )


def test_pieces(reference: Reference) -> None:
    rng = np.random.default_rng(74)
    x = np.array([-70.0, -2.0, 0.0, 1e-3, 5.0, 61.0, 80.0])
    root = rng.normal(0, 1, (5, 4, 4))
    matrices = root @ root.transpose(0, 2, 1)
    lower = [matrices[:, i, j] for i in range(4) for j in range(i + 1)]
    found = elementwise.inverse(lower, 4, np)
    expected = np.linalg.inv(matrices)
    for values, i, j in zip(found, *np.tril_indices(4), strict=True):
        np.testing.assert_allclose(values, expected[:, i, j], rtol=1e-6)
    zero = [value * 0.0 + (1.0 if k in (0, 9) else 0.0) for k, value in enumerate(lower)]
    reference(
        {
            "defined": elementwise.defined(x > 0.0, x, np),
            "lg": elementwise.lg(x, np),
            "clip": elementwise.clip_symmetric(x, 3.0, np),
            "decay": elementwise.decay(np.abs(x), np),
            "singular": [summary(one) for one in elementwise.inverse(zero, 4, np)],
        }
    )
