"""Results replace nothing but files of their own kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runtime.errors import InputError
from runtime.files import check_target, write_json


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """What nobody should write over."""
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "link.npz").symlink_to("/dev/null")
    return {name: tmp_path / f"{name}.npz" for name in ("pipe", "folder", "link")}


@pytest.mark.parametrize("name", ["pipe", "folder", "link"])
def test_nothing_but_files_is_replaced(name: str, places: dict[str, Path]) -> None:
    for work in (lambda: check_target(places[name], (".npz", ".csv")), lambda: write_json(places[name], {})):
        with pytest.raises(InputError, match="choose the name of a file"):
            work()
    assert stat.S_ISFIFO(places["pipe"].stat().st_mode)
    assert places["link"].is_symlink()


def test_files_of_another_kind_are_kept(tmp_path: Path) -> None:
    letter = tmp_path / "letter.npz"
    letter.write_text("Dear Sir")
    with pytest.raises(InputError, match=r"is no \.npz file"):
        check_target(letter, (".npz", ".csv"))
    with pytest.raises(InputError, match=r"ends in \.npz or \.csv"):
        check_target(tmp_path / "x.txt", (".npz", ".csv"))
    check_target(tmp_path / "new" / "deep" / "x.csv", (".npz", ".csv"))
    assert (tmp_path / "new" / "deep").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_places_are_told_before_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        check_target(tmp_path / "x.csv", (".npz", ".csv"))
