"""What people see of an analysis of spectra: a table on the terminal, and a page with the field's pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from rich.table import Table

from analysis.spectra.result import ALL, Spectra
from report.page.markup import Section, bullets, page, paragraph, picture, pictures, table
from report.pictures.spectra import flux_picture, panel_pictures
from report.pictures.style import as_svg
from showers.storage.files import atomic_path

PAGE_FILE = "spectra.html"
SOURCES = ("data", "simulation", "hadronic_model", "energy_scale", "muon_scale", "total")


def spectra_text(found: Spectra) -> Table:
    """Return shares of the groups by energy, with statistical and total errors, and the test of the fit."""
    rows = found.table().filter(pl.col("group") != ALL)
    good = found.goodness
    drawn = Table(
        "lg(E/eV)", "events", title="share of each group ± statistical ± total error, %", title_justify="left",
        caption=f"fit in lg Ne - lg Nmu: chi2 {good.chi2:.0f} in {good.cells} cells, p = {good.p_value:.3f}",
    )  # fmt: skip
    for name in found.estimate.setting.classes:
        drawn.add_column(name, justify="right", no_wrap=True)
    for part in rows.partition_by("lg_energy_low_eV", maintain_order=True):
        first = part.row(0, named=True)
        cells = [
            "not used"
            if row["fraction"] is None
            else f"{100 * row['fraction']:.0f}±{100 * row['fraction_error_statistical']:.0f}"
            f"±{100 * row['fraction_error_total']:.0f}"
            for row in part.iter_rows(named=True)
        ]
        energy = f"{first['lg_energy_low_eV']:.2f}-{first['lg_energy_high_eV']:.2f}"
        drawn.add_row(energy, f"{first['measured_events']:,}", *cells)
    return drawn


def write_spectra_page(found: Spectra, out: Path, remarks: list[str]) -> Path:
    """Write ``OUT/spectra.html`` and return its path."""
    sections = [_spectra(found), _errors(found), _methods(found), _doubts(found, remarks)]
    file = out / PAGE_FILE
    with atomic_path(file) as temporary:
        temporary.write_text(page("Elemental spectra", "", sections), encoding="utf-8")
    return file


def _spectra(found: Spectra) -> Section:
    estimate, errors = found.estimate, found.errors
    shape, energy = estimate.flux.shape, estimate.setting.bins.centres_ev
    arguments = (
        energy, estimate.flux, errors.standard(shape, ("data", "simulation")), errors.standard(shape),
        estimate.setting.classes,
    )  # fmt: skip
    caption = "Thick bars: measured and simulated statistics; thin bars: all errors. Points are not clipped at zero."
    figures = [picture(as_svg(flux_picture(*arguments), "spectra of all groups"), caption)]
    for name, drawn in zip(estimate.setting.classes, panel_pictures(*arguments), strict=True):
        figures.append(picture(as_svg(drawn, f"spectrum of {name}"), f"{name}."))
    return Section("spectra", "Spectra", pictures(figures))


def _errors(found: Spectra) -> Section:
    rows = []
    for row in found.table().filter(pl.col("used")).iter_rows(named=True):
        if row["group"] == ALL:
            continue
        cells = [f"{100 * row[f'fraction_error_{source}']:.1f}" for source in SOURCES]
        energy = f"{row['lg_energy_low_eV']:.2f}-{row['lg_energy_high_eV']:.2f}"
        rows.append((energy, row["group"], f"{100 * row['fraction']:.1f}", *cells))
    heads = ("lg(E/eV)", "group", "share, %", *(f"± {source.replace('_', ' ')}" for source in SOURCES))
    note = paragraph(
        "Errors of neighbouring groups are strongly anti-correlated: use the covariances in covariance.npz."
    )
    return Section("errors", "Shares and their errors, %", table(heads, rows) + note)


def _methods(found: Spectra) -> Section:
    frame = found.methods().filter(pl.col("used"))
    names = [name for name in frame.columns if name.startswith("events_")]
    rows = []
    for part in frame.partition_by("lg_energy_low_eV", maintain_order=True):
        totals = {name: part[name].sum() for name in names}
        for row in part.iter_rows(named=True):
            energy = f"{row['lg_energy_low_eV']:.2f}-{row['lg_energy_high_eV']:.2f}"
            rows.append((energy, row["group"], *(f"{100 * row[name] / totals[name]:.1f}" for name in names)))
    heads = ("lg(E/eV)", "group", *(name.removeprefix("events_").replace("_", " ") for name in names))
    note = paragraph(
        f"Shares of the accepted events, %. Iterations of Bayes' theorem ({found.labels.iterations}) and strength of "
        f"the regularisation ({found.labels.strength:g}) were chosen on simulation. The clipped inverse is how "
        "published spectra were made."
    )
    return Section("methods", "Other methods on the same events", table(heads, rows) + note)


def _doubts(found: Spectra, remarks: list[str]) -> Section:
    good = found.goodness
    lines = [
        f"Fit in lg Ne - lg Nmu: chi-square {good.chi2:.1f} in {good.cells} cells, p = {good.p_value:.3f} "
        f"from {good.toys} toy experiments.",
        *remarks,
        "A difference between nature and all simulations that looks like another composition cannot be seen by any "
        "test here: the hadronic models' scatter is the only hint of it.",
    ]
    bad = [b for b in np.flatnonzero(found.estimate.usable) if good.p_by_bin[b] < 0.01]
    edges = found.estimate.setting.bins.edges
    lines += [f"The fit is bad (p = {good.p_by_bin[b]:.3f}) in lg(E/eV) {edges[b]:g}-{edges[b + 1]:g}." for b in bad]
    return Section("doubts", "What to keep in mind", bullets(lines))
