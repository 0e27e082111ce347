"""Errors in one line: which file is wrong, what to do next, what a mistyped name was meant to be, why a fit ended.

A fit ends for a reason of its learner, or because of the machine: no memory or disk space left, or a GPU that failed.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import resource
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from showerstack.runtime.packages import how_to_install, lacking, listed


class Remark(UserWarning):
    """What whoever uses data or a run should know."""


class InputError(ValueError):
    """What the user gave cannot be used. Entry points print the message as one line and exit with code 2.

    The message names the file (or option), the column and the first offending row where there is one,
    and says what would be right.
    """


class Changed(InputError):
    """What work began with is no longer there: somebody replaced it or wrote into it."""


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or reorder what is read: control, format, surrogates, separators."""


NAME = "showerstack"


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
    "onnxruntime": ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException"),
    "cupy": ("OutOfMemoryError",),
    "builtins": ("EOFError", "UnicodeError", "RecursionError"),
}
"""Errors of parsers and libraries by top-level module and class: names, so that nothing is imported for it."""

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
_LIMITS = {"-d": resource.RLIMIT_DATA, "-v": resource.RLIMIT_AS}
"""Options of ``ulimit`` for memory."""
LEAST_BYTES = {"-d": 350 << 20, "-v": 800 << 20}
"""Memory that the libraries take when they are loaded; where they do not get it, OpenBLAS waits without end."""
ADVICE = "check the place and give the same command again"


def explained(error: BaseException) -> str | None:
    """Return in one line what went wrong and what to do next; None for what must be a mistake in this program."""
    if isinstance(error, InputError):
        return escaped(str(error))
    if isinstance(error, ImportError | OSError) and "failed to map segment" in str(error):  # the loader's words
        return f"no memory to load a library ({escaped(_first_line(error))}): raise the limit on it (ulimit -v)"
    if isinstance(error, ImportError | OSError) and "libomp" in str(error):
        return f"a library needs OpenMP, which macOS does not have ({escaped(_first_line(error))}): brew install libomp"
    if isinstance(error, OSError):
        return escaped(_of_system(error))
    if isinstance(error, ModuleNotFoundError):
        library = (error.name or "").partition(".")[0]
        how = how_to_install([library])
        return f"this needs {library}: {how}" if how else None
    if _FULL_GPU.search(_with_type(error)):
        return f"the memory of the GPU is full ({escaped(_first_line(error))}): {FULL_GPU}"
    if isinstance(error, MemoryError):
        why = f" ({_first_line(error)})" if str(error) else ""
        return f"not enough memory{escaped(why)}: use fewer --workers, smaller data, or a machine with more memory"
    for kind in type(error).__mro__:
        if kind.__name__ in _LIBRARIES.get(kind.__module__.partition(".")[0], ()):
            message = _first_line(error) or "no reason given"
            return escaped(
                f"a file or setting could not be used: {type(error).__name__}: {message}: "
                "check the files that the command names (python cli.py doctor shows the versions of the libraries)"
            )
    return None


MANY = 4
"""Of more missing libraries only the first are named."""


def need(*names: str, what: str) -> None:
    """Refuse to begin something whose extras or libraries are not installed, with the command that installs them.

    ``what`` needs them, as it begins a sentence.
    """
    missing = lacking(*names)
    if missing:
        first = missing if len(missing) <= MANY else [*missing[: MANY - 1], f"{len(missing) - MANY + 1} more"]
        raise InputError(f"{what} needs {listed(first)}: {how_to_install(missing)}")


def refuse_little_memory() -> None:
    """Refuse to load the libraries where they would not get the memory for it."""
    for option, least in LEAST_BYTES.items():
        allowed = resource.getrlimit(_LIMITS[option])[0]
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise InputError(
                f"this session may take {allowed / 1e9:.1f} GB of memory (ulimit {option}), the libraries alone need "
                f"{least / 1e9:.1f}: raise the limit"
            )


def _of_system(error: OSError) -> str:
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    message = error.strerror or _first_line(error) or type(error).__name__
    return f"{' -> '.join(names) + ': ' if names else ''}{message}: {_ADVICE.get(error.errno or 0, ADVICE)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else ""


@contextmanager
def reporting_errors(interrupted: Callable[[], str]) -> Iterator[None]:
    """Turn whatever leaves a command into a line on standard error and an exit code.

    2 with one line for what can be mended; 130 after Ctrl-C, with what ``interrupted`` returns; 1 with a traceback and
    a hint for a mistake in this program; 0 when whoever read the output has closed it.
    """
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if isinstance(error, BrokenPipeError) and error.filename is None:
            # Whoever read the output (head, less) has seen enough; nothing more can be printed.
            with suppress(BrokenPipeError):
                sys.stdout.close()  # what is left in it would be written at the end, and fail again
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


LIKENESS = 0.8
"""Least ratio of equal letters (difflib) of a name that is suggested."""


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles ``name`` most; None if none does.

    >>> most_similar("lightgm", ["lightgbm", "xgboost"])
    'lightgbm'
    """
    near = difflib.get_close_matches(name, known, 1, LIKENESS)
    return near[0] if near else None


def did_you_mean(path: Path) -> str:
    """Return ``" (did you mean X?)"`` for a path that does not exist beside one of a similar name; else nothing."""
    try:
        similar = _similar_path(path)
    except (OSError, ValueError):  # a folder that may not be read, a name that no file can have
        return ""
    return "" if similar in (None, path) else f" (did you mean {similar}?)"


def _similar_path(path: Path) -> Path | None:
    found = Path(path.anchor)
    for part in path.relative_to(found).parts:
        step = found / part
        if not step.exists():
            near = most_similar(part, [entry.name for entry in found.iterdir()])
            if near is None:
                return None
            step = found / near
        found = step
    return found


# Libraries have exceptions of their own for it: torch RuntimeError, LightGBMError, XGBoostError, CatBoostError, polars.
_NO_ROOM = re.compile(
    r"out of memory|bad.?alloc(ation)?|(can.?t|cannot|could not|unable to|failed to) allocate|not enough memory"
    r"|memory allocation|no space left|disk quota exceeded|too many open files|os error (12|23|24|28|122)\b"
    r"|cannot fork|resource temporarily unavailable|can.?t start new thread",
    re.IGNORECASE,
)

_FULL_GPU = re.compile(
    r"cupy\S*OutOfMemoryError|cudaErrorMemoryAllocation|(cuda|gpu).{0,80}out of memory"
    r"|(cublas|cudnn|curand)_status_alloc_failed",
    re.IGNORECASE | re.DOTALL,
)
FULL_GPU = "end what else uses the GPU (nvidia-smi shows it; or give --device cpu)"
_GPU_FAILED = re.compile(
    r"cuda ?(runtime|driver)?error|cuda error|(cublas|cudnn|curand)_status_|illegal memory access|device-side assert"
    r"|cuda-capable device|unspecified launch failure|uncorrectable ecc|no gpu answered",
    re.IGNORECASE,
)
GPU_FAILED = "look at the GPU with nvidia-smi (or leave that learner out, or give --device cpu)"
"""What to do after an error of CUDA. It stays: whatever the same process does on the GPU later fails with it too."""


def remedy_of(error: BaseException) -> str | None:
    """Return what to do about an error that says nothing about the learner; None for a learner's own.

    Such are no memory, no space, a file that cannot be had, a GPU that fails. The task is tried again at the next
    start; every other error drops its learner.
    """
    looked_at: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in looked_at:
        looked_at.add(id(cause))
        if _FULL_GPU.search(_with_type(cause)):
            return FULL_GPU
        if _GPU_FAILED.search(_with_type(cause)):
            return GPU_FAILED
        if isinstance(cause, MemoryError) or _NO_ROOM.search(str(cause)):
            return "free memory or disk space"
        if isinstance(cause, Changed):
            return "see that nobody else writes there"
        if isinstance(cause, FileNotFoundError):
            return "see that the file is there, for every worker of a cluster under the same path,"
        if isinstance(cause, OSError):
            return _ADVICE.get(cause.errno or 0, "check the place").partition(", then")[0]
        # What was refused in our own words counts with what it was refused for, not with what was tried before.
        cause = cause.__cause__ or (None if isinstance(cause, InputError) else cause.__context__)
    return None


def _with_type(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def escaped(text: str, keep: str = "") -> str:
    """Return text in which every character that would steer a terminal is written as an escape, line ends included.

    >>> print(escaped("a" + chr(27) + "[31m" + chr(10) + "b"))
    a\\x1b[31m\\nb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in _UNSAFE else c.encode("unicode_escape").decode() for c in text
    )


LONGEST_CELL = 60


def shown(value: object) -> str:
    """Return how a line shows a value that a file holds: its beginning, however long it is.

    >>> shown("a" * 100)[-7:]
    "aaa'..."
    """
    text = repr(value if not isinstance(value, str) else value[:LONGEST_CELL])
    return f"{text}..." if isinstance(value, str) and len(value) > LONGEST_CELL else text[: 2 * LONGEST_CELL]


def as_called(text: str) -> str:
    """Return text in which our commands are called as the user called the program: in a checkout, or installed.

    An installation has no ``cli.py``: its console script is ``showerstack``.
    """
    called = Path(sys.argv[0])
    if called.stem != NAME and (called.name, called.parent.name) != ("__main__.py", NAME):
        return text
    return text.replace("python cli.py", NAME).replace("python verify.py", f"{NAME} verify")
