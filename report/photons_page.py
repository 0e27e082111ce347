"""The page of a search for photons: limits, scores, background, and the candidates one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from showerstack.analysis.photons.events import HADRON, PHOTON
from showerstack.analysis.photons.limits import BAND, Background
from showerstack.analysis.photons.result import Limit, PhotonResult, PhotonSearch
from showerstack.report.display import event_picture, read_showers
from showerstack.report.pictures.physics import limit_picture, score_picture
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
from showerstack.report.shared.provenance import made_of
from showerstack.runtime.whole_table import WholeTable
from showerstack.showers.dataset import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHOTONS_PAGE_FILE = "gamma_limit.html"
MANY_SIGMA = 3.0
"""Significance of all energies together from which a limit is not the result."""
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
    sections += made_of(search.provenance)
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
