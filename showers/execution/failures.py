"""What entry points say when a command cannot be done: one line that names the file and what to do next."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from showers.execution.terminal import as_called, escaped
from showers.schema import InputError

WRONG_INPUT = 2
"""Exit code of everything that the user can mend."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_LIBRARIES = {
    "polars": ("PolarsError",),
    "pyo3_runtime": ("PanicException",),
    "pyarrow": ("ArrowException",),
    "json": ("JSONDecodeError",),
    "zipfile": ("BadZipFile", "LargeZipFile"),
    "zlib": ("error",),
    "_lzma": ("LZMAError",),
    "safetensors": ("SafetensorError",),
    "lightgbm": ("LightGBMError",),
    "xgboost": ("XGBoostError",),
    "_catboost": ("CatBoostError",),
    "skops": ("UntrustedTypesFoundException", "UnsupportedTypeException"),
    "tomllib": ("TOMLDecodeError",),
    "torch": ("OutOfMemoryError",),
    "cupy": ("OutOfMemoryError",),
    "joblib": ("TerminatedWorkerError",),
    "builtins": ("EOFError", "UnicodeError", "RecursionError"),
}
"""Errors of parsers and libraries by top-level module and class; told by name, so that nothing is imported for it."""

_ADVICE = {
    errno.ENOSPC: "free some space or choose another place, then give the same command again",
    errno.EDQUOT: "free some space or choose another place, then give the same command again",
    errno.EFBIG: "choose a place that takes larger files",
    errno.EACCES: "choose another place, or change its permissions",
    errno.EPERM: "choose another place, or change its permissions",
    errno.EROFS: "the disk is read-only: choose another place",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the name",
    errno.EISDIR: "it is a folder: name a file",
    errno.EEXIST: "choose another name or remove it first",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its links lead in a circle: name the file itself",
    errno.EMFILE: "raise the limit on open files (ulimit -n) or use fewer --workers",
    errno.ENOMEM: "use fewer --workers or a machine with more memory",
    errno.EIO: "the disk or network failed: try again, then look at the disk",
    errno.ESTALE: "the network disk failed: try again",
}
ADVICE = "check the place and give the same command again"


def explained(error: BaseException) -> str | None:
    """Return in one line what went wrong and what to do next; None for what must be a mistake in this program."""
    if isinstance(error, InputError):
        return escaped(str(error))
    if isinstance(error, OSError):
        return escaped(_of_system(error))
    if isinstance(error, MemoryError):
        why = f" ({_first_line(error)})" if str(error) else ""
        return f"not enough memory{escaped(why)}: use fewer --workers, smaller data, or a machine with more memory"
    for kind in type(error).__mro__:
        if kind.__name__ in _LIBRARIES.get(kind.__module__.partition(".")[0], ()):
            said = _first_line(error) or "no reason given"
            return escaped(
                f"a file or setting could not be used: {type(error).__name__}: {said}: "
                "check the files that the command names (python cli.py doctor shows the versions of the libraries)"
            )
    return None


def _of_system(error: OSError) -> str:
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    said = error.strerror or _first_line(error) or type(error).__name__
    return f"{' -> '.join(names) + ': ' if names else ''}{said}: {_ADVICE.get(error.errno or 0, ADVICE)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else ""


@contextmanager
def told(interrupted: Callable[[], str]) -> Iterator[None]:
    """Turn whatever leaves a command into a line on standard error and an exit code.

    Parameters
    ----------
    interrupted
        Returns what to say after Ctrl-C.

    Raises
    ------
    SystemExit
        2 with one line for what can be mended; 130 after Ctrl-C; 1 with a traceback and a hint for a mistake in this
        program; 0 when whoever read the output has closed it.
    """
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if isinstance(error, BrokenPipeError) and error.filename is None:
            # Whoever read the output (head, less) has seen enough; nothing more can be printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        print(interrupted(), file=sys.stderr)
        sys.exit(INTERRUPTED)
    except SystemExit:
        raise
    except BaseException as error:
        if type(error).__module__.startswith(("typer", "click")):
            raise  # help, usage errors and exit codes: the parser's own affair
        line = explained(error)
        if line is not None:
            print(as_called(f"error: {line}"), file=sys.stderr)
            sys.exit(WRONG_INPUT)
        text = "".join(traceback.format_exception(error))
        print(escaped(text, keep="\n"), file=sys.stderr)
        print(
            as_called(
                "This is a mistake in showerstack, not in your command. Please report it with the lines above, the "
                "command and what `python cli.py doctor` prints; giving the same command again is safe."
            ),
            file=sys.stderr,
        )
        sys.exit(1)
