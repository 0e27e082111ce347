"""Every file of dataset and raw folders, damaged in every way: the same result, or one line that names a file."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from showers.archives.convert import convert
from showers.dataset import Dataset
from showers.schema import COMPOSITION
from showers.writer import write_dataset
from tests.faults.damages import outcomes
from tests.faults.rounds import rounds
from tests.showers.archives.test_convert import raw_mode

N = 40


def _write(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    extras = {"groups": np.int64, "age": np.float32, "part": np.int8}
    source = {"age": True, "seed": seed}
    with write_dataset(folder, N, COMPOSITION, source=source, extras=extras) as writer:
        writer.put(
            0,
            rng.integers(0, 200, (N, 16, 16, 2)),
            rng.uniform(3, 9, (N, 5)),
            np.arange(N) % 5,
            groups=np.arange(N),
            age=rng.uniform(0.5, 1.2, N),
            part=np.zeros(N),
        )


def read_dataset(folder: Path) -> str:
    """Return a hash of everything that a run reads."""
    data = Dataset.open(folder, COMPOSITION)
    digest = hashlib.sha256(data.fingerprint().encode())
    for chunk in data.chunks(16):
        digest.update(chunk.matrices.tobytes() + chunk.scalars.tobytes())
    for column in (data.labels, data.age, data.groups, data.part):
        digest.update(b"none" if column is None else column.tobytes())
    return digest.hexdigest()


def read_raw(folder: Path) -> str:
    """Return a hash of the published arrays, in their order, that conversion makes of raw archives."""
    out = folder.with_name("sets")
    shutil.rmtree(out, ignore_errors=True)
    digest = hashlib.sha256()
    for made in convert(folder, out, COMPOSITION, protocol="matched"):
        for name in ("matrices", "features", "labels_composition", "age"):
            digest.update(np.load(made / f"{name}.npy")[np.argsort(np.load(made / "order.npy"))].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("checksums", [True, False], ids=["with checksums", "without"])
@rounds(160, 480)
def test_dataset(n: int, tmp_path: Path, checksums: bool, survived: Counter[str]) -> None:
    for seed, name in enumerate(("set", "other")):
        _write(tmp_path / name, seed)
        if not checksums:
            (tmp_path / name / "checksums.json").unlink()
    found = outcomes(tmp_path / "set", read_dataset, n, read_dataset(tmp_path / "set") if checksums else None)
    if checksums:
        assert found["same result"] <= 0.1 * n, "only where checksums.json itself is lost"
    survived["damages"] += found.total()


@rounds(60, 180)
def test_raw_archives(n: int, tmp_path: Path, survived: Counter[str]) -> None:
    for seed, name in enumerate(("set", "other")):
        (tmp_path / name).mkdir()
        raw_mode(tmp_path / name, "qgs_spectra", 400, seed)
    for kind in ("features", "true_features", "matrices"):
        # Public archives hold nothing that ties the three of a mode together.
        shutil.copyfile(tmp_path / "set" / f"qgs_spectra_{kind}.npz", tmp_path / "other" / f"qgs_spectra_{kind}.npz")
    found = outcomes(tmp_path / "set", read_raw, n, read_raw(tmp_path / "set"))
    assert found["refused"] > 0.6 * n
    survived["damages"] += found.total()
