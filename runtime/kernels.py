"""Compiled functions that a process links from object files, without Numba: it is imported only to compile.

Importing Numba and loading what it has compiled takes half a second of every start; llvmlite's linker takes some
milliseconds. A function is compiled when it is first called with arguments of new types. Its object file is tied to
everything that it was made of: the function's module and all files of this project that it imports, directly or not,
the versions of Python and of the libraries, the processor, and Numba's own settings. It is named by their hash and kept
in the user's cache, so that a new clone or installation of the same code has nothing to compile. Where an object file
cannot be linked, Numba compiles at each start (:mod:`showerstack.runtime.compiling`).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import logging
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.code import imported_files, module_file, source_hash
from showerstack.runtime.files import atomic_path
from showerstack.runtime.linking import MachineCode, Unlinkable, described, link, processor, type_of

LOG = logging.getLogger(__name__)
FAST: set[str] = {"reassoc", "contract", "nsz"}
"""For ``fastmath``: sums may be reordered (that is what vectorising them means); infinities and NaN keep their
meaning."""
LIBRARIES = ("llvmlite", "numba", "numpy")
PACKAGES = ("showerstack.showers", "showerstack.features", "showerstack.models", "showerstack.analysis")
"""Packages of this project that compiled functions may come from."""
COMPILER = tuple(Path(__file__).with_name(name) for name in ("compiling.py", "linking.py"))
"""What decides how a function is compiled and called."""
KEPT = 32
"""Files of one function: of its other versions, types of arguments, processors or numbers the oldest leave."""


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one process at a time compile a function (where files can be locked): the others load its code."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("w")
    except OSError:  # a folder that cannot be written to
        yield
        return
    with stream:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):  # said, since a process forked meanwhile holds the file open
                fcntl.flock(stream, fcntl.LOCK_UN)


def code_folder(module: str) -> Path:
    """Return where machine code of a module is kept: NUMBA_CACHE_DIR, the user's cache, or beside the source.

    Beside the source where the user has no cache that can be written to, or somebody else made it: code is run.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    with suppress(OSError, RuntimeError):  # RuntimeError: no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "showerstack"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    file = module_file(module)
    if file is None:
        raise ModuleNotFoundError(f"no source file of {module}", name=module)
    return file.parent / "__pycache__"


def _leave_few(folder: Path, function: str) -> None:
    """Remove the files of a function that were used least recently."""
    with suppress(OSError):  # another process may be removing them
        files = sorted(folder.glob(f"{function}-*"), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT]:
            file.unlink()


def _used_now(file: Path) -> None:
    with suppress(OSError):
        os.utime(file)


@dataclass
class Kernel:
    """A function without result that is compiled for the types of its arguments, or linked from what was compiled."""

    module: str
    """Where the function is."""
    name: str
    function: Callable[..., None] | None = None
    """None if the module is imported only to compile."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of :func:`numba.njit`."""
    callers: dict[tuple[Any, ...], Callable[[tuple[Any, ...]], None]] = field(default_factory=dict, repr=False)
    """What calls the machine code, by the types of the arguments."""

    def __call__(self, *arguments: Any) -> None:
        """Call the function; only arguments by their places."""
        kinds = tuple(map(type_of, arguments))
        caller = self.callers.get(kinds)
        if caller is None:
            with _LOCK:
                caller = self.callers.get(kinds) or self._caller(kinds, arguments)
                self.callers[kinds] = caller
        caller(arguments)

    def source(self) -> tuple[Callable[..., None], dict[str, Any]]:
        """Return the function and the options that it is compiled with; its module is imported."""
        if self.function is None:
            found: Kernel = getattr(importlib.import_module(self.module), self.name)
            return found.source()
        return self.function, self.options

    def _caller(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], None]:
        sources = _sources_hash(self.module, LIBRARIES, COMPILER)
        types = hashlib.sha256(f"{described(kinds)}\n{processor()}".encode()).hexdigest()[:16]
        function = f"{self.module}.{self.name}"
        file = code_folder(self.module) / f"{function}-{sources[:16]}-{types}.kernel"
        try:
            found = self._read(file, sources)
            if found is None:
                with _locked(file.with_name(f"{function}.lock")):
                    found = self._read(file, sources) or self._compile(file, sources, arguments)
            return link(found, kinds)
        except Unlinkable as error:
            LOG.warning("the machine code of %s cannot be linked (%s): Numba compiles at each start", self.name, error)
        from showerstack.runtime.compiling import dispatcher

        slow = dispatcher(*self.source())
        return lambda given: slow(*given)

    def _read(self, file: Path, sources: str) -> MachineCode | None:
        try:
            found = MachineCode.from_bytes(file.read_bytes(), sources)
            _used_now(file)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            LOG.warning("the machine code of %s in %s cannot be read (%s): compiled anew", self.name, file, error)
            with suppress(OSError):
                file.unlink()
            return None

    def _compile(self, file: Path, sources: str, arguments: tuple[Any, ...]) -> MachineCode:
        from showerstack.runtime.compiling import compile_function

        made = compile_function(*self.source(), arguments)
        try:
            with atomic_path(file) as temporary:
                temporary.write_bytes(made.to_bytes(sources))
            _leave_few(file.parent, f"{self.module}.{self.name}")
        except OSError as error:
            LOG.warning(
                "the machine code of %s cannot be written to %s (%s), so each start compiles anew; NUMBA_CACHE_DIR "
                "names another folder",
                self.name,
                file.parent,
                error.strerror or error,
            )
        return made


_LOCK = threading.RLock()
"""One thread at a time compiles or links."""


def kernel(**options: Any) -> Callable[[Callable[..., None]], Kernel]:
    """Make a function a :class:`Kernel`, with options of :func:`numba.njit`; it releases Python's lock.

    Only functions that Python calls need this; what they call is compiled into them and stays plain ``njit``.
    """

    def decorate(function: Callable[..., None]) -> Kernel:
        made = Kernel(function.__module__, function.__name__, function, options)
        made.__doc__ = function.__doc__
        return made

    return decorate


def kernel_of(module: str, name: str) -> Kernel:
    """Return the kernel of a module that imports Numba, which happens only where there is no machine code of it."""
    return Kernel(module, name)


def _sources_hash(module: str, libraries: tuple[str, ...], others: tuple[Path, ...] = ()) -> str:
    return source_hash((*imported_files(module, PACKAGES), *others), libraries)


def cached_table(*libraries: str) -> Callable[[Callable[[float], np.ndarray]], Callable[[float], np.ndarray]]:
    """Keep the table that a function makes of a number beside the machine code, tied to its sources in the same way.

    Versions of ``libraries`` count as well.
    """

    def decorate(function: Callable[[float], np.ndarray]) -> Callable[[float], np.ndarray]:
        @cache
        def table(number: float) -> np.ndarray:
            sources, name = (
                _sources_hash(function.__module__, libraries),
                f"{function.__module__}.{function.__qualname__}",
            )
            file = code_folder(function.__module__) / f"{name}-{sources[:16]}-{number!r}.npz"
            with suppress(OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile), file.open("rb") as stream:
                stored = np.load(stream)
                if str(stored["sources"]) == sources:
                    _used_now(file)
                    return np.asarray(stored["table"])
            result = function(number)
            with suppress(OSError):  # a folder that cannot be written to
                with atomic_path(file) as temporary:
                    np.savez(temporary, table=result, sources=np.array(sources))
                _leave_few(file.parent, name)
            return result

        return wraps(function)(table)

    return decorate
