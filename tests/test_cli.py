"""The command line itself: what it makes of options before any package of ours is at work."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import cli
from report.finished import keep_outcome, kept_outcome
from runtime.checksums import write_checksums
from runtime.files import write_json

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


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("stack --run r --data d --label x", "--label has no effect without --table"),
        ("stack --run r --group g", "--group has no effect without --table"),
        ("stack --run r --id i", "--id has no effect without --table"),
        ("stack --run r --columns a,b", "--columns has no effect without --table"),
        ("stack --run r --separator ;", "--separator has no effect without --table"),
        ("stack --run r --test-table t.csv", "--test-table has no effect without --table"),
        ("stack --run r --table t.csv --label x --data data", "--data has no effect with --table"),
        ("stack --run r --table t.csv --label x --task composition", "--task has no effect with --table"),
        ("stack --run r --table t.csv --label x --features f", "--features has no effect with --table"),
        ("stack --config c.toml --table t.csv --label x", "data (in c.toml) has no effect with --table"),
        ("features d --group lateral", "--group has no effect without --list"),
        ("features d --format md", "--format has no effect without --list"),
        ("features --list --out o", "--out has no effect with --list"),
        ("features d --list", "DATASET has no effect with --list"),
        ("features --list --json --format md", "--format has no effect with --json"),
        ("verify p.npz --description words", "--description has no effect without --log"),
        ("simulate --task gamma --raw --model qgs", "--model has no effect with --raw"),
        ("simulate --task gamma --raw --test 5", "--test has no effect with --raw"),
        ("simulate --check --task gamma", "--task has no effect with --check"),
        ("simulate --check --raw", "--raw has no effect with --check"),
        ("simulate --task measured --spectrum s.toml --train 5", "--train has no effect with --task measured"),
        ("simulate --task gamma --spectrum s.toml", "--spectrum has no effect without --task measured"),
        ("download --task measured --protocol 2026", "--protocol has no effect with --task measured"),
        ("download --task gamma --runs a", "--runs has no effect without --task measured"),
        ("download --task gamma --times", "--times has no effect without --task measured"),
        ("convert --raw r --out o --runs a", "--runs has no effect with --raw"),
        ("convert --raw r --out o --delete-raw", "--delete-raw has no effect with --raw"),
        ("convert --raw r --out o --predict run", "--predict has no effect with --raw"),
        ("convert --measured m --out o --task gamma", "--task has no effect with --measured"),
        ("convert --measured m --out o --trusted", "--trusted has no effect without --predict"),
        ("sky-map --data d --share .1", "--share has no effect without --run"),
        ("sky-map --data d --trusted", "--trusted has no effect without --run"),
        ("spectra --run r --data d --exposure 1 --knee-toys 0 --knee-sharpness 4", "--knee-sharpness has no effect wi"),
        ("doctor d --gpu", "--gpu has no effect with DATASETS"),
    ],
)
def test_an_option_that_would_not_be_used_is_refused(
    arguments: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('run = "r"\ndata = "data"\n')
    assert run(monkeypatch, *arguments.split(" ")) == 2
    told = capsys.readouterr().err
    assert flag in told
    assert told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml"], "nothing was written"


@pytest.mark.parametrize(
    ("task", "arguments", "flag"),
    [
        ("gamma", "predict --run run --data d --out o.npz --separator ;", "--separator has no effect with a run on sh"),
        ("table", "predict --run run --data d --out o.csv --anyway", "--anyway has no effect with a run on a table"),
        (
            "table",
            "predict --run run --data d --out o.csv --no-table",
            "--no-table has no effect with a run on",
        ),
        ("table", "report run --data d", "--data has no effect with a run on a table"),
        ("table", "leaderboard run --data d", "--data has no effect with runs on tables"),
    ],
)
def test_what_a_run_was_trained_on_decides_which_options_are_used(
    task: str,
    arguments: str,
    flag: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("run/manifest.json"), {"complete": True, "task": task})
    write_checksums(Path("run"), ["manifest.json"])
    assert run(monkeypatch, *arguments.split(" ")) == 2
    assert flag in capsys.readouterr().err


def test_options_that_are_used_are_taken_also_where_they_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "stack", "--run", "r", "--task", "composition", "--data", "data") == 2
    assert "has no effect" not in capsys.readouterr().err
    assert run(monkeypatch, "features", "--list", "--format", "table", "--group", "shape") == 0


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
    labels = data / "gamma_test" / "labels_gamma.npy"
    before = labels.stat()
    labels.write_bytes(b"new")
    os.utime(labels, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept_outcome(folder, asked, inputs) is None, "a changed file is looked at, whatever its length and time"


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


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_too_little_memory_for_the_libraries_is_one_line(kind: int, tmp_path: Path) -> None:
    # OpenBLAS would wait for memory without end, or end the process with lines of its own.
    asked = subprocess.run(
        [sys.executable, "cli.py", "predict", "--run", tmp_path, "--data", tmp_path, "--out", tmp_path / "o.npz"],
        cwd=HERE, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(kind, (200 << 20, 200 << 20)),
    )  # fmt: skip
    assert asked.returncode == 2
    assert "may take 0.2 GB of memory (ulimit" in asked.stderr
    assert asked.stderr.count("\n") == 1


def test_a_run_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "stack", "--run", "") == 2
    assert "say where the run goes: --run FOLDER" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["pipe", "/dev/zero"])
def test_options_are_read_from_regular_files_alone(file: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    asked = subprocess.run(
        [sys.executable, HERE / "cli.py", "stack", "--config", file, "--run", "r"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert asked.returncode == 2
    assert asked.stderr == f"error: {file} is not a regular file\n"


def test_pretraining_leaves_other_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "manifest.json", {})
    assert run(monkeypatch, "pretrain", "--out", tmp_path, "--showers", "1") == 2
    assert "holds something else than a pretraining" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir() if file.name != ".lock"] == ["manifest.json"]


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
