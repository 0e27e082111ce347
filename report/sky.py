"""What people see of a sky map: a sentence, and a picture of counts, significance and its distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import TwoSlopeNorm
from scipy.stats import norm

from analysis.sky.sky_map import MIN_EXPECTED, SkyMap
from report.pictures.style import INK, MAP, PALETTE, drawing, new_figure, save_figure

PICTURE_FILE = "sky_map.png"


def sky_words(found: SkyMap) -> str:
    """Return in plain words what the map shows."""
    start = f"{found.events:,} showers in {int((found.expected > 0).sum()):,} pixels"
    if found.highest is None:
        return f"{start}: no pixel expects {MIN_EXPECTED:g} counts or more, no significance is given; use larger pixels"
    best, sigma, p_value = found.highest
    values = found.significance[np.isfinite(found.significance)]
    ra_low, ra_high, dec_low, dec_high = found.pixels.borders()[best]
    spread = "" if len(values) < 2 else f"; mean {values.mean():+.3f}, standard deviation {values.std(ddof=1):.3f}"
    return (
        f"{start}, {len(values):,} with a significance{spread} (an isotropic sky: 0 and nearly 1). Highest: "
        f"{sigma:.2f} standard deviations at right ascension {(ra_low + ra_high) / 2:.1f}, declination "
        f"{(dec_low + dec_high) / 2:.1f} deg, {found.counts[best]:,} counts where {found.expected[best]:.1f} are "
        f"expected; probability without sources, all pixels counted, {p_value:.2g}"
    )


def write_sky_picture(found: SkyMap, out: Path) -> Path:
    """Draw counts and significance on the sky and the distribution of significances; return the file."""
    seen = np.flatnonzero(found.expected > 0)
    significance = found.significance
    with drawing():
        figure = new_figure(6.6, 6.4)
        places = figure.subplots(3, 1, height_ratios=(1.0, 1.0, 1.0))
        _sky(places[0], found, seen, found.counts[seen] / found.pixels.solid_angle_sr()[seen], "counts per sr", None)
        shown = seen[np.isfinite(significance[seen])]
        _sky(places[1], found, shown, significance[shown], "significance (standard deviations)", 5.0)
        _distribution(places[2], significance[shown])
    save_figure(figure, out / PICTURE_FILE)
    return out / PICTURE_FILE


def _sky(axes: Axes, found: SkyMap, pixels: np.ndarray, values: np.ndarray, label: str, around: float | None) -> None:
    """Draw one value a pixel; right ascension grows to the left, as seen from Earth."""
    corners = found.pixels.borders()[pixels]
    boxes = np.stack([corners[:, [0, 1, 1, 0]], corners[:, [2, 2, 3, 3]]], axis=-1)
    colours = {"cmap": MAP} if around is None else {"cmap": "RdBu_r", "norm": TwoSlopeNorm(0.0, -around, around)}
    drawn = PolyCollection(list(boxes), array=values, edgecolors="face", linewidths=0.2, **colours)
    axes.add_collection(drawn)
    low, high = found.pixels.dec_edges_deg[[0, -1]]
    axes.set(xlim=(360.0, 0.0), ylim=(low, high), xlabel="right ascension (deg)", ylabel="declination (deg)")
    axes.figure.colorbar(drawn, ax=axes, label=label)


def _distribution(axes: Axes, values: np.ndarray) -> None:
    edges = np.arange(-5.25, max(5.5, float(values.max(initial=0.0)) + 0.75), 0.5)
    axes.stairs(np.histogram(values, edges)[0], edges, color=PALETTE[4], label="pixels")
    fine = np.linspace(-5, 5, 201)
    axes.plot(fine, len(values) * 0.5 * norm.pdf(fine), color=INK, linestyle="--", label="standard normal")
    axes.set(xlabel="significance (standard deviations)", ylabel="pixels", yscale="log", ylim=(0.5, None))
    axes.legend()
