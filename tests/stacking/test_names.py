"""Names of files and folders are names, never patterns: brackets, stars, spaces, unicode."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import cli
from features.table import CATALOGUE_FILE, FeatureTable, part_path
from runtime.checksums import write_checksums
from runtime.files import write_json
from stacking.inputs.events import TableEvents
from stacking.predict import predict_to_file
from stacking.run.config import TableConfig
from stacking.train import stack_table

ROOT = Path(cli.__file__).parent
NAMES = ("d[1]", "d*", "d?", "schauer ü 空", "~", "k=v", "{a,b}")


def _table(folder: Path, value: float) -> Path:
    folder.mkdir(parents=True)
    frame = pl.DataFrame({"event": np.arange(3, dtype=np.uint32), "x": np.full(3, value, dtype=np.float32)})
    frame.write_parquet(part_path(folder, 0))
    head = {"complete": True, "columns": [{"name": "x"}], "n_events": 3, "shard_events": 3}
    head |= {"fingerprint": "f", "dataset_fingerprint": "d", "code_version": "c", "groups": [], "device": "cpu"}
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
    standard = {"preset": "quick", "folds": 3, "workers": 1, "device": "cpu", "fast": False}
    standard["learners"] = ("fake_linear",)
    result = stack_table(
        TableConfig(repeats=1, holdout=0.1, run=tmp_path / "run*", table=meant, label="kind", **standard)
    )
    assert set(result.manifest["classes"]) == {"low", "high"}
    write("new1", np.full(3, -2.0), ("low", "high"))
    new = write("new[1]", np.full(5, 2.0), ("low", "high"))
    predict_to_file(tmp_path / "run*", new, tmp_path / "out.csv", trusted=True)
    assert pl.read_csv(tmp_path / "out.csv")["predicted"].to_list() == ["high"] * 5


def test_every_reading_of_a_table_takes_names_literally() -> None:
    found = 0
    for file in ROOT.rglob("*.py"):
        inside = file.relative_to(ROOT).parts
        if inside[0].startswith(".") or inside[0] in ("tests", "build", "data", "runs"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if not isinstance(called, ast.Attribute) or not called.attr.startswith(("read_", "scan_")):
                continue
            if isinstance(called.value, ast.Name) and called.value.id == "pl":
                found += 1
                options = {keyword.arg for keyword in node.keywords}
                assert "glob" in options, f"{file}:{node.lineno} takes brackets in a name for a pattern: glob=False"
    assert found >= 8
