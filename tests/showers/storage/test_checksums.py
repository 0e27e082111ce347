"""Checksums of folders: any change of any file is found and named."""

import json
from pathlib import Path

import pytest

from runtime.checksums import CHECKSUMS_FILE, Seal, seal
from runtime.errors import InputError


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "sub" / "b.txt").write_text("text")
    (tmp_path / "empty").write_bytes(b"")
    seal(tmp_path, ["a.bin", "sub/b.txt", "empty"])
    return tmp_path


def test_untouched_files_are_handed_out(sealed: Path) -> None:
    found = Seal.open(sealed, required=["a.bin"])
    assert found.path("sub/b.txt").read_text() == "text"
    assert found.problems() == []


@pytest.mark.parametrize("position", [0, 100, 255])
def test_one_flipped_bit_is_found(sealed: Path, position: int) -> None:
    content = bytearray((sealed / "a.bin").read_bytes())
    content[position] ^= 1
    (sealed / "a.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.bin is not the file that was written"):
        Seal.open(sealed).path("a.bin")


def test_a_change_after_the_first_reading_is_found(sealed: Path) -> None:
    found = Seal.open(sealed)
    found.path("sub/b.txt")
    (sealed / "sub" / "b.txt").write_text("tExt")
    with pytest.raises(InputError, match=r"b\.txt"):
        found.path("sub/b.txt")


def test_exchanged_and_missing_files_are_all_listed(sealed: Path) -> None:
    (sealed / "a.bin").write_text("text")
    (sealed / "empty").unlink()
    assert len(Seal.open(sealed).problems()) == 2


def test_a_file_that_is_not_listed_is_refused(sealed: Path) -> None:
    (sealed / "new").write_text("x")
    with pytest.raises(InputError, match="not in"):
        Seal.open(sealed).path("new")


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
def test_a_damaged_list_is_refused(sealed: Path, content: object, message: str) -> None:
    (sealed / CHECKSUMS_FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        Seal.open(sealed, required=["a.bin"])
