"""CUDA kernels: their text, assembled from constants, station model and body, and their launch.

One warp works on one event, with its planes in shared memory (``warp.cu``). CuPy compiles a kernel when it is first
needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from showerstack.features.lateral.translate import in_c
from showerstack.runtime.errors import InputError
from showerstack.showers.array import DetectorArray
from showerstack.showers.response import StationResponse

WARPS = 4
"""Events per block, at most: at KASCADE the fit then has 46 kB of shared memory."""
SHARED_BYTES = 48 * 1024
"""Shared memory of a block that every device has."""
LANES = 32
OPTIONS = ("--std=c++17",)


def space_in_c(name: str, values: Mapping[str, float]) -> str:
    """Return a namespace of constants in C++."""
    return f"namespace {name} {{ {' '.join(f'constexpr float {key} = {x:.9e}f;' for key, x in values.items())} }}"


def list_in_c(name: str, values: Sequence[float]) -> str:
    """Return a function in C++ for the k-th value, and their number as ``N_`` and its name in capitals."""
    numbers = ", ".join(f"{value:.9e}f" for value in values)
    function = f"ON_DEVICE float {name}(int k) {{ const float values[] = {{{numbers}}}; return values[k]; }}"
    return f"const int N_{name.upper()} = {len(values)};\n{function}"


def struct_in_c(name: str, sizes: Mapping[str, int]) -> str:
    """Return a record of float32 in C; ``sizes``: numbers in each field."""
    members = " ".join(f"float {field}[{size}];" if size > 1 else f"float {field};" for field, size in sizes.items())
    return f"struct {name} {{ {members} }};"


class Kernels(NamedTuple):
    """The source of kernels."""

    text: str
    warps: int
    """Events per block."""


def assemble(body: Path, response: StationResponse, array: DetectorArray, planes: int, *declarations: str) -> Kernels:
    """Return kernels: constants, the array's numbers of cells and muon detectors, the model, declarations, the body.

    Parameters
    ----------
    body
        File with the kernels.
    planes
        Float32 in shared memory for one event.
    declarations
        Constants, records and functions that the body needs beside the model.
    """
    warps = min(WARPS, SHARED_BYTES // (4 * planes))
    if not warps:
        raise InputError(f"array {array.name}: {array.n_cells} cells are more than a GPU holds: use --device cpu")
    numbers = f"const int N_E = {array.n_cells}, N_M = {array.n_muon_detectors};"
    preamble = Path(__file__).with_name("warp.cu").read_text(encoding="utf-8")
    head = [f"#define WARPS {warps}", preamble, numbers, space_in_c("response", response._asdict()), in_c()]
    return Kernels("\n".join([*head, *declarations, body.read_text(encoding="utf-8")]), warps)


def launch(kernels: Kernels, name: str, n_events: int, arguments: Sequence[Any]) -> None:
    """Launch one of the kernels for so many events; ``arguments``: contiguous arrays and integers, in its order."""
    if n_events:
        blocks = -(-n_events // kernels.warps)
        as_passed = [np.int32(value) if isinstance(value, int) else value for value in arguments]
        _compiled(kernels.text, name)((blocks,), (kernels.warps * LANES,), tuple(as_passed))


@lru_cache(maxsize=16)
def _compiled(text: str, name: str) -> Any:
    import cupy

    return cupy.RawKernel(text, name, options=OPTIONS)
