"""Showers of known truth drawn on the array, and the array libraries that every numeric test runs on.

The showers are drawn here and not by the simulation: the lateral distributions with the constants that the fits assume,
so that residuals test the fits and nothing else.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import array_api_compat.numpy
import array_api_compat.torch
import array_api_strict
import numpy as np
import polars as pl
import pytest

from showerstack.features.device import decode_float16
from showerstack.features.groups.lateral import MAX_AGE
from showerstack.features.lateral import cuda
from showerstack.features.lateral.events import EventBatch, make_events
from showerstack.features.lateral.station import ELECTRON_PIVOT_M
from showerstack.showers.array import KASCADE
from showerstack.showers.lateral import ELECTRON_R0_M, axis_distance, rho_electron, rho_muon
from showerstack.showers.response import PUBLISHED, StationResponse
from showerstack.showers.writer import write_dataset

ELECTRON_SHAPE, MUON_SHAPE_E, MUON_SHAPE = 1 / 1.1, 5.0, 1 / 0.17
"""Shapes of the Gamma distributed deposits that give the dispersions 2.1, 1.2 and 1.17."""
ELECTRON_THRESHOLD_MEV, MUON_THRESHOLD_MEV = 3.0, 3.9


@dataclass(frozen=True)
class Drawn:
    """Showers and what they were made of."""

    truth: pl.DataFrame
    matrices: np.ndarray
    """(n, 16, 16, 2) float16"""
    scalars: np.ndarray
    """(n, 5) float32: E, Ze, Az, Ne, Nmu"""

    def events(self, xp: ModuleType, rows: slice = slice(None), response: StationResponse = PUBLISHED) -> EventBatch:
        """Return them as events of an array library."""
        return make_events(xp, decode_float16(self.matrices[rows].copy()), self.scalars[rows], response)

    @property
    def hits(self) -> np.ndarray:
        """(n,) hit e/gamma stations."""
        return (self.matrices[..., 0] > 0).sum(axis=(1, 2))


def _deposits(rng: np.random.Generator, shape: np.ndarray, mean: np.ndarray) -> np.ndarray:
    some = shape > 0
    scale = np.divide(mean, shape, out=np.zeros_like(mean), where=some)
    return np.where(some, rng.gamma(np.where(some, shape, 1.0)) * scale, 0.0)


def draw_showers(
    n: int,
    seed: int = 1,
    lg_ne: tuple[float, float] = (4.6, 6.0),
    response: StationResponse = PUBLISHED,
    max_core_m: float = 85.0,
    age: float | None = None,
) -> Drawn:
    """Draw showers with compound-Poisson deposits in every station, of one age if told.

    Beyond the age at which sizes are quoted, the true size is the one quoted with that age, as in the fits: the size
    that has the same density at the pivot.
    """
    rng = np.random.default_rng(seed)
    core, angle = max_core_m * np.sqrt(rng.random(n)), 2 * np.pi * rng.random(n)
    size = rng.uniform(*lg_ne, n)
    zenith = np.rad2deg(np.arcsin(0.5 * np.sqrt(rng.random(n))))
    truth = {
        "core_x_m": core * np.cos(angle),
        "core_y_m": core * np.sin(angle),
        "lg_ne": size,
        "age": np.clip(rng.normal(1.0, 0.12, n), 0.5, 1.4) if age is None else np.full(n, age),
        "lg_nmu": 0.9 * size - 0.25 + rng.normal(0, 0.15, n),
        "zenith_deg": zenith,
        "azimuth_deg": 360 * rng.random(n),
    }
    mean_muon_age = 1.3 - 0.094 * (truth["lg_nmu"] - 4.5) + 0.45 * (1 / np.cos(np.deg2rad(zenith)) - 1.035)
    truth["s_mu"] = np.clip(rng.normal(mean_muon_age, response.muon_age_spread), 0.9, 1.7)
    column = {name: values[:, None] for name, values in truth.items()}
    x, y, cosine = KASCADE.x_m.ravel(), KASCADE.y_m.ravel(), np.cos(np.deg2rad(column["zenith_deg"]))
    r = axis_distance(x, y, *(column[name] for name in ("core_x_m", "core_y_m", "zenith_deg", "azimuth_deg")))
    quoted = np.minimum(column["age"], MAX_AGE)
    older = ((r / ELECTRON_PIVOT_M) * (1 + r / ELECTRON_R0_M) / (1 + ELECTRON_PIVOT_M / ELECTRON_R0_M)).clip(1e-2)
    electrons = rho_electron(r, 10 ** column["lg_ne"], quoted) * older ** (column["age"] - quoted)
    muons = rho_muon(r, 10 ** column["lg_nmu"], column["s_mu"])
    area_e, area_m = KASCADE.electron_area_m2.ravel() * cosine, KASCADE.muon_area_m2.ravel() * cosine
    correction = response.gamma_fraction + response.core_excess * np.exp(-r / response.core_excess_scale_m)
    per_e, per_m = response.electron_deposit_mev / cosine, response.muon_deposit_mev / cosine
    n_e, n_m, n_below = rng.poisson(electrons * area_e), rng.poisson(muons * area_e), rng.poisson(muons * area_m)
    punch = area_m * electrons * response.punch_through * np.exp(-r / response.punch_through_scale_m)
    n_punch = rng.poisson(punch * 8.4 / 12.0)
    stray_e = (rng.random(r.shape) < response.electron_strays) & (area_e > 0)
    stray_m = (rng.random(r.shape) < response.muon_strays) & (area_m > 0)
    e = _deposits(rng, ELECTRON_SHAPE * n_e, per_e * correction * n_e) + _deposits(rng, MUON_SHAPE_E * n_m, per_e * n_m)
    e = e + stray_e * per_e
    m = _deposits(rng, MUON_SHAPE * n_below, per_m * n_below) + _deposits(rng, 1.0 * n_punch, 12.0 / cosine * n_punch)
    m = m + stray_m * per_m
    e, m = np.where(e < ELECTRON_THRESHOLD_MEV, 0, e), np.where(m < MUON_THRESHOLD_MEV, 0, m)
    matrices = np.stack([np.minimum(e, 40_000), np.minimum(m, 20_000)], axis=-1).reshape(n, 16, 16, 2)
    scalars = [0.9 * size + 10.8, zenith, truth["azimuth_deg"], size, truth["lg_nmu"]]
    return Drawn(pl.DataFrame(truth), matrices.astype(np.float16), np.stack(scalars, axis=1).astype(np.float32))


@pytest.fixture(scope="session")
def draw() -> Callable[..., Drawn]:
    """Return the function that draws showers."""
    return draw_showers


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    """4,000 showers of 30 to 252 hit stations."""
    return draw_showers(4_000)


BACKENDS = {
    "numpy": array_api_compat.numpy,
    "array_api_strict": array_api_strict,
    "torch": array_api_compat.torch,
}
TOLERANCE = {("numpy", "array_api_strict"): 1e-6, ("numpy", "torch"): 2e-3}
"""Largest difference of a feature between two libraries, in units of its standard deviation over events.

Strict is NumPy underneath; torch sums in another order and has its own exp and ln, which a fit that stops at a
decrement of 5e-4 turns into a thousandth of a standard error.
"""


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> tuple[str, ModuleType]:
    """Name and namespace of each array library in turn."""
    return request.param, BACKENDS[request.param]


@pytest.fixture(scope="session")
def tolerance() -> dict[tuple[str, str], float]:
    """Return the tolerance of each pair of libraries."""
    return TOLERANCE


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """Return what makes a library of this processor of a text in C++."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    libraries: dict[str, ctypes.CDLL] = {}

    def library(text: str) -> ctypes.CDLL:
        if text not in libraries:
            folder = tmp_path_factory.mktemp("kernel")
            (folder / "kernel.cpp").write_text(text, encoding="utf-8")
            build = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-o", "kernel.so", "kernel.cpp"]
            subprocess.run(build, cwd=folder, check=True)
            libraries[text] = ctypes.CDLL(str(folder / "kernel.so"))
        return libraries[text]

    return library


@pytest.fixture(scope="session")
def on_the_host(compiled: Callable[[str], ctypes.CDLL]) -> Callable[..., None]:
    """Return what stands for the start of a CUDA kernel: its text as plain C++ of this processor."""

    def launch(kernels: cuda.Kernels, name: str, n_events: int, arguments: Sequence[Any]) -> None:
        given: list[Any] = []
        for value in arguments:
            if isinstance(value, int):
                given.append(ctypes.c_int(value))
            else:
                assert value.dtype in (np.float32, np.int32)
                assert value.flags.c_contiguous
                given.append(ctypes.c_void_p(value.ctypes.data))
        assert ctypes.c_int(n_events).value in [one.value for one in given if isinstance(one, ctypes.c_int)]
        getattr(compiled(kernels.text), name)(*given)

    return launch


@pytest.fixture
def cuda_on_the_host(on_the_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the functions for a GPU work on NumPy's arrays, with the kernels as plain C++."""
    monkeypatch.setattr(cuda, "launch", on_the_host)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes drawn showers as a dataset folder without labels."""

    def write_folder(showers: Drawn, name: str = "set", age: np.ndarray | None = None) -> Path:
        folder = tmp_path / name
        extras = {"age": np.float32} if age is not None else {}
        source = {"generator": "tests", "age": age is not None}
        with write_dataset(folder, len(showers.matrices), None, source=source, extras=extras) as writer:
            writer.put(0, showers.matrices, showers.scalars, **({"age": age} if age is not None else {}))
        return folder

    return write_folder
