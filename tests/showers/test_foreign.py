"""Others' files: station lists of a small array through features and stack, text files of a KCDC job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from runtime.errors import InputError
from showers.archives.foreign import convert_foreign, formats
from showers.dataset import Dataset
from showers.schema import GAMMA, SCALAR_NAMES
from stacking.run.config import StackConfig
from stacking.train import stack

N_STATIONS = 144
"""As many as the other arrays of the tests have: kernels are compiled for a number of cells."""


def station_lists(folder: Path, n: int, seed: int) -> dict[str, pl.DataFrame]:
    """Write events of stations on a circle and inside it; hadrons have more muons."""
    rng = np.random.default_rng(seed)
    angle = np.arange(N_STATIONS) * 2 * np.pi / N_STATIONS
    radius = np.where(np.arange(N_STATIONS) % 2, 60.0, 25.0)
    stations = pl.DataFrame(
        {"id": np.arange(100, 100 + N_STATIONS), "x_m": radius * np.cos(angle) + 500, "y_m": radius * np.sin(angle),
         "electron_area_m2": np.full(N_STATIONS, 2.0), "muon_area_m2": np.full(N_STATIONS, 2.0)}
    )  # fmt: skip
    label = np.arange(n) % 2
    events = pl.DataFrame(
        {"event": rng.permutation(n) + 7, "E": rng.uniform(15, 16, n), "Ze": rng.uniform(1, 29, n),
         "Az": rng.uniform(0, 360, n), "Ne": rng.uniform(5, 6, n), "Nmu": 3.5 + 0.8 * label + rng.normal(0, 0.3, n),
         "label": label}
    )  # fmt: skip
    hit = rng.random((n, N_STATIONS)) < 0.8
    event, station = np.nonzero(hit)
    signals = pl.DataFrame(
        {"event": events["event"].to_numpy()[event], "station": station + 100,
         "electron_mev": rng.exponential(100.0, len(event)).astype(np.float32),
         "muon_mev": (rng.exponential(5.0 + 20 * label[event])).astype(np.float32),
         "time_ns": rng.uniform(0, 400, len(event))}
    ).sample(fraction=1.0, shuffle=True, seed=1)  # fmt: skip
    folder.mkdir(parents=True)
    tables = {"stations": stations, "signals": signals, "events": events}
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    return tables


def test_station_lists_become_a_dataset_that_is_stacked(tmp_path: Path) -> None:
    for split, n in (("train", 800), ("test", 120)):
        tables = station_lists(tmp_path / "lists" / f"gamma_{split}", n, seed=n)
        folder = convert_foreign(tmp_path / "lists" / f"gamma_{split}", tmp_path / "data", GAMMA)
    data = Dataset.open(folder, GAMMA)
    assert data.array.has_station.sum() == N_STATIONS
    place = {100 + k: np.unravel_index(k, data.array.x_m.shape) for k in range(N_STATIONS)}
    expected = np.zeros((120, *data.array.grid_shape), np.float32)
    row_of = {event: row for row, event in enumerate(tables["events"]["event"].to_list())}
    for event, station, electron, muon, _ in tables["signals"].iter_rows():
        expected[(row_of[event], *place[station])] = electron, muon
    np.testing.assert_array_equal(data.matrices[:], expected)
    np.testing.assert_allclose(data.scalars, tables["events"].select(SCALAR_NAMES).to_numpy(), rtol=1e-6)
    assert data.labels.tolist() == tables["events"]["label"].to_list()
    assert data.array.x_m[place[100]] == pytest.approx(tables["stations"]["x_m"][0] - tables["stations"]["x_m"].mean())
    config = StackConfig(
        task="gamma", data=tmp_path / "data", run=tmp_path / "run", preset="quick", folds=2, fast=False, workers=1,
        learners=("lightgbm",), device="cpu",
    )  # fmt: skip
    predictions = stack(config).predictions
    assert predictions.scores[data.labels == 0].mean() > predictions.scores[data.labels == 1].mean() + 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("signals", lambda t: t.with_columns(station=pl.lit(5)), r"signals\.parquet: station 5 is not in stations"),
        ("signals", lambda t: pl.concat([t, t[:1]]), r"signals\.parquet: a station appears twice in one event"),
        ("events", lambda t: pl.concat([t, t[3:4]]), r"events\.parquet: event \d+ appears more than once"),
        ("events", lambda t: t.drop("Ne"), r"events\.parquet has no column Ne: found event, E"),
    ],
)
def test_station_lists_that_cannot_be_used(tmp_path: Path, name: str, change, message: str) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    change(tables[name]).write_parquet(tmp_path / "lists" / f"{name}.parquet")
    with pytest.raises(InputError, match=message):
        convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    assert not (tmp_path / "data" / "lists").exists()


def kcdc_job(folder: Path, *, capitals: bool = False) -> None:
    """Write a job of five events in the documented form: tables of different lengths, joined by ``row_mapping.txt``."""
    names = ["Age", "Az", "E", "Ne", "Nmu", "Xc", "Yc", "Ze"]
    rows = [[0.9 + k / 10, 10.0 * k, 15 + k / 10, 5.0, 4.0, float(k), -1.0, 20.0] for k in range(3)]
    folder.mkdir()
    head = "\t".join(name.upper() if capitals else name for name in names)
    (folder / "array.txt").write_text("\n".join([head, *("\t".join(f"{v:.5e}" for v in row) for row in rows)]) + "\n")
    (folder / "general.txt").write_text("Ev\tGt\tR\n" + "".join(f"{k + 50}\t{899391407 + k}\t1000\n" for k in range(5)))
    pairs = ("0\t0\t-1", "-1\t1\t0", "1\t2\t-1", "2\t-1\t-1", "-1\t4\t1")
    (folder / "row_mapping.txt").write_text("\n".join(["array\tgeneral\tgrande", *pairs]) + "\n")


@pytest.mark.parametrize("capitals", [False, True])
def test_text_files_of_a_kcdc_job_are_joined_by_their_mapping(tmp_path: Path, capitals: bool) -> None:
    kcdc_job(tmp_path / "job", capitals=capitals)
    message: list[str] = []
    table = pl.read_parquet(convert_foreign(tmp_path / "job", tmp_path / "out", None, message.append))
    assert message == ["2 of 5 events have no array data and are left out"]
    np.testing.assert_allclose(table["E"], [15.0, 15.1, 15.2])
    assert table["Ev"].to_list() == [50, 52, None]
    assert table["Gt"].to_list() == [899391407, 899391409, None]
    (tmp_path / "job" / "row_mapping.txt").write_text("array\tgeneral\n7\t0\n")
    with pytest.raises(InputError, match=r"array\.txt has 3 rows, but row_mapping\.txt beside it asks for row 7"):
        convert_foreign(tmp_path / "job", tmp_path / "out", None)


def test_unknown_folders_are_told_what_is_known(tmp_path: Path) -> None:
    assert [one.name for one in formats()] == ["KCDC text", "station lists"]
    with pytest.raises(InputError, match=r"is of no known format: KCDC text: array\.txt.*station lists: stations\.p"):
        convert_foreign(tmp_path, tmp_path / "out", None)
