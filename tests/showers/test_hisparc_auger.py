"""HiSPARC's HDF5 tables, whose time columns h5py does not know, and the CSV of the Pierre Auger open data."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.archives import auger, hisparc
from showerstack.showers.archives.formats import convert_foreign, format_of
from tests.showers.packages import archive_of

h5py = pytest.importorskip("h5py")
from h5py import h5d, h5s, h5t  # noqa: E402

COLUMNS = {
    "event_id": "<u4", "timestamp": "<i4", "nanoseconds": "<u4", "ext_timestamp": "<u8", "pulseheights": ("<i2", (4,)),
    "integrals": ("<i4", (4,)), **{f"{kind}{k}": "<f4" for kind in "nt" for k in range(1, 5)}, "t_trigger": "<f4",
}  # fmt: skip


def summary(n: int = 6) -> np.ndarray:
    """Return events of a station with plates 1 and 2; in every third event plate 2 is silent."""
    rows = np.zeros(n, [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in COLUMNS.items()])
    k = np.arange(n)
    rows["event_id"], rows["timestamp"], rows["nanoseconds"] = k, 1_325_376_015 + k, 7 * k
    rows["ext_timestamp"] = rows["timestamp"].astype(np.uint64) * 10**9 + rows["nanoseconds"]
    rows["n1"], rows["t1"] = 1.5 + k, 10.0 + k
    rows["n2"], rows["t2"] = np.where(k % 3, 0.7, 0.0), np.where(k % 3, 12.5, -999.0)
    for plate in (3, 4):
        rows[f"n{plate}"] = rows[f"t{plate}"] = -1.0
    return rows


def write_tables(file: Path, tables: dict[str, np.ndarray]) -> Path:
    """Write tables as PyTables does, the column ``timestamp`` of HDF5's own type of times."""
    with h5py.File(file, "w") as opened:
        for place, rows in tables.items():
            group, _, name = place.rpartition("/")
            kind = h5t.create(h5t.COMPOUND, rows.dtype.itemsize)
            for column, (member, offset) in ((one, rows.dtype.fields[one][:2]) for one in rows.dtype.names):
                kind.insert(column.encode(), offset, h5t.UNIX_D32LE if column == "timestamp" else h5t.py_create(member))
            parent = opened.require_group(group) if group else opened
            table = h5d.create(parent.id, name.encode(), kind, h5s.create_simple(rows.shape))
            table.write(h5s.ALL, h5s.ALL, rows, mtype=kind)
    return file


def test_stations_of_hisparc_become_tables(tmp_path: Path) -> None:
    cluster = "hisparc/cluster_amsterdam/station_"
    file = write_tables(tmp_path / "data.h5", {f"{cluster}501/events": summary(), f"{cluster}510/events": summary(3)})
    with h5py.File(file) as opened, pytest.raises(TypeError, match="TypeTimeID"):
        _ = opened[f"{cluster}501/events"].dtype
    assert format_of(file) is hisparc.FORMAT
    first, second = (pl.read_parquet(one) for one in convert_foreign(file, tmp_path / "out", None))
    assert (first.height, second.height) == (6, 3)
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [
        "data_station_501.parquet", "data_station_510.parquet"
    ]  # fmt: skip
    assert first.columns == [
        "event_id", "timestamp", "nanoseconds", "ext_timestamp", "n1", "n2", "t1", "t2", "t_trigger"
    ]  # fmt: skip
    assert first["timestamp"].to_list() == list(range(1_325_376_015, 1_325_376_021))
    assert first["ext_timestamp"][2] == 1_325_376_017_000_000_014
    assert first["n2"].to_list() == pytest.approx([0.0, 0.7, 0.7, 0.0, 0.7, 0.7])
    assert first["t2"].is_nan().to_list() == [True, False, False, True, False, False]


def test_stations_of_one_name_become_tables_of_their_own(tmp_path: Path) -> None:
    place = "cluster_simulations/station_0/events"
    file = write_tables(tmp_path / "sim.h5", {f"run_{k}/{place}": summary(n) for k, n in ((1, 6), (2, 3))})
    written = convert_foreign(file, tmp_path / "out", None)
    assert {one.stem: pl.read_parquet(one).height for one in written} == {
        f"sim_run_{k}_cluster_simulations_station_0": n for k, n in ((1, 6), (2, 3))
    }
    convert_foreign(file, tmp_path / "out", None)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(file, tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"station_0\.parquet exists already, made of something else"):
        convert_foreign(Path(moved), tmp_path / "out", None)


def test_events_without_particles_are_refused(tmp_path: Path) -> None:
    rows = summary()[["event_id", "timestamp", "nanoseconds", "ext_timestamp", "pulseheights", "integrals"]]
    file = write_tables(tmp_path / "raw.h5", {"s501/events": np.array(rows.tolist(), dtype=_packed(rows.dtype))})
    with pytest.raises(InputError, match="have no numbers of particles"):
        convert_foreign(file, tmp_path / "out", None)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as opened:
        opened["events"] = np.arange(3)
    assert not hisparc.FORMAT.accepts(other)
    (tmp_path / "no.h5").write_bytes(b"nothing")
    assert not hisparc.FORMAT.accepts(tmp_path / "no.h5")
    empty = write_tables(tmp_path / "empty.h5", {"events": summary(0)})
    with pytest.raises(InputError, match="events has no events"):
        convert_foreign(empty, tmp_path / "out", None)


def _packed(kind: np.dtype) -> list[tuple]:
    return [(name, kind[name].base, kind[name].shape) for name in kind.names or ()]


@pytest.mark.slow
def test_real_events_of_hisparc(tmp_path: Path) -> None:
    """Those of a package's own tests."""
    with zipfile.ZipFile(archive_of("hisparc-sapphire==3.1.0", tmp_path)) as archive:
        name = next(one for one in archive.namelist() if one.endswith("esd_load_data.h5"))
        file = Path(archive.extract(name, tmp_path))
    (table,) = (pl.read_parquet(one) for one in convert_foreign(file, tmp_path / "out", None))
    assert table.height == 39
    assert {"n1", "n4", "t1", "t4"} <= set(table.columns)
    assert (table["ext_timestamp"] // 10**9 == table["timestamp"]).all()


SUMMARY = """id,fd_id,sd_energy,sd_theta,sd_phi,sd_dtheta,fd_totalEnergy
042000001,1,3.2,30.5,-20.0,0.4,3.0
042000001,2,3.2,30.5,-20.0,0.4,3.4
061234567,1,10.0,12.0,200.0,0.3,
"""


def test_events_of_auger_become_a_table(tmp_path: Path) -> None:
    file, told = tmp_path / "dataSummarySD1500.csv", []
    file.write_text(SUMMARY, encoding="utf-8")
    assert format_of(file) is auger.FORMAT
    (written,) = convert_foreign(file, tmp_path / "out", None, told.append)
    table = pl.read_parquet(written)
    assert "3 rows, one for each telescope site, are 2 events" in told[0]
    assert table["E"].to_list() == pytest.approx([18.50515, 19.0])
    assert table["Ze"].to_list() == [30.5, 12.0]
    assert table["Az"].to_list() == [340.0, 200.0]
    assert table["id"].to_list() == ["042000001", "061234567"]
    assert "fd_totalEnergy" not in table.columns


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("042000001,2,3.2,", "042000001,2,3.3,", "event 042000001 has rows with different values"),
     ("10.0,12.0", "0.0,12.0", "row 2, sd_energy is 0.0, expected EeV above 0"),
     ("10.0,12.0", "ten,12.0", "column sd_energy holds String, expected numbers")],
)  # fmt: skip
def test_summaries_that_make_no_sense_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "dataSummary.csv"
    file.write_text(SUMMARY.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        convert_foreign(file, tmp_path / "out", None)
