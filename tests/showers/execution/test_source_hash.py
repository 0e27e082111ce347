"""The source hash changes with meaning, and only with meaning."""

from pathlib import Path

import pytest

from runtime.code import source_hash, version_of

CODE = '''"""Docstring."""

LIMIT = 3
"""What it is."""


def f(x: int) -> int:
    """Add."""
    return x + LIMIT
'''


def _hash(folder: Path, text: str, name: str = "code.py") -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    import runtime.code as module

    module._meaning.cache_clear()
    return source_hash([folder])


@pytest.mark.parametrize(
    "changed",
    [
        CODE.replace("Docstring", "Another"),
        CODE.replace('    """Add."""\n', ""),
        CODE.replace("What it is", "Longer\n\nwith formula"),
        CODE.replace("x + LIMIT", "x + LIMIT  # why"),
        CODE.replace("(x: int)", "(\n    x: int,\n)"),
    ],
)
def test_docstrings_comments_and_layout_do_not_count(tmp_path: Path, changed: str) -> None:
    assert changed != CODE
    assert _hash(tmp_path, CODE) == _hash(tmp_path, changed)


@pytest.mark.parametrize("changed", [CODE.replace("3", "4"), CODE.replace("+", "-"), CODE + "g = f\n"])
def test_code_counts(tmp_path: Path, changed: str) -> None:
    assert _hash(tmp_path, CODE) != _hash(tmp_path, changed)


def test_sub_folders_and_names_count(tmp_path: Path) -> None:
    before = _hash(tmp_path, CODE)
    below = _hash(tmp_path, CODE, "sub/kernel.py")
    assert below != before
    assert _hash(tmp_path, CODE.replace("3", "4"), "sub/kernel.py") != below
    (tmp_path / "sub" / "kernel.py").rename(tmp_path / "sub" / "other.py")
    assert source_hash([tmp_path]) != below


def test_library_versions_count(tmp_path: Path) -> None:
    assert _hash(tmp_path, CODE) != source_hash([tmp_path], ["numpy"])
    assert version_of("no-such-package") == "not installed"
