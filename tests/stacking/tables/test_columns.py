"""What columns of a foreign table are taken for: numbers, gaps, categories, times, identifiers, serial numbers."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from runtime.errors import InputError
from stacking.inputs.columns import Plan, plan, repeated_remarks
from stacking.inputs.tables import read_table

HERE = Path("t.csv")


def _plan(**columns: object) -> tuple[Plan, list[str], pl.DataFrame]:
    frame = pl.DataFrame(columns)
    found, remarks = plan(frame, HERE, set())
    return found, remarks, found.encoded(frame, HERE)


def test_gaps_written_as_words_leave_a_number_a_number() -> None:
    found, remarks, encoded = _plan(x=["1.5", " NA", "?", "2", "n/a", None])
    assert found.columns[0].kind == "number"
    np.testing.assert_array_equal(encoded["x"].to_numpy(), [1.5, np.nan, np.nan, 2.0, np.nan, np.nan])
    assert "counts ' NA', '?', 'n/a' as missing numbers" in remarks[0]


def test_text_is_a_category_and_new_levels_are_missing() -> None:
    found, remarks, encoded = _plan(c=["red", "green", "NA", "red"], b=[True, False, None, True])
    assert [column.kind for column in found.columns] == ["category", "number"]
    assert found.columns[0].levels == ("green", "red")
    np.testing.assert_array_equal(encoded["c"].to_numpy(), [1, 0, np.nan, 1])
    np.testing.assert_array_equal(encoded["b"].to_numpy(), [1, 0, np.nan, 1])
    new = pl.Series(["blue", "red"])
    assert found.columns[0].unknown(new) == ["blue"]
    np.testing.assert_array_equal(found.columns[0].encoded(new, HERE), [np.nan, 1])
    assert remarks == []
    assert Plan.from_json(found.as_json()) == found


def test_time_stamps_and_serial_numbers_keep_their_last_digits() -> None:
    stamps = 1_700_000_000 + np.arange(50)
    assert len(np.unique(stamps.astype(np.float32))) < 50
    _, remarks, encoded = _plan(t=stamps)
    np.testing.assert_array_equal(encoded["t"].to_numpy(), np.arange(50))
    assert "taken relative to 1700000000" in remarks[0]
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=k) for k in range(5)]
    for values in (days, [str(day) for day in days]):
        kind, _, seconds = _plan(t=values)
        assert kind.columns[0].kind == "time"
        np.testing.assert_allclose(np.diff(seconds["t"].to_numpy()), 86_400)
    _, _, scaled = _plan(x=[1e39, 5e38, 0.0])
    np.testing.assert_allclose(scaled["x"].to_numpy(), [1.0, 0.5, 0.0])


def test_what_cannot_be_learned_from_is_left_out_with_a_remark() -> None:
    names = [f"person {k}" for k in range(300)]
    found, remarks, _ = _plan(unnamed_1=list(range(300)), who=names, empty=[None] * 300, x=np.arange(300.0) ** 2)
    assert found.names == ("x",)
    assert [word in " ".join(remarks) for word in ("counts the rows", "different texts", "is empty")] == [True] * 3


@pytest.mark.parametrize("name", ["Ze", "Az", "", "x y", "p_a", "café", "__label__"])
def test_names_mean_nothing(name: str) -> None:
    assert _plan(**{name: [1.0, 2.0]})[0].names == (name,)


def test_text_where_training_had_numbers_names_row_and_column() -> None:
    found, _, _ = _plan(x=[1.0, 2.0])
    with pytest.raises(InputError, match="row 1, column 'x' holds 'two', expected a number"):
        found.columns[0].encoded(pl.Series(["1", "two"]), HERE)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "t.txt.csv"])
def test_text_tables_of_all_names_read_alike(name: str, tmp_path: Path) -> None:
    between = "\t" if "tsv" in name else ","
    content = between.join(["x", "", "kind"]) + "\n" + between.join(["1", "2", "a"]) + "\n"
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    frame = read_table(tmp_path / name)
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [(1, 2, "a")]


def test_a_column_without_a_name_in_a_parquet_file_gets_one(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1], "": [2], "kind": ["a"]}).write_parquet(tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [(1, 2, "a")]


def test_another_separator_and_repeated_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x;x;kind\n1;2;a\n")
    assert read_table(tmp_path / "t.csv", separator=";").columns == ["x", "x_duplicated_0", "kind"]
    with pytest.raises(InputError, match="expected one character"):
        read_table(tmp_path / "t.csv", separator=";;")


def test_a_packed_table_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stacking.inputs.tables.UNPACKED_SHARE", 1e-9)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 1000))
    with pytest.raises(InputError, match="when unpacked"):
        read_table(tmp_path / "t.csv.gz")


def test_equal_rows_are_noticed() -> None:
    train = pl.DataFrame({"x": [1.0, 1.0, 1.0, 2.0]})
    found = repeated_remarks(train, np.array([0, 0, 1, 1]), pl.DataFrame({"x": [2.0, 3.0]}))
    assert "2 of 4 training rows equal another one, 1 of them with another label" in found[0]
    assert "1 of 2 test rows equal a training row" in found[1]
    assert repeated_remarks(pl.DataFrame({"x": [1.0, 2.0]}), np.array([0, 1]), None) == []


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_and_durations_are_seconds_in_any_unit(unit: str) -> None:
    lasted = pl.Series([datetime.timedelta(seconds=90), None, datetime.timedelta(hours=1)]).cast(pl.Duration(unit))
    _, _, encoded = _plan(t=lasted)
    np.testing.assert_array_equal(encoded["t"].to_numpy(), [90, np.nan, 3600])
    at = pl.Series([datetime.datetime(1970, 1, 1, 0, 1), datetime.datetime(1970, 1, 2)]).cast(pl.Datetime(unit))
    np.testing.assert_array_equal(_plan(t=at)[2]["t"].to_numpy(), [60, 86_400])
    clock = pl.Series([datetime.time(0, 1), datetime.time(12)])
    np.testing.assert_array_equal(_plan(t=clock)[2]["t"].to_numpy(), [60, 43_200])
