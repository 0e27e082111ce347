"""Atomic writes and readable refusals."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from runtime.arrays import open_npy
from runtime.errors import InputError
from runtime.files import atomic_folder, atomic_path, hash_file, read_json, write_json, write_npz


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
