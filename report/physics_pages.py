"""Tables and pages on analyses of spectra and on searches for photons, with the field's pictures.

A search's page also shows single candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from markupsafe import Markup

from showerstack.analysis.events import looked_at
from showerstack.analysis.options import SearchOptions, SpectraOptions
from showerstack.analysis.photons.events import HADRON, PHOTON
from showerstack.analysis.photons.limits import BAND, Background
from showerstack.analysis.photons.search import (
    MANY_SIGMA,
    SEARCH_FILE,
    Limit,
    PhotonResult,
    PhotonSearch,
    search_photons,
)
from showerstack.analysis.spectra.fluxes import STATISTICAL
from showerstack.analysis.spectra.published import published_spectra
from showerstack.analysis.spectra.response import ALL
from showerstack.analysis.spectra.run import (
    CELLS_CSV,
    COMPARISON_CSV,
    NUISANCES_CSV,
    PROVENANCE_FILE,
    SYSTEMATICS_CSV,
    Spectra,
    measure_spectra,
)
from showerstack.analysis.spectra.sources import narrow_scales
from showerstack.report.display import event_picture, read_showers
from showerstack.report.pictures.physics import (
    cells_picture,
    flux_picture,
    knee_picture,
    limit_picture,
    nuisances_picture,
    panel_pictures,
    profile_picture,
    score_picture,
)
from showerstack.report.pictures.style import as_svg
from showerstack.report.shared.markup import (
    Section,
    bullets,
    joined,
    numbers,
    paragraph,
    picture,
    pictures,
    table,
    write_page,
)
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import check_out_folder, read_json
from showerstack.runtime.whole_table import WholeTable
from showerstack.showers.dataset import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRA_PAGE_FILE = "spectra.html"
NAMED = 6
"""Folders that are named; of more, their number is given."""
SOURCES = ("data", "simulation", "scales", "hadronic_model", "total")


@dataclass(frozen=True)
class MeasuredSpectra(Spectra):
    """Spectra that a notebook shows."""

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


def write_spectra(options: SpectraOptions, ctx: Context = Context()) -> MeasuredSpectra:
    """Measure spectra; write their tables and their page, ``spectra.html``."""
    check_out_folder(options.out)
    result, remarks = measure_spectra(replace(options, data=looked_at(options.data, options.blinding)), ctx)
    write_spectra_page(result, options.out, remarks)
    return MeasuredSpectra(**{one.name: getattr(result, one.name) for one in fields(Spectra)})


def write_spectra_page(spectra: Spectra, out: Path, remarks: list[str]) -> Path:
    """Write ``OUT/spectra.html`` and return its path."""
    sections = [_spectra(spectra), _headline(spectra), *_knees(spectra), _errors(spectra), _sources(spectra)]
    sections += _stability(spectra)
    sections += [_spectra_doubts(spectra, remarks)]
    sections += _made_of(out / PROVENANCE_FILE)
    lead = bullets([*knee_lines(spectra), _goodness(spectra)])
    return write_page(out / SPECTRA_PAGE_FILE, "Elemental spectra", lead, sections)


def _made_of(provenance: Path) -> list[Section]:
    """Return a section on what a page was made from: run, data, exposure, cuts with the events left, versions, date."""
    if not provenance.exists():
        return []
    stored = read_json(provenance)
    data, flow = stored.get("data", []), stored.get("cut_flow", {})
    if not data:
        return []
    names = ", ".join(data) if len(data) <= NAMED else f"{', '.join(data[:NAMED])} and {len(data) - NAMED} more"
    of_live_time = stored.get("exposure_of_live_time_m2_sr_s")
    exposure = f"{stored['exposure_m2_sr_s']:.4g} m2 sr s ({stored['exposure_from']})"
    if of_live_time is not None and stored["exposure_from"] == "option":
        ratio = stored["exposure_m2_sr_s"] / of_live_time
        exposure += f", {ratio:.3g} times that of the runs' own live time, {of_live_time:.4g} m2 sr s"
    exposure += f", ± {100 * stored['exposure_relative_error']:.0f} % assumed, common to all energies"
    if of_live_time is not None:
        dead = stored["dead_time_s"]
        exposure += f"; dead time {f'of {dead:g} s an event' if dead else 'not'} subtracted from the live time"
    simulation = stored["simulation"]
    rows = [
        ("run", f"{stored['run']} ({stored['config_hash'][:12]})"),
        ("data", f"{names}{' (simulated)' if stored['simulated_data'] else ''}"),
        ("simulation", simulation if isinstance(simulation, str) else ", ".join(simulation)),
        ("exposure", exposure),
        ("zenith angle", f"below {stored['zenith_max_deg']:g} degrees"),
        *((f"events, {name}", f"{count:,}") for name, count in flow.items()),
        ("versions", ", ".join(f"{name} {version}" for name, version in stored["versions"].items())),
        ("revision", stored["git_revision"] or "unknown"),
        ("date", stored["date"]),
    ]
    return [Section("made", "Made from", table(("", ""), rows, kind="wide"))]


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
    return Section("spectra", "Spectra", pictures(figures) + table(heads, rows))


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


def _spectra_doubts(spectra: Spectra, remarks: list[str]) -> Section:
    lines = [
        f"{_goodness(spectra)}: chi-square does not see a difference that looks like another composition.",
        *remarks,
        "A difference between nature and all simulations that looks like another composition cannot be seen by any "
        "test here: the hadronic models' difference is the only hint of it.",
    ]
    return Section("doubts", "What to keep in mind", bullets(lines))


PHOTONS_PAGE_FILE = "gamma_limit.html"
DISPLAYED = 6
"""Candidates that are drawn, the highest scores."""
LISTED = 40
HEADS = (
    "lg(E/eV)",
    "events",
    "seen",
    "background, data",
    "simulation",
    "limit, events",
    "expected",
    "fraction",
    "flux, m⁻² sr⁻¹ s⁻¹ (bins: eV⁻¹)",
)


@dataclass(frozen=True)
class PhotonLimits(PhotonResult):
    """A search for photons that a notebook shows."""

    def _repr_html_(self) -> str:
        warnings = joined(paragraph(line) for line in excess_warning(self.search))
        return str(joined([warnings, _limits_table(self.search)]))

    def plot(self, *, integral: bool = False) -> Figure:
        """Return the page's picture of the limits on the fraction of photons as a figure of matplotlib.

        Parameters
        ----------
        integral
            For all energies from the lower end of each range on, and not in bins.
        """
        return next(_limit_pictures(self.search, integral))[1]


def _energy(one: Limit) -> str:
    if one.integral:
        return f"> {one.lg_energy_low:.2f}, < {one.lg_energy_high:.2f}"
    return f"{one.lg_energy_low:.2f}-{one.lg_energy_high:.2f}"


def _cells(one: Limit) -> tuple[str, ...]:
    back = one.backgrounds
    flux = "-" if np.isnan(one.flux_per_event) else f"{one.limit * one.flux_per_event:.2g}"
    return (
        _energy(one), f"{one.measured:,}", f"{one.candidates:,}", _background_text(back.data),
        _background_text(back.simulation), f"{one.limit:.2f}",
        f"{one.expected[2]:.2f} [{one.expected[1]:.2f}, {one.expected[3]:.2f}]",
        _limit_of_fraction(one.limit * one.fraction_per_event), flux,
    )  # fmt: skip


def _background_text(background: Background) -> str:
    """Return an expectation with its error; one that is small is not rounded to nothing."""
    if background.mean == 0:
        return "0"
    return " ± ".join(f"{one:.2f}" if one >= 0.005 else f"{one:.1g}" for one in (background.mean, background.error))


def _limit_of_fraction(limit: float) -> str:
    """Return a limit on a fraction; one above 1 says nothing."""
    return f"{limit:.2g}" if limit < 1.0 else "not limited"


def limits_text(photon_search: PhotonSearch) -> WholeTable:
    """Return limits by energy and walking up."""
    drawn = WholeTable(
        title=f"photons, limits at {100 * photon_search.options.level:.0f} % (CLs, background from data)",
        title_justify="left",
        caption="expected: median and 68 % without photons",
    )
    for head in HEADS:
        drawn.add_column(head, justify="left" if head == HEADS[0] else "right", no_wrap=True)
    for one in photon_search.limits:
        drawn.add_row(*_cells(one))
    return drawn


def write_photons(options: SearchOptions, ctx: Context = Context()) -> PhotonLimits:
    """Look for photons; write the tables of the search and its page, ``gamma_limit.html``."""
    check_out_folder(options.out)
    result = PhotonLimits(search_photons(replace(options, data=looked_at(options.data, options.blinding)), ctx))
    result.write(options.out)
    write_photon_page(result, options.out)
    return result


def write_photon_page(result: PhotonResult, out: Path) -> Path:
    """Write ``OUT/gamma_limit.html`` and return its path."""
    search = result.search
    total = next(one for one in search.limits if one.integral)
    expected = total.backgrounds.data
    excess = total.significance > MANY_SIGMA
    fraction = total.limit * total.fraction_per_event
    lead = numbers(
        [
            ("candidates", f"{total.candidates:,}",
             f"of {total.measured:,} at lg(E/eV) {total.lg_energy_low:g} to {total.lg_energy_high:g}"),
            ("expected", f"{expected.mean:.1f} ± {expected.error:.1f}", "from the sideband"),
            ("significance", f"{total.significance:.1f} sigma",
             "see the warning above" if excess else "of an excess; 0 for a deficit"),
            *([] if excess else [
                ("fraction", f"< {_limit_of_fraction(fraction)}" if fraction < 1.0 else _limit_of_fraction(fraction),
                 f"at {100 * search.options.level:.0f} %; expected {total.expected[2] * total.fraction_per_event:.2g}")
            ]),
        ]
    )  # fmt: skip
    lead = joined(paragraph(line, "warn") for line in excess_warning(search)) + lead
    sections = [_limits(search), _scores(search), _background(search), _candidates(result), _photon_doubts(search)]
    sections += _made_of(out / SEARCH_FILE)
    return write_page(out / PHOTONS_PAGE_FILE, "Search for photons", lead, sections)


def excess_warning(search: PhotonSearch) -> list[str]:
    """Return what comes before every limit where far more candidates are seen than background is expected."""
    total = next(one for one in search.limits if one.integral)
    if total.significance <= MANY_SIGMA:
        return []
    expected = total.backgrounds.data
    return [
        f"Warning: {total.candidates:,} candidates are seen where {expected.mean:.1f} ± {expected.error:.1f} are "
        f"expected, {total.significance:.1f} standard deviations. Limits are not the result here: these are photons, "
        "or hadrons that the simulation does not know. Look at the candidates, their runs and the scores."
    ]


def _limit_pictures(photon_search: PhotonSearch, integral: bool) -> Iterator[tuple[str, Figure]]:
    """Yield words and pictures of the limits on the fraction of photons, then on their flux where that is known."""
    chosen = [one for one in photon_search.limits if one.integral is integral]
    edges = np.array([(one.lg_energy_low, one.lg_energy_high) for one in chosen])
    scales = [("fraction of photons", [one.fraction_per_event for one in chosen])]
    if photon_search.efficiency_known:
        flux = "photon flux, m⁻² sr⁻¹ s⁻¹" + ("" if integral else " eV⁻¹")
        scales.append((flux, [one.flux_per_event for one in chosen]))
    highest = f"lg(E/eV) {max(one.lg_energy_high for one in chosen):g}"
    what = f"for all energies from the lower end of each bar to {highest}" if integral else "in bins of energy"
    for label, each in scales:
        scale = np.array(each)
        limit = np.array([one.limit for one in chosen]) * scale
        expected = np.array([one.expected for one in chosen]) * scale[:, None]
        if label.startswith("fraction"):  # all events can be photons, and not more
            limit, expected = np.where(limit < 1.0, limit, np.nan), np.minimum(expected, 1.0)
        level = photon_search.options.level
        yield what, limit_picture(edges, limit, expected, label, integral=integral, level=level)


def _limits_table(photon_search: PhotonSearch) -> Markup:
    return table(HEADS, [_cells(one) for one in photon_search.limits])


def _limits(photon_search: PhotonSearch) -> Section:
    figures: list[Markup] = []
    for integral in (False, True):
        for what, drawn in _limit_pictures(photon_search, integral):
            figures.append(picture(as_svg(drawn, f"limits, {what}, {len(figures)}"), f"Limits {what}."))
    note = paragraph(
        "CLs of the likelihood ratio of signal region and sideband, in data and simulation. The band is what is "
        f"expected without photons. Photons are assumed to follow E^-{photon_search.options.index:g} within a range."
    )
    return Section("limits", "Limits", pictures(figures) + _limits_table(photon_search) + note)


def _scores(photon_search: PhotonSearch) -> Section:
    energy_bin = photon_search.bins.bin_of(photon_search.data.lg_energy)
    events, figures = photon_search.measuring.events, []
    for b in np.flatnonzero(photon_search.regions.usable):
        in_bin = photon_search.measuring.energy_bin == b
        kinds = [in_bin & (events.labels == label) for label in (HADRON, PHOTON)]
        hadrons, photons = ((events.score[kind], photon_search.measuring.weight[kind]) for kind in kinds)
        title = f"lg(E/eV) {photon_search.bins.edges[b]:g}-{photon_search.bins.edges[b + 1]:g}"
        borders = float(photon_search.regions.side[b]), float(photon_search.regions.threshold[b])
        drawn = score_picture(photon_search.data.score[energy_bin == b], hadrons, photons, borders, title)
        figures.append(picture(as_svg(drawn, f"scores, {title}"), f"{title}; shaded: sideband, line: threshold."))
    return Section("scores", "Scores", pictures(figures))


def _background(photon_search: PhotonSearch) -> Section:
    rows = []
    for one in photon_search.limits:
        back = one.backgrounds
        rows.append(
            (
                *(_energy(one), f"{back.side_seen:,}", f"{back.side_expected:,.1f}", f"{back.transfer:.3g}"),
                _background_text(back.data),
                _background_text(back.simulation),
                *(f"{one.candidates:,}", f"{one.significance:.1f}", f"{one.interval[0]:.2f} to {one.interval[1]:.2f}"),
                f"{one.limit_simulation:.2f}",
            )
        )
    heads = (
        "lg(E/eV)", "sideband, seen", "simulated", "transfer", "background, data", "simulation", "seen", "sigma",
        "unified interval, events", "limit with simulation",
    )  # fmt: skip
    step = photon_search.transfer
    lines = [
        f"Within the sideband {step.closure_ratio:.2f} ± {step.closure_error:.2f} times the events predicted from its "
        f"lower half are seen in the upper one; {100 * step.closure:.0f} % count as an error of every transfer.",
        "How much hadronic models' transfers scatter is unknown: fewer than two models have enough events."
        if np.isnan(step.models)
        else f"Hadronic models' transfers scatter by {100 * step.models:.0f} % beyond their statistics.",
        "Significances are those of one row; there are several rows, and they share events.",
    ]
    return Section("background", "Background", table(heads, rows) + bullets(lines))


def _candidates(result: PhotonResult) -> Section:
    frame = result.candidates()
    rows = [
        (str(row["data"]), f"{row['row']:,}", f"{row['score']:.2f}", f"+{row['score_above_threshold']:.2f}",
         f"{row['lg_energy_eV']:.2f}", f"{row['zenith_deg']:.1f}", f"{row['lg_ne']:.2f}", f"{row['lg_nmu']:.2f}")
        for row in frame.head(LISTED).iter_rows(named=True)
    ]  # fmt: skip
    if not rows:
        return Section("candidates", "Candidates", paragraph("No event lies above the threshold."))
    heads = ("data", "row", "score", "above threshold", "lg(E/eV)", "zenith, deg", "lg Ne", "lg Nmu")
    note = paragraph(f"The {LISTED} highest of {frame.height:,} are listed here, all in candidates.csv.", "quiet")
    search, figures = result.search, []
    for k in search.candidates[:DISPLAYED]:
        folder, row = search.options.data[search.data.folder[k]], int(search.data.row[k])
        (shower,) = read_showers(Dataset.open(folder, labels=False), [row])
        title = f"event {row} of {folder.name}, score {search.data.score[k]:.2f}"
        figures.append(picture(as_svg(event_picture(shower, title), title), f"Event {row} of {folder.name}."))
    body = table(heads, rows) + (note if frame.height > LISTED else Markup()) + pictures(figures)
    return Section("candidates", "Candidates", body)


def _photon_doubts(photon_search: PhotonSearch) -> Section:
    lines = [
        *photon_search.remarks,
        f"The expected band (quantiles {', '.join(f'{share:g}' for share in BAND)}) has the background from data.",
        "Simulated hadrons are protons where the run was trained on the benchmark's gamma sets; heavier nuclei have "
        "more muons and are easier to reject.",
        "The fraction is that of photons among all particles of the same energy. Candidates and photons have the "
        "energy of a photon with their lg Ne and zenith angle, all particles that of KASCADE's formula.",
    ]
    return Section("doubts", "What to keep in mind", bullets(lines))
