"""Links, devices and names from elsewhere: nothing is written through, replaced or read outside its folder.

Names of files and folders are names, never patterns: brackets, stars, spaces, unicode. Results replace nothing but
files of their own kind.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import cli
from showerstack.features.table import CATALOGUE_FILE, FeatureTable, part_path
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import LOCK_FILE, atomic_folder, atomic_path, check_target, locked, write_json
from showerstack.stacking.config import TableConfig
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run, load
from showerstack.stacking.tables.data import TableEvents
from showerstack.stacking.training.train import stack
from tests.manifests import manifest

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
    with pytest.raises(InputError, match=r"\.lock cannot be opened as a lock"), RunFolder(run).held():
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
    (tmp_path / "manifest.json").write_text(json.dumps(manifest("gamma", learners=[{"name": name}])))
    RunFolder(tmp_path).write_checksums()
    for read in (load, Run.open):
        with pytest.raises(InputError, match=r"manifest\.json names .* which cannot be the name") as refusal:
            read(tmp_path)
        assert str(refusal.value).isprintable()
    with pytest.raises(InputError, match="cannot be the name"):
        RunFolder(tmp_path).fit(name, 0)


ROOT = Path(cli.__file__).parent
NAMES = ("d[1]", "d*", "d?", "schauer ü 空", "~", "k=v", "{a,b}")


def _table(folder: Path, value: float) -> Path:
    folder.mkdir(parents=True)
    frame = pl.DataFrame({"event": np.arange(3, dtype=np.uint32), "x": np.full(3, value, dtype=np.float32)})
    frame.write_parquet(part_path(folder, 0))
    head = {"complete": True, "columns": [{"name": "x"}], "n_events": 3, "shard_events": 3}
    head |= {"fingerprint": "f", "dataset_fingerprint": "d", "features_version": 1, "groups": [], "device": "cpu"}
    write_json(folder / CATALOGUE_FILE, head)
    write_checksums(folder, [CATALOGUE_FILE, part_path(folder, 0).name]).write()
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_feature_tables(name: str, tmp_path: Path) -> None:
    _table(tmp_path / "d1", 1.0)
    table = FeatureTable.open(_table(tmp_path / name, 2.0))
    assert table.matrix(("x",)).ravel().tolist() == [2.0] * 3
    assert table.frame().collect()["x"].to_list() == [2.0] * 3


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_a_run(name: str, tmp_path: Path) -> None:
    for folder, value in (("d1", 1.0), (name, 2.0)):
        (tmp_path / folder).mkdir()
        frame = pl.DataFrame({"x": np.full(3, value, dtype=np.float32), "__label__": np.full(3, int(value))})
        frame.write_parquet(tmp_path / folder / "t.parquet")
    events = TableEvents(tmp_path / name / "t.parquet", ("x",), "f")
    assert len(events) == 3
    assert events.batch(np.arange(3), ("x",), grids=False).table.ravel().tolist() == [2.0] * 3


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_is_not_its_neighbour(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def write(name: str, x: np.ndarray, kinds: tuple[str, str]) -> Path:
        frame = pl.DataFrame({"x": x, "kind": [kinds[int(value > 0)] for value in x]})
        file = tmp_path / f"{name}{suffix}"
        frame.write_csv(file) if suffix == ".csv" else frame.write_parquet(file)
        return file

    x = rng.normal(size=200)
    write("x1", x, ("wrong", "wronger"))
    meant = write("x[1]", x, ("low", "high"))
    standard = {"preset": "quick", "folds": 3, "workers": 1, "device": "cpu"}
    standard["learners"] = ("fake_linear",)
    result = stack(TableConfig(repeats=1, holdout=0.1, run=tmp_path / "run*", table=meant, label="kind", **standard))
    assert set(result.manifest.classes) == {"low", "high"}
    write("new1", np.full(3, -2.0), ("low", "high"))
    new = write("new[1]", np.full(5, 2.0), ("low", "high"))
    predict(load(tmp_path / "run*"), new, Context()).write(tmp_path / "out.csv")
    assert pl.read_csv(tmp_path / "out.csv")["predicted"].to_list() == ["high"] * 5


def test_every_reading_of_a_table_takes_names_literally() -> None:
    result = 0
    for file in ROOT.rglob("*.py"):
        inside = file.relative_to(ROOT).parts
        if inside[0].startswith(".") or inside[0] in ("tests", "build", "data", "runs"):
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "pl.read_" in text or "pl.scan_" in text else ():
            called = node.func if isinstance(node, ast.Call) else None
            if not isinstance(called, ast.Attribute) or not called.attr.startswith(("read_", "scan_")):
                continue
            if isinstance(called.value, ast.Name) and called.value.id == "pl":
                result += 1
                options = {keyword.arg for keyword in node.keywords}
                assert "glob" in options, f"{file}:{node.lineno} takes brackets in a name for a pattern: glob=False"
    assert result >= 8


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
