"""The cascade Monte Carlo against closed formulas."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.world.cascade import __main__ as command
from benchmarks.world.cascade import again, nuclei, residuals, showers, transport
from benchmarks.world.cascade import library as events
from benchmarks.world.cascade.air import altitude_cm, depth_over_density_cm
from benchmarks.world.cascade.coefficients import coefficients_of, combined, exponential_and_normal, fitted, terms
from showerstack.runtime.errors import InputError
from showerstack.showers.atmosphere import air_density, altitude_of
from showerstack.showers.simulation.monte_carlo import GROUND_DEPTH

pytestmark = pytest.mark.slow

GROUNDS = np.array([600.0, 1023.0])
SITE = transport.site_at(0.0, GROUNDS, showers.production_depths(GROUNDS))


def toy(secondaries: list[tuple[int, float]]) -> transport.Library:
    """Return a library in which every interaction gives the same kinds and shares; 300 mb."""
    kind, share = (np.array(column) for column in zip(*secondaries, strict=True))
    shape = (3, transport.N_NODES)
    first = np.array([0, len(kind)])
    return transport.Library(
        kind.astype(np.int8), share.astype(np.float32), first, np.zeros(shape, np.int64), np.ones(shape, np.int64),
        np.full(shape, 300.0),
    )  # fmt: skip


def empty(site: transport.Site) -> transport.Tables:
    """Return tables without particles below the threshold, but for Greisen's electrons."""
    n, p = transport.n_outputs(site), len(site.production)
    hadrons, photons = np.zeros((4, showers.N_ENERGIES, p, n)), np.zeros((2, showers.N_ENERGIES, p, 2 * len(GROUNDS)))
    return transport.Tables(0.0, 0.125, showers.N_ENERGIES, hadrons, photons, transport.greisen_table())


def follow(kind: int, energy: float, n: int, library: transport.Library, depth: float = 0.1) -> np.ndarray:
    """Return the mean output of n particles of an energy, GeV, photons and electrons followed to a hundredth."""
    out = np.zeros(transport.n_outputs(SITE))
    stack = np.zeros((10_000, 4))
    for _ in range(n):
        stack[0] = kind, energy, depth, 1.0
        transport.follow(stack, 1, 1.0, energy / 100, False, SITE, library, empty(SITE), out)
    return out / n


@pytest.mark.parametrize("depth", [5.0, 100.0, 400.0, 700.0, 1020.0])
def test_the_atmosphere_is_the_products(depth: float) -> None:
    assert altitude_cm(depth) / 100 == pytest.approx(float(altitude_of(depth)), abs=0.5)
    # Density in g/cm3 is a thousandth of kg/m3.
    assert depth_over_density_cm(depth) == pytest.approx(depth / float(air_density(depth)) * 1000, rel=1e-3)


def test_electromagnetic_cascades_follow_greisen_heitler_and_energy() -> None:
    """A photon's cascade, in which only electrons below 1 % of its energy are Greisen's, is Greisen's on the whole."""
    library = toy([(transport.PHOTON, 0.5)] * 2)
    means, maxima = {}, []
    for energy, showers_of in ((300.0, 300), (3000.0, 120)):
        profile = follow(transport.PHOTON, energy, showers_of, library)[: SITE.n_profile]
        levels = SITE.levels[: SITE.n_profile]
        expected = [transport.greisen(energy, x / transport.RADIATION_LENGTH) for x in levels]
        # Electrons of half the energy are half a radiation length ahead; Greisen's form does not fall as fast for it.
        near = np.abs(profile / expected - 1)[:6]
        assert near.max() < 0.25, "measured: 0.01 to 0.11"
        means[energy] = profile
        maxima.append(float(showers.depth_of_maximum(profile[None], levels)[0]))
        # Heitler: the maximum is where ln(E/Ec) radiation lengths are passed.
        heitler = math.log(energy / transport.CRITICAL_ENERGY) * transport.RADIATION_LENGTH
        assert maxima[-1] == pytest.approx(heitler, abs=30.0)
        # Energy: electrons lose the critical energy in each radiation length, all over the profile.
        track = np.trapezoid(np.append(profile, 0.0), np.append(levels, 1200.0)) / transport.RADIATION_LENGTH
        assert 0.6 * energy < track * transport.CRITICAL_ENERGY < 1.05 * energy
    # Elongation rate: a radiation length for each factor e of energy.
    rate = (maxima[1] - maxima[0]) / math.log(10)
    assert rate == pytest.approx(transport.RADIATION_LENGTH, abs=8.0)


@pytest.mark.parametrize(
    ("energy", "depth", "zenith_deg"), [(3.0, 700.0, 0.0), (10.0, 200.0, 0.0), (10.0, 300.0, 40.0)]
)
def test_muons_decay_and_lose_energy(energy: float, depth: float, zenith_deg: float) -> None:
    """The closed form of survival against an integration of decays along the way, and a counted muon's height."""
    cosine = math.cos(math.radians(zenith_deg))
    ground = GROUNDS[1] / cosine
    x = np.linspace(depth, ground, 20_001)
    left = energy - transport.MUON_LOSS * (x - depth)
    density = air_density(x * cosine) / 1000
    ln = -np.trapezoid(transport.MUON_DECAY / (left * density), x)
    assert transport.muon_survival(energy, depth, ground, cosine) == pytest.approx(math.exp(ln), rel=0.10)
    assert transport.muon_survival(0.5, depth, ground, cosine) == 0.0, "stopped"
    assert transport.muon_survival(energy, ground, ground, cosine) == 0.0, "made below"
    if not zenith_deg:
        out = follow(transport.MUON, energy, 1, toy([(transport.MUON, 1.0)]), depth)
        muons, heights = out[-6:-4], out[-2:]
        km = (altitude_of(depth) - altitude_of(GROUNDS)) / 1000
        seen = muons > 0
        np.testing.assert_allclose(heights[seen], (muons * km)[seen], rtol=1e-4)


def cascade_equation(energy: float, n: int, length: float) -> float:
    """Return the mean muons at the lower ground of a nucleon, GeV, that gives n pions of 1 / (1.5 n) of its energy.

    T. K. Gaisser, "Cosmic rays and particle physics" (1990), section 3: a pion of energy E made at the depth X gets to
    X' with the probability exp(-(X' - X) / L) (X / X')^a, with a = m h / (c tau E) and the air's scale height h; in dX'
    it decays with the probability a dX' / X' and interacts with dX' / L. L is the interaction length, g/cm2. The steps
    of the grid are worth 0.5 %.
    """
    x = np.geomspace(0.1, GROUNDS[1], 2000)
    steps = np.gradient(x) * np.tri(len(x)).T
    np.fill_diagonal(steps, np.diag(steps) / 2)
    energies = energy / (1.5 * n) ** np.arange(1, 1 + int(math.log(energy) / math.log(1.5 * n)))
    flight = np.exp(-np.maximum(x - x[:, None], 0.0) / length) * steps
    of_pion = np.zeros(len(x))
    height = np.array([depth_over_density_cm(one) for one in x])
    for one in energies[::-1]:
        a = (transport.PION_DECAY * height / one)[:, None]
        shares = one * (0.573 + 0.427 * (np.arange(20) + 0.5) / 20)
        of_muon = np.array([np.mean([transport.muon_survival(e, at, GROUNDS[1], 1.0) for e in shares]) for at in x])
        alive = np.minimum(x[:, None] / x, 1.0) ** a
        of_pion = (flight * alive * (n * of_pion / length + a * of_muon / x)).sum(1)
    return float((flight[0] * n * of_pion / length).sum())


@pytest.mark.parametrize(("energy", "n"), [(1e3, 4000), (1e4, 4000), (1e5, 1000)])
def test_hadrons_interact_where_the_cross_section_says_and_decay_as_the_energy_says(energy: float, n: int) -> None:
    """Heitler's and Matthews's cascade, 2 charged pions to 1 neutral one, against the cascade equation.

    Decay lengths wrong by a fifth, or interaction lengths by a tenth, are noticed.
    """
    library = toy([(transport.PION, 1 / 15)] * 10 + [(transport.PHOTON, 1 / 30)] * 10)
    length = transport.interaction_length(0, 1e3, library)
    assert length == pytest.approx(transport.AIR_MASS / 300.0)
    muons, stack, tables = [], np.zeros((10_000, 4)), empty(SITE)
    for _ in range(n):
        out = np.zeros(transport.n_outputs(SITE))
        stack[0] = transport.NUCLEON, energy, 0.1, 1.0
        # No photon is followed: a few in a thousand would make muons.
        transport.follow(stack, 1, 1.0, energy, False, SITE, library, tables, out)
        muons.append(out[-5])
    error = np.std(muons) / math.sqrt(len(muons))
    assert np.mean(muons) == pytest.approx(cascade_equation(energy, 10, length), abs=5 * error)


def test_short_lived_secondaries_keep_the_energy() -> None:
    rng = np.random.default_rng(4)
    pdg = np.array([111, 221, 310, 310, 3122, 3212, 3222, 3312, 3334, 411, 2212, 211, 130, 22, 11, 13])
    for _ in range(20):
        share = rng.random(len(pdg))
        share /= share.sum()
        kind, shares = events.final_state(pdg, share, rng)
        assert shares.sum() == pytest.approx(1.0)
        assert (shares >= 0).all()
        assert set(kind) <= set(range(7))
    assert events.is_elastic(np.array([2212, 2112]), np.array([0.99, 0.01]), "p")
    assert not events.is_elastic(np.array([2212, 211]), np.array([0.9, 0.1]), "p")


def test_nuclei_break_up_into_all_their_nucleons() -> None:
    sigma = 400.0
    opacity = nuclei.opacity_of(sigma)
    b = np.linspace(0, 15, 4001)
    profile = 1 - np.exp(-opacity * np.exp(-(b**2) / nuclei.RANGE_SQUARED))
    assert 10 * np.trapezoid(2 * math.pi * b * profile, b) == pytest.approx(sigma, rel=1e-3)
    sections = nuclei.cross_sections(opacity, 56, 400, 1)
    assert (np.diff(sections[[4, 12, 28, 56]]) > 0).all()
    assert 1500 < sections[56] < 2600
    stack, first = np.zeros((60, 4)), []
    for _ in range(400):
        assert nuclei.break_up(56, 100.0, sections, opacity, 1e4, stack) == 56
        assert (stack[:56, 1] == 100.0).all()
        first.append(stack[0, 2] - nuclei.TOP)
    expected = transport.AIR_MASS / sections[56]
    assert np.mean(first) == pytest.approx(expected, abs=5 * expected / 20)


def test_widths_and_coefficients_are_found_again() -> None:
    rng = np.random.default_rng(2)
    values = 0.3 + 0.2 * rng.standard_exponential(20_000) + 0.1 * rng.standard_normal(20_000)
    assert exponential_and_normal(values) == pytest.approx((0.2, 0.1), rel=0.08)
    true = np.array([1.0, 0.5, -0.1, 0.2, 0.05, -0.3])
    e, s = rng.uniform(-1, 1, 30), rng.uniform(0, 0.3, 30)
    np.testing.assert_allclose(fitted(e, s, (terms(e, s) @ true)[:, None])[:, 0], true)
    two = np.where(s > 0.15, 0.2, 0.0)
    assert fitted(e, two, (terms(e, two) @ true)[:, None])[5, 0] == 0.0
    base = {"mX": {mass: np.zeros((2, 6)) for mass in (1, 4, 56)}}
    moved = combined(base, ({"mX": {1: true, 56: 3 * true}}, 1.0))["mX"]
    np.testing.assert_allclose(moved[4], np.array([true, true]) * (1 + 2 * math.log(4) / math.log(56)))


@pytest.mark.parametrize("way", residuals.WAYS)
def test_ways_between_depths(way: str) -> None:
    depths = np.array([550.0, 700.0, 800.0, 900.0, 1040.0])
    rows = np.outer(depths, np.arange(6.0))
    np.testing.assert_allclose(residuals.WAYS[way](depths, rows, 750.0), 750.0 * np.arange(6.0))


def test_samples_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again, nothing is made anew; other settings in the same folder are refused."""
    library = toy([(transport.NUCLEON, 0.4), *[(transport.PION, 0.1)] * 4, *[(transport.PHOTON, 0.1)] * 2])
    made: list[str] = []
    monkeypatch.setattr(command.CascadeJob, "library", lambda job: made.append(job.model) or library)
    monkeypatch.setattr(command, "configurations", lambda full: iter([(0.0, mass, 14.0) for mass in (0, 1, 4)]))
    job = command.CascadeJob("sibyll21", GROUNDS, tmp_path, scale=0.01)
    first = list(command.samples(job))
    again = list(command.samples(job))
    assert made == ["sibyll21"]
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.electrons, two.electrons)
        assert one.electrons.shape == (round(0.01 * command.SHOWERS[one.mass]), 2)
        assert (one.electrons[:, 0] > one.electrons[:, 1]).all()
        assert (one.production_km[:, 0] > 0).all()
        assert (one.muons > 0).all()
    with pytest.raises(InputError, match="has other depths, statistics or seed"):
        next(command.samples(command.CascadeJob("sibyll21", GROUNDS, tmp_path, scale=0.02)))


def test_without_chromo_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "chromo", None)
    with pytest.raises(InputError, match=r"pip install chromo==0\.11\.0"):
        events.make("Sibyll21", tmp_path, 1.0, 1)


def test_a_node_of_elastic_events_alone_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaons of 2.5 GeV hardly ever make anything new; what a generator leaves behind stays beside its nodes."""
    asked: list[int] = []

    class Run:
        def cross_section(self):
            raise NotImplementedError

    def interactions(run, n, *rest):
        Path("tables.dat").touch()
        asked.append(n)
        if len(asked) % 2 == 0:
            yield np.zeros(1, np.int8), np.full(1, 0.5, np.float32)

    monkeypatch.setattr(events, "_generator", lambda *given: Run())
    monkeypatch.setattr(events, "_interactions", interactions)
    monkeypatch.chdir(tmp_path)
    events.make(events.LOW_ENERGY, Path("low"), 0.01, 1)
    assert len(asked) == 2 * 3 * events.N_LOW
    assert set(asked) == {events.LEAST_INTERACTIONS}
    assert [one.name for one in tmp_path.iterdir()] == ["low"]
    with np.load(tmp_path / "low" / "2_00.npz") as stored:
        assert stored["first"].tolist() == [0, 1]


def test_two_runs_are_compared_by_their_changes_with_depth() -> None:
    depths = [600.0, GROUND_DEPTH]

    def content(*means: list[float]) -> dict:
        # 0.01 less for each g/cm2 passed.
        rows = {
            str(m): [[v, 0, 0, -0.01 * d, 0, 0] for v, d in zip(x, depths, strict=True)]
            for m, x in zip((1, 56), means, strict=True)
        }
        return {"depths": depths, "parameters": dict.fromkeys(again.MEANS, rows)}

    known = content([6.0, 6.0 - 0.01 * 423], [6.0, 6.0 - 0.01 * 423])
    moved = content([6.3, 6.3 - 0.01 * 423], [6.2, 6.0 - 0.01 * 423])
    lines = again.table(moved, known)
    assert "| lg Ne | proton | 4.230 | 0.0000 |" in lines
    assert "| lg Ne | iron | 4.230 | 0.1414 |" in lines
    assert again.inclined(known, "n0", 1, 600.0, 30.0) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(InputError, match="the new coefficients are at depths"):
        again.table(known | {"depths": [600.0]}, known)


def test_coefficients_of_a_form_are_those_it_was_drawn_with() -> None:
    """Showers drawn from the closed form give its coefficients back."""
    rng = np.random.default_rng(3)
    samples = []
    for zenith_deg in (0.0, 30.0, 42.0):
        for lg_energy in (14.5, 15.5, 16.5):
            z = rng.standard_exponential(3000) - 1 + 0.3 * rng.standard_normal(3000)
            h = -0.09 * (rng.standard_exponential(3000) - 1) + 0.04 * rng.standard_normal(3000)
            s = 1 / math.cos(math.radians(zenith_deg)) - 1
            lg_nmu = 4.5 + 0.92 * (lg_energy - 15.5) - 0.4 * s + 0.02 * z + h
            lg_ne = 5.6 + 1.1 * (lg_energy - 15.5) - 1.5 * s + 0.2 * z + 0.4 * h
            age = 1.3 - 0.05 * z
            samples.append(
                showers.CascadeSample(
                    4, lg_energy, zenith_deg, np.array([1023.0]), 10.0 ** lg_ne[:, None], 10.0 ** lg_nmu[:, None],
                    age[:, None], np.full((3000, 1), 5.0), 570.0 + 100.0 * z, np.zeros(3000),
                )
            )  # fmt: skip
    table = coefficients_of(samples)[1]
    found = {key: by_mass[4][0] for key, by_mass in table.items()}
    at = terms(np.array([0.0, 0.5]), np.array([0.0, 0.2]))
    # Half a standard deviation of a mean is 0.0025 and 0.001.
    assert at @ found["n0"] == pytest.approx([5.6, 5.85], abs=0.025)
    assert at @ found["mM"] == pytest.approx([4.5, 4.88], abs=0.010)
    assert found["tM"][0] == pytest.approx(0.09, abs=0.015)
    assert found["nh"][0] == pytest.approx(0.4, abs=0.05)
    assert found["hM"][0] == pytest.approx(5.0)
