"""The planes of one event in one record, in which compiled loops compute; for the reasons given in
:mod:`showerstack.features.lateral.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ELECTRON_PLANES = (
    "x", "y", "area_m2",  # the array's
    "signal", "floor", "area",  # the event's: particles; least residual that counts; projected area
    "kept", "background", "weight",  # frozen, see station.electron_frozen
    "expected", "by_x", "by_y", "g",  # signal expected, derivatives of its logarithm
    "residual", "info",
)  # fmt: skip
MUON_PLANES = (
    "m_x", "m_y", "m_area_m2",
    "m_signal", "m_floor", "m_area",
    "m_background", "m_weight", "m_g", "m_base",
    "m_expected", "m_residual", "m_info",
)  # fmt: skip
WORK = {"p": 4, "q": 2, "terms": 25, "tried": 25, "step": 4, "trial": 4, "factor": 16}
"""Numbers in float64: parameters, what :func:`electron_terms` fills at the accepted point and at the one tried,
the solution of the linear system."""
LINE = 64
CELLS_STEP, MUON_STEP = 256, 192
"""Planes are filled up to a multiple of these, KASCADE's numbers, with detectors of no area, which add nothing: sizes
are part of the machine code, which takes a quarter of a minute to compile, and most arrays then share KASCADE's."""


def in_one_record(fields: list[tuple[str, Any, tuple[int, ...]]]) -> np.ndarray:
    """Return one record, (1,), of fields (name, type, shape), at the beginning of a cache line, filled with 0."""
    kind = np.dtype(fields)
    raw = np.zeros(kind.itemsize + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + kind.itemsize].view(kind)


def filled_up(values: np.ndarray, step: int) -> np.ndarray:
    """Return (n,) values repeated up to a multiple of ``step``, at least one of it; of no values zeros."""
    return np.resize(values, max(-(-values.size // step), 1) * step)


def planes_of(
    x_m: np.ndarray, y_m: np.ndarray, electron_area_m2: np.ndarray, muon_area_m2: np.ndarray, muon_cells: np.ndarray
) -> Any:
    """Return a record with the planes of one event, at the beginning of a cache line, and the array's geometry in it.

    Parameters
    ----------
    x_m, y_m, electron_area_m2, muon_area_m2
        (cells,) float32.
    muon_cells
        Cells with a muon detector.
    """
    x, y, muons = filled_up(x_m, CELLS_STEP), filled_up(y_m, CELLS_STEP), filled_up(muon_cells, MUON_STEP)
    sizes = [(ELECTRON_PLANES, x.size), (MUON_PLANES, muons.size)]
    planes = [(name, np.float32, (size,)) for names, size in sizes for name in names]
    record = in_one_record([*planes, *((name, np.float64, (size,)) for name, size in WORK.items())])
    record["x"], record["y"], record["floor"] = x, y, -np.inf
    record["area_m2"][0, : x_m.size] = electron_area_m2
    record["m_x"], record["m_y"] = x_m[muons], y_m[muons]
    record["m_area_m2"][0, : muon_cells.size] = muon_area_m2[muon_cells]
    return record
