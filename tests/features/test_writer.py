"""Whose table it is and who may write it: other datasets, two writers, kills at every step, full disks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from showerstack.features import build, compute
from showerstack.features.build import build_table
from showerstack.features.device import columns_to_host, namespace, on_device
from showerstack.features.table import CATALOGUE_FILE, FeatureTable, part_path
from showerstack.runtime import checksums
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import LOCK_FILE, hash_file, locked

GROUPS = ["reconstruction", "size"]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    """Shards and chunks so small that a handful of events fills several."""
    monkeypatch.setattr(build, "SHARD_EVENTS", 16)
    monkeypatch.setattr(compute, "chunk_size", lambda device: 16)


def _bits(table):
    return table.matrix(table.columns).view(np.uint32)


def _build(folder, out=None):
    return build_table(folder, out, groups=GROUPS, ctx=Context(workers=1))


def test_a_dataset_written_anew_gives_its_own_features(write, draw, tmp_path):
    folder = write(draw(40))
    first = _bits(_build(folder))
    shutil.rmtree(folder)
    write(draw(40, seed=2))
    again = _build(folder)
    fresh = _build(folder, tmp_path / "fresh")
    assert again.fingerprint == fresh.fingerprint
    np.testing.assert_array_equal(_bits(again), _bits(fresh))
    assert (_bits(again) != first).any()


def test_a_dataset_that_changes_meanwhile_is_noticed(write, draw, monkeypatch):
    folder, original = write(draw(40)), build.compute_rows

    def changing(data, *arguments):
        table = original(data, *arguments)
        shutil.rmtree(folder, ignore_errors=True)
        write(draw(40, seed=2))
        return table

    monkeypatch.setattr(build, "compute_rows", changing)
    with pytest.raises(InputError, match="changed while its features were computed"):
        _build(folder)
    assert not list(folder.parent.glob("*.features/part-*"))


def test_another_dataset_is_not_mistaken_for_the_first(write, draw):
    table = _build(write(draw(40)))
    again = _build(write(draw(40), "other"), table.folder)
    assert table.fingerprint == again.fingerprint
    changed = write(draw(40, seed=2), "changed")
    before = _bits(table)
    with pytest.raises(InputError, match="holds the features of another dataset"):
        _build(changed, table.folder)
    np.testing.assert_array_equal(_bits(FeatureTable.open(table.folder)), before)


def test_one_writer_at_a_time(write, draw, tmp_path):
    folder, out = write(draw(40)), tmp_path / "table"
    with locked(out), pytest.raises(InputError, match="is being written by another process"):
        _build(folder, out)
    table = _build(folder, out)
    with locked(out):
        # A finished table is only read.
        assert _build(folder, out).fingerprint == table.fingerprint


def test_a_lock_is_a_plain_file_and_is_left_as_it_is(write, draw, tmp_path):
    folder, out, precious = write(draw(20)), tmp_path / "table", tmp_path / "precious.txt"
    out.mkdir()
    precious.write_text("precious")
    (out / LOCK_FILE).symlink_to(precious)
    with pytest.raises(InputError, match=r"\.lock cannot be opened"):
        _build(folder, out)
    (out / LOCK_FILE).unlink()
    os.mkfifo(out / LOCK_FILE)
    with pytest.raises(InputError, match="not a plain file"):
        _build(folder, out)
    (out / LOCK_FILE).unlink()
    (out / LOCK_FILE).write_text("kept")
    _build(folder, out)
    assert (precious.read_text(), (out / LOCK_FILE).read_text()) == ("precious", "kept")


def test_a_lock_beside_what_is_the_users_is_removed(tmp_path):
    with locked(tmp_path, ".mine.lock"):
        assert (tmp_path / ".mine.lock").exists()
        with pytest.raises(InputError, match="is being written by another process"), locked(tmp_path, ".mine.lock"):
            pass
        assert (tmp_path / ".mine.lock").exists(), "it is the other's"
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    lock = fcntl.flock

    def removed_first(handle, operation):
        (tmp_path / ".mine.lock").unlink()  # as the one does who held it until now
        (tmp_path / ".mine.lock").touch()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with pytest.raises(InputError, match="until now: give the command again"), locked(tmp_path, ".mine.lock"):
        pass
    assert (tmp_path / ".mine.lock").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_place_that_cannot_be_written_is_named(write, draw, tmp_path, monkeypatch, number):
    folder, opened = write(draw(20)), os.open

    def refused(path, *given, **more):
        if str(path).endswith(LOCK_FILE):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *given, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(InputError, match=rf"table cannot be written to .*{os.strerror(number)}.*another place"):
        _build(folder, tmp_path / "table")


@pytest.mark.parametrize("name", ["mine.txt", "part-00000.parquet", CHECKSUMS_FILE])
def test_what_is_not_ours_stays(write, draw, tmp_path, name):
    folder, out = write(draw(20)), tmp_path / "table"
    out.mkdir()
    (out / name).write_text("precious")
    with pytest.raises(InputError, match="is not a feature table"):
        _build(folder, out)
    assert [path.name for path in out.iterdir()] == [name]
    with pytest.raises(InputError, match="is a file"):
        _build(folder, out / name)
    (out / CATALOGUE_FILE).write_text('{"complete": true}')
    with pytest.raises(InputError, match="is not the catalogue of a feature table"):
        _build(folder, out)


def _states(folder: Path, monkeypatch, work) -> list[Path]:
    """Return copies of a folder as a kill would leave it before each change that ``work`` makes in it."""
    copies: list[Path] = []
    last: dict[str, bytes] = {}

    def watched(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **options):
            nonlocal last
            if folder.exists():
                content = {path.name: path.read_bytes() for path in folder.iterdir()}
                if content != last or not copies:
                    last = content
                    copies.append(folder.with_name(f"state-{len(copies)}"))
                    shutil.copytree(folder, copies[-1])
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    with monkeypatch.context() as monkeypatch:
        for owner, name in ((Path, "mkdir"), (Path, "replace"), (Path, "unlink"), (os, "open"), (os, "fsync")):
            watched(owner, name)
        work()
    return copies


@pytest.mark.parametrize("stale", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_at_any_step_it_is_finished_by_starting_again(write, draw, tmp_path, monkeypatch, stale):
    folder, out = write(draw(40)), tmp_path / "table"
    expected = _build(folder, tmp_path / "whole")
    if stale:
        with monkeypatch.context() as patch:
            patch.setattr(build, "FEATURES_VERSION", 0)
            patch.setattr(build, "SHARD_EVENTS", 4)
            _build(folder, out)
    states = _states(out, monkeypatch, lambda: _build(folder, out))
    assert len(states) >= 15
    for state in states:
        table = _build(folder, state)
        assert table.fingerprint == expected.fingerprint
        np.testing.assert_array_equal(_bits(table), _bits(expected))
        names = {LOCK_FILE, CATALOGUE_FILE, CHECKSUMS_FILE, *(path.name for path in expected.parts())}
        assert {path.name for path in state.iterdir()} == names, state


def test_a_resumed_table_hashes_and_computes_only_what_is_missing(write, draw, tmp_path, monkeypatch):
    folder = write(draw(70))
    table = _build(folder, tmp_path / "table")
    part_path(table.folder, 3).unlink()
    part_path(table.folder, 1).write_bytes(b"cut")
    made, original = [], build.write_shard
    monkeypatch.setattr(build, "write_shard", lambda number, *rest: made.append(number) or original(number, *rest))
    monkeypatch.setattr(checksums, "hash_file", lambda path: made.append(path.name) or hash_file(path))
    _build(folder, table.folder)
    # All other shards are neither made nor read again; the catalogue is, when it is written and when it is opened.
    assert made == [1, 3, CATALOGUE_FILE, CATALOGUE_FILE]


def test_a_full_disk_is_told_in_one_line(write, draw, tmp_path):
    folder, out = write(draw(400)), tmp_path / "table"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SHARD_EVENTS", 400)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
        try:
            with pytest.raises(InputError, match="cannot be written") as refused:
                _build(folder, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "\n" not in str(refused.value)
        assert len(_build(folder, out)) == 400


@pytest.fixture
def a_gpu(monkeypatch):
    """A GPU that answers, whose arrays are NumPy's; returns the log of what it computes and of what is written."""
    log, compute_chunk, write, third = [], compute.compute_chunk, build._write, threading.Event()

    def computing(xp, grids, *rest):
        log.append("compute")
        if log.count("compute") > 2:
            third.set()
        return compute_chunk(xp, grids, *rest)

    def writing(number, *rest):
        log.append(f"{threading.current_thread() is threading.main_thread()} {number}")
        # A shard is two chunks: those of the next are computed while this one is written.
        assert number or third.wait(60)
        return write(number, *rest)

    monkeypatch.setattr(build, "GPU_SHARD_EVENTS", 32)
    monkeypatch.setattr(build, "resolve_device", lambda device: "cuda")
    monkeypatch.setattr(compute, "namespace", lambda device: namespace("cpu"))
    monkeypatch.setattr(compute, "on_device", lambda chunks, device: on_device(chunks, "cpu"))
    monkeypatch.setattr(compute, "compute_chunk", computing)
    monkeypatch.setattr(build, "_write", writing)
    monkeypatch.setattr(build, "in_own_process", lambda function, *arguments: function(*arguments))
    return log


def test_a_gpu_computes_on_while_threads_write(write, draw, tmp_path, a_gpu):
    folder = write(draw(150))
    table = _build(folder, tmp_path / "gpu")
    assert len(table.parts()) == 5
    assert a_gpu.count("compute") == 10
    assert sorted(line for line in a_gpu if line != "compute") == [f"False {k}" for k in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "resolve_device", lambda device: device)
        expected = build_table(folder, tmp_path / "cpu", groups=GROUPS, ctx=Context(device="cpu", workers=1))
    np.testing.assert_array_equal(_bits(table), _bits(expected))


def test_what_a_thread_cannot_write_is_told_and_the_rest_continued(write, draw, tmp_path, a_gpu, monkeypatch):
    folder, out, original = write(draw(150)), tmp_path / "gpu", build.atomic_path

    def full(path):
        if path.name == part_path(out, 2).name:
            raise OSError(28, "No space left on device")
        return original(path)

    monkeypatch.setattr(build, "atomic_path", full)
    with pytest.raises(InputError, match=r"No space left on device.*what is finished is kept"):
        _build(folder, out)
    monkeypatch.setattr(build, "atomic_path", original)
    del a_gpu[:]
    table = _build(folder, out)
    assert sorted(line for line in a_gpu if line != "compute") == [f"False {k}" for k in (2, 3, 4)]
    assert len(table.parts()) == 5


def test_a_dataset_that_changes_while_the_gpu_works_is_noticed(write, draw, a_gpu, monkeypatch):
    folder, original = write(draw(150)), build._write

    def changing(number, *rest):
        if number == 1:
            shutil.rmtree(folder)
            write(draw(150, seed=2))
        return original(number, *rest)

    monkeypatch.setattr(build, "_write", changing)
    with pytest.raises(InputError, match="changed while its features were computed"):
        _build(folder)


def test_columns_come_from_a_gpu_in_one_copy():
    copies = []

    class Array(np.ndarray):
        def get(self):
            copies.append(self.shape)
            return np.asarray(self)

    cupy = ModuleType("cupy")
    cupy.stack = lambda arrays: np.stack(arrays).view(Array)
    columns = {name: np.full(3, k, np.float32) for k, name in enumerate("abc")}
    arrived = columns_to_host(columns, cupy)
    assert copies == [(3, 3)]
    assert list(arrived) == list(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(arrived[name], values)
        assert type(arrived[name]) is np.ndarray
