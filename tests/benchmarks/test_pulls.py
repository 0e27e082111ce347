"""Showers drawn with the fits' own constants: whatever else the simulation can do must be off in them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fits.pulls import World, everything, pulls
from showers.simulation import load_settings

EVENTS = 1_500


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    settings = load_settings("default").changed(**everything())
    return pulls(World(settings, tmp_path_factory.mktemp("own"), EVENTS, 12).draw())


@pytest.mark.parametrize("quantity", ["core x", "core y", "lg Ne", "age", "lg Nmu"])
def test_fits_are_unbiased_and_their_errors_hold(own: dict[str, np.ndarray], quantity: str) -> None:
    found = own[quantity]
    assert len(found) > 700
    # Four standard errors; an effect of the simulation that the fits do not know moves sizes and ages by .5 and more.
    assert abs(np.median(found)) < 4 * 1.25 / np.sqrt(len(found))
    assert 0.85 < np.std(found[np.abs(found) < 5]) < 1.15
