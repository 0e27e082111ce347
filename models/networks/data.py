"""Events as tensors, in memory or read ahead by a thread, and their symmetries: more showers from the same ones.

Inputs and labels stay in memory, grids too where they fit. Mirroring or turning the whole array by 90 degrees gives
another shower that could have been recorded as well, provided that every direction turns along: the azimuth, the core,
any other vector among the inputs. Small shifts of the sizes are drawn as well.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from showerstack.models.base.spec import READ_AHEAD, RESIDENT_BYTES, RESIDENT_SHARE
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.event_files import release_memory

READ_AT_ONCE = 1 << 14
"""Grids read between two releases of the memory map: few events from all over a file bring most of it into memory."""


class GridSource:
    """The grids of some events, by position in the batch they belong to.

    Parameters
    ----------
    grids
        (N, rows, columns, 2) float16 or float32 memory map of the whole dataset.
    index
        (n,) int64 rows of these events.
    device
        Where batches shall end up.
    resident
        Whether to hold the n grids in (device) memory; None decides by size.
    """

    def __init__(
        self, grids: np.ndarray, index: np.ndarray, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.grids, self.index, self.device = grids, np.asarray(index, dtype=np.int64), device
        size = len(index) * int(np.prod(grids.shape[1:])) * grids.dtype.itemsize
        if resident is None:
            resident = size <= _resident_limit(device)
        self.resident: torch.Tensor | None = None
        if resident:
            self.resident = torch.from_numpy(_read_grids(grids, self.index)).to(device)

    def fetch(self, positions: np.ndarray) -> torch.Tensor:
        """Return (len(positions), rows, columns, 2) on the device, of the type that is stored."""
        if self.resident is not None:
            return self.resident[torch.from_numpy(positions).to(self.device)]
        grids = torch.from_numpy(_read_grids(self.grids, self.index[positions]))
        if self.device.type == "cuda":
            return grids.pin_memory().to(self.device, non_blocking=True)
        return grids

    def stream(self, orders: Iterable[np.ndarray], rows: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the grids of each group of positions, read ahead by a background thread unless they are resident.

        ``rows`` are the same positions on the device.
        """
        if self.resident is not None:
            for positions in rows:
                yield self.resident[positions]
        else:
            yield from read_ahead(self.fetch(positions) for positions in orders)


@dataclass
class EventTensors:
    """Events ready for a network."""

    inputs: torch.Tensor
    """(n, S) float32 on the device."""
    grids: GridSource | None
    labels: torch.Tensor | None = None
    """(n,) int64, or (n, C) float32 probabilities, on the device."""
    weights: torch.Tensor | None = None
    """(n,) float32 on the device."""
    targets: torch.Tensor | None = None
    """(n, T) float32 standardised true quantities on the device, NaN where unknown."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def in_memory(self) -> bool:
        """Whether any event is at hand as fast as any other."""
        return self.grids is None or self.grids.resident is not None

    def batches(self, orders: list[np.ndarray]) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield (positions, grids) of each group of positions; all positions go to the device at once."""
        positions = torch.from_numpy(np.concatenate(orders)).to(self.inputs.device).split([len(one) for one in orders])
        if self.grids is None:
            for rows in positions:
                yield rows, None
        else:
            yield from zip(positions, self.grids.stream(orders, positions), strict=True)


def read_ahead(items: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the items in order, produced by a thread at most :data:`READ_AHEAD` ahead; its errors are raised here."""
    ready: queue.Queue[tuple[torch.Tensor | None, BaseException | None]] = queue.Queue(maxsize=READ_AHEAD)
    stop = threading.Event()

    def offer(item: torch.Tensor | None, error: BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not offer(item, None):
                    return
            offer(None, None)
        except BaseException as error:
            offer(None, error)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        thread.join()


def _read_grids(grids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # In ascending order the memory map is read forwards; a copy, since torch wants writable memory.
    order = np.argsort(rows, kind="stable")
    grids_read = np.empty((len(rows), *grids.shape[1:]), dtype=grids.dtype)
    for start in range(0, len(rows), READ_AT_ONCE):
        part = order[start : start + READ_AT_ONCE]
        grids_read[part] = grids[rows[part]]
        if len(rows) > READ_AT_ONCE:
            release_memory(grids)
    return grids_read


def _resident_limit(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * RESIDENT_SHARE)
    return RESIDENT_BYTES


SYMMETRIES: np.ndarray = np.array(
    [[[a, 0], [0, b]] for a in (1, -1) for b in (1, -1)] + [[[0, a], [b, 0]] for a in (1, -1) for b in (1, -1)],
    dtype=np.float64,
)
"""(8, 2, 2): matrices M of the square's symmetries; a shower at ``(x, y)`` moves to ``M (x, y)``. First: identity."""


@lru_cache(maxsize=8)
def cell_sources(array: DetectorArray) -> np.ndarray:
    """Return (8, cells) int64: the flat cell from which each cell of the moved grid takes its content."""
    from scipy.spatial import KDTree

    positions = np.stack([array.x_m.ravel(), array.y_m.ravel()])
    sources = np.empty((len(SYMMETRIES), array.n_cells), dtype=np.int64)
    for k, matrix in enumerate(SYMMETRIES):
        moved = matrix.T @ positions  # the inverse of an orthogonal matrix
        distance, sources[k] = KDTree(positions.T).query(moved.T)
        same = all(
            np.array_equal(area.ravel()[sources[k]], area.ravel())
            for area in (array.electron_area_m2, array.muon_area_m2)
        )
        if distance.max() > 0.01 * array.pitch_m or not same:
            raise InputError(f"array {array.name} is not symmetric like a square: train with augment=false")
    return sources


@lru_cache(maxsize=8)
def _cell_sources_on(device: torch.device, array: DetectorArray) -> torch.Tensor:
    """Return :func:`cell_sources` on a device, where they stay: for a copy in each step the host would wait."""
    return torch.from_numpy(cell_sources(array)).to(device)


@lru_cache(maxsize=8)
def _symmetries_on(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return :data:`SYMMETRIES` on a device, where they stay."""
    return torch.from_numpy(SYMMETRIES).to(device, dtype)


def move_grids(grids: torch.Tensor, symmetry: torch.Tensor, array: DetectorArray = KASCADE) -> torch.Tensor:
    """Return grids (n, rows, columns, 2), each moved by its own of :data:`SYMMETRIES`; (n,) int64."""
    sources = _cell_sources_on(grids.device, array)[symmetry]
    flat = grids.reshape(len(grids), array.n_cells, -1)
    rows = torch.arange(len(grids), device=grids.device)[:, None]
    return flat[rows, sources].reshape(grids.shape)


def move_vectors(inputs: torch.Tensor, pairs: tuple[tuple[int, int], ...], symmetry: torch.Tensor) -> torch.Tensor:
    """Return inputs (n, S) float32 whose vectors moved along, each event by its own symmetry.

    ``pairs`` are the positions of the vectors' x and y among the inputs; both must be scaled alike, without shift.
    """
    if not pairs:
        return inputs
    moved = inputs.clone()
    matrices = _symmetries_on(inputs.device, inputs.dtype)[symmetry]
    for x, y in pairs:
        turned = torch.einsum("nij,nj->ni", matrices, torch.stack([inputs[:, x], inputs[:, y]], dim=1))
        moved[:, x], moved[:, y] = turned[:, 0], turned[:, 1]
    return moved


def jitter_sizes(
    inputs: torch.Tensor, columns: tuple[int, ...], scales: tuple[float, ...], generator: torch.Generator
) -> torch.Tensor:
    """Return inputs (n, S) with one common random shift per event added to all sizes, as if their scale were uncertain.

    ``columns`` are the positions of the sizes among the inputs, ``scales`` the shift's standard deviation in the units
    of each; the generator is on the inputs' device.
    """
    if not columns:
        return inputs
    moved = inputs.clone()
    shift = torch.randn(len(inputs), generator=generator, device=inputs.device)
    for column, scale in zip(columns, scales, strict=True):
        moved[:, column] += scale * shift
    return moved
