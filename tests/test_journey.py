"""The product as a user meets it: a demo with what is done with its runs, the pages on its use, the notebooks.

Every command and every block of Python on the pages of ``STORIES`` does, with fewer showers, what the page says; what
needs a network, a GPU or hours is parsed, so that its options exist. Every other block of a page stands in
``ELSEWHERE_TOLD`` with the reason. The notebooks run from top to bottom, are kept without outputs, and reach what they
promise. All that happens in this process with small learners; ``make test-faults`` tells the whole again, in processes
of its own and with what users get, and compares the numbers that the README and the pages show.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_wine
from typer.main import get_command

from showerstack.commands.app import app
from showerstack.report.outcome import DEMO_LEARNERS
from showerstack.report.run_page import write_report
from showerstack.runtime.errors import Remark
from showerstack.showers.archives.measured import convert_measured
from showerstack.stacking.config import StackConfig
from tests.program import Shown, call
from tests.showers.corsika_files import draw_shower, write_file

ROOT = Path(__file__).parent.parent
DEMO = ("demo", "--train", "700", "--test", "300")
FEW = {"composition": ("lightgbm", "pretrained"), "gamma": ("published.gamma_rf", "lightgbm")}
"""Learners of the demo where it is made small: trees, a network, a published one."""
SMALL = {
    "composition": {"lightgbm": {"rounds": 40}, "pretrained": {"epochs": 1}},
    "gamma": {"published.gamma_rf": {"trees": 30}, "lightgbm": {"rounds": 40}},
}
"""Their settings there."""
WHOLE = (pytest.mark.faults, pytest.mark.xdist_group("journey"))


def run_script(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``python <entry point> ...`` and check its exit code; a traceback is never acceptable."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def small_config(*, task: str, **options: object) -> StackConfig:
    """Return what the demo trains where it is made small: two folds, few trees."""
    return StackConfig(task=task, folds=2, settings=SMALL[task], **options)


@pytest.fixture(scope="module", params=["small", pytest.param("whole", marks=WHOLE)])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Callable]:
    """Folder of a demo with few showers, what it printed, and what calls commands: in this process, or in others."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    if request.param == "whole":
        return out, run_script("cli.py", "demo", "--out", out).stdout, run_script

    def small_call(*arguments: object, code: int = 0) -> Shown:
        with ExitStack() as less:
            less.enter_context(patch.dict(DEMO_LEARNERS, FEW))
            less.enter_context(patch("showerstack.report.run_page.EACH", 1))
            less.enter_context(patch("showerstack.report.outcome.StackConfig", small_config))
            return call(*arguments, code=code)

    return out, small_call("cli.py", *DEMO, "--workers", "1", "--out", out).stdout, small_call


@pytest.mark.parametrize(
    ("task", "key", "guess"), [("composition", "mean_fraction_error", 0.30), ("gamma", "hadron_survival", 0.75)]
)
def test_stack_predict_and_verify(
    demo: tuple[Path, str, Callable[..., Shown]], tmp_path: Path, task: str, key: str, guess: float
) -> None:
    out, shown, program = demo
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
    if program is run_script and task == "composition":
        (block,) = (text for kind, text in blocks("README.md") if kind == "text")
        assert not_said(block.splitlines(), shown, numbers=True) == [], shown
    assert (run / "report.html").stat().st_size > 10_000

    metrics = json.loads((run / f"metrics_{task}.json").read_text())
    value = metrics[key] if task == "composition" else metrics["survival_rates"]["75%"][key]
    assert value < guess / 2, "far better than a constant answer even on few showers"

    program("verify.py", "--task", task, "--data", out / "data", run / "predictions.npz")

    # New data without labels, in a folder of its own, give the same answer as the run's own test prediction.
    unlabelled = tmp_path / "new"
    shutil.copytree(out / "data" / f"{task}_test", unlabelled)
    (unlabelled / f"labels_{task}.npy").unlink()
    options = ("--device", "cpu")
    program("cli.py", "predict", "--run", run, "--data", unlabelled, "--out", tmp_path / "new.npz", *options)
    with np.load(run / "predictions.npz") as ours, np.load(tmp_path / "new.npz") as new:
        np.testing.assert_array_equal(ours["log_proba"], new["log_proba"])


def test_a_demo_continues_and_refuses_other_numbers(demo: tuple[Path, str, Callable[..., Shown]]) -> None:
    out, shown, program = demo
    files = [
        out / "runs" / task / name for task in ("composition", "gamma") for name in ("report.html", "predictions.npz")
    ]
    before = [file.stat().st_mtime_ns for file in files]
    same = ("demo",) if program is run_script else (*DEMO, "--workers", "1")
    again = program("cli.py", *same, "--out", out).stdout
    tables = [[line for line in text.splitlines() if " ± " in line or "report:" in line] for text in (shown, again)]
    assert tables[0] == tables[1]
    assert len(tables[0]) >= (18 if program is run_script else 10), "all systems and a report for each task"
    assert [file.stat().st_mtime_ns for file in files] == before
    assert "remove" in program("cli.py", "demo", "--out", out, "--train", "800", "--test", "200", code=2).stderr


def test_entry_points_are_scripts(tmp_path: Path) -> None:
    assert "Nmu" in run_script("cli.py", "features", "--list").stdout
    test = tmp_path / "composition_test"
    test.mkdir()
    np.save(test / "labels_composition.npy", np.arange(100) % 5)
    np.save(test / "features.npy", np.full((100, 5), 15, np.float16))
    np.savez(tmp_path / "predictions.npz", predictions=np.arange(100) % 5)
    assert "fraction error 0.0" in run_script("verify.py", "--data", tmp_path, tmp_path / "predictions.npz").stdout


def test_features_command_builds(tiny_gamma: Path, tmp_path: Path) -> None:
    data = tiny_gamma / "gamma_test"
    shown = call("cli.py", "features", data, "--out", tmp_path / "table", "--device", "cpu", "--workers", "1")
    assert "1,000 events" in shown.stdout
    assert (tmp_path / "table" / "catalogue.json").exists()


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


STORIES = {
    "train.md": (),
    "score.md": ("data", "runs/composition", "runs/other"),
    "simulation.md": ("array",),
    "times.md": (),
    "corsika.md": ("array", "particles"),
    "methods/pretraining.md": (),
    "physics/sky.md": ("skies", "runs/gamma"),
    "physics/measured.md": ("fluxes", "runs/composition"),
    "physics/spectra.md": ("data", "measured", "runs/composition"),
    "physics/photons.md": ("data", "measured", "runs/gamma"),
    "own_array.md": (),
    "other_files.md": (),
    "tables.md": ("table",),
    "extending.md": (),
    "cluster.md": ("data", "runs/composition"),
    "estimators.md": ("data",),
}
"""Pages, and what is there when their first command runs."""
ELSEWHERE = re.compile(
    r"cli.py (download|reproduce|pretrain) |--device cuda|tcp:|--time-limit|frequencies|pretrained,mlp|--weights"
    r"|--from (job|my_events|esd|dataSummary)|job\.parquet"
)
"""Commands that need a network, a GPU, hours, or files of others: their options are parsed, nothing is run."""
INSTALLED = re.compile(r"(python -m )?pip install ")
HOURS = "python -m benchmarks.world.cascade "
ELSEWHERE_TOLD = {
    ("README.md", "console", "$ make env && "): "the set-up; the demo is this file's first fixture",
    ("README.md", "text", "composition, 8,000"): "the demo's output: test_stack_predict_and_verify",
    ("docs/install.md", "console", "$ python -m pip"): "the set-up: tests/test_package.py",
    ("docs/cluster.md", "bash", "#!/bin/bash\n#SBATCH --job-name=stack --cpus"): "SLURM",
    ("docs/cluster.md", "bash", "#!/bin/bash\n#SBATCH --job-name=stack --nodes"): "SLURM",
    ("docs/train.md", "sh", "git clone"): "test_the_set_up_is_that_of_the_makefile",
    ("docs/methods/learners.md", "python", "from showerstack.models.registry"): "names of the reader's own",
}
"""Blocks of commands, code and output that no story tells: page, kind, beginning, and why or where they are tested."""
FEWER = {
    "--train 20000 --test 5000": "--train 300 --test 100",
    "--train 100000 --test 20000": "--train 300 --test 100",
    "--train 8000": "--train 900",
    "--test 4000": "--test 400",
    "--test 2000": "--test 300",
    '("train", 2000)': '("train", 300)',
    "--simulation data/composition_test --exposure 6.7e11": "--exposure 1e7",
    "--train 8000 --test 60000": "--train 900 --test 100",
    "--learners quadratic_logit,lightgbm\n": "--learners quadratic_logit\n",
    "live_time_h = 8.0": "live_time_h = 1.0",
    "--data trial/measured --simulation trial/composition_test": "--data trial/measured",
    "--simulation data/gamma_test --exposure 1.75e12": "--exposure 1e8",
    "--run runs/wine --preset quick": "--run runs/wine --preset quick --learners table.logistic",
    "--run runs/scalars --preset quick": "--run runs/scalars --preset quick --learners table.logistic",
    "--learners lightgbm\n": "--learners quadratic_logit\n",
    "--task composition --data own --run runs/mine": "--task composition --data own --run runs/mine --preset quick "
    "--learners quadratic_logit",
    "--train 2000\n": "--train 300\n",
    # As many stations as the other arrays of the tests have: kernels are compiled once for all of them.
    "np.arange(12) * np.pi / 6": "np.arange(144) * np.pi / 72",
    "np.where(np.arange(12)": "np.where(np.arange(144)",
    "np.arange(100, 112)": "np.arange(100, 244)",
    "rng.random((n, 12))": "rng.random((n, 144))",
}
ONE = ("--workers", "1")
LESS = {
    "simulate": ONE,
    "stack": (*ONE, "--folds", "2"),
    "spectra": ("--bins", "14.9,15.4,16", "--zenith-max", "30"),
    "datacheck": ONE,
    "gamma-limit": ("--toys", "100", "--bins", "14.8,17"),
}
"""Options that make a command cheap, or possible with few showers, and change nothing that a page shows."""
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?(e-?\d+)?|too few events")
CHOSEN = re.compile(r"(?<=showers: )\w+$|(?<=^why: ).*$|(?<=\d,)[a-z]+$|(?<=\] )[a-z]+$")
"""What predicts and why, and a shower's class: they may be others when showers are few, or by another processor."""
PER_ERROR = 0.5
"""Standard errors by which a number may differ: trees and networks are others on another processor."""


def masked(line: str, chosen: str = "CHOSEN") -> str:
    """Return a line without its numbers and spaces: what is left does not depend on the number of showers."""
    line = line.replace("on out-of-fold predictions:", "on held-out showers:")  # what there is with few of them
    return re.sub(r"[\s─]+", "", NUMBER.sub("#", CHOSEN.sub(chosen, line.rstrip()) if chosen else line.rstrip()))


def numbers_of(line: str) -> list[tuple[float, float]]:
    """Return the numbers of a line, each with how far another may be from it.

    That is one in its last digit, or half a standard error where that is more: ``v ± error`` and ``v [low, high]``
    state one, and what else is no whole number on such a line has the smallest.
    """
    found = [match for match in NUMBER.finditer(line) if match[0] != "too few events"]
    values = [float(match[0].replace(",", "")) for match in found]
    last = [int((match[2] or "e0")[1:]) - len((match[1] or ".")[1:]) for match in found]
    errors: dict[int, float] = {}
    for k, match in enumerate(found[1:], 1):
        between = line[found[k - 1].end() : match.start()]
        if between.strip() == "±":
            errors |= {k - 1: values[k], k: 0.0}
        elif between == ", " and line[found[k - 1].start() - 1] == "[" and line[match.end() : match.end() + 1] == "]":
            errors |= dict.fromkeys(range(max(k - 2, 0), k + 1), (values[k] - values[k - 1]) / 4)
    smallest = min((error for error in errors.values() if error), default=0.0)
    within = [
        max(1.001 * 10.0**power, PER_ERROR * errors.get(k, smallest if power < 0 else 0.0))
        for k, power in enumerate(last)
    ]
    return list(zip(values, within, strict=True))


def agree(shown: str, found: str) -> bool:
    """Return whether two lines say the same, with numbers that are near; what was chosen may be another."""
    if masked(shown) != masked(found):
        return False
    if masked(shown, "") != masked(found, ""):
        return True
    pairs = zip(numbers_of(shown), numbers_of(found), strict=True)
    return all(abs(value - other) <= within for (value, within), (other, _) in pairs)


def not_said(shown: list[str], output: str, *, numbers: bool) -> list[str]:
    """Return the lines of a page that an output lacks; with ``numbers`` these are compared too."""
    if numbers:
        return [line for line in shown if not any(agree(line, other) for other in output.splitlines())]
    lines = {masked(line) for line in output.splitlines()}
    return [line for line in shown if masked(line) not in lines]


def test_numbers_of_pages_are_compared_within_their_last_digit() -> None:
    assert agree("wrote a, 1,078 events", "wrote a, 1,078 events")
    assert not agree("wrote a, 1,078 events", "wrote a, 1,086 events")
    assert not agree("wrote a", "wrote b")
    assert agree("2.3e-4", "2.4e-4")
    assert not agree("2.3e-4", "2.5e-4")
    assert agree("stack  50.18 ± 0.79  1.063 ± 0.011", "stack  50.35 ± 0.80  1.060 ± 0.011")
    assert not agree("stack  50.18 ± 0.79  1.063 ± 0.011", "stack  50.80 ± 0.80  1.060 ± 0.011")
    assert agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1019 [0.0971, 0.1065], 2,000")
    assert not agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1040 [0.0974, 0.1069], 2,000")
    assert not agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1023 [0.0974, 0.1069], 2,002")
    assert agree("accuracy 0.52 [0.50, 0.54], macro F1 0.523, 9", "accuracy 0.52 [0.50, 0.54], macro F1 0.527, 9")
    assert not agree("accuracy 0.52 [0.50, 0.54], macro F1 0.523, 9", "accuracy 0.52 [0.50, 0.54], macro F1 0.529, 9")
    assert agree("[0.005 0.01 0.3  1.  ] iron", "[0.006 0.01 0.3  1.  ] helium")
    assert not agree("[0.005 0.01 0.3  1.  ] iron", "[0.008 0.01 0.3  1.  ] iron")
    assert not_said(["a 1", "b 2"], "a 1\nb 5", numbers=True) == ["b 2"]
    assert not_said(["a 1", "b 2"], "a 1\nb 5", numbers=False) == []


KINDS = ("console", "python", "text", "bash", "sh")
"""Blocks that are typed, run or printed; others are files and drawings."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the kind and content of a page's blocks that are typed, run or printed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        found for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if found[0] in KINDS
    ]


def test_every_block_of_the_pages_is_told_or_has_a_reason() -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    told = {"console", "python", "text"}
    untold = []
    for page in pages:
        in_story = told if page.removeprefix("docs/") in STORIES else set()
        untold += [(page, kind, text) for kind, text in blocks(page) if kind not in in_story]
    for page, kind, beginning in ELSEWHERE_TOLD:
        (found,) = [one for one in untold if one[:2] == (page, kind) and one[2].startswith(beginning)]
        untold.remove(found)
    assert untold == []


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that the page shows after it."""
    result: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            result.append((line.removeprefix("$ "), []))
        else:
            result[-1][1].append(line)
    return result


def parse(command: str) -> None:
    """Let the program read the options of a command, which it does not run."""
    program, entry, name, *options = shlex.split(command, comments=True)
    assert (program, entry) == ("python", "cli.py"), command
    get_command(app).commands[name].make_context(name, options)


def run(command: list[str], folder: Path) -> str:
    """Run a command as a reader does who has activated the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_commands_of_the_readme_have_their_options() -> None:
    found = re.findall(
        r"`(python cli.py [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8").split("| you have")[1]
    )
    assert len(found) >= 4
    for command in found:
        parse(command)


def test_the_set_up_is_that_of_the_makefile() -> None:
    block = (ROOT / "docs" / "train.md").read_text(encoding="utf-8").split("```sh\n")[1].split("```")[0]
    assert block.splitlines()[-2:] == ["make env", "source .venv/bin/activate"]
    plan = subprocess.run(["make", "--dry-run", "--always-make", "env"], cwd=ROOT, capture_output=True, text=True)
    assert "-m venv .venv" in plan.stdout, plan.stderr
    assert "--constraint constraints.txt --editable '.[test" in plan.stdout


def blank_report(run: Path, data: Path, **options: object) -> Path:
    """Write a page where a report would be; it must be asked for as it can be."""
    inspect.signature(write_report).bind(run, data, **options)
    (run / "report.html").write_text("report " * 200)
    return run / "report.html"


def called(command: str) -> str:
    """Run a command in this process if it is one of the program, as cheaply as it can be."""
    program, *arguments = shlex.split(command, comments=True)
    if program != "python":
        return run(["bash", "-c", command], Path.cwd())
    return call(*arguments, *LESS.get(arguments[1], ())).stdout


def without_labels(test: Path, folder: Path, rows: slice) -> None:
    """Write a part of a test set as a measured run."""
    folder.mkdir(parents=True)
    shutil.copy(test / "source.json", folder)
    for name in ("matrices.npy", "features.npy"):
        np.save(folder / name, np.load(test / name)[rows])


@pytest.fixture
def beginning(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Make what a page starts from, of sets and runs that all tests share."""

    def begin(page: str) -> Path:
        for entry in ("cli.py", "verify.py"):
            (tmp_path / entry).symlink_to(ROOT / entry)
        for need in STORIES[page]:
            if need == "data":
                (tmp_path / "data").mkdir()
                for task in ("composition", "gamma"):
                    for part in request.getfixturevalue(f"tiny_{task}").iterdir():
                        (tmp_path / "data" / part.name).symlink_to(part)
            elif need == "measured":
                task = "gamma" if "runs/gamma" in STORIES[page] else "composition"
                test = request.getfixturevalue(f"tiny_{task}") / f"{task}_test"
                for first, name in enumerate(("004000", "004001")):
                    without_labels(test, tmp_path / "data" / "measured" / name, slice(first, None, 2))
            elif need in ("fluxes", "skies"):
                (tmp_path / "fluxes.toml").write_text("runs = 2\nlive_time_h = 1.0\n")
                fluxes = ("--spectrum", tmp_path / "fluxes.toml", "--out", tmp_path / "data")
                call("cli.py", "simulate", "--task", "measured", *fluxes, *ONE)
                if need == "skies":
                    convert_measured(tmp_path / "data" / "measured_raw", tmp_path / "data" / "measured", times=True)
            elif need == "array":
                stations, block = (
                    "mine/gamma_train/stations.parquet",
                    next(text for kind, text in blocks("docs/own_array.md") if kind == "python"),
                )
                executed(reduce(lambda text, pair: text.replace(*pair), FEWER.items(), block))
                assert (tmp_path / stations).exists()
                (tmp_path / "mine" / "stations.parquet").symlink_to(tmp_path / stations)
            elif need == "particles":
                rng = np.random.default_rng(1)
                for split, n in (("train", 12), ("test", 4)):
                    (tmp_path / f"composition_{split}").mkdir()
                    showers = [draw_shower(rng, mass=mass, share=0.03) for mass in (1, 4, 12, 28, 56) for _ in range(n)]
                    write_file(tmp_path / f"composition_{split}" / "DAT000001", showers)
            elif need == "table":
                wine = load_wine(as_frame=True).frame.rename(columns={"target": "kind"})
                rows = pl.from_pandas(wine).with_columns(
                    name=pl.int_range(pl.len()), kind=pl.col("kind").cast(pl.String)
                )
                rows.sample(fraction=1.0, shuffle=True, seed=1).write_csv(tmp_path / "wine.csv")
            else:
                task = "gamma" if need == "runs/gamma" else "composition"
                shutil.copytree(request.getfixturevalue(f"{task}_run"), tmp_path / need)
                if page == "score.md":  # a run that stack has finished is scored
                    call("verify.py", "--task", task, "--data", tmp_path / "data", tmp_path / need / "predictions.npz")
        return tmp_path

    return begin


WHOLE_STORY = pytest.param("train.md", True, marks=WHOLE)


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")  # pyhf's own use of jsonschema
@pytest.mark.parametrize(("page", "processes"), [*((page, False) for page in STORIES), WHOLE_STORY])
def test_every_command_works_and_says_what_the_page_shows(
    page: str,
    processes: bool,
    beginning: Callable[[str], Path],
    undrawn: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = beginning(page)
    if not processes:  # the demo's reports are real ones
        monkeypatch.setattr("showerstack.report.outcome.write_report", blank_report)
        monkeypatch.setattr("showerstack.report.run_page.write_report", blank_report)
        monkeypatch.setattr("showerstack.report.public.taskcard.PERMUTATIONS", 1)
    ran = told(page, folder, processes)
    if processes:  # the page on scores goes on with that run
        for name in ("composition", "other"):
            shutil.copytree(folder / "runs" / "first", folder / "runs" / name)
        told("score.md", folder, processes)
    made = {
        "train.md": ("event-7.png", "runs/first/report.html", "new.npz", "new.csv"),
        "score.md": ("submissions/stack-1/README.md", "runs/composition/report.html"),
        "physics/spectra.md": ("spectra/spectra.html",),
        "physics/photons.md": ("gamma_limit/gamma_limit.html",),
        "own_array.md": ("mine.png",),
    }
    for file in made.get(page, ()):
        assert (folder / file).stat().st_size > 1000
    if page == "train.md":  # Python prints the score that verify.py printed for the same predictions.
        assert re.search(r"<fraction error 0\.\d+ \[0\.\d+, 0\.\d+\], [\d,]+ events>", "\n".join(ran))


def told(page: str, folder: Path, processes: bool) -> list[str]:
    """Do what a page says, and compare what is shown there; return what was printed.

    In processes of their own with all showers and numbers, or in this one with few showers.
    """
    ran, parsed, printed = [], [], ""
    for kind, block in blocks(f"docs/{page}"):
        for full, fewer in () if processes else FEWER.items():
            block = block.replace(full, fewer)
        if kind == "python":
            if page == "extending.md" or "DetectorArray(" in block or "showers/archives" in block:
                continue  # files, which tests/test_extending.py puts into their places
            printed = run([sys.executable, "-c", block], folder) if processes else executed(block)
            ran.append(printed)
        elif kind == "text":  # what the block before it prints
            assert not_said(block.splitlines(), printed, numbers=processes) == [], printed
        for command, shown in commands(block) if kind == "console" else ():
            if INSTALLED.match(command):
                continue
            if command.startswith(HOURS):
                assert importlib.util.find_spec(command.split()[2]), command
            elif ELSEWHERE.search(command):
                parse(command)
                parsed.append(command)
            else:
                ran.append(run(["bash", "-c", command], folder) if processes else called(command))
                assert not_said(shown, ran[-1], numbers=processes) == [], f"{command}:\n{ran[-1]}"
    assert ran or parsed
    return ran


def executed(block: str, names: dict[str, object] | None = None) -> str:
    """Return what a block of Python prints."""
    out = io.StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("default", Remark)  # a page may show them
        exec(compile(block, "block", "exec"), {} if names is None else names)
    return out.getvalue()


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SMALLER = {
    "first": {"n_train=3000, n_test=2000": "n_train=800, n_test=500"},
    "spectrum": {
        "n_train=6000, n_test=40_000": "n_train=800, n_test=4000",
        "live_time_h = 200.0": "live_time_h = 30.0",
    },
    "photons": {
        "n_train=6000, n_test=12_000": "n_train=1500, n_test=3000",
        "live_time_h = 50.0": "live_time_h = 5.0",
        "photon_fraction = 1e-3": "photon_fraction = 0.05",
        "edges=(15.0, 15.5, 16.5), toys=500": "edges=(15.0, 16.5), toys=100",
    },
}
"""What a notebook does, made smaller."""


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_run_and_are_kept_without_outputs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the notebook's folder is made
    cells = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    # Outputs would show the numbers and warnings of another version, and change with every run.
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)
    code = "\n".join(cell.source for cell in cells)
    for whole, less in {**SMALLER[file.stem], "folds=2,": "folds=2, workers=1,"}.items():
        assert whole in code
        code = code.replace(whole, less)
    names: dict[str, Any] = {}
    said = executed(code, names)
    plt.close("all")
    if file.stem == "first":
        (score,) = re.findall(r"<fraction error (0\.\d+) \[", said)
        assert float(score) < 0.15, "much better than guessing (.158) even after few showers"
        assert (names["folder"] / "event.png").stat().st_size > 15_000
    elif file.stem == "spectrum":
        every = names["table"].filter(pl.col("group") == "all")
        gap = (every[names["FLUX"]] - every["true"]) / every[names["TOTAL"]]
        assert len(gap) > 0
        assert gap.abs().max() < 5, "the truth comes back within the errors"
        assert (names["folder"] / "spectra" / "spectra.html").exists()
    else:
        (limit,) = names["found"].limits().filter(pl.col("range") == "bin")["limit_fraction"]
        assert 1e-4 < limit < 1
        explanation = names["explanation"]
        assert explanation.base + sum(explanation.groups.values()) == pytest.approx(explanation.score)
        assert names["picture"].stat().st_size > 15_000
