"""JSON files of a stranger's run, changed entry by entry, checksums made anew: a result, or one line with the file.

Whatever they hold, nothing ends in another error, and no page, card or log steers the terminal that shows it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack.report.card import write_card
from showerstack.report.table_page import write_table_report
from showerstack.runtime.checksums import CHECKSUMS_FILE, checksum
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.logs import LOG, LogFile
from showerstack.stacking.config import TableConfig
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run, load
from showerstack.stacking.training.train import stack
from tests.faults.rounds import rounds
from tests.stacking.conftest import CLASSES, gaussians

GONE = "GONE"
VALUES: tuple[Any, ...] = (GONE, None, 0, -1, 1e300, True, "x", "", [], {}, [1], {"x": 1})
FIT = "learners/table.logistic/fold-0"
FILES = (
    "manifest.json", "metrics_table.json", "meta/stack.json", "meta/calibration.json", "meta/decision.json",
    "table/columns.json", f"{FIT}/learner.json", f"{FIT}/inner/learner.json", f"{FIT}/task.json", "checksums.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a finished run on a table, and new rows."""
    folder = tmp_path_factory.mktemp("forged")
    for name, n in (("train", 200), ("new", 8)):
        points, labels = gaussians(n, n)
        frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "colour": np.array(["red", "blue"])[labels]})
        frame.with_columns(pl.Series("kind", [CLASSES[k] for k in labels])).write_parquet(folder / f"{name}.parquet")
    stack(
        TableConfig(
            run=folder / "run", table=folder / "train.parquet", label="kind", preset="quick", folds=2, repeats=1,
            device="cpu", workers=1, learners=("table.logistic",), categories=("colour",),
        )
    )  # fmt: skip
    return folder / "run", folder / "new.parquet"


def _places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all entries, of lists those of the first two."""
    if at:
        yield at
    inside = node.items() if isinstance(node, dict) else list(enumerate(node))[:2] if isinstance(node, list) else ()
    for key, value in inside:
        yield from _places(value, (*at, key))


def _changed(content: Any, at: tuple[Any, ...], value: Any) -> Any:
    content = json.loads(json.dumps(content))
    node = content
    for key in at[:-1]:
        node = node[key]
    if value == GONE:
        del node[at[-1]]
    else:
        node[at[-1]] = value
    return content


def _forge(run: Path, copy: Path, name: str, content: Any) -> None:
    """Make a copy of a run with other content of a file, and with all checksums of it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy, copy_function=os.link)
    file = copy / name
    file.unlink()
    file.write_text(json.dumps(content))
    for folder in [folder for folder in file.parents if folder.is_relative_to(copy)]:
        lists, inside = folder / CHECKSUMS_FILE, file.relative_to(folder).as_posix()
        if lists != file and lists.exists() and inside in (content := json.loads(lists.read_text()))["files"]:
            n_bytes, digest = checksum(file)
            content["files"][inside] = {"bytes": n_bytes, "sha256": digest}
            lists.unlink()
            file = lists
            file.write_text(json.dumps(content))
    for made in ("report.html", "model_card.md"):
        (copy / made).unlink(missing_ok=True)


@pytest.mark.slow
@rounds(30, 1000)
@pytest.mark.parametrize("name", FILES)
def test_changed_entries_are_one_line(
    name: str, n: int, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("table_page", "run_sections"):
        monkeypatch.setattr(f"showerstack.report.{module}.as_svg", lambda *given, **more: "")
    rng, (run, new) = random.Random(71), made
    content = json.loads((run / name).read_text())
    places = list(_places(content))
    lines = []
    for at in rng.sample(places, min(n, len(places))):
        value = rng.choice(VALUES)
        _forge(run, tmp_path / "copy", name, _changed(content, at, value))
        for work in (
            lambda: predict(load(tmp_path / "copy"), new, Context()).concatenated(),
            lambda: Run.open(tmp_path / "copy").class_values,
            lambda: write_card(tmp_path / "copy"),
            lambda: write_table_report(tmp_path / "copy"),
        ):
            try:
                work()
            except InputError as error:
                lines.append(str(error))
            except Exception as error:
                raise AssertionError(f"{name}, {at}, {value!r}") from error
    named = str(tmp_path / "copy"), str(new)
    assert not [line for line in lines if "\n" in line or not any(name in line for name in named)]
    assert lines or len(places) <= n


@pytest.mark.parametrize(
    ("name", "at", "value", "expected"),
    [
        ("manifest.json", ("learners", 0), 1, r"manifest\.json: learners\.0 holds 1, expected"),
        ("manifest.json", ("config",), None, r"manifest\.json: config holds None, expected"),
        ("manifest.json", ("identity", "folds"), 10**9, r"manifest\.json: identity\.folds holds 1000000000, expected"),
        ("manifest.json", ("identity", "folds"), GONE, r"manifest\.json has no entry 'identity\.folds'"),
        ("table/columns.json", ("columns", 1, "scale"), "a", r"columns\.json: columns\.1\.scale holds 'a', expected"),
        (f"{FIT}/learner.json", ("classes",), GONE, r"learner\.json has no entry 'classes'"),
        (f"{FIT}/inner/learner.json", ("inputs", "plain"), "abc", r"fold-0/learner\.json is not what such a learner"),
        ("meta/stack.json", ("weights",), [], r"meta/stack\.json is not what such a run holds"),
    ],
)  # fmt: skip
def test_file_entry_and_content_are_named(
    name: str, at: tuple[Any, ...], value: Any, expected: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    run, new = made
    _forge(run, tmp_path / "copy", name, _changed(json.loads((run / name).read_text()), at, value))
    with pytest.raises(InputError, match=expected):
        predict(load(tmp_path / "copy"), new, Context()).concatenated()


def test_metrics_are_of_the_system_that_predicts(made: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = made
    metrics = json.loads((run / "metrics_table.json").read_text())
    _forge(run, tmp_path / "copy", "metrics_table.json", metrics | {"shipped": "x"})
    with pytest.raises(InputError, match=r"metrics_table\.json: the whole file .*no scores of 'x'"):
        Run.open(tmp_path / "copy").held_out_scores()


STEERING = ("\x1b[31m", "\x07", "\x9b2J")


@pytest.mark.parametrize("steering", STEERING)
def test_pages_cards_and_logs_do_not_steer_a_terminal(steering: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    run, copy = made[0], tmp_path / "copy"
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["remarks"], manifest["versions"]["numpy"] = [f"<b>{steering}x</b>"], f"<b>{steering}x</b>"
    _forge(run, copy, "manifest.json", manifest)
    for file in (write_table_report(copy), write_card(copy)):
        text = file.read_text(encoding="utf-8")
        assert steering[0] not in text
        assert f"\\x{ord(steering[0]):02x}" in text
        assert "<b>\\x" not in text
    with_log = LogFile(tmp_path / "run.log")
    try:
        raise ValueError(f"{steering} of a library")
    except ValueError as error:
        raised = (type(error), error, error.__traceback__)
        record = LOG.makeRecord("showerstack.x", 40, "f", 1, "a\n2026 INFO forged%s", (steering,), raised)
    with_log.emit(record)
    with_log.close()
    text = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert steering[0] not in text
    assert "a\\n2026 INFO forged" in text.splitlines()[0]
    assert text.splitlines()[1].startswith("Traceback")
