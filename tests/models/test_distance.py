"""Sets of showers unlike all that pretrained weights have seen: told apart in toys whose truth is known."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from showerstack.models.pretraining import distance, stream
from showerstack.models.pretraining.distance import SIZES, WORLDS, Distance, compare
from showerstack.runtime.context import Context
from showerstack.showers.schema import COMPOSITION

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
        far = found(worlds, typical, size_shift=size_shift)
        assert far.further > WORLDS / 10, f"sizes shifted by {size_shift}: {far.value}"
        assert not far.is_outside
        assert "drawn worlds lie further from the others than these showers" in far.words


def test_along_what_worlds_differ_in_a_set_may_lie_far_out(worlds: list[np.ndarray]) -> None:
    along, across = np.zeros(12), np.zeros(12)
    along[-1] = across[0] = 0.6  # 1.5 widths of the worlds, and 30
    assert not found(worlds, along).is_outside
    far = found(worlds, across)
    assert far.is_outside
    assert far.furthest[0].startswith("shape 0 +")
    assert far.value > 2 * far.of_worlds.max()
    assert far.words.startswith("these showers are unlike all that the weights have seen: distance ")


def test_sizes_that_no_world_has_are_outside(worlds: list[np.ndarray]) -> None:
    assert found(worlds, np.zeros(12), size_shift=9.0).is_outside
    few_alike = found([world[:40] for world in worlds], np.zeros(12))
    assert few_alike.is_outside
    assert few_alike.words.endswith("of other sizes and zenith angles")


def test_showers_more_inclined_than_any_of_the_worlds_are_told_and_not_compared(
    worlds: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights saw composition showers of other arrays up to 33 deg; sets may reach 50."""
    rng = np.random.default_rng(4)
    first = stream.COLUMNS.index("Ze") + 1

    def table(shapes: np.ndarray, most_deg: float) -> np.ndarray:
        full = np.full((len(shapes), len(stream.COLUMNS)), np.nan)
        full[:, first : first + len(COLUMNS)] = shapes
        full[:, stream.COLUMNS.index("Ze")] = rng.uniform(0, most_deg, len(shapes))
        return full

    seen = [*worlds[:-1], worlds[-1][:0]]  # of one world no shower triggers
    monkeypatch.setattr(distance, "draw_at", lambda array, task, k: SimpleNamespace(table=table(seen[k], 34.0)))
    inputs = SimpleNamespace(plain=COLUMNS, absent=(), apply=lambda batch: batch.table[:, first : first + len(COLUMNS)])
    monkeypatch.setattr(distance, "inputs_of", lambda *_: inputs)
    ctx = Context(workers=1)

    def of(most_deg: float) -> Distance:
        batch = stream.batch_of(table(showers(rng, 400, np.zeros(12)), most_deg))
        return distance.distance_of(SimpleNamespace(), batch, COMPOSITION, ctx)  # type: ignore[arg-type]

    assert of(33.0).inclined == ""
    half = of(68.0)
    assert not half.is_outside
    assert re.search(r"; (1[6-9]|2[0-4])\d of 400 compared have zenith angles above 34 deg, of which", half.words)
    most = of(3000.0)
    assert most.is_outside
    assert "of other sizes and zenith angles; " in most.words
