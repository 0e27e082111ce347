"""The group of the arrival times: in tables of sets with times, absent elsewhere, and what is declared is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from showerstack.features import compute
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE, GROUPS, feature_set
from showerstack.features.device import namespace
from showerstack.features.groups.times import AZIMUTH, FEATURES, GROUP
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.front import LIGHT_M_PER_NS, PUBLISHED
from showerstack.showers.lateral import axis_distance
from showerstack.showers.schema import ARRIVAL_FILE
from showerstack.stacking.prediction.computed import ComputedEvents
from tests.features.conftest import Drawn

NAMES = tuple(feature.name for feature in FEATURES)
XP = namespace("cpu")


def arrival_times(showers: Drawn, seed: int = 1, thickness: float = 1.0) -> np.ndarray:
    """Draw times (n, 16, 16) float32, ns, 0 for silent stations, as the archives have them."""
    rng = np.random.default_rng(seed)
    column = {name: showers.truth[name].to_numpy()[:, None, None] for name in showers.truth.columns}
    core = column["core_x_m"], column["core_y_m"]
    zenith, azimuth = column["zenith_deg"], np.radians(column["azimuth_deg"])
    r = axis_distance(KASCADE.x_m, KASCADE.y_m, *core, zenith, column["azimuth_deg"])
    along = (KASCADE.x_m - core[0]) * np.cos(azimuth) + (KASCADE.y_m - core[1]) * np.sin(azimuth)
    front = (r**2 / (2 * PUBLISHED.curvature_m) - along * np.sin(np.radians(zenith))) / LIGHT_M_PER_NS
    deposit = showers.matrices[..., 0].astype(float)
    late = thickness * PUBLISHED.late_ns(r) * rng.standard_exponential(r.shape) / np.maximum(deposit / 9.5, 1)
    return np.where(deposit > 0, front + late + rng.standard_normal(r.shape) + 400, 0).astype(np.float32)


def columns_of(showers: Drawn, times_ns: np.ndarray | None, groups=frozenset({GROUP})) -> dict[str, np.ndarray]:
    grids = showers.matrices.astype(np.float32)
    return compute.compute_chunk(XP, grids, showers.scalars, groups, times_ns=times_ns)


@pytest.fixture(scope="module")
def showers(draw) -> Drawn:
    return draw(600, seed=7)


def test_directions_of_known_fronts(showers: Drawn) -> None:
    columns = columns_of(showers, arrival_times(showers))
    difference = columns["front_zenith_deg"] - showers.truth["zenith_deg"].to_numpy()
    assert np.nanmedian(np.abs(difference)) < 0.5
    pulls = difference / columns["front_zenith_error_deg"]
    assert 0.6 < np.diff(np.nanquantile(pulls, [0.16, 0.84]))[0] / 2 < 1.1
    turned = (columns[AZIMUTH] - showers.truth["azimuth_deg"].to_numpy() + 180) % 360 - 180
    assert np.nanmedian(np.abs(turned)) < 2.0
    np.testing.assert_allclose(
        columns["front_minus_ze_deg"], columns["front_zenith_deg"] - showers.scalars[:, 1], atol=1e-5
    )
    assert np.nanmedian(columns["front_plane_rms_ns"] - columns["front_rms_ns"]) > 0


def test_a_thick_front_is_called_thick(showers: Drawn) -> None:
    usual, thick = (columns_of(showers, arrival_times(showers, thickness=t)) for t in (1.0, 2.0))
    assert 0.7 < np.nanmedian(usual["front_thickness"]) < 0.85
    assert 1.5 < np.nanmedian(thick["front_thickness"] / usual["front_thickness"]) < 1.75
    assert np.nanmedian(thick["front_rms_ns"]) > 1.5 * np.nanmedian(usual["front_rms_ns"])
    assert np.nanmedian(thick["front_latest_ns"]) > np.nanmedian(usual["front_latest_ns"])


def test_deviations_of_few_stations_are_divided_by_what_the_front_leaves(showers: Drawn) -> None:
    times_ns = arrival_times(showers, thickness=0)
    order = np.argsort(np.argsort(-showers.matrices[..., 0].reshape(600, -1), axis=1), axis=1).reshape(times_ns.shape)
    columns = columns_of(showers, np.where(order < 5, times_ns, np.nan))
    assert np.all(columns["front_stations"] == 5)
    assert 0.72 < np.nanmean(columns["front_chi2"]) < 1.07
    assert np.nanmean(columns["front_outlier_share"]) < 0.03


def test_columns_lie_in_their_ranges(showers: Drawn) -> None:
    rng = np.random.default_rng(3)
    usual, wild = arrival_times(showers), rng.normal(0, 3e4, (600, 16, 16)).astype(np.float32)
    lost = np.where(rng.random((600, 16, 16)) < 0.95, np.float32(np.nan), usual)
    for times_ns in (usual, wild, lost, np.zeros_like(usual), np.full_like(usual, np.inf)):
        columns = columns_of(showers, times_ns)
        for feature in FEATURES:
            values = columns[feature.name]
            assert values.dtype == np.float32, feature.name
            assert not np.isinf(values).any(), feature.name
            defined = values[~np.isnan(values)]
            assert np.all((defined >= feature.low) & (defined <= feature.high)), (feature.name, defined)
    assert columns["front_stations"].max() == 0


def test_they_turn_with_the_array(showers: Drawn) -> None:
    times_ns = arrival_times(showers)
    before = columns_of(showers, times_ns)
    scalars = showers.scalars.copy()
    scalars[:, 2] = (scalars[:, 2] - 90) % 360
    turned = replace(showers, matrices=np.ascontiguousarray(np.rot90(showers.matrices, axes=(1, 2))), scalars=scalars)
    after = columns_of(turned, np.ascontiguousarray(np.rot90(times_ns, axes=(1, 2))))
    turn = (after[AZIMUTH] - before[AZIMUTH]) % 360
    assert np.quantile(np.abs(turn - 270), 0.95) < 0.5
    for name in set(NAMES) - {AZIMUTH}:
        gap = np.abs(after[name] - before[name])
        assert np.mean(gap[np.isfinite(gap)] > 2e-3 * (np.nanstd(before[name]) + 1)) <= 0.05, name


def test_only_tables_of_sets_with_times_have_them(showers: Drawn, write, tmp_path: Path) -> None:
    plain, timed = write(showers), write(showers, "timed")
    before = build_table(plain)
    assert not set(NAMES) & set(before.columns)
    assert f'"{GROUP}"' not in (before.folder / "catalogue.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"has no arrival_ns\.npy: the features of the group times"):
        build_table(plain, tmp_path / "other", groups=[GROUP])
    fingerprint = Dataset.open(timed, labels=False).fingerprint()
    assert fingerprint == Dataset.open(plain, labels=False).fingerprint()
    _add(timed, arrival_times(showers))
    assert Dataset.open(timed, labels=False).fingerprint() != fingerprint
    table = build_table(timed)
    assert set(table.columns) - set(before.columns) == set(NAMES)
    np.testing.assert_array_equal(table.matrix(before.columns), before.matrix(before.columns))
    assert set(feature_set("all", table.columns)) - set(feature_set("all", before.columns)) == set(NAMES) - {AZIMUTH}
    assert feature_set("fits", table.columns) == feature_set("fits", before.columns)


def test_a_prediction_computes_them_as_a_table_does(showers: Drawn, write) -> None:
    folder = write(showers)
    wanted = feature_set(GROUP, NAMES)
    with pytest.raises(InputError, match="gives no feature 'front_stations'"):
        ComputedEvents.of(folder, None, wanted)
    _add(folder, arrival_times(showers))
    table = build_table(folder).matrix(wanted)
    events = ComputedEvents.of(folder, None, wanted)
    np.testing.assert_array_equal(events.batch(np.arange(600), wanted, grids=False).table, table)


def test_times_of_another_shape_are_refused(showers: Drawn, write) -> None:
    folder = write(showers)
    np.save(folder / ARRIVAL_FILE, np.zeros((600, 16, 15), np.float32))
    with pytest.raises(InputError, match=r"has shape \(600, 16, 15\), expected \(N, 16, 16\)"):
        Dataset.open(folder, labels=False)
    np.save(folder / ARRIVAL_FILE, np.zeros((599, 16, 16), np.float32))
    with pytest.raises(InputError, match="has 599 rows"):
        Dataset.open(folder, labels=False)


def test_they_belong_to_no_other_group() -> None:
    assert {CATALOGUE[name].group for name in NAMES} == {GROUP}
    assert GROUP in GROUPS


def _add(folder: Path, times_ns: np.ndarray) -> None:
    np.save(folder / ARRIVAL_FILE, times_ns)
    write_checksums(folder, [file.name for file in folder.iterdir() if file.name != "checksums.json"])
