"""The fused lateral fit on a GPU: ``kernel.cu`` with constants and station model as C++, compiled when needed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from features.events import EventBatch
from features.lateral.constants import StationResponse
from features.lateral.fit import N_NUMBERS, RawFit, record_in_c
from features.lateral.options import RECIPE
from features.lateral.translate import in_c
from showers.array import DetectorArray
from showers.kascade import KASCADE

WARPS = 4
"""Events per block: 46 kB of shared memory, below the 48 kB that every device has."""
LANES = 32
OPTIONS = ("--std=c++17",)


def kernel_source(response: StationResponse, array: DetectorArray = KASCADE) -> str:
    """Return the kernel's text with its constants and the array's numbers of cells and muon detectors."""
    spaces = {"response": response._asdict(), "recipe": RECIPE._asdict()}
    head = []
    for space, values in spaces.items():
        lines = [f"constexpr float {name} = {value:.9e}f;" for name, value in values.items()]
        head.append(f"namespace {space} {{ {' '.join(lines)} }}")
    body = Path(__file__).with_name("kernel.cu").read_text(encoding="utf-8")
    start, body = body.split("// STATION MODEL\n")
    sizes = f"const int N_E = {array.n_cells}, N_M = {array.n_muon_detectors};"
    return "\n".join([*head, record_in_c(), f"#define WARPS {WARPS}", sizes, start, in_c(), body])


@lru_cache(maxsize=4)
def _kernel(response: StationResponse, array: DetectorArray) -> Any:
    import cupy

    return cupy.RawKernel(kernel_source(response, array), "fit_events", options=OPTIONS)


def fit_cuda(events: EventBatch) -> RawFit:
    """Fit both lateral distributions of every event on the GPU; same steps and result as on the CPU."""
    import cupy

    here = events.stations
    n = len(events)
    muon_cells = cupy.flatnonzero(here.has_muon).astype(cupy.int32)
    raw = cupy.empty((n, N_NUMBERS), cupy.float32)
    planes = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    geometry = [here.x_m, here.y_m, here.electron_area_m2, muon_cells]
    geometry += [values[muon_cells] for values in (here.x_m, here.y_m, here.muon_area_m2)]
    arguments = [cupy.ascontiguousarray(array) for array in (*planes, *geometry)]
    blocks = (-(-n // WARPS),)
    _kernel(events.response, events.array)(blocks, (WARPS * LANES,), (*arguments, cupy.int32(n), raw))
    return RawFit.from_numbers(raw)
