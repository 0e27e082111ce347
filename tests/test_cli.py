"""The command line itself: what it makes of options before any package of ours is at work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cli
from report.finished import keep_outcome, kept_outcome

HERE = Path(cli.__file__).parent


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run a command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["cli.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "~/run"),
        ("compare", "~/run", "~/run"),
        ("predict", "--run=~/run", "--data", "~/d", "--out", "~/o.npz"),
    ],
)
def test_home_is_expanded(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(monkeypatch, *arguments) == 2
    shown = capsys.readouterr().err
    assert f"{tmp_path}/run" in shown
    assert "~" not in shown


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_an_empty_list_of_learners_is_refused(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "stack", "--run", tmp_path / "run", "--learners", names) == 2
    assert "learners: expected a list of different names, at least one" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_mistyped_learner_is_told_before_anything_slow_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, runpy; sys.argv = ['cli.py', 'stack', '--run', 'r', '--learners', 'lightgbm,xgbost']\n"
        "try:\n    runpy.run_path('cli.py', run_name='__main__')\n"
        "except SystemExit as ended: print('code', ended.code)\n"
        "print('heavy:', sorted({'torch', 'numba', 'polars', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    asked = subprocess.run([sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True)
    assert asked.stderr == (
        "error: unknown learner 'xgbost': did you mean xgboost? (python cli.py learners lists them)\n"
    )
    assert asked.stdout.endswith("code 2\nheavy: []\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("display", "data/compositon_test", "1"), "is not a folder (did you mean data/composition_test?)"),
        (("features", "dta/composition_tst"), "is not a folder (did you mean data/composition_test?)"),
        (("check", "data/composition-test"), "is not a folder (did you mean data/composition_test?)"),
        (("report", "runs/gama"), "is not a finished run folder (did you mean runs/gamma?)"),
        (("stack", "--run", "r", "--table", "win.csv", "--label", "x"), "does not exist (did you mean wine.csv?)"),
        (("display", "data/elsewhere", "1"), "is not a folder: expected"),
        (("report", "runs/gamma"), "is not a finished run folder: it has no"),
    ],
)
def test_near_names_are_suggested_for_paths_that_do_not_exist(
    arguments: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder in ("data/composition_test", "runs/gamma"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wine.csv").write_text("a,x\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("stack", "--run", "r", "--task", "gama"), "Did you mean 'gamma'?"),
        (("stack", "--run", "r", "--preset", "gud"), "Did you mean 'good'?"),
        (("convert", "--raw", "r", "--out", "o", "--protocol", "20226"), "Did you mean '2026'?"),
        (("stack", "--run", "r", "--device", "zzz"), "'zzz' is not one of"),
        (("stack", "--run", "r", "--device", "gpu"), "Did you mean 'cuda'?"),
        (("stak", "--run", "r"), "Did you mean 'stack'?"),
    ],
)
def test_near_words_are_suggested_for_mistyped_choices(
    arguments: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert expected in shown
    assert "Value error" not in shown


def test_a_finished_run_answers_at_once(tmp_path: Path) -> None:
    folder, data = tmp_path / "run [1] é", tmp_path / "data"
    (data / "gamma_test").mkdir(parents=True)
    (data / "gamma_train").mkdir()
    (data / "gamma_test" / "labels_gamma.npy").write_bytes(b"old")
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    asked = {
        "run": str(folder), "preset": "quick", "learners": None, "folds": None, "seed": 1, "device": "auto",
        "workers": None, "scheduler": None, "prune": 2e-4, "time_limit": None, "task": "gamma",
        "data": str(data), "features": None,
    }  # fmt: skip
    inputs = [data / "gamma_train", data / "gamma_test"]
    keep_outcome(folder, asked, inputs, "the table\n")
    arguments = ["stack", "--run", str(folder), "--task", "gamma", "--data", str(data), "--preset", "quick"]
    code = (
        f"import sys, runpy; sys.argv = ['cli.py', *{arguments!r}]\n"
        "try:\n    runpy.run_path('cli.py', run_name='__main__')\n"
        "except SystemExit as ended: print('code', ended.code)\n"
        "print('heavy:', sorted({'torch', 'numba', 'polars', 'scipy', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    asked_again = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert asked_again.stdout == "the table\ncode 0\nheavy: []\n", asked_again.stderr
    assert kept_outcome(folder, asked | {"seed": 2}, inputs) is None
    (data / "gamma_test" / "labels_gamma.npy").write_bytes(b"other")
    assert kept_outcome(folder, asked, inputs) is None, "a changed file is looked at"


def test_quiet_and_json_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "check", tmp_path, "--quiet", "--json") == 2
    assert "choose one" in capsys.readouterr().err


def test_check_and_features_answer_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert run(monkeypatch, "check", tmp_path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["sound"]) == ("run", False)
    assert "has no checksums.json" in found["problems"][0]
    assert run(monkeypatch, "check", tmp_path, "--quiet") == 1
    assert capsys.readouterr().out == ""
    assert run(monkeypatch, "features", "--list", "--group", "reconstruction", "--json") == 0
    assert {"E", "Ze"} <= {row["name"] for row in json.loads(capsys.readouterr().out)}


def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("features.build.build_table", interrupted)
    assert run(monkeypatch, "features", "my data") == 130
    said = "interrupted: what is finished is kept; to go on: python cli.py features 'my data'\n"
    assert capsys.readouterr().err == said


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert re.fullmatch(r"showerstack \d+\.\d+\S*\n", capsys.readouterr().out)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, runpy; sys.argv = ['cli.py', '--help']\n"
        "try:\n    runpy.run_path('cli.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print('heavy:', sorted({'torch', 'numba', 'numpy', 'polars', 'scipy', 'rich.progress'} & set(sys.modules)))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True, check=True
    )
    assert asked.stdout.rstrip().endswith("heavy: []")


def test_reading_runs_imports_no_library_of_learners() -> None:
    # Each takes seconds, and every command on a run would pay for all of them.
    code = (
        "import sys, stacking.train\n"
        "print('heavy:', sorted({'torch', 'lightgbm', 'catboost', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True, check=True
    )
    assert asked.stdout == "heavy: []\n"
