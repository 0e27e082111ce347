"""The CUDA kernel without a GPU: NVRTC compiles it, and as C++ on the CPU it gives the numbers of the CPU's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from features.device import namespace
from features.lateral.fit import N_NUMBERS, OPTIONS, RawFit, fit_fused, kernel_source
from features.lateral.response import PUBLISHED
from report.gpu import CHANNELS, fit_gaps

XP = namespace("cpu")
N = 400


def test_nvrtc_compiles_the_kernel():
    nvrtc = pytest.importorskip("cupy.cuda").nvrtc
    program = nvrtc.createProgram(kernel_source(PUBLISHED), "kernel.cu", [], [])
    try:
        nvrtc.compileProgram(program, [*OPTIONS, "--gpu-architecture=compute_80"])
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert b".entry fit_events" in nvrtc.getPTX(program)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize("lg_ne", [(4.6, 6.0), (3.6, 4.6)])
def test_every_output_of_the_kernel_as_plain_cpp_agrees_with_the_cpu(draw, tmp_path, lg_ne):
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(kernel_source(PUBLISHED))
    subprocess.run(["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    events = draw(N, seed=4, lg_ne=lg_ne).events(XP)
    ours, fused = _fit_by(ctypes.CDLL(str(library)), events), fit_fused(events)
    fitted = ~np.isnan(fused.electron[0])
    for a, b in zip(ours.columns(), fused.columns(), strict=True):
        np.testing.assert_array_equal(np.isnan(a), ~fitted)
        np.testing.assert_array_equal(np.isnan(b), ~fitted)
    for channel in CHANNELS:
        # Sums run in another order: a minimisation may end one step apart, within its tolerance.
        gap, matrix_gap = fit_gaps(ours, fused, channel, fitted)
        value, theirs = (getattr(fit, f"{channel}_value")[fitted].astype(np.float64) for fit in (ours, fused))
        rise = np.abs(value - theirs) / np.maximum(np.abs(theirs), 1.0)
        for difference in (gap, matrix_gap, rise):
            assert np.quantile(difference, 0.5) < 1e-4
            assert np.quantile(difference, 0.99) < 5e-3
            assert np.mean(difference < 0.1) > 0.995
        steps = getattr(ours, f"{channel}_steps")[fitted] - getattr(fused, f"{channel}_steps")[fitted]
        assert np.mean(steps == 0) > 0.98
        assert getattr(ours, f"{channel}_converged")[fitted].mean() > 0.99


def _fit_by(library, events):
    """Return the fits by the kernel compiled as plain C++."""
    here = events.stations
    where = np.flatnonzero(here.has_muon)
    arrays = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    arrays += [here.x_m, here.y_m, here.electron_area_m2, where.astype(np.int32)]
    arrays += [values[where] for values in (here.x_m, here.y_m, here.muon_area_m2)]
    kept = [np.ascontiguousarray(array) for array in arrays]
    numbers = np.empty((len(events), N_NUMBERS), np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in kept]
    library.fit_events(*pointers, ctypes.c_int(len(events)), numbers.ctypes.data_as(ctypes.c_void_p))
    return RawFit.from_numbers(numbers)
