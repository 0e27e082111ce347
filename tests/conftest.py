"""Data sets shared by all tests: small simulated skies, made once a session; and the count of faults survived."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

# Lets SciPy's special functions take the arrays of array_api_strict; read when SciPy is first imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
# One worker where none are asked for: tests run side by side already, and every process of one imports all libraries.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

from showers.schema import COMPOSITION, GAMMA, Task
from showers.simulation import simulate

N_TRAIN = 2_000
N_TEST = 1_000
LONGEST = ("test_journey.py", "test_kills.py", "test_run.py", "test_tables.py")
"""Files that take minutes: begun first, so that no process of the tests works alone at the end."""
SURVIVED = pytest.StashKey[Counter[str]]()


def _simulated(task: Task, folder: Path) -> Path:
    simulate(task, folder, n_train=N_TRAIN, n_test=N_TEST, seed=7, train_cuts="test", workers=1)
    return folder


@pytest.fixture(scope="session")
def tiny_composition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``composition_train`` (2,000 showers under the test's cuts) and ``composition_test`` (1,000)."""
    return _simulated(COMPOSITION, tmp_path_factory.mktemp("composition"))


@pytest.fixture(scope="session")
def tiny_gamma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``gamma_train`` (2,000 showers under the test's cuts) and ``gamma_test`` (1,000)."""
    return _simulated(GAMMA, tmp_path_factory.mktemp("gamma"))


@pytest.fixture(scope="session")
def survived(request: pytest.FixtureRequest) -> Counter[str]:
    """Counts of the faults that were survived, by kind; printed at the end."""
    return request.config.stash.setdefault(SURVIVED, Counter())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


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
