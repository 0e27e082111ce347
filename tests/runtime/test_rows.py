"""Records of events: rows are taken of all arrays alike, and what one part does not know none knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from showerstack.runtime.rows import Rows


@dataclass(frozen=True)
class Draws(Rows):
    EVENTS_AXIS = -1

    normal: np.ndarray


@dataclass(frozen=True)
class Events(Rows):
    energy: np.ndarray
    draws: Draws
    title: str
    weight: np.ndarray | None = None


EVENTS = Events(np.arange(4.0), Draws(np.arange(8.0).reshape(2, 4)), "all", np.arange(4) * 2)


def test_rows_are_taken_along_the_axis_of_events() -> None:
    for rows in (np.array([3, 1]), np.arange(4) > 1, slice(2)):
        some = EVENTS.take(rows)
        np.testing.assert_array_equal(some.energy, EVENTS.energy[rows])
        np.testing.assert_array_equal(some.draws.normal, EVENTS.draws.normal[:, rows])
        np.testing.assert_array_equal(some.weight, np.asarray(EVENTS.weight)[rows])
        assert some.title == "all"
    assert replace(EVENTS, weight=None).take(slice(2)).weight is None


def test_what_one_part_lacks_none_has() -> None:
    parts = [EVENTS.take(slice(1)), EVENTS.take(slice(1, 4))]
    whole = Events.joined(parts)
    np.testing.assert_array_equal(whole.energy, EVENTS.energy)
    np.testing.assert_array_equal(whole.draws.normal, EVENTS.draws.normal)
    np.testing.assert_array_equal(whole.weight, EVENTS.weight)
    for lacking in range(2):
        without = [replace(part, weight=None) if k == lacking else part for k, part in enumerate(parts)]
        assert Events.joined(without).weight is None
