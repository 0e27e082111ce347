"""Workers end with the run that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from runtime.errors import InputError
from runtime.processes import in_processes
from tests.stacking.conftest import CLASSES, gaussians

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
"""How long a worker may outlive its run."""


@contextmanager
def _run(what: str, folder: Path, learners: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a run on a small table; yield it and its workers once these stand still."""
    marks, table = folder / "marks", folder / "table.parquet"
    marks.mkdir()
    points, labels = gaussians(400, seed=1)
    pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]}).write_parquet(table)
    arguments = ["stack", "--table", table, "--label", "kind", "--run", folder / "run", "--learners", learners]
    arguments += ["--preset", "quick", "--folds", "2", "--workers", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "tests.faults.commands", what, marks, *arguments]
    with subprocess.Popen(
        list(map(str, command)), cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            deadline = time.monotonic() + 200
            while len(list(marks.iterdir())) < 2:
                assert child.poll() is None, child.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield child, [int(file.name) for file in marks.iterdir()]
        finally:
            child.kill()


def _alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for_their_end(processes: list[int]) -> list[int]:
    """Return which of the processes are alive after :data:`SECONDS`, and end those."""
    deadline = time.monotonic() + SECONDS
    while (alive := [one for one in processes if _alive(one)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for one in alive:
        os.kill(one, signal.SIGKILL)
    return alive


@pytest.mark.parametrize(
    ("what", "learners"), [("folds", "fake_waiting"), ("meta-learners", "fake_linear,fake_useless")]
)
def test_workers_end_when_the_run_is_killed(what: str, learners: str, tmp_path: Path) -> None:
    with _run(what, tmp_path, learners) as (child, workers):
        child.kill()
        child.communicate()
        assert not _wait_for_their_end(workers)


def test_a_polite_end_takes_workers_and_temporary_files_along(tmp_path: Path) -> None:
    with _run("folds", tmp_path, "fake_waiting") as (child, workers):
        assert list(tmp_path.rglob(".partial-*"))
        child.terminate()
        _, message = child.communicate(timeout=60)
        assert child.returncode not in (0, -signal.SIGTERM)
        assert "Traceback" not in message
        assert not _wait_for_their_end(workers)
        assert not list(tmp_path.rglob(".partial-*"))


def _end(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_lost_worker_is_told_in_one_line() -> None:
    with pytest.raises(InputError, match="a worker process was lost"):
        list(in_processes(_end, [(1,), (2,)], workers=2))
    assert list(in_processes(abs, [(-1,), (-2,)], workers=2)) == [1, 2]
    assert list(in_processes(abs, [(-1,), (-2,)], workers=1)) == [1, 2]
