"""A finished run is what was written: every damaged, swapped or missing file is refused by name where it is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from showerstack.models.registry import LEARNERS
from showerstack.models.registry import load as load_learner
from showerstack.report.doctor.soundness import check_folder
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_json, write_npz
from showerstack.stacking.config import TableConfig
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.training.train import stack
from tests.program import call
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES

SHIPPED = "learners/fake_linear/fold-1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A finished run, another one on other rows, and a table to predict."""
    folder = tmp_path_factory.mktemp("sealed")
    for name, seed in (("one", 1), ("other", 2)):
        points, labels = gaussians(600, seed)
        kinds = [CLASSES[k] for k in labels]
        pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": kinds}).write_parquet(folder / f"{name}.parquet")
        options: dict[str, object] = {"preset": "quick", "folds": 3, "workers": 1, "device": "cpu"}
        options |= {"learners": ("fake_linear",), "pools": ("average",), "test_table": folder / "one.parquet"}
        with patch.dict(LEARNERS, FAKES):
            stack(
                TableConfig(
                    repeats=1, holdout=0.1, run=folder / name, table=folder / f"{name}.parquet", label="kind", **options
                )
            )
    return folder / "one", folder / "other", folder / "one.parquet"


@pytest.fixture
def run(made: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    return shutil.copytree(made[0], tmp_path / "run")


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _reverse(file: Path) -> None:
    with np.load(file) as stored:
        write_npz(file, **{name: array[::-1] if array.ndim else array for name, array in stored.items()})


def _exchange(file: Path) -> None:
    with np.load(file) as stored:
        write_npz(file, **{name: array[:, ::-1] if array.ndim > 1 else array for name, array in stored.items()})


def _redate(file: Path) -> None:
    write_json(file, json.loads(file.read_text()) | {"seed": 9})


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "manifest": ("manifest.json", _redate),
    "pool": ("meta/stack.json", _flip),
    "calibration": ("meta/calibration.json", _flip),
    "decision": ("meta/decision.json", lambda file: file.write_text('{"stack": {}}')),
    "header": (f"{SHIPPED}/learner.json", _flip),
    "model": (f"{SHIPPED}/fitted.npz", _exchange),
    "model cut off": (f"{SHIPPED}/fitted.npz", lambda file: file.write_bytes(file.read_bytes()[:-7])),
    "lost": (f"{SHIPPED}/fitted.npz", Path.unlink),
}
UNREAD: dict[str, tuple[str, Callable[[Path], None]]] = {
    "rows reversed": ("test/stack.npz", _reverse),
    "columns exchanged": ("predictions.npz", _exchange),
    "held out": (f"{SHIPPED}/held_out.npz", _reverse),
    "folds": ("folds.npy", _flip),
    "out of fold": ("oof/stack.parquet", _flip),
}


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("case", DAMAGES)
def test_no_damaged_file_predicts(case: str, run: Path, made: tuple[Path, Path, Path]) -> None:
    name, damage = DAMAGES[case]
    damage(run / name)
    with pytest.raises(InputError, match=f"{name} (is not the file that was written|does not exist)") as caught:
        predict(load(run), made[2], Context()).concatenated()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("stack.json", {"stack": {}}),
        ("stack.json", []),
        ("calibration.json", {"fake_linear": "warm"}),
        ("calibration.json", {}),
        ("decision.json", {"stack": {"kind": 1}}),
        ("decision.json", [1]),
    ],
)
def test_a_file_exchanged_with_its_checksum_is_one_line(name: str, content: object, run: Path) -> None:
    write_json(run / "meta" / name, content)
    RunFolder(run).write_checksums()
    with pytest.raises(InputError, match=rf"meta/{name} is not what such a run holds") as caught:
        load(run)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", [f"{SHIPPED}/learner.json", f"{SHIPPED}/fitted.npz", "manifest.json"])
def test_no_file_of_another_run_predicts(name: str, run: Path, made: tuple[Path, Path, Path]) -> None:
    shutil.copy(made[1] / name, run / name)
    with pytest.raises(InputError, match=f"{name} is not the file that was written"):
        predict(load(run), made[2], Context()).concatenated()


@pytest.mark.usefixtures("fakes")
def test_a_learner_from_another_fold_is_refused(run: Path, made: tuple[Path, Path, Path]) -> None:
    shutil.rmtree(run / SHIPPED)
    shutil.copytree(run / "learners/fake_linear/fold-0", run / SHIPPED)
    with pytest.raises(InputError, match=f"{SHIPPED}/.* is not the file that was written"):
        predict(load(run), made[2], Context()).concatenated()


@pytest.mark.usefixtures("fakes")
def test_an_emptied_list_or_none_is_refused(run: Path) -> None:
    file = run / "checksums.json"
    whole = json.loads(file.read_text())
    for names in ([], ["manifest.json"], [name for name in whole["files"] if not name.startswith("learners/")]):
        write_json(file, whole | {"files": {name: whole["files"][name] for name in names}})
        with pytest.raises(InputError, match=r"checksums\.json does not name"):
            load(run)
        assert len(check_folder(run)[1]) > 0
    file.unlink()
    with pytest.raises(InputError, match=r"has no checksums.json.*train into a new folder"):
        load(run)


@pytest.mark.usefixtures("fakes")
def test_files_that_are_not_used_are_not_read(run: Path, made: tuple[Path, Path, Path]) -> None:
    for name, damage in UNREAD.values():
        damage(run / name)
    with patch("showerstack.stacking.prediction.predictable.open_predictor", wraps=load_learner) as loaded:
        predict(load(run), made[2], Context()).concatenated()
    assert loaded.call_count == 3


@pytest.mark.parametrize("case", [*DAMAGES, *UNREAD])
def test_check_names_every_damage(case: str, run: Path) -> None:
    assert call("cli.py", "check", run).stdout.splitlines() == [f"{run} is a sound run"]
    name, damage = {**DAMAGES, **UNREAD}[case]
    damage(run / name)
    (line,) = call("cli.py", "check", run, code=1).stdout.splitlines()
    assert str(run / name) in line


def test_check_of_datasets_tables_and_other_things(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        check_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="neither a run, nor a feature table, nor a dataset"):
        check_folder(tmp_path)
    (tmp_path / "catalogue.json").write_text("{}")
    assert check_folder(tmp_path)[0] == "feature table"
    assert "has no checksums.json" in check_folder(tmp_path)[1][0]


@pytest.mark.usefixtures("fakes")
def test_a_run_killed_before_its_last_file_is_completed(run: Path, made: tuple[Path, Path, Path]) -> None:
    before = (run / "predictions.npz").read_bytes()
    (run / "checksums.json").unlink()
    config = json.loads((run / "manifest.json").read_text())["config"] | {"run": run}
    result = stack(TableConfig(**{name: value for name, value in config.items() if value is not None}))
    assert result.predictions is not None
    assert (run / "predictions.npz").read_bytes() == before
    assert check_folder(run) == ("run", [])


UNFINISHED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "held out": (f"{SHIPPED}/held_out.npz", _reverse),
    "held out of another fold": (f"{SHIPPED}/held_out.npz", lambda f: _copy(f.parent.with_name("fold-0") / f.name, f)),
    "test": (f"{SHIPPED}/test.npz", _reverse),
    "test of another fold": (f"{SHIPPED}/test.npz", lambda f: _copy(f.parent.with_name("fold-0") / f.name, f)),
    "test cut off": (f"{SHIPPED}/test.npz", lambda file: file.write_bytes(file.read_bytes()[:-7])),
    "test lost": (f"{SHIPPED}/test.npz", Path.unlink),
    "model": (f"{SHIPPED}/fitted.npz", _exchange),
    "record": (f"{SHIPPED}/task.json", lambda file: file.write_text("[]")),
    "checksums": (f"{SHIPPED}/checksums.json", lambda file: file.write_text('{"files": {}}')),
}


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("case", UNFINISHED)
def test_fits_that_were_damaged_before_the_run_goes_on_are_done_again(case: str, run: Path) -> None:
    before = (run / "predictions.npz").read_bytes(), (run / "oof/stack.parquet").read_bytes()
    for name in ("checksums.json", "predictions.npz", "oof/stack.parquet"):
        (run / name).unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    write_json(run / "manifest.json", manifest | {"complete": False})
    name, damage = UNFINISHED[case]
    damage(run / name)
    config = manifest["config"] | {"run": run}
    result = stack(TableConfig(**{name: value for name, value in config.items() if value is not None}))
    remarks = [remark for remark in result.manifest.remarks if "fitted again" in remark]
    assert len(remarks) == 1
    assert remarks[0].startswith("fake_linear fold 1 is fitted again: ")
    assert str(run / name) in remarks[0]
    assert before == ((run / "predictions.npz").read_bytes(), (run / "oof/stack.parquet").read_bytes())
    assert check_folder(run) == ("run", [])
