"""The product as a user meets it: every entry point, in a process of its own, on small simulated sets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
    "command",
    ["simulate", "features", "stack", "predict", "demo", "learners", "download", "convert", "runs", "datacheck"],
)
def test_help_shows_an_example(command: str) -> None:
    assert f"python cli.py {command}" in run_script("cli.py", command, "--help").stdout.replace("\n", " ")


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
