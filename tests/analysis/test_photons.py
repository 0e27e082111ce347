"""Searches for photons: those put into a sky come back, limits are as published, a user's search works or is refused.

Without photons, limits are as expected; their coverage is tested by toy experiments.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import xlogy
from scipy.stats import nbinom, norm, poisson

from showerstack.analysis.events import open_run
from showerstack.analysis.exposure import Exposure
from showerstack.analysis.options import SkyOptions
from showerstack.analysis.photons import on_off
from showerstack.analysis.photons.background import Regions, Weighted
from showerstack.analysis.photons.events import (
    HADRON,
    PhotonEnergy,
    SearchEvents,
    SimulatedSearch,
    isotropic_weight,
    read_simulation,
)
from showerstack.analysis.photons.files import write_limits
from showerstack.analysis.photons.limits import Background, cls_limit, expected_limits
from showerstack.analysis.photons.on_off import Common, OnOff, signal_limits
from showerstack.analysis.photons.result import PhotonSearch
from showerstack.analysis.photons.search import SearchOptions, search_events, search_photons
from showerstack.analysis.sky.map import li_ma, sky_map
from showerstack.analysis.spectra.response import Thrown, binning
from showerstack.report.photons_page import MANY_SIGMA, PhotonLimits, limits_text, write_photon_page
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.schema import GAMMA
from showerstack.showers.simulation.primaries import throw_primaries
from showerstack.showers.simulation.settings import load_settings

EDGES = (15.0, 15.3, 15.6, 16.0)
BINS = binning(EDGES)
OPTIONS = SearchOptions(Path("run"), [Path("sky")], "1e10", Path("out"), edges=EDGES, toys=200)
EXPOSURE = Exposure(1e10, None, True)
LOW, HIGH = 14.7, 17.0


def _powers(n: int, index: float, rng: np.random.Generator) -> np.ndarray:
    u = 1 - rng.random(n) * (1 - 10.0 ** ((HIGH - LOW) * (1 - index)))
    return np.asarray(LOW + np.log10(u) / (1 - index))


def _seen(photon: np.ndarray, lg_energy: np.ndarray, rng: np.random.Generator, shift: float) -> dict[str, np.ndarray]:
    """Scores, energies and who is accepted: photons' energies by the hadrons' formula are .4 too low."""
    n = len(photon)
    accepted = rng.random(n) < np.where(photon, 0.9, 0.6)
    score = np.where(photon, rng.normal(6.0, 1.5, n), rng.normal(-3.0 + shift, 2.0, n) + rng.exponential(0.7, n))
    result = lg_energy + rng.normal(0, 0.08, n) - 0.4 * photon
    fixed = {
        "zenith_deg": np.full(n, 15.0),
        "lg_ne": lg_energy - 10.0 + rng.normal(0, 0.08, n),
        "lg_nmu": np.full(n, 4.0),
    }
    energies = {"lg_energy": result, "lg_energy_hadron": result}
    columns = {"score": score, **energies, "folder": np.zeros(n, int), "row": np.arange(n)} | fixed
    return {name: value[accepted] for name, value in columns.items()} | {"accepted": accepted}


def _simulation(seed: int, n: int = 250_000) -> tuple[SimulatedSearch, Thrown]:
    rng = np.random.default_rng(seed)
    labels, lg = (rng.random(n) > 0.15).astype(int), _powers(n, 2.0, rng)
    counts = np.zeros((1, 2, len(BINS.fine) - 1))
    np.add.at(counts, (0, labels, BINS.fine_bin_of(lg)), 1)
    visited = _seen(labels == 0, lg, rng, 0.0)
    keep = visited.pop("accepted")
    events = SimulatedSearch(**visited, labels=labels[keep], group=np.arange(n)[keep], true_lg_energy=lg[keep])
    return events, Thrown(BINS.fine, counts)


def _sky(seed: int, *, hadrons: int = 200_000, photons: float = 0.0, shift: float = 0.0) -> tuple[SearchEvents, float]:
    """Return measured events, and the true share of photons."""
    rng = np.random.default_rng(seed)
    n_photons = rng.poisson(photons * hadrons)
    photon = np.arange(hadrons + n_photons) >= hadrons
    visited = _seen(photon, _powers(len(photon), 2.7, rng), rng, shift)
    visited.pop("accepted")
    return SearchEvents(**visited), photons / (1 + photons)


@pytest.fixture(scope="module")
def simulation() -> tuple[SimulatedSearch, Thrown]:
    return _simulation(1)


def _search(data: SearchEvents, simulation: tuple[SimulatedSearch, Thrown], **changes: object) -> PhotonSearch:
    return search_events(data, *simulation, BINS, replace(OPTIONS, **changes), EXPOSURE)  # type: ignore[arg-type]


@pytest.mark.slow
def test_photons_come_back(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    data, truth = _sky(2, photons=2e-3)
    whole = next(one for one in _search(data, simulation).limits if one.integral)
    low, high = (value * whole.fraction_per_event for value in whole.interval)
    assert low > 0
    # An interval of 90 % is 3.3 standard deviations wide.
    assert abs(truth - (low + high) / 2) < 1.5 * (high - low)
    assert high < 3 * truth
    # Flux: photons sent above the lowest energy, in an exposure of so many m2 sr s.
    sent = truth * 200_000 * 10.0 ** (-1.7 * (EDGES[0] - LOW)) / EXPOSURE.m2_sr_s
    low, high = (value * whole.flux_per_event for value in whole.interval)
    assert abs(sent - (low + high) / 2) < 1.5 * (high - low)


@pytest.mark.slow
def test_limits_without_photons_are_as_expected(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    inside, below = [], []
    for seed in range(3):
        result = _search(_sky(10 + seed, hadrons=60_000)[0], simulation)
        inside += [one.expected[0] - 1e-9 <= one.limit <= one.expected[4] + 1e-9 for one in result.limits[:3]]
        below += [one.significance < 3 for one in result.limits]
        assert len(np.unique(result.candidates)) == len(result.candidates)
        assert result.limits[0].candidates + result.limits[1].candidates + result.limits[2].candidates == len(
            result.candidates
        )
    # Nine limits, each inside of its 95 % band: fewer than five are inside with a probability of 3e-5.
    assert np.sum(inside) >= 5
    assert all(below)


def test_a_sideband_repairs_what_simulation_has_wrong(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    """Measured hadrons score .4 lower than simulated ones, as in the published search."""
    data, _ = _sky(20, shift=-0.4, hadrons=300_000)
    result = _search(data, simulation, efficiency=0.97)
    whole = next(one for one in result.limits if one.integral)
    visited, back = whole.candidates, whole.backgrounds
    assert visited > 10
    assert back.simulation.mean > visited + 2 * np.hypot(back.simulation.error, np.sqrt(visited)), (
        "simulation alone fails"
    )
    assert abs(back.data.mean - visited) < 6 * np.hypot(back.data.error, np.sqrt(visited))
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
    low = data.take((data.lg_energy < 15.3) & (data.lg_ne < 5.1))
    result = _search(low, simulation)
    assert result.regions.usable.tolist() == [True, False, False]
    assert any("15.3-15.6 is not used: no measured event" in remark for remark in result.remarks)
    with pytest.raises(InputError, match="no energy bin can be used, by a photon's energy"):
        _search(data.take(data.lg_ne < 4.8), simulation)
    with pytest.raises(InputError, match="simulated photons"):
        search_events(data, events.take(events.labels == 1), thrown, BINS, OPTIONS, EXPOSURE)
    unknown = search_events(data, events, None, BINS, OPTIONS, EXPOSURE)
    assert not unknown.efficiency_known
    assert np.isnan(unknown.limits[0].flux_per_event)
    with pytest.raises(InputError, match="times the published one"):
        search_events(data, events, thrown, BINS, OPTIONS, Exposure(1e4, None, True), simulated_data=False)


COMMAND_EDGES = (14.8, 17.0)


def _options(run: Path, sky: Path, out: Path, **changes: object) -> SearchOptions:
    return SearchOptions(run, [sky], "1e8", out, **({"edges": COMMAND_EDGES, "toys": 200} | changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_search_finds_the_photons_of_a_test_set(gamma_run: Path, gamma_sky: Path, tmp_path: Path) -> None:
    """The test set holds one photon to about eight protons, far more than any sky."""
    result = PhotonLimits(search_photons(_options(gamma_run, gamma_sky, tmp_path), Context()))
    earlier = tmp_path / "pyhf" / "above_19.json"
    earlier.parent.mkdir()
    earlier.write_text("of an earlier search")
    write_limits(result, tmp_path)
    assert not earlier.exists()
    limits, candidates = pl.read_csv(tmp_path / "limits.csv"), pl.read_csv(tmp_path / "candidates.csv")
    known = bool(np.isfinite(result.search.transfer.models))
    assert set(limits["errors_complete"]) == {known}
    assert any("errors_complete" in remark for remark in result.search.remarks) != known
    whole = limits.filter(pl.col("range") == "above").row(0, named=True)
    assert whole["candidates"] == len(candidates) > 10
    assert whole["interval_low_events"] > 0
    assert whole["limit_fraction"] > 0.01
    assert {"limit_photons_m2_sr_s", "limit_photons_m2_sr_s_eV", "expected_limit_fraction"} <= set(limits.columns)
    assert (np.diff(candidates["score"].to_numpy()) <= 0).all()
    message = read_json(tmp_path / "gamma_limit.json")
    assert message["exposure_m2_sr_s"] == 1e8
    assert message["efficiency_and_migration_known"]
    assert any("out-of-fold" in remark for remark in message["remarks"])
    model = read_json(tmp_path / "pyhf" / "above_14.8.json")
    assert model["observations"][0] == {"name": "above_threshold", "data": [float(len(candidates))]}
    assert model["channels"][0]["samples"][0]["data"] == pytest.approx([whole["photon_efficiency"]])
    page = write_photon_page(result, tmp_path).read_text()
    assert page.count("<svg") == 4 + 1 + 6
    many = whole["significance_sigma"] > MANY_SIGMA
    assert ("Warning: " in page.split("<nav>")[0]) == many, "many candidates are no limit"
    flow = message["cut_flow"]
    assert list(flow)[:3] == ["all", "zenith < 30 deg", "lg Ne > 4.8"]
    assert flow["all"] == len(np.load(gamma_sky / "features.npy"))
    for word in ("measured (simulated)", "1e+08 m2 sr s (option)", "below 30 degrees", "numpy", message["date"]):
        assert word in page[page.index('id="made"') :]
    assert "fraction</span>" not in page.split("<nav>")[0]
    PlainConsole(width=160).print(limits_text(result.search))
    shown = result._repr_html_()
    assert shown[shown.index("<table") :] in page, "a notebook shows the page's table"
    assert ("Warning: " in shown) == many
    (axes,) = result.plot(integral=True).axes
    (observed,) = [line for line in axes.lines if line.get_label() == "observed"]
    above = [one.limit * one.fraction_per_event for one in result.search.limits if one.integral]
    assert observed.get_ydata()[0] == pytest.approx(above[0] if above[0] < 1 else np.nan, nan_ok=True)
    assert axes.get_xlabel() == "from energy, eV"
    assert result.plot().axes[0].get_xlabel() == "energy, eV"


def test_what_cannot_be_right_is_refused(
    gamma_run: Path, gamma_sky: Path, tiny_gamma: Path, composition_run: Path, tmp_path: Path
) -> None:
    cases = (
        ({"exposure": "many"}, "--exposure"),
        ({"exposure": "3 acres"}, "unknown unit"),
        ({"edges": (17.8, 17.9)}, "no energy bin can be used, by a photon's energy"),
        ({"edges": (13.0, 15.0)}, "must lie in"),
        ({"zenith_max_deg": 70.0}, "--zenith-max"),
        ({"level": 1.0}, "--level"),
        ({"efficiency": 1.5}, "--efficiency"),
        ({"index": 0.0}, "--index"),
        ({"toys": 10}, "--toys"),
        ({"zenith_max_deg": 1e-3}, "no event passes"),
        ({"simulation": tiny_gamma / "gamma_train"}, "was trained on"),
        ({"simulation": gamma_sky}, "label"),
        ({"simulation": tiny_gamma / "gamma_test"}, "both --data and --simulation"),
        ({"data": [gamma_sky, gamma_sky]}, "same events"),
        ({"data": [tiny_gamma / "gamma_train"]}, "was trained on"),
        ({"run": composition_run}, "trained for composition: gamma-limit needs a run trained for gamma"),
    )
    for changes, message in cases:
        given = vars(_options(gamma_run, gamma_sky, tmp_path)) | changes
        with pytest.raises(InputError, match=message):
            search_photons(SearchOptions(**given), Context())  # type: ignore[arg-type]


def test_labels_where_none_should_be_are_told_and_not_read(gamma_run: Path, tiny_gamma: Path, tmp_path: Path) -> None:
    photons = search_photons(_options(gamma_run, tiny_gamma / "gamma_test", tmp_path), Context())
    assert any("holds labels_gamma.npy, which is not read" in remark for remark in photons.remarks)


def test_a_sky_map_of_the_highest_scores(gamma_run: Path, gamma_sky: Path, tmp_path: Path) -> None:
    pytest.importorskip("astropy_healpix")
    timed = tmp_path / "004000"
    shutil.copytree(gamma_sky, timed)
    (timed / "checksums.json").unlink()
    np.save(timed / "times.npy", np.linspace(1e9, 1e9 + 86_400, len(np.load(timed / "features.npy"))))
    whole = sky_map(SkyOptions([timed], nside=2, scrambles=2))
    result = sky_map(SkyOptions([timed], nside=2, scrambles=2, run=gamma_run, share=0.2), Context())
    assert result.score_threshold is not None
    assert abs(result.events - 0.2 * whole.events) <= 1


PUBLISHED = {
    0.0: ((0, 2.44), (0.11, 4.36), (0.53, 5.91), (1.10, 7.42), (1.47, 8.60), (1.84, 9.99), (2.21, 11.47)),
    3.0: ((0, 1.08), (0, 1.88), (0, 3.04), (0, 4.42), (0, 5.60), (0, 6.99), (0.15, 8.47), (0.89, 9.53)),
}
"""Feldman and Cousins, Phys. Rev. D 57 (1998) 3873, Table IV: 90 %, by the number of events."""
MANY = 1e7


def _pair(n: object, m: object, k: object, l: object, g: object = 1.0, c: object = 0.0) -> OnOff:  # noqa: E741
    """Counts of one or more bins, in which a signal has equal shares."""
    size = np.broadcast_shapes(*(np.shape(x) for x in (n, m, k, l, g, c)), (1,))
    one, two, three, four, five, six = (np.broadcast_to(np.asarray(x, float), size).copy() for x in (n, m, k, l, g, c))
    return OnOff(one, two, three, four, five, np.full(size, 1 / size[0]), six)


def _known(n: float, background: float) -> OnOff:
    """A background that is known exactly: so many events in sideband and simulation."""
    return _pair(n, MANY, MANY * max(background, 1e-12), MANY, 1.0 / MANY)


@pytest.mark.parametrize("mean", PUBLISHED)
def test_intervals_of_a_known_background_are_the_published_ones(mean: float) -> None:
    """Steps of the published intervals from number to number are as wide as one event: drawn ones round them off."""
    for n in (0, 5):
        low, high = PUBLISHED[mean][n]
        result = signal_limits(_known(n, mean), 0.9, Common(toys=1000)).interval
        assert result == pytest.approx((low, high), abs=0.15 + 0.15 * high), f"{n} events"


@pytest.mark.parametrize(("on", "off", "alpha"), [(20, 60, 0.2), (5, 0, 0.3), (400, 300, 1.0), (3, 10, 0.2)])
def test_significance_of_a_known_ratio_is_that_of_li_and_ma(on: int, off: int, alpha: float) -> None:
    expected = float(li_ma(np.array(on), np.array(off), alpha))
    assert on_off.significance(_pair(on, off, alpha * MANY, MANY)) == pytest.approx(expected, abs=2e-4)
    assert on_off.significance(_pair(on, off, alpha * MANY, MANY), 0.3) < expected
    assert on_off.significance(_pair(0, off, alpha * MANY, MANY)) == 0.0


def test_large_excesses_have_large_significances() -> None:
    assert on_off.significance(_known(400, 20.0)) == pytest.approx(np.sqrt(2 * (400 * np.log(20) - 380)), rel=1e-3)


def _deviance(parameters: np.ndarray, pair: OnOff, signal: float) -> float:
    u, v, h = np.exp(parameters.reshape(3, -1))
    means = signal * pair.a + pair.g * h * u / v, signal * pair.c + h, u, v
    return float(sum(2 * (mean - n + xlogy(n, n / mean)).sum()
                     for n, mean in zip((pair.n, pair.m, pair.k, pair.l), means, strict=True)))  # fmt: skip


def test_the_profiled_likelihood_is_that_of_a_general_minimiser() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        counts = (rng.poisson(mean, 3) for mean in (4, 30, 3, 40))
        pair = _pair(*counts, 1.3, rng.random(3) * 0.3)
        for signal in (0.0, 3.0, 15.0):
            starts = [np.log(np.concatenate([np.maximum(pair.k, least), pair.l, np.maximum(pair.m - signal, 1)]))
                      for least in (0.5, 5.0)]  # fmt: skip
            best = min(
                minimize(_deviance, start, args=(pair, signal), method="L-BFGS-B", bounds=[(-30, 12)] * 9).fun
                for start in starts
            )
            assert pair.deviance(signal) == pytest.approx(best, abs=2e-4)
        least, step = 0.0, 0.1
        for tried in (np.arange(0, 40, step), np.arange(-step, step, 0.01)):
            tried = np.maximum(least + tried, 0.0)
            least = tried[np.argmin([pair.deviance(s) for s in tried])]
        assert pair.estimate() == pytest.approx(least, abs=0.03)


@pytest.mark.parametrize("n_bins", [1, 3, 7])
def test_experiments_side_by_side_are_those_alone(n_bins: int) -> None:
    """Blocks of bins begin and end within experiments, and experiments are done after different numbers of steps."""
    rng = np.random.default_rng(n_bins)
    n, m, k = (rng.poisson(mean, (41, n_bins)).astype(float) for mean in (0.9, 20.0, 4.0))
    l = rng.poisson(90.0, (41, n_bins)) + rng.random((41, n_bins))  # noqa: E741
    shares = rng.random(n_bins)
    of_bins = rng.uniform(0.5, 2.0, n_bins), shares / shares.sum(), rng.uniform(0.0, 0.2, n_bins)
    best, at = on_off._likeliest((n, m, k, l), of_bins, 1.2), rng.uniform(0.0, 9.0, 41)
    deviances = on_off._deviances((n, m, k, l), of_bins, at, 1.2)
    assert 0 < np.count_nonzero(best) < 41
    for row in range(41):
        alone = OnOff(n[row], m[row], k[row], l[row], *of_bins)
        assert alone.estimate(1.2) == best[row]
        assert alone.deviance(float(at[row]), 1.2) == deviances[row]
        least = min(alone.deviance(max(best[row] + step, 0.0), 1.2) for step in (-0.05, 0.05))
        assert alone.deviance(best[row], 1.2) <= least + 1e-6


def test_limits_of_many_events_are_those_of_the_closed_form() -> None:
    """CLs of a normal law: 110 seen, 100 expected from a sideband of 1,000 and simulation without errors."""
    pair = _pair(110, 1000, 0.1 * MANY, MANY)
    best = pair.estimate()

    def cls(signal: float) -> float:
        q = pair.deviance(signal) - pair.deviance(best)
        asimov = _pair(pair.background, 1000, 0.1 * MANY, MANY).deviance(signal)
        return float(norm.sf(np.sqrt(q)) / norm.cdf(np.sqrt(asimov) - np.sqrt(q)) - 0.1)

    expected = float(brentq(cls, best + 1, 60.0))
    assert signal_limits(pair, 0.9, Common(toys=2000)).limit == pytest.approx(expected, rel=0.06)


def test_what_is_expected_comes_from_the_background_where_there_is_an_excess() -> None:
    many, few, none = (signal_limits(_known(n, 3.0), 0.9, Common(toys=1000)).expected for n in (43, 3, 0))
    np.testing.assert_allclose(many, few, rtol=0.15, atol=0.3)
    np.testing.assert_allclose(none, few, rtol=0.15, atol=0.3)


def test_no_half_events_are_added_where_none_is_left() -> None:
    """Twenty energies with .2 simulated events each above the threshold, each of which stands for one measured."""
    rng = np.random.default_rng(3)
    means = [
        _pair(0, rng.poisson(60, 20), rng.poisson(0.2, 20), rng.poisson(60, 20)).background.sum() for _ in range(400)
    ]
    assert np.mean(means) == pytest.approx(4.0, abs=4 * np.std(means) / 20 + 0.1), "half an event each would make 14"
    nothing = _pair(0, 50, 0, 50)
    assert nothing.background.sum() == 0.0
    assert nothing.background_error[0] > 0.3, "none left does not mean that none is expected"
    assert signal_limits(nothing, 0.9, Common(toys=4000)).limit == pytest.approx(2.303, rel=0.08)


def test_a_sideband_whose_hadrons_stand_for_no_event_is_not_used(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    events = simulation[0].take(np.arange(20_000))
    n = BINS.n_bins
    regions = Regions(np.full(n, 0.5), np.full(n, 0.0), np.full(n, -0.5), {})
    weight = np.where(events.labels == HADRON, 1.0, 0.5)
    score = np.where(events.labels == HADRON, -0.2, 1.0)
    every = Weighted(replace(events, score=score), BINS.bin_of(events.lg_energy), weight, np.ones(n))
    assert regions.measurable(every).usable.all()
    weight = np.where((events.labels == HADRON) & (every.energy_bin == 1), 0.0, weight)
    result = regions.measurable(replace(every, weight=weight))
    assert result.usable.tolist() == [True, False, True]
    assert "no hadrons in the sideband" in result.why_not[1]


def test_errors_of_the_step_and_the_efficiency_make_limits_larger() -> None:
    pair = _pair(30, 300, 0.1 * MANY, MANY)
    exact, step, efficiency = (
        signal_limits(pair, 0.9, Common(toys=1500, **errors)).limit  # type: ignore[arg-type]
        for errors in ({}, {"transfer": 0.3}, {"efficiency": 0.4})
    )
    assert step > 1.2 * exact
    assert efficiency > 1.05 * exact


def test_photons_in_the_sideband_are_signal() -> None:
    """As many photons beside as above: the sideband's excess is not all background."""
    pair, blind = (_pair(20, 30, 0.1 * MANY, MANY, 1.0, c) for c in (1.0, 0.0))
    assert pair.estimate() > blind.estimate() + 0.5
    assert pair.estimate() == pytest.approx(19.0, abs=1.5)


def test_far_below_the_background_there_is_still_a_limit() -> None:
    assert cls_limit(100, Background(2000.0, 20.0)) == pytest.approx(2.45, abs=0.1)
    assert 2.0 < signal_limits(_pair(100, 2000, MANY, MANY), 0.9, Common(toys=200)).limit < 3.5


def test_a_photon_has_an_energy_of_its_own(simulation: tuple[SimulatedSearch, Thrown]) -> None:
    events, _ = simulation
    energy = PhotonEnergy.fitted(events, 2.7)
    photons = events.take(events.labels == 0)
    assert photons.true_lg_energy is not None
    assert abs((energy.of(photons) - photons.true_lg_energy).mean()) < 0.03
    assert (photons.lg_energy_hadron - photons.true_lg_energy).mean() == pytest.approx(-0.4, abs=0.01)
    assert energy.resolution == pytest.approx(0.08, abs=0.02)


def test_directions_of_photons_are_weighted_to_isotropic_ones() -> None:
    spectrum = load_settings("default").spectrum
    primaries = throw_primaries(GAMMA, 400_000, "qgs", spectrum, np.random.default_rng(1))
    photon = primaries.mass == 0
    assert (primaries.label[~photon] == 0).any(), "some protons carry the gamma label"
    weight = isotropic_weight(primaries.zenith_deg, photon, spectrum)
    assert weight[photon].mean() == pytest.approx(1.0, abs=0.02)
    # Uniform in sin^2 of the zenith angle.
    share = (np.sin(np.radians(primaries.zenith_deg[photon])) / np.sin(np.radians(spectrum.photon_zenith_max_deg))) ** 2
    counts, _ = np.histogram(share, 5, (0, 1), weights=weight[photon])
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.015)
    plain, _ = np.histogram(share, 5, (0, 1))
    assert plain[0] / plain.sum() < 0.1, "worlds throw them steeper"


def test_protons_with_the_gamma_label_are_no_photons(gamma_run: Path, tiny_gamma: Path) -> None:
    run = open_run(gamma_run, "gamma", "gamma-limit")
    events, thrown, _ = read_simulation(run, tiny_gamma / "gamma_test", [], BINS.fine, 60.0)
    truth = pl.read_parquet(tiny_gamma / "gamma_test" / "truth.parquet")
    mass = truth["mass"].to_numpy()[events.row]
    assert ((events.labels == 0) == (mass == 0)).all()
    assert thrown is not None
    spectrum = load_settings("default").spectrum
    assert thrown.counts[:, 1].sum() > 0.8 * spectrum.protons_per_photon * thrown.counts[:, 0].sum()


def test_cls_without_background_is_the_classical_limit() -> None:
    assert cls_limit(0, Background(0.0)) == pytest.approx(2.3026, abs=1e-3)
    assert cls_limit(3, Background(0.0)) == pytest.approx(6.681, abs=1e-3)
    # With no event CLs forgets the background, and so its error.
    for background in (Background(3.0), Background(3.0, 1.0)):
        assert cls_limit(0, background) == pytest.approx(2.3026, abs=1e-3)
    assert cls_limit(5, Background(3.0), efficiency_error=0.3) > cls_limit(5, Background(3.0)) + 0.3
    assert cls_limit(2, Background(5.0)) > 2.3, "never better than one deserves"


@pytest.mark.parametrize(("mean", "error", "signal"), [(3.0, 0.0, 4.0), (10.0, 3.0, 8.0), (60.0, 9.0, 25.0)])
def test_limits_cover(mean: float, error: float, signal: float) -> None:
    """What is known of the background is a measurement: drawn with its error in every toy."""
    rng, toys = np.random.default_rng(1), 300
    limit_of, above = cache(cls_limit), 0
    for _ in range(toys):
        if error:
            off = (mean / error) ** 2
            count = rng.poisson(off)
            known = Background(max(count, 0.5) * mean / off, np.sqrt(max(count, 0.5)) * mean / off)
        else:
            known = Background(mean)
        above += limit_of(int(rng.poisson(mean + signal)), known) > signal
    assert clopper_pearson(above, toys).high > 0.90, "at least the stated level"


def test_expected_limits_are_what_toys_find() -> None:
    background = Background(6.0, 1.5)
    rng = np.random.default_rng(2)
    numbers = rng.poisson(rng.gamma(16.0, 6.0 / 16.0, 40_000))
    limits = np.array([cls_limit(n, background) for n in range(numbers.max() + 1)])[numbers]
    np.testing.assert_allclose(
        expected_limits(background), np.quantile(limits, (0.025, 0.16, 0.5, 0.84, 0.975)), rtol=0.12
    )


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
    known = nbinom(mean**2 / error**2, mean / (mean + error**2)) if error else poisson(mean)
    np.testing.assert_allclose(background.log_pmf(n), known.logpmf(n), rtol=1e-12)
