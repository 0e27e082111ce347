"""What is not a learner's fault ends the run, and is tried again; unfinished fits continue where they stopped.

Workers end with the run that started them, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from showerstack.models.base.spec import LearnerSpec
from showerstack.models.networks import loop
from showerstack.models.registry import LEARNERS
from showerstack.report.outcome import outcome
from showerstack.runtime.errors import InputError, remedy_of
from showerstack.runtime.processes import in_processes
from showerstack.stacking.config import TableConfig
from showerstack.stacking.layout import CHECKPOINTS
from showerstack.stacking.training.train import StackResult, stack
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.work import REASONS, end


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the learner that fails once."""
    spec = LearnerSpec("unlucky", "tests.stacking.work:Unlucky", "", "scalars", source="test")
    monkeypatch.setitem(LEARNERS, "unlucky", spec)


def _stack(
    table: Path, run: Path, learner: str, settings: dict[str, Any], workers: int = 1, **more: Any
) -> StackResult:
    return stack(
        TableConfig(repeats=1, holdout=0.1,
            run=run, table=table, label="kind", preset="quick", folds=2, device="cpu", workers=workers,
            learners=(learner,), settings={learner: settings}, **more,
        )
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("unlucky")
@pytest.mark.parametrize("reason", REASONS)
def test_what_is_not_the_learners_fault_is_tried_again(
    reason: str, two_gaussians: tuple[Path, Path], tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", {"mark": str(tmp_path / "mark"), "reason": reason}
    workers = 2 if reason == "lost" else 1
    with pytest.raises(InputError, match="start the same command again") as refusal:
        _stack(two_gaussians[0], run, "unlucky", settings, workers)
    assert str(refusal.value).isprintable()
    result = _stack(two_gaussians[0], run, "unlucky", settings)
    assert [row.status for row in result.manifest.learners] == ["ok"]
    assert result.manifest.complete


def test_a_learners_own_errors_are_its_own() -> None:
    for error in (ValueError("NaN in row 3"), RuntimeError("loss is not finite"), InputError("no allocation of names")):
        assert remedy_of(error) is None


@pytest.mark.usefixtures("fakes")
def test_a_learner_left_out_is_told(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    stack(
        TableConfig(repeats=1, holdout=0.1,
            run=run, table=two_gaussians[0], label="kind", preset="quick", folds=2, device="cpu", workers=1,
            learners=("fake_linear", "fake_failing"),
        )
    )  # fmt: skip
    console = Console(width=200)
    with console.capture() as captured:
        console.print(outcome(run).shown, soft_wrap=True)
    message = captured.get()
    assert "learner fake_failing was left out, fold 0: RuntimeError: this learner always fails" in message
    assert "fake_linear was left out" not in message


class _Killed(BaseException):
    pass


NETWORK = {"epochs": 4, "batch_size": 256, "dropout": 0.2, "patience": 4}


@pytest.mark.parametrize("damage", ["none", "flipped", pytest.param("cut", marks=pytest.mark.faults)])
def test_a_killed_network_continues_and_ends_with_the_same_bytes(
    damage: str, two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    _stack(two_gaussians[0], whole, "mlp", NETWORK, test_table=two_gaussians[1])
    epochs: list[int] = []
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
    write = loop.write_checkpoint

    def killing(file: Path, state: Any) -> None:
        write(file, state)
        epochs.append(state.epoch)
        if len(epochs) == 2:
            raise _Killed

    monkeypatch.setattr(loop, "write_checkpoint", killing)
    with pytest.raises(_Killed):
        _stack(two_gaussians[0], run, "mlp", NETWORK, test_table=two_gaussians[1])
    (state,) = (run / CHECKPOINTS / "table.mlp").glob("fold-0-*/training.safetensors")
    content = bytearray(state.read_bytes())
    if damage == "flipped":
        content[-100] ^= 1
    state.write_bytes(content[:-1000] if damage == "cut" else content)
    _stack(two_gaussians[0], run, "mlp", NETWORK, test_table=two_gaussians[1])
    assert epochs == ([1, 2, 3, 4] if damage == "none" else [1, 2, 1, 2, 3, 4]) + [1, 2, 3, 4]
    assert not (run / CHECKPOINTS).exists()
    assert (run / "predictions.npz").read_bytes() == (whole / "predictions.npz").read_bytes()
    for fold in range(2):
        name = f"learners/table.mlp/fold-{fold}/inner/network.safetensors"
        assert (run / name).read_bytes() == (whole / name).read_bytes()


ROOT = Path(__file__).parents[2]
SECONDS = 60.0
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
            deadline = time.monotonic() + 1800
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


@pytest.mark.faults
def test_workers_end_when_the_run_is_killed(tmp_path: Path) -> None:
    with _run("folds", tmp_path, "fake_waiting") as (child, workers):
        child.kill()
        child.communicate()
        assert not _wait_for_their_end(workers)


@pytest.mark.slow
def test_a_polite_end_takes_workers_and_temporary_files_along(tmp_path: Path) -> None:
    with _run("folds", tmp_path, "fake_waiting") as (child, workers):
        assert list(tmp_path.rglob(".partial-*"))
        child.terminate()
        _, message = child.communicate(timeout=600)
        assert child.returncode not in (0, -signal.SIGTERM)
        assert "Traceback" not in message
        assert not _wait_for_their_end(workers)
        assert not list(tmp_path.rglob(".partial-*"))


def test_a_lost_worker_is_told_in_one_line() -> None:
    with pytest.raises(InputError, match="a worker process was lost"):
        list(in_processes(end, [(1,), (2,)], workers=2))
    for workers in (1, 2):
        assert sorted(in_processes(abs, [(-1,), (-2,)], workers=workers)) == [1, 2]
