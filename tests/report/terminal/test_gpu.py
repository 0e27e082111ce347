"""The GPU's self-test: what it calls equal, and what it says where there is no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from features.device import namespace
from features.groups import fit_showers
from features.lateral.events import make_events
from features.lateral.fit import RawFit
from report import gpu
from report.gpu import DeviceComparison, column_agreement, compare, fit_agreement
from runtime.errors import InputError
from showers.schema import COMPOSITION
from showers.simulation import load_settings
from showers.simulation.blocks import BlockJob, simulate_block


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


def test_a_library_that_fails_is_a_finding_and_the_others_go_on() -> None:
    def broken(name: str) -> DeviceComparison:
        raise RuntimeError("no kernel image\nis available")

    found = gpu._tried(gpu.partial(broken, "xgboost")).finding
    assert (found.what, found.state) == ("xgboost", "bad")
    assert found.found == "RuntimeError: no kernel image is available"


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: str) -> str:
        raise InputError("no CUDA device answers")

    monkeypatch.setattr(gpu, "resolve_device", none)
    (line,) = gpu.gpu_findings()
    assert (line.what, line.found, line.state) == ("GPU", "no CUDA device answers", "note")
    with pytest.raises(InputError, match="no CUDA device"):
        next(compare(100))
