"""Every file of dataset and raw folders, damaged in every way: the same result, or one line that names a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from showers.archives.convert import convert
from showers.datasets.dataset import Dataset, write_dataset
from showers.schema import COMPOSITION, InputError
from tests.showers.archives.test_convert import raw_mode

N = 40
PATIENCE_S = 60
Damage = Callable[[Path, np.random.Generator], None]


@contextmanager
def patience() -> Iterator[None]:
    """Fail instead of hanging."""

    def too_long(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
    """Return a hash of everything that conversion makes of raw archives."""
    out = folder.with_name("sets")
    shutil.rmtree(out, ignore_errors=True)
    digest = hashlib.sha256()
    for made in convert(folder, out, COMPOSITION, protocol="matched"):
        for file in sorted(made.glob("*.npy")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _flip(file: Path, rng: np.random.Generator) -> None:
    content = bytearray(file.read_bytes())
    # Half of them where heads, lists of members and short files are.
    near = min(len(content), 300)
    place = (
        rng.integers(len(content)) if rng.random() < 0.5 else rng.choice([-1, 1]) * rng.integers(near) % len(content)
    )
    content[int(place)] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def _cut(file: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(rng.integers(len(content)))])


def _grow(file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(file.read_bytes() + rng.bytes(int(rng.integers(1, 300))))


def _empty(file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(b"")


def _lose(file: Path, rng: np.random.Generator) -> None:
    file.unlink()


def _exchange(file: Path, rng: np.random.Generator) -> None:
    others = [other for other in sorted(file.parent.iterdir()) if other != file]
    other = others[int(rng.integers(len(others)))]
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _another_sets(file: Path, rng: np.random.Generator) -> None:
    shutil.copyfile(file.parent.with_name("other") / file.name, file)


def _pipe(file: Path, rng: np.random.Generator) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.mkdir()


def _circle(file: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _huge(file: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    sizes = (str(N).encode(), b"400")
    huge = content
    for size in sizes:
        huge = huge.replace(b"(" + size + b",", b"(" + size + b"000000000000,", 1).replace(12 * b" " + b"\n", b"\n", 1)
    file.write_bytes(huge[: len(content)])


DAMAGES: dict[Damage, int] = {
    _flip: 8, _cut: 3, _grow: 2, _empty: 1, _lose: 1, _exchange: 3, _another_sets: 1, _pipe: 1, _folder: 1, _circle: 1,
    _huge: 1,
}  # fmt: skip
"""How often each damage is done to each file."""


def _outcomes(folder: Path, read: Callable[[Path], str], rounds: int, expected: str | None) -> Counter[str]:
    """Damage each file in each way; ``expected`` is the result that alone may come out, None where any may."""
    found: Counter[str] = Counter()
    whole = folder.with_name("whole")
    shutil.copytree(folder, whole)
    for name in sorted(file.name for file in whole.iterdir()):
        for damage, times in DAMAGES.items():
            for k in range(times * rounds):
                shutil.rmtree(folder)
                shutil.copytree(whole, folder)
                damage(folder / name, np.random.default_rng([k, *name.encode()]))
                what = f"{damage.__name__} {k} of {name}"
                result = message = None
                try:
                    with patience():
                        result = read(folder)
                except InputError as error:
                    message = str(error)
                if message is None:
                    assert expected in (None, result), what
                else:
                    assert "\n" not in message, what
                    assert str(folder) in message, f"{what}: {message}"
                found["same result" if message is None else "refused"] += 1
    return found


def _rounds() -> int:
    return int(os.environ.get("DAMAGE_ROUNDS", "1"))


@pytest.mark.parametrize("sealed", [True, False], ids=["with checksums", "without"])
def test_dataset(tmp_path: Path, sealed: bool) -> None:
    for seed, name in enumerate(("set", "other")):
        _write(tmp_path / name, seed)
        if not sealed:
            (tmp_path / name / "checksums.json").unlink()
    found = _outcomes(tmp_path / "set", read_dataset, _rounds(), read_dataset(tmp_path / "set") if sealed else None)
    assert found.total() >= 140 * _rounds()
    if sealed:
        assert found["same result"] <= 8 * _rounds(), "only where checksums.json itself is lost"


def test_raw_archives(tmp_path: Path) -> None:
    for seed, name in enumerate(("set", "other")):
        (tmp_path / name).mkdir()
        raw_mode(tmp_path / name, "qgs_spectra", 400, seed)
    for kind in ("features", "true_features", "matrices"):
        # Public archives hold nothing that ties the three of a mode together.
        shutil.copyfile(tmp_path / "set" / f"qgs_spectra_{kind}.npz", tmp_path / "other" / f"qgs_spectra_{kind}.npz")
    found = _outcomes(tmp_path / "set", read_raw, _rounds(), read_raw(tmp_path / "set"))
    assert found["refused"] > 40 * _rounds()
