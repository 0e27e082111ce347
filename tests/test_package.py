"""The installed package: a wheel built here works outside of the checkout, under one name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from packaging.requirements import Requirement

import cli
from showerstack.runtime.packages import OWN

HERE = Path(cli.__file__).resolve().parent
DATA = {".py", ".cu", ".css", ".html", ".toml", ".json"}
LEFT_OUT = (
    ".*",
    "__pycache__",
    "*.egg-info",
    "build",
    "data",
    "demo",
    "runs",
    "tests",
    "docs",
    "*.features",
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the source; nothing is downloaded."""
    place = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(HERE, place / "source", symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(source))
    (result,) = place.glob("*.whl")
    return result


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone, without its dependencies."""
    place = tmp_path_factory.mktemp("site")
    _pip("install", "--no-deps", "--target", str(place), str(wheel))
    return place


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-input"]
    subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)


def outside(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that is not the checkout, with the installed package."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=3600
    )


def test_one_name_is_installed_with_everything_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"showerstack"}
    ours = [file for name in ("showers", "features", "models", "stacking", "scoring", "analysis", "report", "commands")
            for file in (HERE / name).rglob("*") if file.suffix in DATA]  # fmt: skip
    lacking = {f"showerstack/{file.relative_to(HERE).as_posix()}" for file in ours} - set(names)
    assert not lacking
    assert {"showerstack/py.typed", "showerstack/api.py", "showerstack/source/cli.py"} <= set(names)


def test_no_file_is_in_the_wheel_twice_and_the_licence_is_handed_on(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as files:
        contents = [content for name in files.namelist() if (content := files.read(name)).strip()]
    assert len(contents) == len(set(contents))
    program = (
        "from pathlib import Path; from showerstack.report.public.submission import snapshot; snapshot(Path('code'))"
    )
    said = outside(installed, tmp_path, "-c", program)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "code" / "LICENSE").read_text() == (HERE / "LICENSE").read_text()


def test_links_of_the_readme_hold_on_a_page_of_a_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        metadata = files.read(name).decode()
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    assert f"Project-URL: Repository, {project['urls']['Repository']}\n" in metadata
    assert f"Author: {project['authors'][0]['name']}\n" in metadata
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", metadata)
    place = {mark: f"{project['urls']['Repository']}/{kind}/v{project['version']}/" for mark, kind in
             (("!", "raw"), ("", "blob"))}  # fmt: skip
    assert [link for _, link in links if not link.startswith("https://")] == []
    ours = [(HERE / link.removeprefix(place[mark]).partition("#")[0]) for mark, link in links if
            link.startswith(place[mark])]  # fmt: skip
    assert len(ours) > 10
    assert [path for path in ours if not path.exists()] == []
    assert any(path.suffix == ".svg" for path in ours)


NOTEBOOKS = {
    "first": (
        {"n_train=3000, n_test=2000": "n_train=800, n_test=500"},
        "assert float(scored) < 0.15, 'much better than guessing (.158) even after few showers'",
    ),
    "spectrum": (
        {
            "n_train=6000, n_test=40_000": "n_train=800, n_test=4000",
            'learners=("lightgbm", "quadratic_logit")': 'learners=("quadratic_logit",)',
            "live_time_h = 200.0": "live_time_h = 30.0",
        },
        "every = table.filter(pl.col('group') == 'all')\n"
        "gap = (every[FLUX] - every['true']) / every[TOTAL]\n"
        "assert len(gap) and gap.abs().max() < 5, 'the truth comes back within the errors'\n"
        "assert (folder / 'spectra' / 'spectra.html').exists()",
    ),
    "photons": (
        {
            "n_train=6000, n_test=12_000": "n_train=1500, n_test=3000",
            "live_time_h = 50.0": "live_time_h = 5.0",
            "photon_fraction = 1e-3": "photon_fraction = 0.05",
            "edges=(15.0, 15.5, 16.5), toys=500": "edges=(15.0, 16.5), toys=100",
        },
        "(limit,) = found.limits().filter(pl.col('range') == 'bin')['limit_fraction']\n"
        "assert 1e-4 < limit < 1\n"
        "gap = explanation.base + sum(explanation.groups.values()) - explanation.score\n"
        "assert abs(gap) < 1e-6 * abs(explanation.score)",
    ),
}
"""What a notebook does, made smaller (in full they are run where the documentation is made), and what then holds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_after_an_installation_and_are_kept_without_outputs(
    name: str, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(HERE / "docs" / "notebooks" / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # Outputs would show the numbers and warnings of another version, and change with every run.
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)
    smaller, holds = NOTEBOOKS[name]
    for whole, less in {**smaller, "folds=2,": "folds=2, workers=1,"}.items():
        assert any(whole in cell.source for cell in cells), whole
        for cell in cells:
            cell.source = cell.source.replace(whole, less)
    notebook.cells.append(nbformat.v4.new_code_cell(f"import polars as pl\n{holds}"))
    for variable, place in (("PYTHONPATH", installed), ("TMPDIR", tmp_path), ("IPYTHONDIR", tmp_path)):
        monkeypatch.setenv(variable, str(place))
    NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert min(map(len, pictures)) > 10_000


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    command = [sys.executable, "-c", build]
    subprocess.run(
        [*command, "build_sdist", str(tmp_path)], cwd=wheel.parent / "source", check=True, capture_output=True
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        linked = {member.name.split("/", 1)[1]: member.linkname for member in content if member.issym()}
        assert {f"showerstack/{package}": f"../{package}" for package in OWN}.items() <= linked.items()
        inside = tuple(f"{link}/" for link in linked)
        assert not [name for name in content.getnames() if name.split("/", 1)[-1].startswith(inside)]
        content.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    subprocess.run([*command, "build_wheel", str(tmp_path)], cwd=source, check=True, capture_output=True)
    (again,) = tmp_path.glob("*.whl")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("left", ["texts", "nothing"])
def test_a_checkout_without_links_says_what_to_do(left: str, wheel: Path, tmp_path: Path) -> None:
    """Git without leave to make links writes text files in their places; some unpackers leave them out."""
    source = shutil.copytree(wheel.parent / "source", tmp_path / "source", symlinks=True)
    for link in [path for path in (source / "showerstack").rglob("*") if path.is_symlink()]:
        target = str(link.readlink())
        link.unlink()
        if left == "texts":
            link.write_text(target)
    build = "from setuptools import build_meta as b; b.build_wheel('wheel')"
    said = {
        arguments: outside(source, source, *arguments).stderr.splitlines()
        for arguments in (("-c", "import showerstack"), ("cli.py", "doctor"), ("verify.py",), ("-c", build))
    }
    assert all("git -c core.symlinks=true checkout -- showerstack" in lines[-1] for lines in said.values()), said
    assert {len(lines) for arguments, lines in said.items() if "import showerstack" not in arguments} == {1}, said
    assert not list((source / "wheel").glob("*.whl"))


@pytest.mark.slow
def test_coverage_sees_every_module(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "coverage"]
    kept, told = f"--data-file={tmp_path / 'measured'}", tmp_path / "coverage.json"
    for arguments in (("run", kept, "--source=showerstack", "cli.py", "--version"), ("json", kept, "-o", str(told))):
        subprocess.run([*program, *arguments], cwd=HERE, check=True, capture_output=True)
    files = [path for folder in OWN for path in (HERE / folder).rglob("*.py") if (path.parent / "__init__.py").exists()]
    assert {path.relative_to(HERE).as_posix() for path in files} < set(json.loads(told.read_text())["files"])


def test_the_citation_file_agrees_with_the_project() -> None:
    """Zenodo reads it where there is no .zenodo.json: one source is enough."""
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((HERE / "CITATION.cff").read_text())
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    assert citation.keys() >= {"cff-version", "message", "title", "authors", "abstract"}, "required, or shown by Zenodo"
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    same = {"title": "name", "version": "version", "license": "license"}
    assert {ours: str(citation[ours]) for ours in same} == {ours: project[theirs] for ours, theirs in same.items()}
    assert citation["abstract"].removesuffix(".") == project["description"]
    assert all(author.keys() & {"name", "family-names"} for author in citation["authors"])
    assert not (HERE / ".zenodo.json").exists()
    assert f"\n## {project['version']}, {citation['date-released']}\n" in (HERE / "CHANGELOG.md").read_text()
    address, (author,) = project["urls"]["Repository"], project["authors"]
    assert (citation["repository-code"], citation["authors"]) == (address, [author])
    meta = json.loads((HERE / "codemeta.json").read_text())
    assert (meta["codeRepository"], meta["version"], meta["datePublished"], meta["author"][0]["name"]) == (
        *(address, project["version"], citation["date-released"]),
        author["name"],
    )
    assert f"git clone {address}\ncd {address.rsplit('/', 1)[1]}\n" in (HERE / "docs" / "train.md").read_text()


ON_CONDA = {"torch": "pytorch", "xgboost": "py-xgboost", "matplotlib": "matplotlib-base"}
"""Names of packages that conda-forge has under another name."""


def test_the_conda_recipe_has_the_requirements_of_the_project() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((HERE / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    assert recipe["context"]["version"] == project["version"]
    about = recipe["about"]
    assert {about["homepage"], about["repository"]} == {project["urls"]["Repository"]}
    assert (about["license"], about["summary"]) == (project["license"], project["description"])
    core, most = recipe["outputs"]

    def asked(requirements: list[str]) -> set[str]:
        found = map(Requirement, requirements)
        return {f"{ON_CONDA.get(one.name, one.name)} {one.specifier}" for one in found}

    assert set(core["requirements"]["run"]) == {
        f"python {project['requires-python']}",
        *asked(project["dependencies"]),
    }
    extras = project["optional-dependencies"]
    assert set(most["requirements"]["run"]) == {
        f"{core['package']['name']} ==${{{{ version }}}}",
        *asked([*extras["train"], *extras["report"], *extras["physics"]]),
    }
    (script,) = core["build"]["python"]["entry_points"]
    assert script.split(" = ") == list(*project["scripts"].items())


@pytest.mark.slow
def test_commands_of_an_installation(installed: Path, tmp_path: Path, composition_labels: Path) -> None:
    data = str(composition_labels)
    (tmp_path / "models.py").write_text("raise SystemExit('the user has a module of this name')\n")
    script = str(installed / "bin" / "showerstack")
    said = outside(installed, tmp_path, script, "--version")
    assert said.stdout.startswith("showerstack "), said.stderr
    said = outside(installed, tmp_path, script, "verify", "predictions.npz", "--data", data, "--quiet")
    assert "predictions.npz does not exist" in said.stderr
    np.savez(tmp_path / "predictions.npz", predictions=np.arange(500) % 5)
    said = outside(installed, tmp_path, script, "verify", "predictions.npz", "--data", data)
    assert "fraction error 0.0000" in said.stdout, said.stderr
    assert (tmp_path / "metrics_composition.json").exists()


@pytest.fixture
def composition_labels(tmp_path: Path) -> Path:
    """A folder with the labels of 500 test showers, 0 to 4 in turn."""
    test = tmp_path / "data" / "composition_test"
    test.mkdir(parents=True)
    np.save(test / "labels_composition.npy", (np.arange(500) % 5).astype(np.int8))
    np.save(test / "features.npy", np.full((500, 5), 15, np.float16))
    return tmp_path / "data"


@pytest.mark.slow
def test_training_in_processes_of_an_installation(installed: Path, tmp_path: Path) -> None:
    program = """
import numpy as np
import showerstack
rng = np.random.default_rng(1)
y = rng.integers(0, 2, 100)
x = rng.normal(size=(100, 3)) + 1.5 * y[:, None]
options = {"preset": "quick", "folds": 2, "repeats": 1, "holdout": 0.0, "pools": ("average",)}
options |= {"device": "cpu"}
if __name__ == "__main__":
    run = showerstack.fit(x, y, run="run", learners=("quadratic_logit",), workers=2, **options)
    found = run.predict(x)
    print(run, found, len(found), showerstack.__file__, sep="\\n")
    assert np.mean(found.labels == y) > 0.8
"""
    (tmp_path / "program.py").write_text(program)
    said = outside(installed, tmp_path, "program.py")
    assert said.returncode == 0, said.stderr
    run, result, n, file = said.stdout.splitlines()[-4:]
    assert run == f"<table run {tmp_path / 'run'}: table.quadratic_logit>"
    assert result.startswith("<100 predictions, table: 0 ")
    assert n == "100"
    assert Path(file).is_relative_to(installed)


def test_python_dash_m(installed: Path, tmp_path: Path) -> None:
    assert outside(installed, tmp_path, "-m", "showerstack", "--version").stdout.startswith("showerstack ")


@pytest.mark.slow
def test_other_packages_of_the_same_names_are_left_alone(installed: Path, tmp_path: Path) -> None:
    """Modules of the user's folder, and another distribution that owns ``report``; ours are not found by bare names."""
    refusal = "raise SystemExit('this module belongs to the user')\n"
    for name in ("models.py", "cli.py", "verify.py", "features/__init__.py", "report/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(refusal)
    program = "import showerstack; showerstack.fit; import showerstack.report.run_page, showerstack.features; import {}"
    for name in ("models", "report"):
        said = outside(installed, tmp_path, "-c", program.format(name))
        assert said.stderr == "this module belongs to the user\n", said.stderr
    said = outside(installed, tmp_path, "-c", program.format("scoring"))
    assert said.stderr.endswith("ModuleNotFoundError: No module named 'scoring'\n")
    for command in ((str(installed / "bin" / "showerstack"),), ("-m", "showerstack")):
        said = outside(installed, tmp_path, *command, "learners", "--json")
        assert (said.returncode, said.stderr) == (0, ""), said.stderr


PLUGINS = """
import numpy as np
from pathlib import Path
from showerstack.features.catalogue import CATALOGUE
from showerstack.features.compute import compute_events
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, load, spec
grids, scalars = np.zeros((2, 16, 16, 2), np.float32), np.zeros((2, 5), np.float32)
grids[1, :4, :4, 0] = 10.0
print(CATALOGUE["trigger_share"].source)
print(compute_events(grids, scalars, None, frozenset({"trigger"}))["trigger_share"].to_list())
events = Batch(np.arange(4), np.arange(4, dtype=np.float32)[:, None], ("E",), labels=np.array([0, 0, 0, 1]))
learner = create(spec("frequencies"), ("a", "b")).fit(events, events, seed=1)
learner.save(Path("saved"))
print(np.exp(load(Path("saved")).predict_log_proba(events)[0]).tolist())
from showerstack.showers.archives.formats import convert_foreign
from showerstack.stacking.second_level import pool_specs
print(list(pool_specs())[-1])
Path("mine").mkdir()
Path("mine", "events.csv").write_text("E,Ze\\n15.5,10\\n")
print(convert_foreign(Path("mine"), Path("out"), None)[0].name)
"""


@pytest.mark.slow
def test_plug_ins_of_another_distribution(installed: Path, tmp_path: Path) -> None:
    """The example package: its learner and its feature are found, used and opened again by their entry points."""
    site = tmp_path / "site"
    source = shutil.copytree(HERE / "examples" / "plugin", tmp_path / "plugin")
    _pip("install", "--no-deps", "--no-build-isolation", "--target", str(site), str(source))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(installed)))}
    command = [sys.executable, "-c", PLUGINS]
    more = ["sharpened_average", "mine.parquet"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == ["this example", "[0.0, 0.0634920671582222]", "[0.75, 0.25]", *more], done.stderr
    (site / "showerstack_example" / "frequencies.py").write_text("raise RuntimeError('broken')")
    command = [sys.executable, "-m", "showerstack", "learners"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert "showerstack-example declares showerstack_example.frequencies for showerstack.learners" in done.stderr


DASK = """
import numpy as np
import showerstack
from distributed import LocalCluster
rng = np.random.default_rng(1)
y = rng.integers(0, 2, 100)
x = rng.normal(size=(100, 3)) + 1.5 * y[:, None]
options = {"preset": "quick", "folds": 2, "repeats": 1, "holdout": 0.0, "pools": ("average",), "device": "cpu"}
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        run = showerstack.fit(
            x, y, run="run", learners=("quadratic_logit",), scheduler=cluster.scheduler_address, **options
        )
    print(run)
"""


@pytest.mark.faults
def test_a_dask_cluster_of_an_installation(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DASK)
    done = outside(installed, tmp_path, "program.py")
    run = f"<table run {tmp_path / 'run'}: table.quadratic_logit>"
    assert done.stdout.splitlines()[-1:] == [run], done.stderr
