"""Checksums of folders: any change of any file is found and named."""

import json
import os
from pathlib import Path

import pytest

from runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from runtime.errors import InputError


@pytest.fixture
def checksums(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "sub" / "b.txt").write_text("text")
    (tmp_path / "empty").write_bytes(b"")
    write_checksums(tmp_path, ["a.bin", "sub/b.txt", "empty"])
    return tmp_path


def test_untouched_files_are_handed_out(checksums: Path) -> None:
    found = Checksums.open(checksums, required=["a.bin"])
    assert found.path("sub/b.txt").read_text() == "text"
    assert found.problems() == []


@pytest.mark.parametrize("position", [0, 100, 255])
def test_one_flipped_bit_is_found(checksums: Path, position: int) -> None:
    content = bytearray((checksums / "a.bin").read_bytes())
    content[position] ^= 1
    (checksums / "a.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.bin is not the file that was written"):
        Checksums.open(checksums).path("a.bin")


def test_a_change_after_the_first_reading_is_found(checksums: Path) -> None:
    found = Checksums.open(checksums)
    found.path("sub/b.txt")
    (checksums / "sub" / "b.txt").write_text("tExt")
    with pytest.raises(InputError, match=r"b\.txt"):
        found.path("sub/b.txt")


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
