"""The demo with what is done with its runs, the entry points, and commands that cannot be obeyed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.program import call
from tests.told import blocks, not_said, run_script


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a demo, and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    return out, run_script("cli.py", "demo", "--out", out).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "key", "guess"), [("composition", "mean_fraction_error", 0.30), ("gamma", "hadron_survival", 0.75)]
)
def test_stack_predict_and_verify(demo: tuple[Path, str], tmp_path: Path, task: str, key: str, guess: float) -> None:
    out, shown = demo
    run = out / "runs" / task
    for name in (
        "published.",
        "lightgbm",
        "pretrained",
        "gain in",
        "average",
        "stack",
        "±: one standard error",
        str(run / "report.html"),
    ):
        assert name in shown
    if task == "composition":
        (block,) = (text for kind, text in blocks("README.md") if kind == "text")
        assert not_said(block.splitlines(), shown, numbers=True) == [], shown
    assert (run / "report.html").stat().st_size > 10_000

    metrics = json.loads((run / f"metrics_{task}.json").read_text())
    value = metrics[key] if task == "composition" else metrics["survival_rates"]["75%"][key]
    assert value < guess / 2, "far better than a constant answer even on few showers"

    run_script("verify.py", "--task", task, "--data", out / "data", run / "predictions.npz")

    # New data without labels, in a folder of its own, give the same answer as the run's own test prediction.
    unlabelled = tmp_path / "new"
    shutil.copytree(out / "data" / f"{task}_test", unlabelled)
    (unlabelled / f"labels_{task}.npy").unlink()
    options = ("--device", "cpu")
    run_script("cli.py", "predict", "--run", run, "--data", unlabelled, "--out", tmp_path / "new.npz", *options)
    with np.load(run / "predictions.npz") as ours, np.load(tmp_path / "new.npz") as new:
        np.testing.assert_array_equal(ours["log_proba"], new["log_proba"])


@pytest.mark.slow
def test_a_demo_continues_and_refuses_other_numbers(demo: tuple[Path, str]) -> None:
    out, shown = demo
    files = [
        out / "runs" / task / name for task in ("composition", "gamma") for name in ("report.html", "predictions.npz")
    ]
    before = [file.stat().st_mtime_ns for file in files]
    again = run_script("cli.py", "demo", "--out", out).stdout
    tables = [[line for line in text.splitlines() if " ± " in line or "report:" in line] for text in (shown, again)]
    assert tables[0] == tables[1]
    assert len(tables[0]) >= 18, "all systems and a report for each task"
    assert [file.stat().st_mtime_ns for file in files] == before
    assert "remove" in call("cli.py", "demo", "--out", out, "--train", "800", "--test", "200", code=2).stderr


@pytest.mark.slow
def test_entry_points_are_scripts(tmp_path: Path) -> None:
    assert "Nmu" in run_script("cli.py", "features", "--list").stdout
    test = tmp_path / "composition_test"
    test.mkdir()
    np.save(test / "labels_composition.npy", np.arange(100) % 5)
    np.save(test / "features.npy", np.full((100, 5), 15, np.float16))
    np.savez(tmp_path / "predictions.npz", predictions=np.arange(100) % 5)
    assert "fraction error 0.0" in run_script("verify.py", "--data", tmp_path, tmp_path / "predictions.npz").stdout


@pytest.mark.slow
def test_features_command_builds(tiny_gamma: Path, tmp_path: Path) -> None:
    data = tiny_gamma / "gamma_test"
    shown = call("cli.py", "features", data, "--out", tmp_path / "table", "--device", "cpu", "--workers", "1")
    assert "1,000 events" in shown.stdout
    assert (tmp_path / "table" / "catalogue.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("features", "{sets}/gamma_test", "--device", "cuda"), "cuda"),
        (("stack", "--run", "{tmp}/r", "--data", "nowhere"), "nowhere"),
        (("stack", "--run", "{tmp}/r", "--data", "{sets}", "--learners", "oracle"), "lightgbm"),
        (("predict", "--run", "{tmp}/r", "--data", "{sets}/gamma_test", "--out", "{tmp}/o.npz"), "r"),
        (("simulate", "--task", "gamma", "--out", "{sets}", "--train", "10", "--test", "10"), "exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tiny_gamma: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = call("cli.py", *(a.format(sets=tiny_gamma, tmp=tmp_path) for a in arguments), code=2)
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
