"""Limits: the numbers of the published table, and coverage by toy experiments."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.photons.limits import Background, cls_limit, expected_limits, feldman_cousins, significance
from runtime.errors import InputError
from scoring.metrics.intervals import clopper_pearson

PUBLISHED = {
    0.0: ((0, 2.44), (0.11, 4.36), (0.53, 5.91), (1.10, 7.42), (1.47, 8.60), (1.84, 9.99), (2.21, 11.47)),
    3.0: ((0, 1.08), (0, 1.88), (0, 3.04), (0, 4.42), (0, 5.60), (0, 6.99), (0.15, 8.47), (0.89, 9.53)),
}
"""Feldman and Cousins, Phys. Rev. D 57 (1998) 3873, Table IV: 90 %, by the number of events."""


@pytest.mark.parametrize("mean", PUBLISHED)
def test_intervals_of_feldman_and_cousins_are_the_published_ones(mean: float) -> None:
    for n, (low, high) in enumerate(PUBLISHED[mean]):
        assert feldman_cousins(n, Background(mean)) == pytest.approx((low, high), abs=0.013), f"{n} events"


def test_cls_without_background_is_the_classical_limit() -> None:
    assert cls_limit(0, Background(0.0)) == pytest.approx(2.3026, abs=1e-3)
    assert cls_limit(3, Background(0.0)) == pytest.approx(6.681, abs=1e-3)
    # With no event CLs forgets the background, and so its error.
    for background in (Background(3.0), Background(3.0, 1.0)):
        assert cls_limit(0, background) == pytest.approx(2.3026, abs=1e-3)
    assert cls_limit(5, Background(3.0), efficiency_error=0.3) > cls_limit(5, Background(3.0)) + 0.3
    assert cls_limit(2, Background(5.0)) > feldman_cousins(2, Background(5.0))[1], "never better than one deserves"


@pytest.mark.parametrize(("mean", "error", "signal"), [(3.0, 0.0, 4.0), (10.0, 3.0, 8.0), (60.0, 9.0, 25.0)])
def test_limits_cover(mean: float, error: float, signal: float) -> None:
    """What is known of the background is a measurement: drawn with its error in every toy."""
    rng, toys = np.random.default_rng(1), 300
    above = 0
    for _ in range(toys):
        if error:
            off = (mean / error) ** 2
            count = rng.poisson(off)
            known = Background(max(count, 0.5) * mean / off, np.sqrt(max(count, 0.5)) * mean / off)
        else:
            known = Background(mean)
        above += cls_limit(int(rng.poisson(mean + signal)), known) > signal
    assert clopper_pearson(above, toys).high > 0.90, "at least the stated level"


def test_expected_limits_are_what_toys_find() -> None:
    background = Background(6.0, 1.5)
    rng = np.random.default_rng(2)
    numbers = rng.poisson(rng.gamma(16.0, 6.0 / 16.0, 4000))
    limits = np.array([cls_limit(n, background) for n in range(numbers.max() + 1)])[numbers]
    np.testing.assert_allclose(
        expected_limits(background), np.quantile(limits, (0.025, 0.16, 0.5, 0.84, 0.975)), rtol=0.12
    )
    assert significance(6, background) == pytest.approx(0.0, abs=0.4)
    assert significance(25, background) > 4


def test_impossible_backgrounds_are_refused() -> None:
    with pytest.raises(InputError, match="not negative"):
        Background(-1.0)
    with pytest.raises(InputError, match="not negative"):
        Background(1.0, float("nan"))


@pytest.mark.parametrize(("mean", "error"), [(4.0, 0.0), (4.0, 1.5), (300.0, 12.0)])
def test_numbers_of_background_events_spread_by_both_errors(mean: float, error: float) -> None:
    background = Background(mean, error)
    n = np.arange(background.largest())
    chance = background.pmf(n)
    assert chance.sum() == pytest.approx(1.0)
    assert chance @ n == pytest.approx(mean)
    assert chance @ (n - mean) ** 2 == pytest.approx(mean + error**2)
