"""Means from run to run: quiet where all runs are alike, and naming feature and run where one has drifted."""

from __future__ import annotations

import numpy as np

from analysis.datacheck.sample import Piece
from analysis.datacheck.streamed import Histograms

NAMES = ("steady", "drifting", "partly undefined")


def _measured(rng: np.random.Generator, *, shift: float = 0.0, runs: int = 6, events: int = 800) -> Histograms:
    simulation = rng.normal(size=(2_000, 3)).astype(np.float32)
    energy = np.full(2_000, 15.3)
    found = Histograms.of(NAMES, simulation, np.ones(2_000), energy, runs)
    for run in range(runs):
        values = rng.normal(size=(events, 3))
        values[:, 1] += shift if run == 4 else 0.0
        values[rng.random(events) < 0.3, 2] = np.nan
        found.add(Piece(run, np.arange(events), values.astype(np.float32), np.full(events, 15.3)))
    return found


def test_runs_that_are_alike_raise_no_alarm() -> None:
    rng = np.random.default_rng(1)
    smallest = np.array([_measured(rng).unstable()[0].min() for _ in range(60)])
    alarms = int((smallest < 0.05).sum())
    assert alarms <= 9, "3 expected of 60 at a stated 5 %"
    assert np.median(smallest) > 0.3


def test_a_run_that_drifts_is_named() -> None:
    p, pulls = _measured(np.random.default_rng(2), shift=0.3).unstable()
    assert p[1] < 1e-6
    assert p[[0, 2]].min() > 0.01
    assert np.abs(pulls[:, 1]).argmax() == 4
    assert pulls[4, 1] > 5


def test_runs_with_few_events_are_not_judged() -> None:
    p, pulls = _measured(np.random.default_rng(3), shift=5.0, events=10).unstable()
    assert (p == 1).all()
    assert (pulls == 0).all()
