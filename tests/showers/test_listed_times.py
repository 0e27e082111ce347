"""Arrival times of own arrays: in station lists they give directions and features, and simulated sets have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.features.build import build_table
from showerstack.report.doctor.folders import folder_findings
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.formats import convert_foreign, convert_path, format_of
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.array import KASCADE
from showerstack.showers.card import ArrayCard
from showerstack.showers.dataset import Dataset
from showerstack.showers.front import LIGHT_M_PER_NS, PUBLISHED
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import simulate
from showerstack.showers.writer import problems
from tests.showers.test_corsika import stations

N = 60


def lists(folder: Path, *, scale: float = 1.0, clock_ns: float = 1e9) -> pl.DataFrame:
    """Write showers of known direction on 64 stations, with times in units of ``scale`` ns; return the truth."""
    rng = np.random.default_rng(1)
    place = pl.read_parquet(stations(folder))
    x, y = place["x_m"].to_numpy(), place["y_m"].to_numpy()
    zenith, azimuth = np.degrees(np.arcsin(0.6 * np.sqrt(rng.random(N)))), rng.uniform(0, 360, N)
    sine = np.sin(np.radians(zenith))[:, None]
    along = (x * np.cos(np.radians(azimuth))[:, None] + y * np.sin(np.radians(azimuth))[:, None]) * sine
    r = np.sqrt(x**2 + y**2 - along**2)
    particles = rng.poisson(200 / (1 + r / 20) ** 1.5)
    late = PUBLISHED.late_ns(r) * rng.standard_exponential(r.shape) / np.maximum(particles, 1)
    times = (late - along / LIGHT_M_PER_NS) * scale + clock_ns * (1 + np.arange(N))[:, None]
    event, station = np.nonzero(particles)
    pl.DataFrame(
        {"event": event, "station": station, "electron_mev": 9.5 * particles[event, station],
         "muon_mev": np.zeros(len(event)), "time_ns": times[event, station]}
    ).write_parquet(folder / "mine" / "signals.parquet")  # fmt: skip
    truth = pl.DataFrame({"event": np.arange(N), "Ze": zenith, "Az": azimuth})
    quantities = {"E": np.full(N, 15.0), "Ne": np.full(N, 5.0), "Nmu": np.full(N, 4.0), "label": np.arange(N) % 2}
    truth.with_columns(**quantities).write_parquet(folder / "mine" / "events.parquet")
    return truth


def test_times_of_lists_become_features(tmp_path: Path) -> None:
    truth = lists(tmp_path)
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "own", GAMMA)
    assert problems(folder) == []
    data = Dataset.open(folder, GAMMA)
    assert data.times_ns is not None
    np.testing.assert_array_equal(np.isfinite(data.times_ns), data.matrices[..., 0] > 0)
    # Seconds on the clock cost no nanosecond.
    assert np.nanmin(data.times_ns, axis=(1, 2)).tolist() == [0.0] * N
    table = build_table(folder)
    zenith = table.matrix(["front_zenith_deg"])[:, 0]
    assert np.median(np.abs(zenith - truth["Ze"].to_numpy())) < 0.5


def test_directions_that_nobody_gives_are_those_of_the_fronts(tmp_path: Path) -> None:
    truth, told = lists(tmp_path), []
    events = tmp_path / "mine" / "events.parquet"
    pl.read_parquet(events).drop("Ze", "Az").write_parquet(events)
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "own", GAMMA, told.append)
    assert "mine: directions are fitted to the arrival times" in told
    found = Dataset.open(folder, GAMMA).scalars
    assert np.median(np.abs(found[:, 1] - truth["Ze"].to_numpy())) < 0.5
    turned = (found[:, 2] - truth["Az"].to_numpy() + 180) % 360 - 180
    assert np.median(np.abs(turned)) < 2
    signals = tmp_path / "mine" / "signals.parquet"
    pl.read_parquet(signals).drop("time_ns").write_parquet(signals)
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "other", GAMMA, told.append)
    assert "the fits take showers as vertical" in told[-1]
    assert not {"Ze", "Az"} & set(Dataset.open(folder, GAMMA).quantities)


def test_events_that_lack_a_direction_get_that_of_their_front(tmp_path: Path) -> None:
    truth, told = lists(tmp_path), []
    events, signals = (tmp_path / "mine" / f"{name}.parquet" for name in ("events", "signals"))
    row = pl.int_range(pl.len())
    table = pl.read_parquet(events).with_columns(
        Ze=pl.when(row == 3).then(None).otherwise("Ze"), Az=pl.when(row == 5).then(float("nan")).otherwise("Az")
    )
    table.write_parquet(events)
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "own", GAMMA, told.append)
    assert told == ["mine: directions of 2 events without Ze or Az are fitted to the arrival times"]
    data, ours = Dataset.open(folder, GAMMA), truth.select("Ze", "Az").to_numpy()
    assert data.usable.all()
    others = np.delete(np.arange(N), [3, 5])
    np.testing.assert_array_equal(data.scalars[others, 1:3], ours[others].astype(np.float32))
    assert np.abs(data.scalars[[3, 5], 1] - ours[[3, 5], 0]).max() < 3
    # An event of few stations has no front, and without times no direction at all: it is named, and stays in place.
    few = pl.read_parquet(signals).filter((pl.col("event") != 3) | (pl.col("station") < 2))
    few.write_parquet(signals)
    told.clear()
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "few", GAMMA, told.append)
    assert "fitted to the arrival times, but in 1 events" in " ".join(told)
    assert np.flatnonzero(~Dataset.open(folder, GAMMA).usable).tolist() == [3]
    few.drop("time_ns").write_parquet(signals)
    (folder,) = convert_foreign(tmp_path / "mine", tmp_path / "silent", GAMMA, told.append)
    assert "2 of 60 rows cannot be used" in told[-1]
    assert pl.read_csv(folder / "left_out.csv").select("row", "column").rows() == [(3, "column Ze"), (5, "column Az")]


def test_an_array_without_a_card_is_told_what_is_assumed(tmp_path: Path) -> None:
    lists(tmp_path)
    told: list[str] = []
    convert_foreign(tmp_path / "mine", tmp_path / "own", GAMMA, told.append)
    assert told == []
    (tmp_path / "mine" / "array.toml").unlink()
    convert_foreign(tmp_path / "mine", tmp_path / "other", GAMMA, told.append)
    assert [line.split(":")[0] for line in told] == ["mine has no array.toml"]
    assert "KASCADE's detectors (9.5 MeV a particle, 8.4 a muon) and sea level are assumed" in told[0]


@pytest.mark.parametrize(("scale", "unit"), [(1e-3, "microseconds"), (1e3, "picoseconds")])
def test_times_in_other_units_are_remarked(tmp_path: Path, scale: float, unit: str) -> None:
    lists(tmp_path, scale=scale, clock_ns=0.0)
    told: list[str] = []
    convert_foreign(tmp_path / "mine", tmp_path / "own", GAMMA, told.append)
    assert [f"are times in {unit}" in line for line in told] == [True]
    assert any(f"are times in {unit}" in finding.outcome for finding in folder_findings(tmp_path / "mine"))


def test_simulated_sets_have_the_times_that_the_card_asks_for(tmp_path: Path) -> None:
    array = array_in(stations(tmp_path, "[times]\nresolution_ns = 2.0\n"))
    silent = array_in(stations(tmp_path, ""))
    assert silent.card == ArrayCard()
    numbers = {"n_train": 40, "n_test": 40, "seed": 1, "workers": 1}
    timed, test = simulate(COMPOSITION, tmp_path / "timed", array=array, **numbers)
    plain, _ = simulate(COMPOSITION, tmp_path / "plain", array=silent, **numbers)
    assert Dataset.open(plain, COMPOSITION).times_ns is None
    data = Dataset.open(timed, COMPOSITION)
    np.testing.assert_array_equal(data.matrices[:], Dataset.open(plain, COMPOSITION).matrices[:])
    assert data.times_ns is not None
    assert data.times_ns.dtype == np.float32
    zenith = build_table(test).matrix(["front_zenith_deg", "front_stations"])
    truth = pl.read_parquet(test / "truth.parquet")["zenith_deg"].to_numpy()
    assert np.nanmedian(np.abs(zenith[:, 0] - truth)) < 1.5
    again, _ = simulate(COMPOSITION, tmp_path / "again", array=array, **(numbers | {"workers": 2}))
    assert (again / "arrival_ns.npy").read_bytes() == (timed / "arrival_ns.npy").read_bytes()
    assert KASCADE.card.times == {}


def test_whole_nanoseconds_since_1970_lose_none(tmp_path: Path) -> None:
    truth, told = lists(tmp_path, clock_ns=0.0), list[str]()
    folder = tmp_path / "mine"
    events, signals = folder / "events.parquet", folder / "signals.parquet"
    pl.read_parquet(events).drop("Ze", "Az").write_parquet(events)
    relative = pl.read_parquet(signals)
    clock = 10**18 + 123_456_789_012 * pl.col("event").cast(pl.Int64)
    whole = relative.with_columns(time_ns=(pl.col("time_ns") + 1000).round().cast(pl.Int64) + clock)
    for kind in (pl.Int64, pl.UInt64):
        whole.with_columns(pl.col("time_ns").cast(kind)).write_parquet(signals)
        (own,) = convert_foreign(folder, tmp_path / str(kind), GAMMA, told.append)
        found = Dataset.open(own, GAMMA).scalars
        assert np.median(np.abs(found[:, 1] - truth["Ze"].to_numpy())) < 0.5
    assert told == 2 * ["mine: directions are fitted to the arrival times"]
    whole.with_columns(pl.col("time_ns").cast(pl.Float64)).write_parquet(signals)
    told.clear()
    convert_foreign(folder, tmp_path / "floats", GAMMA, told.append)
    assert "floats near 1e+18, in steps of 128 ns: too coarse" in told[0]


@pytest.mark.parametrize("value", [0.0, -1.0, -999.0, 65_535.0])
@pytest.mark.parametrize("whole", [False, True])
def test_values_that_mean_no_time_are_none(tmp_path: Path, value: float, whole: bool) -> None:
    truth, told = lists(tmp_path, clock_ns=0.0), list[str]()
    folder = tmp_path / "mine"
    events, signals = folder / "events.parquet", folder / "signals.parquet"
    pl.read_parquet(events).drop("Ze", "Az").write_parquet(events)
    time = (pl.col("time_ns") + 2000).round() if whole else pl.col("time_ns") + 2000
    table = pl.read_parquet(signals).with_columns(time_ns=time.cast(pl.Int64) if whole else time)
    missing = pl.Series(np.random.default_rng(1).random(table.height) < 0.3)
    table.with_columns(time_ns=pl.when(missing).then(value).otherwise("time_ns")).write_parquet(signals)
    (own,) = convert_foreign(folder, tmp_path / "own", GAMMA, told.append)
    assert f"{missing.sum():,} of {table.height:,} values of time_ns are exactly {value:g}" in told[0]
    found = Dataset.open(own, GAMMA).scalars
    assert np.median(np.abs(found[:, 1] - truth["Ze"].to_numpy())) < 0.6
    # After the first station, in whole ns: one 0 an event, and some by chance.
    first = pl.col("time_ns") - pl.col("time_ns").min().over("event")
    table.with_columns(time_ns=first).write_parquet(signals)
    told.clear()
    convert_foreign(folder, tmp_path / "sound", GAMMA, told.append)
    assert told == ["mine: directions are fitted to the arrival times"]


def test_columns_that_are_not_used_are_named_and_times_of_events_kept(tmp_path: Path) -> None:
    lists(tmp_path)
    folder, told = tmp_path / "mine", list[str]()
    events = pl.read_parquet(folder / "events.parquet")
    when = np.datetime64("2021-05-01T12:00:00.25") + np.arange(N) * np.timedelta64(60, "s")
    more = events.with_columns(weight=pl.lit(1.0), time=pl.lit(5), core_x=pl.lit(1.0))
    more.write_parquet(folder / "events.parquet")
    convert_foreign(folder, tmp_path / "a", GAMMA, told.append)
    (line,) = told
    assert line.endswith(
        "events.parquet: not used: weight, time (did you mean time_s?), core_x; showers get weights by convert "
        "--slope, tables by --weight"
    )
    for name, column in (
        ("text", ["1"] * N),
        ("dates", when),
        ("seconds", when.astype("datetime64[us]").astype(float) / 1e6),
    ):
        told.clear()
        events.with_columns(time_s=pl.Series(column)).write_parquet(folder / "events.parquet")
        if name == "text":
            with pytest.raises(InputError, match="column time_s holds String, expected seconds since 1970"):
                convert_foreign(folder, tmp_path / name, GAMMA, told.append)
            continue
        (own,) = convert_foreign(folder, tmp_path / name, GAMMA, told.append)
        assert told == []
        assert Dataset.open(own, GAMMA).files.times()[:2].tolist() == [1_619_870_400.25, 1_619_870_460.25]
    events.with_columns(time_s=np.arange(N) / 86_400 + 59_000).write_parquet(folder / "events.parquet")
    convert_foreign(folder, tmp_path / "mjd", GAMMA, told.append)
    assert "looks like modified Julian days" in told[0]


def test_lists_with_nuclei_become_a_set_with_own_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lists(tmp_path)
    file, own = tmp_path / "mine" / "events.parquet", tmp_path / "own"
    nuclei = [["p", "He", "oxygen", "Fe", "N"][k % 5] for k in range(N)]
    pl.read_parquet(file).with_columns(label=pl.Series(nuclei)).write_parquet(file)
    options = ConvertOptions(out=own, groups="proton,helium,oxygen,iron")
    assert list(convert_path(tmp_path / "mine", format_of(tmp_path / "mine"), options)) == [f"wrote {own / 'mine'}"]
    assert "nuclei count as the class with the nearest ln A (--groups names others): N" in caplog.text
    data = Dataset.open(own / "mine")
    assert data.task is not None
    assert data.task.classes == ("proton", "helium", "oxygen", "iron")
    assert data.labels is not None
    assert data.labels.tolist() == [[0, 1, 2, 3, 2][k % 5] for k in range(N)]
    assert problems(own / "mine") == []
    (finding,) = (one for one in folder_findings(own / "mine") if one.what == "classes")
    assert (finding.outcome, finding.state) == ("proton 12, helium 12, oxygen 24, iron 12", "ok")
    with pytest.raises(InputError, match="task gamma has no mass groups"):
        _ = ConvertOptions(out=own, task="gamma", groups="proton,iron").labels


def test_stations_are_known_by_their_id_whatever_their_order(tmp_path: Path) -> None:
    lists(tmp_path)
    file = tmp_path / "mine" / "stations.parquet"
    (one,) = convert_foreign(tmp_path / "mine", tmp_path / "one", None)
    pl.read_parquet(file).sample(fraction=1.0, shuffle=True, seed=2).write_parquet(file)
    (other,) = convert_foreign(tmp_path / "mine", tmp_path / "other", None)
    assert Dataset.open(one, labels=False).array == Dataset.open(other, labels=False).array
    assert (one / "matrices.npy").read_bytes() == (other / "matrices.npy").read_bytes()
