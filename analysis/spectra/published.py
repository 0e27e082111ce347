"""Spectra that others published, for pictures: ``published.csv`` beside this file, with its sources in ``reference``.

Errors are the quadratic sums of statistical and systematic ones, as far as the sources give them. The Global Spline Fit
through many experiments' spectra is there too where the package ``globalsplinefit`` is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class PublishedSpectrum:
    """One experiment's spectrum of one group."""

    experiment: str
    model: str
    """Hadronic model; empty where the source names none."""
    group: str
    """A class, ``all``, ``light`` (proton and helium), or ``mean_ln_mass``."""
    energy_ev: np.ndarray
    value: np.ndarray
    """m^-2 sr^-1 s^-1 eV^-1, or mean ln A."""
    error: np.ndarray
    """(2, n) below and above."""
    reference: str

    @property
    def name(self) -> str:
        """Experiment and hadronic model."""
        return f"{self.experiment} ({self.model})" if self.model else self.experiment


@cache
def published_spectra() -> tuple[PublishedSpectrum, ...]:
    """Return all spectra of the table."""
    frame = pl.read_csv(FILE, glob=False).with_columns(pl.col("hadronic_model").fill_null(""))
    keys = ["experiment", "hadronic_model", "group", "reference"]
    spectra = []
    for (experiment, model, group, reference), part in frame.group_by(keys, maintain_order=True):
        error = part.select("error_minus", "error_plus").to_numpy().T
        energy, value = part["energy_ev"].to_numpy(), part["value"].to_numpy()
        spectra.append(PublishedSpectrum(str(experiment), str(model), str(group), energy, value, error, str(reference)))
    return tuple(spectra)


GSF_LG_ENERGIES = np.arange(14.5, 18.05, 0.1)
"""Where the spline is taken."""
EV_PER_GEV = 1e9


@cache
def global_spline_fit() -> tuple[PublishedSpectrum, ...]:
    """Return the flux of all particles by the Global Spline Fit; nothing where ``globalsplinefit`` is not installed.

    The package takes total energies of nuclei in GeV, and gives m^-2 s^-1 sr^-1 GeV^-1. All its nuclei are added, so
    that it does not matter which group holds which.
    """
    try:
        from globalsplinefit import GSFEnergy
    except ImportError:
        return ()
    model, energy = GSFEnergy(), 10.0**GSF_LG_ENERGIES
    flux, error = (each(energy / EV_PER_GEV) / EV_PER_GEV for each in (model.total_flux, model.total_error))
    name = f"GSF {model.version}"
    return (PublishedSpectrum(name, "", "all", energy, flux, np.tile(error, (2, 1)), "10.48550/arXiv.2609.32649"),)
