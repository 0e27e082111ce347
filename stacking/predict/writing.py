"""Predictions written while they are made: memory does not grow with the events."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from showers.storage.files import atomic_path

COPIED_BYTES = 1 << 22


def write_pieces(file: Path, n_events: int, pieces: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Write an uncompressed ``.npz``, with the bytes that :func:`showers.storage.files.write_npz` would give.

    Parameters
    ----------
    n_events
        Of all pieces together.
    pieces
        The same arrays in each: (n,) or (n, C), and scalars, which are equal in all.
    """
    with atomic_path(file) as temporary, ExitStack() as stack:
        kept: dict[str, BinaryIO] = {}
        like: dict[str, np.ndarray] = {}
        for piece in pieces:
            for name, array in piece.items():
                if name not in kept:
                    kept[name] = stack.enter_context(tempfile.TemporaryFile(dir=temporary.parent))
                    like[name] = array[:0] if array.ndim else array
                    if not array.ndim:
                        kept[name].write(array.tobytes())
                if array.ndim:
                    kept[name].write(np.ascontiguousarray(array).tobytes())
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, stored in kept.items():
                shape = (n_events, *like[name].shape[1:]) if like[name].ndim else ()
                header = {
                    "descr": np.lib.format.dtype_to_descr(like[name].dtype), "fortran_order": False, "shape": shape,
                }  # fmt: skip
                with archive.open(f"{name}.npy", "w", force_zip64=True) as inside:
                    np.lib.format.write_array_header_1_0(inside, header)
                    stored.seek(0)
                    while block := stored.read(COPIED_BYTES):
                        inside.write(block)


def write_frames(file: Path, frames: Iterator[pl.DataFrame]) -> None:
    """Write the rows of all frames to one table: CSV by its name, Parquet otherwise."""
    with atomic_path(file) as temporary:
        if file.suffix.lower() == ".csv":
            with temporary.open("wb") as stream:
                for number, frame in enumerate(frames):
                    frame.write_csv(stream, include_header=not number)
            return
        with tempfile.TemporaryDirectory(dir=temporary.parent, prefix=f"{temporary.name}-") as folder:
            parts = []
            for number, frame in enumerate(frames):
                parts.append(Path(folder) / f"{number}.parquet")
                frame.write_parquet(parts[-1])
            pl.scan_parquet(parts, glob=False).sink_parquet(temporary)
