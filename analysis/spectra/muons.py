"""The muon scale z: where the measured muon number lies between a model's protons and its iron, by energy.

z = (<ln Nmu> - <ln Nmu>_p) / (<ln Nmu>_Fe - <ln Nmu>_p) is 0 for protons and 1 for iron; above 1 the model makes too
few muons (H. P. Dembinski et al., EPJ Web Conf. 210 (2019) 02004). All means are of events that pass the same cuts, in
bins of the reconstructed energy, in which cuts and migration leave other shares than in bins of the true one. So what a
composition makes of z is the mean of all simulated showers, weighted with its fluxes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.spectra.response import Simulated, SpectrumEvents

LEAST_EVENTS = 20
"""Of each of the three kinds in a bin."""
ENDS = ("proton", "iron")
ALL_MODELS = -1


def _mean(values: np.ndarray, weights: np.ndarray, showers: np.ndarray | None = None) -> tuple[float, float]:
    """Return a weighted mean and the square of its standard error; events of one of the ``showers`` go together."""
    mean = float(np.average(values, weights=weights))
    away = np.asarray(weights * (values - mean), dtype=np.float64)
    together = away if showers is None else np.bincount(np.unique(showers, return_inverse=True)[1], away)
    return mean, float(np.sum(together**2) / weights.sum() ** 2)


def muon_scales(
    data: SpectrumEvents, simulated: Simulated, weights: np.ndarray, edges: np.ndarray
) -> pl.DataFrame | None:
    """Return z by bin of energy and hadronic model, -1 all together; None without protons and iron.

    The error is that of the numbers of events and of simulated showers, however often these are used; those of the
    energy scale and of the muon number's scale come on top.

    Parameters
    ----------
    weights
        (N,) particles of a composition that each simulated shower stands for.
    edges
        (J + 1,) of the reconstructed lg(E/eV).
    """
    if not set(ENDS) <= set(simulated.groups.names):
        return None
    ends = [simulated.labels == simulated.groups.names.index(name) for name in ENDS]
    models = np.full(len(simulated), ALL_MODELS) if simulated.model is None else simulated.model
    numbers = [ALL_MODELS, *np.unique(models[models != ALL_MODELS]).tolist()]
    rows, group = list[dict[str, Any]](), simulated.group
    for low, high in pairwise(edges):
        seen = (data.lg_energy >= low) & (data.lg_energy < high)
        in_bin = (simulated.lg_energy >= low) & (simulated.lg_energy < high)
        for number in numbers if len(numbers) > 2 else numbers[:1]:
            of_model = in_bin & (weights > 0) & ((models == number) | (number == ALL_MODELS))
            chosen = [of_model & end for end in ends]
            if min(int(seen.sum()), *(int(one.sum()) for one in chosen)) < LEAST_EVENTS:
                continue
            mean, variance = _mean(np.log(10.0) * data.lg_nmu[seen], np.ones(int(seen.sum())))
            (proton, of_proton), (iron, of_iron), (expected, _) = (
                _mean(np.log(10.0) * simulated.lg_nmu[one], weights[one], None if group is None else group[one])
                for one in (*chosen, of_model)
            )
            apart = iron - proton
            z = (mean - proton) / apart
            error = np.sqrt(variance + (1 - z) ** 2 * of_proton + z**2 * of_iron) / abs(apart)
            rows.append(
                {"lg_energy_low_eV": float(low), "lg_energy_high_eV": float(high), "model": int(number),
                 "measured_events": int(seen.sum()), "mean_ln_nmu": mean, "mean_ln_nmu_proton": proton,
                 "mean_ln_nmu_iron": iron, "z": z, "z_error_statistical": float(error),
                 "z_of_composition": (expected - proton) / apart}
            )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None
