"""Units of places and times are told from their size; those of real arrays and events never."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray, lattice, square_clusters
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.units import pitch_remarks, place_remarks, time_remarks
from showerstack.showers.writer import write_dataset


def _array(side: int, pitch_m: float) -> DetectorArray:
    x_m, y_m = lattice(side, pitch_m)
    return DetectorArray("field", pitch_m, x_m, y_m, np.full((side, side), 2.0), np.zeros((side, side)),
                         square_clusters(side, side))  # fmt: skip


def _showers(array: DetectorArray, lg_energy: float, seed: int) -> np.ndarray:
    """Return 60 showers of an exponential profile whose signals reach the farther the higher the energy."""
    rng = np.random.default_rng(seed)
    core = rng.uniform(-0.3, 0.3, (2, 60, 1, 1)) * array.half_side_m
    r = np.hypot(array.x_m - core[0], array.y_m - core[1])
    expected = 10 ** (1.1 * (lg_energy - 14.5)) * np.exp(-r / 60) * 30 / (1 + r / 20)
    signals = rng.poisson(expected).astype(np.float64)
    return np.stack([signals, 0 * signals], axis=-1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("side", "pitch_m", "lg_energy"), [(10, 8.0, 14.0), (16, 13.0, 15.0), (10, 30.0, 15.5), (9, 125.0, 17.0)]
)
def test_metres_are_never_remarked(side: int, pitch_m: float, lg_energy: float, seed: int) -> None:
    array = _array(side, pitch_m)
    showers, energy = _showers(array, lg_energy, seed), np.full(60, lg_energy)
    assert place_remarks("m", array, showers, energy) == []
    assert place_remarks("m", array, showers, np.full(60, np.nan)) == []
    for unit, factor in (("cm", 100.0), ("km", 1e-3), ("degrees", 1 / 1.11e5)):
        (said,) = place_remarks(unit, _array(side, factor * pitch_m), showers, energy)
        assert f"stations in {unit}?" in said


@pytest.mark.parametrize("pitch_m", [8.0, 13.0, 125.0, 1500.0])
def test_an_array_without_showers_is_known_by_its_pitch(pitch_m: float) -> None:
    assert pitch_remarks("m", _array(9, pitch_m)) == []
    for factor in (1e-5, 1e5):
        (said,) = pitch_remarks("odd", _array(9, factor * pitch_m))
        assert "m apart: are their places in" in said
    (said,) = pitch_remarks("gps", _array(9, 13.0 / 1.11e5))
    assert said.endswith("are their places in degrees?")


def _seconds(year: int) -> np.ndarray:
    return datetime(year, 6, 1, tzinfo=UTC).timestamp() + np.linspace(0, 1e5, 50)


@pytest.mark.parametrize("year", [1997, 2005, 2026, 2060])
def test_seconds_since_1970_are_never_remarked(year: int) -> None:
    said = time_remarks("s", _seconds(year), KASCADE)
    if year < 2014:
        assert said == []
    else:
        (line,) = said
        assert line.startswith(f"s: 50 of 50 event times are of {year} to {year}, but KASCADE measured from 1996")
    assert time_remarks("s", np.append(_seconds(year), np.nan), _array(4, 20.0)) == []
    for unit, values in (
        ("days since 1970", _seconds(year) / 86_400),
        ("modified Julian days", _seconds(year) / 86_400 + 40_587),
        ("Julian days (JD)", _seconds(year) / 86_400 + 2_440_587.5),
        ("years", year + np.linspace(0, 0.01, 50)),
        ("ms since", 1e3 * _seconds(year)),
        ("microseconds", 1e6 * _seconds(year)),
        ("ns since", 1e9 * _seconds(year)),
    ):
        (said,) = time_remarks(unit, values, KASCADE)
        assert f"looks like {unit}" in said


def test_seconds_of_gps_are_told_where_they_lie_before_the_array() -> None:
    (said,) = time_remarks("gps", _seconds(2000) - 315_964_800, KASCADE)
    assert "looks like seconds of GPS" in said
    (said,) = time_remarks("none", np.full(9, 12.0), KASCADE)
    assert "another unit, or another origin" in said


WEEKS_S = 1024 * 7 * 86_400.0


@pytest.mark.parametrize("seed", range(20))
def test_clocks_that_were_not_set_are_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    good = datetime(2001, 1, 1, tzinfo=UTC).timestamp() + np.sort(rng.uniform(0, 3e7, 600))
    third, half = np.arange(600) % 3 == 0, np.arange(600) >= 300
    for array in (KASCADE, _array(4, 20.0)):
        assert time_remarks("good", good, array) == []
        assert time_remarks("good", np.where(half, good + 3e8, good), array) == []  # years without data
        (said,) = time_remarks("week", np.where(half, good - WEEKS_S, good), array)
        assert "300 of 600 event times are of 1981 to 198" in said
        assert "GPS weeks begin again" in said
        said = " ".join(time_remarks("default", np.where(third, 315_964_800.0, good), array))
        assert "200 of 600 event times are of 1980 to 1980" in said
        (said,) = time_remarks("default", np.where(third, good[0] - 3600, good), array)
        assert "200 of 600 events have one time, 200" in said
    (said,) = time_remarks("late", good + WEEKS_S, KASCADE)
    assert "GPS weeks begin again" in said
    now = good + 7e8
    (said,) = time_remarks("both in range", np.where(half, now - WEEKS_S, now), _array(4, 20.0))
    assert "lie a multiple of 1,024 weeks apart" in said


def test_a_folder_says_of_its_times_what_they_look_like(tmp_path: Path) -> None:
    for name, values in (("good", _seconds(2001)), ("mjd", _seconds(2001) / 86_400 + 40_587)):
        with write_dataset(tmp_path / name, 50, COMPOSITION, source={}, extras={"times": np.float64}) as writer:
            scalars = np.tile(np.float16([15, 10, 10, 5, 4]), (50, 1))
            grids = np.ones((50, 16, 16, 2), np.float16)
            writer.put(0, grids, scalars, np.zeros(50, np.int8), times=values)
    assert Dataset.open(tmp_path / "good").remarks == ()
    (said,) = Dataset.open(tmp_path / "mjd").remarks
    assert said.startswith("mjd: half of the event times are below 52")
    assert "MJD" in said
    (tmp_path / "good" / "checksums.json").unlink()
    np.save(tmp_path / "good" / "times.npy", 1e3 * _seconds(2001))
    with pytest.raises(InputError, match=r"times\.npy: half of the times are above 1e\+10, which looks like ms since"):
        Dataset.open(tmp_path / "good").files.times()
