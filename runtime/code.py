"""Which code made a result: hashes of source files, versions of libraries, the commit, and modules of plug-ins."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = Path(__file__).resolve().parents[1]
"""Folder of our packages: that of the installed ``showerstack``, in a checkout (to which its links lead) the top."""
_CODE_SUFFIXES = {".py", ".cu"}


def source_hash(paths: Iterable[Path], packages: Iterable[str] = ()) -> str:
    """Return a SHA-256 of code and of the library versions that can change its numbers.

    Of files, or of folders that are walked with all sub-folders for ``.py`` and ``.cu`` files, as they stand. A package
    that is not installed counts as such.
    """
    digest = hashlib.sha256("python {}.{}".format(*platform.python_version_tuple()).encode())
    for top in paths:
        for path in _files(Path(top)):
            digest.update(
                f"{path.relative_to(Path(top).parent).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode()
            )
    for name in packages:
        digest.update(f"{name}=={version_of(name)}\0".encode())
    return digest.hexdigest()


@cache
def version_of(package: str) -> str:
    """Return the version of an installed distribution, or of another one of the same library; or ``not installed``."""
    for name in (package, *SAME_LIBRARY.get(package, ())):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "not installed"


SAME_LIBRARY = {"xgboost": ("xgboost-cpu",)}
"""Distributions that bring the library of another: without what a GPU needs."""


def _files(top: Path) -> list[Path]:
    if top.is_file():
        return [top]
    return sorted(path for path in top.rglob("*") if path.suffix in _CODE_SUFFIXES and "__pycache__" not in path.parts)


def imported_files(module: str, packages: Iterable[str]) -> list[Path]:
    """Return the file of a module and of all that it imports from the given packages, directly or not."""
    packages, file_of, pending = tuple(packages), dict[str, Path](), [module]
    while pending:
        name = pending.pop()
        file = module_file(name)
        if name not in file_of and file is not None:
            file_of[name] = file
            pending += _imports(file, packages)
    return [file_of[name] for name in sorted(file_of)]


def module_file(module: str) -> Path | None:
    """Return the source file of a module, which is not imported; None where there is none."""
    top, *rest = module.split(".")
    package = importlib.util.find_spec(top)
    if package is None or package.origin is None:
        return None
    base = Path(package.origin).parent.joinpath(*rest) if rest else Path(package.origin)
    return next((file for file in (base, base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


_IMPORT = re.compile(r"^[ \t]*(?:from +([\w.]+) +import +(\([^)]*\)|.*)|import +([\w.]+))", re.MULTILINE)
"""A module and what is taken from it, or a module alone. What looks like one in a docstring does no harm."""


@cache
def _imports(file: Path, packages: tuple[str, ...]) -> list[str]:
    names = []
    for source, taken, module in _IMPORT.findall(file.read_text(encoding="utf-8")):
        if _is_within(source or module, packages):
            # A name is a module of a package, or something inside one.
            entries = [f"{source}.{name}" for name in _NAME.findall(taken)] or [module]
            names += [name if module_file(name) else source or module for name in entries]
    return names


_NAME = re.compile(r"(?<!\bas )\b[A-Za-z_]\w*")


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def installed_modules(group: str) -> dict[str, ModuleType]:
    """Return the modules that installed distributions declare as entry points of a group, by their names.

    An :class:`ImportError` names the distribution whose module cannot be imported.
    """
    modules = {}
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name):
        try:
            modules[entry.name] = entry.load()
        except Exception as error:
            owner = entry.dist.name if entry.dist else "an installed distribution"
            raise ImportError(
                f"{owner} declares {entry.value} for {group}, which cannot be imported ({error}): mend or uninstall it"
            ) from error
    return modules


def installed_versions(group: str) -> list[str]:
    """Return ``name==version`` of the distributions that have entry points of a group."""
    owners = {entry.dist for entry in importlib.metadata.entry_points(group=group) if entry.dist}
    return sorted(f"{owner.name}=={owner.version}" for owner in owners)


def objects_by_name(modules: Iterable[ModuleType], attribute: str, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return what modules declare under one attribute, by name; a name that is declared twice is an error.

    A module may declare one object or a tuple of them; modules without the attribute are passed over.
    """
    objects: dict[str, Any] = {}
    for module in modules:
        declared = getattr(module, attribute, ())
        for declared_object in declared if isinstance(declared, tuple) else (declared,):
            if name_of(declared_object) in objects:
                raise ValueError(f"{module.__name__} declares {name_of(declared_object)!r}, which exists already")
            objects[name_of(declared_object)] = declared_object
    return objects


PACKAGES = (
    "numpy", "scipy", "numba", "polars", "scikit-learn", "lightgbm", "xgboost", "catboost", "torch", "showerstack",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    return {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}


def code_of_fits() -> dict[str, str]:
    """Return what has to be the same wherever fits of one run are made: versions, and the hash of our code."""
    plugins = ", ".join(installed_versions("showerstack.learners")) or "none"
    code = source_hash(OURS / name for name in ("runtime", "showers", "scoring", "features", "models", "stacking"))
    python = "{}.{}".format(*platform.python_version_tuple())
    return versions() | {"python": python, "learners from": plugins, "code of showerstack": code[:12]}


def now_utc() -> str:
    """Return the present time, UTC, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> str:
    """Return what the machine is: system, processor type and cores; not its name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def command_line() -> str | None:
    """Return the command line; None in a program that is not one of ours."""
    program = Path(sys.argv[0]).name
    if program not in ("cli.py", "showerstack"):
        return None
    return shlex.join([*(("python",) if program == "cli.py" else ()), program, *sys.argv[1:]])


def git_revision() -> str | None:
    """Return the commit of the source, with ``+`` if it has been changed; None outside a checkout.

    An installation may lie in somebody else's repository: its commit is not ours.
    """
    if not (OURS / ".git").exists() or not (OURS / "showerstack" / "__init__.py").exists():
        return None
    try:
        commit, changes = (
            subprocess.run(["git", *words.split()], cwd=OURS, capture_output=True, text=True, check=True).stdout
            for words in ("rev-parse HEAD", "status --porcelain --untracked-files=no")
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")
