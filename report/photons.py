"""What people see of a search for photons: a table on the terminal, and a page with pictures and single candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.table import Table

from analysis.photons.events import HADRON, PHOTON
from analysis.photons.limits import BAND
from analysis.photons.result import PhotonResult
from analysis.photons.search import Limit, PhotonSearch
from report.display import event_picture, read_showers
from report.page.markup import Section, bullets, numbers, page, paragraph, picture, pictures, table
from report.pictures.photons import limit_picture, score_picture
from report.pictures.style import as_svg
from showers.datasets.dataset import Dataset
from showers.storage.files import atomic_path

PAGE_FILE = "gamma_limit.html"
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
    "flux",
)


def _energy(one: Limit) -> str:
    return f"> {one.lg_energy_low:.2f}" if one.integral else f"{one.lg_energy_low:.2f}-{one.lg_energy_high:.2f}"


def _cells(one: Limit) -> tuple[str, ...]:
    back = one.backgrounds
    flux = "-" if np.isnan(one.flux_per_event) else f"{one.limit * one.flux_per_event:.2g}"
    return (
        _energy(one), f"{one.measured:,}", f"{one.candidates:,}", f"{back.data.mean:.2f} ± {back.data.error:.2f}",
        f"{back.simulation.mean:.2f} ± {back.simulation.error:.2f}", f"{one.limit:.2f}",
        f"{one.expected[2]:.2f} [{one.expected[1]:.2f}, {one.expected[3]:.2f}]",
        f"{one.limit * one.fraction_per_event:.2g}", flux,
    )  # fmt: skip


def limits_text(found: PhotonSearch) -> Table:
    """Return limits by energy and walking up."""
    drawn = Table(
        title=f"photons, limits at {found.options.level:.0%} (CLs, background from data)", title_justify="left",
        caption="expected: median and 68 % without photons; flux m^-2 sr^-1 s^-1, in bins also eV^-1",
    )  # fmt: skip
    for head in HEADS:
        drawn.add_column(head, justify="left" if head == HEADS[0] else "right", no_wrap=True)
    for one in found.limits:
        drawn.add_row(*_cells(one))
    return drawn


def write_photon_page(result: PhotonResult, out: Path) -> Path:
    """Write ``OUT/gamma_limit.html`` and return its path."""
    found = result.search
    whole = next(one for one in found.limits if one.integral)
    expected = whole.backgrounds.data
    lead = numbers(
        [
            ("candidates", f"{whole.candidates:,}", f"of {whole.measured:,} from lg(E/eV) {whole.lg_energy_low:g}"),
            ("expected", f"{expected.mean:.1f} ± {expected.error:.1f}", "from the sideband"),
            ("fraction", f"< {whole.limit * whole.fraction_per_event:.2g}",
             f"at {found.options.level:.0%}; expected {whole.expected[2] * whole.fraction_per_event:.2g}"),
        ]
    )  # fmt: skip
    sections = [_limits(found), _scores(found), _background(found), _candidates(result), _doubts(found)]
    file = out / PAGE_FILE
    with atomic_path(file) as temporary:
        temporary.write_text(page("Search for photons", lead, sections), encoding="utf-8")
    return file


def _limits(found: PhotonSearch) -> Section:
    figures: list[str] = []
    for integral in (False, True):
        chosen = [one for one in found.limits if one.integral is integral]
        edges = np.array([(one.lg_energy_low, one.lg_energy_high) for one in chosen])
        flux = (
            r"$\Phi_\gamma$, m$^{-2}$ sr$^{-1}$ s$^{-1}$"
            if integral
            else r"$J_\gamma$, m$^{-2}$ sr$^{-1}$ s$^{-1}$ eV$^{-1}$"
        )
        scales = [("fraction of photons", [one.fraction_per_event for one in chosen])]
        if found.efficiency_known:
            scales.append((flux, [one.flux_per_event for one in chosen]))
        for label, each in scales:
            scale = np.array(each)
            limit = np.array([one.limit for one in chosen]) * scale
            expected = np.array([one.expected for one in chosen]) * scale[:, None]
            drawn = limit_picture(edges, limit, expected, label, integral=integral, level=found.options.level)
            what = "all energies from the lower end of each bar on" if integral else "in bins of energy"
            figures.append(picture(as_svg(drawn, f"limits, {what}, {len(figures)}"), f"Limits {what}."))
    note = paragraph(
        "CLs with the background from the sideband and its error averaged over. The band is what is expected without "
        f"photons. Photons are assumed to follow E^-{found.options.index:g} within a range."
    )
    return Section("limits", "Limits", pictures(figures) + table(HEADS, [_cells(one) for one in found.limits]) + note)


def _scores(found: PhotonSearch) -> Section:
    place = found.bins.place(found.data.lg_energy)
    events, figures = found.measuring.events, []
    for b in np.flatnonzero(found.regions.usable):
        here = found.measuring.place == b
        kinds = [here & (events.labels == label) for label in (HADRON, PHOTON)]
        hadrons, photons = ((events.score[kind], found.measuring.weight[kind]) for kind in kinds)
        title = f"lg(E/eV) {found.bins.edges[b]:g}-{found.bins.edges[b + 1]:g}"
        borders = float(found.regions.side[b]), float(found.regions.threshold[b])
        drawn = score_picture(found.data.score[place == b], hadrons, photons, borders, title)
        figures.append(picture(as_svg(drawn, f"scores, {title}"), f"{title}; shaded: sideband, line: threshold."))
    return Section("scores", "Scores", pictures(figures))


def _background(found: PhotonSearch) -> Section:
    rows = []
    for one in found.limits:
        back = one.backgrounds
        rows.append(
            (
                *(_energy(one), f"{back.side_seen:,}", f"{back.side_expected:,.1f}", f"{back.transfer:.3g}"),
                f"{back.data.mean:.2f} ± {back.data.error:.2f}",
                f"{back.simulation.mean:.2f} ± {back.simulation.error:.2f}",
                *(f"{one.candidates:,}", f"{one.significance:+.1f}", f"{one.interval[0]:.2f} to {one.interval[1]:.2f}"),
                f"{one.limit_simulation:.2f}",
            )
        )
    heads = (
        "lg(E/eV)", "sideband, seen", "simulated", "transfer", "background, data", "simulation", "seen", "sigma",
        "Feldman-Cousins, events", "limit with simulation",
    )  # fmt: skip
    step = found.transfer
    lines = [
        f"Within the sideband {step.closure_ratio:.2f} ± {step.closure_error:.2f} times the events predicted from its "
        f"lower half are seen in the upper one; {step.closure:.0%} count as an error of every transfer.",
        f"Hadronic models' transfers scatter by {step.models:.0%} beyond their statistics.",
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
    found, figures = result.search, []
    for k in found.candidates[:DISPLAYED]:
        folder, row = found.options.data[found.data.folder[k]], int(found.data.row[k])
        (shower,) = read_showers(Dataset.open(folder, labels=False), [row])
        title = f"event {row} of {folder.name}, score {found.data.score[k]:.2f}"
        figures.append(picture(as_svg(event_picture(shower, title), title), f"Event {row} of {folder.name}."))
    body = table(heads, rows) + (note if frame.height > LISTED else "") + pictures(figures)
    return Section("candidates", "Candidates", body)


def _doubts(found: PhotonSearch) -> Section:
    lines = [
        *found.remarks,
        f"The expected band (quantiles {', '.join(f'{share:g}' for share in BAND)}) has the background from data.",
        "Simulated hadrons are protons where the run was trained on the benchmark's gamma sets; heavier nuclei have "
        "more muons and are easier to reject.",
        "The fraction is that of photons among all particles of the same energy; reconstructed energies of photons are "
        "too low, which is corrected as far as the simulation and the assumed spectrum go.",
    ]
    return Section("doubts", "What to keep in mind", bullets(lines))
