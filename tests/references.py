"""Numbers the code gave when somebody last looked at them, kept as tables beside the tests.

They say that a number has changed, not that it was right: that is what tests with known truth are for. A change that
means to change numbers renews the tables with ``pytest --force-regen FILE``, and its commit says why they moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd

WHOLE = 12
"""Arrays of at most so many values are kept whole, longer ones by :func:`summary`."""


def summary(values: np.ndarray) -> dict[str, float]:
    """Return mean, root mean square and a mean that depends on the order of the finite values, and how many are not."""
    flat = np.asarray(values, np.float64).ravel()
    finite = np.isfinite(flat)
    if not finite.any():
        return {"not finite": float(len(flat))}
    kept, place = flat[finite], np.flatnonzero(finite)
    result = {"mean": kept.mean(), "rms": np.sqrt((kept**2).mean()), "ordered": (kept * (1 + np.cos(place))).mean()}
    # Sums that cancel leave the rounding of their terms.
    result = {name: 0.0 if abs(value) < 1e-12 * result["rms"] else value for name, value in result.items()}
    return result | ({} if finite.all() else {"not finite": float((~finite).sum())})


def numbers(result: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in mappings, sequences, dataclasses and arrays with a name that says where it stands.

    Version numbers are left out: raising one changes no other number.
    """
    if is_dataclass(result) and not isinstance(result, type):
        result = {field.name: getattr(result, field.name) for field in fields(result)}
    if isinstance(result, Mapping):
        parts: Any = result.items()
    elif isinstance(result, np.ndarray) and result.dtype.kind in "fiub" and result.size > WHOLE:
        parts = summary(result).items()
    elif isinstance(result, np.ndarray | Sequence) and not isinstance(result, str):
        parts = enumerate(result)
    else:
        if isinstance(result, float | int | np.number | np.bool_):
            yield name, float(result)
        return
    for key, value in parts:
        if str(key).endswith("_version"):
            continue
        yield from numbers(value, f"{name} {key}".strip())


def condensed(result: Any) -> np.ndarray:
    """Return all numbers of a result in one array, for results whose parts are too many to be kept one by one."""
    return np.array([value for _, value in numbers(result)])


def table(result: Any) -> pd.DataFrame:
    """Return the numbers of a result by name, to nine digits."""
    rows = [(name, float(f"{value:.9g}")) for name, value in numbers(result)]
    return pd.DataFrame(rows, columns=["number", "value"])
