"""Parts of a statistical model as HistFactory writes them in JSON, schema 1.0.0, which pyhf reads.

A channel's expected counts are the sum of its samples' ``data``, each changed by its modifiers (K. Cranmer et al.,
CERN-OPEN-2012-016; L. Heinrich et al., JOSS 6 (2021) 2823).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def document(
    content: dict[str, tuple[np.ndarray, list[dict[str, Any]]]],
    name: str,
    interest: str,
    parameters: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a workspace of one measurement.

    Parameters
    ----------
    content
        Of each channel, what was counted (C,) and its samples.
    interest
        The parameter of interest; empty: none.
    parameters
        Bounds and starts of parameters.
    """
    return {
        "channels": [{"name": channel, "samples": samples} for channel, (_, samples) in content.items()],
        "observations": [{"name": channel, "data": counted.tolist()} for channel, (counted, _) in content.items()],
        "measurements": [{"name": name, "config": {"poi": interest, "parameters": parameters}}],
        "version": "1.0.0",
    }


def sample(name: str, data: np.ndarray, modifiers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what one source is expected to give in a channel's bins."""
    return {"name": name, "data": data.tolist(), "modifiers": modifiers}


def factor(name: str, kind: str) -> dict[str, Any]:
    """Return a free factor: ``normfactor``, one for all bins, or ``shapefactor``, one for each."""
    return {"name": name, "type": kind, "data": None}


def shared(name: str, error: float) -> list[dict[str, Any]]:
    """Return a factor common to all bins, known with a relative error; nothing where that is 0."""
    if not error:
        return []
    return [{"name": name, "type": "normsys", "data": {"hi": float(np.exp(error)), "lo": float(np.exp(-error))}}]


def moved(name: str, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Return what a sample's ``data`` become where a parameter, expected at 0, is -1 and 1."""
    return {"name": name, "type": "histosys", "data": {"lo_data": low.tolist(), "hi_data": high.tolist()}}
