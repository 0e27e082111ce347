"""The closed form of the cascade gives back the Monte Carlo's moments, couplings and tails."""

import numpy as np
import pytest

from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation.cascade import (
    AT_KASCADE,
    BELOW_MAXIMUM,
    GROUND_DEPTH,
    PIVOT_E,
    PIVOT_LG_A,
    RARE,
    Deviates,
    Proposal,
    capped_exponential,
    develop,
    develop_mass,
    hadron_offset,
    lateral_age,
    photon_muons,
)
from showerstack.showers.simulation.primaries import (
    MODELS,
    PHOTON,
    Primaries,
    model_shares,
    model_shift,
    throw_primaries,
)
from showerstack.showers.simulation.settings import Cascade, Settings, Shape, Spectrum

PLAIN = Cascade(
    xmax_scale=1.0,
    muon_scale=1.0,
    size_scale=1.0,
    lg_ne_offset=0.0,
    lg_ne_mass=0.0,
    lg_ne_energy=0.0,
    lg_ne_inclination=0.0,
    lg_nmu_offset=0.0,
    lg_nmu_mass=0.0,
    lg_nmu_energy=0.0,
    lg_nmu_inclination=0.0,
    photon_lg_ne_offset=0.0,
    photon_lg_ne_inclination=0.0,
    photon_lg_nmu_offset=0.0,
    photon_muon_spread=0.0,
)
N = 60_000


def _showers(mass: int, lg_energy: float, zenith_deg: float = 0.0) -> tuple[np.ndarray, ...]:
    deviates = Deviates.draw(N, np.random.default_rng(5))
    e = np.full(N, lg_energy - 15.5)
    s = np.full(N, 1.0 / np.cos(np.radians(zenith_deg)) - 1.0)
    return develop_mass(mass, e, s, deviates, PLAIN)


# lgE, mass, sd lgNe, sd lgNmu, Xmax mean and sd, correlation Ne-Nmu (from the Monte Carlo itself)
MONTE_CARLO = [
    (14.5, 1, 0.286, 0.115, 551, 94, 0.40),
    (15.5, 1, 0.211, 0.101, 615, 84, 0.20),
    (16.5, 1, 0.164, 0.091, 673, 76, 0.01),
    (15.5, 4, 0.166, 0.055, 574, 57, 0.47),
    (15.5, 12, 0.127, 0.037, 536, 39, 0.62),
    (15.5, 28, 0.105, 0.030, 509, 31, 0.69),
    (15.5, 56, 0.091, 0.026, 485, 27, 0.76),
    (14.5, 0, 0.238, 0.235, 569, 57, 0.16),
    (15.5, 0, 0.179, 0.185, 654, 58, 0.11),
    (16.5, 0, 0.125, 0.157, 738, 57, 0.02),
]


@pytest.mark.parametrize(("lg_energy", "mass", "sd_ne", "sd_nmu", "xmax_mean", "xmax_sd", "corr"), MONTE_CARLO)
def test_moments(
    lg_energy: float, mass: int, sd_ne: float, sd_nmu: float, xmax_mean: float, xmax_sd: float, corr: float
) -> None:
    xmax, lg_ne, lg_nmu, _ = _showers(mass, lg_energy)
    assert xmax.mean() == pytest.approx(xmax_mean, abs=6.0)
    assert xmax.std() == pytest.approx(xmax_sd, rel=0.08)
    assert lg_ne.std() == pytest.approx(sd_ne, rel=0.10)
    assert lg_nmu.std() == pytest.approx(sd_nmu, rel=0.12)
    # The closed form leaves out what couples a photon's few muons to its size.
    assert np.corrcoef(lg_ne, lg_nmu)[0, 1] == pytest.approx(corr, abs=0.10 if mass else 0.20)


def test_inclined_showers_fluctuate_more() -> None:
    assert _showers(1, 15.5, 30.0)[1].std() == pytest.approx(0.266, rel=0.10)
    assert _showers(56, 15.5, 30.0)[1].std() == pytest.approx(0.117, rel=0.10)


@pytest.mark.parametrize(
    ("mass", "lg_energy", "quantiles"),
    [
        (1, 14.5, (-0.55, -0.37, -0.16, 0.12, 0.20)),
        (1, 15.5, (-0.55, -0.34, -0.15, 0.09, 0.15)),
        (1, 16.5, (-0.51, -0.31, -0.14, 0.08, 0.13)),
        (4, 15.5, (-0.21, -0.14, -0.08, 0.07, 0.11)),
        (0, 15.5, (-0.19, -0.16, -0.11, 0.23, 0.83)),
    ],
)
def test_muon_number_tails(mass: int, lg_energy: float, quantiles: tuple[float, ...]) -> None:
    lg_nmu = _showers(mass, lg_energy)[2]
    result = np.quantile(lg_nmu, (0.001, 0.01, 0.1, 0.9, 0.99)) - np.median(lg_nmu)
    # One proton in a thousand at 10^14.5 eV has 0.07 less than the Monte Carlo; the rest is noise of 60 showers.
    assert np.all(np.abs(result - quantiles) < (0.15, 0.06, 0.03, 0.05, 0.08))


@pytest.mark.parametrize(("lg_energy", "share"), [(14.5, 0.0044), (15.5, 0.0046), (16.5, 0.0076)])
def test_photonuclear_showers_with_a_hadrons_muons(lg_energy: float, share: float) -> None:
    photons, protons = _showers(0, lg_energy)[2], _showers(1, lg_energy)[2]
    result = (photons > np.median(protons) - np.log10(2.0)).mean()
    assert result == pytest.approx(share, rel=0.6)


@pytest.mark.parametrize(("e", "s"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.5), (1.5, 0.5)])
def test_muons_of_a_photon_by_hand(e: float, s: float) -> None:
    """Numbers without fluctuations: a soft part, and a hard one of all the energy or of the share that is drawn."""
    one = np.array([1.0])
    energy, inclination = e * one, s * one
    soft = 10 ** (3.044 + 1.172 * e - 0.037 * e * e + (0.13 * e - 0.73) * s)
    hard = 10 ** (4.535 + 0.888 * e + (0.13 * e - 0.45) * s - 0.06)
    zero = np.zeros((9, 1))
    for uniform, share in (
        (0.0, 1.0),
        (0.5, 1 / (1 + (np.log(2) - 0.003 * 10 ** (0.2 * e)) / (0.0018 * 10 ** (0.1 * e)))),
    ):
        deviates = Deviates(normal=zero, exponential=zero + 1.0, uniform=zero + uniform)
        lg_muons, drawn = photon_muons(energy, inclination, deviates, PLAIN)
        offset = hadron_offset(0.0, energy, inclination, PLAIN)[1]
        lg_soft = np.log10(soft) + PLAIN.photon_lg_nmu_offset
        assert drawn == pytest.approx(share)
        assert lg_muons == pytest.approx(np.log10(10**lg_soft + hard * 10**offset * share**0.85), abs=1e-9)


def test_heavier_primaries_have_more_muons_and_fewer_electrons() -> None:
    showers = [_showers(mass, 15.5) for mass in (1, 4, 12, 28, 56)]
    assert np.all(np.diff([lg_nmu.mean() for _, _, lg_nmu, _ in showers]) > 0.0)
    assert np.all(np.diff([lg_ne.mean() for _, lg_ne, _, _ in showers]) < 0.0)


def test_capped_exponential_redraws_below_the_cap() -> None:
    x = capped_exponential(np.array([0.0, 5.5, 7.0]), np.array([0.3, 0.3, 0.5]))
    assert x == pytest.approx([-1.0, 4.5, 1.75])


def test_epos_differs_from_qgsjet_by_its_shifts_and_photons_do_not() -> None:
    cascade = PLAIN.model_copy(update={"epos_xmax": 9.0, "epos_lg_ne": -0.04, "epos_lg_nmu": 0.02})
    model = np.array([0, 1])
    assert model_shift(model, 1, cascade).T.tolist() == [[0.0, 0.0, 0.0], [9.0, -0.04, 0.02]]
    assert not model_shift(model, 0, cascade).any()
    deviates = Deviates.draw(2, np.random.default_rng(1))
    drawn = (deviates.normal, deviates.exponential, deviates.uniform)
    one = Deviates(*(np.repeat(part[:, :1], 2, axis=1) for part in drawn))
    shift = np.array([[0.0, 0.0], [0.0, -0.04], [0.0, 0.02]])
    _, lg_ne, lg_nmu, _ = develop_mass(1, np.zeros(2), np.zeros(2), one, cascade, *shift)
    assert np.diff(lg_ne) == pytest.approx([-0.04])
    assert np.diff(lg_nmu) == pytest.approx([0.02])


def test_lateral_age_follows_the_mass() -> None:
    shape = Shape(age_mass=0.1, age_spread=0.0)
    depth, zero = np.full(2, 480.0), np.zeros(2)
    ages = lateral_age(np.full(2, 1.31), depth, zero, zero, np.array([0.0, 1.0]), zero, shape)
    assert np.diff(ages) == pytest.approx([0.1])


def test_lateral_age_by_hand() -> None:
    names = ("offset", "longitudinal", "depth", "energy", "inclination", "mass", "spread")
    per_unit = dict(zip(names, (1.2, 0.3, 0.05, -0.02, 0.4, 0.1, 0.03), strict=True))
    shape = Shape(**{f"age_{name}": value for name, value in per_unit.items()}, age_min=0.5, age_max=1.5)
    pivots = np.array([1.31, BELOW_MAXIMUM, PIVOT_E, 0.0, PIVOT_LG_A, 0.0])
    away = np.array([0.2, 50.0, 0.5, 0.1, -0.4, 2.0])
    values = [np.array([pivot, pivot + one, pivot + 40 * one]) for pivot, one in zip(pivots, away, strict=True)]
    expected = 1.2 + 0.06 + 0.025 - 0.01 + 0.04 - 0.04 + 0.06
    assert lateral_age(*values, shape) == pytest.approx([1.2, expected, 1.5])


def test_muon_shape_follows_the_zenith() -> None:
    rng = np.random.default_rng(1)
    primaries = throw_primaries(COMPOSITION, 2000, "qgs", Spectrum(), rng)
    plain, bent = (
        develop(primaries, Settings().changed(shape__muon_age_inclination=value), np.random.default_rng(2)).muon_age
        for value in (0.0, 0.2)
    )
    secant = 1.0 / np.cos(np.radians(primaries.zenith_deg))
    inside = (bent > 0.81) & (bent < 1.69)
    assert (bent - plain)[inside] == pytest.approx(0.2 * (secant - 1.0)[inside], abs=1e-6)


def test_a_share_of_composition_is_thrown_above_its_own_limit() -> None:
    spectrum = Spectrum(low_share=0.6, high_share=0.3, high_lg_energy_min=14.6)
    thrown = throw_primaries(COMPOSITION, 40_000, "qgs", spectrum, np.random.default_rng(1))
    plain = throw_primaries(COMPOSITION, 40_000, "qgs", Spectrum(low_share=0.6), np.random.default_rng(1))
    assert (thrown.lg_energy < 14.6).mean() == pytest.approx(0.7 * (plain.lg_energy < 14.6).mean(), abs=0.02)
    assert (plain.mass == thrown.mass).all()


def test_muons_from_higher_up_arrive_further_apart() -> None:
    primaries = throw_primaries(COMPOSITION, 5_000, "qgs", Spectrum(), np.random.default_rng(3))
    flat, sloped = (
        develop(primaries, Settings().changed(shape__muon_age_depth=slope), np.random.default_rng(7))
        for slope in (0.0, 0.02)
    )
    below_maximum = GROUND_DEPTH / np.cos(np.radians(primaries.zenith_deg)) - flat.xmax
    wanted = 0.02 * (below_maximum - 480.0) / 100.0
    limits = Settings().shape
    inside = (sloped.muon_age > limits.muon_age_min) & (sloped.muon_age < limits.muon_age_max)
    assert inside.mean() > 0.5
    assert (sloped.muon_age - flat.muon_age)[inside] == pytest.approx(wanted[inside], abs=1e-9)


@pytest.mark.parametrize(
    ("of_ne", "of_nmu", "by"),
    [
        ("lg_ne_offset", "lg_nmu_offset", lambda a, e, s: 1.0),
        ("lg_ne_mass", "lg_nmu_mass", lambda a, e, s: a),
        ("lg_ne_energy", "lg_nmu_energy", lambda a, e, s: e),
        ("lg_ne_inclination", "lg_nmu_inclination", lambda a, e, s: s),
        ("lg_ne_mass_energy", "lg_nmu_mass_energy", lambda a, e, s: a * e),
        ("lg_ne_curvature", None, lambda a, e, s: e**2),
    ],
)
def test_each_offset_acts_on_its_own_size_in_proportion(of_ne: str, of_nmu: str | None, by) -> None:
    e, s = np.array([-1.1, 0.0, 0.8]), np.array([0.0, 0.1, 0.3])
    world = PLAIN.model_copy(update={of_ne: 0.1} | ({of_nmu: -0.07} if of_nmu else {}))
    for lg_a in (0.0, 1.748):
        lg_ne, lg_nmu = hadron_offset(lg_a, e, s, world)
        expected = by(lg_a - 0.9, e + 0.3, s) * np.ones(3)
        assert lg_ne == pytest.approx(0.1 * expected)
        assert lg_nmu == pytest.approx(-0.07 * expected * (of_nmu is not None))


def test_heavier_nuclei_fluctuate_more_where_asked() -> None:
    deviates, e, s = Deviates.draw(N, np.random.default_rng(5)), np.zeros(N), np.zeros(N)
    wider = PLAIN.model_copy(update={"fluctuation_mass": 0.1})
    for mass in (1, 56):
        plain, wide = (develop_mass(mass, e, s, deviates, cascade) for cascade in (PLAIN, wider))
        for k in (0, 1, 2):
            ratio = (wide[k] - wide[k].mean()).std() / (plain[k] - plain[k].mean()).std()
            assert ratio == pytest.approx(mass**0.1, rel=0.03), "depth of maximum, electrons, muons"


def _protons(n: int) -> Primaries:
    same = np.zeros(n)
    return Primaries(np.ones(n, int), np.ones(n, np.int8), np.zeros(n, np.int8), same + 15.5, same, same, same, same)


@pytest.fixture(scope="module")
def muon_tails() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """lg Nmu minus its median of vertical protons of lg E = 15.5, and weights: natural, and by two proposals."""
    world = Settings().changed(cascade__muon_scale=1.0, cascade__xmax_scale=1.0)
    tails = {}
    proposals = {"natural": None, "wide": RARE, "narrow": Proposal(share=0.5, mean=3.0)}
    for seed, (name, proposal) in enumerate(proposals.items()):
        n = 400_000 if proposal is None else 200_000
        showers = develop(_protons(n), world, np.random.default_rng(seed), proposal)
        weights = np.ones(n) if showers.weight is None else showers.weight
        tails[name] = showers.lg_nmu - _quantile(showers.lg_nmu, weights, 0.5), weights
    return tails


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), share * weights.sum())])


def _share_below(tail: tuple[np.ndarray, np.ndarray], limit: float) -> tuple[float, float]:
    values, weights = tail
    inside = weights[values < limit]
    return float(inside.sum() / weights.sum()), float(np.sqrt((inside**2).sum()) / weights.sum())


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_weights_of_rare_showers_add_up_to_what_was_thrown(muon_tails: dict, name: str) -> None:
    weights = muon_tails[name][1]
    assert abs(weights.sum() - len(weights)) < 6 * np.sqrt(len(weights)) * weights.std()


@pytest.mark.parametrize("limit", [-0.2, -0.34, -0.55, -0.75, -0.86])
def test_proposals_agree_with_natural_showers_down_to_1e_4(muon_tails: dict, limit: float) -> None:
    """A wrong density, or a weight of the wrong deviate, is off by factors in the tail."""
    results = [_share_below(muon_tails[name], limit) for name in ("natural", "wide", "narrow")]
    for a in range(3):
        for b in range(a):
            gap, error = results[a][0] - results[b][0], np.hypot(results[a][1], results[b][1])
            assert abs(gap) < 9 * error
    share, error = results[1]
    assert error < 0.04 * share, "the rare sample is sharp where the natural one has tens of showers"


@pytest.mark.parametrize(("share", "known"), [(3e-5, -1.03), (1e-4, -0.865), (3e-4, -0.664), (1e-3, -0.548)])
def test_known_quantiles_of_the_muon_tail_come_back(muon_tails: dict, share: float, known: float) -> None:
    """Of 150,000 showers of the Monte Carlo with Sibyll-2.3d: the closed form follows them to .04 (its own errors)."""
    for name in ("wide", "narrow"):
        assert _quantile(*muon_tails[name], share) == pytest.approx(known, abs=0.065)


def test_photons_keep_the_natural_density() -> None:
    primaries = throw_primaries(GAMMA, 20_000, "qgs", Settings().spectrum, np.random.default_rng(2))
    natural, rare = (develop(primaries, Settings(), np.random.default_rng(3), p) for p in (None, RARE))
    assert rare.weight is not None
    same = primaries.label == 0
    assert (primaries.mass[same] == 1).any(), "protons with the photons' label are among them"
    np.testing.assert_array_equal(natural.lg_nmu[same], rare.lg_nmu[same])
    assert (rare.weight[same] == 1.0).all()
    assert (natural.lg_nmu[~same] != rare.lg_nmu[~same]).mean() > 0.5


def _protons_of(world: Settings, n: int = 60_000) -> tuple[np.ndarray, ...]:
    """Xmax, lg Ne, lg Nmu and longitudinal age of vertical protons of lg E = 15.5."""
    deviates = Deviates.draw(n, np.random.default_rng(8))
    return develop_mass(1, np.zeros(n), np.zeros(n), deviates, world.cascade)


def test_the_tail_of_protons_is_the_monte_carlos_and_their_core_as_fitted() -> None:
    scales = {"cascade__xmax_scale": 0.6, "cascade__muon_scale": 0.6, "cascade__size_scale": 0.6}
    plain = Settings().changed(**dict.fromkeys(scales, 1.0))
    narrow, tailed = (Settings().changed(**scales, cascade__proton_tail=tail) for tail in (0.0, 1.0))

    def spans(world: Settings) -> dict[str, float]:
        xmax, _, lg_nmu, _ = _protons_of(world)
        deep, poor = np.quantile(xmax, [0.97, 0.995]), np.quantile(lg_nmu, [0.001, 0.01])
        core = np.quantile(lg_nmu, [0.3, 0.7])
        return {"deep": float(np.ptp(deep)), "poor": float(np.ptp(poor)), "core": float(np.ptp(core))}

    full, small, both = spans(plain), spans(narrow), spans(tailed)
    for name in ("deep", "poor"):
        assert both[name] == pytest.approx(full[name], rel=0.12)
        assert small[name] < 0.75 * full[name]
    assert both["core"] == pytest.approx(small["core"], rel=0.03)


def test_muon_poor_protons_keep_their_electrons_and_get_a_photons_front() -> None:
    """Where h is far below -0.2 neither depends on h any more; elsewhere nothing has changed."""
    usual = Settings().changed(cascade__electron_loss_min=-100.0, cascade__hadronic_front=0.0)
    changed = usual.changed(cascade__electron_loss_min=-0.2, cascade__hadronic_front=2.0)
    _, lg_ne, lg_nmu, age = _protons_of(usual)
    _, more_ne, same_nmu, steeper = _protons_of(changed)
    np.testing.assert_array_equal(same_nmu, lg_nmu)
    deviates = Deviates.draw(len(lg_nmu), np.random.default_rng(8))
    zero = np.zeros(len(lg_nmu))
    h = -AT_KASCADE.at("tM", 1, zero, zero) * (deviates.exponential[2] - 1.0)
    h += AT_KASCADE.at("sM", 1, zero, zero) * deviates.normal[3] - 0.05 * np.maximum(0.0, deviates.exponential[2] - 8.0)
    h *= usual.cascade.muon_scale
    rich, poor = h > -0.199, h < -0.21
    np.testing.assert_array_equal(more_ne[rich], lg_ne[rich])
    np.testing.assert_array_equal(steeper[rich], age[rich])
    gained = more_ne[poor] - lg_ne[poor]
    np.testing.assert_allclose(gained, AT_KASCADE.at("nh", 1, zero, zero)[poor] * (-0.2 - h[poor]))
    share = 10.0 ** (2.0 * (h[poor] + 0.2))
    photon = (AT_KASCADE.at(name, PHOTON, zero, zero)[poor] for name in ("s0", "sz", "sr", "ss"))
    s0, sz, sr, ss = photon
    xmax_z = _z_and_r(usual, deviates)
    expected = share * age[poor] + (1 - share) * (s0 + sz * xmax_z[0][poor] + sr * xmax_z[1][poor])
    np.testing.assert_allclose(steeper[poor], expected + (1 - share) * ss * deviates.normal[2][poor])


def _z_and_r(world: Settings, deviates: Deviates) -> list[np.ndarray]:
    """Return the scaled fluctuations z and r of vertical protons of lg E = 15.5."""
    zero = np.zeros(deviates.normal.shape[1])
    result = []
    widths = (("tX", "sX", world.cascade.xmax_scale / 100), ("tR", "sR", world.cascade.size_scale))
    for k, (t, s, scale) in enumerate(widths):
        wide = AT_KASCADE.at(t, 1, zero, zero) * capped_exponential(deviates.exponential[k], deviates.uniform[k])
        result.append(scale * (wide + AT_KASCADE.at(s, 1, zero, zero) * deviates.normal[k]))
    return result


def test_models_are_mixed_as_in_the_public_raw_files() -> None:
    thousands = np.array([634, 628, 652])  # events of QGSJet, EPOS and SIBYLL
    np.testing.assert_allclose(model_shares(GAMMA, "mix")[:3], thousands / 1914, rtol=1e-12)
    np.testing.assert_allclose(model_shares(COMPOSITION, "mix")[:3], [4.16 / 6.95, 2.79 / 6.95, 0.0], rtol=1e-12)
    assert model_shares(GAMMA, "mix")[3:].sum() == 0.0
    assert model_shares(GAMMA, "epos").tolist() == [0.0, 1.0, 0.0] + [0.0] * (len(MODELS) - 3)
