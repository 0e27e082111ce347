"""The fused lateral fit on a GPU: constants as C++ text in front of ``lateral_fit.cu``, compiled when first needed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from features import station_model
from features.bounds import LG_E
from features.detector import Response
from features.events import Events, stations
from features.lateral_fit import RawFit
from features.recipe import RECIPE

WARPS = 4
"""Events per block: 46 kB of shared memory, below the 48 kB that every device has."""
LANES = 32
OPTIONS = ("--std=c++14",)


def kernel_source(response: Response) -> str:
    """Return the kernel's text with its constants."""
    model = {
        "soft_m": station_model.SOFT_M,
        "electron_g_ref": station_model.ELECTRON_G_REF,
        "muon_g_ref": station_model.MUON_G_REF,
        "muon_level_to_ln_n": station_model.MUON_LEVEL_TO_LN_N,
        "muon_shape_size_ref": station_model.MUON_SHAPE_SIZE_REF,
        "muon_shape_sec_ref": station_model.MUON_SHAPE_SEC_REF,
        "muon_shape_low": station_model.MUON_SHAPE_RANGE[0],
        "muon_shape_high": station_model.MUON_SHAPE_RANGE[1],
        "lg_e": LG_E,
    }
    spaces = {"response": response._asdict(), "recipe": RECIPE._asdict(), "model": model}
    head = []
    for space, values in spaces.items():
        constants = [f"constexpr float {name} = {value:.9e}f;" for name, value in values.items()]
        head.append(f"namespace {space} {{ {' '.join(constants)} }}")
    body = Path(__file__).with_name("lateral_fit.cu").read_text(encoding="utf-8")
    return "\n".join([*head, f"#define WARPS {WARPS}", body])


@lru_cache(maxsize=4)
def _kernel(response: Response) -> Any:
    import cupy

    return cupy.RawKernel(kernel_source(response), "fit_events", options=OPTIONS)


def fit_cuda(events: Events) -> RawFit:
    """Fit both lateral distributions of every event on the GPU; same result as the reference."""
    import cupy

    here = stations(events.xp)
    n = len(events)
    muon_cells = cupy.flatnonzero(here.has_muon).astype(cupy.int32)
    raw = cupy.empty((n, RawFit.N_COLUMNS), cupy.float32)
    planes = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    geometry = [here.x_m, here.y_m, here.electron_area_m2, muon_cells]
    geometry += [values[muon_cells] for values in (here.x_m, here.y_m, here.muon_area_m2)]
    arguments = [cupy.ascontiguousarray(array) for array in (*planes, *geometry)]
    blocks = (-(-n // WARPS),)
    _kernel(events.response)(blocks, (WARPS * LANES,), (*arguments, cupy.int32(n), raw))
    return RawFit.from_columns([raw[:, k] for k in range(RawFit.N_COLUMNS)])
