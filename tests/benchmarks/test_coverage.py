"""Stated intervals and limits hold as often as they say: a part of ``benchmarks/quality/interval_coverage.py``."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality.interval_coverage import ALL

pytestmark = pytest.mark.slow

TOYS = {toy.name: toy for toy in ALL}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("weighted survival, 0 natural survivors expected: limit", 0.2),
        ("weighted survival, 1 natural survivors expected: limit", 0.2),
        ("weighted survival, 3 natural survivors expected: limit", 0.3),
        ("weighted survival, 1 natural survivors expected: interval", 0.2),
        ("survival of 200 showers used 10 times, likeness 1, truth 0.005", 0.2),
        ("survival of 200 showers used 10 times, likeness 0.3, truth 0.01", 0.4),
        ("share, ten events have half of the weight: truth .01", 0.1),
        ("hadronic model, 2 models: one sigma", 0.1),
        ("response, showers used 5 times: one sigma", 0.5),
        ("photon background, showers used 5 times: one sigma", 0.3),
        ("datacheck, 1,000 data of the simulation: features raise no alarm", 0.04),
    ],
)
def test_what_is_stated_holds(name: str, share: float) -> None:
    toy = TOYS[name]
    found, _, n = toy.coverage(share)
    assert found > toy.stated - 5 * np.sqrt(toy.stated * (1 - toy.stated) / n), f"{found:.3f} in {n} toys"
