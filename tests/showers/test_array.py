"""Geometry: counts, areas, positions and trigger clusters of the published array."""

import numpy as np

from showers import array


def test_numbers_of_stations() -> None:
    assert array.HAS_STATION.sum() == array.N_STATIONS == 252
    assert array.INNER.sum() == array.N_INNER == 60
    assert array.OUTER.sum() == array.N_OUTER == 192
    assert not (array.INNER & array.OUTER).any()


def test_centre_has_no_station_and_inner_ones_no_muon_detector() -> None:
    assert not array.HAS_STATION[7:9, 7:9].any()
    assert (array.MUON_DETECTOR_AREA_M2[4:12, 4:12] == 0.0).all()
    assert (array.MUON_DETECTOR_AREA_M2 > 0.0).sum() == 192


def test_areas() -> None:
    assert array.ELECTRON_AREA_M2[4, 4] == 3.14
    assert array.ELECTRON_AREA_M2[0, 0] == 1.57
    assert array.ELECTRON_AREA_M2[7, 8] == 0.0
    assert array.MUON_DETECTOR_AREA_M2[0, 15] == 3.24


def test_positions() -> None:
    assert array.X_M[0, 0] == -97.5
    assert array.X_M[3, 15] == 97.5
    assert array.Y_M[15, 3] == 97.5
    assert np.array_equal(array.X_M, array.Y_M.T)


def test_clusters_are_four_by_four() -> None:
    assert np.array_equal(np.bincount(array.CLUSTER.ravel()), np.full(16, 16))
    assert array.CLUSTER[0, 3] == array.CLUSTER[3, 0] == 0
    assert array.CLUSTER[0, 4] == 1
    assert array.CLUSTER[4, 0] == 4
