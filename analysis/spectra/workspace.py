"""The likelihood of spectra without an assumed form as a workspace of HistFactory, which pyhf fits and combines.

There is a sample for each group and bin of the true energy; its free factor is the number of particles, in thousands,
that were sent into the exposure there: ``1000 factor / (exposure_m2_sr_s (E_high - E_low))`` is the flux. Two channels,
a bin a cell: measured counts n, and the simulated events tau that each expectation is worth, both multiplied by one
free factor (Barlow and Beeston). Samples below and above all bins have the factor of the bin beside them, +- 30 %. The
scales of muon and electron number move samples (``histosys``: as the analysis moves them at -1, 0 and 1 width, and sums
of both moves between); the energy scale and the exposure are factors of each sample. What the noise of simulated cells
pretends, which the analysis takes off its results, and what hadronic models differ by are not in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.analysis.histfactory import document, factor, moved, sample, shared
from showerstack.analysis.spectra.fluxes import MARGIN_WIDTH, folded, wide_bins
from showerstack.analysis.spectra.folding import SCALES
from showerstack.analysis.spectra.likelihood import LEAST_HEIGHT, FoldedFit

THOUSAND = 1000.0
FAR = 50.0
"""Factors may be so many times larger than those of the fit with an assumed form."""


def spectra_workspace(fit: FoldedFit, edges: np.ndarray, exposure_error: float) -> dict[str, Any]:
    """Return the model and the counts, as pyhf's schema 1.0.0 has them.

    Parameters
    ----------
    fit
        A fit, whose response and tau are taken.
    edges
        (J + 1,) lg(E/eV), a subset of the borders of the fine bins.
    exposure_error
        Relative.
    """
    likelihood, layout = fit.likelihood, fit.likelihood.layout
    inside = wide_bins(likelihood.lg_energy, edges)
    heights = np.maximum(fit.parameters[layout.heights], LEAST_HEIGHT)
    phi = likelihood.particles(fit.parameters, heights, energy=0.0)
    parts = folded(phi, inside, likelihood.probability)
    sent = (phi @ inside.T).T
    slope = np.einsum("kt,jt->jk", phi * likelihood.energy_slope(fit.parameters, 0.0), inside) / np.maximum(
        sent, 1e-300
    )
    used, last = np.flatnonzero(likelihood.simulated), len(edges)

    def at(scale: int, x: float) -> np.ndarray:
        """Return what all samples (J', K, C) become where one scale is x and the others 0."""
        scales = np.zeros(len(SCALES))
        scales[scale] = x
        return likelihood.moves.factors(scales - likelihood.response.at)[0] * parts

    nominal = at(0, 0.0)
    turned = {j: (at(j, -1.0), at(j, 1.0)) for j in likelihood.response.moving}
    samples, parameters = [], []
    for j in range(len(inside)):
        beside = min(max(j, 1), last - 1)
        for k, group in enumerate(layout.groups.names):
            name = f"{group}_{edges[beside - 1]:g}-{edges[beside]:g}"
            per = sent[beside, k] / THOUSAND
            data = nominal[j, k, used] / per
            changes = [factor(name, "normfactor"), *shared("exposure", exposure_error)]
            changes += [
                moved(f"{SCALES[scale]}_scale", low[j, k, used] / per, high[j, k, used] / per)
                for scale, (low, high) in turned.items()
            ]
            if likelihood.response.energy_width:
                changes += shared("energy_scale", float(slope[j, k]))
            if j == beside:
                parameters.append({"name": name, "bounds": [[0.0, FAR * per]], "inits": [per]})
                samples.append(sample(name, data, changes))
            else:
                margin = "below" if j < beside else "above"
                bounds = (1 - MARGIN_WIDTH) * data, (1 + MARGIN_WIDTH) * data
                samples.append(sample(f"{group}_{margin}", data, [*changes, moved(f"{group}_{margin}", *bounds)]))
    finite = factor("finite_simulation", "shapefactor")
    for one in samples:
        one["modifiers"].append(finite)
    tau = likelihood.tau[used]
    parameters.append({"name": "finite_simulation", "bounds": [[0.0, FAR]] * len(used), "inits": [1.0] * len(used)})
    content = {
        "measured": (likelihood.counts[used], samples),
        "simulated": (tau, [sample("events", tau, [finite])]),
    }
    return document(content, "spectra", "", parameters)
