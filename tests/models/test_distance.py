"""Sets of showers unlike all that pretrained weights have seen: told apart in toys whose truth is known."""

import numpy as np
import pytest

from showerstack.models.pretraining.distance import SIZES, WORLDS, Distance, compare

COLUMNS = (*SIZES, *(f"shape {k}" for k in range(12)))
WORLD_WIDTH = np.linspace(0.02, 0.4, 12)
"""By how much the worlds' shapes differ."""


def showers(rng: np.random.Generator, n: int, world: np.ndarray, size_shift: float = 0.0) -> np.ndarray:
    """Shapes follow the size, the world, and chance."""
    sizes = rng.standard_normal((n, len(SIZES)))
    sizes[:, 0] = 0.7 * sizes[:, 0] + size_shift
    shapes = 0.5 * sizes[:, :1] + world + 0.5 * rng.standard_normal((n, len(world)))
    return np.column_stack([sizes, shapes])


@pytest.fixture(scope="module")
def worlds() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [showers(rng, 600, WORLD_WIDTH * rng.standard_normal(12)) for _ in range(WORLDS)]


def found(worlds: list[np.ndarray], shift: np.ndarray, n: int = 400, size_shift: float = 0.0) -> Distance:
    rng = np.random.default_rng(2)
    return compare(showers(rng, n, shift, size_shift), worlds, COLUMNS)


def test_a_set_like_the_worlds_is_inside_whatever_its_sizes(worlds: list[np.ndarray]) -> None:
    typical = 0.5 * WORLD_WIDTH * np.resize((1.0, -1.0), 12)
    for size_shift in (0.0, 0.5, -0.5):
        distance = found(worlds, typical, size_shift=size_shift)
        assert distance.further > WORLDS / 10, f"sizes shifted by {size_shift}: {distance.value}"
        assert not distance.is_outside
        assert "drawn worlds lie further from the others than these showers" in distance.words


def test_along_what_worlds_differ_in_a_set_may_lie_far_out(worlds: list[np.ndarray]) -> None:
    along, across = np.zeros(12), np.zeros(12)
    along[-1] = across[0] = 0.6  # 1.5 widths of the worlds, and 30
    assert not found(worlds, along).is_outside
    distance = found(worlds, across)
    assert distance.is_outside
    assert distance.furthest[0].startswith("shape 0 +")
    assert distance.value > 2 * distance.of_worlds.max()
    assert distance.words.startswith("these showers are unlike all that the weights have seen: distance ")


def test_sizes_that_no_world_has_are_outside(worlds: list[np.ndarray]) -> None:
    assert found(worlds, np.zeros(12), size_shift=9.0).is_outside
    few_alike = found([world[:40] for world in worlds], np.zeros(12))
    assert few_alike.is_outside
    assert few_alike.words.endswith("of other sizes and zenith angles")
