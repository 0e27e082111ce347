"""The core alone, and what is imported: extras are refused with their command, and help answers without libraries.

Processes here are started with a ``sitecustomize`` by which Python does not have the libraries of the extras.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cli
from showerstack.commands.app import app
from showerstack.runtime.code import version_of
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.packages import EXTRAS, NOT_ON_WINDOWS, how_to_install
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.program import call, environment

HERE = Path(cli.__file__).resolve().parent
NOT_OF_THE_CORE = ("pandas", "pyarrow", "markupsafe", "PIL")
"""Libraries that come with those of the extras."""
NO_EXTRAS = ("test", "test-cpu", "tools", "docs", "all", "gpu13", "train-cpu")
"""For developers, all of them, and the extra ``gpu`` for another version of CUDA."""
NO_MODULES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12")
"""Distributions that are not imported: a toolkit of the system can stand for them."""


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an installation without extras."""
    of_extras = {library for libraries in EXTRAS.values() for library in libraries}
    return environment(tmp_path_factory.mktemp("site"), (*of_extras, *NOT_OF_THE_CORE))


def run(command: list[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder."""
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=dict(env), capture_output=True, text=True, timeout=3600
    )


def test_uv_gets_the_tested_versions() -> None:
    lines = (HERE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["uv"]["constraint-dependencies"] == [line for line in lines if line[:1] not in ("", "#")]


def test_a_library_has_the_version_of_the_distribution_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"xgboost-cpu": "3.2.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    asked = version_of.__wrapped__  # what is installed is asked once a process
    assert (asked("xgboost"), asked("lightgbm")) == ("3.2.0", "not installed")


@pytest.mark.parametrize("program", ["cli.py", "verify.py"])
def test_windows_is_told_in_one_line(program: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({NOT_ON_WINDOWS}))\n"  # an import of them fails as of what is not there
        f"sys.argv, sys.path[:0] = [{program!r}, '--help'], ['.']\n"
        f"runpy.run_path({program!r}, run_name='__main__')\n"
    )
    asked = run(["-c", code], HERE, os.environ)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == "error: showerstack needs Linux or macOS: on Windows use WSL (wsl --install)\n"


def test_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - set(NO_EXTRAS)
    everything = [Requirement(text) for text in extras["all"]]
    assert set().union(*(one.extras for one in everything)) == set(EXTRAS)
    assert [str(one.marker) for one in everything if "gpu" in one.extras] == ['sys_platform == "linux"']
    for platform, library in (("linux", "xgboost-cpu"), ("darwin", "xgboost")):  # macOS has one, without CUDA
        asked = map(Requirement, extras["train-cpu"])
        on_cpu = {one.name for one in asked if one.marker is None or one.marker.evaluate({"sys_platform": platform})}
        assert on_cpu == {Requirement(text).name for text in extras["train"]} - {"xgboost"} | {library}
    distributions = packages_distributions()
    for extra, libraries in EXTRAS.items():
        wanted = {canonicalize_name(Requirement(text).name) for text in extras[extra]} - set(NO_MODULES)
        installed = {canonicalize_name(name) for library in libraries for name in distributions.get(library, ())}
        assert installed <= wanted | {"onnxruntime-gpu", "xgboost-cpu"}, extra
        assert len(libraries) == len(wanted), extra


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install(["no_such_library"]) == ""
    for library in (*EXTRAS["train"], *EXTRAS["report"]):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError) as error:
        need("train", "report", what="this")
    assert str(error.value) == (
        "this needs catboost, lightgbm, sklearn and 5 more: pip install 'showerstack[train,report]'"
    )
    need("physics", what="this")


EVERY_COMMAND = """
import contextlib, io, json, sys
import cli
answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, err, out, code = ["cli.py", *arguments], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
    answers.append([code, err.getvalue(), out.getvalue()])
print(json.dumps([answers, sorted(sys.modules)]))
"""


def called(
    commands: list[list[str]], folder: Path, env: Mapping[str, str]
) -> tuple[list[tuple[int, str, str]], set[str]]:
    """Return exit code, errors and answer of each command, all in one process, and what they imported."""
    made = run(["-c", EVERY_COMMAND, json.dumps(commands)], folder, env)
    assert made.returncode == 0, made.stderr
    answers, modules = json.loads(made.stdout)
    return [tuple(one) for one in answers], set(modules)


EXTRAS_OF = {
    "stack --run r": "train,report",
    "demo": "train,report",
    "reproduce": "train,report",
    "pretrain --out p": "train",
    "export --run r --out o": "train,export",
    "export --run r --out o --check d": "train,onnx,export",
    "report r": "train,report",
    "display d 1": "report",
    "spectra --run r --data d": "train,report,physics",
    "gamma-limit --run r --data d": "train,report",
    "datacheck --run r --data d": "train,report",
    "taskcard --out o --variant 1": "train",
    "sky-map --data d": "report,sky",
    "sky-map --data d --run r": "train,report,sky",
}
"""What commands need beside the core; all others do without."""


def test_a_command_without_its_extra_is_one_line_before_any_work(tmp_path: Path, core_alone: dict[str, str]) -> None:
    answers, _ = called([command.split() for command in EXTRAS_OF], tmp_path, core_alone)
    for (command, extras), (code, err, _) in zip(EXTRAS_OF.items(), answers, strict=True):
        assert code == 2, (command, err)
        assert err.startswith(f"error: {command.split()[0]} needs "), err
        assert err.endswith(f": pip install 'showerstack[{extras}]'\n"), err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_python_names_the_extra_too(tmp_path: Path, core_alone: dict[str, str]) -> None:
    program = """
import numpy as np
import showerstack
for call in (lambda: showerstack.fit(np.zeros((4, 2)), [0, 0, 1, 1], run="r"), lambda: showerstack.StackClassifier):
    try:
        call()
    except ValueError as error:
        print(error)
"""
    made = run(["-c", program], tmp_path, core_alone)
    assert made.stdout == (
        "training needs catboost, lightgbm, sklearn and 3 more: pip install 'showerstack[train]'\n"
        "StackClassifier needs sklearn: pip install 'showerstack[train]'\n"
    ), made.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_met_later_is_one_line_too(tmp_path: Path, core_alone: dict[str, str]) -> None:
    (tmp_path / "events.h5").write_bytes(b"")
    ((code, err, _),), _ = called([["convert", "--from", "events.h5", "--out", "o"]], tmp_path, core_alone)
    assert (code, err) == (2, "error: events.h5 needs h5py: pip install 'showerstack[files]'\n")


@pytest.mark.slow
def test_the_core_simulates_converts_makes_features_and_scores(tmp_path: Path, core_alone: dict[str, str]) -> None:
    commands = (
        "simulate --raw --task gamma --out raw --train 1500 --workers 1",
        "convert --raw raw --out data --task gamma",
        "features data/gamma_test --workers 1 --device cpu",
    )
    answers, _ = called([command.split() for command in commands], tmp_path, core_alone)
    assert [code for code, _, _ in answers] == [0, 0, 0], answers
    test = tmp_path / "data" / "gamma_test"
    assert json.loads((test / "source.json").read_text())["protocol"] == "2026"
    labels = np.load(next(test.glob("labels*.npy")))
    assert answers[2][2].startswith(f"{len(labels):,} events, ")
    np.savez(tmp_path / "predictions.npz", gamma_scores=np.linspace(0, 1, len(labels)))
    made = run([str(HERE / "verify.py"), "predictions.npz", "--data", "data"], tmp_path, core_alone)
    assert (made.returncode, "survival" in made.stdout) == (0, True), made.stderr
    last = [["verify", "predictions.npz", "--data", "data"], ["learners"], ["doctor", "--json"]]
    answers, _ = called(last, tmp_path, core_alone)
    for (code, err, out), word in zip(
        answers, ("survival", "lightgbm", "pip install 'showerstack[train,report,physics"), strict=True
    ):
        assert (code, word in out) == (0, True), err


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["mlp", "lightgbm"])
def test_the_core_predicts_as_the_libraries_do(
    learner: str, tiny_composition: Path, tmp_path: Path, core_alone: dict[str, str]
) -> None:
    settings = {"mlp": {"epochs": 1}, "lightgbm": {"rounds": 10}}
    options = {"preset": "quick", "learners": (learner,), "folds": 2, "workers": 1, "device": "cpu"}
    folder = tmp_path / "run"
    stack(StackConfig(task="composition", data=tiny_composition, run=folder, **options, settings=settings))
    words = ["predict", "--run", str(folder), "--data", str(tiny_composition / "composition_test"), "--no-table"]
    ((code, err, _),), _ = called([[*words, "--out", "core.npz"]], tmp_path, core_alone)
    assert code == 0, err
    assert call("cli.py", *words, "--out", tmp_path / "all.npz")
    with np.load(tmp_path / "core.npz") as core, np.load(tmp_path / "all.npz") as everything:
        assert set(core.files) == set(everything.files)
        for name in core.files:
            np.testing.assert_array_equal(core[name], everything[name])


def test_what_other_learners_need_is_said_before_any_work(
    composition_run: Path, tiny_composition: Path, tmp_path: Path, core_alone: dict[str, str]
) -> None:
    words = ["predict", "--run", str(composition_run), "--data", str(tiny_composition / "composition_test")]
    ((code, err, _),), _ = called([[*words, "--out", "p.npz", "--features", "f"]], tmp_path, core_alone)
    assert code == 2
    assert err.startswith(f"error: predicting with {composition_run} needs catboost, ")
    assert list(tmp_path.iterdir()) == []


COMMANDS = [one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands]
HEAVY = {
    "torch", "sklearn", "lightgbm", "xgboost", "catboost", "matplotlib", "iminuit", "onnx", "onnxruntime", "numba",
    "polars", "scipy", "joblib", "pandas", "pyarrow",
}  # fmt: skip


def test_help_of_no_command_imports_a_library(tmp_path: Path) -> None:
    answers, modules = called(
        [["--help"], *([name, "--help"] for name in COMMANDS)], tmp_path, environment(tmp_path, ())
    )
    assert {code for code, _, _ in answers} == {0}
    assert modules & (HEAVY | {"numpy", "rich.progress"}) == set()


@pytest.mark.slow
def test_scores_and_reports_import_only_what_they_use(
    composition_run: Path, tiny_composition: Path, tmp_path: Path
) -> None:
    ours, where = environment(tmp_path, ()), ["--data", str(tiny_composition)]
    own = shutil.copytree(composition_run, tmp_path / "run")
    ((code, err, _),), scoring = called([["verify", str(own / "predictions.npz"), *where]], tmp_path, ours)
    assert code == 0, err
    assert scoring & (HEAVY - {"scipy"}) == set()
    assert not any(name.startswith(("scipy.stats", "scipy.optimize")) for name in scoring)
    ((code, err, _),), reporting = called([["report", str(own), *where]], tmp_path, ours)
    assert code == 0, err
    # the run's learner predicts with scikit-learn
    assert reporting & HEAVY <= {"scipy", "polars", "matplotlib", "sklearn", "joblib", "pandas", "pyarrow"}


def test_learners_are_listed_without_their_libraries(tmp_path: Path) -> None:
    _, modules = called([["learners"], ["learners", "--json"]], tmp_path, environment(tmp_path, ()))
    assert modules & HEAVY == set()


def test_scoring_imports_no_library_of_learners_tables_or_pictures(tmp_path: Path) -> None:
    code = "import json, sys, verify, showerstack.scoring.score; print(json.dumps(sorted(sys.modules)))"
    modules = set(json.loads(run(["-c", code], tmp_path, environment(tmp_path, ())).stdout))
    assert modules & (HEAVY - {"scipy"} | {"scipy.stats", "scipy.sparse", "scipy.optimize"}) == set()
