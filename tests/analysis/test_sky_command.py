"""A sky map as a user makes it: an injected source comes back, and what cannot be is said in one line."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.options import SkyOptions
from showerstack.analysis.sky.map import SkyMap, sky_map, write_map
from showerstack.report.check_pages import write_sky_picture
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.showers.writer import write_dataset
from tests.program import call

pytest.importorskip("astropy")
astropy_healpix = pytest.importorskip("astropy_healpix")

SOURCE_RA, SOURCE_DEC = 201.0, 45.0
START_S = 1_000_000_000.0
HOURS = 72.0


def _background(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return (n, 3) times, zenith angles and azimuths of an isotropic sky."""
    zenith = np.degrees(np.arcsin(np.sqrt(rng.uniform(0, 0.25, n))))
    return np.column_stack([rng.uniform(START_S, START_S + 3600 * HOURS, n), zenith, rng.uniform(0, 360, n)])


def _source(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return (n, 3) of a point on the sky, seen where it is less than 30 degrees from the zenith, with 0.4 deg blur."""
    from astropy import units
    from astropy.coordinates import AltAz, EarthLocation, SkyCoord
    from astropy.time import Time

    place = EarthLocation.from_geodetic(8.4 * units.deg, 49.1 * units.deg, 110 * units.m)
    seconds = rng.uniform(START_S, START_S + 3600 * HOURS, 20 * n)
    blur = rng.normal(0, 0.4, (2, len(seconds)))
    ra_deg = SOURCE_RA + blur[0] / np.cos(np.radians(SOURCE_DEC))
    at = SkyCoord(ra_deg * units.deg, (SOURCE_DEC + blur[1]) * units.deg)
    visited = at.transform_to(AltAz(obstime=Time(seconds, format="unix"), location=place))
    up = np.flatnonzero(visited.alt.deg > 61)[:n]
    assert len(up) == n
    return np.column_stack([seconds, 90 - visited.alt.deg, visited.az.deg])[up]


def _folder(path: Path, events: np.ndarray, *, times: bool = True) -> Path:
    """Write a dataset folder of showers that hit one station, with these times and directions."""
    events = events[np.argsort(events[:, 0])]
    extras = {"times": np.float64} if times else {}
    source = {"generator": "test", "protocol": "v2"}
    with write_dataset(path, len(events), None, source=source, extras=extras) as writer:
        grids = np.zeros((len(events), 16, 16, 2), dtype=np.float16)
        grids[:, 8, 8, 0] = 10
        constant = np.ones(len(events))
        scalars = np.column_stack([15.3 * constant, events[:, 1], events[:, 2], 5.2 * constant, 4.2 * constant])
        writer.put(0, grids, scalars.astype(np.float32), **({"times": events[:, 0]} if times else {}))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs, with a source of 120 showers among 20,000."""
    rng = np.random.default_rng(11)
    events = np.concatenate([_background(rng, 20_000), _source(rng, 120)])
    first = events[:, 0] < START_S + 1800 * HOURS
    place = tmp_path_factory.mktemp("sky")
    for name, mine in (("004000", first), ("004001", ~first)):
        _folder(place / name, events[mine])
    return place


def _best(out: Path) -> dict[str, float]:
    table = pl.read_parquet(out / "sky_map.parquet")
    return table.sort("significance_sigma", descending=True, nulls_last=True).row(0, named=True)


@pytest.mark.slow
def test_an_injected_source_comes_back(runs: Path, tmp_path: Path) -> None:
    from astropy import units

    shown = call("cli.py", "sky-map", "--data", runs, "--out", tmp_path, "--nside", "16", "--scrambles", "10")
    best = _best(tmp_path)
    assert best["pixel"] == astropy_healpix.HEALPix(16).lonlat_to_healpix(*([SOURCE_RA, SOURCE_DEC] * units.deg))
    assert best["significance_sigma"] > 6
    assert f"{best['significance_sigma']:.2f} standard deviations" in shown.stdout.replace("\n", " ")
    table = pl.read_parquet(tmp_path / "sky_map.parquet")
    assert pl.read_csv(tmp_path / "sky_map.csv").columns == table.columns
    assert table["counts"].sum() == pytest.approx(table["expected_counts"].sum(), rel=0.002)
    others = table.filter(pl.col("pixel") != best["pixel"])["significance_sigma"].drop_nulls().to_numpy()
    assert 0.8 < others.std() < 1.2
    content = read_json(tmp_path / "sky_map.json")
    assert content["highest"]["p_value_after_trials"] < 1e-6
    assert content["events"] == table["counts"].sum()
    assert content["azimuth"] == {"of_north_deg": 0.0, "clockwise_from_above": True}
    assert (tmp_path / "sky_map.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SkyMap, Path]:
    """A map and its FITS file."""
    result = sky_map(SkyOptions([runs / "004000", runs / "004001"], nside=16, scrambles=3))
    out = tmp_path_factory.mktemp("fits")
    write_map(result, out)
    return result, out / "sky_map.fits"


def test_astropy_reads_the_map_and_its_header(written: tuple[SkyMap, Path]) -> None:
    from astropy import units
    from astropy.coordinates import ICRS, SkyCoord
    from astropy.io import fits
    from astropy.table import QTable

    result, file = written
    pixels = astropy_healpix.HEALPix.from_header(str(file))
    assert (pixels.nside, pixels.order, type(pixels.frame)) == (16, "ring", ICRS)
    with fits.open(file) as opened:
        opened.verify("exception")
        assert opened[1].header["PIXTYPE"] == "HEALPIX"
        assert opened[1].header["HPX_CONV"] == "HEALPY"  # without it gammapy refuses the file
        assert opened[1].header["LASTPIX"] == pixels.npix - 1
    table = QTable.read(file, hdu=1)
    np.testing.assert_array_equal(table["COUNTS"].value, result.counts)
    np.testing.assert_array_equal(table["EXPECTED"].value, result.expected)
    assert set(table.colnames) == {"COUNTS", "EXPECTED", "EXPOSURE", "SIGNIFICANCE"}
    # South of the array's view nothing is seen, in its zenith much.
    south, zenith = (
        pixels.cone_search_skycoord(SkyCoord(10 * units.deg, dec * units.deg), 10 * units.deg) for dec in (-40, 49.1)
    )
    assert table["COUNTS"][south].value.sum() == 0
    assert table["COUNTS"][zenith].value.sum() > 0


def test_healpy_reads_the_map(written: tuple[SkyMap, Path]) -> None:
    healpy = pytest.importorskip("healpy")
    result, file = written
    counts, significance = healpy.read_map(file, field=("COUNTS", "SIGNIFICANCE"), dtype=np.float64)
    np.testing.assert_array_equal(counts, result.counts)
    np.testing.assert_array_equal(significance, result.significance)
    ra, dec = healpy.pix2ang(16, np.arange(len(counts)), lonlat=True)
    np.testing.assert_allclose(np.transpose([ra, dec]), np.transpose(result.pixels.centres(np.arange(len(counts)))))


def test_the_source_lies_where_coverage_maps_of_mocpy_have_it(written: tuple[SkyMap, Path]) -> None:
    """They count pixels in nested order alone, and drop numbers beyond the last one in silence."""
    from astropy import units

    mocpy = pytest.importorskip("mocpy")
    result, file = written
    pixels = astropy_healpix.HEALPix.from_header(str(file))
    best = pixels.ring_to_nested(np.nanargmax(result.significance)[None])
    covered = mocpy.MOC.from_healpix_cells(best.astype(np.uint64), int(pixels.level), int(pixels.level))
    assert covered.sky_fraction == pytest.approx(1 / pixels.npix)
    for turn, inside in ((0.0, True), (180.0, False)):
        assert covered.contains_lonlat([SOURCE_RA + turn] * units.deg, [SOURCE_DEC] * units.deg)[0] == inside


def test_gammapy_reads_the_map(written: tuple[SkyMap, Path]) -> None:
    maps = pytest.importorskip("gammapy.maps")
    result, file = written
    read = maps.Map.read(file, colname="COUNTS")
    np.testing.assert_array_equal(read.data, result.counts)
    assert (read.geom.frame, int(read.geom.nside[0]), read.geom.nest) == ("icrs", 16, False)
    centres = read.geom.get_coord()
    expected = result.pixels.centres(np.arange(len(result.pixels)))
    np.testing.assert_allclose(centres.skycoord.ra.deg, expected[0], atol=1e-6)
    np.testing.assert_allclose(centres.skycoord.dec.deg, expected[1], atol=1e-6)


@pytest.mark.slow
def test_a_wrong_convention_of_azimuths_loses_the_source(runs: Path, tmp_path: Path) -> None:
    options = ("--out", tmp_path, "--nside", "16", "--scrambles", "5", "--anticlockwise")
    call("cli.py", "sky-map", "--data", runs, *options)
    assert _best(tmp_path)["significance_sigma"] < 5


def test_what_cannot_be_is_said_in_one_line(runs: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    timeless = _folder(tmp_path / "timeless", _background(rng, 20), times=False)
    holes = _background(rng, 20)
    holes[3, 0] = np.nan
    late, early = _background(rng, 20), _background(rng, 20)
    late[0, 0], early[2, 0] = 3e9, 0.0
    steep = _background(rng, 20)
    steep[:, 1] = 44.0
    cases = [
        (SkyOptions([timeless]), r"has no event times \(times.npy\).*with --times"),
        (SkyOptions([runs / "004000", runs / "004000"]), "same events"),
        (SkyOptions([_folder(tmp_path / "holes", holes)]), r"holds no time \(1 bad rows\)"),
        (
            SkyOptions([_folder(tmp_path / "late", late)]),
            r"row 19 is of 2065-01-24 \(1 such rows\), .* 1973-01",
        ),
        (SkyOptions([_folder(tmp_path / "early", early)]), r"times.npy: row 0 is of 1970-01-01 .*UTC seconds"),
        (SkyOptions([_folder(tmp_path / "steep", steep)]), "no event passes zenith < 30"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            sky_map(options)
    said = call("cli.py", "sky-map", "--data", timeless, "--out", tmp_path / "none", code=2).stderr
    assert said.count("\n") == 1
    assert said.startswith("error: ")


def test_numbers_beyond_what_options_declare_are_refused() -> None:
    for given, message in (
        ({"nside": 24}, "--nside 24: give a power of two"),
        ({"azimuth_of_north": 400.0}, "--azimuth-of-north 400: give a number"),
    ):
        with pytest.raises(InputError, match=message):
            SkyOptions([Path("data")], **given)  # type: ignore[arg-type]


def test_a_map_without_significances_is_drawn_without_a_warning(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "few", _background(np.random.default_rng(3), 50))
    result = sky_map(SkyOptions([folder], scrambles=2))
    assert not np.isfinite(result.significance).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_sky_picture(result, tmp_path).is_file()
