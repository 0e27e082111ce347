"""Distances of assertions from their limits are noted, and seeds are moved."""

from __future__ import annotations

import ast
import builtins

import numpy as np
import pytest
import torch

from benchmarks.quality.margins import NOTES, Assertions, Notes, shift_seeds

pytestmark = pytest.mark.slow

SOURCE = """
assert 1.0 < 3.0
assert 2.0 <= value < 5.0
assert abs(value) < 8.0
assert (np.array([1.0, 6.0]) > 0).all() and value == pytest.approx(3.0, abs=4.0)
np.testing.assert_allclose([1.0, 2.0], [1.0, 3.0], rtol=0, atol=0.5)
assert "text" == "text"
"""


def test_each_assertion_notes_its_smallest_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    notes.test = "test"
    monkeypatch.setattr(builtins, NOTES, notes, raising=False)
    monkeypatch.setattr(np.testing, "assert_allclose", notes.close)
    tree = ast.fix_missing_locations(Assertions("file").visit(ast.parse(SOURCE)))
    exec(compile(tree, "file", "exec"), {"np": np, "pytest": pytest, "value": 4.0})
    assert notes.distances == {
        "test 0 0 file:2": 2.0,
        "test 0 0 file:3": 2.0,
        "test 0 1 file:3": 1.0,
        "test 0 file:4": 0.5,
        "test 1 file:4": 1.5,
        "test 0 0 file:5": 1.0,
        "test 0 file:5": 0.75,
        "test 1 file:5": 1.25,
        "test 0 file:6": 1.0,
        "test 1 file:6": -1.0,
    }
    with pytest.raises(AssertionError, match="file:2"):
        exec(
            compile(ast.fix_missing_locations(Assertions("file").visit(ast.parse("\nassert 'a' == 'b'"))), "f", "exec")
        )


def test_seeds_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = np.random.SeedSequence
    for where, name in ((np.random, "default_rng"), (np.random, "SeedSequence"), (torch, "manual_seed")):
        monkeypatch.setattr(where, name, getattr(where, name))
    expected = [np.random.default_rng(plain([*seed, 7])).random() for seed in ((1,), (2, 3))]
    shift_seeds(7)
    assert [np.random.default_rng(seed).random() for seed in (1, (2, 3))] == expected
    assert np.random.default_rng(np.random.SeedSequence(1)).random() == expected[0]
