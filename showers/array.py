"""Geometry of the detector array: where the 252 stations stand and what each of them carries.

Positions and areas as published for KASCADE (T. Antoni et al., Nucl. Instrum. Meth. A 513 (2003) 490):
a 16 x 16 grid of 13 m pitch whose four central positions have no station; the 60 inner stations have four
e/gamma detectors and no muon detector, the 192 outer ones two e/gamma detectors above a muon detector.
"""

from __future__ import annotations

import numpy as np

PITCH_M = 13.0
SIDE = 16
N_STATIONS = 252
N_INNER = 60
N_OUTER = 192

INNER_ELECTRON_AREA_M2 = 3.14
OUTER_ELECTRON_AREA_M2 = 1.57
MUON_AREA_M2 = 3.24

_index = np.arange(SIDE, dtype=np.float64)

X_M: np.ndarray = np.broadcast_to((_index[None, :] - 7.5) * PITCH_M, (SIDE, SIDE)).copy()
"""(16, 16) float64, metres: x of the cell in row i, column j is (j - 7.5) * 13."""
Y_M: np.ndarray = X_M.T.copy()
"""(16, 16) float64, metres: y of the cell in row i, column j is (i - 7.5) * 13."""

_centre = (_index >= 7) & (_index <= 8)
_inside = (_index >= 4) & (_index <= 11)

HAS_STATION: np.ndarray = ~(_centre[:, None] & _centre[None, :])
"""(16, 16) bool: false for the four central cells."""
INNER: np.ndarray = (_inside[:, None] & _inside[None, :]) & HAS_STATION
"""(16, 16) bool: the 60 stations without a muon detector."""
OUTER: np.ndarray = HAS_STATION & ~INNER
"""(16, 16) bool: the 192 stations with a muon detector."""

ELECTRON_AREA_M2: np.ndarray = np.where(INNER, INNER_ELECTRON_AREA_M2, np.where(OUTER, OUTER_ELECTRON_AREA_M2, 0.0))
"""(16, 16) float64, m2: sensitive e/gamma area per cell, 0 where there is no station."""
MUON_DETECTOR_AREA_M2: np.ndarray = np.where(OUTER, MUON_AREA_M2, 0.0)
"""(16, 16) float64, m2: sensitive muon area per cell, 0 for inner stations and the centre."""

CLUSTER: np.ndarray = ((np.arange(SIDE) // 4)[:, None] * 4 + (np.arange(SIDE) // 4)[None, :]).astype(np.int64)
"""(16, 16) int64: number 0..15 of the 4 x 4 cluster of stations a cell belongs to (trigger unit)."""

for _array in (X_M, Y_M, HAS_STATION, INNER, OUTER, ELECTRON_AREA_M2, MUON_DETECTOR_AREA_M2, CLUSTER):
    _array.setflags(write=False)
