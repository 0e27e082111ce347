"""Data sets and finished runs shared by all tests, and the count of faults survived.

Sets, their feature tables and runs are made once for all processes of the tests. They are read only: a test that
damages one takes a copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from pytest_regressions.dataframe_regression import DataFrameRegressionFixture

# Lets SciPy's special functions take the arrays of array_api_strict; read when SciPy is first imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
# xdist sets the width of a terminal; what is written into files and pipes has a width of its own.
os.environ.pop("COLUMNS", None)
# One worker where none are asked for: tests run side by side already, and every process of one imports all libraries.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

from showerstack.features.build import build_table
from showerstack.runtime.context import Context
from showerstack.runtime.kernels import Kernel
from showerstack.scoring.metrics import composition
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.program import pictures_undrawn
from tests.references import table

N_TRAIN = 2_000
N_TEST = 1_000
LONGEST = (
    "test_kills.py", "test_journey.py", "test_package.py", "test_photons.py", "test_benchmarks.py",
    "test_demo.py", "test_spectra.py", "test_corsika.py", "test_convert.py", "test_cli.py", "test_onnx.py",
    "test_datacheck.py", "test_run.py", "test_tables.py",
)  # fmt: skip
"""Files that take minutes: begun first, so that no process of the tests works alone at the end."""
ONE_REGISTRY: dict[str, Callable[..., object]] = {}
VERSION_OF = {
    "features": "FEATURES_VERSION",
    "models": "the learner's version (LearnerSpec.version), or for all learners STACKING_VERSION,",
    "showers": "SIMULATION_VERSION or CONVERSION_VERSION",
    "stacking": "STACKING_VERSION",
}
"""What to raise when reference tables of a package's tests change."""
BEGAN_S = pytest.StashKey[float]()
SURVIVED = pytest.StashKey[Counter[str]]()


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that one process of the tests makes while the others wait for it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    made = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            made.touch()
    return folder


def _simulated(task: Task, folder: Path) -> None:
    for split in simulate(task, folder, n_train=N_TRAIN, n_test=N_TEST, seed=7, train_cuts="test", workers=1):
        build_table(split, ctx=Context(device="cpu", workers=1))


@pytest.fixture(scope="session")
def tiny_composition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``composition_train`` (2,000 showers under the test's cuts) and ``composition_test`` (1,000)."""
    return made_once(tmp_path_factory, "composition", lambda folder: _simulated(COMPOSITION, folder))


@pytest.fixture(scope="session")
def tiny_gamma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``gamma_train`` (2,000 showers under the test's cuts) and ``gamma_test`` (1,000)."""
    return made_once(tmp_path_factory, "gamma", lambda folder: _simulated(GAMMA, folder))


def _stacked(task: Task, data: Path, run: Path) -> None:
    options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "workers": 1, "device": "cpu"}
    stack(StackConfig(task=task.name, data=data, run=run, **options))


@pytest.fixture(scope="session")
def composition_run(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one learner and two folds."""
    return made_once(
        tmp_path_factory, "composition-run", lambda folder: _stacked(COMPOSITION, tiny_composition, folder)
    )


@pytest.fixture(scope="session")
def gamma_run(tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one learner and two folds."""
    return made_once(tmp_path_factory, "gamma-run", lambda folder: _stacked(GAMMA, tiny_gamma, folder))


@pytest.fixture(scope="session")
def survived(request: pytest.FixtureRequest) -> Counter[str]:
    """Counts of the faults that were survived, by kind; printed at the end."""
    return request.config.stash.setdefault(SURVIVED, Counter())


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    """Do the benchmark's five million draws once for the same answers and random numbers, however often scored."""
    draw = composition.sampled_errors

    @lru_cache(maxsize=512)
    def made(
        labels: bytes, predicted: bytes, types: tuple[str, str], state: str, n_classes: int
    ) -> tuple[np.ndarray | None, object]:
        rng = np.random.default_rng()
        rng.bit_generator.state = json.loads(state)
        answers = (np.frombuffer(each, kind) for each, kind in zip((labels, predicted), types, strict=True))
        return draw(*answers, rng, n_classes), rng.bit_generator.state

    def remembered(
        labels: np.ndarray, predicted: np.ndarray, rng: np.random.Generator, n_classes: int = composition.N_CLASSES
    ) -> np.ndarray | None:
        types = labels.dtype.str, predicted.dtype.str
        state = json.dumps(rng.bit_generator.state)
        errors, rng.bit_generator.state = made(labels.tobytes(), predicted.tobytes(), types, state, n_classes)
        return None if errors is None else errors.copy()

    with patch.object(composition, "sampled_errors", remembered):
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Leave the pictures of pages empty, whose drawing takes most of the time; those in files are drawn."""
    with pictures_undrawn():
        yield


@pytest.fixture
def one_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all ONNX exports share the exporter's table of operators, which takes longer to make than a small graph."""
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    made = ONE_REGISTRY.setdefault("from_torchlib", cache(registration.ONNXRegistry.from_torchlib))
    monkeypatch.setattr(registration.ONNXRegistry, "from_torchlib", staticmethod(made))


@pytest.fixture
def reference(request: pytest.FixtureRequest, dataframe_regression: DataFrameRegressionFixture) -> Callable[..., None]:
    """Compare the numbers of a result with the table kept beside the test (:mod:`tests.references`).

    A failure names the version number that a change of these numbers has to raise.
    """
    package = request.path.relative_to(Path(__file__).parent).parts[0]
    version = VERSION_OF.get(package)

    def check(result: object, rtol: float = 1e-5, atol: float = 0.0) -> None:
        try:
            dataframe_regression.check(table(result), default_tolerance={"rtol": rtol, "atol": atol})
        except AssertionError as error:
            if version is None:
                raise
            raise AssertionError(
                f"{error}\nIf these numbers are meant to change, raise {version} in runtime/versions.py."
            ) from None

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


MOST_S = 3.0
"""Processor time of a test that is not marked as slow, its child processes included."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Fail a test that takes longer than those of ``make test`` may."""
    report = yield
    if call.when == "setup":
        item.stash[BEGAN_S] = _processor_s()
        COMPILING_S.clear()
    took_s = _processor_s() - item.stash.get(BEGAN_S, _processor_s()) - sum(COMPILING_S)
    is_long = any(item.get_closest_marker(name) for name in ("slow", "faults"))
    if call.when != "call" or not report.passed or is_long or took_s <= MOST_S:
        return report
    if took_s > (most := MOST_S * _slowness()):
        report.outcome = "failed"
        report.longrepr = f"{took_s:.1f} s of processor time, at most {most:.1f}: make it smaller, or mark it as slow"
    return report


LOOP_S = 0.04
"""Processor time of the loop below where the limit was set."""


def _slowness() -> float:
    """Return how many times slower this processor is at present; others may use its cores."""
    loops = []
    for _ in range(3):
        began = time.process_time()
        sum(number * number for number in range(1_000_000))
        loops.append(time.process_time() - began)
    return max(1.0, max(loops) / LOOP_S)


def _processor_s() -> float:
    return sum(os.times()[:4])


COMPILING_S: list[float] = []
"""Processor time of the present test in which machine code was made, which the next tests find."""


@pytest.fixture(scope="session", autouse=True)
def compiling_noted() -> Iterator[None]:
    """Note how long the compiler works."""
    compiled = Kernel._compile

    def noted(self: Kernel, *arguments: object) -> object:
        began = _processor_s()
        try:
            return compiled(self, *arguments)  # type: ignore[arg-type]
        finally:
            COMPILING_S.append(_processor_s() - began)

    with patch.object(Kernel, "_compile", noted):
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts of a test process over to the one that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["survived"] = dict(session.config.stash.get(SURVIVED, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Add the counts of a test process that has ended."""
    value = getattr(node, "workeroutput", {}).get("survived", {})
    node.config.stash.setdefault(SURVIVED, Counter()).update(value)  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the faults survived."""
    for what, count in sorted(config.stash.get(SURVIVED, Counter()).items()):
        terminalreporter.write_line(f"survived: {count:,} {what}")
