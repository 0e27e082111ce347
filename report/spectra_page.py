"""The page of an analysis of spectra: fluxes beside published ones, knees, shares, scales and cells."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl
from markupsafe import Markup

from showerstack.analysis.spectra.fluxes import STATISTICAL
from showerstack.analysis.spectra.published import published_spectra
from showerstack.analysis.spectra.response import ALL
from showerstack.analysis.spectra.result import (
    CELLS_CSV,
    COMPARISON_CSV,
    NUISANCES_CSV,
    SYSTEMATICS_CSV,
    Spectra,
)
from showerstack.analysis.spectra.sources import narrow_scales
from showerstack.report.pictures.physics import (
    cells_picture,
    flux_picture,
    knee_picture,
    nuisances_picture,
    panel_pictures,
    profile_picture,
)
from showerstack.report.pictures.style import as_svg
from showerstack.report.shared.markup import (
    Section,
    bullets,
    joined,
    paragraph,
    picture,
    pictures,
    table,
    write_page,
)
from showerstack.report.shared.provenance import made_of
from showerstack.runtime.errors import InputError
from showerstack.runtime.whole_table import WholeTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRA_PAGE_FILE = "spectra.html"
SOURCES = ("data", "simulation", "scales", "hadronic_model", "total")


@dataclass(frozen=True)
class MeasuredSpectra(Spectra):
    """Spectra that a notebook shows."""

    @classmethod
    def of(cls, spectra: Spectra) -> Self:
        """Return spectra that show themselves."""
        return cls(**{one.name: getattr(spectra, one.name) for one in fields(Spectra)})

    def _repr_html_(self) -> str:
        return str(joined([_sums(self), _shares(self), paragraph(_goodness(self))]))

    def plot(self, group: str | None = None) -> Figure:
        """Return a picture of the page as a figure of matplotlib: thick bars are statistical errors.

        Parameters
        ----------
        group
            One of them, or ``all`` for all particles, beside published fluxes; None: the groups together.

        Raises
        ------
        showerstack.InputError
            If there is no such group.
        """
        if group is None:
            return _all_groups(self)
        names = (*self.groups.names, ALL)
        if group not in names:
            raise InputError(f"no group {group!r}: give one of {', '.join(names)}")
        return _panels(self, (group,))[0]


def spectra_text(spectra: Spectra) -> WholeTable:
    """Return shares of the groups by energy, with statistical and total errors, and the test of the fit."""
    names = spectra.groups.names
    rows = spectra.table().filter(pl.col("group").is_in(names))
    masses = spectra.masses()
    drawn = WholeTable(
        "lg(E/eV)", "events", title="share of each group ± statistical ± total error, %", title_justify="left",
        caption=_goodness(spectra),
    )  # fmt: skip
    for name in (*names, "mean ln A"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for part, mass in zip(
        rows.partition_by("lg_energy_low_eV", maintain_order=True), masses.iter_rows(named=True), strict=True
    ):
        first = part.row(0, named=True)
        cells = [
            ("not determined" if row["used"] else "not used")
            if row["fraction"] is None
            else "±".join(
                [f"{100 * row['fraction']:.0f}"]
                + [_percent(row[f"fraction_error_{name}"], 0) for name in ("statistical", "total")]
            )
            for row in part.iter_rows(named=True)
        ]
        energy = f"{first['lg_energy_low_eV']:.2f}-{first['lg_energy_high_eV']:.2f}"
        drawn.add_row(energy, f"{first['measured_events']:,}", *cells, _mass(mass))
    return drawn


def _goodness(spectra: Spectra) -> str:
    fit = spectra.fit
    return f"fit in cells of energy and mass: chi2 {fit.chi2:.0f} for {fit.ndf} degrees, p = {spectra.p_value:.3f}"


def _mass(row: dict[str, float | None], moment: str = "mean") -> str:
    name, error = ("mean_ln_mass", "error") if moment == "mean" else ("variance_of_ln_mass", "variance_error")
    if row[name] is None:
        return "not determined" if row["used"] else "not used"
    return "±".join([f"{row[name]:.2f}", _error(row[f"{error}_statistical"]), _error(row[f"{error}_total"])])


def write_spectra_page(spectra: Spectra, out: Path) -> Path:
    """Write ``OUT/spectra.html`` and return its path."""
    sections = [_spectra(spectra), _headline(spectra), *_knees(spectra), _errors(spectra), _sources(spectra)]
    sections += _stability(spectra)
    sections += [_spectra_doubts(spectra), *made_of(spectra.provenance)]
    lead = bullets([*knee_lines(spectra), _goodness(spectra)])
    return write_page(out / SPECTRA_PAGE_FILE, "Elemental spectra", lead, sections)


def _fluxes(spectra: Spectra) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return energies (J,), fluxes (J, K) and their statistical and total errors."""
    return spectra.centres_ev, spectra.flux, spectra.standard(STATISTICAL), spectra.standard()


def _all_groups(spectra: Spectra) -> Figure:
    return flux_picture(*_fluxes(spectra), spectra.groups.names)


def _panels(spectra: Spectra, chosen: tuple[str, ...]) -> list[Figure]:
    """Return a picture for each of some groups, or for all particles, beside published fluxes."""
    names, (energy, *of_groups) = (*spectra.groups.names, ALL), _fluxes(spectra)
    total, sums = spectra.table().filter(pl.col("group") == ALL), []
    for column in ("flux_m2_sr_s_eV", "flux_error_statistical_m2_sr_s_eV", "flux_error_total_m2_sr_s_eV"):
        sums.append(total[column].cast(pl.Float64).fill_null(np.nan).to_numpy()[:, None])
    flux, statistical, error = (np.concatenate(pair, axis=1) for pair in zip(of_groups, sums, strict=True))
    drawn = panel_pictures(energy, flux, statistical, error, names, published_spectra())
    return [drawn[names.index(name)] for name in chosen]


def _spectra(spectra: Spectra) -> Section:
    caption = (
        "Thick bars: measured and simulated statistics; thin bars: all errors. Points are not clipped at zero. Open "
        f"marks are published: {', '.join(sorted({one.experiment for one in published_spectra()}))} "
        "(analysis/spectra/published.csv names the sources); nobody agrees on the energy scale to better than 10 %."
        + _not_determined(spectra, *spectra.groups.names)
    )
    figures = [picture(as_svg(_all_groups(spectra), "spectra of all groups"), caption)]
    names = (*spectra.groups.names, ALL)
    for name, drawn in zip(names, _panels(spectra, names), strict=True):
        words = f"Flux of {name}, beside published fluxes.{_not_determined(spectra, name)}"
        figures.append(picture(as_svg(drawn, f"spectrum of {name}"), words))
    heads = ("lg(E/eV)", "mean ln A ± statistical ± total", "variance of ln A ± statistical ± total")
    rows = [(f"{row['lg_energy_low_eV']:.2f}-{row['lg_energy_high_eV']:.2f}", _mass(row), _mass(row, "variance"))
            for row in spectra.masses().iter_rows(named=True)]  # fmt: skip
    return Section("spectra", "Spectra", pictures(figures) + table(heads, rows) + _muons(spectra))


def _muons(spectra: Spectra) -> Markup:
    """Return the muon scale by energy and hadronic model."""
    if spectra.muons is None:
        return Markup()
    rows = [
        (f"{row['lg_energy_low_eV']:.2f}-{row['lg_energy_high_eV']:.2f}", row["model"],
         f"{row['z']:.2f} ± {row['z_error_statistical']:.2f}",
         f"{row['z_of_composition']:.2f}")
        for row in spectra.muons.iter_rows(named=True)
    ]  # fmt: skip
    note = paragraph(
        "z: where the mean of ln Nmu lies between the model's protons (0) and iron (1), with the error of the numbers "
        "of events. Beside it what the fitted composition makes of it: a z above it means more muons than the model's."
    )
    return table(("lg(E/eV)", "hadronic model", "muon scale z", "of the composition"), rows) + note


def _not_determined(spectra: Spectra, *names: str) -> str:
    """Return how many points of groups are missing from a picture, and why, as a sentence of its caption."""
    determined = np.array([spectra.determined[name] for name in names])
    missing = int((spectra.used & ~determined).sum())
    if not missing:
        return ""
    return f" {missing} of {determined.size} fluxes are not determined with so few events, and left out."


def _sums(spectra: Spectra) -> Markup:
    """Return fluxes of all, light and heavy nuclei with the energy scale's error apart."""
    heads = ("lg(E/eV)", "group", "flux, m⁻² sr⁻¹ s⁻¹ eV⁻¹", "± events, simulation", "± energy scale", "± all other")
    changes = spectra.sources()[SYSTEMATICS_CSV]
    energies = {
        (row["lg_energy_low_eV"], row["group"]): row.get("change_energy_scale_m2_sr_s_eV", 0.0)
        for row in changes.iter_rows(named=True)
    }
    rows = []
    for row in (
        spectra.table().filter(pl.col("group").is_in(list(spectra.groups.sums)) & pl.col("used")).iter_rows(named=True)
    ):
        energy = f"{row['lg_energy_low_eV']:.2f}-{row['lg_energy_high_eV']:.2f}"
        if not row["determined"]:
            rows.append((energy, row["group"], "not determined", "", "", ""))
            continue
        flux, total = row["flux_m2_sr_s_eV"], row["flux_error_total_m2_sr_s_eV"]
        statistical = row["flux_error_statistical_m2_sr_s_eV"]
        by_energy = abs(energies[row["lg_energy_low_eV"], row["group"]])
        other = None if total is None else np.sqrt(max(total**2 - statistical**2 - by_energy**2, 0.0))
        errors = [_percent(None if one is None else one / abs(flux), 1) for one in (statistical, by_energy, other)]
        rows.append((energy, row["group"], f"{flux:.3g}", *errors))
    return table(heads, rows)


def _headline(spectra: Spectra) -> Section:
    """Return fluxes of all, light and heavy nuclei, and others' beside them."""
    body = _sums(spectra) + paragraph("Errors in per cent. The energy scale moves all fluxes of a group together.")
    others = spectra.sources()[COMPARISON_CSV]
    if others.height:
        compared = [
            (row["experiment"], row["hadronic_model"], f"{row['chi2']:.1f} / {row['degrees_of_freedom']}",
             f"{row['shift_of_published_lg_energy']:+.3f}", f"{row['chi2_unshifted']:.1f}")
            for row in others.iter_rows(named=True)
        ]  # fmt: skip
        names = ("published", "model", "chi-square / ndf", "shift of their lg E", "unshifted")
        body += table(names, compared) + paragraph(
            "All particles against published spectra, with both errors; their energies are shifted as fits best, and "
            "the error of our energy scale is left out for that. Published errors are taken as independent."
        )
    return Section("headline", "All, light and heavy", body)


def _sources(spectra: Spectra) -> Section:
    """Return the fitted scales with what they do, and the pulls of all cells."""
    tables = spectra.sources()
    nuisances, cells = tables[NUISANCES_CSV], tables[CELLS_CSV]
    heads = ("scale", "width in lg", "value", "error", "pull", *(f"{name}, %" for name in spectra.groups.sums))
    rows = [
        (row["nuisance"].replace("_", " "), f"{row['width_lg']:.3f}", f"{row['value_in_widths']:+.2f}",
         f"{row['error_in_widths']:.2f}", "" if row["pull"] is None else f"{row['pull']:+.2f}",
         *(f"{100 * row[f'impact_{name}']:+.1f}" for name in spectra.groups.sums))
        for row in nuisances.iter_rows(named=True)
    ]  # fmt: skip
    note = paragraph(
        "Values and errors are in widths of what was expected; 0 ± 1 is that expectation, where data tell less than "
        "the noise of the simulation pretends. The last columns: the largest change of a flux by one standard "
        "deviation of the scale after the fit. A scale whose error is below a half is told by the data better than "
        "usual: look at the cells."
    )
    drawn = picture(
        as_svg(cells_picture(cells), "pulls of the cells"),
        "Counts less expectations of all cells, in their errors: colour from -3 to 3. Rows are bins of the posteriors' "
        "mean ln A, light ones below.",
    )
    figures = [drawn]
    if rows:
        figures.insert(
            0,
            picture(
                as_svg(nuisances_picture(nuisances, tuple(spectra.groups.sums)), "scales after the fit"),
                "Left: scales after the fit; shaded: what was expected. Right: the largest change of a flux by one "
                "standard deviation of each.",
            ),
        )
    warnings = joined(paragraph(line, "warn") for line in narrow_scales(spectra.fluxes))
    return Section("sources", "Scales and cells", joined([warnings, *([table(heads, rows), note] if rows else []),
                                                          pictures(figures)]))  # fmt: skip


QUANTITIES = {"flux_all_m2_sr_s_eV": "flux of all particles", "fraction_light": "share of light nuclei"}


def _stability(spectra: Spectra) -> list[Section]:
    """Return how far fits of halves and in other cells lie apart, where they were asked for."""
    if spectra.stability is None:
        return []
    used = {float(low) for low in spectra.fluxes.edges[:-1][spectra.used]}
    known = spectra.stability.filter(pl.col("lg_energy_low_eV").is_in(list(used)))
    rows = []
    for (variation, against, quantity), part in known.group_by("variation", "against", "quantity", maintain_order=True):
        away = part["difference_in_errors"].to_numpy()
        cells = ", ".join(f"{one:+.1f}" for one in away)
        rows.append((variation, against, QUANTITIES[str(quantity)], cells, f"{np.sqrt(np.mean(away**2)):.2f}"))
    heads = ("fit", "against", "of", "differences by energy, in errors", "rms")
    note = paragraph(
        "Halves are independent: their differences scatter by one error. Other cells hold the same events: their "
        "differences, in errors of events, simulation and scales, should stay below two."
    )
    return [Section("stability", "Stability", table(heads, rows) + note)]


LEVELS, SIDES = ("68", "95"), ("low", "high")
HYPOTHESES = {
    "none": "no knee",
    "rigidity": "knees at charge times one rigidity",
    "mass": "knees at mass number times one energy",
    "constant": "knees at one energy",
    "free": "each group its own knee",
}


def knee_lines(spectra: Spectra) -> list[str]:
    """Return the knees in words, a line each; nothing where none were fitted."""
    if spectra.knees is None:
        return []
    rows = spectra.knees.table().iter_rows(named=True)
    lines = [f"knee of {row['group']}: lg(E/eV) {_range(row)}" for row in rows]
    lines[-1] = lines[-1].replace("knee of rigidity: lg(E/eV)", "common rigidity of the knees: lg(R/V)")
    compared = next(one for one in spectra.knees.comparisons if (one.null, one.other) == ("rigidity", "free"))
    return [
        *lines,
        f"{HYPOTHESES['free']}: -2 ln L {compared.gained:.1f} lower than {HYPOTHESES['rigidity']}",
    ]


def _range(row: dict[str, float | None]) -> str:
    """Return a knee's position, its 68 % interval, and all systematic errors together."""
    low, high = row["lg_knee_low_68_eV"], row["lg_knee_high_68_eV"]
    if low is None and high is None:
        return "not determined"
    if low is None or high is None:
        return f"above {low:.2f} (84 %)" if high is None else f"below {high:.2f} (84 %)"
    systematic = _error(row["lg_knee_error_all_systematic"])
    return f"{row['lg_knee_eV']:.2f} [{low:.2f}, {high:.2f}] ± {systematic} systematic"


def _error(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _percent(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{100 * value:.{digits}f}"


def _limit(value: float | None) -> str:
    return "open" if value is None else f"{value:.2f}"


def _knees(spectra: Spectra) -> list[Section]:
    knees = spectra.knees
    if knees is None:
        return []
    best = knees.fits["rigidity"]
    energy = spectra.centres_ev
    lg_energy = np.linspace(np.log10(energy[0]), np.log10(energy[-1]), 100)
    lines = 10.0**lg_energy, best.likelihood.flux(best.parameters, lg_energy).T
    drawn = knee_picture(energy, spectra.flux, spectra.standard(STATISTICAL), spectra.groups.names, lines)
    ranges = [(one.name, one.grid, one.profile) for one in (*knees.groups, knees.rigidity)]
    figures = [
        picture(
            as_svg(drawn, "fit of knees"),
            "Lines: the fit with knees at charge times one rigidity, to the counts; points: without a form.",
        ),
        picture(
            as_svg(profile_picture(ranges), "profiles of the knees"),
            "-2 ln L above its minimum along each position; dashed: 68 and 95 %. Dotted black: the rigidity.",
        ),
    ]
    sources = list(knees.rigidity.systematic)
    rows = []
    for row in knees.table().iter_rows(named=True):
        limits = [" to ".join(_limit(row[f"lg_knee_{side}_{level}_eV"]) for side in SIDES) for level in LEVELS]
        errors = [_error(row[f"lg_knee_error_{source}"]) for source in sources]
        rows.append((row["group"], f"{row['lg_knee_eV']:.2f}", *limits, *errors))
    heads = ("", "lg(E/eV) or lg(R/V)", "68 %", "95 %", *(f"± {source.replace('_', ' ')}" for source in sources))
    compared = [(HYPOTHESES[one.null], HYPOTHESES[one.other], f"{one.gained:z.1f}") for one in knees.comparisons]
    note = paragraph(
        "-2 ln L gained by the second hypothesis over the first. Intervals hold the statistics of data and simulation "
        "and the scales of energy, muons and "
        f"electrons. The sharpness of the knees is {best.likelihood.sharpness:g} and not fitted. Where a limit is "
        "open, the data do not bound the knee on that side; positions are then only where the profile is lowest."
    )
    good = bullets(
        f"{HYPOTHESES[name]}: chi-square {one.chi2:.1f} for {one.ndf} degrees of freedom"
        for name, one in knees.fits.items()
    )
    body = pictures(figures) + table(heads, rows)
    body += table(("hypothesis", "against", "gain"), compared) + note + good
    return [Section("knees", "Knees", body)]


def _errors(spectra: Spectra) -> Section:
    note = paragraph(
        "Errors of neighbouring groups are strongly anti-correlated: use the covariances in covariance.npz."
    )
    return Section("errors", "Shares and their errors, %", _shares(spectra) + note)


def _shares(spectra: Spectra) -> Markup:
    rows = []
    shown = spectra.table().filter(pl.col("used") & (pl.col("group") != ALL))
    for part in shown.partition_by("lg_energy_low_eV", maintain_order=True):
        energy = f"{part['lg_energy_low_eV'][0]:.2f}-{part['lg_energy_high_eV'][0]:.2f}"
        for row in part.filter("determined").iter_rows(named=True):
            cells = [_percent(row[f"fraction_error_{source}"], 1) for source in SOURCES]
            rows.append((energy, row["group"], f"{100 * row['fraction']:.1f}", *cells))
        missing = part.filter(~pl.col("determined"))["group"].to_list()
        if missing:
            rows.append((energy, ", ".join(missing), "not determined", *("" for _ in SOURCES)))
    heads = ("lg(E/eV)", "group", "share, %", *(f"± {source.replace('_', ' ')}" for source in SOURCES))
    return table(heads, rows)


def _spectra_doubts(spectra: Spectra) -> Section:
    lines = [
        f"{_goodness(spectra)}: chi-square does not see a difference that looks like another composition.",
        *spectra.remarks,
        "A difference between nature and all simulations that looks like another composition cannot be seen by any "
        "test here: the hadronic models' difference is the only hint of it.",
    ]
    return Section("doubts", "What to keep in mind", bullets(lines))
