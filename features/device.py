"""Which array library computes: NumPy on the CPU, CuPy on a GPU; the feature code itself is written once.

Special functions come from the library's own module (:func:`showers.lateral.special_functions`).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from showers.schema import InputError

CPU_CHUNK = 512
"""Events computed at once on a CPU: a plane of 512 x 256 float32 is half a megabyte and stays in the cache."""
GPU_CHUNK = 65_536
"""Events computed at once on a GPU: enough to fill it."""
DEVICES = ("auto", "cpu", "cuda")


def _find_gpu() -> str | None:
    """Return None if CuPy finds a GPU, otherwise the reason why not."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): install the extra 'gpu', pip install 'showerstack[gpu]'"
    if not cupy.is_available():
        return "CuPy is installed but no CUDA device answers: an NVIDIA GPU and its driver are needed"
    return None


def resolve_device(device: str) -> str:
    """Return ``"cpu"`` or ``"cuda"``.

    Parameters
    ----------
    device
        ``"auto"`` takes the GPU if one answers.

    Raises
    ------
    InputError
        For an unknown name, or for ``"cuda"`` where no GPU can be used; says what was found and what to install.
    """
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}: choose one of {', '.join(DEVICES)}")
    if device == "cpu":
        return device
    obstacle = _find_gpu()
    if obstacle is None:
        return "cuda"
    if device == "cuda":
        raise InputError(f"device 'cuda' was asked for, but {obstacle}; or use --device cpu")
    return "cpu"


def namespace(device: str) -> ModuleType:
    """Return the array-API namespace of a resolved device."""
    return importlib.import_module(f"array_api_compat.{'cupy' if device == 'cuda' else 'numpy'}")


def chunk_size(device: str) -> int:
    """Return how many events to compute at once on a resolved device."""
    return GPU_CHUNK if device == "cuda" else CPU_CHUNK


def to_host(array: Any) -> np.ndarray:
    """Return a NumPy array with the content of an array of any supported library."""
    if hasattr(array, "get"):
        return array.get()
    return np.asarray(array)


def decoded(cells: np.ndarray) -> np.ndarray:
    """Return float16 or float32 cells, as a dataset stores them, as contiguous float32."""
    cells = np.ascontiguousarray(cells)
    return decode_float16(cells) if cells.dtype == np.float16 else cells


def decode_float16(values: np.ndarray) -> np.ndarray:
    """Return float16 cells as float32, exactly, for non-negative finite values.

    Shifting the 16 bits up by 13 puts exponent and mantissa where float32 has them; multiplying by 2^112 corrects
    the exponent's offset, for subnormal numbers too. Twice as fast as NumPy's ``astype``. A negative zero
    becomes a tiny number's bits, so the sign bit is masked.

    Parameters
    ----------
    values
        float16, any shape, as :func:`showers.datasets.dataset.check_cells` lets through.
    """
    bits = (values.view(np.uint16) & np.uint16(0x7FFF)).astype(np.uint32)
    bits <<= np.uint32(13)
    decoded = bits.view(np.float32)
    decoded *= np.float32(2.0**112)
    return decoded
