"""The source hash changes with the source; machine code on disk belongs to what it was made of: other files too."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import showerstack.features.lateral.compiled
import showerstack.features.stations.compiled
from showerstack.runtime import code as runtime_code
from showerstack.runtime import compiling, kernels, linking
from showerstack.runtime.code import source_hash, version_of
from showerstack.runtime.packages import OWN
from showerstack.showers.simulation import compiled, deposits

CODE = '''"""Docstring."""

LIMIT = 3
"""What it is."""


def f(x: int) -> int:
    """Add."""
    return x + LIMIT
'''


def _hash(folder: Path, text: str, name: str = "code.py") -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return source_hash([folder])


@pytest.mark.parametrize("changed", [CODE.replace("3", "4"), CODE.replace("+", "-"), CODE + "g = f\n"])
def test_code_counts(tmp_path: Path, changed: str) -> None:
    assert _hash(tmp_path, CODE) != _hash(tmp_path, changed)


def test_sub_folders_and_names_count(tmp_path: Path) -> None:
    before = _hash(tmp_path, CODE)
    below = _hash(tmp_path, CODE, "sub/kernel.py")
    assert below != before
    assert _hash(tmp_path, CODE.replace("3", "4"), "sub/kernel.py") != below
    (tmp_path / "sub" / "kernel.py").rename(tmp_path / "sub" / "other.py")
    assert source_hash([tmp_path]) != below


def test_library_versions_count(tmp_path: Path) -> None:
    assert _hash(tmp_path, CODE) != source_hash([tmp_path], ["numpy"])
    assert version_of("no-such-package") == "not installed"


KERNEL = '''"""A kernel."""

from kernel_case import constants
from kernel_case.inner import Pair, raised
from showerstack.runtime.kernels import kernel


@kernel(error_model="numpy")
def fill(pair: Pair, out) -> None:
    """Fill."""
    out[0] = raised(pair.first) + constants.LIMIT
'''
INNER = '''"""What it calls."""

from typing import NamedTuple

from numba import njit


class Pair(NamedTuple):
    first: float
    second: float


@njit
def raised(x):
    """Raise."""
    return 10.0 * x
'''
CONSTANTS = '''"""Constants."""

LIMIT = 3.0
"""What it is."""
'''
FILES = {"outer.py": KERNEL, "inner.py": INNER, "constants.py": CONSTANTS, "__init__.py": ""}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that writes the sources, imports them anew and gives the result and what was compiled."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kernels, "PACKAGES", ("kernel_case",))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))

    def import_and_call(**changed: str):
        folder = tmp_path / "kernel_case"
        folder.mkdir(exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(changed.get(name.removesuffix(".py"), text))
        for name in [name for name in sys.modules if name.startswith("kernel_case")]:
            del sys.modules[name]
        runtime_code._imports.cache_clear()
        importlib.invalidate_caches()
        # Two versions written within the clock's resolution would share one byte-code file.
        for old in folder.glob("__pycache__/*.pyc"):
            old.unlink()
        module = importlib.import_module("kernel_case.outer")
        inner = importlib.import_module("kernel_case.inner")
        out = np.zeros(1)
        pair = getattr(inner, "Pair", None) or inner.Couple
        module.fill(pair(1.0, 2.0), out)
        return float(out[0]), sorted((tmp_path / "code").glob("*.kernel"))

    return import_and_call


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"inner": INNER.replace("10.0", "20.0")}, 23.0),
        ({"constants": CONSTANTS.replace("3.0", "4.0")}, 14.0),
        ({"inner": INNER.replace("    first: float\n    second: float", "    second: float\n    first: float")}, 23.0),
        ({"outer": KERNEL.replace("+ constants", "- constants")}, 7.0),
        ({"inner": INNER.replace("Pair", "Couple"), "outer": KERNEL.replace("Pair", "Couple")}, 13.0),
    ],
)
def test_changed_sources_give_new_code(run, changed, value):
    assert run()[0] == 13.0
    assert run(**changed)[0] == value


def test_a_library_of_another_version_gives_new_code(run, monkeypatch):
    _, before = run()
    monkeypatch.setattr(runtime_code, "version_of", lambda package: "another")
    _, after = run()
    assert len(after) == 2
    assert set(before) < set(after)


def test_code_that_was_used_least_recently_leaves(run, monkeypatch):
    monkeypatch.setattr(kernels, "KEPT", 2)
    sources = [CONSTANTS.replace("3.0", f"{k}.0") for k in range(3)]
    (first,) = run(constants=sources[0])[1]
    os.utime(first, (0, 0))
    second = (set(run(constants=sources[1])[1]) - {first}).pop()
    os.utime(second, (1, 1))
    assert run(constants=sources[0]) == (10.0, sorted([first, second])), "the same code has the same name"
    assert second not in run(constants=sources[2])[1]
    assert first.exists()


@pytest.mark.parametrize("case", ["mine", "a file", "somebody else's"])
def test_code_is_kept_in_the_users_cache_or_beside_its_source(case, monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    place = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    if case == "a file":
        place.write_text("where a folder should be")
    elif case == "somebody else's":
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    beside = Path(kernels.__file__).resolve().parent / "__pycache__"
    assert kernels.code_folder("showerstack.runtime.kernels").resolve() == (
        place / "showerstack" if case == "mine" else beside
    )


@pytest.mark.slow
def test_processes_that_begin_together_compile_once(run, tmp_path):
    run()
    shutil.rmtree(tmp_path / "code")
    # Each process says when it has loaded everything, and calls the kernel when all have.
    code = (
        "import numpy as np, showerstack.runtime.kernels as k; k.PACKAGES = ('kernel_case',)\n"
        "from showerstack.runtime import compiling; from kernel_case import outer, inner\n"
        "compiled, compile_function = [], compiling.compile_function\n"
        "compiling.compile_function = lambda *all: compiled.append(1) or compile_function(*all)\n"
        "print('ready', flush=True); input()\n"
        "outer.fill(inner.Pair(1.0, 2.0), np.zeros(1))\n"
        "print(len(compiled))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(kernels.__file__).parents[2])))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes) for _ in range(2)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 2
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    assert sorted(int(child.communicate()[0]) for child in children) == [0, 1]


def test_threads_that_call_first_at_once_share_what_is_compiled(run, tmp_path):
    run()
    (file,) = (tmp_path / "code").glob("*.kernel")
    file.unlink()
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import numpy as np, showerstack.runtime.kernels as kernels\n"
        "kernels.PACKAGES = ('kernel_case',)\n"
        "from kernel_case.outer import Pair, fill\n"
        "out = [np.zeros(1) for _ in range(8)]\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    list(pool.map(lambda one: fill(Pair(1.0, 2.0), one), out))\n"
        "print(sum(float(one[0]) for one in out))\n"
    )
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(kernels.__file__).parents[2])])}
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=there, cwd=tmp_path)
        for _ in range(2)
    ]
    assert [one.communicate()[0] for one in started] == [b"104.0\n"] * 2
    assert file.exists()


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "another name": lambda content: content.replace(b'"symbol": "', b'"symbol": "x', 1),
    "no line of JSON": lambda content: b"\0" * len(content),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_machine_code_is_compiled_anew_with_a_remark(run, damage, caplog):
    _, code = run()
    (file,) = code
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level("WARNING"):
        assert run()[0] == 13.0
    assert f"the machine code of fill in {file} cannot be read (it is cut or damaged): compiled anew" in caplog.text
    caplog.clear()
    assert run()[0] == 13.0
    assert not caplog.text, "the second time it is whole"


def test_machine_code_that_cannot_be_written_is_compiled_with_a_remark(run, monkeypatch, caplog, tmp_path):
    def refuse(path):
        raise OSError(28, "No space left on device", str(path))

    run()
    shutil.rmtree(tmp_path / "code")
    monkeypatch.setattr(kernels, "atomic_path", refuse)
    with caplog.at_level("WARNING"):
        assert run() == (13.0, [])
    assert "the machine code of fill cannot be written to" in caplog.text
    assert "No space left on device" in caplog.text


def _no_linker(machine_code, kinds):
    raise linking.Unlinkable("llvmlite: no linker")


NEW_ARRAY = KERNEL.replace(
    "    out[0] = raised(pair.first)", "    made = np.full(1, raised(pair.first))\n    out[0] = made[0]"
)
NEW_ARRAY = NEW_ARRAY.replace("from kernel_case import", "import numpy as np\n\nfrom kernel_case import")


@pytest.mark.parametrize(
    ("where", "name", "value", "sources", "why"),
    [
        (linking, "_SCALARS", {}, {}, "an argument is builtins.float"),
        (kernels, "link", _no_linker, {}, "no linker"),
        (compiling, "_C_TYPES", dict.fromkeys(compiling._C_TYPES, "i1"), {}, "passes arguments in another way"),
        (kernels, "FAST", kernels.FAST, {"outer": NEW_ARRAY}, "makes arrays with Numba's memory management"),
    ],
    ids=["an unknown type", "no linker", "other arguments", "an array of its own"],
)
def test_what_cannot_be_linked_is_compiled_by_numba(run, monkeypatch, caplog, where, name, value, sources, why):
    monkeypatch.setattr(where, name, value)
    with caplog.at_level("WARNING"):
        assert run(**sources)[0] == 13.0
    assert "the machine code of fill cannot be linked" in caplog.text
    assert why in caplog.text


def test_code_that_calls_what_is_not_there_is_not_linked():
    """The linker would end the process."""
    code = linking.MachineCode("fill", ("surely_no_function_of_this_name",), b"")
    with pytest.raises(linking.Unlinkable, match="no library of this process has surely_no_function_of_this_name"):
        linking.link(code, ())


@pytest.mark.parametrize("name", linking.EXACT)
def test_exact_functions_of_the_c_library_are_linked(name):
    """The fit calls sqrtf at arrays without muon detectors."""
    assert linking._is_known(name)
    root = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(linking.llvm.address_of_symbol("sqrt"))
    assert root(2.0) == np.sqrt(2.0)


def test_types_have_code_of_their_own(run, tmp_path):
    _, first = run()
    outer = importlib.import_module("kernel_case.outer")
    pair = importlib.import_module("kernel_case.inner").Pair(1.0, 2.0)
    out = np.zeros(2, np.float32)[::2]
    outer.fill(pair, out)
    assert out[0] == 13.0
    assert len(list((tmp_path / "code").glob("*.kernel"))) == len(first) + 1


@pytest.mark.slow
def test_features_of_a_second_process_need_no_numba(tmp_path):
    """Nor does a prediction; what is compiled lies on disk after the first. All can be linked, the simulation too."""
    code = (
        "import sys, numpy as np; from showerstack.features import compute\n"
        "from showerstack.models.networks.forward import gelu\n"
        "from showerstack.models.tables.lightgbm_trees import add_trees\n"
        "from showerstack.features.lateral.events import make_events\n"
        "from showerstack.features.lateral.fit import fit_fused\n"
        "from showerstack.features.stations.grid import grid_fused, order_fused\n"
        "from showerstack.features.stations.on_cpu import sum_fused\n"
        "cells = np.full((3, 16, 16, 2), 20.0, np.float16)\n"
        "events = make_events(np, cells, np.full((3, 5), 4.0, np.float32))\n"
        "sum_fused(events, fit_fused(events)); grid_fused(events); order_fused(events)\n"
        "gelu(np.ones((2, 3), np.float32), np.ones(3, np.float32))\n"
        "print('numba' in sys.modules)\n"
        "from pathlib import Path; from showerstack.showers.schema import COMPOSITION\n"
        "from showerstack.showers.simulation import simulate\n"
        "simulate(COMPOSITION, Path(), n_train=2, n_test=2, workers=1, overwrite=True)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    words = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(words, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
        for _ in range(2)
    )
    assert second.stdout == "False\n"
    assert not first.stderr
    assert not second.stderr


@pytest.mark.slow
def test_the_first_code_that_is_linked_may_call_the_c_library(tmp_path):
    """That of the simulation needs the logarithm of the Gamma function."""
    code = (
        "import sys; from pathlib import Path; from showerstack.showers.schema import COMPOSITION\n"
        "from showerstack.showers.simulation import simulate\n"
        "simulate(COMPOSITION, Path(), n_train=2, n_test=2, workers=1, overwrite=True)\n"
        "print('numba' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    words = [sys.executable, "-c", code]
    made = [
        subprocess.run(words, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert made[1].stdout == "False\n"
    assert [one.stderr for one in made] == ["", ""]


@pytest.mark.parametrize(
    ("module", "inside"),
    [
        (
            showerstack.features.lateral.compiled,
            {"features/lateral/compiled.py", "features/lateral/recipe.py", "showers/response.py", "showers/array.py"},
        ),
        (
            showerstack.features.stations.compiled,
            {"features/stations/compiled.py", "features/stations/sums.py", "features/lateral/station.py"},
        ),
        (compiled, {"showers/simulation/compiled.py", "showers/simulation/deposits.py", "showers/array.py"}),
    ],
)
def test_kernels_know_their_sources(module, inside):
    root = Path(kernels.__file__).parents[1]
    files = runtime_code.imported_files(module.__name__, kernels.PACKAGES)
    names = {file.relative_to(root).as_posix() for file in files}
    assert inside <= names
    assert "features/build.py" not in names


TABLE = '''"""A table."""

import numpy as np

from showerstack.runtime.kernels import cached_table

made = []


@cached_table("numpy")
def table(number: float) -> np.ndarray:
    """Make."""
    made.append(number)
    return np.array([number, 2.0 * number])
'''


def test_a_table_is_kept_until_its_source_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))

    def imported(text):
        (tmp_path / "table_case.py").write_text(text)
        sys.modules.pop("table_case", None)
        importlib.invalidate_caches()
        for old in tmp_path.glob("__pycache__/*.pyc"):
            old.unlink()
        return importlib.import_module("table_case")

    first = imported(TABLE)
    np.testing.assert_array_equal([first.table(1.5), first.table(1.5)], [[1.5, 3.0]] * 2)
    assert first.made == [1.5]
    again = imported(TABLE)
    np.testing.assert_array_equal(again.table(1.5), [1.5, 3.0])
    np.testing.assert_array_equal(again.table(2.5), [2.5, 5.0])
    assert again.made == [2.5], "the other one is on disk"
    for file in tmp_path.glob("code/*.npz"):
        file.write_bytes(file.read_bytes()[:100])
    np.testing.assert_array_equal(imported(TABLE).table(1.5), [1.5, 3.0])
    changed = imported(TABLE.replace("2.0", "4.0"))
    np.testing.assert_array_equal(changed.table(1.5), [1.5, 6.0])


@pytest.mark.slow
def test_kernels_leave_extensions_of_numba_to_others():
    code = (
        "import numpy as np; from numba.core import entrypoints; from showerstack.features.compute import warm_up\n"
        "from unittest.mock import patch\n"
        "with patch.object(entrypoints.importlib_metadata, 'entry_points', side_effect=AssertionError):\n"
        "    warm_up()\n"
        "assert not entrypoints._already_initialized\n"
        "import numba; numba.njit(lambda x: x + 1)(1)\n"
        "assert entrypoints._already_initialized"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(kernels.__file__).parents[2])


def test_no_other_function_keeps_its_code():
    root = Path(kernels.__file__).parents[1]
    for package in OWN:
        for file in (root / package).rglob("*.py"):
            assert "cache=True" not in file.read_text(encoding="utf-8"), file


def test_streams_begin_where_they_always_did():
    assert deposits.stream_offsets(2).tolist() == [16294208416658607535, 7960286522194355700]
