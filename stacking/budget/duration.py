"""Lengths of time as people write them."""

from __future__ import annotations

import re

from showers.schema import InputError

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WHOLE = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(text: str) -> float:
    """Return the seconds in ``4h``, ``30m``, ``90s``, ``1h30m``, ``1d12h``.

    >>> seconds_of("1h30m")
    5400.0

    Raises
    ------
    InputError
        If it is not a length of time, or none at all.
    """
    found = _WHOLE.fullmatch(text.strip().lower())
    total = sum(float(n) * unit for n, unit in zip(found.groups(), _SECONDS.values(), strict=True) if n) if found else 0
    if not total:
        raise InputError(f"time limit {text!r}: write it like 4h, 30m, 90s or 1h30m")
    return total


def in_words(seconds: float) -> str:
    """Return a length of time to two figures or so.

    >>> in_words(9000)
    '2.5 h'
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36000 else f"{seconds / 3600:.0f} h"
