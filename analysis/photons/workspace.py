"""The on/off model of a limit as a workspace of HistFactory in JSON, which pyhf fits and combines with others.

Four channels, a bin an energy: measured events above the threshold and in the sideband, simulated hadrons above it and
there. The signal's strength is ``photons``, those sent into the exposure. With the factors h of the sideband, r of the
simulated ratio and v of the simulated sideband, free in each bin, expectations are those of
:mod:`showerstack.analysis.photons.on_off`:

    n ~ Poisson(photons efficiency a + h r B),  m ~ Poisson(photons efficiency c + h M),  k ~ Poisson(r v K),
    l ~ Poisson(v l).

The errors that all bins share multiply the background (``transfer``) and the signal (``photon_efficiency``) by
log-normal factors (K. Cranmer et al., CERN-OPEN-2012-016; L. Heinrich et al., JOSS 6 (2021) 2823).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.analysis.photons.on_off import Common, OnOff

MEASURED = "photons"
"""Name of the measurement and of its parameter of interest."""
FAR = 50.0
"""Free factors and signals may be so many times larger than what was counted."""


def workspace(counts: OnOff, efficiency: float, common: Common) -> dict[str, Any]:
    """Return the model and the counts, as pyhf's schema 1.0.0 has them.

    Parameters
    ----------
    counts
        What was counted, by energy bin.
    efficiency
        Photons above the thresholds for one photon sent; above 0.
    common
        Relative errors that bins share.
    """
    # A factor times 0 stays 0: empty bins begin with one event.
    beside, above = np.maximum(counts.m, 1.0), np.maximum(counts.k, 1.0)
    signal = [_factor(MEASURED, "normfactor"), *_shared("photon_efficiency", common.efficiency)]
    hadrons = [_factor(name, "shapefactor") for name in ("sideband", "simulated_ratio")]
    hadrons += _shared("transfer", common.transfer)
    content: dict[str, tuple[np.ndarray, list[dict[str, Any]]]] = {
        "above_threshold": (
            counts.n,
            [
                _sample("photons", efficiency * counts.a, signal),
                _sample("hadrons", beside * counts.g * above / counts.l, hadrons),
            ],
        ),
        "sideband": (
            counts.m,
            [
                _sample("photons", efficiency * counts.c, signal),
                _sample("hadrons", beside, [_factor("sideband", "shapefactor")]),
            ],
        ),
        "simulation_above_threshold": (
            counts.k,
            [_sample("hadrons", above, [_factor(name, "shapefactor") for name in ("simulated_ratio", "simulated")])],
        ),
        "simulation_sideband": (counts.l, [_sample("hadrons", counts.l, [_factor("simulated", "shapefactor")])]),
    }
    bins = len(counts.n)
    bounds = {name: [[0.0, FAR]] * bins for name in ("sideband", "simulated_ratio", "simulated")}
    bounds[MEASURED] = [[0.0, FAR * float(counts.n.sum() + 1.0) / efficiency]]
    starts = {MEASURED: [1.0 / efficiency]}
    parameters = [{"name": name, "bounds": limits, "inits": starts.get(name, [1.0] * bins)}
                  for name, limits in bounds.items()]  # fmt: skip
    return {
        "channels": [{"name": name, "samples": samples} for name, (_, samples) in content.items()],
        "observations": [{"name": name, "data": counted.tolist()} for name, (counted, _) in content.items()],
        "measurements": [{"name": MEASURED, "config": {"poi": MEASURED, "parameters": parameters}}],
        "version": "1.0.0",
    }


def _sample(name: str, data: np.ndarray, modifiers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "data": data.tolist(), "modifiers": modifiers}


def _factor(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "data": None}


def _shared(name: str, error: float) -> list[dict[str, Any]]:
    if not error:
        return []
    return [{"name": name, "type": "normsys", "data": {"hi": float(np.exp(error)), "lo": float(np.exp(-error))}}]
