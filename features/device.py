"""Which array library computes, NumPy on the CPU or CuPy on a GPU, and how chunks of events get to its device.

Feature code is written once; special functions come from the library's own module
(:func:`showerstack.showers.lateral.special_functions`). On a CPU nothing is copied: cells stay as they are stored until
:func:`showerstack.features.lateral.events.make_events` makes planes of them. To a GPU they go as they are stored, from
page-locked memory and on a stream of their own, so that the next chunk is copied while the present one is computed;
the GPU decodes.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import is_numpy_namespace

from showerstack.runtime.errors import InputError
from showerstack.runtime.packages import how_to_install, lacking
from showerstack.runtime.processes import in_silent_process

LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from showerstack.showers.dataset import Chunk

CPU_CHUNK = 512
"""Events computed at once on a CPU: a plane of 512 x 256 float32 is half a megabyte and stays in the cache."""
GPU_CHUNK = 65_536
"""Events computed at once on a GPU: enough to fill it."""
LARGE_GPU_CHUNK, LARGE_GPU_BYTES = 262_144, 15 << 30
"""Events at once on a GPU with so much memory: a quarter of the launches an event, in some 5 GB."""
DEVICES = ("auto", "cpu", "cuda")


LEAST_CAPABILITY = 70
"""Ten times the compute capability that the kernels need: lanes that part meet again from Volta on."""
WHAT_CUPY_NEEDS = (
    "it needs driver 525 or newer and pip install 'showerstack[gpu]', for CUDA 13 driver 580 and 'showerstack[gpu13]'"
)


@cache
def gpu_answers() -> bool:
    """Return whether NVIDIA's driver is here and knows a device; no library is imported for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)) and count.value > 0


@cache
def cupy_obstacle() -> str | None:
    """Return why CuPy cannot compute features on a GPU here; None if it has compiled and run a line on one.

    The line runs in a process of its own: it covers driver, toolkit, architecture, memory and exclusive use.
    """
    if missing := lacking("cupy"):
        return f"CuPy is not installed: {how_to_install(missing)}"
    if not gpu_answers():
        return "CuPy is installed but no CUDA device answers: an NVIDIA GPU and its driver are needed"
    try:
        obstacle: str | None = in_silent_process(_try_cupy)
    except InputError as error:
        return f"CuPy could not be tried: {error}"
    return obstacle


def _try_cupy() -> str | None:
    """Return why CuPy cannot decode a cell on the GPU; None if it can."""
    try:
        import cupy

        capability = cupy.cuda.Device().compute_capability
        if int(capability) < LEAST_CAPABILITY:
            return f"the GPU's compute capability {capability} is below {LEAST_CAPABILITY}"
        decoded = float(cupy.ones(1, cupy.float16).astype(cupy.float32)[0])
        return None if decoded == 1.0 else f"CuPy decodes 1 as {decoded}"
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return f"CuPy cannot use the GPU: {why}; {WHAT_CUPY_NEEDS}"


def resolve_device(device: str) -> str:
    """Return ``"cpu"`` or ``"cuda"``.

    Parameters
    ----------
    device
        ``"auto"`` takes the GPU if one answers and CuPy can use it; where CuPy cannot, the log says why.
    """
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}: choose one of {', '.join(DEVICES)}")
    if device == "cpu":
        return device
    if device == "auto" and not gpu_answers():
        return "cpu"
    obstacle = cupy_obstacle()
    if obstacle is None:
        return "cuda"
    if device == "cuda":
        raise InputError(f"device 'cuda' was asked for, but {obstacle}; or use --device cpu")
    _say_once(f"features are computed on the CPU although a GPU answers: {obstacle}")
    return "cpu"


@cache
def _say_once(remark: str) -> None:
    LOG.warning("%s", remark)


def free_gpu_memory() -> None:
    """Give back the GPU memory that CuPy and torch keep in this process for later: no other library finds it."""
    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def namespace(device: str) -> ModuleType:
    """Return the array-API namespace of a resolved device."""
    return importlib.import_module(f"array_api_compat.{'cupy' if device == 'cuda' else 'numpy'}")


def chunk_size(device: str) -> int:
    """Return how many events to compute at once on a resolved device."""
    if device == "cpu":
        return CPU_CHUNK
    import cupy

    return LARGE_GPU_CHUNK if cupy.cuda.runtime.memGetInfo()[1] >= LARGE_GPU_BYTES else GPU_CHUNK


def to_host(array: Any) -> np.ndarray:
    """Return a NumPy array with the content of an array of any supported library."""
    if hasattr(array, "get"):
        return array.get()
    return np.asarray(array)


def columns_to_host(columns: dict[str, Any], xp: ModuleType) -> dict[str, np.ndarray]:
    """Return columns, (n,) each of one type, as NumPy arrays; from a GPU they come in one copy."""
    if not columns or is_numpy_namespace(xp):
        return {name: to_host(values) for name, values in columns.items()}
    return dict(zip(columns, to_host(xp.stack(list(columns.values()))), strict=True))


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
        float16, any shape, finite and not negative.
    """
    bits = (values.view(np.uint16) & np.uint16(0x7FFF)).astype(np.uint32)
    bits <<= np.uint32(13)
    decoded = bits.view(np.float32)
    decoded *= np.float32(2.0**112)
    return decoded


def on_device(chunks: Iterable[Chunk], device: str) -> Iterator[tuple[Chunk, Any]]:
    """Yield each chunk with its cells on the device, (n, rows, columns, 2): float32 on a GPU, as stored on a CPU."""
    if device == "cuda":
        import cupy

        yield from prefetched(chunks, cupy)
        return
    for chunk in chunks:
        yield chunk, np.asarray(chunk.matrices)


def prefetched(chunks: Iterable[Chunk], cupy: Any) -> Iterator[tuple[Chunk, Any]]:
    """Yield chunks with their cells on the GPU, always one chunk ahead; see :func:`on_device`."""
    stream = cupy.cuda.Stream(non_blocking=True)
    slots = [_Slot(cupy, stream), _Slot(cupy, stream)]
    waiting: tuple[Chunk, _Slot] | None = None
    for number, chunk in enumerate(chunks):
        slot = slots[number % 2]
        slot.send(chunk.matrices)
        if waiting is not None:
            yield waiting[0], waiting[1].decoded()
        waiting = (chunk, slot)
    if waiting is not None:
        yield waiting[0], waiting[1].decoded()


class _Slot:
    """A page-locked buffer and one on the device, used again and again, with the events that order their use.

    Both streams share the device's buffer, so neither may rely on what the memory pool knows of the other: the host
    waits until the last copy has left its buffer, the copy until the last content has been decoded.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream
        self.host_buffer: np.ndarray | None = None
        self.device_buffer: Any = None
        self.copied: Any = None
        self.read: Any = None
        self.content: Any = None

    def send(self, cells: np.ndarray) -> None:
        """Start the copy of (n, rows, columns, 2) float16 or float32 cells to the device."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.host_buffer is None or len(self.host_buffer) < len(cells) or self.host_buffer.dtype != cells.dtype:
            if self.read is not None:
                # The old buffer goes back to the pool here.
                self.read.synchronize()
            memory = self.cupy.cuda.alloc_pinned_memory(cells.nbytes)
            self.host_buffer = np.frombuffer(memory, cells.dtype, cells.size).reshape(cells.shape)
            with self.stream:
                self.device_buffer = self.cupy.empty(cells.shape, cells.dtype)
        staged = self.host_buffer[: len(cells)]
        staged[...] = cells
        if self.read is not None:
            self.stream.wait_event(self.read)
        self.content = self.device_buffer[: len(cells)]
        self.content.set(staged, stream=self.stream)
        self.copied = self.stream.record()

    def decoded(self) -> Any:
        """Return what was sent as float32, in the order of the computing stream; the host does not wait."""
        compute = self.cupy.cuda.get_current_stream()
        compute.wait_event(self.copied)
        cells = self.content.astype(self.cupy.float32)  # a copy: the buffer is used again
        self.read = compute.record()
        return cells
