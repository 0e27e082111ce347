"""Downloads of large files, continued where an earlier attempt stopped.

A partial file is continued by an HTTP range request, guarded by the server's entity tag, the range it answers with and
the file's length, so that two versions of a file are never spliced together. Nothing gets its final name that is not a
whole NumPy file: a page that a network's login sends instead of the file never does.
"""

from __future__ import annotations

import http.client
import io
import logging
import os
import re
import shutil
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from showerstack.runtime.arrays import full_disk_as_input_error, read_header
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, remove_leftovers, write_json

LOG = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60.0
MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
MIN_ARRAY_BYTES = 128
"""NumPy's magic word, and the least length of an array's head."""


BROKEN = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError)
"""What a connection that fails raises."""


def check_address(url: str) -> None:
    """Refuse what is no address of a server; a file of this machine is none either."""
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not (sound and url.isascii() and url.isprintable() and " " not in url):
        raise InputError(
            f"{url!r} is not the address of a folder on a server: expected http:// or https://, a host and a path "
            "(letters outside ASCII and spaces written as %xx)"
        )


MISSING = (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND)
"""What a server answers that does not have a file; buckets that may not be listed answer 403."""


class NotServed(InputError):
    """The server does not have a file."""


@dataclass
class _Refused(Exception):
    """What the server sent cannot be used; ``final`` if asking again will not help."""

    reason: str
    final: bool = False


@dataclass(frozen=True)
class Form:
    """What a file must look like to be taken: how long by its first bytes, and whether it is whole."""

    announced: Callable[[bytes, str, int | None], int]
    """Length of the file from its first bytes, the content's type and the length that the server says."""
    problem: Callable[[Path, int], str | None]
    """What is wrong with a file of the right length, or None."""


def fetch(
    url: str,
    target: Path,
    *,
    attempts: int = 5,
    pause_s: float = 2.0,
    progress: Progress | None = None,
    form: Form | None = None,
) -> None:
    """Download one file to ``target``, continuing ``target``'s ``.part`` file if there is one.

    What is of another ``form`` (by default ``.npy``) is refused; so is a server that fails ``attempts`` times in a row
    without getting further than before.
    """
    failures = 0
    remove_leftovers(_tag_file(target))
    furthest = _size(_part(target))
    with full_disk_as_input_error(target):
        while True:
            try:
                _receive(url, target, progress, form or NPY)
                return
            except _Refused as error:
                if error.final:
                    raise InputError(f"{url}: {error.reason}") from None
                reason = error.reason
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500 and error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    answer = str(error.reason).splitlines()[0] if error.reason else ""
                    kind = NotServed if error.code in MISSING else InputError
                    raise kind(f"{url}: the server answers {error.code} {answer}") from None
                reason = f"{error.code} {error.reason}"
                if error.code < 500:  # the part is longer than the file: it belongs to another version
                    discard(target)
            except BROKEN as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            received = _size(_part(target))
            # Only what was never reached before is progress: the same piece again and again is not.
            failures = 0 if received > furthest else failures + 1
            furthest = max(furthest, received)
            if failures >= attempts:
                raise InputError(
                    f"{url}: {reason}; gave up after {attempts} attempts, {received / 1e6:,.1f} MB are kept to continue"
                )
            pause = pause_s * 2 ** max(failures - 1, 0)
            LOG.warning("%s: %s; trying again in %g s", url, reason, pause)
            time.sleep(pause)


def _receive(url: str, target: Path, progress: Progress | None, form: Form) -> None:
    part, start = _part(target), _size(_part(target))
    version = _read_tag(target) if start else None
    headers = {"Range": f"bytes={start}-", "If-Range": version["etag"]} if version else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        tag = response.headers.get("ETag")
        length = _length(response)
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed:
            total = _resumed_length(response.headers.get("Content-Range"), start, version, tag, target)
        else:
            first = response.read(BLOCK_BYTES)
            total = form.announced(first, response.headers.get_content_type(), length)
            if length is not None and length != total:
                raise _Refused(f"{length:,} bytes announced for an array of {total:,}: not the whole file", final=True)
            # The old part goes before the new tag comes: a part is never found beside the tag of another version.
            discard(target)
            if tag and not tag.startswith("W/"):
                write_json(_tag_file(target), {"etag": tag, "total": total})
        free = shutil.disk_usage(part.parent).free
        if total - (start if resumed else 0) > free:
            raise _Refused(f"{total / 1e9:,.1f} GB do not fit on the disk, {free / 1e9:,.1f} GB are free", final=True)
        with part.open("ab" if resumed else "wb") as file:
            if not resumed:
                file.write(first[:total])
            _copy(response, file, total, progress)
    _finish(target, total, form)


def _copy(response: Any, file: BinaryIO, total: int, progress: Progress | None) -> None:
    while block := response.read(BLOCK_BYTES):
        if file.tell() + len(block) > total:
            file.write(block[: total - file.tell()])
            break
        file.write(block)
        if progress:
            progress(file.tell() / 1e6, total / 1e6)
    file.flush()
    os.fsync(file.fileno())


def _finish(target: Path, total: int, form: Form) -> None:
    part = _part(target)
    if _size(part) != total:
        raise http.client.IncompleteRead(b"", total - _size(part))
    problem = form.problem(part, total)
    if problem:
        discard(target)
        raise _Refused(problem)
    part.replace(target)
    discard(target)


def _resumed_length(
    content_range: str | None, start: int, version: dict[str, Any] | None, tag: str | None, target: Path
) -> int:
    """Return the whole file's length if a partial answer continues the part; else remove the part."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range or "")
    if version and match and int(match[1]) == start and int(match[3]) == version["total"] and tag == version["etag"]:
        return int(match[3])
    discard(target)
    raise _Refused(f"asked for bytes from {start:,}, the server sent {content_range or 'others'} of another version")


def _npy_length(first: bytes, content_type: str, length: int | None) -> int:
    """Return the length of a ``.npy`` file by the head of the array in it."""
    if len(first) < MIN_ARRAY_BYTES and first[:6] == MAGIC[: len(first)]:
        raise http.client.IncompleteRead(first)
    try:
        return read_header(io.BytesIO(first), "what the server sent").n_bytes
    except InputError as error:
        raise _Refused(f"{error} ({content_type}; a login page of the network?)", final=True) from None


def _npy_problem(part: Path, total: int) -> str | None:
    with part.open("rb") as file:
        header = read_header(file, str(part))
    return None if header.n_bytes == total else f"{total:,} bytes received for an array of {header.n_bytes:,}"


NPY = Form(_npy_length, _npy_problem)


def _npz_length(first: bytes, content_type: str, length: int | None) -> int:
    """Return the length of an archive, which only the server can say."""
    if not first.startswith(ZIP_MAGIC[: max(len(first), 1)]):
        raise _Refused(f"what it sent is no NPZ archive ({content_type}; a login page of the network?)", final=True)
    if length is None:
        raise _Refused("the server does not say how long the archive is", final=True)
    return length


def _npz_problem(part: Path, total: int) -> str | None:
    try:
        with zipfile.ZipFile(part) as archive:
            archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, struct.error) as error:
        return f"{total:,} bytes received are no whole NPZ archive: {error}"
    return None


NPZ = Form(_npz_length, _npz_problem)


def _length(response: Any) -> int | None:
    text = response.headers.get("Content-Length")
    if text is not None and not text.isdecimal():
        raise _Refused(f"the server says that the file has {text!r} bytes", final=True)
    return None if text is None else int(text)


def _read_tag(target: Path) -> dict[str, Any] | None:
    """Return what is known of the version that the part belongs to, None if a killed download left it unreadable."""
    try:
        version = read_json(_tag_file(target))
    except InputError:
        return None
    complete = (
        isinstance(version, dict) and isinstance(version.get("etag"), str) and isinstance(version.get("total"), int)
    )
    return version if complete else None


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _tag_file(target: Path) -> Path:
    return target.with_name(target.name + ".part.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def discard(target: Path) -> None:
    """Remove the part, then what is known of it."""
    _part(target).unlink(missing_ok=True)
    _tag_file(target).unlink(missing_ok=True)
