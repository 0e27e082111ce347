"""One version of everything that feature values depend on, for finished tables; kernels see :mod:`showers.kernels`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from showers.source_hash import source_hash

LIBRARIES = ("array-api-compat", "cupy-cuda12x", "llvmlite", "numba", "numpy", "scipy")
"""Libraries whose version can change a feature's last digits."""


@cache
def kernel_version() -> str:
    """Return the hash of the sources and libraries that the compiled kernels are made of."""
    here = Path(__file__).parent
    showers = here.parent / "showers"
    return source_hash([here / "lateral", here / "stations", here / "bounds.py", showers / "lateral.py"], LIBRARIES)


@cache
def code_version() -> str:
    """Return the hash of the sources (without docstrings and comments) and libraries that feature values depend on."""
    here = Path(__file__).parent
    showers = here.parent / "showers"
    return source_hash([here, showers / "array.py", showers / "kascade.py", showers / "lateral.py"], LIBRARIES)
