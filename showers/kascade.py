"""The KASCADE array.

Positions and areas as published (T. Antoni et al., Nucl. Instrum. Meth. A 513 (2003) 490): a 16 x 16 grid of 13 m pitch
whose four central positions have no station; the 60 inner stations have four e/gamma detectors and no muon detector,
the 192 outer ones two e/gamma detectors above a muon detector; 4 x 4 stations trigger together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from showers.array import DetectorArray, lattice, square_clusters


def _kascade() -> DetectorArray:
    x_m, y_m = lattice(16, 13.0)
    from_centre = np.maximum(np.abs(x_m), np.abs(y_m))
    station, inner = from_centre > 13.0, from_centre < 4 * 13.0
    return DetectorArray(
        name="KASCADE",
        pitch_m=13.0,
        x_m=x_m,
        y_m=y_m,
        electron_area_m2=np.where(station, np.where(inner, 3.14, 1.57), 0.0),
        muon_area_m2=np.where(station & ~inner, 3.24, 0.0),
        cluster=square_clusters(16, 4),
    )


KASCADE = _kascade()
"""252 stations, 192 of them with a muon detector."""
RAW_SHAPE = (*KASCADE.grid_shape[:2], 3)
"""Cells of one event in the raw archives: row, column; arrival time (ns), e/gamma and muon deposit (MeV)."""


def array_of(source: Mapping[str, Any]) -> DetectorArray:
    """Return the array that a dataset's ``source.json`` describes; KASCADE where it does not say.

    Raises
    ------
    InputError
        If the description is damaged.
    """
    return DetectorArray.from_json(source["array"]) if "array" in source else KASCADE
