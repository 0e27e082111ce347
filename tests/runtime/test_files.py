"""Files: written atomically, refused in readable words, and compared with checksums that notice any change.

Archives are refused by their heads: bombs, pipes and false lengths end before anything is unpacked.
"""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from showerstack.runtime import files
from showerstack.runtime.arrays import ArrayFile, open_npy, read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, atomic_path, hash_file, locked, read_json, write_json, write_npz
from showerstack.scoring.score import read_output
from showerstack.showers.schema import COMPOSITION, GAMMA


def _half_file(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def _half_folder(target: Path) -> None:
    with atomic_folder(target) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError):
        _half_file(target)
    assert read_json(target) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


class ComputeError(Exception):
    """As Polars raises it where a disk is full."""

    __module__ = "polars.exceptions"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), errno.EDQUOT),
        (ComputeError("out of specification"), errno.ENOSPC),
    ],
)
def test_a_full_disk_is_told_with_its_folder(
    error: Exception, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = namedtuple("usage", "free")
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: free(0))
    with pytest.raises(OSError, match=r"No space left|quota") as raised, atomic_path(tmp_path / "a.parquet"):
        raise error
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path))
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: free(10**9))
    with pytest.raises(ComputeError), atomic_path(tmp_path / "a.parquet"):
        raise ComputeError("damaged")


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".partial-999999-{files._host_hash()}00000000-moved" / "inner").mkdir(parents=True)
    with files.temporary_folder(tmp_path / "moved") as work:
        assert [one.name for one in tmp_path.iterdir()] == [work.name]
    assert list(tmp_path.iterdir()) == []


def test_failed_folder_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        _half_folder(tmp_path / "d")
    assert not any(tmp_path.iterdir())


def test_existing_folder_is_refused_unless_told(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match="exists already"), atomic_folder(tmp_path / "d"):
        pass
    with atomic_folder(tmp_path / "d", overwrite=True) as folder:
        (folder / "new").write_text("x")
    assert (tmp_path / "d" / "new").exists()


def test_json_has_no_nan_and_reads_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(InputError, match="does not exist"):
        read_json(tmp_path / "none.json")


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_npz(tmp_path / name, x=np.arange(5), y=np.ones(2, dtype=np.float32))
    assert hash_file(tmp_path / "a.npz") == hash_file(tmp_path / "b.npz")


def test_npy_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_npy(tmp_path / "none.npy")
    np.save(tmp_path / "a.npy", np.arange(100))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-50])
    with pytest.raises(InputError, match="truncated or damaged"):
        open_npy(tmp_path / "cut.npy")
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(InputError, match=r"text\.npy cannot be read"):
        open_npy(tmp_path / "text.npy")
    np.save(tmp_path / "objects.npy", np.array([{}, None]), allow_pickle=True)
    with pytest.raises(InputError, match=r"objects\.npy cannot be read"):
        open_npy(tmp_path / "objects.npy")


def test_empty_array_opens(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 5)))
    assert open_npy(tmp_path / "empty.npy").shape == (0, 5)


def test_pipes_folders_and_huge_shapes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for read in (open_npy, read_json, hash_file):
        for name in ("pipe", "folder"):
            with pytest.raises(InputError, match=f"{name} (is not a regular file|cannot be read)"):
                read(tmp_path / name)
    np.save(tmp_path / "a.npy", np.zeros((10, 3)))
    content = (tmp_path / "a.npy").read_bytes()
    for shape in ("(10, 3000000000000000), }", "(-10, -3), }", "(10, True), }", "(10, " + 60 * "(" + "), }"):
        huge = content[: content.index(b"(10, 3)")] + shape.encode()
        (tmp_path / "huge.npy").write_bytes(huge.ljust(127) + b"\n" + content[128:])
        with pytest.raises(InputError, match=r"huge\.npy cannot be read as a NumPy array"):
            open_npy(tmp_path / "huge.npy")
    for text in (2000 * "[" + 2000 * "]", "1" * 5000):
        (tmp_path / "deep.json").write_text(text * 50)
        with pytest.raises(InputError, match=r"deep\.json is not valid JSON"):
            read_json(tmp_path / "deep.json")


def test_leftovers_of_killed_processes_are_removed_and_others_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f".partial-{dead.pid}-d", f".replaced-{dead.pid}-d", f".partial-{os.getppid()}-d"):
        (tmp_path / name / "sub").mkdir(parents=True)
    (tmp_path / f".partial-{dead.pid}-other").write_text("another target's")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("x")
    with atomic_folder(tmp_path / "d"):
        pass
    left = {f".partial-{os.getppid()}-d", f".partial-{dead.pid}-other", "elsewhere", "d"}
    assert {p.name for p in tmp_path.iterdir()} == left
    (tmp_path / f".partial-{dead.pid}-f").symlink_to(tmp_path / "elsewhere")
    write_json(tmp_path / "f", 1)
    assert not (tmp_path / f".partial-{dead.pid}-f").is_symlink()
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_a_replaced_folder_is_put_back_if_its_successor_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old").write_text("x")
    rename = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".partial"):
            raise OSError
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError), atomic_folder(tmp_path / "d", overwrite=True):  # noqa: PT011
        pass
    assert (tmp_path / "d" / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


@pytest.fixture
def checksums(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "sub" / "b.txt").write_text("text")
    (tmp_path / "empty").write_bytes(b"")
    write_checksums(tmp_path, ["a.bin", "sub/b.txt", "empty"])
    return tmp_path


def test_untouched_files_are_handed_out(checksums: Path) -> None:
    result = Checksums.open(checksums, required=["a.bin"])
    assert result.path("sub/b.txt").read_text() == "text"
    assert result.problems() == []


@pytest.mark.parametrize("position", [0, 100, 255])
def test_one_flipped_bit_is_found(checksums: Path, position: int) -> None:
    content = bytearray((checksums / "a.bin").read_bytes())
    content[position] ^= 1
    (checksums / "a.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.bin is not the file that was written"):
        Checksums.open(checksums).path("a.bin")


def test_a_change_after_the_first_reading_is_found(checksums: Path) -> None:
    result = Checksums.open(checksums)
    result.path("sub/b.txt")
    (checksums / "sub" / "b.txt").write_text("tExt")
    with pytest.raises(InputError, match=r"b\.txt"):
        result.path("sub/b.txt")


def test_exchanged_and_missing_files_are_all_listed(checksums: Path) -> None:
    (checksums / "a.bin").write_text("text")
    (checksums / "empty").unlink()
    assert len(Checksums.open(checksums).problems()) == 2


def test_a_file_that_is_not_listed_is_refused(checksums: Path) -> None:
    (checksums / "new").write_text("x")
    with pytest.raises(InputError, match="not in"):
        Checksums.open(checksums).path("new")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": 1, "files": {}}, "does not name a.bin"),
        ({"format": 2, "files": {}}, "format 1"),
        ({"format": 1, "files": {"../a.bin": {"bytes": 1, "sha256": ""}}}, "not a path inside"),
        ({"format": 1, "files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}, "not a path inside"),
        ({"format": 1, "files": {"a.bin": "x"}}, "not a list"),
        ([], "not a list"),
    ],
)
def test_a_damaged_list_is_refused(checksums: Path, content: object, message: str) -> None:
    (checksums / CHECKSUMS_FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        Checksums.open(checksums, required=["a.bin"])


def test_a_change_in_place_is_seen_though_length_and_time_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"0123")
    before = file.stat()
    checksums = write_checksums(tmp_path, ["a.bin"])
    assert checksums.problem("a.bin") is None
    with file.open("r+b") as stream:
        stream.write(b"3210")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checksums.problem("a.bin") is not None


N = 50


def _head(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    stream = io.BytesIO()
    head = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, head)
    return stream.getvalue()


def _bomb(file: Path, key: str, head: bytes, n_zeros: int) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{key}.npy", "w") as member:
        member.write(head)
        block = bytes(1 << 20)
        for _ in range(n_zeros >> 20):
            member.write(block)
    return file


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    n_bytes = 1 << 28
    file = _bomb(tmp_path / "p.npz", "gamma_scores", _head((n_bytes // 8,)), n_bytes)
    assert file.stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="has 33554432 events, but the test set has 50"):
        read_output(file, GAMMA, N)
    with pytest.raises(InputError, match=r"would unpack to 0.27 GB"):
        read_arrays(file, "gamma_scores")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_a_bomb_in_the_hash_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    np.savez_compressed(file, predictions=np.zeros(N, np.int8), config_hash=np.array("x" * 10_000_000))
    with pytest.raises(InputError, match=r"config_hash has shape .* expected a word"):
        read_output(file, COMPOSITION, N)


@pytest.mark.parametrize("shape", [(1 << 40,), (N, 1 << 40), (N - 1,), ()])
def test_heads_that_promise_what_is_not_there(shape: tuple[int, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("predictions.npy", _head(shape, "<i8") + bytes(8 * N))
    with pytest.raises(InputError, match=r"p\.npz, predictions (has|cannot be read)"):
        read_output(tmp_path / "p.npz", COMPOSITION, N)


def test_any_order_is_read(tmp_path: Path) -> None:
    table = np.asfortranarray(np.arange(10.0).reshape(5, 2))
    np.savez(tmp_path / "p.npz", log_proba=table)
    np.testing.assert_array_equal(read_arrays(tmp_path / "p.npz", "log_proba")["log_proba"], table)


def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    started = time.monotonic()
    for file in (tmp_path / "pipe.npz", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_output(file, COMPOSITION, N)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("start", "shape", "message"),
    [
        (0, (2, 4), r"a\.npy: rows 0 on have shape \(4,\), not \(3,\)"),
        (0, (2, 3, 1), r"a\.npy: rows 0 on have shape \(3, 1\), not \(3,\)"),
        (4, (2, 3), r"a\.npy: rows 4 to 6 of 5 were given"),
    ],
)
def test_rows_of_another_shape_than_the_file_are_refused(
    start: int, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with ArrayFile(tmp_path / "a.npy", (5, 3), np.float32) as file:
        file.put(0, np.ones((5, 3)))
        with pytest.raises(InputError, match=message):
            file.put(start, np.zeros(shape))
        file.close()
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.ones((5, 3)))


def _made_by_another(path: Path) -> None:
    with atomic_folder(path) as folder:
        (folder / "ours").touch()
        file = path / "notes.txt" if path.name == "folder" else path
        file.parent.mkdir(exist_ok=True)
        file.write_text("somebody's work")


def test_what_came_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    for name in ("folder", "file"):
        with pytest.raises(InputError, match="was made by another program meanwhile and is left as it is"):
            _made_by_another(tmp_path / name)
    assert (tmp_path / "folder" / "notes.txt").read_text() == (tmp_path / "file").read_text() == "somebody's work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", refused)
    with locked(tmp_path):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: its file system knows no locks ({os.strerror(number)}): see that no other process writes there"
    ]
    number = errno.EIO
    with pytest.raises(InputError, match=r"cannot be locked: Input/output error: choose"), locked(tmp_path):
        pass
