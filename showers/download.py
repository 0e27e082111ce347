"""Fetch the public benchmark's pre-split files, resuming where an earlier attempt stopped.

8.6 GB over a connection that breaks should not start again from nothing: a partial file is continued by an HTTP
range request, guarded by the server's entity tag so that two versions of a file are never spliced together.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from showers.dataset import Dataset
from showers.progress import Bars, Progress, silent
from showers.schema import MATRICES_FILE, SCALARS_FILE, InputError, Task

BUCKET = "https://kascade-sim-data.s3.eu-central-1.amazonaws.com/v2"
"""Where the pre-split v2 files are published."""
BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60.0


def download(
    task: Task,
    out: Path,
    *,
    splits: tuple[str, ...] = ("train", "test"),
    base_url: str = BUCKET,
    attempts: int = 5,
    bars: Bars = silent,
) -> list[Path]:
    """Download the dataset folders of a task and check them.

    Parameters
    ----------
    task
        Which task's folders.
    out
        Gets ``{task}_train`` and ``{task}_test``; files that are complete are not fetched again.
    splits
        Which of the two.
    base_url
        Folder on the server that holds ``{task}_{split}/``.
    attempts
        Tries per file before giving up; what was received is kept for the next call.

    Returns
    -------
    list of Path
        The dataset folders.

    Raises
    ------
    InputError
        If the server does not have a file or cannot be reached, or what it sent is not a valid dataset.
    """
    folders = []
    for split in splits:
        folder = Path(out) / f"{task.name}_{split}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in (MATRICES_FILE, SCALARS_FILE, str(task.label_file)):
            if (folder / name).exists():
                continue
            with bars(f"{folder.name}/{name}", "MB") as progress:
                fetch(f"{base_url}/{folder.name}/{name}", folder / name, attempts=attempts, progress=progress)
        Dataset.open(folder, task)
        folders.append(folder)
    return folders


def fetch(url: str, target: Path, *, attempts: int = 5, pause_s: float = 2.0, progress: Progress | None = None) -> None:
    """Download one file to ``target``, continuing ``target``'s ``.part`` file if there is one.

    Raises
    ------
    InputError
        If the server refuses, or the connection fails ``attempts`` times in a row without any byte received.
    """
    failures = 0
    while True:
        received = _size(_part(target))
        try:
            _receive(url, target, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 416:
                raise InputError(f"{url}: the server answers {error.code} {error.reason}") from None
            reason = f"{error.code} {error.reason}"
            if error.code == 416:  # the part is longer than the file: it belongs to another version
                _discard(target)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 0 if _size(_part(target)) > received else failures + 1
        if failures >= attempts:
            kept = _size(_part(target)) / 1e6
            raise InputError(f"{url}: {reason}; gave up after {attempts} attempts, {kept:,.1f} MB are kept to continue")
        time.sleep(pause_s * 2 ** max(failures - 1, 0))


def _receive(url: str, target: Path, progress: Progress | None) -> None:
    part, tag_file = _part(target), _tag_file(target)
    start = _size(part)
    headers = {}
    if start and tag_file.exists():
        headers = {"Range": f"bytes={start}-", "If-Range": json.loads(tag_file.read_text())["etag"]}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        start = start if resumed else 0
        total = start + int(response.headers["Content-Length"])
        if tag := response.headers.get("ETag"):
            tag_file.write_text(json.dumps({"etag": tag}))
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                if progress:
                    progress(file.tell() / 1e6, total / 1e6)
    if _size(part) != total:
        raise http.client.IncompleteRead(b"", total - _size(part))
    part.replace(target)
    tag_file.unlink(missing_ok=True)


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _tag_file(target: Path) -> Path:
    return target.with_name(target.name + ".part.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _discard(target: Path) -> None:
    _part(target).unlink(missing_ok=True)
    _tag_file(target).unlink(missing_ok=True)
