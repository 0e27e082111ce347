"""Links, devices and names from elsewhere: nothing is written through, replaced or read outside its folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

import stacking
from runtime.errors import InputError
from runtime.files import LOCK_FILE, atomic_folder, atomic_path, locked, write_json
from stacking.fit.tasks import fold_folder
from stacking.run.folder import opened_for_writing, write_run_checksums
from stacking.run.read import Run

PARTIAL = ".partial-"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that nobody may touch."""
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    return file


def test_a_lock_is_no_way_to_empty_a_file(precious: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK_FILE).symlink_to(precious)
    with pytest.raises(InputError, match=r"\.lock cannot be opened as a lock"), opened_for_writing(run):
        pass
    (run / LOCK_FILE).unlink()
    precious.rename(run / LOCK_FILE)
    with locked(run):
        pass
    assert (run / LOCK_FILE).read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_cannot_be_locked_is_refused(make: object, tmp_path: Path) -> None:
    make(tmp_path / LOCK_FILE)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"cannot be opened as a lock|not a plain file"), locked(tmp_path):
        pass


def test_temporary_names_cannot_be_foretold(precious: Path, tmp_path: Path) -> None:
    for name in (f"{PARTIAL}{os.getpid()}-a.json", f"{PARTIAL}a.json"):
        (tmp_path / name).symlink_to(precious)
    names = set()
    for _ in range(2):
        with atomic_path(tmp_path / "a.json") as temporary:
            assert stat.S_ISREG(temporary.lstat().st_mode)
            names.add(temporary.name)
            temporary.write_text("new")
    assert len(names) == 2
    assert precious.read_text() == "precious"


def test_the_mode_of_a_file_is_the_users_choice(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def _leave_something(folder: Path) -> None:
    with atomic_path(folder / "a.json"), atomic_folder(folder / "b"):
        os._exit(0)


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_leave_something, args=(tmp_path,))
    child.start()
    child.join()
    assert len(list(tmp_path.glob(f"{PARTIAL}*"))) == 2
    with atomic_path(tmp_path / "a.json") as alive, atomic_folder(tmp_path / "b"):
        write_json(tmp_path / "a.json", {})
        assert alive.exists()
        assert len(list(tmp_path.glob(f"{PARTIAL}*"))) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "b"]


def test_only_files_are_replaced_by_files(precious: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    for name, kind in (("pipe", "a device, a pipe"), ("folder", "a folder"), ("null", "a link")):
        with pytest.raises(InputError, match=f"{name} is {kind}"):
            write_json(tmp_path / name, {})
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for path in (tmp_path / "link", precious):
        with pytest.raises(InputError, match=f"{path.name} is a"), atomic_folder(path, overwrite=True):
            pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", ["../../x", "..", "", "/etc", "a\\b", "a\0", "a\x1b[2J"])
def test_names_in_a_manifest_do_not_lead_out_of_the_run(name: str, tmp_path: Path) -> None:
    manifest = {"task": "gamma", "complete": True, "learners": [{"name": name}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    write_run_checksums(tmp_path)
    for read in (stacking.load, Run.open):
        with pytest.raises(InputError, match=r"manifest\.json names .* which cannot be the name") as refusal:
            read(tmp_path)
        assert str(refusal.value).isprintable()
    with pytest.raises(InputError, match="cannot be the name"):
        fold_folder(tmp_path, name, 0)
