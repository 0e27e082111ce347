"""Exposures: given, from the runs' own live time, and judged by the published flux."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from showerstack.analysis.exposure import (
    ALL_PARTICLES,
    EXPOSURE_ERROR,
    check_flux_of_exposure,
    exposure_of,
    live_time,
    parse_exposure,
    per_second,
)
from showerstack.runtime.errors import InputError


def test_exposure_units() -> None:
    assert parse_exposure("1.14e12") == 1.14e12
    assert parse_exposure("2 km2_sr_yr") == pytest.approx(2 * 3.15576e13)
    for text in ("", "-3", "nan", "6 h", "1e12 m2", "inf", "1e"):
        with pytest.raises(InputError, match="--exposure"):
            parse_exposure(text)
    energy = np.array([1e15, 3e15])
    right = 2.4e-21 * np.array([1.0, 3.0**-2.7])
    assert check_flux_of_exposure(right, energy, simulated=False) == []
    assert "3.9 times" in check_flux_of_exposure(3.9 * right, energy, simulated=False)[0]
    assert check_flux_of_exposure(2.1 * right, energy, 0.5 * right, simulated=False) == [], "the error covers it"
    assert "2.1 times" in check_flux_of_exposure(2.1 * right, energy, 0.3 * right, simulated=False)[0]
    with pytest.raises(InputError, match="times the published one"):
        check_flux_of_exposure(1e-4 * right, energy, simulated=False)
    assert check_flux_of_exposure(1e-4 * right, energy, simulated=True)


@pytest.mark.parametrize(("rate_hz", "hours"), [(4.0, 1.0), (0.02, 30.0)])
def test_live_time_leaves_interruptions_out(rate_hz: float, hours: float) -> None:
    """Three parts of a run with two hours between them."""
    rng, part = np.random.default_rng(1), 3600 * hours
    starts = 1e9 + np.arange(3) * (part + 7200.0)
    seconds = np.concatenate([start + part * rng.random(rng.poisson(rate_hz * part)) for start in starts])
    rng.shuffle(seconds)
    assert live_time(seconds) == pytest.approx(3 * part, rel=0.006)
    assert live_time(np.append(seconds, np.nan)) == live_time(seconds), "rows without a time do not count"
    with pytest.raises(InputError, match="fewer than ten"):
        live_time(seconds[:5])


def test_a_dead_time_is_subtracted_for_every_event() -> None:
    """A detector that is dead for 50 ms after each event of 3 a second is live for 85 % of the time."""
    seconds = 1e9 + 20_000 * np.random.default_rng(3).random(60_000)
    assert live_time(seconds, dead_time_s=0.05) == pytest.approx(0.85 * live_time(seconds), rel=1e-3)
    with pytest.raises(InputError, match=r"60,000 times --dead-time 0\.5 s are more than all"):
        live_time(seconds, dead_time_s=0.5)


def _run(folder: Path, seconds: np.ndarray | None) -> Path:
    folder.mkdir()
    (folder / "source.json").write_text("{}")
    if seconds is not None:
        np.save(folder / "times.npy", seconds)
    return folder


def test_an_exposure_that_is_not_given_is_that_of_the_runs(tmp_path: Path) -> None:
    """The public archive: .185 of 4.64e8 s of data taking give 6.7e11 m2 sr s below 18 degrees, 1.75e12 below 30."""
    assert per_second(18.0) * 0.185 * 4.64e8 == pytest.approx(6.7e11, rel=0.005)
    assert per_second(30.0) * 0.185 * 4.64e8 == pytest.approx(1.75e12, rel=0.005)
    rng = np.random.default_rng(2)
    starts = {"004000": 1e9, "004001": 1e9 + 5000}
    runs = [_run(tmp_path / name, start + 5000 * rng.random(4000)) for name, start in starts.items()]
    own = exposure_of(None, runs, 18.0)
    assert own.live_time_s == pytest.approx(10_000, rel=0.01)
    assert own.m2_sr_s == pytest.approx(per_second(18.0) * 10_000, rel=0.01)
    assert "live time of the runs" in own.remarks[0]
    assert own.as_json(18.0)["exposure_from"] == "live time of the runs"
    assert "dead time not subtracted" in own.remarks[0]
    less = exposure_of(None, runs, 18.0, 0.1, 0.02)
    assert less.m2_sr_s == pytest.approx((1 - 0.1 * 4000 / 5000) * own.m2_sr_s, rel=0.01)
    assert (less.relative_error, own.relative_error) == (0.02, EXPOSURE_ERROR)
    assert exposure_of(f"{1.2 * own.m2_sr_s}", runs, 18.0).remarks == ()
    wrong = exposure_of(f"{5.4 * own.m2_sr_s}", runs, 18.0)
    assert wrong.m2_sr_s == pytest.approx(5.4 * own.m2_sr_s)
    assert "5.4 times what the runs' own live time gives" in wrong.remarks[0]
    untimed = _run(tmp_path / "004010", None)
    assert exposure_of("1e9", [*runs, untimed], 18.0).remarks == ()
    with pytest.raises(InputError, match=r"004010 has no event times .times.npy.*give --exposure"):
        exposure_of(None, [*runs, untimed], 18.0)


def test_hours_that_were_written_in_two_folders_count_once(tmp_path: Path) -> None:
    seconds = 1e9 + np.sort(5000 * np.random.default_rng(4).random(4000))
    whole = exposure_of(None, [_run(tmp_path / "whole", seconds)], 18.0)
    halves = [_run(tmp_path / "even", seconds[::2]), _run(tmp_path / "odd", seconds[1::2])]
    later = _run(tmp_path / "later", seconds + 5000)
    both = exposure_of(None, halves, 18.0)
    assert both.m2_sr_s == whole.m2_sr_s
    assert "1 more were taken at the same time: their 4,9" in both.remarks[1]
    three = exposure_of(None, [later, *halves], 18.0)
    assert three.live_time_s == pytest.approx(2 * whole.live_time_s)
    # A part that fills an interruption is no remark: nothing counts twice.
    pause = (seconds > 1e9 + 2000) & (seconds < 1e9 + 3000)
    parts = [_run(tmp_path / "around", seconds[~pause]), _run(tmp_path / "between", seconds[pause])]
    filled = exposure_of(None, parts, 18.0)
    assert filled.live_time_s == pytest.approx(whole.live_time_s, rel=0.01)
    assert len(filled.remarks) == 1


def test_an_exposure_is_remarked_upon_from_thirty_per_cent_off() -> None:
    energy = np.array([2e15])
    right = ALL_PARTICLES * 2.0**-2.7 * np.ones(1)
    assert check_flux_of_exposure(1.25 * right, energy, simulated=False) == []
    assert "1.4 times the published one" in check_flux_of_exposure(1.4 * right, energy, simulated=False)[0]
    assert "0.6 times the published one" in check_flux_of_exposure(0.6 * right, energy, simulated=False)[0]
    of_live_time = check_flux_of_exposure(0.6 * right, energy, simulated=False, given=False)[0]
    assert of_live_time.endswith("are these all events of the runs' live time?")
