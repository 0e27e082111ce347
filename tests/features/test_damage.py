"""Damaged tables: refused by name in one line, or read as they were written."""

from __future__ import annotations

import json
import shutil

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import build, compute
from features.build import build_table
from features.table import CATALOGUE_FILE, EVENT_COLUMN, FeatureTable, part_path
from runtime.checksums import CHECKSUMS_FILE
from runtime.errors import InputError

FILES = (CATALOGUE_FILE, CHECKSUMS_FILE, "part-00000.parquet", "part-00001.parquet", "part-00002.parquet")


@pytest.fixture(scope="module")
def tables(draw, tmp_path_factory):
    """Two tables of three shards of 16 events, of different showers."""
    from showers.writer import write_dataset

    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SHARD_EVENTS", 16)
        patch.setattr(compute, "chunk_size", lambda device: 16)
        for seed in (1, 2):
            showers, folder = draw(48, seed=seed), tmp_path_factory.mktemp("tables") / f"set-{seed}"
            with write_dataset(folder, 48, None, source={"generator": "tests"}) as writer:
                writer.put(0, showers.matrices, showers.scalars)
            made.append(build_table(folder, workers=1, groups=["reconstruction", "size", "shape"]))
    return made


@pytest.fixture
def table(tables, tmp_path):
    """Return a copy that may be damaged."""
    return FeatureTable.open(shutil.copytree(tables[0].folder, tmp_path / "table"))


def _rewrite(path, change):
    change(pl.read_parquet(path)).write_parquet(path, compression="lz4", statistics=False)


def _exchanged(frame):
    return frame.rename({"Ne": "Nmu", "Nmu": "Ne"}).select(frame.columns)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.reverse(),
        _exchanged,
        lambda frame: frame.with_columns(pl.col("Ne") * 1.0001),
        lambda frame: frame.head(15),
        lambda frame: frame.cast(pl.Float64),
    ],
)
def test_changed_shards_are_refused_by_name(table, change):
    _rewrite(part_path(table.folder, 1), change)
    for read in (lambda: table.matrix(["Ne"]), lambda: FeatureTable.open(table.folder).matrix(["Ne"]), table.frame):
        with pytest.raises(InputError, match=r"part-00001\.parquet is not the file that was written"):
            read()
    assert table.matrix(["Ne"], np.arange(16)).shape == (16, 1)


def test_shards_of_other_places_are_refused_by_name(table, tables):
    shutil.copy(part_path(tables[1].folder, 1), part_path(table.folder, 1))
    with pytest.raises(InputError, match=r"part-00001\.parquet is not the file that was written"):
        table.matrix(["Ne"])
    shutil.copy(part_path(tables[0].folder, 1), part_path(table.folder, 0))
    with pytest.raises(InputError, match=r"part-00000\.parquet is not the file that was written"):
        table.matrix(["Ne"], np.arange(16))


def test_missing_shards_and_names(table):
    listed = json.loads((table.folder / CHECKSUMS_FILE).read_text())
    for name in FILES[2:4]:
        (table.folder / CHECKSUMS_FILE).write_text(
            json.dumps({**listed, "files": {key: entry for key, entry in listed["files"].items() if key != name}})
        )
        with pytest.raises(InputError, match=r"names 2 shards of 3"):
            FeatureTable.open(table.folder)
    (table.folder / CHECKSUMS_FILE).write_text(json.dumps({**listed, "files": {}}))
    with pytest.raises(InputError, match=r"catalogue\.json is not in checksums\.json"):
        FeatureTable.open(table.folder)
    (table.folder / CHECKSUMS_FILE).write_text(json.dumps(listed))
    part_path(table.folder, 2).unlink()
    with pytest.raises(InputError, match=r"part-00002\.parquet is missing"):
        FeatureTable.open(table.folder)


def test_a_catalogue_of_other_columns_is_refused_by_name(table):
    head = json.loads((table.folder / CATALOGUE_FILE).read_text())
    head["columns"][3], head["columns"][4] = head["columns"][4], head["columns"][3]
    (table.folder / CATALOGUE_FILE).write_text(json.dumps(head, indent=2) + "\n")
    with pytest.raises(InputError, match=r"catalogue\.json is not the file that was written"):
        FeatureTable.open(table.folder)


def test_a_consistent_list_of_nonsense_is_refused_in_one_line(table):
    from runtime.checksums import write_checksums

    for content in (b"", b"PAR1PAR1", b"nonsense" * 100):
        part_path(table.folder, 0).write_bytes(content)
        write_checksums(table.folder, [CATALOGUE_FILE, *(path.name for path in table.parts())])
        with pytest.raises(InputError, match=r"part-00000\.parquet") as refused:
            FeatureTable.open(table.folder).matrix(["Ne"])
        assert "\n" not in str(refused.value)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    kind=st.sampled_from(["flip", "cut", "append", "zero", "empty", "remove", "folder"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_any_damage_is_refused_in_one_line_or_harmless(tables, tmp_path, name, kind, place, bit):
    folder, original = tmp_path / "copy", tables[0]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original.folder, folder)
    file = folder / name
    content = bytearray(file.read_bytes())
    k = int(place * len(content))
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind != "remove":
        content[k] = content[k] ^ (1 << bit) if kind == "flip" else 0 if kind == "zero" else content[k]
        file.write_bytes({"cut": content[:k], "append": content + b"\0", "empty": b""}.get(kind, bytes(content)))
    expected = original.matrix(original.columns)
    outcome = _read(folder)
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert str(folder) in outcome
    else:
        np.testing.assert_array_equal(outcome[0].view(np.uint32), expected.view(np.uint32))
        assert outcome[1] == list(range(48))


def _read(folder):
    """Return all values and event numbers of a table, or in which words it was refused."""
    try:
        table = FeatureTable.open(folder)
        return table.matrix(table.columns), table.frame().collect()[EVENT_COLUMN].to_list()
    except InputError as error:
        return str(error)
