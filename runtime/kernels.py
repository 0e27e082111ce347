"""Compiled functions whose machine code, kept on disk, is tied to everything that it was made of.

Numba itself looks at the file of a function only: neither at the functions of other files that are compiled into it,
nor at constants from there (frozen into the code), nor at named tuples (compiled by position), nor at the versions of
libraries. Here all files of this project that the function's module imports, directly or not, count.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core import entrypoints
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError

from showerstack.runtime.code import imported_files, source_hash
from showerstack.runtime.files import atomic_path

LOG = logging.getLogger(__name__)
LIBRARIES = ("llvmlite", "numba", "numpy")
PACKAGES = ("showerstack.showers", "showerstack.features", "showerstack.models", "showerstack.analysis")
"""Packages of this project that compiled functions may come from."""


class _Cache(FunctionCache):
    """Numba's cache of one function, fresh as long as the hash of its sources is the same, wherever it stands."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        sources = _sources_hash(function, LIBRARIES)
        name = f"{function.__qualname__}.py{sys.version_info.major}{sys.version_info.minor}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, sources)
        # What stands first in the file and is compared before the rest is read, which names classes that other sources
        # may have under other names.
        self._cache_file._version = sources
        self.lock_file = Path(self._cache_path) / f"{function.__module__}.{name}.lock"
        self.name = name

    def remove(self) -> None:
        """Remove all machine code of the function."""
        for file in Path(self._cache_path).glob(f"{glob.escape(self.name)}.*nb[ci]"):
            with suppress(OSError):
                file.unlink()


def _sources_hash(function: Any, libraries: tuple[str, ...]) -> str:
    return source_hash(imported_files(function.__module__, PACKAGES), libraries)


@contextmanager
def _without_extensions() -> Iterator[None]:
    """Let Numba compile or load without the extensions that installed packages declare for it.

    They teach it types that our kernels do not have; importing them (awkward) takes longer than loading a kernel. They
    are still there for others in this process.
    """
    before, entrypoints._already_initialized = entrypoints._already_initialized, True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


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


def kernel(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function with :func:`numba.njit` when it is first called, or load its machine code from disk.

    Only functions that Python calls need this; what they call is compiled into them and stays plain ``njit``.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @cache
        def compiled() -> Any:
            dispatcher = njit(**options)(function)
            dispatcher._cache = _Cache(function)
            dispatcher._compilation_chain_init_hook = lambda: None  # see _without_extensions
            compile_or_load = dispatcher.compile

            def one_at_a_time(signature: Any) -> Any:
                # Numba's own lock first, which a thread that compiles holds while it waits for another function's.
                with global_compiler_lock, _without_extensions(), _locked(dispatcher._cache.lock_file):
                    try:
                        return compile_or_load(signature)
                    except NumbaError:
                        raise
                    except Exception as error:  # whatever a damaged file, or a disk without room, leads to
                        cache = dispatcher._cache
                        LOG.warning(
                            "the machine code of %s in %s cannot be read or written (%s: %s): compiled anew; removing "
                            "that folder, or NUMBA_CACHE_DIR with another, mends it if it comes again",
                            function.__name__,
                            cache.cache_path,
                            type(error).__name__,
                            error,
                        )
                        cache.remove()
                    try:
                        return compile_or_load(signature)
                    except OSError:
                        dispatcher._cache = NullCache()
                        return compile_or_load(signature)

            dispatcher.compile = one_at_a_time
            return dispatcher

        @wraps(function)
        def call(*arguments: Any) -> None:
            compiled()(*arguments)

        return call

    return decorate


def cached_table(*libraries: str) -> Callable[[Callable[[float], np.ndarray]], Callable[[float], np.ndarray]]:
    """Keep the table that a function makes of a number beside the machine code, tied to its sources in the same way.

    Versions of ``libraries`` count as well.
    """

    def decorate(function: Callable[[float], np.ndarray]) -> Callable[[float], np.ndarray]:
        @cache
        def table(number: float) -> np.ndarray:
            sources = _sources_hash(function, libraries)
            name = f"{function.__module__}.{function.__qualname__}-{number!r}.npz"
            file = Path(FunctionCache(function)._cache_path) / name
            with suppress(OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile), file.open("rb") as stream:
                stored = np.load(stream)
                if str(stored["sources"]) == sources:
                    return np.asarray(stored["table"])
            result = function(number)
            with suppress(OSError), atomic_path(file) as temporary:  # a folder that cannot be written to
                np.savez(temporary, table=result, sources=np.array(sources))
            return result

        return wraps(function)(table)

    return decorate
