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

from showerstack.analysis.histfactory import document, factor, sample, shared
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
    signal = [factor(MEASURED, "normfactor"), *shared("photon_efficiency", common.efficiency)]
    hadrons = [factor(name, "shapefactor") for name in ("sideband", "simulated_ratio")]
    hadrons += shared("transfer", common.transfer)
    content: dict[str, tuple[np.ndarray, list[dict[str, Any]]]] = {
        "above_threshold": (
            counts.n,
            [
                sample("photons", efficiency * counts.a, signal),
                sample("hadrons", beside * counts.g * above / counts.l, hadrons),
            ],
        ),
        "sideband": (
            counts.m,
            [
                sample("photons", efficiency * counts.c, signal),
                sample("hadrons", beside, [factor("sideband", "shapefactor")]),
            ],
        ),
        "simulation_above_threshold": (
            counts.k,
            [sample("hadrons", above, [factor(name, "shapefactor") for name in ("simulated_ratio", "simulated")])],
        ),
        "simulation_sideband": (counts.l, [sample("hadrons", counts.l, [factor("simulated", "shapefactor")])]),
    }
    bins = len(counts.n)
    bounds = {name: [[0.0, FAR]] * bins for name in ("sideband", "simulated_ratio", "simulated")}
    bounds[MEASURED] = [[0.0, FAR * float(counts.n.sum() + 1.0) / efficiency]]
    starts = {MEASURED: [1.0 / efficiency]}
    parameters = [{"name": name, "bounds": limits, "inits": starts.get(name, [1.0] * bins)}
                  for name, limits in bounds.items()]  # fmt: skip
    return document(content, MEASURED, MEASURED, parameters)
