"""The one protocol of event formats: station lists of a small array, KCDC downloads, archives and dataset folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack.features.table import FeatureTable
from showerstack.report.doctor.folders import folder_findings
from showerstack.runtime.errors import InputError
from showerstack.showers.archives import kcdc
from showerstack.showers.archives import station_lists as lists
from showerstack.showers.archives.formats import DEPOSITS, UNITS, convert_foreign, format_of, formats
from showerstack.showers.archives.kcdc import TextTable, stations_by_cores
from showerstack.showers.archives.measured import measured_folders
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import StoredGrids
from showerstack.showers.schema import COMPOSITION, GAMMA, SCALAR_NAMES, TIMES_FILE, task_named
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.showers.known import write_archives

N_STATIONS = 144
AREAS, PLACES = ("electron_area_m2", "muon_area_m2"), ("x_m", "y_m")


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
    (folder / "array.toml").write_text('unit = "mev"\n')  # a card, if an empty one
    tables = {"stations": stations, "signals": signals, "events": events}
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    return tables


def test_station_lists_become_a_dataset_that_is_stacked(tmp_path: Path) -> None:
    for split, n in (("train", 800), ("test", 120)):
        tables = station_lists(tmp_path / "lists" / f"gamma_{split}", n, seed=n)
        (folder,) = convert_foreign(tmp_path / "lists" / f"gamma_{split}", tmp_path / "data", GAMMA)
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
        task="gamma", data=tmp_path / "data", run=tmp_path / "run", preset="quick", folds=2, workers=1,
        learners=("lightgbm",), settings={"lightgbm": {"rounds": 40}}, device="cpu",
    )  # fmt: skip
    predictions = stack(config).predictions
    assert predictions.scores[data.labels == 0].mean() > predictions.scores[data.labels == 1].mean() + 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("signals", lambda t: t.with_columns(station=pl.lit(5)), r"signals\.parquet: station 5 is not in stations"),
        ("signals", lambda t: pl.concat([t, t[:1]]), r"signals\.parquet: a station appears twice in one event"),
        ("events", lambda t: pl.concat([t, t[3:4]]), r"events\.parquet: event \d+ appears more than once"),
        ("events", lambda t: t.drop("event"), r"events\.parquet has no column event: found E, Ze"),
        (
            "stations",
            lambda t: t.drop("electron_area_m2", "muon_area_m2"),
            "has neither electron_area_m2 nor muon_area",
        ),
        ("stations", lambda t: t.with_columns(y_m=pl.lit(None, pl.Float64)), "row 0, column y_m holds nan, expected"),
        ("stations", lambda t: t.with_columns(electron_area_m2=-t["muon_area_m2"]), "electron_area_m2 holds -2, exp"),
        (
            "stations",
            lambda t: t.with_columns(pl.when(pl.col("id") == 103).then(0.0).otherwise(2.0).alias(c) for c in AREAS),
            r"row 3, station 103 has an area of 0 m2 \(1 such rows\): leave it out",
        ),
        (
            "stations",
            lambda t: t.with_columns(pl.when(pl.col("id") == 105).then(t[c][2]).otherwise(c).alias(c) for c in PLACES),
            r"rows 2 and 5, stations 102 and 105, stand on one place",
        ),
        (
            "signals",
            lambda t: t.drop("electron_mev", "muon_mev"),
            "no column electron_mev or muon_mev: found",
        ),
        (
            "signals",
            lambda t: t.rename({"electron_mev": "electron_vem"}).drop("muon_mev"),
            'say unit = "vem" in',
        ),
        (
            "signals",
            lambda t: t.with_columns(pl.col("event") + 0.5),
            r"column event holds .*\.5, expected a whole",
        ),
        ("signals", lambda t: t.with_columns(pl.col("event").cast(pl.String)), r"signals\.parquet has event '"),
        ("signals", lambda t: t.with_columns(pl.col("event") + 100), "no signal is of an event: .* has event 1"),
        ("signals", lambda t: t.with_columns(pl.col("event") == 8), "column event holds Boolean, expected whole"),
        (
            "events",
            lambda t: t.with_columns((pl.col("event") + 2**53).cast(pl.Float64)),
            r"event holds 90071992547\d+\.0",
        ),
        ("events", lambda t: t[:0], r"events\.parquet has no rows"),
        ("signals", lambda t: t.with_columns(electron_mev=pl.lit("1,5")), "column electron_mev holds String"),
        ("events", lambda t: t.with_columns(E=pl.lit(True)), "column E holds Boolean, expected numbers"),
        ("events", lambda t: t.with_columns(label=pl.col("label") == 1), "event 0 has label False"),
        ("events", lambda t: t.with_columns(label=pl.concat_list("label")), r"event 0 has label array"),
        ("events", lambda t: t.with_columns(label=pl.Series([0, 1, None, *[1] * 17])), "event 2 has label nan"),
        ("events", lambda t: t.with_columns(label=pl.Series([0.0, 0.7, *[1.0] * 18])), "event 1 has label 0.7"),
        ("events", lambda t: t.with_columns(label=pl.Series([257, *[1] * 19])), "event 0 has label 257"),
        (
            "events",
            lambda t: t.with_columns(label=pl.Series(["photon", *["hadron"] * 19])),
            "event 0 has label 'photon'",
        ),
    ],
)
def test_station_lists_that_cannot_be_used(tmp_path: Path, name: str, change, message: str) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    change(tables[name]).write_parquet(tmp_path / "lists" / f"{name}.parquet")
    with pytest.raises(InputError, match=message):
        convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    assert not (tmp_path / "data" / "lists").exists()


def test_lists_of_one_task_are_not_labels_of_another(tmp_path: Path) -> None:
    station_lists(tmp_path / "gamma_train", 20, seed=1)
    with pytest.raises(InputError, match=r"gamma_train is named after task gamma, --task is composition"):
        convert_foreign(tmp_path / "gamma_train", tmp_path / "data", COMPOSITION)
    assert not (tmp_path / "data").exists()
    (tmp_path / "gamma_train").rename(tmp_path / "mine_train")
    (folder,) = convert_foreign(tmp_path / "mine_train", tmp_path / "data", COMPOSITION)
    assert Dataset.open(folder, COMPOSITION).labels is not None


def test_raw_archives_are_converted_first(tmp_path: Path) -> None:
    (tmp_path / "004000_matrices.npz").touch()
    with pytest.raises(InputError, match=r"holds raw archives: convert them first .*--measured .* is written"):
        Dataset.open(tmp_path, labels=False)


def test_array_toml_gives_name_depth_and_unit(tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    (plain,) = convert_foreign(tmp_path / "lists", tmp_path / "plain", GAMMA)
    card = 'name = "mine"\ndepth_g_cm2 = 700\nunit = "mip"\n[response]\nmuon_deposit_mev = 5.0\n'
    (tmp_path / "lists" / "array.toml").write_text(card)
    signals = tables["signals"].with_columns(pl.col("electron_mev") / 9.5, pl.col("muon_mev") / 5.0)
    named = {"electron_mev": "electron_mip", "muon_mev": "muon_mip"}
    signals.rename(named).write_parquet(tmp_path / "lists" / "signals.parquet")
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    with_card, before = Dataset.open(folder, GAMMA), Dataset.open(plain, GAMMA)
    np.testing.assert_allclose(with_card.matrices[:], before.matrices[:], rtol=1e-5)
    assert with_card.array.name == "mine"
    assert with_card.array.depth_g_cm2 == 700.0
    assert with_card.array.response.muon_deposit_mev == 5.0
    assert before.array.depth_g_cm2 is None
    assert not with_card.array.is_like(before.array)
    for text, message in (
        ("stations = 99", f"of 99 stations, but {N_STATIONS}"),
        ("[fit]\ncore_limit_m = 20", "another array?"),
    ):
        (tmp_path / "lists" / "array.toml").write_text(text)
        with pytest.raises(InputError, match=message):
            convert_foreign(tmp_path / "lists", tmp_path / "other", GAMMA)


@pytest.mark.parametrize("dropped", [("E", "Ne", "Nmu"), ("Ze",), SCALAR_NAMES])
def test_quantities_that_nobody_reconstructed_are_absent(tmp_path: Path, dropped: tuple[str, ...]) -> None:
    for split, n in (("train", 400), ("test", 60)):
        lists = tmp_path / "lists" / f"gamma_{split}"
        tables = station_lists(lists, n, seed=n)
        tables["events"].drop(dropped).write_parquet(lists / "events.parquet")
        tables["stations"].drop("muon_area_m2").write_parquet(lists / "stations.parquet")
        tables["signals"].drop("muon_mev", "time_ns").write_parquet(lists / "signals.parquet")
        told: list[str] = []
        (folder,) = convert_foreign(lists, tmp_path / "data", GAMMA, told.append)
        assert any("fits take showers as vertical" in line for line in told) == ("Ze" in dropped)
    data = Dataset.open(folder, GAMMA)
    absent = {*dropped, *(("Az",) if "Ze" in dropped else ())}
    assert data.quantities == tuple(name for name in SCALAR_NAMES if name not in absent)
    assert data.usable.all()
    assert [np.isnan(data.scalars[:, k]).all() for k in range(5)] == [name in absent for name in SCALAR_NAMES]
    config = StackConfig(
        task="gamma", data=tmp_path / "data", run=tmp_path / "run", preset="quick", folds=2, workers=1,
        learners=("lightgbm", "quadratic_logit"), settings={"lightgbm": {"rounds": 10}}, device="cpu",
    )  # fmt: skip
    predictions = stack(config).predictions
    assert np.isfinite(predictions.scores).all()
    columns = FeatureTable.open(tmp_path / "data" / "gamma_test.features").columns
    assert not set(columns) & {*absent, "fit_lg_nmu", "mu_hits", ("e_minus_ne" if "E" in absent else "sec_zenith")}
    assert "fit_lg_ne" in columns


def test_labels_are_names_or_numbers_and_events_any_whole_numbers(tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    (plain,) = convert_foreign(tmp_path / "lists", tmp_path / "plain", GAMMA)
    words = pl.Series("label", [GAMMA.classes[k] for k in tables["events"]["label"]])
    events = tables["events"].with_columns(words, pl.col("event").cast(pl.UInt8))
    events.write_parquet(tmp_path / "lists" / "events.parquet")
    signals = tables["signals"].with_columns(pl.col("event").cast(pl.Float64), pl.col("station").cast(pl.Int16))
    lost = signals[:1].with_columns(event=pl.lit(999.0))
    quiet = pl.concat([signals.filter(pl.col("event") != events["event"][3]), lost])
    said: list[str] = []
    for name, some in (("other", signals), ("quiet", quiet)):
        some.write_parquet(tmp_path / "lists" / "signals.parquet")
        (other,) = convert_foreign(tmp_path / "lists", tmp_path / name, GAMMA, said.append)
        assert (other / "labels_gamma.npy").read_bytes() == (plain / "labels_gamma.npy").read_bytes()
        same = (other / "matrices.npy").read_bytes() == (plain / "matrices.npy").read_bytes()
        assert same == (name == "other")
    assert said == [
        "1 signals are of events that events.parquet does not have",
        "1 of 20 events have no signal in signals.parquet",
    ]


def test_a_deposit_that_is_not_known_is_not_zero_and_event_numbers_are_whole(tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    number = (pl.col("event").cast(pl.UInt64) + 2**63).alias("event")
    first = tables["signals"]["event"][0]
    row = tables["events"]["event"].to_list().index(first)
    lost = pl.when(pl.int_range(pl.len()) > 0).then(pl.col("muon_mev"))
    tables["events"].with_columns(number).write_parquet(tmp_path / "lists" / "events.parquet")
    tables["signals"].with_columns(number, muon_mev=lost).write_parquet(tmp_path / "lists" / "signals.parquet")
    said: list[str] = []
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA, said.append)
    assert said[0].startswith("1 of 20 rows cannot be used")
    assert np.flatnonzero(~Dataset.open(folder, GAMMA).usable).tolist() == [row]
    # Of a station without a muon detector nothing is missing.
    tables["stations"].with_columns(muon_area_m2=pl.lit(0.0)).write_parquet(tmp_path / "lists" / "stations.parquet")
    none = pl.lit(None, pl.Float32).alias("muon_mev")
    tables["signals"].with_columns(number, none).write_parquet(tmp_path / "lists" / "signals.parquet")
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "no_muons", GAMMA)
    assert Dataset.open(folder, GAMMA).usable.all()


@pytest.mark.parametrize(("name", "n_classes", "task"), [("composition_train", 5, "composition"), ("mine", 2, "gamma")])
def test_the_advice_of_doctor_can_be_followed(tmp_path: Path, name: str, n_classes: int, task: str) -> None:
    tables = station_lists(tmp_path / name, 20, seed=1)
    events = tables["events"].with_columns(label=pl.Series(np.arange(20) % n_classes))
    events.write_parquet(tmp_path / name / "events.parquet")
    (advice,) = lists.FORMAT.next_commands(tmp_path / name)
    assert f"--task {task} " in advice
    (folder,) = convert_foreign(tmp_path / name, tmp_path / "data", task_named(task))
    assert np.load(folder / f"labels_{task}.npy").tolist() == events["label"].to_list()


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        ("Ze", np.radians, "radians: expected degrees"),
        ("Az", np.radians, "radians: expected degrees, from +x towards +y"),
        ("Ne", lambda v: 10**v, "a linear quantity: expected its decimal logarithm"),
        ("E", lambda v: v - 9, "lg(E/GeV) or lg(E/TeV): expected lg(E/eV)"),
    ],
)
def test_other_units_are_noticed(tmp_path: Path, column: str, change: Any, words: str) -> None:
    tables = station_lists(tmp_path / "lists", 60, seed=1)
    said: list[str] = []
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "plain", GAMMA, said.append)
    assert said == []
    assert Dataset.open(folder, GAMMA).remarks == ()
    other = tables["events"].with_columns(pl.Series(column, change(tables["events"][column].to_numpy())))
    other.write_parquet(tmp_path / "lists" / "events.parquet")
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA, said.append)
    assert words in said[0]
    assert words in Dataset.open(folder, GAMMA).remarks[0]


QUANTITIES = ("Age", "Az", "E", "Ne", "Nmu", "Xc", "Yc", "Ze")
"""Of the array, in the alphabetical order of text files."""


def array_table(n: int) -> dict[str, np.ndarray]:
    """Return quantities of n events by their names."""
    k = np.arange(n)
    columns = (0.9 + k / 10, 10.0 * k, 15 + k / 10, 5.0 + 0 * k, 4.0 + 0 * k, 1.0 * k, -1.0 + 0 * k, 20.0 + 0 * k)
    return dict(zip(QUANTITIES, columns, strict=True))


GENERAL = {"Ev": np.arange(5) + 50, "Gt": 899391407 + np.arange(5), "R": np.full(5, 1000)}
TIMES = np.array([f"1998-07-02T14:56:4{k}" for k in range(5)], dtype="S19")
MAPPING = {"array": [0, -1, 1, 2, -1], "general": [0, 1, 2, -1, 4], "grande": [-1, 0, -1, -1, 1]}
"""Five events: three with the array, of which one lacks general data."""


def kcdc_text(folder: Path, *, capitals: bool = False) -> None:
    """Write a job of five events in the documented form: tables of different lengths, joined by ``row_mapping.txt``."""
    folder.mkdir()
    rows = np.column_stack(list(array_table(3).values()))
    head = "\t".join(name.upper() if capitals else name for name in QUANTITIES)
    (folder / "array.txt").write_text("\n".join([head, *("\t".join(f"{v:.5e}" for v in row) for row in rows)]) + "\n")
    for name, table in (("general", GENERAL), ("row_mapping", MAPPING)):
        pl.DataFrame(table).write_csv(folder / f"{name}.txt", separator="\t")


def kcdc_hdf5(folder: Path, *, capitals: bool = False) -> None:
    """Write the same as compound datasets, or with one dataset a column."""
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    with h5py.File(folder / "events.h5", "w") as file:
        general = GENERAL | {"Datetime": TIMES}
        for name, table in (("array", array_table(3)), ("general", general), ("row_mapping", MAPPING)):
            if capitals:
                for column, values in table.items():
                    file[f"{name}/{column.upper() if name == 'array' else column}"] = np.asarray(values)
                continue
            kinds = [(column, np.asarray(values).dtype) for column, values in table.items()]
            rows = np.empty(len(next(iter(table.values()))), kinds)
            for column, values in table.items():
                rows[column] = values
            file[name] = rows


def kcdc_root(folder: Path, *, capitals: bool = False) -> None:
    """Write the same as trees."""
    uproot = pytest.importorskip("uproot")
    folder.mkdir()
    with uproot.recreate(folder / "events.root") as file:
        for name, table in (("array", array_table(3)), ("general", GENERAL), ("row_mapping", MAPPING)):
            renamed = {
                (one.upper() if capitals and name == "array" else one): np.asarray(v) for one, v in table.items()
            }
            tree = file.mktree(name, {one: values.dtype for one, values in renamed.items()})
            tree.extend(renamed)


def kcdc_rntuple(folder: Path, *, capitals: bool = False) -> None:
    """Write the same as uproot does today where it is given a dictionary."""
    uproot = pytest.importorskip("uproot")
    folder.mkdir()
    with uproot.recreate(folder / "events.root") as file:
        for name, table in (("array", array_table(3)), ("general", GENERAL), ("row_mapping", MAPPING)):
            in_capitals = capitals and name == "array"
            file[name] = {(one.upper() if in_capitals else one): np.asarray(v) for one, v in table.items()}
    with uproot.open(folder / "events.root") as file:
        assert set(file.classnames().values()) == {"ROOT::RNTuple"}


def kcdc_hdf5_times(folder: Path, *, capitals: bool = False) -> None:
    """Write the same with the seconds as PyTables' Time32Col writes them, of HDF5's own type for times."""
    h5py = pytest.importorskip("h5py")
    kcdc_hdf5(folder)
    with h5py.File(folder / "events.h5", "a") as file:
        del file["general"]
        kinds = [
            ("Ev", "<i8"),
            ("Gt", ">i4" if capitals else "<i4"),
            ("tags", "<i8"),
            ("R", "<i8"),
            ("Datetime", "S19"),
        ]
        rows = np.zeros(5, kinds)
        for name, values in (GENERAL | {"Datetime": TIMES}).items():
            rows[name] = values
        times = {"Gt": h5py.h5t.UNIX_D32BE if capitals else h5py.h5t.UNIX_D32LE, "t": h5py.h5t.UNIX_D64LE}
        stored = h5py.h5t.create(h5py.h5t.COMPOUND, rows.dtype.itemsize)
        for name, (kind, offset) in rows.dtype.fields.items():  # type: ignore[union-attr]
            stored.insert(name.encode(), offset, times.get(name, h5py.h5t.py_create(kind)))
        made = h5py.h5d.create(file.id, b"general", stored, h5py.h5s.create_simple(rows.shape))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, rows, stored)
        with pytest.raises(TypeError, match="TypeTimeID"):
            file["general"].dtype  # noqa: B018


WRITERS = {
    "text": kcdc_text,
    "hdf5": kcdc_hdf5,
    "hdf5 with times": kcdc_hdf5_times,
    "root": kcdc_root,
    "rntuple": kcdc_rntuple,
}


@pytest.mark.parametrize("capitals", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_tables_of_a_kcdc_download_are_joined_by_their_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, capitals: bool
) -> None:
    WRITERS[kind](tmp_path / "job", capitals=capitals)
    message: list[str] = []
    monkeypatch.setattr(kcdc, "TABLE_EVENTS", 2)  # the row that a table lacks is alone in the last chunk
    (file,) = convert_foreign(tmp_path / "job", tmp_path / "out", None, message.append)
    assert message == ["2 of 5 events have no array data and are left out"]
    table = pl.read_parquet(file)
    np.testing.assert_allclose(table["E"], [15.0, 15.1, 15.2])
    assert table["Ev"].fill_nan(None).to_list() == [50, 52, None]
    assert table["Gt"].fill_nan(None).to_list() == [899391407, 899391409, None]
    if kind.startswith("hdf5"):
        assert table["Datetime"].to_list() == ["1998-07-02T14:56:40", "1998-07-02T14:56:42", None]


def test_a_table_of_its_own_name_may_lack_columns(tmp_path: Path) -> None:
    kcdc_text(tmp_path / "job")
    pl.DataFrame({"Gt": GENERAL["Gt"]}).write_csv(tmp_path / "job" / "general.txt", separator="\t")
    (file,) = convert_foreign(tmp_path / "job", tmp_path / "out", None)
    table = pl.read_parquet(file)
    assert table["Gt"].fill_nan(None).to_list() == [899391407, 899391409, None]
    assert "Ev" not in table.columns
    pl.DataFrame({"general": MAPPING["general"]}).write_csv(tmp_path / "job" / "row_mapping.txt", separator="\t")
    with pytest.raises(InputError, match=r"row_mapping\.txt has no column 'array'"):
        convert_foreign(tmp_path / "job", tmp_path / "again", None)


def test_a_row_that_a_table_lacks_is_refused(tmp_path: Path) -> None:
    kcdc_text(tmp_path / "job")
    for row in (3, 7):
        (tmp_path / "job" / "row_mapping.txt").write_text(f"array\tgeneral\n{row}\t0\n")
        with pytest.raises(
            InputError, match=rf"array\.txt: table array has 3 rows, but row_mapping beside it asks for row {row}"
        ):
            convert_foreign(tmp_path / "job", tmp_path / "out", None)
    (tmp_path / "job" / "row_mapping.txt").write_text("array\tgeneral\nx\t0\n")
    with pytest.raises(InputError, match=r"array\.txt: row_mapping, column array holds other things"):
        convert_foreign(tmp_path / "job", tmp_path / "out", None)


def test_tables_without_a_mapping_are_never_joined_by_position(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    kcdc_hdf5(tmp_path / "job")
    with h5py.File(tmp_path / "job" / "events.h5", "a") as file:
        del file["row_mapping"]
    message: list[str] = []
    (table,) = convert_foreign(tmp_path / "job", tmp_path / "out", None, message.append)
    assert message == ["events.h5 has no row_mapping: general cannot be joined to the events, left out"]
    assert sorted(pl.read_parquet(table).columns) == sorted(QUANTITIES)


def test_files_that_are_no_kcdc_tables_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    for name in ("job", "damaged"):
        (tmp_path / name).mkdir()
    with h5py.File(tmp_path / "job" / "events.h5", "w") as file:
        file["other/Energy"] = np.arange(3.0)
    (tmp_path / "damaged" / "events.root").write_bytes(b"no tree")
    (tmp_path / "damaged.h5").write_bytes(b"no tree")
    for path, why in (
        ("job", r"no table with the columns E, .*no such file was there.*found other: Energy"),
        ("damaged", r"events\.root cannot be read as ROOT"),
        ("damaged.h5", r"damaged\.h5 cannot be read as HDF5"),
    ):
        with pytest.raises(InputError, match=why) as error:
            convert_foreign(tmp_path / path, tmp_path / "out", None)
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"events\.h5 needs h5py: pip install 'showerstack\[files\]'"):
        convert_foreign(tmp_path / "job", tmp_path / "out", None)


def seen_by_stations(n: int, order: np.ndarray) -> dict[str, np.ndarray]:
    """Return deposits (n, 252) MeV of showers on the array, and their cores; number k stands in cell ``order[k]``."""
    rng = np.random.default_rng(3)
    core = rng.uniform(-91, 91, (2, n))
    r = np.hypot(core[0][:, None] - KASCADE.x_m.ravel()[order], core[1][:, None] - KASCADE.y_m.ravel()[order])
    mean = 10 ** rng.uniform(1, 3, (n, 1)) * (1 + r / 20) ** -2.5
    return {"EDeposit": 8.0 * rng.poisson(mean), "MDeposit": rng.poisson(mean / 20) * 7.0, "Xc": core[0], "Yc": core[1]}


@pytest.fixture(scope="module")
def numbered() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A shuffled numbering of the stations, and showers as they saw them."""
    order = np.random.default_rng(7).permutation(np.flatnonzero(KASCADE.has_station.ravel()))
    return order, seen_by_stations(12_000, order)


def test_which_station_is_which_follows_from_the_cores(numbered: tuple[np.ndarray, dict[str, np.ndarray]]) -> None:
    order, events = numbered
    np.testing.assert_array_equal(stations_by_cores([events], Path("events.h5")), order)
    few = {name: values[:300] for name, values in events.items()}
    with pytest.raises(InputError, match=r"events\.h5: 300 showers do not tell which station is which \(\d+ of 252"):
        stations_by_cores([few], Path("events.h5"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hdf5", "root", "rntuple"])
def test_signals_of_a_kcdc_download_become_grids(
    tmp_path: Path, numbered: tuple[np.ndarray, dict[str, np.ndarray]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("h5py" if kind == "hdf5" else "uproot")
    order, events = numbered
    n = len(events["Xc"])
    monkeypatch.setattr(kcdc, "GRID_EVENTS", 300)  # too few to tell the stations: all parts together do
    quantities = {name: np.full(n, 5.0) for name in QUANTITIES} | {"Ze": np.linspace(1, 29, n), "E": np.full(n, 15.2)}
    general = {"Gt": 899391407 + np.arange(n), "Mt": np.arange(n) * 1000}
    rows = {"array": np.arange(n), "general": np.arange(n)}
    tables = {"Array": quantities | events, "general": general, "row_mapping": rows}
    if kind == "hdf5":
        with library.File(tmp_path / "small.h5", "w") as file:
            for group, table in tables.items():
                for name, values in table.items():
                    file[f"{group}/{name}"] = values
    else:
        with library.recreate(tmp_path / "small.root") as file:
            for group, table in tables.items():
                kinds = {name: (values.dtype, values.shape[1:]) if values.ndim > 1 else values.dtype
                         for name, values in table.items()}  # fmt: skip
                if kind == "root":
                    file.mktree(group, kinds).extend(table)
                else:
                    file[group] = table
    (folder,) = convert_foreign(tmp_path / f"small.{'h5' if kind == 'hdf5' else 'root'}", tmp_path / "out", None)
    data = Dataset.open(folder, labels=False)
    grids = np.asarray(data.matrices).reshape(n, -1, 2)
    np.testing.assert_array_equal(grids[:, order, 0], events["EDeposit"].astype(np.float32))
    np.testing.assert_array_equal(grids[:, order, 1], events["MDeposit"].astype(np.float32))
    np.testing.assert_allclose(data.scalars[:, 1], quantities["Ze"], rtol=1e-6)
    assert data.age is not None
    assert data.evaluation_cuts.name == "matched", "as of measured runs, which runs of protocol 2026 predict"
    np.testing.assert_array_equal(np.load(folder / "core_x_m.npy"), events["Xc"].astype(np.float32))
    # Seconds and nanoseconds: the fraction of float64 seconds is good to some 0.1 us.
    fraction = np.load(folder / TIMES_FILE) - general["Gt"]
    np.testing.assert_allclose(fraction, np.arange(n) * 1e-6, atol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["by station", "by number"])
def test_azimuths_of_a_kcdc_download_are_turned_by_its_arrival_times(
    tmp_path: Path, numbered: tuple[np.ndarray, dict[str, np.ndarray]], form: str
) -> None:
    """Clockwise from a north at 105 degrees from +x, as KCDC is believed to count; fronts are planes at light speed."""
    h5py = pytest.importorskip("h5py")
    order, events = numbered
    rng, n = np.random.default_rng(8), len(events["Xc"])
    origin, zenith = rng.uniform(0, 360, n), rng.uniform(12, 40, n)
    x, y = KASCADE.x_m.ravel()[order], KASCADE.y_m.ravel()[order]
    along = x * np.cos(np.radians(origin))[:, None] + y * np.sin(np.radians(origin))[:, None]
    arrival = 800 - along * np.sin(np.radians(zenith))[:, None] / 0.299792458 + rng.normal(0, 5, along.shape)
    quantities = {name: np.full(n, 5.0) for name in QUANTITIES} | {"E": np.full(n, 15.2), "Ze": zenith}
    table = quantities | events | {"Az": (105.0 - origin) % 360}
    with h5py.File(tmp_path / "job.h5", "w") as file:
        for name, values in table.items():
            file[f"array/{name}"] = values
        if form == "by station":
            file["array/Arrival"] = arrival
        else:
            for name, kind in (("Arrival", "f8"), ("ArrivalS", "i4")):
                stored = file.create_dataset(f"array/{name}", n, h5py.vlen_dtype(kind))
                for row in range(n):
                    hit = np.flatnonzero(events["EDeposit"][row] > 0)
                    stored[row] = arrival[row, hit] if name == "Arrival" else hit + 1
    said: list[str] = []
    (folder,) = convert_foreign(tmp_path / "job.h5", tmp_path / "out", None, said.append)
    (line,) = [one for one in said if "Az" in one]
    assert line.startswith("job: Az counts clockwise, 105.")
    assert line.endswith("turned, it counts from +x towards +y, of the origin")
    apart = (np.load(folder / "features.npy")[:, 2] - origin + 180) % 360 - 180
    told = Dataset.open(folder, labels=False).source["azimuth"]
    assert np.abs(apart).max() < 5 * told["error_deg"]
    assert (told["clockwise"], told["of_north_deg"]) == (False, 105.0)
    assert told["turned_from"]["clockwise"]


def test_azimuths_without_arrival_times_are_kept_and_told(
    tmp_path: Path, numbered: tuple[np.ndarray, dict[str, np.ndarray]]
) -> None:
    h5py = pytest.importorskip("h5py")
    n = len(numbered[1]["Xc"])
    quantities = {name: np.full(n, 5.0) for name in QUANTITIES} | {"E": np.full(n, 15.2), "Az": np.linspace(1, 359, n)}
    with h5py.File(tmp_path / "job.h5", "w") as file:
        for name, values in (quantities | numbered[1]).items():
            file[f"array/{name}"] = values
    said: list[str] = []
    (folder,) = convert_foreign(tmp_path / "job.h5", tmp_path / "out", None, said.append)
    np.testing.assert_allclose(np.load(folder / "features.npy")[:, 2], quantities["Az"], rtol=1e-6)
    assert any(line.startswith("job: nothing shows how Az is counted") for line in said)
    assert "azimuth" not in Dataset.open(folder, labels=False).source


def test_quantities_are_read_without_the_grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grids of a full set are gigabytes; who compares columns does not wait for them."""
    station_lists(tmp_path / "lists", 30, seed=1)
    convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    measured_archive(tmp_path / "measured")
    for path, missing in ((tmp_path / "data", StoredGrids), (tmp_path / "measured", None)):
        (reader,) = format_of(path).open(path)  # type: ignore[union-attr]
        if missing:
            monkeypatch.setattr(missing, "__getitem__", None)
        else:
            (path / "004000_matrices.npz").unlink()
        (chunk,) = reader.chunks(["E", "Ze"])
        assert len(chunk["Ze"]) == reader.n_events


def test_large_lists_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    station_lists(tmp_path / "lists", 30, seed=1)
    (reader,) = lists.FORMAT.open(tmp_path / "lists")
    (whole,) = reader.chunks([DEPOSITS, "E"])
    monkeypatch.setattr(lists, "GRID_EVENTS", 7)
    parts = list(reader.chunks([DEPOSITS, "E"]))
    assert [len(part["E"]) for part in parts] == [7, 7, 7, 7, 2]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


@pytest.mark.parametrize("kind", ["numbers", "text", "floats"])
def test_showers_that_are_used_several_times_are_groups(kind: str, tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "gamma_train", 200, seed=1)
    number = np.arange(200) // 5 * 3
    group = {"numbers": number, "text": [f"DAT{k:06d}" for k in number], "floats": number.astype(float)}[kind]
    tables["events"].with_columns(group=pl.Series(group)).write_parquet(tmp_path / "gamma_train" / "events.parquet")
    (folder,) = convert_foreign(tmp_path / "gamma_train", tmp_path / "data", GAMMA)
    groups = Dataset.open(folder, GAMMA).groups
    np.testing.assert_array_equal(groups, number // 3 + 1)


@pytest.mark.parametrize("wrong", [[None], [1.5]])
def test_a_group_is_a_whole_number_or_text(wrong: list[Any], tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "gamma_train", 60, seed=1)
    group = pl.Series([*range(59), *wrong], strict=False)
    tables["events"].with_columns(group=group).write_parquet(tmp_path / "gamma_train" / "events.parquet")
    with pytest.raises(InputError, match=r"events\.parquet: row 59, column group holds (None|1\.5), expected"):
        convert_foreign(tmp_path / "gamma_train", tmp_path / "data", GAMMA)


@pytest.mark.parametrize(
    ("unit", "factor", "origin"),
    [("cm", 100.0, 0.0), ("mm", 1e3, 0.0), ("km", 1e-3, 0.0), ("degrees", 1 / 1.11e5, 49.1), ("radians", 1.57e-7, 0.8)],
)
def test_places_in_other_units_are_remarked_by_all_that_read_them(
    unit: str, factor: float, origin: float, tmp_path: Path
) -> None:
    tables = station_lists(tmp_path / "gamma_train", 100, seed=1)
    there = [(origin + factor * pl.col(axis)).alias(axis) for axis in ("x_m", "y_m")]
    tables["stations"].with_columns(there).write_parquet(tmp_path / "gamma_train" / "stations.parquet")
    said: list[str] = []
    (folder,) = convert_foreign(tmp_path / "gamma_train", tmp_path / "data", GAMMA, said.append)
    line = f"are places of stations in {unit}? Then these are 4"
    assert [line in one for one in said] == [True]
    assert [line in one for one in Dataset.open(folder).remarks] == [True]
    for place in (tmp_path / "gamma_train", folder):
        assert any(line in finding.outcome for finding in folder_findings(place))


def test_areas_in_cm2_are_remarked_and_metres_are_not(tmp_path: Path) -> None:
    tables, said = station_lists(tmp_path / "gamma_train", 100, seed=1), list[str]()
    convert_foreign(tmp_path / "gamma_train", tmp_path / "m", GAMMA, said.append)
    assert said == []
    wrong = tables["stations"].with_columns(pl.col("electron_area_m2") * 1e4)
    wrong.write_parquet(tmp_path / "gamma_train" / "stations.parquet")
    convert_foreign(tmp_path / "gamma_train", tmp_path / "cm2", GAMMA, said.append)
    assert "are areas in cm2? Then these are 2 m2" in said[0]


def test_the_pitch_is_the_usual_distance_to_the_nearest_station() -> None:
    x, y = (plane.ravel() for plane in np.meshgrid(np.arange(3) * 30.0 + 400.0, np.arange(4) * 20.0 - 900.0))
    stations = pl.DataFrame({"id": np.arange(12), "x_m": x, "y_m": y, "electron_area_m2": np.ones(12)})
    array, _ = lists.array_of_stations("grid", stations)
    assert array.pitch_m == pytest.approx(20.0)
    # Stations along one axis alone, either of them.
    for axis, other in (("x_m", "y_m"), ("y_m", "x_m")):
        row = stations.head(3).with_columns(pl.Series(axis, [0.0, 5.0, 10.0]), pl.lit(77.0).alias(other))
        assert lists.array_of_stations("row", row)[0].pitch_m == pytest.approx(5.0)


def test_quantities_of_another_array_keep_its_own_origin(tmp_path: Path) -> None:
    tables = station_lists(tmp_path / "lists", 20, seed=1)
    more = tables["events"].with_columns(Xc=pl.lit(500.0), Yc=pl.lit(0.0), Age=pl.lit(1.0))
    more.write_parquet(tmp_path / "lists" / "events.parquet")
    (folder,) = convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    assert not (folder / "core_x_m.npy").exists(), "stations are counted from their mean, these cores are not"
    data = Dataset.open(folder, GAMMA)
    assert (data.age, data.evaluation_cuts.name) == (None, "none"), "of no protocol of KASCADE"


def test_simulations_of_kcdc_are_known_by_their_truth(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    kcdc_hdf5(tmp_path / "job", capitals=True)
    assert not kcdc.FORMAT.open(tmp_path / "job")[0].is_simulated
    with h5py.File(tmp_path / "job" / "events.h5", "a") as file:
        file["true/TrEP"] = np.arange(3.0)
    assert kcdc.FORMAT.open(tmp_path / "job")[0].is_simulated


OTHERS = ("HiSPARC event summary data", "Pierre Auger open data", "grids in one .npz", "CORSIKA particle files")
"""Formats that have tests of their own."""


def test_unknown_folders_are_told_what_is_known(tmp_path: Path) -> None:
    names = [one.name for one in formats()]
    assert names == ["dataset folders", *OTHERS[:2], "a KCDC download", "raw archives of measured runs",
                     "raw archives of simulated modes", "station lists", *OTHERS[2:]]  # fmt: skip
    with pytest.raises(
        InputError, match=r"is of no known format: .*a KCDC download: events\.h5.*station lists: stations"
    ):
        convert_foreign(tmp_path, tmp_path / "out", None)


def test_every_format_gives_its_columns_alike(tmp_path: Path) -> None:
    """What a reader yields has the columns and units that it names, in order, as many as it says."""
    station_lists(tmp_path / "lists", 40, seed=2)
    kcdc_text(tmp_path / "job")
    convert_foreign(tmp_path / "lists", tmp_path / "data", GAMMA)
    write_archives(tmp_path, "qgs_spectra", 60, gamma=False)
    measured_archive(tmp_path / "measured")
    paths = {"lists": "station lists", "job": "a KCDC download", "data": "dataset folders",
             "measured": "raw archives of measured runs", ".": "raw archives of simulated modes"}  # fmt: skip
    assert {*paths.values(), *OTHERS} == {one.name for one in formats()}
    for name, wanted in paths.items():
        path = tmp_path / name
        one = format_of(path)
        assert one is not None
        assert one.name == wanted
        assert all(command.startswith("python cli.py ") for command in one.next_commands(path))
        for reader in one.open(path):
            names = list(reader.units)
            chunks = list(reader.chunks(names))
            assert sum(len(chunk[names[0]]) for chunk in chunks) == reader.n_events > 0
            assert all(list(chunk) == names for chunk in chunks), "no other columns than those asked for"
            for chunk in chunks:
                assert {len(values) for values in chunk.values()} == {len(chunk[names[0]])}
                if DEPOSITS in names:
                    assert chunk[DEPOSITS].shape[1:] == reader.array.grid_shape
            assert reader.units["Ze"] == UNITS["Ze"] == "deg"


def measured_archive(folder: Path) -> None:
    """Write a run of five events."""
    folder.mkdir()
    np.savez(folder / "004000_features.npz", features=np.tile([15.0, 1, 2, 20, 100, 5, 4, 1], (5, 1)))
    np.savez(folder / "004000_matrices.npz", matrices=np.ones((5, 16, 16, 3), np.float32))


@pytest.mark.parametrize("name", ["array", "general", "row_mapping"])
def test_a_blank_line_shifts_no_table(tmp_path: Path, name: str) -> None:
    kcdc_text(tmp_path / "job")
    plain = pl.read_parquet(convert_foreign(tmp_path / "job", tmp_path / "plain", None)[0])
    file = tmp_path / "job" / f"{name}.txt"
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, rows[0], "", *rows[1:], "", ""]))
    assert pl.read_parquet(convert_foreign(tmp_path / "job", tmp_path / "blank", None)[0]).equals(plain)
    file.write_text("\n".join([head, rows[0] + "\t7", *rows[1:]]))
    with pytest.raises(InputError, match=rf"{name}\.txt: line 2 has \d+ fields, the header \d+"):
        convert_foreign(tmp_path / "job", tmp_path / "surplus", None)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("array", ("1.51000e+01", "n/a"), "row 1, column E holds 'n/a', expected a number"),
        ("array", ("1.51000e+01", "15,1"), "row 1, column E holds '15,1', expected a number"),
        ("array", ("Age\t", "e\t"), "columns 'e' and 'E' differ in case alone"),
        ("array", ("Age\t", "E\t"), "has 2 columns 'E': rename them"),
        ("row_mapping", ("\n1\t", "\n0.5\t"), "column array, row . holds 0.5, expected a row number, or -1"),
        ("row_mapping", ("\n1\t", "\ninf\t"), "column array, row . holds inf"),
        ("row_mapping", ("\n1\t", "\n0\t"), "column array gives row 0 to several events"),
    ],
)
def test_kcdc_text_that_would_shift_or_cast_is_refused(
    tmp_path: Path, name: str, change: tuple[str, str], message: str
) -> None:
    kcdc_text(tmp_path / "job")
    file = tmp_path / "job" / f"{name}.txt"
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(InputError, match=message):
        convert_foreign(tmp_path / "job", tmp_path / "out", None)


def test_an_empty_row_and_large_numbers_beside_gaps_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "general.txt"
    for row, message in (("\t", "row 1 is empty, and would shift"), (f"{2**53 + 1}\t", "row 1, column R holds")):
        file.write_text(f"R\tP\n1\t2\n{row}\n\t3\n")
        with pytest.raises(InputError, match=message):
            TextTable.open(file)


def test_impossible_quantities_of_a_table_are_told(tmp_path: Path) -> None:
    kcdc_text(tmp_path / "job")
    file = tmp_path / "job" / "array.txt"
    file.write_text(file.read_text().replace("1.51000e+01", "-999"))
    said: list[str] = []
    convert_foreign(tmp_path / "job", tmp_path / "out", None, said.append)
    assert said[-1] == "1 of 3 rows hold what no shower has, the first: job: row 1, column E holds -999"


def test_types_are_those_of_all_rows(tmp_path: Path) -> None:
    lines = ["R\tP\tEv", *(f"{k}\t{1000 if k < 150 else 1000.5}\t{2**60 + k}" for k in range(300))]
    (tmp_path / "general.txt").write_text("\n".join(lines))
    result = TextTable.open(tmp_path / "general.txt").read(["P", "Ev"], 0, 300)
    assert result["P"][[0, 299]].tolist() == [1000.0, 1000.5]
    assert result["Ev"].tolist() == [2**60 + k for k in range(300)]


def test_a_text_column_is_of_one_type_whichever_rows_are_read(tmp_path: Path) -> None:
    lines = ["R\tEv\tGt", *(f"{k}\t{k}\t{'' if k == 7 else 2 * k}" for k in range(10))]
    (tmp_path / "general.txt").write_text("\n".join(lines))
    table = TextTable.open(tmp_path / "general.txt")
    first, second = (table.read(["R", "Gt"], *rows) for rows in ((0, 5), (5, 10)))
    assert {name: values.dtype for name, values in first.items()} == {"R": np.int64, "Gt": np.float64}
    assert {name: values.dtype for name, values in second.items()} == {"R": np.int64, "Gt": np.float64}
    assert np.isnan(second["Gt"][2])


def test_what_keeps_a_folder_from_being_lists_is_said(tmp_path: Path) -> None:
    for name, files, said in (
        ("one", ("stations.parquet", "events.parquet"), "has stations.parquet, but no signals.parquet: lists"),
        ("text", ("stations.csv", "signals.csv", "events.csv"), "has stations.csv, but lists are read as Parquet"),
        ("above", ("gamma_test/stations.parquet",), "did you mean .*above/gamma_test"),
        ("other", ("a.txt",), "is of no known format: HiSPARC"),
    ):
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
        with pytest.raises(InputError, match=said):
            convert_foreign(tmp_path / name, tmp_path / "out", GAMMA)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "004000_matrices.npz").touch()
    with pytest.raises(InputError, match="raw holds raw archives: convert them first"):
        measured_folders(tmp_path / "raw")
