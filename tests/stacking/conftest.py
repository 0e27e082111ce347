"""Known problems and small learners for the stacking tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS
from tests.stacking.fakes import FAKES

CLASSES = ("near", "far")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, LearnerSpec]:
    """Register the fake learners for one test."""
    for name, spec in FAKES.items():
        monkeypatch.setitem(LEARNERS, name, spec)
    return FAKES


def gaussians(n: int, seed: int, distance: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, 2) points of two unit Gaussians at +-distance/2 on the first axis, and (n,) classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    points = rng.normal(size=(n, 2))
    points[:, 0] += distance * (labels - 0.5)
    return points.astype(np.float32), labels


def bayes_log_proba(points: np.ndarray, distance: float = 1.5) -> np.ndarray:
    """Return the exact log-posterior of :func:`gaussians`."""
    logit = distance * points[:, 0].astype(float)
    return np.column_stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)])


@pytest.fixture
def two_gaussians(tmp_path: Path) -> tuple[Path, Path]:
    """Training table with a label column, test table without."""
    paths = []
    for name, n, seed in (("train", 1200, 1), ("test", 800, 2)):
        points, labels = gaussians(n, seed)
        frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1]})
        if name == "train":
            frame = frame.with_columns(pl.Series("kind", [CLASSES[k] for k in labels]))
        path = tmp_path / f"{name}.parquet"
        frame.write_parquet(path)
        paths.append(path)
    return paths[0], paths[1]
