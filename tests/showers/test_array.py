"""Geometry of the KASCADE array, and descriptions of arrays."""

import dataclasses
import json

import numpy as np
import pytest

from runtime.errors import InputError
from showers.array import KASCADE, DetectorArray, lattice, square_clusters


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
        ({"electron_area_m2": np.zeros((4, 4))}, "expected stations"),
        ({"electron_area_m2": np.eye(4)}, "muon detectors at stations only"),
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
