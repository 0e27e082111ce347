"""Commands killed at any change of a file and started again: the same bytes as without the kill, nothing left over."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from tests.faults.kills import COMMANDS
from tests.faults.rounds import rounds
from tests.showers.test_convert import raw_mode
from tests.showers.test_download import Handler, Server
from tests.stacking.conftest import CLASSES, gaussians

ROOT = Path(__file__).parents[2]


def _kill(command: str, source: object, folder: Path, how: str, number: int, survived: Counter[str]) -> int:
    driver = [sys.executable, "-m", "tests.faults.killed", command, str(source), str(folder), how, str(number)]
    done = subprocess.run(driver, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kills = int(done.stdout.split()[-1])
    survived[f"kills of {command} at random {how}" if how == "moments" else f"kills of {command} at {how}"] += kills
    return kills


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small table of two classes."""
    points, labels = gaussians(400, seed=1)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


@pytest.mark.slow
@rounds(1, 20)
def test_stack(n: int, table: Path, tmp_path: Path, survived: Counter[str]) -> None:
    assert _kill("stack", table, tmp_path, "moments", n, survived) == n


@pytest.mark.faults
def test_stack_at_changes_of_files(table: Path, tmp_path: Path, survived: Counter[str]) -> None:
    assert _kill("stack", table, tmp_path, "steps", 15, survived) >= 16


@pytest.mark.slow
@rounds(1, 10)
def test_features(n: int, tiny_composition: Path, tmp_path: Path, survived: Counter[str]) -> None:
    assert _kill("features", tiny_composition / "composition_test", tmp_path, "moments", n, survived) == n


@pytest.mark.faults
def test_simulate(tmp_path: Path, survived: Counter[str]) -> None:
    assert _kill("simulate", "", tmp_path, "moments", 5, survived) == 5


@pytest.mark.faults
def test_convert(tmp_path: Path, survived: Counter[str]) -> None:
    (tmp_path / "raw").mkdir()
    for seed, mode in enumerate(("qgs_spectra", "epos_spectra")):
        raw_mode(tmp_path / "raw", mode, 3_000, seed)
    assert _kill("convert", tmp_path / "raw", tmp_path, "moments", 5, survived) == 5


@pytest.mark.faults
@pytest.mark.parametrize(("command", "stride"), [("datacheck", 3), ("spectra", 30)])
def test_analyses(
    command: str, stride: int, composition_run: Path, composition_sky: Path, tiny_composition: Path, tmp_path: Path,
    survived: Counter[str],
) -> None:  # fmt: skip
    places = {"run": composition_run, "sky": composition_sky}
    places |= {split: tiny_composition / f"composition_{split}" for split in ("train", "test")}
    (tmp_path / "source").mkdir()
    for name, place in places.items():
        (tmp_path / "source" / name).symlink_to(place)
    assert _kill(command, tmp_path / "source", tmp_path, "steps", stride, survived) >= 3


@pytest.mark.faults
def test_pretrain(tmp_path: Path, survived: Counter[str]) -> None:
    assert _kill("pretrain", "", tmp_path, "steps", 3, survived) >= 10


def _slowly(handler: Handler, whole: bytes, asked: str | None) -> None:
    begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    handler.send_response(206 if begin else 200)
    handler.send_header("Content-Length", str(len(whole) - begin))
    handler.send_header("ETag", handler.server.tag)
    if begin:
        handler.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
    handler.end_headers()
    for place in range(begin, len(whole), 1 << 16):
        try:
            handler.wfile.write(whole[place : place + (1 << 16)])
        except ConnectionError:
            return
        time.sleep(0.02)


@contextmanager
def _slow_server(data: Path) -> Iterator[Server]:
    with Server() as running:
        running.files = {f"/{file.relative_to(data)}": file.read_bytes() for file in data.rglob("*.npy")}
        running.hostile = _slowly
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.faults
def test_download(tiny_gamma: Path, tmp_path: Path, survived: Counter[str]) -> None:
    with _slow_server(tiny_gamma) as server:
        assert _kill("download", server.url, tmp_path, "moments", 5, survived) == 5


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.faults
def test_killed_commands_go_on_or_start_over(command: str, tmp_path: Path, survived: Counter[str]) -> None:
    driver = [sys.executable, "-m", "tests.faults.kills", command, str(tmp_path), "3"]
    done = subprocess.run(driver, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kills = int(done.stdout.split()[-1])
    assert kills >= 10, "the command was not killed often enough to tell"
    survived[f"kills of {command} at a change of a file"] += kills
