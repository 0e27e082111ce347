"""The product as a user meets it: the pages on its use (demo and notebooks: ``test_demo.py``, ``test_package.py``).

Every command and every block of Python on the pages of ``STORIES`` does, with fewer showers, what the page says; what
needs a network, a GPU or hours is parsed, so that its options exist. Every other block of a page stands in
``ELSEWHERE_TOLD`` with the reason. All that happens in this process with small learners; ``make test-all`` tells the
whole again, in processes of its own and with what users get, and compares the numbers that the README and the pages
show.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_wine
from typer.main import get_command

from showerstack.commands.app import app
from showerstack.report.run_page import write_report
from showerstack.showers.archives.measured import convert_measured
from tests.program import call
from tests.showers.corsika_files import draw_shower, write_file
from tests.told import ROOT, agree, blocks, executed, not_said, run

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
    r"|convert (job|my_events|esd|dataSummary)|job\.parquet"
)
"""Commands that need a network, a GPU, hours, or files of others: their options are parsed, nothing is run."""
INSTALLED = re.compile(r"(python -m )?pip install ")
HOURS = "python -m benchmarks.world.cascade "
ELSEWHERE_TOLD = {
    ("README.md", "console", "$ make demo "): "the set-up; the demo is in tests/test_demo.py",
    ("README.md", "text", "composition, 8,000"): "the demo's output: tests/test_demo.py",
    ("docs/install.md", "console", "$ python -m pip"): "the set-up: tests/test_package.py",
    ("docs/train.md", "sh", "git clone"): "test_the_set_up_is_that_of_the_makefile",
    ("docs/methods/learners.md", "python", "from showerstack.models.registry"): "names of the reader's own",
}
"""Blocks of commands, code and output that no story tells: page, kind, beginning, and why or where they are tested."""
FEWER = {
    "--train 20000 --test 5000": "--train 300 --test 100",
    "--train 100000 --test 20000": "--train 300 --test 100",
    "--train 8000 --test 60000": "--train 900 --test 1500",
    "--train 8000": "--train 900",
    "--test 4000": "--test 400",
    "--test 2000": "--test 300",
    '("train", 2000)': '("train", 300)',
    "--simulation data/composition_test --exposure 6.7e11": "--exposure 1e7",
    "--learners quadratic_logit,lightgbm\n": "--learners quadratic_logit\n",
    "live_time_h = 8.0": "live_time_h = 1.0",
    "--data trial/measured --simulation trial/composition_test": "--data trial/measured",
    "--simulation data/gamma_test --exposure 1.75e12": "--exposure 1e8",
    # All limits, to their last digit, in tests/analysis/test_workspace.py.
    'glob("*.json"))': 'glob("*.json"))[:1]',
    "limit, _ = toms748_scan(workspace.data(model), model, 0.0, highest, level=0.1)": (
        "limit = pyhf.infer.hypotest(highest, workspace.data(model), model)"
    ),
    "--run runs/wine --preset quick": "--run runs/wine --preset quick --learners table.logistic",
    "--run runs/scalars --preset quick": "--run runs/scalars --preset quick --learners table.logistic",
    'categories=["colour"])': 'categories=["colour"], learners=["table.logistic"], folds=2)',
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


def test_numbers_of_pages_are_compared_within_their_last_digit() -> None:
    assert agree("wrote a, 1,078 events", "wrote a, 1,078 events")
    assert not agree("wrote a, 1,078 events", "wrote a, 1,086 events")
    assert not agree("wrote a", "wrote b")
    assert agree("2.3e-4", "2.4e-4")
    assert not agree("2.3e-4", "2.9e-4")
    assert agree("stack  50.18 ± 0.79  1.063 ± 0.011", "stack  50.35 ± 0.80  1.060 ± 0.011")
    assert not agree("stack  50.18 ± 0.79  1.063 ± 0.011", "stack  52.80 ± 0.80  1.060 ± 0.011")
    assert not agree("stack  50.18 ± 0.79", "stack  50.18 ± 1.19")
    assert agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1019 [0.0971, 0.1065], 2,000")
    assert not agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1080 [0.0974, 0.1069], 2,000")
    assert not agree("error 0.1023 [0.0974, 0.1069], 2,000", "error 0.1023 [0.0974, 0.1069], 2,002")
    assert agree("accuracy 0.52 [0.50, 0.54], macro F1 0.523, 9", "accuracy 0.52 [0.50, 0.54], macro F1 0.527, 9")
    assert not agree("accuracy 0.52 [0.50, 0.54], macro F1 0.523, 9", "accuracy 0.52 [0.50, 0.54], macro F1 0.549, 9")
    assert agree("[0.005 0.01 0.3  1.  ] iron", "[0.006 0.01 0.3  1.  ] helium")
    assert not agree("[0.005 0.01 0.3  1.  ] iron", "[0.012 0.01 0.3  1.  ] iron")
    assert not_said(["a 1", "b 2"], "a 1\nb 5", numbers=True) == ["b 2"]
    assert not_said(["a 1", "b 2"], "a 1\nb 5", numbers=False) == []


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


def test_every_saving_saves_something() -> None:
    """One that an earlier one has taken the words of does not, and its page takes as long as a reader's."""
    text, idle = "".join(block for page in STORIES for _, block in blocks(f"docs/{page}")), []
    for full, fewer in FEWER.items():
        idle += [full] if full not in text else []
        text = text.replace(full, fewer)
    assert idle == []


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


WHOLE_STORY = pytest.param("train.md", True, marks=pytest.mark.faults)


@pytest.mark.slow
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
