"""CUDA kernels with 32 lanes on a CPU: the same bits in whatever order lanes run, and no lane parts from the others.

As plain C++ with one lane the kernels are tested for their numbers (``test_fit.py``, ``test_features.py``); a missing
barrier, a shuffle that not all lanes reach or a wrong stride pass that test and fail this one.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from showerstack.features.device import namespace
from showerstack.features.lateral import cuda
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import fit_cuda, fit_fused
from showerstack.features.stations.cuda import grid_cuda, order_cuda, sum_cuda
from showerstack.features.stations.grid import order_fused

XP = namespace("cpu")
START = Path(cuda.__file__).with_name("warp.cu").read_text(encoding="utf-8")
EMULATION = Path(__file__).with_name("warp_emulation.h").read_text(encoding="utf-8")
FORWARD, BACKWARD, RANDOM = 0, 1, 2
N, N_FITS = 60, 12


class Warp:
    """Starts kernels on an emulated warp, whose lanes run in ``order``."""

    def __init__(self, compiled) -> None:
        self.compiled, self.order, self.text_of = compiled, FORWARD, lambda text: text
        self.faults: dict[str, int] = {}
        self.shuffles: dict[str, int] = {}

    def launch(self, kernels, name, n_events, arguments) -> None:
        """Stand for :func:`showerstack.features.lateral.cuda.launch`."""
        text = self.text_of(kernels.text)
        assert text.count(START) == 1
        library = self.compiled(text.replace(START, EMULATION))
        library.begin(self.order)
        getattr(library, name)(
            *(ctypes.c_int(v) if isinstance(v, int) else ctypes.c_void_p(v.ctypes.data) for v in arguments)
        )
        self.faults[name], self.shuffles[name] = library.faults(), library.shuffles()


@pytest.fixture(scope="module")
def showers(draw):
    """Showers, an empty one and a saturated one among them."""
    drawn = draw(N, seed=5, lg_ne=(3.8, 6.2))
    cells = drawn.matrices.copy()
    cells[3] = 0
    cells[4, 0, :5] = 40_000.0
    return cells, drawn.scalars


@pytest.fixture
def warp(compiled, monkeypatch):
    """The emulated warp, in place of a GPU."""
    result = Warp(compiled)
    monkeypatch.setattr(cuda, "launch", result.launch)
    return result


def flat(numbers):
    """Return all numbers of a result, one row an event, as bits."""
    columns = numbers.columns() if hasattr(numbers, "columns") else numbers.values()
    parts = [np.asarray(part) for part in columns]
    table = np.concatenate([part.reshape(len(part), -1).astype(np.float32) for part in parts], axis=1)
    return np.where(np.isnan(table), np.float32(np.nan), table).view(np.uint32)


def all_kernels(cells, scalars):
    """Return what the four kernels say."""
    events, few = (make_events(XP, cells[:n], scalars[:n]) for n in (N, N_FITS))
    fit = fit_fused(events)
    return {
        "fit_events": flat(fit_cuda(few)),
        "sum_events": flat(sum_cuda(events, fit)),
        "sum_grids": flat(grid_cuda(events)),
        "order_cells": flat(order_cuda(events)),
    }


@pytest.mark.slow
def test_lanes_in_any_order_give_the_same_bits(showers, warp):
    results = []
    for order in (FORWARD, BACKWARD, RANDOM):
        warp.order = order
        results.append(all_kernels(*showers))
        assert set(warp.faults.values()) == {0}
    for name, first in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(first, other[name], err_msg=name)
    assert warp.shuffles["fit_events"] > 100 * N_FITS
    expected = flat(order_fused(make_events(XP, *showers)))
    np.testing.assert_array_equal(results[0]["order_cells"], expected)


BARRIER = ("void sort(", "SYNCHRONISE;", "")
SHUFFLE = ("void order_one(", "hits = total(hits);", "if (lane) hits = total(hits);")


@pytest.mark.slow
@pytest.mark.parametrize(("function", "whole", "broken"), [BARRIER, SHUFFLE], ids=["barrier", "shuffle"])
def test_a_missing_barrier_and_a_lane_that_misses_a_shuffle_are_found(showers, warp, function, whole, broken):
    events = make_events(XP, *showers)
    expected = flat(order_cuda(events))

    def mutated(text):
        head, body = text.split(function)
        assert whole in body
        return head + function + body.replace(whole, broken, 1)

    warp.text_of = mutated
    wrong = (flat(order_cuda(events)) != expected).any(axis=1)
    if function == BARRIER[0]:
        assert wrong.mean() > 0.9
    else:
        assert warp.faults["order_cells"] == N
