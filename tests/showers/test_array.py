"""Geometry of the KASCADE array, descriptions of arrays, named cuts, and lateral distributions.

Cuts are compared in float32 as stored, with a cut-flow table. The integral of a lateral distribution is the particle
number, its shape the formula's.
"""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from scipy.integrate import quad

from showerstack.runtime.errors import InputError
from showerstack.showers import protocols
from showerstack.showers.array import KASCADE, DetectorArray, lattice, square_clusters
from showerstack.showers.lateral import (
    MAX_ELECTRON_AGE,
    MIN_R_M,
    axis_distance,
    electron_normalisation,
    rho_electron,
    rho_muon,
)


def small(**changes):
    x_m, y_m = lattice(4, 10.0)
    planes = {"electron_area_m2": np.ones((4, 4)), "muon_area_m2": np.ones((4, 4)), "cluster": square_clusters(4, 2)}
    return DetectorArray(**{"name": "small", "pitch_m": 10.0, "x_m": x_m, "y_m": y_m, **planes, **changes})


def test_numbers_of_stations():
    assert KASCADE.grid_shape == (16, 16, 2)
    assert KASCADE.n_stations == KASCADE.has_station.sum() == 252
    assert KASCADE.no_muon.sum() == 60
    assert KASCADE.n_muon_detectors == KASCADE.has_muon.sum() == 192
    assert not (KASCADE.no_muon & KASCADE.has_muon).any()


def test_stations_are_where_kascade_had_them():
    assert not KASCADE.has_station[7:9, 7:9].any()
    assert (KASCADE.muon_area_m2[4:12, 4:12] == 0.0).all()
    assert KASCADE.electron_area_m2[4, 4] == 3.14
    assert KASCADE.electron_area_m2[0, 0] == 1.57
    assert KASCADE.electron_area_m2[7, 8] == 0.0
    assert KASCADE.muon_area_m2[0, 15] == 3.24
    assert KASCADE.half_side_m == 104.0


def test_positions_follow_the_benchmark():
    assert KASCADE.x_m[0, 0] == -97.5
    assert KASCADE.x_m[3, 15] == 97.5
    assert KASCADE.y_m[15, 3] == 97.5
    assert np.array_equal(KASCADE.x_m, KASCADE.y_m.T)


def test_sixteen_clusters_of_sixteen():
    assert np.array_equal(np.bincount(KASCADE.cluster.ravel()), np.full(16, 16))
    assert KASCADE.cluster[0, 3] == KASCADE.cluster[3, 0] == 0
    assert KASCADE.cluster[0, 4] == 1
    assert KASCADE.cluster[4, 0] == 4


def test_square_rings_count_from_the_centre():
    assert np.array_equal(np.bincount(KASCADE.square_ring.ravel()), [4, 12, 20, 28, 36, 44, 52, 60])
    assert small().square_ring.tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]


def test_description_survives_json():
    for array in (KASCADE, small()):
        again = DetectorArray.from_json(json.loads(json.dumps(array.as_json())))
        assert again == array
        assert hash(again) == hash(array)
    assert small() != KASCADE
    assert small() != small(pitch_m=11.0)


def test_planes_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        KASCADE.x_m[0, 0] = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        KASCADE.pitch_m = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": np.zeros((3, 4), int)}, "planes of shapes"),
        ({"x_m": np.full((4, 4), np.nan)}, "must be finite"),
        ({"pitch_m": 0.0}, "the pitch positive"),
        ({"muon_area_m2": np.full((4, 4), -1.0)}, "must not be negative"),
        ({"electron_area_m2": np.zeros((4, 4)), "muon_area_m2": np.zeros((4, 4))}, "no station has an area"),
    ],
)
def test_impossible_arrays_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        small(**changes)


@pytest.mark.parametrize("spoil", [lambda c: c.pop("x_m"), lambda c: c.update(cluster="a"), lambda c: c.update(x_m=3)])
def test_damaged_descriptions_are_refused(spoil):
    content = KASCADE.as_json()
    spoil(content)
    with pytest.raises(InputError, match="array"):
        DetectorArray.from_json(content)


def _scalars(*rows: tuple[float, float, float]) -> pl.DataFrame:
    """Rows of (Ze, Ne, Nmu), stored as float16."""
    stored = np.array([(15.0, ze, 100.0, ne, nmu) for ze, ne, nmu in rows], dtype=np.float16)
    return protocols.scalar_frame(stored)


def test_comparison_is_on_stored_values() -> None:
    # 4.8 and 4.799 are stored as 4.80078 and pass; a zenith of 29.997 is stored as 30 and fails.
    frame = _scalars((10.0, 4.8, 4.0), (10.0, 4.799, 4.0), (10.0, 4.79, 4.0), (29.997, 5.0, 4.0), (29.98, 5.0, 4.0))
    assert protocols.TEST.mask(frame).tolist() == [True, True, False, False, True]


def test_not_a_number_never_passes() -> None:
    frame = _scalars((10.0, np.nan, 4.0), (np.nan, 5.0, 4.0), (10.0, 5.0, 4.0))
    assert protocols.TEST.mask(frame).tolist() == [False, False, True]


def test_flow_counts_one_cut_after_the_other() -> None:
    frame = _scalars((40.0, 5.0, 4.0), (10.0, 5.0, 4.0), (10.0, 4.0, 4.0), (35.0, 4.0, 4.0))
    assert protocols.TEST.flow(frame) == {"Ze < 30": 2, "Ne > 4.8": 1}


def test_matched_needs_the_age_and_cuts_the_muon_number() -> None:
    with pytest.raises(InputError, match="needs column Age"):
        protocols.MATCHED.mask(_scalars((10.0, 5.0, 4.0)))
    stored = np.array([(15.0, 10.0, 0.0, 5.0, nmu) for nmu in (3.5, 3.7, 3.7)], dtype=np.float32)
    frame = protocols.scalar_frame(stored, np.array([1.0, 1.0, 1.5], dtype=np.float32))
    assert protocols.MATCHED.mask(frame).tolist() == [False, True, False]


def test_no_cuts_keep_everything() -> None:
    assert protocols.NONE.mask(_scalars((80.0, 0.0, 0.0))).all()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'loose'.*none, test, test_age, test_2026, test_2026_age, matched"):
        protocols.cut_set_named("loose")


def _in_plane(density, **arguments) -> float:
    """Integrate a density over the plane beyond 1 m, in ln r, where it is smooth."""

    def ring(log_r: float) -> float:
        r = np.exp(log_r)
        return 2.0 * np.pi * r * r * float(density(np.float64(r), **arguments))

    return quad(ring, np.log(MIN_R_M), np.log(1e12), limit=800, epsabs=0.0, epsrel=1e-8)[0]


def _inside(density, **arguments) -> float:
    """Integrate the power law inside 1 m, where the functions themselves are cut off, by its leading term."""
    slope = arguments.pop("slope")
    edge = float(density(np.float64(MIN_R_M), **arguments))
    return 2.0 * np.pi * MIN_R_M**2 * edge / (slope + 2.0)


@pytest.mark.parametrize("age", [0.8, 1.0, 1.2, 1.4])
def test_electrons_integrate_to_their_number(age: float) -> None:
    total = _in_plane(rho_electron, n_e=1e5, age=np.float64(age))
    total += _inside(rho_electron, n_e=1e5, age=np.float64(age), slope=age - 1.5)
    assert total == pytest.approx(1e5, rel=3e-3)


@pytest.mark.parametrize("age", [1.0, 1.3, 1.6])
def test_muons_integrate_to_their_number(age: float) -> None:
    total = _in_plane(rho_muon, n_mu=1e4, age=np.float64(age))
    total += _inside(rho_muon, n_mu=1e4, age=np.float64(age), slope=age - 2.0)
    assert total == pytest.approx(1e4, rel=3e-3)


def test_formula_by_hand() -> None:
    # At r = r0 both powers have base 1 and 2.
    c = electron_normalisation(np.float64(1.1))
    assert rho_electron(np.float64(40.0), 1e5, np.float64(1.1)) == pytest.approx(1e5 * c * 2.0 ** (1.1 - 3.6))


def test_density_is_held_inside_one_metre() -> None:
    near = rho_electron(np.array([0.0, 0.5, 1.0]), 1e5, np.float64(1.0))
    assert np.all(near == near[-1])


@pytest.mark.parametrize("age", [MAX_ELECTRON_AGE, 1.7, -0.6])
def test_no_density_where_the_integral_diverges(age: float) -> None:
    assert np.isnan(rho_electron(np.float64(50.0), 1e5, np.float64(age)))


def test_axis_distance_along_and_across_the_axis() -> None:
    # 100 m from the core: across the shower's azimuth nothing shrinks, along it the distance is 100 cos(zenith).
    x, y = np.array([100.0, 0.0]), np.array([0.0, 100.0])
    r = axis_distance(x, y, 0.0, 0.0, np.float64(40.0), np.float64(90.0))
    assert r == pytest.approx([100.0, 100.0 * np.cos(np.radians(40.0))])


def test_float32_stays_float32_and_agrees() -> None:
    r = np.geomspace(1.0, 300.0, 50)
    single = rho_electron(r.astype(np.float32), np.float32(1e5), np.float32(1.2))
    assert single.dtype == np.float32
    assert single == pytest.approx(rho_electron(r, 1e5, np.float64(1.2)), rel=2e-5)


@pytest.mark.slow
def test_importing_the_package_changes_no_setting_of_scipy() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SCIPY_ARRAY_API"}
    code = (
        "import os, numpy, torch; from showerstack.showers.lateral import *; print(os.environ.get('SCIPY_ARRAY_API')); "
    )
    code += "print(float(muon_normalisation(torch.tensor(1.3), xp=torch)), muon_normalisation(1.3))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    setting, values = done.stdout.splitlines()
    assert setting == "None"
    of_torch, of_numpy = map(float, values.split())
    assert of_torch == pytest.approx(of_numpy, rel=1e-5)


def test_arrays_say_in_what_they_differ() -> None:
    def changed(**planes: object) -> DetectorArray:
        return dataclasses.replace(KASCADE, name="other", **planes)

    near = KASCADE.x_m.copy()
    near[0, 0] += 2.5
    assert changed(x_m=near).difference(KASCADE) == "places by up to 2.5 m"
    assert changed(x_m=KASCADE.x_m.T, y_m=KASCADE.y_m.T).difference(KASCADE) == "the order of the stations"
    assert changed(muon_area_m2=1.25 * KASCADE.muon_area_m2).difference(KASCADE) == "muon areas by up to 0.81 m2"
    high = dataclasses.replace(
        KASCADE.card, depth_g_cm2=700.0, times={"resolution_ns": 1.0}, site={"latitude_deg": 1.0}
    )
    assert changed(card=high).difference(KASCADE) == "depth in g/cm2, 700 instead of 1023, [times] of the card"
    assert KASCADE.without([0], []).difference(KASCADE) == "251 stations instead of 252"
