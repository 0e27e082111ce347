"""Photons put into a sky come back; without any, limits are as expected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.photons.events import SearchEvents, SimulatedSearch
from analysis.photons.search import PhotonSearch, SearchOptions, search_events
from analysis.spectra.response import Thrown, binning
from runtime.errors import InputError

EDGES = (15.0, 15.3, 15.6, 16.0)
BINS = binning(EDGES)
OPTIONS = SearchOptions(Path("run"), [Path("sky")], "1e10", Path("out"), edges=EDGES)
EXPOSURE = 1e10
LOW, HIGH = 14.7, 17.0


def _powers(n: int, index: float, rng: np.random.Generator) -> np.ndarray:
    u = 1 - rng.random(n) * (1 - 10.0 ** ((HIGH - LOW) * (1 - index)))
    return np.asarray(LOW + np.log10(u) / (1 - index))


def _seen(photon: np.ndarray, lg_energy: np.ndarray, rng: np.random.Generator, shift: float) -> dict[str, np.ndarray]:
    """Scores, energies and who is accepted: photons are reconstructed .1 too low and pass more often."""
    n = len(photon)
    accepted = rng.random(n) < np.where(photon, 0.9, 0.6)
    score = np.where(photon, rng.normal(6.0, 1.5, n), rng.normal(-3.0 + shift, 2.0, n) + rng.exponential(0.7, n))
    found = lg_energy + rng.normal(0, 0.08, n) - 0.1 * photon
    fixed = {"zenith_deg": np.full(n, 15.0), "lg_ne": np.full(n, 5.0), "lg_nmu": np.full(n, 4.0)}
    columns = {"score": score, "lg_energy": found, "folder": np.zeros(n, int), "row": np.arange(n)} | fixed
    return {name: value[accepted] for name, value in columns.items()} | {"accepted": accepted}


def _simulation(seed: int, n: int = 250_000) -> tuple[SimulatedSearch, Thrown]:
    rng = np.random.default_rng(seed)
    labels, lg = (rng.random(n) > 0.15).astype(int), _powers(n, 2.0, rng)
    counts = np.zeros((1, 2, len(BINS.fine) - 1))
    np.add.at(counts, (0, labels, BINS.place_fine(lg)), 1)
    seen = _seen(labels == 0, lg, rng, 0.0)
    keep = seen.pop("accepted")
    events = SimulatedSearch(**seen, labels=labels[keep], group=np.arange(n)[keep], true_lg_energy=lg[keep])
    return events, Thrown(BINS.fine, counts)


def _sky(seed: int, *, hadrons: int = 200_000, photons: float = 0.0, shift: float = 0.0) -> tuple[SearchEvents, float]:
    """Return measured events, and the true share of photons."""
    rng = np.random.default_rng(seed)
    n_photons = rng.poisson(photons * hadrons)
    photon = np.arange(hadrons + n_photons) >= hadrons
    seen = _seen(photon, _powers(len(photon), 2.7, rng), rng, shift)
    seen.pop("accepted")
    return SearchEvents(**seen), photons / (1 + photons)


@pytest.fixture(scope="module")
def simulation() -> tuple[SimulatedSearch, Thrown]:
    return _simulation(1)


def _search(data: SearchEvents, simulation: tuple[SimulatedSearch, Thrown], **changes: object) -> PhotonSearch:
    return search_events(data, *simulation, BINS, replace(OPTIONS, **changes), EXPOSURE)  # type: ignore[arg-type]


def test_photons_come_back(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    data, truth = _sky(2, photons=2e-3)
    whole = next(one for one in _search(data, simulation).limits if one.integral)
    low, high = (value * whole.fraction_per_event for value in whole.interval)
    assert whole.significance > 1.5, "photons in the sideband count as its failure"
    assert 0 < low < truth < high
    assert high < 3 * truth
    # Flux: photons sent above the lowest energy, in an exposure of so many m2 sr s.
    sent = truth * 200_000 * 10.0 ** (-1.7 * (EDGES[0] - LOW)) / EXPOSURE
    assert whole.interval[0] * whole.flux_per_event < sent < whole.interval[1] * whole.flux_per_event


def test_limits_without_photons_are_as_expected(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    inside, below = [], []
    for seed in range(3):
        found = _search(_sky(10 + seed, hadrons=60_000)[0], simulation)
        inside += [one.expected[0] - 1e-9 <= one.limit <= one.expected[4] + 1e-9 for one in found.limits[:3]]
        below += [one.significance < 3 for one in found.limits]
        assert len(np.unique(found.candidates)) == len(found.candidates)
        assert found.limits[0].candidates + found.limits[1].candidates + found.limits[2].candidates == len(
            found.candidates
        )
    # Nine limits, each inside of its 95 % band: fewer than seven are inside with a probability of .008.
    assert np.sum(inside) >= 7
    assert all(below)


def test_a_sideband_repairs_what_simulation_has_wrong(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    """Measured hadrons score .4 lower than simulated ones, as in the published search."""
    data, _ = _sky(20, shift=-0.4, hadrons=300_000)
    found = _search(data, simulation, efficiency=0.97)
    whole = next(one for one in found.limits if one.integral)
    seen, back = whole.candidates, whole.backgrounds
    assert seen > 10
    assert back.simulation.mean > seen + 2 * np.hypot(back.simulation.error, np.sqrt(seen)), "simulation alone fails"
    assert abs(back.data.mean - seen) < 3 * np.hypot(back.data.error, np.sqrt(seen))
    assert back.side_expected > 1.2 * back.side_seen


def test_thresholds_do_not_look_at_measured_scores(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    data, _ = _sky(30, hadrons=50_000)
    other = replace(data, score=data.score[::-1] + 2.0)
    np.testing.assert_array_equal(
        _search(data, simulation).regions.threshold, _search(other, simulation).regions.threshold
    )


def test_what_cannot_be_is_told(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    data, _ = _sky(40, hadrons=5_000)
    events, thrown = simulation
    low = data.take(data.lg_energy < 15.3)
    found = _search(low, simulation)
    assert found.regions.usable.tolist() == [True, False, False]
    assert any("15.3-15.6 is not used: no measured event" in remark for remark in found.remarks)
    with pytest.raises(InputError, match="no energy bin can be used"):
        _search(data.take(data.lg_energy < 14.9), simulation)
    with pytest.raises(InputError, match="simulated photons"):
        search_events(data, events.take(events.labels == 1), thrown, BINS, OPTIONS, EXPOSURE)
    unknown = search_events(data, events, None, BINS, OPTIONS, EXPOSURE)
    assert not unknown.efficiency_known
    assert np.isnan(unknown.limits[0].flux_per_event)
    with pytest.raises(InputError, match="times the published one"):
        search_events(data, events, thrown, BINS, OPTIONS, 1e4, simulated_data=False)
