"""The table on disk: same bits however the work is cut, resumed where it stopped, reused while it is valid.

The order of copies to a GPU is tested with a stand-in for CuPy whose streams run as late or as early as is allowed.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections import deque
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from showerstack.features import build, compute
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE, feature_set
from showerstack.features.compute import compute_rows
from showerstack.features.device import on_device, prefetched
from showerstack.features.table import CATALOGUE_FILE, EVENT_COLUMN, FeatureTable, default_path, part_path
from showerstack.runtime.context import Context, silent
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Chunk, Dataset


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of one chunk, so that a small set has several."""
    monkeypatch.setattr(build, "SHARD_EVENTS", 512)


def _all(table):
    return table.matrix(table.columns)


def _same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_table_of_a_dataset(write, draw):
    folder = write(draw(700))
    table = build_table(folder)
    assert table.folder == default_path(folder)
    assert len(table) == 700
    assert set(table.columns) <= set(CATALOGUE)
    matrix = _all(table)
    assert matrix.dtype == np.float32
    assert matrix.flags.f_contiguous
    assert matrix.shape == (700, len(table.columns))
    frame = table.frame().collect()
    assert frame.columns[0] == EVENT_COLUMN
    assert frame[EVENT_COLUMN].to_list() == list(range(700))
    head = json.loads((table.folder / CATALOGUE_FILE).read_text())
    assert [column["name"] for column in head["columns"]] == list(table.columns)
    assert {"unit", "meaning", "formula", "source", "group"} <= set(head["columns"][0])


def test_grids_in_float32_give_the_same_features(write, draw, tmp_path):
    folder = write(draw(300))
    usual = build_table(folder)
    wide = shutil.copytree(folder, tmp_path / "wide")
    (wide / "checksums.json").unlink()
    np.save(wide / "matrices.npy", np.load(folder / "matrices.npy").astype(np.float32))
    np.save(wide / "features.npy", np.load(folder / "features.npy").astype(np.float32))
    _same_bits(_all(build_table(wide)), _all(usual))


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_same_bits_for_any_number_of_workers_and_shards(write, draw, tmp_path, monkeypatch):
    folder = write(draw(1_300))
    one = build_table(folder, tmp_path / "one", ctx=Context(workers=1))
    two = build_table(folder, tmp_path / "two", ctx=Context(workers=2))
    assert len(one.parts()) == 3
    monkeypatch.setattr(build, "MOST_THREADS", 1)
    _same_bits(_all(one), _all(build_table(folder, tmp_path / "processes", ctx=Context(workers=2))))
    monkeypatch.setattr(build, "MOST_THREADS", 4)
    monkeypatch.setattr(build, "FEW_EVENTS", 10)
    with monkeypatch.context() as patch:
        patch.setattr(build, "in_threads", pytest.fail)  # in this process
        apart = build_table(folder, tmp_path / "apart", ctx=Context(workers=2), apart=True)
    _same_bits(_all(one), _all(apart))
    monkeypatch.setattr(build, "SHARD_EVENTS", 16_384)
    whole = build_table(folder, tmp_path / "whole", ctx=Context(workers=1))
    assert len(whole.parts()) == 1
    _same_bits(_all(one), _all(two))
    _same_bits(_all(one), _all(whole))


def test_chunk_size_changes_at_most_two_ulp(write, draw, monkeypatch):
    data = Dataset.open(write(draw(600)), labels=False)
    groups = frozenset(feature.group for feature in CATALOGUE.values())
    usual = compute_rows(data, 0, 600, groups).to_numpy()
    for size in (64, 113, 600):
        monkeypatch.setattr(compute, "chunk_size", lambda device, size=size: size)
        other = compute_rows(data, 0, 600, groups).to_numpy()
        np.testing.assert_array_equal(np.isnan(usual), np.isnan(other))
        some = ~np.isnan(usual)
        gap = np.abs(usual[some] - other[some])
        assert np.all(gap <= 2 * np.spacing(np.abs(usual[some])))


def test_table_goes_elsewhere_where_the_data_cannot_be_written(write, draw, tmp_path, monkeypatch):
    folder = write(draw(40))
    locked = str(folder.parent)
    monkeypatch.setattr(build.os, "access", lambda place, mode: str(place) != locked)
    elsewhere = tmp_path / "run.features" / "data.features"
    assert build_table(folder, elsewhere=elsewhere).folder == elsewhere
    assert not default_path(folder).exists()
    monkeypatch.undo()
    usual = build_table(folder, elsewhere=elsewhere)
    assert usual.folder == default_path(folder)
    monkeypatch.setattr(build.os, "access", lambda place, mode: False)
    assert build_table(folder, elsewhere=tmp_path / "other").folder == usual.folder, "a valid table is only read"


@pytest.mark.usefixtures("small_shards")
def test_resumes_and_reuses(write, draw, monkeypatch):
    folder = write(draw(1_100))
    written = []
    original = build.write_shard

    def stopping(number, *arguments):
        if number == 2:
            raise KeyboardInterrupt
        written.append(number)
        return original(number, *arguments)

    monkeypatch.setattr(build, "write_shard", stopping)
    with pytest.raises(KeyboardInterrupt):
        build_table(folder, ctx=Context(workers=1))
    with pytest.raises(InputError, match="unfinished"):
        FeatureTable.open(default_path(folder))
    first = part_path(default_path(folder), 0).stat().st_mtime_ns

    def counting(number, *arguments):
        written.append(number)
        return original(number, *arguments)

    monkeypatch.setattr(build, "write_shard", counting)
    table = build_table(folder, ctx=Context(workers=1))
    assert written == [0, 1, 2]
    assert part_path(table.folder, 0).stat().st_mtime_ns == first
    build_table(folder, ctx=Context(workers=1))
    assert written == [0, 1, 2]
    monkeypatch.setattr(build, "FEATURES_VERSION", 0)
    build_table(folder, ctx=Context(workers=1))
    assert written == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("n", [1, 511, 513])
def test_sizes_that_no_chunk_divides(write, draw, n):
    assert len(_all(build_table(write(draw(n))))) == n


def test_age_is_used_where_the_protocol_has_it(write, draw):
    showers = draw(60)
    age = showers.truth["age"].to_numpy().astype(np.float32)
    table = build_table(write(showers, age=age))
    assert {"Age", "fit_minus_age"} <= set(table.columns)
    np.testing.assert_array_equal(table.matrix(["Age"])[:, 0], age)
    assert "Age" in feature_set("scalars", table.columns)


def test_groups_can_be_switched_off(write, draw):
    table = build_table(write(draw(60)), groups=["reconstruction", "size"])
    assert {CATALOGUE[name].group for name in table.columns} == {"reconstruction", "size"}
    with pytest.raises(InputError, match="unknown feature group 'sizes'"):
        build_table(table.folder.with_suffix(""), groups=["sizes"])


def test_rows_and_refusals(write, draw, tmp_path):
    table = build_table(write(draw(300)))
    every = table.matrix(["Ne", "fit_lg_ne"])
    rows = np.array([299, 0, 17])
    _same_bits(table.matrix(["Ne", "fit_lg_ne"], rows).copy(order="C"), every[rows].copy(order="C"))
    mask = np.zeros(300, bool)
    mask[5:9] = True
    _same_bits(table.matrix(["Ne"], mask), every[mask][:, :1])
    with pytest.raises(InputError, match="no column 'Nx'"):
        table.matrix(["Nx"])
    with pytest.raises(InputError, match="row 300 is not in a table of 300 events"):
        table.matrix(["Ne"], np.array([300]))
    with pytest.raises(InputError, match="not a feature table"):
        FeatureTable.open(tmp_path)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_an_event_with_a_bad_cell_changes_no_other(write, draw, value):
    showers = draw(40)
    before = build_table(write(showers), ctx=Context(workers=1))
    usual = before.matrix(before.columns)
    showers.matrices[33, 2, 3, 1] = value
    table = build_table(write(showers, "odd"), ctx=Context(workers=1))
    values = table.matrix(table.columns)
    _same_bits(np.delete(values, 33, axis=0), np.delete(usual, 33, axis=0))
    assert not np.isinf(values).any()


def test_a_dataset_without_events_is_refused(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    np.save(folder / "matrices.npy", np.zeros((0, *KASCADE.grid_shape), np.float16))
    np.save(folder / "features.npy", np.zeros((0, 5), np.float16))
    with pytest.raises(InputError, match=r"set holds no events$"):
        build_table(folder)
    assert not default_path(folder).exists()


def test_labels_are_not_needed_nor_in_the_table(tiny_composition, tmp_path):
    table = build_table(tiny_composition / "composition_test", tmp_path / "table", ctx=Context(bars=silent))
    assert not any("label" in name.lower() for name in table.columns)
    converged = table.matrix(["fit_converged"])[:, 0]
    assert np.nanmean(converged) > 0.995


@pytest.mark.slow
def test_memory_does_not_grow_with_events(write, draw):
    folder = write(draw(3_000))
    build_table(folder, ctx=Context(workers=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = draw(3_000)
    many = type(large)(
        pl.concat([large.truth] * 8), np.tile(large.matrices, (8, 1, 1, 1)), np.tile(large.scalars, (8, 1))
    )
    big = write(many, "big")
    after_writing = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    build_table(big, ctx=Context(workers=1))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - after_writing) / 1024
    assert grown_mb < 150


class _Event:
    """A place in a stream's queue; whoever waits for it makes the stream run up to there."""

    def __init__(self, stream):
        self.stream, self.reached = stream, False

    def reach(self):
        while not self.reached:
            self.stream.queue.popleft()()

    synchronize = reach


class _Stream:
    """A queue of work: done at once when ``eager``, otherwise only when somebody has to wait for it."""

    def __init__(self, device, eager):
        self.device, self.eager, self.queue = device, eager, deque()

    def do(self, work):
        self.queue.append(work)
        while self.eager and self.queue:
            self.queue.popleft()()

    def record(self):
        event = _Event(self)
        self.do(lambda: setattr(event, "reached", True))
        return event

    def wait_event(self, event):
        self.do(event.reach)

    def __enter__(self):
        self.device.allocating = self

    def __exit__(self, *_):
        self.device.allocating = self.device.compute


class _Array:
    """Memory of the device, of the pool of the stream that was current; freed blocks are handed out again at once."""

    def __init__(self, device, shape, dtype):
        self.device, self.pool = device, device.pools.setdefault(id(device.allocating), [])
        fitting = [k for k, block in enumerate(self.pool) if block.shape == shape and block.dtype == dtype]
        self.block = self.pool.pop(fitting[0]) if fitting else np.empty(shape, dtype)
        self.owner = None

    def __del__(self):
        if self.owner is None:
            self.pool.append(self.block)

    def __getitem__(self, rows):
        part = object.__new__(_Array)
        part.device, part.block, part.owner = self.device, self.block[rows], self
        return part

    def set(self, host, stream):
        self.device.log.append(f"copy {len(host)}")
        block = self.block
        stream.do(lambda: block.__setitem__(..., host))

    def astype(self, dtype):
        result, block = np.full(self.block.shape, np.nan, dtype), self.block
        self.device.compute.do(lambda: result.__setitem__(..., block))
        return result


class _Device:
    """Stands in for CuPy; of its two streams one is always early, the other late."""

    def __init__(self, early_copies):
        self.log, self.pools = [], {}
        self.compute = self.allocating = _Stream(self, not early_copies)
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: _Stream(self, early_copies),
            alloc_pinned_memory=lambda size: bytearray(size),
            get_current_stream=lambda: self.compute,
        )
        self.float16, self.float32 = np.float16, np.float32

    def empty(self, shape, dtype):
        return _Array(self, shape, dtype)

    def finish(self):
        while self.compute.queue:
            self.compute.queue.popleft()()


def _chunks(sizes):
    rng = np.random.default_rng(1)
    return [
        Chunk(k, rng.random((n, 16, 16, 2)).astype(np.float16), np.zeros((n, 5), np.float32))
        for k, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("early_copies", [True, False])
@pytest.mark.parametrize("sizes", [[4] * 7 + [2], [2, 4, 4, 4, 3], [1, 2, 3, 4, 4, 4]])
def test_nothing_is_overwritten_before_it_was_used(sizes, early_copies):
    device, chunks = _Device(early_copies), _chunks(sizes)
    arrived = [cells for _, cells in prefetched(iter(chunks), device)]
    device.finish()
    for chunk, cells in zip(chunks, arrived, strict=True):
        np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))


def test_next_chunk_travels_before_the_present_one_is_computed():
    device, chunks = _Device(True), _chunks([4, 4, 4, 2])
    for chunk, _ in prefetched(iter(chunks), device):
        device.log.append(f"computed {chunk.start}")
    assert device.log == [
        "copy 4",
        "copy 4",
        "computed 0",
        "copy 4",
        "computed 1",
        "copy 2",
        "computed 2",
        "computed 3",
    ]


def test_no_events():
    assert list(prefetched(iter([]), _Device(True))) == []


def test_cpu_decodes_in_place():
    chunks = _chunks([3])
    ((chunk, cells),) = on_device(chunks, "cpu")
    np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))
