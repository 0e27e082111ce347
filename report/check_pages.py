"""Pages and lines on analyses that need no spectra: data check, sky map.

The page of a data check gives the verdict first, then the tests, then pictures of what differs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import TwoSlopeNorm

from showerstack.analysis.datacheck.check import TESTS, DataCheck, as_json, verdict
from showerstack.analysis.datacheck.streamed import ENERGY_EDGES
from showerstack.analysis.sky.map import MIN_EXPECTED, SkyMap
from showerstack.features.catalogue import CATALOGUE
from showerstack.report.pictures.physics import (
    distribution_picture,
    stations_picture,
    undefined_share,
)
from showerstack.report.pictures.style import (
    INK,
    PALETTE,
    as_svg,
    colour_map,
    drawing,
    make_logarithmic,
    new_figure,
    save_figure,
)
from showerstack.report.shared.markup import (
    Section,
    bullets,
    heading,
    numbers,
    paragraph,
    picture,
    pictures,
    table,
    write_page,
)
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_json

DRAWN = 8
"""Features that are drawn, each once, in the energy bin where it differs most."""


def write_check(check: DataCheck, out: Path) -> Path:
    """Write the page, and its numbers beside it as JSON."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: name an .html file")
    sections = [_tests(check), _features(check), _stations(check), _order(check)]
    lead = paragraph(verdict(check), "warn" if check.raised else "") + numbers(
        [
            ("events under the cuts", f"{check.n_events:,}", f"of {check.n_all:,}"),
            ("simulated events", f"{check.n_simulation:,}", f"worth {check.fitted.effective:,.0f} after weighting"),
        ]
    )
    lead += bullets(check.remarks) if check.remarks else ""
    write_page(out, f"Data check of {check.data.name}", lead, sections)
    write_json(out.with_suffix(".json"), as_json(check))
    return out


def energy_range(number: int) -> str:
    """Return the name of an energy bin."""
    if number == 0:
        return f"below {ENERGY_EDGES[0]:g}"
    if number == len(ENERGY_EDGES):
        return f"above {ENERGY_EDGES[-1]:g}"
    return f"{ENERGY_EDGES[number - 1]:g} to {ENERGY_EDGES[number]:g}"


def _tests(check: DataCheck) -> Section:
    limit = check.alarms / len(check.p_values)
    rows = [
        [TESTS[name], f"{p:.2g}", _effect(check, name), "alarm" if name in check.raised else ""]
        for name, p in check.p_values.items()
    ]
    stressed = [k for k, row in enumerate(rows) if row[3]]
    fractions = zip(check.classes, check.fitted.fractions, strict=True)
    body = table(["test", "p, adjusted within the test", "size of the difference", ""], rows, ours=stressed)
    body += paragraph(
        f"Each test gives an alarm below {limit:.2g}, so that {100 * check.alarms:g} % of samples from the "
        "simulation's own world would raise one or more. The simulation was weighted to the data's composition and "
        f"spectra ({', '.join(f'{name} {share:.2f}' for name, share in fractions)}; for weighting only, not a result).",
        "quiet",
    )
    return Section("tests", "Tests", body)


def _unit(feature: str) -> str:
    """Return a feature's unit in words."""
    unit = CATALOGUE[feature].unit if feature in CATALOGUE else ""
    return {"1": "pure number", "lg": "decimal logarithm"}.get(unit, unit)


def _effect(check: DataCheck, name: str) -> str:
    """Return how large the difference is, whatever its significance."""
    if name == "zenith" and check.zenith is not None:
        return f"{check.zenith.effect:+.3f} ± {check.zenith.error:.3f} in mean ln A"
    if name == "features" and check.differences:
        best = check.differences[0]
        return f"{best.sigmas:+.2f} standard deviations of {best.feature}"
    return ""


def _features(check: DataCheck) -> Section:
    rows = [
        [
            d.feature,
            _unit(d.feature),
            CATALOGUE[d.feature].meaning if d.feature in CATALOGUE else "",
            energy_range(d.energy_bin),
            f"{d.shift:+.4g}",
            f"{d.sigmas:+.3f}",
            f"{d.p:.2g}",
        ]
        for d in check.differences[:15]
    ]
    drawn: list[Markup] = []
    drawn_features: set[str] = set()
    for d in check.differences:
        if d.feature in drawn_features or len(drawn) == DRAWN:
            continue
        drawn_features.add(d.feature)
        data, simulation = undefined_share(check.histograms, d)
        undefined = (
            f"; undefined in {100 * data:.1f} % (simulation {100 * simulation:.1f} %)" if data + simulation else ""
        )
        caption = f"{d.feature}, lg(E/eV) {energy_range(d.energy_bin)}: p = {d.p:.2g}{undefined}"
        drawn.append(picture(as_svg(distribution_picture(check.histograms, d), caption), caption))
    body = table(
        ["feature", "unit of the shift", "meaning", "lg(E/eV)", "mean shift", "in standard deviations", "p, adjusted"],
        rows,
    )
    return Section("features", "Features", body + pictures(drawn))


def _stations(check: DataCheck) -> Section:
    caption = "How often stations are hit, data over simulation; empty where there is no detector"
    return Section("stations", "Stations", picture(as_svg(stations_picture(check.stations), caption), caption))


def _order(check: DataCheck) -> Section:
    body = table(["quantity", "p that rows are in random order"], [[n, f"{p:.2g}"] for n, p in check.order.items()])
    if check.run_p.size:
        worst = check.run_p.argsort()[:10]
        rows = []
        for f in worst:
            run = int(abs(check.run_residuals[:, f]).argmax())
            name = check.histograms.names[f]
            rows.append([name, f"{check.run_p[f]:.2g}", check.run_names[run], f"{check.run_residuals[run, f]:+.1f}"])
        body += heading("From run to run") + table(["feature", "p, adjusted", "run farthest off", "its residual"], rows)
    return Section("order", "Order of rows and runs", body)


PICTURE_FILE = "sky_map.png"


def describe_sky(sky_map: SkyMap) -> str:
    """Return in plain words what the map shows."""
    start = f"{sky_map.events:,} showers in {int((sky_map.expected > 0).sum()):,} pixels"
    if sky_map.highest is None:
        few = f"no pixel expects {MIN_EXPECTED:g} counts or more, no significance is given"
        return f"{start}: {few}; a smaller --nside makes larger pixels"
    best, sigma, p_value = sky_map.highest
    values = sky_map.significance[np.isfinite(sky_map.significance)]
    ra_deg, dec_deg = sky_map.pixels.centres(np.array([best]))
    spread = "" if len(values) < 2 else f"; mean {values.mean():+z.3f}, standard deviation {values.std(ddof=1):.3f}"
    return (
        f"{start}, {len(values):,} with a significance{spread} (isotropic arrival directions: 0 and nearly 1). "
        f"Highest: {sigma:.2f} standard deviations at right ascension {ra_deg[0]:.1f}, declination "
        f"{dec_deg[0]:.1f} deg, {sky_map.counts[best]:,} counts where {sky_map.expected[best]:.1f} are "
        f"expected; probability without sources, all pixels counted, {p_value:.2g}"
    )


def write_sky_picture(sky_map: SkyMap, out: Path) -> Path:
    """Draw counts on the sky and, where any are known, significances and their distribution; return the file."""
    observed = np.flatnonzero(sky_map.expected > 0)
    significance = sky_map.significance
    shown = observed[np.isfinite(significance[observed])]
    with drawing():
        n_panels = 3 if len(shown) else 1
        figure = new_figure(2.2 * n_panels, 6.4)
        places = figure.subplots(n_panels, 1, squeeze=False)[:, 0]
        density = sky_map.counts[observed] / sky_map.pixels.solid_angle_sr
        _sky(places[0], sky_map, observed, density, "counts per sr", None)
        if len(shown):
            _sky(places[1], sky_map, shown, significance[shown], "significance (standard deviations)", 5.0)
            _distribution(places[2], significance[shown])
    save_figure(figure, out / PICTURE_FILE)
    return out / PICTURE_FILE


def _sky(axes: Axes, sky_map: SkyMap, pixels: np.ndarray, values: np.ndarray, label: str, around: float | None) -> None:
    """Draw one value a pixel; right ascension grows to the left, as seen from Earth."""
    corners = sky_map.pixels.corners(pixels)
    # A pixel on the border of the picture is drawn on both sides.
    turn = np.array([360.0, 0.0])
    boxes = np.concatenate([corners, corners - turn, corners + turn])
    colours = (
        {"cmap": colour_map()} if around is None else {"cmap": "RdBu_r", "norm": TwoSlopeNorm(0.0, -around, around)}
    )
    drawn = PolyCollection(list(boxes), array=np.tile(values, 3), edgecolors="face", linewidths=0.2, **colours)
    axes.add_collection(drawn)
    reach, latitude = sky_map.options.zenith_max_deg, sky_map.site.latitude_deg
    axes.set(
        xlim=(360.0, 0.0),
        ylim=(max(latitude - reach, -90.0), min(latitude + reach, 90.0)),
        xlabel="right ascension (deg)",
        ylabel="declination (deg)",
    )
    axes.figure.colorbar(drawn, ax=axes, label=label)


def _distribution(axes: Axes, values: np.ndarray) -> None:
    edges = np.arange(-5.25, max(5.5, float(values.max(initial=0.0)) + 0.75), 0.5)
    axes.stairs(np.histogram(values, edges)[0], edges, color=PALETTE[4], label="pixels")
    fine = np.linspace(-5, 5, 201)
    axes.plot(
        fine,
        len(values) * 0.5 * np.exp(-(fine**2) / 2) / np.sqrt(2 * np.pi),
        color=INK,
        linestyle="--",
        label="standard normal",
    )
    axes.set(xlabel="significance (standard deviations)", ylabel="pixels")
    make_logarithmic(axes, "y")
    axes.set(ylim=(0.5, None))
    axes.legend()
