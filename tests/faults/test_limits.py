"""Numbers that a file states are limited by its size, the manifest or the machine, before memory is taken."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.models.base.learner import Batch
from showerstack.models.base.saving import HEADER_FILE, MOST_THREADS, read_header
from showerstack.models.registry import create, load, spec
from showerstack.runtime import tables
from showerstack.runtime.arrays import LEAST_BOUND_BYTES
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file
from showerstack.runtime.tables import read_table
from showerstack.showers.archives.kcdc import Hdf5Table
from tests.stacking.conftest import CLASSES, gaussians

MARGIN_BYTES = 1 << 30


@pytest.fixture
def memory() -> Iterator[None]:
    """Give this process no more than a gigabyte beyond what it has: what is refused too late fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MARGIN_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the folder of a fitted learner."""
    points, labels = gaussians(300, 1)
    events = Batch(np.arange(300), np.asfortranarray(points), ("x", "y"), labels=labels.astype(np.int64))
    learner = create(spec("quadratic_logit"), CLASSES).fit(
        events.take(np.arange(200)), events.take(np.arange(200, 300)), seed=1
    )
    learner.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("threads", [MOST_THREADS + 1, 0, -1, 1.5, "2", None, True])
def test_threads_of_a_saved_learner(saved: Path, threads: object) -> None:
    header = json.loads((saved / HEADER_FILE).read_text())
    (saved / HEADER_FILE).write_text(json.dumps(header | {"threads": threads}))
    with pytest.raises(InputError, match=rf"learner.json states {threads!r} threads: expected 1 to {MOST_THREADS}"):
        read_header(saved)


@pytest.mark.usefixtures("memory")
def test_packed_coefficients(saved: Path) -> None:
    file, header = saved / "quadratic_logit.npz", json.loads((saved / HEADER_FILE).read_text())
    np.savez_compressed(file, weights=np.zeros((len(CLASSES), LEAST_BOUND_BYTES // 8)), bias=np.zeros(len(CLASSES)))
    header["files"][file.name] = hash_file(file)
    (saved / HEADER_FILE).write_text(json.dumps(header))
    with pytest.raises(InputError, match=r"quadratic_logit.npz, weights would unpack to .* GB, more than 50 times its"):
        load(saved)


def test_long_texts_of_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, n, length = tmp_path / "text.parquet", 4_000, 5_000
    pl.DataFrame({"a": np.arange(n), "s": ["x" * length] * n}).write_parquet(file)
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(tables, "memory_bytes", lambda: n * length)
    with pytest.raises(InputError, match=r"text.parquet would need 0 GB, this job has 0: give fewer rows"):
        read_table(file)
    monkeypatch.setattr(tables, "memory_bytes", lambda: n * (length + 100))
    assert read_table(file, ["a"]).height == n


@pytest.mark.usefixtures("memory")
def test_rows_that_hdf5_declares_and_does_not_hold(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra 'files'")
    for rows, refused in ((LEAST_BOUND_BYTES // 8, False), (LEAST_BOUND_BYTES // 8 + 1, True)):
        file = tmp_path / f"{rows}.h5"
        with h5py.File(file, "w") as content:
            content.create_dataset("array/E", shape=(rows,), chunks=(10_000,), dtype="f8", fillvalue=1.0)
        if refused:
            with pytest.raises(InputError, match=r"/array/E \(shape \(8388609,\)\) would unpack to 0.07 GB"):
                Hdf5Table.all_in(file)
        else:
            assert Hdf5Table.all_in(file)["array"].length == rows
