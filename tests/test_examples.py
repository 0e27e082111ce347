"""The scripts in ``examples/`` do what their heads say."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest
from typer.main import get_command

from showerstack.commands.app import app
from showerstack.stacking.prediction.run import Run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name: str) -> ModuleType:
    described = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


conformal_sets = example("conformal_sets")


def test_conformal_sets_hold_the_true_class_as_often_as_stated() -> None:
    rng, n = np.random.default_rng(1), 40_000
    x, labels = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    x[np.arange(n), labels] += 1.0
    log_proba = 3.0 * (x - x.mean(axis=1, keepdims=True))  # too sure of itself: sets mend that
    log_proba -= np.log(np.exp(log_proba).sum(axis=1, keepdims=True))
    known, new = np.arange(n) < n // 2, np.arange(n) >= n // 2
    limit = conformal_sets.limit_of(log_proba[known], labels[known], 0.1)
    held = np.exp(log_proba[new, labels[new]]) >= limit
    assert held.mean() == pytest.approx(0.9, abs=5 * np.sqrt(2 * 0.09 / (n // 2)))
    # Each shower ten times says no more than once: with twenty showers the limit is that of one use of each.
    few = np.repeat(np.flatnonzero(known)[:20], 10)
    groups = np.repeat(np.arange(20), 10)
    once = conformal_sets.limit_of(log_proba[few[::10]], labels[few[::10]], 0.1)
    assert conformal_sets.limit_of(log_proba[few], labels[few], 0.1, groups) == once
    assert conformal_sets.limit_of(log_proba[few[:50]], labels[few[:50]], 0.1, groups[:50]) == 0.0, "five say nothing"


def test_conformal_sets_of_a_run(
    composition_run: Path, tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions = str(Run.open(composition_run).predictions)
    labelled = str(tiny_composition / "composition_test")
    monkeypatch.setattr(sys, "argv", ["conformal_sets.py", predictions, labelled, predictions, str(tmp_path / "s.csv")])
    conformal_sets.main()
    table = pl.read_csv(tmp_path / "s.csv")
    assert table.columns == ["event", "proton", "helium", "carbon", "silicon", "iron"]
    truth = np.load(Path(labelled) / "labels_composition.npy")
    held = table.drop("event").to_numpy()[np.arange(len(truth)), truth]
    assert held.mean() == pytest.approx(0.9, abs=0.01), "of the known showers themselves"


def called(script: str, *arguments: str, folder: Path, **environment: str) -> list[str]:
    """Return how ``showerstack`` is called by a script of SLURM, with stand-ins for the programs around it."""
    told = 'inside=$([ -d "${5:-}" ] && ls "$5" | xargs)\necho "$*${inside:+: $inside}" >> calls'
    others = (("srun", '"$@"'), ("dask", "exec sleep 5"), ("python", "echo tcp://here:1"))
    for name, body in (("showerstack", told), *others):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    command = ["bash", str(EXAMPLES / "slurm" / script), *arguments]
    subprocess.run(command, cwd=folder, env={**environment, "PATH": path}, check=True, timeout=20)
    return (folder / "calls").read_text().splitlines()


def test_scripts_of_slurm_call_commands_that_exist(tmp_path: Path) -> None:
    asked = ("composition", "data", "runs/a")
    calls = called("one_node.sh", *asked, folder=tmp_path, SLURM_CPUS_PER_TASK="2")
    calls = called("cluster.sh", *asked, folder=tmp_path, SLURM_JOB_ID="7")
    assert [call.split()[0] for call in calls] == ["stack", "features", "features", "stack", "predict"]
    for call in calls:
        name, *words = call.split()
        get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]


def test_a_job_array_takes_each_run_once(tmp_path: Path) -> None:
    for name in ("r1", "r2", "r3", "r1.features"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for number, there in (("0", "r1 r3"), ("1", "r2")):
        task = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": "2"}
        part = f"out/part-{number}"
        (call,) = called("runs.sh", "runs/a", "data", "out", folder=tmp_path, **task)
        assert call == f"predict --run runs/a --data {part} --out out --no-table: {there}"
        (tmp_path / "calls").unlink()
    for name in ("r1", "r3"):
        (tmp_path / "out" / f"{name}.npz").touch()
    with pytest.raises(FileNotFoundError, match="calls"):  # all is there
        called("runs.sh", "runs/a", "data", "out", folder=tmp_path, SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_TASK_COUNT="2")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["r1.npz", "r3.npz"]
