"""Archives are judged by their heads: bombs, pipes and lies are refused before anything is unpacked."""

from __future__ import annotations

import io
import os
import resource
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from runtime.arrays import read_arrays
from runtime.errors import InputError
from scoring.score import read_output
from showers.schema import COMPOSITION, GAMMA

N = 50


def _head(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    stream = io.BytesIO()
    head = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, head)
    return stream.getvalue()


def _bomb(file: Path, key: str, head: bytes, n_zeros: int) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{key}.npy", "w") as member:
        member.write(head)
        block = bytes(1 << 20)
        for _ in range(n_zeros >> 20):
            member.write(block)
    return file


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    n_bytes = 1 << 28
    file = _bomb(tmp_path / "p.npz", "gamma_scores", _head((n_bytes // 8,)), n_bytes)
    assert file.stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="has 33554432 events, but the test set has 50"):
        read_output(file, GAMMA, N)
    with pytest.raises(InputError, match=r"would unpack to 0.27 GB"):
        read_arrays(file, "gamma_scores")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_a_bomb_in_the_hash_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    np.savez_compressed(file, predictions=np.zeros(N, np.int8), config_hash=np.array("x" * 10_000_000))
    with pytest.raises(InputError, match=r"config_hash has shape .* expected a word"):
        read_output(file, COMPOSITION, N)


@pytest.mark.parametrize("shape", [(1 << 40,), (N, 1 << 40), (N - 1,), ()])
def test_heads_that_promise_what_is_not_there(shape: tuple[int, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("predictions.npy", _head(shape, "<i8") + bytes(8 * N))
    with pytest.raises(InputError, match=r"p\.npz, predictions (has|cannot be read)"):
        read_output(tmp_path / "p.npz", COMPOSITION, N)


def test_any_order_is_read(tmp_path: Path) -> None:
    table = np.asfortranarray(np.arange(10.0).reshape(5, 2))
    np.savez(tmp_path / "p.npz", log_proba=table)
    np.testing.assert_array_equal(read_arrays(tmp_path / "p.npz", "log_proba")["log_proba"], table)


def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    started = time.monotonic()
    for file in (tmp_path / "pipe.npz", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_output(file, COMPOSITION, N)
    assert time.monotonic() - started < 5
