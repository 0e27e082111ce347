"""The CUDA kernel without a GPU: NVRTC compiles it, and as C++ on the CPU it gives the reference's numbers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from features.device import namespace
from features.events import stations
from features.lateral.constants import PUBLISHED
from features.lateral.gpu import OPTIONS, kernel_source
from features.lateral.reference import RawFit, fit_reference

XP = namespace("cpu")


def test_nvrtc_compiles_the_kernel():
    nvrtc = pytest.importorskip("cupy.cuda").nvrtc
    program = nvrtc.createProgram(kernel_source(PUBLISHED), "kernel.cu", [], [])
    try:
        nvrtc.compileProgram(program, [*OPTIONS, "--gpu-architecture=compute_80"])
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert b".entry fit_events" in nvrtc.getPTX(program)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize("lg_ne", [(4.6, 6.0), (3.8, 4.6)])
def test_kernel_as_plain_cpp_agrees_with_the_reference(draw, tmp_path, lg_ne):
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(kernel_source(PUBLISHED))
    subprocess.run(["g++", "-O2", "-std=c++14", "-shared", "-fPIC", "-o", library, source], check=True)
    n, here = 200, stations(XP)
    events = draw(n, seed=4, lg_ne=lg_ne).events(XP)
    where = np.flatnonzero(here.has_muon)
    arrays = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    arrays += [here.x_m, here.y_m, here.electron_area_m2, where.astype(np.int32)]
    arrays += [values[where] for values in (here.x_m, here.y_m, here.muon_area_m2)]
    kept = [np.ascontiguousarray(array) for array in arrays]
    raw = np.empty((n, RawFit.N_COLUMNS), np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in kept]
    ctypes.CDLL(str(library)).fit_events(*pointers, ctypes.c_int(n), raw.ctypes.data_as(ctypes.c_void_p))
    reference = fit_reference(events)
    ours = RawFit.from_columns([raw[:, k] for k in range(RawFit.N_COLUMNS)])
    scale = np.sqrt(1 / np.stack([reference.electron_fisher[k] for k in (0, 2, 5, 9)]))
    gap = np.abs(np.stack(ours.electron) - np.stack(reference.electron)) / scale
    assert np.quantile(gap, 0.99) < 0.01
    np.testing.assert_allclose(ours.electron_value, reference.electron_value, rtol=1e-4)
    np.testing.assert_allclose(ours.muon[0], reference.muon[0], atol=2e-3)
    assert ours.electron_converged.mean() > 0.99
