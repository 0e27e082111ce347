"""Fetch the raw archives from which the sets of the protocols are converted, resuming an earlier attempt."""

from __future__ import annotations

from pathlib import Path

from showers.archives.download import BUCKET, NPZ, check_address, discard, fetch
from showers.archives.raw import KINDS, Archives, archive_path
from showers.execution.progress import Bars, silent
from showers.protocols import modes_of
from showers.schema import Task

RAW_BUCKET = BUCKET.removesuffix("/v2")
"""Where the raw archives are published."""


def download_raw(
    task: Task,
    out: Path,
    protocol: str,
    *,
    base_url: str | None = None,
    attempts: int = 5,
    bars: Bars = silent,
) -> list[Path]:
    """Download the raw archives from which a protocol's sets are converted.

    Parameters
    ----------
    task, protocol
        Which modes are needed.
    out
        Gets ``{mode}_{kind}.npz``; archives that are complete are not fetched again.

    Returns
    -------
    list of Path
        The archives.

    Raises
    ------
    InputError
        If there is no such protocol, the server does not have a file or cannot be reached, or what it sent is not a
        set of raw archives.
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
            with bars(target.name, "MB") as progress:
                url = f"{base_url or RAW_BUCKET}/{target.name}"
                fetch(url, target, attempts=attempts, progress=progress, form=NPZ)
        Archives.open(Path(out), mode)
    return [archive_path(Path(out), mode, kind) for mode in modes for kind in KINDS]
