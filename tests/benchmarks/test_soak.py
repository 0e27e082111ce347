"""Training and predicting again and again leaves nothing behind in the process."""

from __future__ import annotations

import tempfile
from dataclasses import astuple
from pathlib import Path

import pytest

from benchmarks.speed import soak

pytestmark = pytest.mark.slow


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(soak, "SETTLED", 3)
    for settled, end in soak.soak(6, 20, ("table.logistic",)).values():
        assert astuple(end)[1:] == astuple(settled)[1:], "files, threads, temporary files, children"
        assert end.memory_mb < settled.memory_mb + 50
