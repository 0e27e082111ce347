"""What a physicist looks at behind spectra: cells, nuisances, what each source of error changes, and others' spectra.

All are tables; each is made from a fit and its fluxes, and written beside the spectra.

=====================  ===============================================================================================
``cells.csv``          counts n, expectations mu, the simulated events tau that mu is worth, and the pull
                       ``(n - mu) / sqrt(mu + mu^2 / tau)`` of each cell of reconstructed energy and y
``nuisances.csv``      fitted value, error and pull ``(value - expected) / sqrt(width^2 - error^2)`` of each nuisance,
                       in its widths, and its impact: the largest relative change of an all-particle, light or heavy
                       flux by one standard deviation after the fit
``systematics.csv``    change of each flux for +1 width of each source that can be moved
``comparison.csv``     chi-square against published spectra of all particles with both covariances, energies of the
                       published ones shifted by what fits best, and that shift
=====================  ===============================================================================================
"""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy.optimize import minimize_scalar

from showerstack.analysis.spectra.fluxes import FreeFluxes, covariance_of_sums
from showerstack.analysis.spectra.folding import SCALES
from showerstack.analysis.spectra.likelihood import FoldedFit
from showerstack.analysis.spectra.published import PublishedSpectrum

NARROW = 0.5
"""A scale that comes out narrower than this part of its prior's width deserves a look."""
LARGEST_SHIFT = 0.2
"""Of published energies, in lg E."""


def cells_table(fit: FoldedFit) -> pl.DataFrame:
    """Return a row for each cell that the simulation reaches."""
    likelihood = fit.likelihood
    cells = likelihood.response.cells
    edges, borders = cells.bins.edges, np.concatenate([[np.nan], cells.borders, [np.nan]])
    energy, y = np.divmod(np.arange(cells.n_cells), cells.n_summaries)
    mean, tau = likelihood.mean(fit.parameters), likelihood.tau
    frame = pl.DataFrame(
        {
            "lg_energy_low_eV": edges[energy],
            "lg_energy_high_eV": edges[energy + 1],
            "y_low": borders[y],
            "y_high": borders[y + 1],
            "events": likelihood.counts,
            "expected": mean,
            "simulated_events": tau,
            "pull": (likelihood.counts - mean) / np.sqrt(np.maximum(mean + mean**2 / tau, 1e-300)),
        }
    )
    return frame.filter(np.asarray(likelihood.simulated)).with_columns(pl.selectors.float().fill_nan(None))


def nuisances_table(fluxes: FreeFluxes, widths: np.ndarray, sums: dict[str, np.ndarray]) -> pl.DataFrame:
    """Return a row for each free scale.

    Parameters
    ----------
    widths
        (3,) of the scales, in lg.
    sums
        (K,) weights of the groups in each sum of which impacts are given.
    """
    rows = []
    for j in fluxes.free_scales:
        value, error = float(fluxes.scales[j]), float(fluxes.scale_errors[j])
        left = 1.0 - error**2
        row = {
            "nuisance": f"{SCALES[j]}_scale", "width_lg": float(widths[j]), "value_in_widths": value,
            "error_in_widths": error, "pull": value / np.sqrt(left) if left > 1e-3 else None,
        }  # fmt: skip
        for name, groups in sums.items():
            impact = error * (fluxes.per_width[j] @ groups) / (fluxes.flux @ groups)
            row[f"impact_{name}"] = float(impact[np.abs(impact).argmax()])
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def narrow_scales(fluxes: FreeFluxes) -> list[str]:
    """Return remarks on scales that data seem to tell better than half their width."""
    return [
        f"the {SCALES[j]} scale comes out as {fluxes.scales[j]:+.2f} ± {fluxes.scale_errors[j]:.2f} of its width: data "
        "of this kind seldom tell it so well; errors of fluxes lean on it"
        for j in fluxes.free_scales
        if fluxes.scale_errors[j] < NARROW
    ]


def systematics_table(
    fluxes: FreeFluxes, sums: dict[str, np.ndarray], exposure_error: float, models: dict[str, np.ndarray]
) -> pl.DataFrame:
    """Return the change of each flux for +1 width of each source.

    Parameters
    ----------
    sums
        (K,) weights of the groups in each row.
    exposure_error
        Relative.
    models
        Fluxes (J, K) by the response of one hadronic model alone, whose distance from the mean of all is given.
    """
    changes = {f"{SCALES[j]}_scale": fluxes.per_width[j] for j in fluxes.free_scales}
    changes["exposure"] = -exposure_error * fluxes.flux
    mean = np.mean(list(models.values()), axis=0) if models else None
    changes |= {f"response_of_{name}": flux - mean for name, flux in models.items()}
    rows = []
    for k in range(len(fluxes.flux)):
        for name, groups in sums.items():
            low, high = fluxes.edges[k : k + 2]
            row = {"lg_energy_low_eV": float(low), "lg_energy_high_eV": float(high), "group": name}
            row["flux_m2_sr_s_eV"] = float(fluxes.flux[k] @ groups)
            row |= {f"change_{source}_m2_sr_s_eV": float(change[k] @ groups) for source, change in changes.items()}
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def compare_with(
    published: tuple[PublishedSpectrum, ...], energy_ev: np.ndarray, fluxes: FreeFluxes, covariance: np.ndarray,
    used: np.ndarray | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Return chi-square of the all-particle flux against each published one, energies shifted as fits best.

    Parameters
    ----------
    energy_ev
        (J,) middles of the bins.
    covariance
        (J K, J K) of the fluxes; what the energy scale makes of it is taken out, since the shift is free. Published
        errors are taken as independent from point to point, as far as they are printed.
    used
        (J,) bool: bins that have a result; None: all.
    """
    every = np.ones_like(fluxes.flux)
    flux = fluxes.flux.sum(axis=1)
    by_energy = fluxes.per_width[0].sum(axis=1) * fluxes.scale_errors[0]
    own = covariance_of_sums(covariance, every) - np.outer(by_energy, by_energy)
    rows = []
    for one in published:
        lg = np.log10(one.energy_ev)
        inside = np.ones(len(flux), dtype=bool) if used is None else used.copy()
        inside &= (np.log10(energy_ev) > lg[0] + LARGEST_SHIFT / 2) & (np.log10(energy_ev) < lg[-1] - LARGEST_SHIFT / 2)
        if one.group != "all" or inside.sum() < 2:
            continue
        mine = (np.log10(energy_ev[inside]), flux[inside], own[np.ix_(inside, inside)], one)
        best = minimize_scalar(_chi2_against, args=mine, bounds=(-LARGEST_SHIFT, LARGEST_SHIFT), method="bounded")
        rows.append(
            {
                "experiment": one.experiment, "hadronic_model": one.model, "bins": int(inside.sum()),
                "shift_of_published_lg_energy": float(best.x), "chi2": float(best.fun),
                "degrees_of_freedom": int(inside.sum()) - 1, "chi2_unshifted": _chi2_against(0.0, *mine),
                "reference": one.reference,
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _chi2_against(
    shift: float, lg_energy: np.ndarray, flux: np.ndarray, covariance: np.ndarray, one: PublishedSpectrum
) -> float:
    """Return chi-square of fluxes (n,) against a published spectrum whose energies are 10^shift times higher."""
    lg, at = np.log10(one.energy_ev), lg_energy - shift
    theirs = 10.0 ** (np.interp(at, lg, np.log10(one.value)) - shift)
    relative = np.interp(at, lg, one.error.mean(axis=0) / one.value)
    difference = flux - theirs
    return float(difference @ np.linalg.solve(covariance + np.diag((relative * theirs) ** 2), difference))
