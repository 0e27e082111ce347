"""Skies of pseudo-experiments hold what was asked for, and a small one goes through the closure benchmark's page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.spectra.response import Simulated, binning
from benchmarks.physics.closure_page import write_page
from benchmarks.physics.pseudo_experiments import SpectraPool, draw_sky, mixtures, spectra_experiment
from showers.simulation.sky import Sky
from tests.analysis.sky import simulated

BINS = binning((15.2, 15.4, 15.6, 15.8, 16.0, 16.3))
SKY = Sky(sharpness=5.0)


@pytest.fixture(scope="module")
def pool() -> SpectraPool:
    events, thrown = simulated(60_000, 3, BINS)
    return SpectraPool(replace(events, group=np.arange(len(events))), thrown)


def test_every_mixture_is_there_once() -> None:
    found = {tuple(np.round(10 * each).astype(int)) for each in mixtures()}
    assert len(found) == 1001
    assert all(sum(each) == 10 for each in found)


def test_a_sky_holds_the_fluxes_asked_for(pool: SpectraPool) -> None:
    """Simulated events of known truth: counts by group follow the fluxes, and no shower comes twice."""
    everything: Simulated = pool.events
    rng = np.random.default_rng(4)
    totals, exposure = np.zeros(5), 0.0
    for _ in range(20):
        data, exposure, _ = draw_sky(SKY, everything, pool.thrown, BINS, 3_000, rng)
        assert len(np.unique(data.log_proba[:, 0])) == len(data)
        rows = np.flatnonzero(np.isin(everything.log_proba[:, 0], data.log_proba[:, 0]))
        totals += np.bincount(everything.labels[rows], minlength=5)
    assert everything.true_lg_energy is not None
    fine = BINS.place_fine(everything.true_lg_energy)
    middle = (BINS.fine[1:] + BINS.fine[:-1]) / 2
    sent = SKY.flux(middle)[:5] * np.diff(10.0**BINS.fine) * exposure
    counts = pool.thrown.counts.sum(axis=0)
    rate = np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)[everything.labels, fine]
    rate[BINS.place(everything.lg_energy) < 0] = 0.0
    expected = np.bincount(everything.labels, rate, 5)
    assert rate.max() <= 1 + 1e-9
    np.testing.assert_allclose(totals / 20, expected, atol=5 * np.sqrt(expected.max() / 20))


def test_an_experiment_is_told_on_the_page(pool: SpectraPool, tmp_path: Path) -> None:
    prior = np.full((BINS.n_bins, 5), 0.2)
    done = [
        {"kind": "spectra", **spectra_experiment(pool, SKY, BINS, prior, seed, events=2_000, replicas=20)}
        for seed in range(2)
    ]
    for one in done:
        assert one["flux"]["n"] == 25
        assert 5 <= one["fraction"]["in68"] <= one["fraction"]["in95"] <= 25
        assert set(one["methods"]) >= {"likelihood_checked", "clipped", "bayes"}
    write_page(done, tmp_path / "closure.md", {"train": 1, "test": 1, "learner": "lightgbm"})
    text = (tmp_path / "closure.md").read_text()
    assert "fractions: same world" in text
    assert "rigidity of the knees" in text
    assert "| clipped |" in text
    assert "comes closest to the shares" in text
