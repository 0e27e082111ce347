"""Features from the reconstructed scalars, as Polars expressions; and the fits set against the reconstruction."""

from __future__ import annotations

import math

import polars as pl

from features.feature import Feature
from showers.schema import AGE, SCALARS

GROUP, DERIVED_GROUP, CONTRAST_GROUP = "reconstruction", "derived", "contrast"
DATA = "data set"
HERE = "this project"
ATTENUATION = "attenuation of the electron number, T. Antoni et al., Astropart. Phys. 19 (2003) 703"
HEITLER = "J. Matthews, Astropart. Phys. 22 (2005) 387"

DEPTH_G_CM2 = 1020.0
"""Atmospheric depth of the array (110 m above sea level)."""
ELECTRON_ATTENUATION_G_CM2 = 175.0
"""Attenuation length of the electron number (Antoni et al. 2003: 175..196 g/cm2, by the method)."""
MUON_ATTENUATION_G_CM2 = 1100.0
"""The muon number falls much more slowly with depth; a rough value of this project."""
MUON_EXPONENT = 0.90
"""N_mu grows as E^beta in the Heitler-Matthews model, and as A^(1-beta) at equal energy."""
PROTON_MUONS_AT_PEV = 3.92
"""lg of a vertical proton shower's total muon number at lg(E/eV) = 15; a rough value of this project."""
LG_IRON = math.log10(56.0)

FEATURES: tuple[Feature, ...] = (
    *(Feature(s.name, s.unit, s.meaning, "as given", DATA, GROUP) for s in SCALARS),
    Feature(AGE.name, AGE.unit, AGE.meaning, "as given", DATA, GROUP),
    Feature("sec_zenith", "1", "slant depth in units of the vertical", "1 / cos(Ze)", HERE, DERIVED_GROUP, 1, 12),
    Feature("ne_minus_nmu", "lg", "electrons over muons", "Ne - Nmu", HERE, DERIVED_GROUP, -10, 10),
    Feature(
        "ne_vertical",
        "lg",
        "electron number corrected to vertical",
        "Ne + X0 (sec - 1) / 175 g/cm2 / ln 10",
        ATTENUATION,
        DERIVED_GROUP,
        0,
        40,
    ),
    Feature(
        "nmu_vertical",
        "lg",
        "muon number corrected to vertical",
        "Nmu + X0 (sec - 1) / 1100 g/cm2 / ln 10",
        HERE,
        DERIVED_GROUP,
        0,
        20,
    ),
    Feature(
        "nmu_minus_proton",
        "lg",
        "muons against a proton of the reconstructed energy",
        "nmu_vertical - (3.92 + 0.90 (E - 15))",
        HEITLER,
        DERIVED_GROUP,
        -12,
        20,
    ),
    Feature(
        "nmu_minus_iron",
        "lg",
        "muons against iron of the reconstructed energy",
        "nmu_minus_proton - 0.10 lg 56",
        HEITLER,
        DERIVED_GROUP,
        -12,
        20,
    ),
    Feature(
        "ln_a",
        "1",
        "rough logarithmic mass from muons at given energy",
        "ln 56 nmu_minus_proton / (0.10 lg 56)",
        HEITLER,
        DERIVED_GROUP,
        -500,
        800,
    ),
    Feature("e_minus_ne", "lg", "energy over electrons", "E - Ne", HERE, DERIVED_GROUP, 0, 20),
    Feature("e_minus_nmu", "lg", "energy over muons", "E - Nmu", HERE, DERIVED_GROUP, 0, 20),
    Feature(
        "fit_minus_ne", "lg", "electron fit against the reconstruction", "fit_lg_ne - Ne", HERE, CONTRAST_GROUP, -12, 12
    ),
    Feature(
        "fit_minus_nmu", "lg", "muon fit against the reconstruction", "fit_lg_nmu - Nmu", HERE, CONTRAST_GROUP, -15, 12
    ),
    Feature(
        "fit_nmu_minus_proton",
        "lg",
        "fitted muons, corrected to vertical, against a proton of the reconstructed energy",
        "as nmu_minus_proton with fit_lg_nmu",
        HEITLER,
        CONTRAST_GROUP,
        -30,
        20,
    ),
    Feature(
        "fit_ne_vertical",
        "lg",
        "fitted electron number corrected to vertical",
        "as ne_vertical with fit_lg_ne",
        ATTENUATION,
        CONTRAST_GROUP,
        -5,
        40,
    ),
    Feature(
        "fit_minus_age", "1", "age of the fit against the reconstruction", "fit_age - Age", HERE, CONTRAST_GROUP, -3, 3
    ),
)

_sec = 1.0 / (pl.col("Ze").cast(pl.Float64) * (math.pi / 180.0)).cos().clip(0.1, 1.0)
_slant = DEPTH_G_CM2 * (_sec - 1.0) / math.log(10.0)


def _vertical(column: str, attenuation: float) -> pl.Expr:
    return pl.col(column) + _slant / attenuation


def _over_proton(column: str) -> pl.Expr:
    expected = PROTON_MUONS_AT_PEV + MUON_EXPONENT * (pl.col("E") - 15.0)
    return _vertical(column, MUON_ATTENUATION_G_CM2) - expected


DERIVED: dict[str, pl.Expr] = {
    "sec_zenith": _sec,
    "ne_minus_nmu": pl.col("Ne") - pl.col("Nmu"),
    "ne_vertical": _vertical("Ne", ELECTRON_ATTENUATION_G_CM2),
    "nmu_vertical": _vertical("Nmu", MUON_ATTENUATION_G_CM2),
    "nmu_minus_proton": _over_proton("Nmu"),
    "nmu_minus_iron": _over_proton("Nmu") - (1.0 - MUON_EXPONENT) * LG_IRON,
    "ln_a": math.log(56.0) * _over_proton("Nmu") / ((1.0 - MUON_EXPONENT) * LG_IRON),
    "e_minus_ne": pl.col("E") - pl.col("Ne"),
    "e_minus_nmu": pl.col("E") - pl.col("Nmu"),
}
CONTRAST: dict[str, pl.Expr] = {
    "fit_minus_ne": pl.col("fit_lg_ne") - pl.col("Ne"),
    "fit_minus_nmu": pl.col("fit_lg_nmu") - pl.col("Nmu"),
    "fit_nmu_minus_proton": _over_proton("fit_lg_nmu"),
    "fit_ne_vertical": _vertical("fit_lg_ne", ELECTRON_ATTENUATION_G_CM2),
    "fit_minus_age": pl.col("fit_age") - pl.col("Age"),
}


def add(table: pl.DataFrame, groups: frozenset[str]) -> pl.DataFrame:
    """Add the features of the groups ``derived`` and ``contrast`` whose inputs the table has, as float32.

    Parameters
    ----------
    table
        Columns E, Ze, Az, Ne, Nmu, where the protocol has it Age, and those of the fits where they were made.
    groups
        Groups wanted.
    """
    expressions = {**(DERIVED if DERIVED_GROUP in groups else {}), **(CONTRAST if CONTRAST_GROUP in groups else {})}
    usable = {
        name: expression
        for name, expression in expressions.items()
        if set(expression.meta.root_names()) <= set(table.columns)
    }
    return table.with_columns(**{name: expression.cast(pl.Float32) for name, expression in usable.items()})
