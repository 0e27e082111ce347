"""CORSIKA's particle files: what the stations read of known particles, and files that are cut or of another ground."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.features.build import build_table
from showerstack.report.doctor.folders import dataset_findings
from showerstack.runtime.errors import InputError
from showerstack.showers.archives import corsika, formats, particle_file, throwing
from showerstack.showers.archives.corsika import convert_corsika
from showerstack.showers.archives.particle_file import Ground, ParticleFile, seen_columns
from showerstack.showers.archives.spectrum import DrawnSpectrum, effective_number, spectrum_weights
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.archives.throwing import Axis, beside_particles, throw
from showerstack.showers.array import DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.front import LIGHT_M_PER_NS
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.particles import (
    ELECTRON_MEV,
    MUON_THRESHOLD_GEV,
    DetectorResponse,
    attenuation_cm2_per_g,
    charge_and_mass,
    electron_deposits,
    muon_deposits,
    photon_deposits,
    scattered_share,
)
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA
from tests.program import call
from tests.showers.corsika_files import Shower, draw_shower, word, write_file
from tests.showers.packages import archive_of

pytest.importorskip("corsikaio")
N = 40_000


@pytest.fixture
def array(tmp_path: Path) -> DetectorArray:
    """64 stations 20 m apart at KASCADE's depth, with times."""
    return array_in(stations(tmp_path))


CARD = "depth_g_cm2 = 1023\n[times]\nresolution_ns = 1.0\n"


def stations(folder: Path, card: str = CARD, pitch_m: float = 20.0) -> Path:
    k = np.arange(64)
    area = np.full(64, 2.0)
    table = pl.DataFrame(
        {"id": k, "x_m": (k % 8 - 3.5) * pitch_m, "y_m": (k // 8 - 3.5) * pitch_m, "electron_area_m2": area}
    )
    (folder / "mine").mkdir(exist_ok=True)
    table.with_columns(muon_area_m2=area).write_parquet(folder / "mine" / "stations.parquet")
    (folder / "mine" / "array.toml").write_text(card, encoding="utf-8")
    return folder / "mine" / "stations.parquet"


def few(n: int = 2, seed: int = 1, **options) -> list[Shower]:
    rng = np.random.default_rng(seed)
    return [draw_shower(rng, mass=(1, 56)[k % 2], **{"share": 0.3, **options}) for k in range(n)]


def flat(
    particle_id: int, p_gev: float, n: int = N, half_m: float = 200.0, seed: int = 1, weight: float = 1.0
) -> Shower:
    """A vertical shower of one kind of particle with a uniform density, on a plane front."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-half_m, half_m, (2, n)) * 100
    columns = [np.full(n, word(particle_id)), np.zeros(n), np.zeros(n), np.full(n, p_gev), x, y, np.full(n, 1e4)]
    return Shower(np.column_stack([*columns, np.full(n, weight)]))


def ground_of(shower: Shower, thinned: bool = False, level: int = 0) -> Ground:
    names = ["particle_description", "px", "py", "pz", "x", "y", "t", "thinning_weight"][: 8 if thinned else 7]
    rows = np.rec.fromarrays(list(shower.rows[:, : len(names)].T.astype(np.float32)), names=names)
    return Ground.of(seen_columns(rows, level))


def test_attenuation_is_the_tabulated_one() -> None:
    compton, pairs = attenuation_cm2_per_g(np.array([0.5, 1.0, 5.0, 10.0, 20.0]))
    # NISTIR 5632, vinyltoluene, cm2/g; copied by hand, and not compared with the table since.
    np.testing.assert_allclose(compton + pairs, [0.0944, 0.0689, 0.0291, 0.0203, 0.0156], rtol=0.03)


def test_single_particles_leave_their_deposits(array: DetectorArray) -> None:
    response, rng = DetectorResponse.of(array), np.random.default_rng(1)

    def mean(particle_id: int, p_gev: float, secant: float = 1.0, of=electron_deposits) -> float:
        return float(of(np.full(N, particle_id), np.full(N, p_gev), np.full(N, secant), response, rng).mean())

    error = 9.5 * np.sqrt(response.electron_variance / N)
    assert mean(5, 10.0) == pytest.approx(9.5, abs=5 * error)
    assert mean(5, 10.0, 1.5) == pytest.approx(1.5 * 9.5, abs=8 * error)
    assert mean(402, 10.0) == pytest.approx(4 * 9.5, abs=20 * error)
    assert mean(2, 0.001) == pytest.approx(1e3 * (np.hypot(0.001, 0.000511) - 0.000511), rel=1e-3)
    assert mean(5, 10.0, of=muon_deposits) == pytest.approx(8.4, abs=5 * error)
    just_below = np.sqrt((MUON_THRESHOLD_GEV + 0.10566) ** 2 - 0.10566**2) * 0.99
    assert mean(5, just_below, of=muon_deposits) == 0.0
    shielded = replace(array, card=replace(array.card, response={"muon_energy_gev": 1.0}))
    assert DetectorResponse.of(shielded) == response._replace(muon_energy_gev=1.0)
    assert shielded.response == array.response, "the fits know nothing of it"
    few = np.full(10, 5), np.full(10, 0.9), np.ones(10), DetectorResponse.of(shielded), rng
    assert not muon_deposits(*few).any()
    for silent in (13, 66, 68, 75, 85, 95, 7):
        assert mean(silent, 10.0) == 0.0
    assert mean(1, 10.0, of=muon_deposits) == mean(2, 10.0, of=muon_deposits) == 0.0


def test_photons_convert_as_often_as_they_should(array: DetectorArray) -> None:
    response, rng = DetectorResponse.of(array), np.random.default_rng(1)
    for energy in (1.0, 10.0, 300.0):
        deposit = electron_deposits(np.full(N, 1), np.full(N, energy / 1e3), np.ones(N), response, rng)
        expected = 1 - np.exp(-4.75 * sum(one.item() for one in attenuation_cm2_per_g(np.array([energy]))))
        assert np.mean(deposit > 0) == pytest.approx(expected, abs=5 * np.sqrt(expected / N))
        assert deposit.max() <= min(energy, 2 * 9.5 * 3)
    # Two tracks from a uniform depth on leave what one track leaves that crosses all.
    assert deposit[deposit > 0].mean() == pytest.approx(9.5, rel=0.1)
    assert ELECTRON_MEV < 0.512


@pytest.mark.parametrize(("energy", "tabulated"), [(0.1, 0.138), (1.0, 0.440), (10.0, 0.684)])
def test_compton_electrons_get_the_energy_of_klein_and_nishina(energy: float, tabulated: float) -> None:
    rng, k = np.random.default_rng(4), energy / ELECTRON_MEV
    x = np.linspace(1 / (1 + 2 * k), 1, 20_001)
    versine = (1 - x) / (k * x)
    density = 1 / x + x - versine * (2 - versine)
    expected = np.average(1 - x, weights=density)
    assert expected == pytest.approx(tabulated, abs=0.005), "mean share of the energy, as dosimetry has it"
    given = 1 - scattered_share(np.full(N, energy), rng)
    assert given.mean() == pytest.approx(expected, abs=5 * given.std() / np.sqrt(N))
    assert given.max() <= 2 * k / (1 + 2 * k) + 1e-12


def test_strays_and_punch_through_are_those_of_the_fits(array: DetectorArray) -> None:
    rng, n = np.random.default_rng(8), 4000
    areas = [plane.ravel()[array.cells] for plane in (array.electron_area_m2, array.muon_area_m2)]
    electrons = np.full((n, len(array.cells)), 50.0)
    r_m = np.tile(np.linspace(0, 60, len(array.cells)), (n, 1))
    r = array.response
    deposits = beside_particles(electrons, r_m, array, areas, rng)
    strays = (deposits[..., 0] > 0).mean()
    expected = -np.expm1(-r.electron_strays)
    assert strays == pytest.approx(expected, abs=5 * np.sqrt(expected / deposits[..., 0].size))
    muons = deposits[..., 1].mean(axis=0) / r.muon_deposit_mev
    law = 50 * r.punch_through * np.exp(-r_m[0] / r.punch_through_scale_m) + r.muon_strays
    error = np.sqrt(r.punch_through_dispersion * law / n)
    assert (np.abs(muons - law)[areas[1] > 0] < 5 * error[areas[1] > 0]).all()


def test_thick_slabs_absorb_and_thin_ones_see_single_interactions() -> None:
    rng = np.random.default_rng(6)
    thick = photon_deposits(np.full(2000, 3.0), np.ones(2000), 3000.0, rng)
    assert thick.max() < 3.0 + 1e-9
    # What scatters back out is lost, and pairs keep their rest energy.
    assert 0.85 * 3 < thick.mean() < 2.95
    thin, n = 0.05, 400_000
    deposit = photon_deposits(np.full(n, 5.0), np.full(n, 0.8), thin, rng)
    both = float(sum(one.item() for one in attenuation_cm2_per_g(np.array([5.0]))))
    expected = 1 - np.exp(-both * thin / 0.8)
    assert np.mean(deposit > 0) == pytest.approx(expected, abs=5 * np.sqrt(expected / n))
    # No track leaves more than the slab lets it: at most all of it, twice for pairs, at grazing angles the energy.
    assert np.quantile(deposit[deposit > 0], 0.5) < 2 * 2.0 * thin / 0.5


def test_stations_read_density_times_area(array: DetectorArray) -> None:
    shower = flat(5, 10.0, n=400_000)
    thrown = throw(ground_of(shower), Axis(0.0, 0.0), array, 20, np.random.default_rng(2))
    assert len(thrown) == 20
    expected = 400_000 / 400.0**2 * 2.0
    for channel, deposit in enumerate((9.5, 8.4)):
        signal = thrown.signals_mev[..., channel] / deposit
        assert signal.mean() == pytest.approx(expected, abs=5 * np.sqrt(1.2 * expected / signal.size))
    assert np.abs(thrown.direction_deg[:, 0]).max() < 2.0
    assert (np.hypot(*thrown.core_m.T) <= 0.875 * array.half_side_m).all()


@pytest.mark.slow
def test_thinned_showers_are_the_same_on_average(array: DetectorArray) -> None:
    axis = Axis(np.radians(30), 1.0)
    means = []
    for thin, thinned in ((1.0, False), (20.0, True)):
        rng = np.random.default_rng(4)
        signals = []
        for seed in range(8):
            shower = draw_shower(
                np.random.default_rng(seed), zenith_deg=30, azimuth_deg=np.degrees(1.0) + 180, thin=thin, share=0.5
            )
            thrown = throw(ground_of(shower, thinned), axis, array, 20, rng)
            signals.append(np.minimum(thrown.signals_mev, 200.0).mean(axis=0))
            assert np.median(np.abs(thrown.direction_deg[:, 0] - 30)) < 1.5
        means.append([np.mean(signals, axis=(0, 1)), np.std(np.mean(signals, axis=1), axis=0) / np.sqrt(8)])
    (usual, error), (sampled, its_error) = means
    np.testing.assert_allclose(sampled, usual, atol=5 * np.hypot(error, its_error).max())
    assert (usual > 10 * error).all()


class Counted(np.ndarray):
    """Counts how often single values are looked at, and refuses to be taken as a whole."""

    looks = 0

    def __getitem__(self, key: object) -> object:
        type(self).looks += 1
        return np.asarray(self.base)[key]

    def __array_function__(self, *arguments: object) -> object:
        raise AssertionError("all particles are looked at")


def test_particles_between_edges_are_found_exactly_in_few_steps() -> None:
    rng = np.random.default_rng(3)
    x = np.sort(rng.normal(0, 100, 200_000).astype(np.float32))
    Counted.looks = 0
    for low in (*rng.normal(0, 100, 50), *x[::20_000].astype(np.float64), -1e9, 1e9):
        # float32 would round edges beside particles onto them.
        for edge in (low, np.nextafter(low, np.inf), np.nextafter(low, -np.inf)):
            found = throwing.between(x.view(Counted), edge, edge + 5.0)
            assert found == ((x.astype(np.float64) < edge).sum(), (x.astype(np.float64) < edge + 5.0).sum())
    assert Counted.looks <= 3 * 62 * 2 * 18


def test_a_sector_has_all_its_particles_whatever_the_slice() -> None:
    """Beside all particles of the ring: about the border of the azimuth, on edges of slices, and all round."""
    rng, axis, n = np.random.default_rng(5), Axis(0.3, 1.0), 20_000
    phi, r = rng.uniform(-np.pi, np.pi, n), 100 * rng.random(n)
    phi[:200] = np.arange(200) * throwing.SLICE_RAD % (2 * np.pi) - np.pi
    x, y = (r * np.cos(phi)).astype(np.float32), (r * np.sin(phi)).astype(np.float32)
    order = np.argsort(x)
    ones = np.ones(n, np.float32)
    sectors = throwing._Sectors(Ground((2 * ones).astype(int), ones, ones, x[order], y[order], ones, 10 * ones), axis)
    for first, last in ((0, n), (n // 3, n // 2), (7, 7)):
        for middle in (-np.pi, -3.1, 0.0, throwing.SLICE_RAD, 3.1, np.pi):
            for half in (1e-3, throwing.SLICE_RAD, 1.0, np.pi):
                away = np.abs((sectors.phi - middle + np.pi) % (2 * np.pi) - np.pi)
                inside = np.flatnonzero(away[first:last] <= half) + first
                near = sectors._near(first, last, middle, half)
                assert (np.diff(near) > 0).all(), "in their order, each once"
                np.testing.assert_array_equal(near[away[near] <= half], inside)
                assert len(near) <= (2 * half / (2 * np.pi) + 3 / throwing.SLICES) * (last - first) * 1.5 + 220


@pytest.mark.parametrize("area_m2", [1.57, 3.14, 10.0])
def test_thinned_showers_keep_their_core(area_m2: float) -> None:
    """A detector that a sector of 0.2 by 0.3 cannot hold sees as many particles as in a shower that is whole."""
    rng, axis, n = np.random.default_rng(1), Axis(0.0, 0.0), 1_000_000
    r, phi = 100.0 * rng.random(n), 2 * np.pi * rng.random(n)  # as many in each ring: density 1 / r

    def ground(weight: float) -> Ground:
        kept = np.sort(rng.choice(n, int(n / weight), replace=False))
        x, y = r[kept] * np.cos(phi[kept]), r[kept] * np.sin(phi[kept])
        order = np.argsort(x)
        time = (r[kept] ** 2 / 2000.0 / LIGHT_M_PER_NS)[order]
        ones = np.ones(len(kept))
        return Ground((2 * ones).astype(int), ones, ones, x[order], y[order], time, weight * ones)

    squares, sectors = throwing._Squares(ground(1.0)), throwing._Sectors(ground(10.0), axis)
    for distance in (2.0, 4.0, 7.0, 13.0, 50.0):
        places = [(distance * np.cos(a), distance * np.sin(a)) for a in np.linspace(0, 6, 150)]
        whole, thinned = ([find(*place, area_m2, rng) for place in places] for find in (squares, sectors))
        means = [np.mean([len(rows) for rows, _ in found]) for found in (whole, thinned)]
        # All places of a ring share some thousand particles; a square at 2 m reaches into the steep core.
        assert means[1] == pytest.approx(means[0], rel=0.25 if distance < 3 else 0.15)
        times = [np.concatenate([time for _, time in found]) for found in (whole, thinned)]
        assert np.mean(times[1]) == pytest.approx(np.mean(times[0]), abs=1.0)


def test_an_array_of_muon_detectors_alone_has_times(tmp_path: Path, array: DetectorArray) -> None:
    file = write_file(tmp_path / "DAT000001", few(4))
    table = pl.read_parquet(stations(tmp_path)).drop("electron_area_m2").with_columns(muon_area_m2=pl.lit(10.0))
    table.write_parquet(tmp_path / "mine" / "stations.parquet")
    muons = array_in(tmp_path / "mine" / "stations.parquet")
    folder = convert_corsika(file, tmp_path / "own", GAMMA, muons, uses=10)
    data, truth = Dataset.open(folder, GAMMA), pl.read_parquet(folder / "truth.parquet")
    assert len(data) > 30
    assert np.median(np.abs(data.scalars[:, 1] - truth["zenith_deg"].to_numpy())) < 3
    assert data.times_ns is not None
    np.testing.assert_array_equal(np.isfinite(data.times_ns), data.matrices[..., 1] > 0)


def test_energy_cuts_that_hide_what_detectors_see_are_told(tmp_path: Path, array: DetectorArray) -> None:
    def converted(name: str, **cuts: tuple[float, float, float, float]) -> tuple[list[str], list[str]]:
        told: list[str] = []
        file = write_file(tmp_path / name, few(), **cuts)
        folder = convert_corsika(file, tmp_path / "own", GAMMA, array, uses=2, tell=told.append)
        return [line for line in told if "ECUTS" in line], pl.read_parquet(folder / "truth.parquet").columns

    assert converted("DAT000001")[0] == []
    (line,), columns = converted("DAT000002", cuts_gev=(0.3, 5.0, 0.003, 0.003))
    assert "muons below 5 GeV were not followed (ECUTS), but muon detectors see them from 0.23 GeV on" in line
    assert "lg_nmu" not in columns
    assert "lg_ne" in columns
    (line,), columns = converted("DAT000003", cuts_gev=(0.3, 0.3, 0.003, 0.1))
    assert "electrons and photons below 0.1 GeV" in line
    assert "lg_ne" not in columns
    for cuts in ((1e3, 1e3, 0.003, 0.003), (1.0, 0.3, 1e20, 1e20)):
        with pytest.raises(InputError, match="nothing is left for them to see"):
            converted("DAT000004", cuts_gev=cuts)


ODD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "1e30": 1e30}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_words_that_are_no_numbers_are_named(tmp_path: Path, array: DetectorArray, value: float) -> None:
    file = write_file(tmp_path / "DAT000001", few(), thinned=True, marks=False)
    good = np.fromfile(file, "<f4")
    headers = [("run header", 0, place) for place in (5, 6, 16, 17, 18, 93, 255, 260, 265)]
    headers += [("event 1", 1, place) for place in (3, 4, 7, 11, 12, 76)]
    particles = [("event 1: particle 1", 2, place) for place in range(1, 9)]
    for where, block, place in [*headers, *particles]:
        changed = good.copy()
        changed[312 * block + place - 1] = value
        changed.tofile(file)
        with pytest.raises(InputError, match=rf"DAT000001: {where}"):
            convert_corsika(file, tmp_path / f"{block}-{place}", GAMMA, array, uses=1)


def test_a_shower_read_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_file(tmp_path / "DAT000001", few(), thinned=True, marks=False)
    whole = [ground for _, ground in ParticleFile.open(file, None).showers(pytest.fail)]
    monkeypatch.setattr(particle_file, "BYTES_AT_ONCE", 3_000)
    parts = [ground for _, ground in ParticleFile.open(file, None).showers(pytest.fail)]
    for one, other in zip(whole, parts, strict=True):
        assert len(one.ids) > 1_000
        for name, values in vars(one).items():
            np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)
    content = np.frombuffer(file.read_bytes(), "<f4").copy()
    content[-20_000:-19_000] = np.nan
    (tmp_path / "DAT000002").write_bytes(content.tobytes())
    with pytest.raises(InputError, match=r"event 2: particle \d{4,}, word") as found:
        list(ParticleFile.open(tmp_path / "DAT000002", None).showers(pytest.fail))
    monkeypatch.undo()
    with pytest.raises(InputError, match=str(found.value).split(": ", 1)[1][:30]):
        list(ParticleFile.open(tmp_path / "DAT000002", None).showers(pytest.fail))


def test_weights_and_marks_of_damaged_files(tmp_path: Path, array: DetectorArray) -> None:
    file = write_file(tmp_path / "DAT000001", few(), thinned=True, marks=False)
    good = np.fromfile(file, "<f4")
    for weight, message in ((-1.0, "particle 1 has weight -1"), (1e14, "would see .* particles")):
        changed = good.copy()
        rows = changed[2 * 312 :][: 39 * 8].reshape(39, 8)
        rows[0, 7] = weight
        if weight > 0:
            rows[:, 7] = weight
        changed.tofile(file)
        with pytest.raises(InputError, match=message):
            convert_corsika(file, tmp_path / "own", GAMMA, array, uses=20)
    marked = write_file(tmp_path / "DAT000002", few()).read_bytes()
    for mark in (0, 5):
        (tmp_path / "DAT000002").write_bytes(mark.to_bytes(4, "little") + marked[4:])
        with pytest.raises(InputError, match=r"a record mark says|holds no event"):
            convert_corsika(tmp_path / "DAT000002", tmp_path / "own", GAMMA, array, uses=1)


def test_a_file_that_was_completed_is_converted_again(tmp_path: Path, array: DetectorArray) -> None:
    file = write_file(tmp_path / "DAT000001", few(4), marks=False)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))  # a copy into a file of full length
    convert_corsika(file, tmp_path / "own", GAMMA, array, uses=2)
    file.write_bytes(whole)
    with pytest.raises(InputError, match="exists already, made otherwise"):
        convert_corsika(file, tmp_path / "own", GAMMA, array, uses=2)


def test_only_particles_at_the_ground_count() -> None:
    rows = flat(5, 10.0, n=9).rows
    rows[1:, 0] = [word(75), word(85), -word(8), -16003.0, word(68), word(5, level=2), 0.0, word(13)]
    assert ground_of(Shower(rows)).ids.tolist() == [5]
    assert ground_of(Shower(rows), level=1).ids.tolist() == [5]
    rows[:, 0] = word(5)
    rows[3:, 3] = -1.0  # upwards
    assert len(ground_of(Shower(rows)).ids) == 3
    charge, mass = charge_and_mass(np.array([2, 14, 5626, 1, 13]))
    assert charge.tolist() == [1, 1, 26, 0, 0]
    assert mass[2] == pytest.approx(52.16, abs=0.01)


def test_a_file_becomes_a_dataset(tmp_path: Path, array: DetectorArray) -> None:
    rng = np.random.default_rng(1)
    showers = [
        draw_shower(rng, mass=mass, zenith_deg=zenith, azimuth_deg=azimuth, share=0.3)
        for mass, zenith, azimuth in ((1, 20, 30), (56, 10, 200), (16, 35, 300))
    ]
    told: list[str] = []
    file = write_file(tmp_path / "DAT000001", showers)
    folder = convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=10, tell=told.append)
    data, truth = Dataset.open(folder, COMPOSITION), pl.read_parquet(folder / "truth.parquet")
    assert len(data) > 25
    label = dict(zip(truth["particle_id"], data.labels, strict=True))
    assert label == {14: 0, 5626: 4, 1608: 2}
    assert any("nearest ln A (--groups names others): 1 of 1608" in line for line in told)
    groups = np.asarray(data.groups)
    assert len(np.unique(groups)) == 3
    for number in np.unique(groups):
        assert len(set(truth["particle_id"].filter(pl.Series(groups == number)))) == 1
    assert np.any(np.diff(groups) != 0)
    zenith, azimuth = data.scalars[:, 1], data.scalars[:, 2]
    assert np.abs(zenith - truth["zenith_deg"].to_numpy()).max() < 3
    assert np.abs((azimuth - truth["azimuth_deg"].to_numpy() + 180) % 360 - 180).max() < 15
    assert set(truth["azimuth_deg"].round(0)) == {210, 20, 120}
    assert truth["first_interaction_m"].to_list() == pytest.approx([19_000.0] * len(data))
    assert np.isnan(data.scalars[:, [0, 3, 4]]).all()
    assert data.source["absent"] == ["E", "Ne", "Nmu"]
    times = data.times_ns
    assert times is not None
    np.testing.assert_array_equal(np.isfinite(times), data.matrices[..., 0] > 0)
    table = build_table(folder)
    assert not {"E", "Ne", "Nmu"} & set(table.columns)
    core = table.matrix(["fit_core_x_m", "fit_core_y_m"]) - truth.select("core_x_m", "core_y_m").to_numpy()
    assert np.median(np.hypot(*core.T)) < 3.0
    assert table.matrix(["fit_converged"]).mean() > 0.9
    muons = truth.group_by("particle_id").agg(pl.col("lg_nmu").first())
    assert muons["lg_nmu"].to_list() == pytest.approx([3.9] * 3, abs=0.5)


def test_own_groups_and_their_nuclei_are_kept(tmp_path: Path, array: DetectorArray) -> None:
    rng, told = np.random.default_rng(1), list[str]()
    file = write_file(tmp_path / "DAT000001", [draw_shower(rng, mass=mass, share=0.3) for mass in (1, 16, 56, 28)])
    groups = groups_asked("proton,oxygen,iron")
    folder = convert_corsika(file, tmp_path / "own", groups, array, uses=4, tell=told.append)
    data, truth = Dataset.open(folder), pl.read_parquet(folder / "truth.parquet")
    assert data.task == groups
    assert dict(zip(truth["mass"], data.labels, strict=True)) == {1: 0, 16: 1, 56: 2, 28: 1}
    assert any("nearest ln A (--groups names others): 1 of 2814" in line for line in told)
    assert not any("1608" in line for line in told)
    two = COMPOSITION.with_classes(("proton", "iron"))
    of_two = Dataset.open(convert_corsika(file, tmp_path / "two", two, array, uses=4), COMPOSITION)
    assert set(of_two.labels) == {0, 4}


def test_record_marks_and_thinning_are_found(tmp_path: Path) -> None:
    showers = few()
    for thinned in (False, True):
        for marks in (False, True):
            file = write_file(tmp_path / f"DAT{thinned:d}{marks:d}0001", showers, thinned=thinned, marks=marks)
            opened = ParticleFile.open(file, 1023.0)
            assert opened.is_thinned is thinned
            events = list(opened.showers(pytest.fail))
            assert [len(ground.ids) for _, ground in events] == [len(one.rows) for one in showers]


def test_the_nearest_level_is_taken(tmp_path: Path) -> None:
    file = write_file(tmp_path / "DAT000001", few(1), heights_m=(3000.0, 110.0))
    assert ParticleFile.open(file, 1023.0).level == 1
    assert ParticleFile.open(file, None).level == 1
    opened = ParticleFile.open(file, 717.0)
    assert (opened.level, opened.level_m) == (0, 3000.0)


def test_another_ground_is_refused_with_both_depths(tmp_path: Path) -> None:
    file = write_file(tmp_path / "DAT000001", few(1))
    with pytest.raises(InputError, match=r"at 1023 g/cm2 \(110 m .* but the array is at 700 g/cm2"):
        ParticleFile.open(file, 700.0)
    high = write_file(tmp_path / "DAT000002", few(1), heights_m=(3000.0,))
    silent = array_in(stations(tmp_path, ""))
    with pytest.raises(InputError, match=r"DAT000002: .* at 718 g/cm2, but those of DAT000001 at 1023"):
        convert_corsika(tmp_path, tmp_path / "own", COMPOSITION, silent)
    high.unlink()
    told: list[str] = []
    folder = convert_corsika(file, tmp_path / "own", COMPOSITION, silent, uses=2, tell=told.append)
    assert "gives no depth: its ground is taken to be at 1023 g/cm2" in told[0]
    assert Dataset.open(folder, COMPOSITION).times_ns is None


def test_cut_files_give_their_whole_events(tmp_path: Path, array: DetectorArray) -> None:
    showers = few(3)
    whole = write_file(tmp_path / "whole", showers, marks=False).read_bytes()
    file = tmp_path / "DAT000001"
    file.write_bytes(whole[:-5_000])
    told: list[str] = []
    assert len(list(ParticleFile.open(file, None).showers(told.append))) == 2
    assert "is cut: 2 whole events of 3" in told[0]
    file.write_bytes(whole[:50_000])
    with pytest.raises(InputError, match="is cut, and holds no whole event"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array)
    file.write_bytes(whole[: 4 * 273])
    with pytest.raises(InputError, match="holds no event"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array)
    write_file(file, showers, promised=7)
    told = []
    assert len(list(ParticleFile.open(file, None).showers(told.append))) == 3
    assert "holds 3 whole events of 7 that its run header promises" in told[0]


def test_primaries_that_the_task_has_no_class_of(tmp_path: Path, array: DetectorArray) -> None:
    photon, muon = few(2)
    photon.particle_id, muon.particle_id = 1, 5
    file = write_file(tmp_path / "DAT000001", [photon])
    with pytest.raises(InputError, match="event 1 is of primary 1, no class of task composition"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array)
    folder = convert_corsika(file, tmp_path / "own", GAMMA, array, uses=3)
    assert set(Dataset.open(folder, GAMMA).labels) == {0}
    write_file(file, [muon])
    with pytest.raises(InputError, match="event 1 is of primary 5, no class of task gamma"):
        convert_corsika(file, tmp_path / "other", GAMMA, array)
    turned = few(1)
    turned[0].arrang_rad = 0.2
    with pytest.raises(InputError, match="turned from magnetic north"):
        convert_corsika(write_file(file, turned), tmp_path / "other", COMPOSITION, array)


def test_true_energies_are_labels_of_a_target(tmp_path: Path, array: DetectorArray) -> None:
    file = write_file(tmp_path / "DAT000001", few(1))
    folder = convert_corsika(file, tmp_path / "own", ENERGY, array, uses=3)
    assert Dataset.open(folder, ENERGY).labels == pytest.approx([15.0] * 3, abs=1e-3)


def test_showers_that_nothing_sees(tmp_path: Path, array: DetectorArray) -> None:
    file = write_file(tmp_path / "DAT000001", [flat(5, 10.0, n=3)])
    with pytest.raises(InputError, match="none of 1 showers at 10 places hits 4 stations"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array)


def drawn_energies(rng: np.random.Generator, slope: float, low: float, high: float, n: int) -> np.ndarray:
    u = 1 + slope
    return (low**u + rng.random(n) * (high**u - low**u)) ** (1 / u)


@pytest.mark.parametrize("slope", [-2.7, -3.3])
def test_weights_give_runs_together_another_spectrum(slope: float) -> None:
    """Two runs that overlap and differ in slope; weighted, the mean of ln E is that of one power law over both."""
    rng, low, high = np.random.default_rng(1), 1e5, 1e7
    runs = [DrawnSpectrum("a", -2.0, low, high), DrawnSpectrum("b", -1.2, 1e6, high)]
    run = np.repeat([0, 1], [N, N // 4])
    energy = np.concatenate([drawn_energies(rng, -2.0, low, high, N), drawn_energies(rng, -1.2, 1e6, high, N // 4)])
    weights = spectrum_weights(runs, run, np.full(len(run), 14), energy, slope)
    x = np.linspace(np.log(low), np.log(high), 100_001)
    density = np.exp((1 + slope) * x)
    for power in (1, 2):
        values, expected = np.log(energy) ** power, np.average(x**power, weights=density)
        mean = np.average(values, weights=weights)
        error = np.sqrt((weights**2 * (values - mean) ** 2).sum()) / weights.sum()
        assert mean == pytest.approx(expected, abs=5 * error)
        assert abs(values.mean() - expected) > 20 * error
    assert weights.mean() == pytest.approx(1)
    assert effective_number(weights) < 0.9 * len(weights)


def test_primaries_from_other_energies_count_alike_where_both_were_drawn() -> None:
    """Protons from 1e5 GeV and as many iron nuclei from 1e6: above 1e6 and 1e7 GeV they are as many."""
    rng = np.random.default_rng(3)
    runs = [DrawnSpectrum("p", -1.0001, 1e5, 1e8), DrawnSpectrum("Fe", -2.0, 1e6, 1e8)]
    run = np.repeat([0, 1], N)
    energy = np.concatenate([drawn_energies(rng, one.slope, one.least_gev, 1e8, N) for one in runs])
    weights = spectrum_weights(runs, run, np.where(run == 0, 14, 5626), energy, -2.7)
    assert weights.mean() == pytest.approx(1)
    for least, margin in ((1e6, 1e-9), (1e7, None)):
        above = weights * (energy > least * (1 - 1e-5))
        sums = np.bincount(run, above)
        error = margin or 5 * np.hypot(*(np.sqrt(np.bincount(run, above**2)) / sums))
        assert sums[1] / sums[0] == pytest.approx(1, abs=error)


def test_weights_keep_the_mixture_and_their_own_spectrum_is_flat() -> None:
    rng = np.random.default_rng(2)
    energy = drawn_energies(rng, -2.0, 1e5, 1e7, 1000)
    kind, run = np.where(np.arange(1000) < 300, 14, 5626), np.zeros(1000, np.int64)
    runs = [DrawnSpectrum("a", -2.0, 1e5, 1e7)]
    assert spectrum_weights(runs, run, kind, energy, -2.0) == pytest.approx(np.ones(1000), rel=1e-6)
    weights = spectrum_weights(runs, run, kind, energy, -3.0)
    assert weights[:300].mean() == pytest.approx(1)
    assert weights[300:].mean() == pytest.approx(1)
    np.testing.assert_allclose(weights[:300] * energy[:300], weights[0] * energy[0])
    twice = [DrawnSpectrum("p", -2.0, 1e5, 1e7), DrawnSpectrum("Fe", -2.0, 2 * energy[:300].max(), 1e8)]
    with pytest.raises(InputError, match="primary 14 has no shower at energies that all primaries have in common"):
        spectrum_weights(twice, np.arange(400) // 300, kind[:400], np.append(energy[:300], np.full(100, 5e7)), -3.0)
    with pytest.raises(InputError, match="from 100000 to 100000 GeV, which is no spectrum"):
        spectrum_weights([DrawnSpectrum("b", -2.0, 1e5, 1e5)], run, kind, energy, -3.0)
    with pytest.raises(InputError, match="outside the limits of its run header"):
        spectrum_weights([DrawnSpectrum("b", -2.0, 1e5, 2e5)], run, kind, energy, -3.0)


def test_showers_that_are_seen_from_the_rim_are_told(tmp_path: Path, array: DetectorArray) -> None:
    """A shower that covers 400 m square is seen from every core within 70 m, and from none beyond 370 m."""
    file = write_file(tmp_path / "DAT000001", [flat(5, 10.0, half_m=190.0)])
    seen, told, rim = {}, list[str](), "of the uses at that rim are seen: measured showers come from outside"
    for radius in (None, 500.0):
        folder = convert_corsika(file, tmp_path / f"{radius}", COMPOSITION, array, uses=200, core_radius_m=radius,
                                 tell=told.append)  # fmt: skip
        seen[radius] = np.hypot(
            *(pl.read_parquet(folder / "truth.parquet")[name].to_numpy() for name in ("core_x_m", "core_y_m"))
        )
        assert (rim in "".join(told)) == (radius is None)
        told.clear()
    assert len(seen[None]) == 200
    assert seen[None].max() < 0.875 * array.half_side_m < 150 < seen[500.0].max() < 370
    with pytest.raises(InputError, match="core_radius_m -1: give a number above 0"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array, core_radius_m=-1.0)


@pytest.mark.slow
def test_a_slope_gives_weights(tmp_path: Path, array: DetectorArray) -> None:
    rng = np.random.default_rng(1)
    showers = [draw_shower(rng, lg_energy_gev=5.5 + 0.4 * k, share=0.2) for k in range(4)]
    file = write_file(tmp_path / "DAT000001", showers)
    plain = convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=3)
    assert not (plain / "weight.npy").exists()
    told: list[str] = []
    folder = convert_corsika(file, tmp_path / "weighted", COMPOSITION, array, uses=3, slope=-2.7, tell=told.append)
    assert re.search(r"from E\^-2 are weighted to E\^-2.7: 4 are worth [23] of equal weight", "".join(told))
    data, truth = Dataset.open(folder, COMPOSITION), pl.read_parquet(folder / "truth.parquet")
    assert data.weights is not None
    product = data.weights * 10 ** (0.7 * truth["lg_energy"].to_numpy())
    np.testing.assert_allclose(product, product[0], rtol=1e-5)
    with pytest.raises(InputError, match="exists already, made otherwise"):
        convert_corsika(file, tmp_path / "weighted", COMPOSITION, array, uses=3)
    (tmp_path / "both").mkdir()
    shutil.copy(file, tmp_path / "both")
    iron = [replace(flat(5, 10.0, seed=k), particle_id=5626, energy_gev=10**e) for k, e in enumerate((6.1, 6.4))]
    write_file(tmp_path / "both" / "DAT000002", iron, spectrum=(-2.0, 1e6, 1e7))
    two = convert_corsika(tmp_path / "both", tmp_path / "two", COMPOSITION, array, uses=1, slope=-2.7, tell=told.append)
    found = re.search(
        r"from 1e\+15 to 1e\+16 eV, where every primary was drawn, they count as simulated; at all energies primaries "
        r"14 : 5626 count ([\d.]+) : ([\d.]+) for 4 : 2 showers",
        "".join(told),
    )
    assert found
    assert float(found[1]) + float(found[2]) == pytest.approx(6, abs=0.02)
    assert float(found[1]) > 4 * float(found[2])
    absent = "no showers of helium, carbon, silicon: stack tells the other groups apart"
    assert f"6 showers; {absent}" in "".join(told)
    said = [(one.state, one.outcome) for one in dataset_findings(two) if one.what == "classes"]
    assert said == [("note", f"proton 4, helium 0, carbon 0, silicon 0, iron 2; {absent}")]
    for slope in (2.7, -9.0):
        with pytest.raises(InputError, match=r"--slope is .*, expected a number from -5 to 0"):
            convert_corsika(file, tmp_path / "other", COMPOSITION, array, slope=slope)
    with pytest.raises(InputError, match="task energy has no weights"):
        convert_corsika(file, tmp_path / "other", ENERGY, array, slope=-2.7)


def test_a_file_under_two_names_is_refused(tmp_path: Path, array: DetectorArray) -> None:
    (tmp_path / "runs").mkdir()
    write_file(tmp_path / "runs" / "DAT000001", few())
    shutil.copy(tmp_path / "runs" / "DAT000001", tmp_path / "runs" / "DAT000002")
    with pytest.raises(InputError, match="DAT000002 is a copy of DAT000001, whose showers would count twice"):
        convert_corsika(tmp_path / "runs", tmp_path / "own", GAMMA, array, uses=1)


def test_files_side_by_side_give_the_same_bytes(tmp_path: Path, array: DetectorArray) -> None:
    """Also after a file that is cut, whose showers are fewer than its header says."""
    (tmp_path / "runs").mkdir()
    write_file(tmp_path / "runs" / "DAT000001", few(2, share=0.05), promised=9, run_end=False)
    for number in (2, 3):
        write_file(tmp_path / "runs" / f"DAT00000{number}", few(number - 1, seed=number, share=0.05))
    made, told = [], []
    for workers in (1, 2):
        told.append([])
        made.append(convert_corsika(tmp_path / "runs", tmp_path / f"{workers}", COMPOSITION, array, uses=3,
                                    workers=workers, tell=told[-1].append))  # fmt: skip
    assert told[0] == told[1]
    assert any("DAT000001 is cut" in line for line in told[0])
    names = sorted(one.name for one in made[0].iterdir())
    assert [(made[1] / name).read_bytes() for name in names] == [(made[0] / name).read_bytes() for name in names]
    content = (tmp_path / "runs" / "DAT000002").read_bytes()
    (tmp_path / "runs" / "DAT000002").write_bytes(content[:2000] + b"\xff" * 400 + content[2400:])
    with pytest.raises(InputError, match=r"DAT000002.*is the file damaged"):
        convert_corsika(tmp_path / "runs", tmp_path / "damaged", COMPOSITION, array, uses=3, workers=2)


def test_killed_it_goes_on(tmp_path: Path, array: DetectorArray, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_file(tmp_path / "DAT000001", few(3))
    usual = convert_corsika(file, tmp_path / "usual", COMPOSITION, array, uses=3)
    calls, original = [], corsika.throw

    def dying(*arguments):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(corsika, "throw", dying)
    with pytest.raises(KeyboardInterrupt):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=3)
    assert not (tmp_path / "own" / "DAT000001").exists()
    monkeypatch.setattr(corsika, "throw", lambda *arguments: calls.append(1) or original(*arguments))
    folder = convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=3)
    assert len(calls) == 3
    names = {one.name for one in usual.iterdir()}
    assert {one.name for one in folder.iterdir()} == names
    for name in names:
        assert (folder / name).read_bytes() == (usual / name).read_bytes(), name
    assert [one.name for one in (tmp_path / "own").iterdir()] == ["DAT000001"]
    assert convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=3) == folder
    with pytest.raises(InputError, match="exists already, made otherwise"):
        convert_corsika(file, tmp_path / "own", COMPOSITION, array, uses=4)


def test_the_command(tmp_path: Path) -> None:
    table = stations(tmp_path)
    folder = tmp_path / "composition_train"
    folder.mkdir()
    write_file(folder / "DAT000001", few(1))
    write_file(folder / "DAT000002", few(1, seed=2))
    assert formats.format_of(folder) is corsika.FORMAT
    own = tmp_path / "own"
    err = call("cli.py", "convert", folder, "--out", own, code=2).stderr
    assert "say onto which array its showers are to be thrown: --array stations.parquet" in err
    options = ("--array", table, "--uses", "3", "--out", own)
    assert "own/composition_train" in call("cli.py", "convert", folder, *options).stdout
    assert len(Dataset.open(own / "composition_train", COMPOSITION)) == 6
    err = call("cli.py", "convert", tmp_path / "mine", *options, code=2).stderr
    assert "lists of stations are three files" in err
    for content in (b"", bytes(5000), b"text" * 500):
        (tmp_path / "DAT000003").write_bytes(content)
        err = call("cli.py", "convert", "--from", tmp_path / "DAT000003", *options, code=2).stderr
        assert "DAT000003 holds no CORSIKA particle files: these begin with a run header" in err


@pytest.mark.slow
def test_from_files_to_predictions(tmp_path: Path, undrawn: None) -> None:
    """Showers of one energy, five classes: converted with weights, fitted, stacked, and new ones predicted."""
    table, rng = stations(tmp_path), np.random.default_rng(3)
    own, run, out = tmp_path / "own", tmp_path / "run", tmp_path / "new.csv"
    for split, n in (("train", 24), ("test", 8)):
        folder = tmp_path / f"composition_{split}"
        folder.mkdir()
        for number, mass in enumerate((1, 4, 12, 28, 56)):
            showers = [draw_shower(rng, mass=mass, lg_energy_gev=5.9, share=0.3) for _ in range(n)]
            write_file(folder / f"DAT{number:06d}", showers)
        options = ("--array", table, "--uses", "4", "--slope", "-2.7", "--out", own)
        call("cli.py", "convert", folder, *options)
    assert "own/composition_train.features" in call("cli.py", "features", own / "composition_train").stdout
    settings = ("--learners", "lightgbm", "--folds", "3", "--workers", "1", "--preset", "quick")
    call("cli.py", "stack", "--task", "composition", "--data", own, "--run", run, *settings)
    score = json.loads((run / "metrics_composition.json").read_text())
    assert score["accuracy"] > 0.3, "0.2 by chance"
    assert not score["energy_binned"]
    assert {"0-10", "10-20", "20-30"} & score["zenith_binned"].keys()
    call("cli.py", "predict", "--run", run, "--data", own / "composition_test", "--out", out)
    predicted = pl.read_csv(out)
    assert predicted.height == len(Dataset.open(own / "composition_test", COMPOSITION))


@pytest.mark.slow
def test_a_real_file(tmp_path: Path) -> None:
    """CORSIKA 7.75 with muon histories, from a package's source archive."""
    archived = archive_of("corsika-panama==1.0.4", tmp_path, "--no-binary", ":all:")
    with tarfile.open(archived) as archive:
        for number in (21, 17):
            name = f"DAT{number:06d}"
            member = archive.extractfile(f"corsika_panama-1.0.4/tests/files/{name}")
            assert member is not None
            (tmp_path / name).write_bytes(member.read())
    opened = ParticleFile.open(tmp_path / "DAT000021", 1023.0)
    assert (opened.is_thinned, opened.level_m) == (False, 110.0)
    told: list[str] = []
    events = list(opened.showers(told.append))
    assert (len(events), told) == (5, [])
    header, ground = events[1]
    # Of 3,997 rows most are histories and resonances.
    assert ground.number((5, 6)) == 771
    assert Axis.of(header).zenith_rad == 0.0
    assert corsika.mass_of(int(header["particle_id"])) == 12
    array = array_in(stations(tmp_path, pitch_m=1.5))  # its muons are those above a TeV, within metres
    thrown = throw(ground, Axis.of(header), array, 5, np.random.default_rng(1))
    assert len(thrown) == 5
    assert opened.cuts_gev[1] > 100
    with pytest.raises(InputError, match=r"followed \(ECUTS\), but e/gamma detectors see them"):
        convert_corsika(tmp_path / "DAT000021", tmp_path / "own", COMPOSITION, array)
    assert thrown.direction_deg[:, 0].max() < 20
    half = list(ParticleFile.open(tmp_path / "DAT000017", None).showers(told.append))
    assert len(half) == 25 or f"{len(half)} whole events of 25" in told[0]
