"""Coefficients by hadronic model and depth, and what the ground means for a simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray, lattice, square_clusters
from showerstack.showers.atmosphere import air_density
from showerstack.showers.card import NO_CARD, ArrayCard
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES
from showerstack.showers.simulation import load_settings, simulate
from showerstack.showers.simulation.cascade import develop
from showerstack.showers.simulation.ground import (
    KASCADES,
    check_ground,
    check_trigger,
    covering,
    ground_at,
    ground_of,
    standing_at,
)
from showerstack.showers.simulation.monte_carlo import AT_KASCADE, CASCADES, DEPTHS, FITTED, GROUND_DEPTH, coefficients
from showerstack.showers.simulation.primaries import MODELS, Primaries
from showerstack.showers.simulation.settings import Settings
from tests.program import call

N = 4000
MONTE_CARLO = Settings().changed(
    cascade__xmax_scale=1.0,
    cascade__muon_scale=1.0,
    cascade__size_scale=1.0,
    cascade__lg_ne_offset=0.0,
    cascade__lg_ne_mass=0.0,
    cascade__lg_ne_energy=0.0,
    cascade__lg_nmu_offset=0.0,
    cascade__lg_nmu_mass=0.0,
    cascade__lg_nmu_energy=0.0,
    cascade__photon_lg_ne_offset=0.0,
)


def lg_sizes(mass: int, lg_energy: float, depth: float, model: str = FITTED) -> tuple[np.ndarray, np.ndarray]:
    zero = np.zeros(N)
    number = np.full(N, list(MODELS).index(model), dtype=np.int8)
    primaries = Primaries(np.full(N, mass), zero.astype(np.int8), number, zero + lg_energy, zero, zero, zero, zero)
    showers = develop(primaries, MONTE_CARLO, np.random.default_rng(1), depth_g_cm2=depth)
    return showers.lg_ne, showers.lg_nmu


@pytest.mark.parametrize(("zenith_deg", "depth"), [(42.0, 600.0), (42.0, 700.0), (50.0, 600.0)])
@pytest.mark.parametrize("mass", [0, 1, 56])
def test_strongly_inclined_showers_have_no_more_electrons(mass: int, zenith_deg: float, depth: float) -> None:
    """A straight line through 0 and 30 degrees makes lg Ne 0.04 to 0.08 too large at 42 degrees, 0.16 to 0.3 at 50."""
    secant = 1 / np.cos(np.radians(zenith_deg))
    here, below = coefficients(FITTED, depth), coefficients(FITTED, depth * secant)
    zero = np.zeros(1)
    gap = here.at("n0", mass, zero, zero + secant - 1) - below.at("n0", mass, zero, zero)
    assert abs(np.squeeze(gap)) < 0.05, "measured: -0.040 to 0.036"


@pytest.mark.parametrize("mass", [0, 1, 56])
@pytest.mark.parametrize("depth", [600.0, 700.0, 800.0])
def test_inclined_showers_are_vertical_ones_of_their_slant_depth(mass: int, depth: float) -> None:
    """Up to 30 degrees: electrons go by the matter passed, and muons decay more on the longer way."""
    secant = 1 / np.cos(np.radians(30.0))
    here, below = coefficients(FITTED, depth), coefficients(FITTED, depth * secant)
    zero = np.zeros(1)

    def gap(key: str) -> float:
        inclined, vertical = here.at(key, mass, zero, zero + secant - 1), below.at(key, mass, zero, zero)
        return float(np.squeeze(inclined - vertical))

    assert abs(gap("n0")) < 0.035, "lg Ne; measured: 0.031 at most"
    assert abs(gap("s0")) < 0.025, "age; 0.020"
    if mass:
        assert -0.04 < gap("mM") < -0.01, "lg Nmu; -0.021 to -0.030"
    # The slant depth is what matters: far below the maximum lg Ne is another at the vertical one.
    if depth > 700 and mass:
        assert np.squeeze(here.at("n0", mass, zero, zero) - below.at("n0", mass, zero, zero)) > 0.2


# Mean and spread of lg Ne, mean of lg Nmu of vertical showers; an earlier run of the Monte Carlo, with a tenth of the
# showers of the coefficients at 1023 g/cm2.
EARLIER = [
    (600.0, 15.5, 1, 6.282, 0.126, 4.449),
    (600.0, 15.5, 56, 6.171, 0.031, 4.689),
    (600.0, 15.5, 0, 6.433, 0.065, None),
    (700.0, 15.5, 1, 6.246, 0.081, 4.491),
    (830.0, 15.5, 1, 6.078, 0.132, 4.524),
    (830.0, 15.5, 56, 5.777, 0.063, 4.693),
    (930.0, 15.5, 1, 5.889, 0.175, 4.525),
    (930.0, 15.5, 0, 6.066, 0.147, None),
    (600.0, 14.5, 1, 5.232, 0.129, 3.574),
    (600.0, 16.5, 56, 7.263, 0.014, 5.563),
]


@pytest.mark.parametrize(("depth", "lg_energy", "mass", "lg_ne", "spread", "lg_nmu"), EARLIER)
def test_showers_at_other_depths(
    depth: float, lg_energy: float, mass: int, lg_ne: float, spread: float, lg_nmu: float | None
) -> None:
    ne, nmu = lg_sizes(mass, lg_energy, depth)
    assert ne.mean() == pytest.approx(lg_ne, abs=0.04)
    # A few of the 200 photons that were thrown decide on their spread.
    assert ne.std() == pytest.approx(spread, abs=0.03 if mass else 0.06)
    if lg_nmu is not None:
        assert nmu.mean() == pytest.approx(lg_nmu, abs=0.04)


def test_protons_and_iron_differ_less_the_higher() -> None:
    gaps = [np.subtract(lg_sizes(1, 15.5, x)[0], lg_sizes(56, 15.5, x)[0]).mean() for x in (600.0, 800.0, 1023.0)]
    assert gaps[0] < 0.16
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[2] > 0.30


def test_hadronic_models_differ_as_they_are_known_to() -> None:
    """Sibyll 2.1 has few muons, 2.3d more, the star variants most (F. Riehn et al., arXiv:2404.02636)."""
    for lg_energy in (15.5, 16.5):
        muons = [lg_sizes(1, lg_energy, 1023.0, model)[1].mean() for model in ("sibyll21", FITTED, "sibyll23dstar")]
        assert muons[0] + 0.02 < muons[1] < muons[2] - 0.02
        later = lg_sizes(1, lg_energy, 1023.0, "sibyll23e")[1].mean()
        assert later == pytest.approx(muons[1], abs=0.05)


def test_at_kascades_depth_the_worlds_coefficients_stay() -> None:
    assert AT_KASCADE is coefficients(FITTED, GROUND_DEPTH)
    assert AT_KASCADE.rows["mX"][1].tolist() == [612.8, 61.3, -1.9, 0.8, 0.4, 0.0]
    assert AT_KASCADE.rows["mM"][56].tolist() == [4.6423, 0.9162, 0.003, -0.4621, 0.0701, 0.0]
    assert not any(AT_KASCADE.rows[name][0].any() for name in ("lN0", "lK"))
    straight = [each for name, each in AT_KASCADE.rows.items() if name not in ("hM", "n0")]
    assert all(rows[5] == 0.0 for each in straight for rows in each.values())
    # lg Ne bends with the zenith angle, about what the earlier run has at 0 and 30 degrees.
    a, _, _, d, _, g = AT_KASCADE.rows["n0"][1]
    secant = 1 / np.cos(np.radians(30.0)) - 1
    assert (a, d * secant + g * secant**2) == pytest.approx((5.6879, -2.9082 * secant), abs=1e-4)
    assert -2.0 < g < -0.8


@pytest.mark.slow
@pytest.mark.parametrize("cascade", CASCADES)
def test_coefficients_are_smooth_in_depth(cascade: str) -> None:
    zero = np.zeros(1)
    depths = np.arange(DEPTHS[0], DEPTHS[1] + 1.0, 10.0)
    for mass in (0, 1, 4, 12, 28, 56):
        values = np.array([coefficients(cascade, x).at("n0", mass, zero, zero)[0] for x in depths])
        assert np.abs(np.diff(values, 2)).max() < 0.006, "measured: less than 0.002"
        heights = np.array([coefficients(cascade, x).at("hM", mass, zero, zero)[0] for x in depths])
        assert (np.diff(heights) > 0).all(), "the lower the ground, the longer the muons' way"


@pytest.mark.parametrize("depth", [549.0, 1041.0, 0.0])
def test_depths_that_cannot_be_simulated(depth: float) -> None:
    with pytest.raises(InputError, match="showers can be simulated from 550 to 1040 g/cm2 alone"):
        coefficients(FITTED, depth)
    with pytest.raises(InputError, match="unknown hadronic model 'epos'"):
        coefficients("epos", 1000.0)


def square(card: ArrayCard = NO_CARD) -> DetectorArray:
    x_m, y_m = lattice(6, 20.0)
    area = np.full(x_m.shape, 2.0)
    return DetectorArray("square", 20.0, x_m, y_m, area, area, square_clusters(6, 3), card)


def test_grounds() -> None:
    assert ground_of(KASCADE) is KASCADES
    assert ground_of(square()) is KASCADES
    high = ground_of(square(ArrayCard(depth_g_cm2=700.0)))
    # The Moliere radius two cascade units above the ground: 1.76 at 550 g/cm2, not 1.66.
    assert high.electron_scale == pytest.approx(float(air_density(1023.0 - 74.0) / air_density(700.0 - 74.0)))
    assert ground_at(550.0).electron_scale == pytest.approx(1.76, abs=0.02)
    assert 0.4 < high.muon_scale < 0.95
    assert ground_at(600.0).muon_scale < high.muon_scale
    with pytest.raises(InputError, match=r"array square does not say how high .* altitude_m in array\.toml"):
        check_ground(square())
    with pytest.raises(InputError, match="depth is 500 g/cm2"):
        check_ground(square(ArrayCard(depth_g_cm2=500.0)))
    assert standing_at(square(), 800.0).depth_g_cm2 == 800.0
    assert standing_at(square(ArrayCard(depth_g_cm2=800.0)), None).depth_g_cm2 == 800.0
    with pytest.raises(InputError, match="says a depth of 800 g/cm2, not 900"):
        standing_at(square(ArrayCard(depth_g_cm2=800.0)), 900.0)


def test_cores_cover_the_array() -> None:
    world = load_settings()
    wide = replace(square(), x_m=10 * square().x_m, y_m=10 * square().y_m, pitch_m=200.0)
    assert covering(world, wide).spectrum.core_radius_m == pytest.approx(world.spectrum.core_radius_m * 600 / 104)
    assert covering(world, KASCADE) == world
    assert covering(world, wide).spectrum.photon_zenith_max_deg == 50.0
    with pytest.raises(InputError, match="hadron_zenith_max_deg = 55: showers of zenith angles beyond 50 deg"):
        covering(world.changed(spectrum__hadron_zenith_max_deg=55.0), wide)


def test_strays_alone_do_not_trigger_a_large_cluster() -> None:
    world, rng = load_settings(), np.random.default_rng(1)
    stray, needed = world.detector.electron_stray, world.trigger.stations
    sizes = np.bincount(KASCADE.cluster[KASCADE.has_electron])
    known = (rng.poisson(sizes * stray, (20_000, len(sizes))) >= needed).sum(axis=1).mean()
    for side in (3, 10, 14, 40):
        x_m, y_m = lattice(side, 30.0)
        area = np.full(x_m.shape, 2.0)
        array = DetectorArray("one cluster", 30.0, x_m, y_m, area, area, square_clusters(side, side))
        settings = covering(world, array)
        strays = rng.poisson(side * side * stray, 20_000)
        if side < 40:
            assert (strays >= settings.trigger.stations).mean() < known + 5 * 0.005
            check_trigger(settings, array)
        else:
            with pytest.raises(InputError, match="trigger its cluster of 1,600 stations with a probability of 100%"):
                check_trigger(settings, array)
    assert covering(world, square()).trigger.stations == needed


def test_an_array_on_a_mountain_sees_more(tmp_path: Path) -> None:
    shares = {}
    for depth in (700.0, 1023.0):
        array = square(ArrayCard(depth_g_cm2=depth))
        folder = simulate(COMPOSITION, tmp_path / f"{depth:g}", n_train=300, n_test=50, seed=1, workers=1, array=array)[
            0
        ]
        truth = pl.read_parquet(folder / "truth.parquet")
        shares[depth] = len(truth) / (truth["shower"].max() + 1)
        source = json.loads((folder / "source.json").read_text())
        assert source["array"]["card"]["depth_g_cm2"] == depth
    assert shares[700.0] > 1.3 * shares[1023.0]


def test_without_muon_detectors_there_is_no_muon_number(tmp_path: Path) -> None:
    """Nor the energy, which is made of it: what nobody measured would tell the class."""
    array = square(ArrayCard(depth_g_cm2=1023.0))
    electrons_alone = replace(array, muon_area_m2=np.zeros(array.x_m.shape))
    assert covering(load_settings(), electrons_alone).trigger.lg_nmu_min == 0.0
    for one, absent in ((array, []), (electrons_alone, ["E", "Nmu"])):
        folder = tmp_path / str(len(absent))
        data = Dataset.open(simulate(COMPOSITION, folder, n_train=60, n_test=20, seed=1, workers=1, array=one)[0])
        assert [name for name in SCALAR_NAMES if name not in data.quantities] == absent
        missing = np.isnan(np.asarray(data.scalars, dtype=np.float32)).all(axis=0)
        assert [name for name, gone in zip(SCALAR_NAMES, missing, strict=True) if gone] == absent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hadronic", "sibyll99"), "unknown hadronic model 'sibyll99'"),
        (("--hadronic", "sibyll21", "--model", "epos"), "--model"),
        (("--hadronic", "sibyll21", "--raw"), "--hadronic"),
        (("--array", "stations.parquet"), "does not say how high it stands"),
    ],
)
def test_what_the_command_refuses(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"id": [1, 2], "x_m": [0.0, 20.0], "y_m": [0.0, 0.0], "electron_area_m2": [1.0, 1.0]}).write_parquet(
        "stations.parquet"
    )
    said = call("cli.py", "simulate", "--task", "composition", "--out", tmp_path / "out", *options, code=2).stderr
    assert message in said
    assert not (tmp_path / "out").exists()


def test_the_command_takes_a_model_and_an_array(tmp_path: Path) -> None:
    folder = tmp_path / "mountain"
    folder.mkdir()
    x_m, y_m = lattice(5, 15.0)
    pl.DataFrame({"id": np.arange(25), "x_m": x_m.ravel(), "y_m": y_m.ravel()}).with_columns(
        electron_area_m2=pl.lit(2.0), muon_area_m2=pl.lit(2.0)
    ).write_parquet(folder / "stations.parquet")
    (folder / "array.toml").write_text("altitude_m = 3200\n")
    out = tmp_path / "out"
    options = ("--train", "40", "--test", "20", "--hadronic", "sibyll21", "--array", folder / "stations.parquet")
    call("cli.py", "simulate", "--task", "composition", "--out", out, *options)
    source = json.loads((out / "composition_train" / "source.json").read_text())
    assert source["model"] == "sibyll21"
    assert source["array"]["card"]["depth_g_cm2"] == pytest.approx(700.0, abs=2.0)
