"""The comparison of a GPU with the CPU: what it calls equal, and what it says without a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import gpu
from benchmarks.speed.gpu import DeviceComparison, column_agreement, compare, fit_agreement
from showerstack.features import build, compute
from showerstack.features.device import namespace, on_device
from showerstack.features.groups import fit_showers
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import RawFit
from showerstack.runtime.errors import InputError
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings, simulate
from showerstack.showers.simulation.blocks import BlockJob, simulate_block

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits() -> np.ndarray:
    """(n, numbers) outputs of the lateral fits of simulated showers."""
    events = simulate_block(BlockJob(COMPOSITION, "train", 3, "qgs", "test", load_settings()), 0).head(300)
    batch = make_events(namespace("cpu"), events.grids.astype(np.float32), events.scalars.astype(np.float32))
    return np.stack(list(fit_showers(batch).columns()), axis=1)


def _changed(fits: np.ndarray, channel: str, part: int, factor: float) -> RawFit:
    """Return the fits with one output of every shower multiplied."""
    raw = RawFit.from_numbers(fits.copy())
    planes = list(getattr(raw, channel))
    planes[part] = planes[part] * np.float32(factor)
    return replace(raw, **{channel: type(getattr(raw, channel))(planes)})


def test_equal_fits_agree(fits: np.ndarray) -> None:
    words, ok = fit_agreement(RawFit.from_numbers(fits), RawFit.from_numbers(fits))
    assert ok
    assert f"{len(fits)} showers" in words
    assert "100.00% below 0.1" in words


@pytest.mark.parametrize(
    ("channel", "part", "factor"),
    [("electron", 2, 1.05), ("muon", 0, 1.1), ("electron_fisher", 0, 1.3), ("muon_fisher", 2, 1.3)],
)
def test_a_wrong_minimum_or_matrix_is_noticed(fits: np.ndarray, channel: str, part: int, factor: float) -> None:
    assert not fit_agreement(_changed(fits, channel, part, factor), RawFit.from_numbers(fits))[1]


def test_showers_fitted_by_one_side_only_are_noticed(fits: np.ndarray) -> None:
    torn = fits.copy()
    torn[5] = np.nan
    words, ok = fit_agreement(RawFit.from_numbers(torn), RawFit.from_numbers(fits))
    assert not ok
    assert "NOT the same showers" in words


def test_columns_that_differ_are_named() -> None:
    rng = np.random.default_rng(1)
    ours = {name: rng.normal(size=1000).astype(np.float32) for name in ("a", "b", "c")}
    assert column_agreement(ours, ours)[1]
    words, ok = column_agreement(ours | {"b": ours["b"] + np.float32(0.02)}, ours)
    assert not ok
    assert "worst: b" in words
    torn = ours["c"].copy()
    torn[:5] = np.nan
    words, ok = column_agreement(ours | {"c": torn}, ours)
    assert not ok
    assert "undefined elsewhere: c" in words


def test_a_library_that_fails_is_a_line_and_the_others_go_on() -> None:
    def broken(name: str) -> DeviceComparison:
        raise RuntimeError("no kernel image\nis available")

    comparison = gpu._tried(gpu.partial(broken, "xgboost"))
    assert (comparison.what, comparison.ok) == ("xgboost", False)
    assert comparison.agreement == "RuntimeError: no kernel image is available"
    assert gpu.row_of(comparison) == "| xgboost | - | - | - | RuntimeError: no kernel image is available | **no** |"


def test_kernels_and_table_are_compared_on_events_enough_to_fill_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NumPy stands for the GPU, so that both sides are equal; timed is what each is given.
    folder, _ = simulate(COMPOSITION, tmp_path / "data", n_train=70, n_test=1, train_cuts="test", workers=1)
    sizes = {"cpu": 32, "cuda": 128}
    for module in (gpu, compute):
        monkeypatch.setattr(module, "chunk_size", sizes.__getitem__)
        monkeypatch.setattr(module, "namespace", lambda device: namespace("cpu"))
    monkeypatch.setattr(compute, "on_device", lambda chunks, device: on_device(chunks, "cpu"))
    monkeypatch.setattr(build, "resolve_device", lambda device: device)
    monkeypatch.setattr(build, "in_own_process", lambda function, *arguments: function(*arguments))
    for module in (gpu, build):
        monkeypatch.setattr(module, "GPU_SHARD_EVENTS", 128)
    monkeypatch.setattr(gpu, "_seconds", lambda run, rounds: float(run() is not Ellipsis))
    data = Dataset.open(folder, COMPOSITION)
    for step, on_gpu in ((gpu._fits, 128), (gpu._chunks, 128), (partial(gpu._tables, scratch=tmp_path), 256)):
        comparison = step(data, rounds=1)
        assert comparison.ok, comparison.agreement
        assert (comparison.cpu_per_s, comparison.gpu_per_s) == (70, on_gpu)
    again = Dataset.open(tmp_path / "filled", labels=False)
    np.testing.assert_array_equal(np.asarray(again.matrices)[70:140], np.asarray(data.matrices))
    np.testing.assert_array_equal(np.asarray(again.scalars)[210:], np.asarray(data.scalars)[:46])


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: str) -> str:
        raise InputError("no CUDA device answers")

    monkeypatch.setattr(gpu, "resolve_device", none)
    with pytest.raises(InputError, match="no CUDA device"):
        next(compare(100))
