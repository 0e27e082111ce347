"""The product as a user meets it: every entry point, in a process of its own, on small simulated sets.

Every command of docs/tutorial.md does, with fewer showers, what the page says. The notebook runs from top to bottom, is
kept without outputs, and reaches what it promises.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
DEMO = ("demo", "--train", "1000", "--test", "400")


def run_script(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``python <entry point> ...`` and check its exit code; a traceback is never acceptable."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def sets(tiny_composition: Path, tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both tasks' sets in one folder, as a user has them."""
    folder = tmp_path_factory.mktemp("sets")
    for source in (tiny_composition, tiny_gamma):
        for split in source.iterdir():
            if split.is_dir() and not split.name.endswith(".features"):
                shutil.copytree(split, folder / split.name)
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a demo with few showers, and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    return out, run_script("cli.py", *DEMO, "--out", out).stdout


@pytest.mark.parametrize(
    ("task", "key", "guess"), [("composition", "mean_fraction_error", 0.30), ("gamma", "hadron_survival", 0.75)]
)
def test_stack_predict_and_verify(demo: tuple[Path, str], tmp_path: Path, task: str, key: str, guess: float) -> None:
    out, shown = demo
    run = out / "runs" / task
    for name in ("lightgbm", "mlp", "average", "stack", str(run / "report.html")):
        assert name in shown
    assert (run / "report.html").stat().st_size > 10_000

    metrics = json.loads((run / f"metrics_{task}.json").read_text())
    value = metrics[key] if task == "composition" else metrics["survival_rates"]["75%"][key]
    assert value < guess / 2, "far better than a constant answer even on 1,000 showers"

    run_script("verify.py", "--task", task, "--data", out / "data", run / "predictions.npz")

    # New data without labels, in a folder of its own, give the same answer as the run's own test prediction.
    unlabelled = tmp_path / "new"
    shutil.copytree(out / "data" / f"{task}_test", unlabelled)
    (unlabelled / f"labels_{task}.npy").unlink()
    run_script(
        "cli.py", "predict", "--run", run, "--data", unlabelled, "--out", tmp_path / "new.npz", "--device", "cpu"
    )
    with np.load(run / "predictions.npz") as ours, np.load(tmp_path / "new.npz") as new:
        np.testing.assert_array_equal(ours["log_proba"], new["log_proba"])


def test_a_demo_continues_and_refuses_other_numbers(demo: tuple[Path, str]) -> None:
    out, shown = demo
    files = [
        out / "runs" / task / name for task in ("composition", "gamma") for name in ("report.html", "predictions.npz")
    ]
    before = [file.stat().st_mtime_ns for file in files]
    again = run_script("cli.py", *DEMO, "--out", out).stdout
    tables = [[line for line in text.splitlines() if " ± " in line or "report:" in line] for text in (shown, again)]
    assert tables[0] == tables[1]
    assert len(tables[0]) >= 18, "eight systems and a report for each task"
    assert [file.stat().st_mtime_ns for file in files] == before
    assert "remove" in run_script("cli.py", "demo", "--out", out, "--train", "700", "--test", "200", code=2).stderr


def test_features_command_builds_and_lists(sets: Path, tmp_path: Path) -> None:
    shown = run_script("cli.py", "features", sets / "gamma_test", "--out", tmp_path / "table", "--device", "cpu")
    assert "1,000 events" in shown.stdout
    assert (tmp_path / "table" / "catalogue.json").exists()
    assert "Nmu" in run_script("cli.py", "features", "--list").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("features", "nowhere"), "nowhere"),
        (("features", "{sets}/gamma_test", "--device", "cuda"), "cuda"),
        (("stack", "--run", "{tmp}/r", "--data", "nowhere"), "nowhere"),
        (("stack", "--run", "{tmp}/r", "--data", "{sets}", "--learners", "oracle"), "lightgbm"),
        (("predict", "--run", "{tmp}/r", "--data", "{sets}/gamma_test", "--out", "{tmp}/o.npz"), "r"),
        (("simulate", "--task", "gamma", "--out", "{sets}", "--train", "10", "--test", "10"), "exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    sets: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = run_script("cli.py", *(a.format(sets=sets, tmp=tmp_path) for a in arguments), code=2)
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", TEXT, flags=re.DOTALL)
FEWER = {"--train 8000": "--train 1200", "--test 4000": "--test 500", "--test 2000": "--test 300"}
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?|too few events")
CHOSEN = re.compile(r"(?<=showers: )\w+$|(?<=\d,)[a-z]+$")
"""What ships, and a shower's class: both may be another when showers are few."""


def masked(line: str) -> str:
    """Return a line without its numbers and spaces: what is left does not depend on the number of showers."""
    return re.sub(r"[\s─]+", "", NUMBER.sub("#", CHOSEN.sub("CHOSEN", line.rstrip())))


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that the page shows after it."""
    result: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            result.append((line.removeprefix("$ "), []))
        else:
            result[-1][1].append(line)
    return result


def run(command: list[str], folder: Path) -> str:
    """Run a command as a reader does who has activated the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_set_up_is_that_of_the_makefile() -> None:
    kind, block = BLOCKS[0]
    assert kind == "console"
    message = [command for command, _ in commands(block)]
    assert message[-2:] == ["make env", "source .venv/bin/activate"]
    plan_within_limit = subprocess.run(
        ["make", "--dry-run", "--always-make", "env"], cwd=ROOT, capture_output=True, text=True
    )
    assert "-m venv .venv" in plan_within_limit.stdout, plan_within_limit.stderr
    assert "--constraint constraints.txt --editable '.[test" in plan_within_limit.stdout
    assert "`.venv/bin/python -m pip install --constraint constraints.txt --editable '.[test]'`" in TEXT


def test_every_command_works_and_says_what_the_page_shows(tmp_path: Path) -> None:
    for entry in ("cli.py", "verify.py"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    ran = []
    for kind, block in BLOCKS[1:]:
        if kind == "python":
            ran.append(run([sys.executable, "-c", block], tmp_path))
            continue
        for command, shown in commands(block):
            for full, fewer in FEWER.items():
                command = command.replace(full, fewer)
            said = {masked(line) for line in run(["bash", "-c", command], tmp_path).splitlines()}
            assert [line for line in shown if masked(line) not in said] == [], command
            ran.append(command)
    assert len(ran) >= 9
    for file in ("event-7.png", "runs/first/report.html", "new.npz", "new.csv"):
        assert (tmp_path / file).stat().st_size > 1000
    # The Python block prints the score that verify.py printed for the same predictions.
    assert re.search(r"<fraction error 0\.\d+ \[0\.\d+, 0\.\d+\], 300 events>", ran[-1])


FILE = ROOT / "docs" / "notebook.ipynb"


def test_it_is_kept_without_outputs() -> None:
    # Outputs would show the numbers and warnings of another version, and change with every run.
    for cell in nbformat.read(FILE, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(FILE, as_version=4)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the notebook's folder is made
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "".join(output.get("text", "") for output in outputs)
    assert "<composition run " in said
    (score,) = re.findall(r"<fraction error (0\.\d+) \[", said)
    assert float(score) < 0.15, "much better than guessing (.158) even after 1,500 showers"
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    assert len(pictures[0]) > 20_000
