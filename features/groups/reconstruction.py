"""Features from the reconstructed scalars, as Polars expressions; and the fits set against the reconstruction."""

from __future__ import annotations

import math
from collections.abc import Iterable

import polars as pl

from showerstack.features.groups import FITS, OURS, Feature, Group, row
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.card import KASCADE_CARD
from showerstack.showers.schema import AGE, SCALARS

GROUP, DERIVED_GROUP, CONTRAST_GROUP = "reconstruction", "derived", "contrast"
GROUPS = (
    Group(GROUP, "the reconstructed scalars as given", ("scalars", "published-grid", *FITS, "all")),
    Group(DERIVED_GROUP, "expressions of the reconstructed scalars", ("scalars", "published-grid", *FITS, "all")),
    Group(CONTRAST_GROUP, "fits against the reconstruction", (*FITS, "all"), needs_fits=True),
)
DATA = "data set"
ATTENUATION = "attenuation of the electron number, T. Antoni et al., Astropart. Phys. 19 (2003) 703"
HEITLER = "J. Matthews, Astropart. Phys. 22 (2005) 387"

KASCADE_DEPTH_G_CM2 = 1020.0
"""KASCADE's depth (110 m above sea level), as its features have it since the first version; its card says 1023."""
SEA_LEVEL_G_CM2 = 1036.0
"""Taken where nobody said how deep an array lies."""
ELECTRON_ATTENUATION_G_CM2 = 175.0
"""Attenuation length of the electron number (Antoni et al. 2003: 175..196 g/cm2, by the method)."""
MUON_ATTENUATION_G_CM2 = 1100.0
"""The muon number falls much more slowly with depth; a rough value of this project."""
MUON_EXPONENT = 0.90
"""N_mu grows as E^beta in the Heitler-Matthews model, and as A^(1-beta) at equal energy."""
PROTON_MUONS_AT_PEV = 3.92
"""lg of a vertical proton shower's total muon number at lg(E/eV) = 15; a rough value of this project."""

# fmt: off
FEATURES: tuple[Feature, ...] = (
    *(Feature(s.name, s.unit, s.meaning, "as given", DATA, GROUP) for s in (*SCALARS, AGE)),
    row("sec_zenith", "1", 1, 12, "slant depth in units of the vertical", "1 / cos(Ze)", DERIVED_GROUP, OURS),
    row("ne_minus_nmu", "lg", -10, 10, "electrons over muons", "Ne - Nmu", DERIVED_GROUP, OURS),
    row("ne_vertical", "lg", 0, 40, "electron number corrected to vertical",
        "Ne + X0 (sec - 1) / 175 g/cm2 / ln 10", DERIVED_GROUP, ATTENUATION),
    row("nmu_vertical", "lg", 0, 20, "muon number corrected to vertical",
        "Nmu + X0 (sec - 1) / 1100 g/cm2 / ln 10", DERIVED_GROUP, OURS),
    row("nmu_minus_proton", "lg", -12, 20, "muons against a proton of the reconstructed energy",
        "nmu_vertical - (3.92 + 0.90 (E - 15))", DERIVED_GROUP, HEITLER),
    row("e_minus_ne", "lg", 0, 20, "energy over electrons", "E - Ne", DERIVED_GROUP, OURS),
    row("e_minus_nmu", "lg", 0, 20, "energy over muons", "E - Nmu", DERIVED_GROUP, OURS),
    row("fit_minus_ne", "lg", -12, 12, "electron fit against the reconstruction",
        "fit_lg_ne - Ne", CONTRAST_GROUP, OURS),
    row("fit_minus_nmu", "lg", -15, 12, "muon fit against the reconstruction",
        "fit_lg_nmu - Nmu", CONTRAST_GROUP, OURS),
    row("fit_nmu_minus_proton", "lg", -30, 20,
        "fitted muons, corrected to vertical, against a proton of the reconstructed energy",
        "as nmu_minus_proton with fit_lg_nmu", CONTRAST_GROUP, HEITLER),
    row("fit_ne_vertical", "lg", -5, 40, "fitted electron number corrected to vertical",
        "as ne_vertical with fit_lg_ne", CONTRAST_GROUP, ATTENUATION),
    row("fit_minus_age", "1", -3, 3, "age of the fit against the reconstruction",
        "fit_age - Age", CONTRAST_GROUP, OURS),
)
# fmt: on

_sec = 1.0 / (pl.col("Ze").cast(pl.Float64) * (math.pi / 180.0)).cos().clip(0.1, 1.0)


def _vertical(column: str, attenuation: float, depth: float) -> pl.Expr:
    return pl.col(column) + depth * (_sec - 1.0) / math.log(10.0) / attenuation


def _over_proton(column: str, depth: float) -> pl.Expr:
    expected = PROTON_MUONS_AT_PEV + MUON_EXPONENT * (pl.col("E") - 15.0)
    return _vertical(column, MUON_ATTENUATION_G_CM2, depth) - expected


def _depth_of(array: DetectorArray) -> float:
    if array.card == KASCADE_CARD:
        return KASCADE_DEPTH_G_CM2
    return SEA_LEVEL_G_CM2 if array.depth_g_cm2 is None else array.depth_g_cm2


def derived(groups: frozenset[str], array: DetectorArray = KASCADE) -> dict[str, pl.Expr]:
    """Return the features of the groups ``derived`` and ``contrast`` at an array's depth."""
    depth = _depth_of(array)
    of_scalars: dict[str, pl.Expr] = {
        "sec_zenith": _sec,
        "ne_minus_nmu": pl.col("Ne") - pl.col("Nmu"),
        "ne_vertical": _vertical("Ne", ELECTRON_ATTENUATION_G_CM2, depth),
        "nmu_vertical": _vertical("Nmu", MUON_ATTENUATION_G_CM2, depth),
        "nmu_minus_proton": _over_proton("Nmu", depth),
        "e_minus_ne": pl.col("E") - pl.col("Ne"),
        "e_minus_nmu": pl.col("E") - pl.col("Nmu"),
    }
    of_fits: dict[str, pl.Expr] = {
        "fit_minus_ne": pl.col("fit_lg_ne") - pl.col("Ne"),
        "fit_minus_nmu": pl.col("fit_lg_nmu") - pl.col("Nmu"),
        "fit_nmu_minus_proton": _over_proton("fit_lg_nmu", depth),
        "fit_ne_vertical": _vertical("fit_lg_ne", ELECTRON_ATTENUATION_G_CM2, depth),
        "fit_minus_age": pl.col("fit_age") - pl.col("Age"),
    }
    return {**(of_scalars if DERIVED_GROUP in groups else {}), **(of_fits if CONTRAST_GROUP in groups else {})}


def derivable(groups: frozenset[str], columns: Iterable[str]) -> frozenset[str]:
    """Return the names of those whose inputs are among ``columns``."""
    there = set(columns)
    return frozenset(name for name, formula in derived(groups).items() if set(formula.meta.root_names()) <= there)


def add_derived(table: pl.DataFrame, groups: frozenset[str], array: DetectorArray = KASCADE) -> pl.DataFrame:
    """Add the features of the groups ``derived`` and ``contrast`` whose inputs the table has, as float32."""
    usable = derivable(groups, table.columns)
    formulas = {name: formula for name, formula in derived(groups, array).items() if name in usable}
    return table.with_columns(**{name: formula.cast(pl.Float32) for name, formula in formulas.items()})
