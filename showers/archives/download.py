"""Fetch the public benchmark's files, the raw archives behind them and measured runs, resuming earlier attempts.

Measured runs are named by the bucket's list of files; each run's archives are then fetched one after the other.
"""

from __future__ import annotations

import http
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from showerstack.runtime.checksums import CHECKSUMS_FILE, write_checksums
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import check_name
from showerstack.runtime.http import BROKEN, NPZ, TIMEOUT_S, NotServed, check_address, discard, fetch
from showerstack.showers.archives.measured import MEASURED_KINDS, USED_ENDINGS
from showerstack.showers.archives.raw import KINDS, TIMES_KIND, TRUTH_KIND, SimulatedReader, archive_path
from showerstack.showers.dataset import Dataset
from showerstack.showers.protocols import LABELS_FROM_TYPE, modes_of
from showerstack.showers.schema import MATRICES_FILE, SCALARS_FILE, Task

BUCKET = "https://kascade-sim-data.s3.eu-central-1.amazonaws.com/v2"
"""Where the pre-split v2 files are published."""


RAW_BUCKET = BUCKET.removesuffix("/v2")
"""Where the raw archives are published."""


def download_raw(
    task: Task,
    out: Path,
    protocol: str,
    *,
    base_url: str | None = None,
    bars: Bars = silent,
) -> list[Path]:
    """Download the raw archives from which a protocol's sets are converted; return them.

    ``out`` gets ``{mode}_{kind}.npz``; archives that are complete are not fetched again. True quantities are left out
    where the server has none and the protocol takes its labels from elsewhere.
    """
    modes = modes_of(protocol, task)
    check_address(base_url or RAW_BUCKET)
    Path(out).mkdir(parents=True, exist_ok=True)
    for mode in modes:
        for kind in KINDS:
            target = archive_path(Path(out), mode, kind)
            if target.exists():
                discard(target)
                continue
            try:
                with bars(target.name, "MB") as progress:
                    url = f"{base_url or RAW_BUCKET}/{target.name}"
                    fetch(url, target, progress=progress, form=NPZ)
            except NotServed:
                if kind != TRUTH_KIND or task.target or (protocol, task.name) not in LABELS_FROM_TYPE:
                    raise
        SimulatedReader.open(Path(out), mode)
    files = [archive_path(Path(out), mode, kind) for mode in modes for kind in KINDS]
    return [file for file in files if file.exists()]


MEASURED_BUCKET = "https://kascade-with-arr-times-npz.s3.amazonaws.com"
"""Where the measured runs are published; the bucket itself says in which region it lies."""
MAX_LIST_BYTES = 16 << 20
"""A page of the list has at most 1,000 entries of a few hundred bytes."""
MAX_PAGES = 10_000
_REGION = "x-amz-bucket-region"


def download_measured(
    out: Path,
    *,
    runs: Sequence[str] | None = None,
    times: bool = False,
    base_url: str = MEASURED_BUCKET,
    bars: Bars = silent,
) -> list[str]:
    """Download the archives of measured runs; complete files are not fetched again. Return the names of the runs.

    ``out`` gets ``{run}_matrices.npz``, ``{run}_features.npz`` and, with times, ``{run}_extra_features.npz``: of
    ``runs``, without asking for the list, or of all in use. ``base_url`` is a bucket of the same layout.
    """
    out = Path(out)
    bucket = resolve_region(base_url)
    kinds = (*MEASURED_KINDS, TIMES_KIND) if times else tuple(MEASURED_KINDS)
    if runs is None:
        names = _complete_runs(list_files(bucket), kinds)
        if not names:
            raise InputError(f"{base_url} lists no measured runs: give another --base-url")
    else:
        names = [check_name(name, out) for name in dict.fromkeys(runs)]
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, start=1):
        for kind in kinds:
            file = f"{name}_{kind}.npz"
            if not (out / file).exists():
                with bars(f"{file} ({number} of {len(names)})", "MB") as progress:
                    url = f"{bucket}/{urllib.parse.quote(file)}"
                    fetch(url, out / file, progress=progress, form=NPZ)
    return names


def resolve_region(base_url: str) -> str:
    """Return the address at which a bucket answers: the one given, or that of the region which it names."""
    base_url = base_url.rstrip("/")
    try:
        with urllib.request.urlopen(f"{base_url}/?list-type=2&max-keys=1", timeout=TIMEOUT_S):
            return base_url
    except urllib.error.HTTPError as error:
        error.close()
        region = error.headers.get(_REGION)
        host = urllib.parse.urlsplit(base_url).hostname or ""
        moved = error.code in (http.HTTPStatus.MOVED_PERMANENTLY, http.HTTPStatus.TEMPORARY_REDIRECT, 400)
        if moved and region and region.replace("-", "").isalnum() and host.endswith(".s3.amazonaws.com"):
            return f"https://{host.removesuffix('.s3.amazonaws.com')}.s3.{region}.amazonaws.com"
        return base_url  # a plain server without a list can still have the files
    except BROKEN as error:
        raise InputError(f"{base_url} cannot be reached: {getattr(error, 'reason', error)}") from None


def list_files(base_url: str) -> list[str]:
    """Return the names of all files in a bucket, page by page."""
    names: list[str] = []
    token = None
    for _ in range(MAX_PAGES):
        query = {"list-type": "2"} | ({"continuation-token": token} if token else {})
        url = f"{base_url}/?{urllib.parse.urlencode(query)}"
        keys, following = _page(url)
        names += keys
        if following is None:
            return names
        if following == token:
            break
        token = following
    raise InputError(f"{base_url}: its list of files does not end")


def _page(url: str) -> tuple[list[str], str | None]:
    """Return the names on one page of the list and the token of the next, None on the last."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            content = response.read(MAX_LIST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{url}: the server answers {error.code}: name the runs with --runs") from None
    except BROKEN as error:
        raise InputError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None
    no_list = InputError(f"{url}: what it sent is no list of files: name the runs with --runs")
    # A document type could define entities without end; lists of files have none.
    if len(content) > MAX_LIST_BYTES or b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise no_list
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError):
        raise no_list from None
    if not root.tag.endswith("ListBucketResult"):
        raise no_list
    space = root.tag.removesuffix("ListBucketResult")
    keys = [key.text or "" for key in root.iterfind(f"{space}Contents/{space}Key")]
    following = root.findtext(f"{space}NextContinuationToken")
    truncated = root.findtext(f"{space}IsTruncated", "false").strip().lower() == "true"
    return keys, following if truncated and following else None


def _complete_runs(files: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the runs in use of which all files are listed, in order."""
    listed = set(files)
    ending = f"_{kinds[0]}.npz"
    names = {file.removesuffix(ending) for file in files if file.endswith(ending) and "/" not in file}
    used = sorted(name for name in names if name.endswith(USED_ENDINGS))
    return [name for name in used if all(f"{name}_{kind}.npz" in listed for kind in kinds)]


def download(
    task: Task,
    out: Path,
    *,
    splits: tuple[str, ...] = ("train", "test"),
    base_url: str = BUCKET,
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

    Returns
    -------
    list of Path
        The dataset folders.

    Raises
    ------
    InputError
        If the address is none, the server does not have a file or cannot be reached, or what it sent is not a valid
        dataset.
    """
    if task.target:
        raise InputError(f"the public sets hold no true values for task {task.name!r}: simulate, or convert archives")
    check_address(base_url)
    folders = []
    for split in splits:
        folder = Path(out) / f"{task.name}_{split}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in (MATRICES_FILE, SCALARS_FILE, str(task.label_file)):
            if (folder / name).exists():
                discard(folder / name)  # what a killed download left beside its complete file
                continue
            with bars(f"{folder.name}/{name}", "MB") as progress:
                fetch(f"{base_url}/{folder.name}/{name}", folder / name, progress=progress)
        Dataset.open(folder, task)
        if not (folder / CHECKSUMS_FILE).exists():
            write_checksums(folder, [MATRICES_FILE, SCALARS_FILE, str(task.label_file)])
        folders.append(folder)
    return folders
