"""The command line: help with an example, an answer, and one line with exit code 2 for what cannot be done.

What a user can get wrong in a dataset is one line naming file and row. Options are checked before any package of
ours is at work. Names never steer a terminal, and what leaves a command is one line.
"""

from __future__ import annotations

import errno
import inspect
import io
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import pytest
import typer
from pydantic_core import PydanticUndefined
from rich.table import Table
from rich.text import Text

import cli
from showerstack.commands import stack as run_commands
from showerstack.commands.app import PANELS, Logs, with_options
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.errors import InputError, as_called, escaped, explained, reporting_errors
from showerstack.runtime.files import write_json
from showerstack.runtime.options import REQUIRED, Limits, OptionGroup, options_of
from showerstack.scoring.score import score_file
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.options import RunOptions, ShowerOptions, TableOptions
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from tests.faults.damages import patience
from tests.manifests import manifest
from tests.program import call
from tests.report import conftest as report_fixtures

composition_world = report_fixtures.composition_world

HERE = Path(cli.__file__).parent


def refused(*arguments: str | Path) -> str:
    """Return what a command says that is refused."""
    return call("cli.py", *arguments, code=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "~/run"),
        ("compare", "~/run", "~/run"),
        ("predict", "--run=~/run", "--data", "~/d", "--out", "~/o.npz"),
    ],
)
def test_home_is_expanded(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = refused(*arguments)
    assert f"{tmp_path}/run" in shown
    assert "~" not in shown


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_an_empty_list_of_learners_is_refused(names: str, tmp_path: Path) -> None:
    assert "learners: expected a list of different names, at least one" in refused(
        "stack", "--run", tmp_path / "run", "--learners", names
    )
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
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("data/composition_test", "runs/gamma"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "wine.csv").write_text("a,x\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert expected in refused(*arguments)


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
def test_near_words_are_suggested_for_mistyped_choices(arguments: tuple[str, ...], expected: str) -> None:
    shown = " ".join(refused(*arguments).replace("│", " ").split())
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
        ("stack --run r --table t.csv --label x --strict", "--strict has no effect with --table"),
        ("stack --run r --learners mlp --weights w", "--weights has no effect with --learners mlp"),
        ("features d --group lateral", "--group has no effect without --list"),
        ("features d --format md", "--format has no effect without --list"),
        ("features --list --out o", "--out has no effect with --list"),
        ("features d --list", "DATASET has no effect with --list"),
        ("features --list --json --format md", "--format has no effect with --json"),
        ("verify p.npz --description words", "--description has no effect without --log"),
        ("simulate --task gamma --raw --model qgs", "--model has no effect with --raw"),
        ("simulate --task gamma --raw --test 5", "--test has no effect with --raw"),
        ("simulate --task gamma --raw --rare", "--rare has no effect with --raw"),
        (
            "simulate --task composition --rare",
            "(--rare) belong to the task gamma: composition has no weights",
        ),
        ("simulate --task measured --spectrum s.toml --train 5", "--train has no effect with --task measured"),
        ("simulate --task gamma --spectrum s.toml", "--spectrum has no effect without --task measured"),
        ("download --task measured --protocol 2026", "--protocol has no effect with --task measured"),
        ("download --task gamma --runs a", "--runs has no effect without --task measured"),
        ("download --task gamma --times", "--times has no effect without --task measured"),
        ("convert --raw r --out o --runs a", "--runs has no effect with --raw"),
        ("convert --raw r --out o --delete-raw", "--delete-raw has no effect with --raw"),
        ("convert --measured m --out o --task gamma", "--task has no effect with --measured"),
        ("sky-map --data d --share .1", "--share has no effect without --run"),
    ],
)
def test_an_option_that_would_not_be_used_is_refused(
    arguments: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('run = "r"\ndata = "data"\n')
    message = refused(*arguments.split(" "))
    assert flag in message
    assert message.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml"], "nothing was written"


@pytest.mark.parametrize(
    ("task", "arguments", "flag"),
    [
        ("gamma", "predict --run run --data d --out o.npz --separator ;", "--separator has no effect with a run on"),
        (
            "table",
            "predict --run run --data d --out o.csv --device cpu",
            "--device has no effect with a run on a table",
        ),
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
    task: str, arguments: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("run/manifest.json"), manifest(task))
    write_checksums(Path("run"), ["manifest.json"])
    assert flag in refused(*arguments.split(" "))


def test_options_that_are_used_are_taken_also_where_they_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "has no effect" not in refused("stack", "--run", "r", "--task", "composition", "--data", "data")
    call("cli.py", "features", "--list", "--format", "table", "--group", "shape")


def test_remarks_and_plans_are_printed_for_people_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for asked, printed in (({}, "warning: odd [rows]\n3 fits\n"), ({"quiet": True}, ""), ({"as_json": True}, "")):
        with Logs().opened(for_people=not asked):
            log = logging.getLogger("showerstack.stacking.training.train")
            for _ in range(2):
                log.warning("%s", "odd [rows]")
            log.info("%d fits", 3)
            log.debug("no fit")
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", printed)


@pytest.mark.parametrize("level", ["error", "info", "debug"])
def test_what_is_logged_goes_to_the_screen_and_a_file(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*given: object, **named: object) -> None:
        log = logging.getLogger("showerstack.features.build")
        log.warning("odd rows")
        log.debug("a detail")
        raise InputError("no table today")

    monkeypatch.setattr("showerstack.features.build.build_table", built)
    file = tmp_path / "log"
    said = refused("--log-level", level, "--log-file", file, "features", "data", "--json")
    remarks, details = "warning: odd rows\n" * (level != "error"), "a detail\n" * (level == "debug")
    assert said == f"{remarks}{details}error: no table today\n"
    text = file.read_text()
    assert ("WARNING showerstack.features.build: odd rows" in text) == (level != "error")
    assert ("DEBUG showerstack.features.build: a detail" in text) == (level == "debug")
    assert text.count("Traceback") == 1
    assert text.endswith("showerstack.runtime.errors.InputError: no table today\n")
    assert not logging.getLogger("showerstack").handlers


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert refused("--log-file", tmp_path / "none" / "log", "learners").startswith(
        f"error: {tmp_path}/none/log: No such file"
    )


def test_quiet_and_json_exclude_each_other(tmp_path: Path) -> None:
    assert "choose one" in refused("check", tmp_path, "--quiet", "--json")


def test_check_and_features_answer_in_json(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    content = json.loads(call("cli.py", "check", tmp_path, "--json", code=1).stdout)
    assert (content["kind"], content["sound"]) == ("run", False)
    assert "has no checksums.json" in content["problems"][0]
    assert call("cli.py", "check", tmp_path, "--quiet", code=1).stdout == ""
    rows = json.loads(call("cli.py", "features", "--list", "--group", "reconstruction", "--json").stdout)
    assert {"E", "Ze"} <= {row["name"] for row in rows}


def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("showerstack.features.build.build_table", interrupted)
    said = "interrupted: what is finished is kept; to go on: python cli.py features 'my data'\n"
    assert call("cli.py", "features", "my data", code=130).stderr == said


@pytest.mark.parametrize("module", ["typer", "showerstack.runtime.logs"])
@pytest.mark.parametrize("program", ["cli.py", "verify.py"])
def test_an_interruption_of_the_imports_is_one_line(module: str, program: str) -> None:
    run = (
        "import builtins, runpy, sys\n"
        "imported = builtins.__import__\n"
        "def interrupted(name, *given, **more):\n"
        f"    if name == {module!r}:\n"
        "        raise KeyboardInterrupt\n"
        "    return imported(name, *given, **more)\n"
        "builtins.__import__ = interrupted\n"
        f"sys.argv = [{program!r}, 'runs']; sys.path.insert(0, '.')\n"
        f"runpy.run_path({program!r}, run_name='__main__')\n"
    )
    asked = subprocess.run([sys.executable, "-c", run], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert (asked.returncode, asked.stderr) == (130, "interrupted before anything was begun\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_was_ended_gives_the_same_bytes_when_given_again(number: int, tmp_path: Path) -> None:
    def command(out: str) -> tuple[str | Path, ...]:
        counts = ("--task", "gamma", "--train", "1500", "--test", "100", "--workers", "1")
        return ("cli.py", "simulate", *counts, "--out", tmp_path / out)

    started = subprocess.Popen([sys.executable, *command("ended")], cwd=HERE, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("ended/.*")):
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(number)
    said = started.communicate()[1]
    assert started.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("interrupted: what is finished is kept; to go on: python cli.py simulate")
    for out in ("ended", "whole"):
        call(*command(out))
    for file in sorted((tmp_path / "whole").rglob("*.npy")):
        other = tmp_path / "ended" / file.relative_to(tmp_path / "whole")
        assert file.read_bytes() == other.read_bytes(), file
    assert not list(tmp_path.glob("ended/.*")), "no lock and nothing half-written is left"


@pytest.mark.slow
@pytest.mark.parametrize("off", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_names_are_utf_8_in_a_c_locale(off: dict[str, str], tmp_path: Path) -> None:
    pl.DataFrame({"Größe": np.arange(60) % 7, "kind": ["ja", "nö"] * 30}).write_csv(tmp_path / "Tä[red]fel.csv")
    asked = subprocess.run(
        [sys.executable, HERE / "cli.py", "stack", "--table", "Tä[red]fel.csv", "--label", "Klasse", "--run", "rün"],
        cwd=tmp_path, capture_output=True, timeout=120, env={**os.environ, "LC_ALL": "C", **off},
    )  # fmt: skip
    assert asked.returncode == 2
    assert "Tä[red]fel.csv" in asked.stderr.decode()
    assert "Klasse" in asked.stderr.decode()
    assert b"\\udc" not in asked.stderr


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


def test_a_run_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "say where the run goes: --run FOLDER" in refused("stack", "--run", "")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[features]\nlist = true\nformat = 'md'", ""),
        ("list = true\ngroup = 'lateral'\nformat = 'md'\n", ""),
        ("[predict]\nrun = 'r'\n", "c.toml has options of predict alone: add a table [features]"),
        ("[features]\nlist = true\nfromat = 'md'", "c.toml: unknown option fromat: did you mean format?"),
        ("[features]\nlist = true\nworkers = 2.5", "c.toml: option workers: "),
        ("[features]\nlist = true\nworkers = true", "c.toml: option workers: "),
        ("[features]\nlist = true\nformat = {a = 1}", "c.toml: option format is a table, expected a value"),
        ("[features]\nlist = true\nout = 'o'", "out (in c.toml) has no effect with --list: leave it out"),
        ("[features]\nlist = 'perhaps'", "c.toml: option list_features: "),
        ("[features", "c.toml is not TOML"),
    ],
)
def test_options_come_from_a_file(text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(text)
    asked = ("features", "--config", "c.toml", "--group", "reconstruction")
    if expected:
        said = refused(*asked)
        assert said.startswith(f"error: {expected}")
        assert said.count("\n") == 1
    else:
        listed = call("cli.py", *asked).stdout
        assert listed.startswith("## reconstruction\n")
        assert "## lateral" not in listed, "the command line has precedence"


def test_a_file_gives_what_a_command_needs_and_takes_several_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        "[compare]\nruns = ['a', 'b']\n[gamma-limit]\nrun = 'g'\ndata = 'm'\nbins = [15, 16]\nzenith-max = 99\n"
    )
    assert refused("compare", "--config", "c.toml").startswith("error: a is not a finished run folder")
    assert refused("compare", "c", "d", "--config", "c.toml").startswith("error: c is not a finished run folder")
    assert refused("gamma-limit", "--config", "c.toml").startswith("error: c.toml: option zenith_max_deg"), (
        "bins are read"
    )
    assert "Missing option '--data'" in refused("gamma-limit", "--run", "g")


def test_every_command_takes_a_file() -> None:
    for command in (name for names in PANELS.values() for name in names):
        assert "--config" in call("cli.py", command, "-h").stdout, command


@pytest.mark.parametrize("command", ["simulate", "gamma-limit", "sky-map", "stack"])
def test_help_speaks_no_types_and_breaks_no_choice(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = call("cli.py", command, "-h").stdout
    assert not re.search(r"<\w+|list\[|\|composition", text), text
    assert not re.search(r"--[\w-]+…", text), "names of options are whole"
    if command == "simulate":
        assert re.search(r"One\s[│\s]+of\scomposition,\sgamma,", text), text


@pytest.mark.parametrize("file", ["pipe", "/dev/zero"])
def test_options_are_read_from_regular_files_alone(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with patience():
        assert refused("stack", "--config", file, "--run", "r") == f"error: {file} is not a regular file\n"


def test_pretraining_leaves_other_folders_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {})
    assert "holds something else than a pretraining" in refused("pretrain", "--out", tmp_path, "--showers", "1")
    assert [file.name for file in tmp_path.iterdir() if file.name != ".lock"] == ["manifest.json"]
    assert "no.safetensors does not exist" in refused(
        "pretrain", "--out", tmp_path / "new", "--start", "no.safetensors"
    )
    assert "without --array" in refused("pretrain", "--out", tmp_path / "new", "--depth", "800")
    both = ("--any-array", "--array", "stations.parquet")
    assert "with --any-array" in refused("pretrain", "--out", tmp_path / "new", *both)
    assert not (tmp_path / "new").exists()


class Fence(OptionGroup):
    """What is around it."""

    heights: Annotated[tuple[float, ...], "--fence"] = (1.0, 2.0)
    """Heights of its posts."""


class Orchard(OptionGroup):
    """Options of a command that only this test has."""

    heading = "Trees"
    needed = False

    fence: Fence
    trees: Annotated[int, Limits(1, 9)] = 3
    """How many there are."""
    kinds: tuple[str, ...] | None = None
    """Names of what grows."""
    owner: str
    """Whose they are."""


def test_a_declared_option_is_one_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    taken = []

    def plant(orchard: Orchard, trees_before: int = 0) -> None:
        taken.append({"trees_before": trees_before} | vars(orchard) | {"fence": orchard.fence.heights})

    command = typer.Typer(rich_markup_mode=None)
    command.command()(with_options(plant))
    command(["--trees", "4", "--kinds", "plum, pear", "--fence", "1,1.5,3"], standalone_mode=False)
    command(["--trees-before", "2", "--owner", "Ada"], standalone_mode=False)
    assert taken == [
        {"trees_before": 0, "fence": (1.0, 1.5, 3.0), "trees": 4, "kinds": ("plum", "pear"), "owner": None},
        {"trees_before": 2, "fence": (1.0, 2.0), "trees": 3, "kinds": None, "owner": "Ada"},
    ]
    with pytest.raises(InputError, match="--fence '1,x': give numbers with commas"):
        command(["--fence", "1,x"], standalone_mode=False)
    for wrong in ("0", "10", "many"):
        with pytest.raises(SystemExit):
            command(["--trees", wrong])
    capsys.readouterr()
    command(["--help"], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "How many there are." in shown
    assert "1<=x<=9" in shown


def test_options_of_stack_are_those_that_its_configurations_check() -> None:
    parameters = inspect.signature(run_commands.stack).parameters
    for config, group in ((StackConfig, ShowerOptions), (TableConfig, TableOptions)):
        declared = options_of(RunOptions) | options_of(group)
        assert declared.keys() <= config.model_fields.keys() & parameters.keys()
        for name, one in declared.items():
            assert config.model_fields[name].get_default() == (
                PydanticUndefined if one.default is REQUIRED else one.default
            )


def test_version() -> None:
    assert re.fullmatch(r"showerstack \d+\.\d+\S*\n", call("cli.py", "--version").stdout)


def test_reading_runs_imports_no_library_of_learners() -> None:
    # Each takes seconds, and every command on a run would pay for all of them.
    code = (
        "import sys, showerstack.stacking.training.train\n"
        "print('heavy:', sorted({'torch', 'lightgbm', 'catboost', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parent, capture_output=True, text=True, check=True
    )
    assert asked.stdout == "heavy: []\n"


N = 60
Arrays = dict[str, np.ndarray]
Spoil = Callable[[Arrays], None]


def _cell(value: float) -> Spoil:
    def spoil(arrays: Arrays) -> None:
        arrays["matrices.npy"][5, 1, 2, 0] = value

    return spoil


def _replace(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(arrays: Arrays) -> None:
        arrays[name] = change(arrays[name])

    return spoil


def _one_iron(arrays: Arrays) -> None:
    labels = arrays["labels_composition.npy"]
    labels[labels == 4] = 3
    labels[0] = 4


def _label_nine(arrays: Arrays) -> None:
    arrays["labels_composition.npy"][17] = 9


def _no_size(arrays: Arrays) -> None:
    arrays["features.npy"][5, 3] = np.nan


CASES: dict[str, tuple[Spoil, str]] = {
    "shape": (_replace("matrices.npy", lambda m: m[:, :, :15]), "matrices.npy has shape (60, 16, 15, 2)"),
    "type": (_replace("matrices.npy", lambda m: m.astype(np.complex128)), "matrices.npy has type complex128"),
    "length": (_replace("features.npy", lambda f: f[:-1]), "features.npy has 59 rows"),
    "label": (_label_nine, "row 17 holds label 9"),
    "nan": (_cell(np.nan), "matrices.npy: row 5, cell (1, 2), e/gamma deposit holds nan"),
    "infinite": (_cell(np.inf), "matrices.npy: row 5, cell (1, 2), e/gamma deposit holds inf"),
    "negative": (_cell(-1.0), "matrices.npy: row 5, cell (1, 2), e/gamma deposit holds -1"),
    "scalar": (_no_size, "row 5, column Ne holds nan"),
    "few": (_one_iron, "iron"),
    "objects": (_replace("features.npy", lambda f: f.astype(object)), "features.npy"),
}


def _write_sets(tiny: Path, folder: Path, spoil: Spoil) -> None:
    for split in ("train", "test"):
        source = tiny / f"composition_{split}"
        arrays = {
            name: np.load(source / name)[:N].copy()
            for name in ("matrices.npy", "features.npy", "labels_composition.npy")
        }
        if split == "train":
            spoil(arrays)
        (folder / f"composition_{split}").mkdir(parents=True)
        for name, array in arrays.items():
            np.save(folder / f"composition_{split}" / name, array)


@pytest.mark.parametrize("case", CASES)
def test_spoilt_training_set(case: str, tiny_composition: Path, tmp_path: Path) -> None:
    spoil, expected = CASES[case]
    _write_sets(tiny_composition, tmp_path / "data", spoil)
    arguments = [
        "stack", "--data", str(tmp_path / "data"), "--run", str(tmp_path / "run"),
        "--learners", "lightgbm", "--preset", "quick", "--workers", "1", "--device", "cpu", "--strict",
    ]  # fmt: skip
    errors = [line for line in refused(*arguments).splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert not (tmp_path / "run" / "predictions.npz").exists()


def test_truncated_and_missing_files(tiny_composition: Path, tmp_path: Path) -> None:
    _write_sets(tiny_composition, tmp_path, lambda arrays: None)
    file = tmp_path / "composition_train" / "matrices.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:20_000])
    assert "matrices.npy cannot be read" in refused("features", tmp_path / "composition_train")
    assert not (tmp_path / "composition_train.features" / "catalogue.json").exists()
    file.write_bytes(whole)
    (tmp_path / "composition_train" / "features.npy").unlink()
    assert "features.npy does not exist" in refused("features", tmp_path / "composition_train")


@pytest.mark.parametrize("entry", ["cli.py", "verify.py"])
def test_libraries_that_are_not_installed_are_told_with_what_to_do(entry: str) -> None:
    # -S -E: Python without the environment's libraries, as when it was not activated.
    said = subprocess.run(
        [sys.executable, "-S", "-E", entry], cwd=Path(cli.__file__).parent, capture_output=True, text=True
    )
    assert said.returncode == 2
    assert re.fullmatch(r"error: \S+ has no library '\w+': activate the environment .*\n", said.stderr), said.stderr


def test_the_folder_above_a_dataset_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "data" / "gamma_test").mkdir(parents=True)
    (tmp_path / "data" / "gamma_test" / "matrices.npy").touch()
    with pytest.raises(InputError, match=r"data is no dataset folder, but holds some: did you mean .*/gamma_test\?"):
        Dataset.open(tmp_path / "data")


@pytest.mark.slow
def test_bad_rows_are_not_trained_on_and_get_the_training_prior(
    tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an odd row holds changes nothing but its own posterior, in a run and in later predictions."""
    monkeypatch.setattr("showerstack.report.outcome.write_report", lambda run, data, **options: run)
    monkeypatch.setattr("showerstack.report.outcome.write_card", lambda run: run)
    n, runs = 200, {}
    rows = {"train": [7, 11, 30], "test": [3, 50]}
    for value in (np.nan, -1.0):
        data = tmp_path / f"data{value}"
        for split in ("train", "test"):
            source, folder = tiny_composition / f"composition_{split}", data / f"composition_{split}"
            folder.mkdir(parents=True)
            for name in ("matrices.npy", "features.npy", "labels_composition.npy"):
                array = np.load(source / name)[:n].copy()
                if name == "matrices.npy":
                    array[rows[split], 1, 2, 0] = value
                if name == "features.npy":
                    array[rows[split][0], 3] = np.inf if value == -1.0 else np.nan
                np.save(folder / name, array)
        folder = tmp_path / f"run{value}"
        arguments = [
            "stack", "--data", str(data), "--run", str(folder), "--learners", "quadratic_logit", "--preset", "quick",
            "--workers", "1", "--device", "cpu", "--folds", "2",
        ]  # fmt: skip
        said = " ".join(call("cli.py", *arguments).stderr.split())
        assert "3 of 200 rows of composition_train cannot be used (3 cells, 1 column Ne): nothing is trained" in said
        assert (
            "2 of 200 rows of composition_test cannot be used (2 cells, 1 column Ne): they get the training prior"
            in said
        )
        with np.load(folder / "predictions.npz") as stored:
            runs[value] = stored["log_proba"]
        again = predict(load(folder), data / "composition_test", Context(workers=1), no_table=True)
        again.write(tmp_path / f"{value}.npz")
        assert any("training prior" in remark for remark in again.remarks)
        with np.load(tmp_path / f"{value}.npz") as stored:
            np.testing.assert_array_equal(stored["log_proba"], runs[value])
    np.testing.assert_array_equal(runs[np.nan], runs[-1.0])
    in_evaluation = np.load(tmp_path / "runnan" / "in_evaluation.npy")
    assert not in_evaluation[rows["train"]].any()
    assert (np.load(tmp_path / "runnan" / "folds.npy")[:, rows["train"]] == -1).all()
    all_labels = np.load(tiny_composition / "composition_train" / "labels_composition.npy")[:n]
    prior = np.bincount(all_labels[in_evaluation], minlength=5) / in_evaluation.sum()
    np.testing.assert_allclose(np.exp(runs[np.nan][rows["test"]]), np.tile(prior, (2, 1)))


@pytest.mark.parametrize(
    "command",
    ["simulate", "features", "stack", "predict", "demo", "learners", "download", "convert", "runs", "datacheck",
     "compare", "leaderboard", "submit", "report", "display", "doctor"],
)  # fmt: skip
def test_help_shows_an_example(command: str) -> None:
    shown = call("cli.py", command, "--help").stdout.replace("│", " ")
    assert f"Example: python cli.py {command}" in " ".join(shown.split())


@pytest.mark.slow
def test_commands_answer(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = composition_world
    score_file(run / "predictions.npz", data, COMPOSITION, intervals=False)
    assert "simulation of v2" in call("cli.py", "leaderboard", run).stdout
    assert "no difference is shown" in " ".join(
        call("cli.py", "compare", run, run / ".", "--data", data).stdout.split()
    )
    call("cli.py", "submit", run, "--name", "one", "--data", data, "--out", tmp_path)
    assert (tmp_path / "one" / "metadata.yaml").exists()
    picture = tmp_path / "event.png"
    call("cli.py", "display", data / "composition_test", "5", "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("compare", "{run}", "--data", "{data}"), "at least two"),
        (("compare", "{run}", "nowhere", "--data", "{data}"), "nowhere is not a finished run folder"),
        (("leaderboard", "nowhere"), "nowhere is not a finished run folder"),
        (("submit", "{run}", "--name", "a/b", "--data", "{data}"), "use letters"),
        (("report", "{run}", "--data", "nowhere"), "nowhere/composition_test does not exist"),
        (("display", "{data}/composition_test", "3000"), "expected 0..2999"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], expected: str, composition_world: tuple[Path, Path]
) -> None:
    run, data = composition_world
    printed = refused(*(a.format(run=run, data=data) for a in arguments))
    assert expected in printed
    assert printed.count("\n") == 1


HOSTILE = "a\x1b[31mred\x07[/][bold]b\x9b2J\u202egnp\r\nc\udcff"


def test_escaped_text_steers_nothing() -> None:
    result = escaped(HOSTILE)
    assert result.isprintable()
    assert result == "a\\x1b[31mred\\x07[/][bold]b\\x9b2J\\u202egnp\\r\\nc\\udcff"
    assert escaped("Zürich α μ²") == "Zürich α μ²"


def test_hostile_names_on_a_console() -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=200, force_terminal=True, color_system=None)
    table = Table("[bold]head", title="[/]title\x1b]0;owned\x07")
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE), style="bold")
    console.print(table)
    console.print(f"wrote {HOSTILE}", soft_wrap=True)
    shown = stream.getvalue()
    for steering in ("\x1b]", "\x1b[31m", "\x9b", "\x07", "\u202e", "\r"):
        assert steering not in shown
    assert shown.count("[/][bold]b") == 3
    assert "[/]title" in shown
    assert "[bold]head" in shown


def _raised(work: object) -> BaseException:
    try:
        work()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InputError("x.npy is short\x1b[2J"), "x.npy is short\\x1b[2J"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), "runs/a: No space left on device: free some"),
        (PermissionError(errno.EACCES, "Permission denied", "d\n1"), "d\\n1: Permission denied: choose another place"),
        (OSError(errno.EROFS, "Read-only file system", b"o"), "o: Read-only file system: the disk is read-only"),
        (MemoryError(), "not enough memory: use fewer --workers"),
        (_raised(lambda: np.empty(1 << 58)), "not enough memory (Unable to allocate"),
        (_raised(lambda: json.loads("{")), "JSONDecodeError: Expecting property name"),
        (_raised(lambda: zipfile.ZipFile(io.BytesIO(b"x"))), "BadZipFile: File is not a zip file"),
        (_raised(lambda: pl.DataFrame({"a": [1]}).select("b")), "ColumnNotFoundError"),
        (_raised(lambda: b"\xff".decode()), "UnicodeDecodeError"),
        (EOFError(), "no reason given"),
    ],
)
def test_errors_are_one_line(error: BaseException, expected: str) -> None:
    line = explained(error)
    assert line is not None
    assert expected in line
    assert line.isprintable()


def test_errors_of_boosters_and_weights_are_one_line() -> None:
    import catboost
    import lightgbm
    import xgboost
    from safetensors import SafetensorError

    kinds = (catboost.CatBoostError, lightgbm.basic.LightGBMError, xgboost.core.XGBoostError, SafetensorError)
    for kind in kinds:
        assert "damaged" in str(explained(kind("damaged\nat line 3")))


def test_mistakes_of_the_program_are_not_hidden() -> None:
    assert explained(KeyError("x")) is None
    assert explained(ValueError("x")) is None


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such thing"), 2, "error: no such thing\n"),
        (KeyboardInterrupt(), 130, "interrupted: go on\n"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "x"), 2, "error: x: Is a directory: it is a folder"),
        (ZeroDivisionError("1/0 \x1b[5m"), 1, "Please report it"),
    ],
)
def test_exit_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, reporting_errors(lambda: "interrupted: go on"):
        raise error
    shown = capsys.readouterr().err
    assert ended.value.code == code
    assert said in shown
    assert "\x1b" not in shown
    assert ("Traceback" in shown) == (code == 1)


def test_exit_codes_of_commands_pass() -> None:
    with pytest.raises(SystemExit) as ended, reporting_errors(lambda: ""):
        sys.exit(7)
    assert ended.value.code == 7


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/usr/bin/showerstack", "showerstack doctor, showerstack verify x"),
        ("/site-packages/showerstack/__main__.py", "showerstack doctor, showerstack verify x"),
        ("cli.py", "python cli.py doctor, python verify.py x"),
    ],
)
def test_commands_are_named_as_the_program_was_called(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert as_called("python cli.py doctor, python verify.py x") == said
    stream = io.StringIO()
    PlainConsole(file=stream, width=100).print("python cli.py doctor, python verify.py x")
    assert stream.getvalue().strip() == said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run = 3", "option run: expected a path (got 3)"),
        ('run = ["r"]', "option run: expected a path (got ['r'])"),
        ("learners = 3", "unknown learner '3'"),
        ("data = 5", "option data: expected a path (got 5)"),
        ('folds = "x"', "option folds: expected a valid integer"),
        ("fold = 3", "unknown option fold: did you mean folds?"),
    ],
)
def test_files_of_options_with_other_types_are_told(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    other = "" if line.startswith("run") else 'run = "r"'
    file.write_text(f"{line}\n{other}\n", encoding="utf-8")
    assert words in " ".join(refused("stack", "--config", file).split())
