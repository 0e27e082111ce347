"""Files and folders: written atomically, locked, checked before they are opened or replaced; JSON, hashes, names.

A half-written file is never taken as complete. A pipe or a device under a file's name is refused at once, not waited
for. The lock of a folder that one process writes at a time is dropped by the kernel however the process ends. Results
replace nothing but files of their own kind: never devices, pipes, folders or other files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from showerstack.runtime.errors import InputError, did_you_mean

LOG = logging.getLogger(__name__)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; refuse folders, pipes, sockets and devices."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for its other end.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{did_you_mean(Path(path))}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputError(f"{path} is not a regular file")
    return os.fdopen(number, "rb")


MOST_TOML_BYTES = 1 << 20


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file of a megabyte at most."""
    try:
        with open_regular(file) as opened:
            content = opened.read(MOST_TOML_BYTES + 1)
        if len(content) > MOST_TOML_BYTES:
            raise InputError(f"{file} is too long for a TOML file of options")
        return tomllib.loads(content.decode())
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # numbers of too many digits are no TOMLDecodeError
        raise InputError(f"{file} is not TOML: {error}") from None


ONE_PAGE = 4096
"""With fewer bytes free a disk is full."""
_TEMPORARY = re.compile(
    r"\.(partial|replaced)-(?P<process>[0-9]{1,9})-((?P<host>[0-9a-f]{8})[0-9a-f]{8}-)?(?P<name>.*)", re.DOTALL
)
"""Temporary names: the process that writes, a hash of its machine's name and what nobody can foretell."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``; on success flush it to disk and rename it to ``path``.

    The parent folder is created. On an exception the temporary file is removed and ``path`` is untouched. The
    temporary file is new and empty, its name cannot be foretold (a link planted there would be written through), and
    it keeps the suffix, because some libraries choose a format by it. Where ``path`` is a folder, a device, a pipe or
    a socket it is refused.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is {kind_of(path)}: choose the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = _temporary_name(path)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except Exception as error:
        if is_full := _tells_of_a_full_disk(error, path.parent):
            raise is_full from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _tells_of_a_full_disk(error: Exception, folder: Path) -> OSError | None:
    """Return the system's own error with the folder, where a disk is full; a library may say it otherwise."""
    is_systems = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None
    is_librarys = type(error).__module__.startswith("polars") and shutil.disk_usage(folder).free < ONE_PAGE
    if is_systems or is_librarys:
        number = error.errno if isinstance(error, OSError) else errno.ENOSPC
        return OSError(number, os.strerror(number or errno.ENOSPC), str(folder))
    return None


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path``, removed at the end; those that killed processes left are removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = _temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success rename it to ``path``.

    A ``path`` that exists is refused, unless it is a folder to be overwritten, also where it came meanwhile.
    """
    path = Path(path)
    if path.is_symlink() or path.exists():
        if not overwrite:
            raise InputError(f"{path} exists already: choose another name or remove it first")
        if path.is_symlink() or not path.is_dir():
            raise InputError(f"{path} is {kind_of(path)}: choose the name of a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary, replaced = _temporary_name(path), _temporary_name(path, "replaced")
    temporary.mkdir()
    try:
        yield temporary
        if overwrite and path.exists():
            # Removing takes time: a folder that is half gone must not bear the name.
            path.replace(replaced)
        try:
            temporary.replace(path)  # the system itself refuses to do it over a file, or a folder that holds anything
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise InputError(
                f"{path} was made by another program meanwhile and is left as it is: choose another name or remove it "
                "first"
            ) from None
    finally:
        if replaced.exists() and not path.exists():
            replaced.replace(path)
        for folder in (temporary, replaced):
            shutil.rmtree(folder, ignore_errors=True)


def _temporary_name(path: Path, kind: str = "partial") -> Path:
    return path.with_name(f".{kind}-{os.getpid()}-{_host_hash()}{secrets.token_hex(4)}-{path.name}")


def _host_hash() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def remove_leftovers(path: Path) -> None:
    """Remove what processes of this machine that no longer live left half-written or half-removed for ``path``."""
    for leftover, match in _leftovers(path.parent):
        here = match["host"] in (None, _host_hash())
        if match["name"] == path.name and here and not _lives(int(match["process"])):
            _remove(leftover)


def remove_all_leftovers(folder: Path) -> None:
    """Remove everything half-written in a folder, whoever wrote it: for the holder of the folder's lock."""
    for leftover, _ in _leftovers(folder):
        _remove(leftover)


def _leftovers(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    return [(path, match) for path in folder.iterdir() if (match := _TEMPORARY.fullmatch(path.name))]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def kind_of(path: Path) -> str:
    """Return what is at ``path``, in words."""
    if path.is_symlink():
        return "a link"
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a device, a pipe or a socket"


def check_name(name: str, file: Path) -> str:
    """Return ``name``, which ``file`` gives to a part of a folder, if it cannot lead out of that folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or not name.isprintable() or set(name) & set("/\\"):
        raise InputError(f"{file} names {name!r}, which cannot be the name of a file or folder")
    return name


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as strict JSON (no NaN literals), atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with open_regular(Path(path)) as file:
        try:
            return json.loads(file.read().decode())
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{path} is not valid JSON: {error}") from None


CHECKSUM = "checksum"
"""In a file that is written again whenever one likes, so that no list names it: the hash of everything else in it."""


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON content with the hash of it under :data:`CHECKSUM`, for :func:`is_as_written`."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    return rest | {CHECKSUM: hash_json(json.loads(json.dumps(rest)))}  # keys as the file will have them


def is_as_written(content: Mapping[str, Any]) -> bool:
    """Return whether nothing was changed in what :func:`with_checksum` returned; False for content without a hash."""
    return bool(content.get(CHECKSUM)) and with_checksum(content) == content


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write small arrays to an uncompressed ``.npz``, atomically and with the same bytes for the same content.

    ``numpy.savez`` stamps fixed times into the archive, so equal arrays give equal bytes.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open_regular(Path(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


FileState: TypeAlias = tuple[int, int, int, int]
"""Length, times of the last change of content and of the entry, inode."""


def file_state(path: Path) -> FileState | None:
    """Return what changes when a file is written again or replaced; None where there is none.

    The time of the last change of the entry cannot be set: it tells of bytes changed in place whose other time was put
    back.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


FolderState: TypeAlias = tuple[tuple[str, FileState | None], ...]
"""Names and states of a folder's files."""


def folder_state(folder: Path) -> FolderState:
    """Return the states of a folder's files, those with a leading dot left out."""
    files = sorted(Path(folder).iterdir()) if Path(folder).is_dir() else []
    return tuple((file.name, file_state(file)) for file in files if not file.name.startswith("."))


def hash_json(content: Any) -> str:
    """Return the SHA-256 of JSON content, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


LOCK_FILE = ".lock"
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems answer that know no locks: Lustre without the option flock, NFS without its lock daemon."""
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def locked(folder: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold a folder, which is made if need be, for this process alone; refuse one that another process holds.

    With another ``name`` of the lock file it is held against those alone who use that name too, and the file is removed
    at the end: the folder is the user's. The lock file is opened without following links, without waiting and without
    changing what is in it.
    """
    file = Path(folder) / name
    with _lock_of(folder, file) as handle:
        try:
            yield
        finally:
            # Under the lock: who has opened it meanwhile sees that the name is another file's, or nobody's.
            if name != LOCK_FILE and _is_at(handle, file):
                file.unlink(missing_ok=True)


def _is_at(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def _lock_of(folder: Path, file: Path) -> Iterator[int]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            raise InputError(f"{folder} cannot be written to ({error.strerror}): choose another place") from None
        raise InputError(f"{file} cannot be opened as a lock: {error.strerror}") from None
    held = True
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{file} is not a plain file: remove it")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder} is being written by another process: wait for it or choose another name"
            ) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise InputError(f"{folder} cannot be locked: {error.strerror}: choose another place") from None
            LOG.warning(
                "%s: its file system knows no locks (%s): see that no other process writes there",
                folder,
                error.strerror,
            )
            held = False
        if held and not _is_at(handle, file):
            raise InputError(f"{folder} was being written by another process until now: give the command again")
        yield handle
    finally:
        os.close(handle)


_FIRST_BYTES = {
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),
    ".parquet": (b"PAR1",),
    ".pq": (b"PAR1",),
    ".png": (b"\x89PNG",),
    ".pdf": (b"%PDF",),
    ".svg": (b"<?xml", b"<svg"),
}
"""First bytes of files whose kind can be told."""


def check_target(path: Path, suffixes: tuple[str, ...]) -> None:
    """Make sure before long work that a result can be written to ``path``; makes its parent folder.

    Its suffix must be one of those given (with the dot); an existing file of the same kind will be replaced, others
    are refused.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is {kind_of(path)}: choose the name of a file")
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(f"{path}: choose a name that ends in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if path.exists() and path.stat().st_size and suffix in _FIRST_BYTES:
        with path.open("rb") as file:
            if not file.read(8).startswith(_FIRST_BYTES[suffix]):
                raise InputError(f"{path} exists and is no {suffix} file: choose another name or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path.parent} cannot be written: choose another place, or change its permissions")


def check_out_folder(folder: Path) -> None:
    """Refuse a folder for results that cannot be written, before any work is done for it."""
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise InputError(f"--out {folder} is {kind_of(folder)}, not a folder: name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}: name another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder} cannot be written to: name another folder")
