"""Damaged tables are refused in one line or read; pipes, folders and promises larger than the memory are refused."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stacking.inputs.tables
from runtime.errors import InputError
from stacking.inputs.tables import read_table, scan_table
from tests.faults.rounds import rounds


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same table as CSV and as Parquet, packed and not."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=200), "n": rng.integers(0, 9, 200), "kind": [f"k{i % 3}" for i in range(200)]}
    frame = pl.DataFrame(columns).with_columns(pl.when(pl.col("n") > 7).then(None).otherwise(pl.col("n")).alias("n"))
    frame.write_csv(folder / "a.csv")
    frame.write_parquet(folder / "b.parquet")
    frame.write_parquet(folder / "c.parquet", compression="uncompressed")
    return sorted(folder.iterdir())


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return content cut, with bytes changed, inserted, removed or zeroed."""
    raw = bytearray(content)
    place = rng.randrange(len(raw))
    kind = rng.randrange(5)
    if kind == 0:
        del raw[place:]
    elif kind == 1:
        for _ in range(rng.choice([1, 3, 30])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 2:
        raw[place:place] = rng.randbytes(rng.randrange(1, 200))
    elif kind == 3:
        del raw[place : place + rng.randrange(1, 300)]
    else:
        raw[place : place + 50] = bytes(50)
    return bytes(raw)


@rounds(100, 400)
def test_damaged_tables(
    n: int, tables: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], survived: Counter[str]
) -> None:
    rng = random.Random(7)
    refusals = []
    for k in range(n):
        source = tables[k % len(tables)]
        file = tmp_path / f"bad{source.suffix}"
        file.write_bytes(damaged(source.read_bytes(), rng))
        try:
            read_table(file)
        except InputError as error:
            refusals.append((str(error), str(file)))
    assert len(refusals) > n / 4
    assert all(line.startswith(file) and "\n" not in line for line, file in refusals)
    assert not capfd.readouterr().err, "a parser's own remarks do not reach the terminal"
    survived["damages"] += n


def test_a_panic_of_the_parser_is_a_refusal(tables: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*arguments: object, **options: object) -> None:
        os.write(2, b"thread panicked\n")
        raise pl.exceptions.PanicException("assertion failed\nstack backtrace")

    monkeypatch.setattr(stacking.inputs.tables.pl, "scan_csv", panics)
    with pytest.raises(InputError, match=r"a\.csv cannot be read \(damaged, .*: assertion failed$"):
        scan_table(tables[0])


def test_what_is_no_table(tables: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    for name, message in (
        ("pipe.csv", "not a regular file"),
        ("link.csv", "not a regular file"),
        ("folder.csv", "is a folder"),
        ("gone.csv", "does not exist"),
        ("empty.csv", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / name)


def test_more_than_the_memory_is_refused(tables: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacking.inputs.tables.os, "sysconf", lambda name: 64 if "SIZE" in name else 16)
    with pytest.raises(InputError, match="give fewer rows"):
        scan_table(tables[1])
