"""Damages of files, drawn by a seeded generator: the same result, or one line that names the folder."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import numpy as np

from showerstack.runtime.errors import InputError

PATIENCE_S = 600
COUNTS = (b"40", b"48", b"400")
"""Numbers of rows of the tests' arrays, which :func:`_huge` turns into immense ones."""


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


def _flip(file: Path, twin: Path, rng: np.random.Generator) -> None:
    content = bytearray(file.read_bytes())
    # Half of them where heads, lists of members and short files are.
    near = min(len(content), 300)
    place = (
        rng.integers(len(content)) if rng.random() < 0.5 else rng.choice([-1, 1]) * rng.integers(near) % len(content)
    )
    content[int(place)] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def _cut(file: Path, twin: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(rng.integers(len(content)))])


def _grow(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.write_bytes(file.read_bytes() + rng.bytes(int(rng.integers(1, 300))))


def _empty(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.write_bytes(b"")


def _lose(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.unlink()


def _exchange(file: Path, twin: Path, rng: np.random.Generator) -> None:
    others = [other for other in sorted(file.parent.iterdir()) if other != file and other.is_file()]
    if not others:
        return _another_sets(file, twin, rng)
    other = others[int(rng.integers(len(others)))]
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return None


def _another_sets(file: Path, twin: Path, rng: np.random.Generator) -> None:
    shutil.copyfile(twin, file)


def _pipe(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.mkdir()


def _circle(file: Path, twin: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _huge(file: Path, twin: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    huge = content
    for size in COUNTS:
        huge = huge.replace(b"(" + size + b",", b"(" + size + b"000000000000,", 1).replace(12 * b" " + b"\n", b"\n", 1)
    file.write_bytes(huge[: len(content)])


Damage = Callable[[Path, Path, np.random.Generator], None]
DAMAGES: dict[Damage, int] = {
    _flip: 8, _cut: 3, _grow: 2, _empty: 1, _lose: 1, _exchange: 3, _another_sets: 1, _pipe: 1, _folder: 1, _circle: 1,
    _huge: 1,
}  # fmt: skip
"""How often each damage is done to each file in one turn."""


def outcomes(folder: Path, read: Callable[[Path], str], n: int, expected: str | None) -> Counter[str]:
    """Damage the files of a folder ``n`` times, each time one of them.

    Parameters
    ----------
    folder
        What is damaged and read; a folder of the same files, called ``other``, lies beside it.
    read
        Returns a hash of all that its users get.
    n
        Number of damages: in turns, each with every damage of every file in a drawn order.
    expected
        The result that alone may come out; None where files carry nothing by which a change could be noticed.

    Returns
    -------
    How many gave the same result (any, without ``expected``), and how many were refused.
    """
    counter: Counter[str] = Counter()
    whole = folder.with_name("whole")
    shutil.copytree(folder, whole)
    names = sorted(str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file())
    for turn, k, name, damage in islice(_drawn(names), n):
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        damage(folder / name, folder.with_name("other") / name, np.random.default_rng([turn, k, *name.encode()]))
        what = f"{damage.__name__} {turn}, {k} of {name}"
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
        counter["same result" if message is None else "refused"] += 1
    return counter


def _drawn(names: list[str]) -> Iterator[tuple[int, int, str, Damage]]:
    every = [(k, name, damage) for name in names for damage, times in DAMAGES.items() for k in range(times)]
    for turn in count():
        for place in np.random.default_rng(turn).permutation(len(every)):
            yield turn, *every[place]
