"""One version of everything that feature values depend on; compiled kernels: :mod:`showers.execution.kernels`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from showers.execution.source_hash import source_hash

LIBRARIES = ("array-api-compat", "cupy-cuda12x", "llvmlite", "numba", "numpy", "scipy")
"""Libraries whose version can change a feature's last digits."""


@cache
def feature_code_version() -> str:
    """Return the hash of the sources (without docstrings and comments) and libraries that feature values depend on."""
    here = Path(__file__).parent
    showers = here.parent / "showers"
    return source_hash([here, showers / "array.py", showers / "kascade.py", showers / "lateral.py"], LIBRARIES)
