"""Event displays: what the stations saw, the fitted core, and the lateral distributions with their fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from showerstack.features.compute import column_names, compute_chunk
from showerstack.features.groups.lateral import ELECTRON_GROUP, MUON_GROUP, POSITION_GROUP
from showerstack.features.lateral.events import energy_correction
from showerstack.report.pictures.style import PALETTE, colour_map, drawing, literal, new_figure, save_figure
from showerstack.report.pictures.ticks import PowerLabels
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import check_target
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import bad_cells, zero_if_not_finite
from showerstack.showers.lateral import axis_distance, rho_electron, rho_muon
from showerstack.showers.schema import MATRICES_FILE, SCALAR_NAMES

FIT_COLUMNS = ("fit_core_x_m", "fit_core_y_m", "fit_lg_ne", "fit_age", "fit_lg_nmu", "fit_muon_age", "fit_core_err_m")
GREY = "#8a8a8a"
"""Legible on white and on black, for what is drawn as pixels."""
HEIGHT_IN = 5.1
MAPS = ((0.15, 3.009, 0.335, 1.441), (0.63, 3.009, 0.335, 1.441))
SCALES = ((0.16, 2.57, 0.315, 0.055), (0.64, 2.57, 0.315, 0.055))
"""Where maps and their colour scales lie in an event display: (left, bottom, width, height), sideways in parts of the
figure, upwards in inches."""
LATERAL = (0.15, 0.078, 0.82, 0.345)
"""Where maps, their colour scales and the lateral distributions lie, (left, bottom, width, height) in parts of the
figure: a report has many of these pictures, and finding a layout takes as long as drawing."""
FARTHEST_M = 220.0
"""Where the axis of distances ends; at larger arrays it ends at half their side."""
RING_EDGES_M = np.geomspace(4.0, FARTHEST_M, 13)
ROOM_FOR_LEGEND = 0.28
"""Above the densities, in decades for each decade that they span."""
MAX_AGE = 1.5
"""Above this age the integral of the electron distribution diverges; the curve is drawn with it."""
MAX_MUON_AGE = 2.1
"""The same of the muon distribution."""


@dataclass(frozen=True)
class Shower:
    """One event, ready to be drawn."""

    grid: np.ndarray
    """(rows, columns, 2) float32, MeV per station."""
    scalars: dict[str, float]
    """E, Ze, Az, Ne, Nmu; NaN where the set has none."""
    fit: dict[str, float]
    """Columns :data:`FIT_COLUMNS`; NaN where the fit is undefined."""
    array: DetectorArray = KASCADE

    @property
    def direction_deg(self) -> tuple[float, float]:
        """Zenith and azimuth as the fit has them: vertical where the set has none."""
        known = (self.scalars["Ze"], self.scalars["Az"])
        return known if np.isfinite(known).all() else (0.0, 0.0)


def read_showers(dataset: Dataset, events: list[int]) -> list[Shower]:
    """Read events of a dataset and fit their lateral distributions; refuse impossible cells."""
    n_events = len(dataset)
    for event in events:
        if not 0 <= event < n_events:
            raise InputError(f"{dataset.path} has no event {event}: expected 0..{n_events - 1}")
    if not events:
        return []
    stored: Any = dataset.matrices
    for event in events:
        for bad in bad_cells(stored.as_stored([event]), str(dataset.path / MATRICES_FILE), event):
            raise InputError(f"{bad}, which is no deposit: the event cannot be drawn")
    grids = np.asarray(dataset.matrices[events], dtype=np.float32)
    scalars = zero_if_not_finite(np.asarray(dataset.scalars[events], dtype=np.float32))
    groups = frozenset({ELECTRON_GROUP, MUON_GROUP, POSITION_GROUP})
    columns = compute_chunk(np, grids, scalars, groups, dataset.working)
    seen = set(column_names(groups, dataset.array, dataset.quantities))
    unknown = [name not in dataset.quantities for name in SCALAR_NAMES]
    scalars = np.where(unknown, np.nan, scalars)
    return [
        Shower(
            grid=grids[row],
            scalars=dict(zip(SCALAR_NAMES, map(float, scalars[row]), strict=True)),
            fit={name: float(columns[name][row]) if name in seen else np.nan for name in FIT_COLUMNS},
            array=dataset.array,
        )
        for row in range(len(events))
    ]


def draw_event(dataset: Path, event: int, out: Path) -> Path:
    """Draw one event of a dataset folder into a file (``.png``, ``.svg`` or ``.pdf``).

    Parameters
    ----------
    dataset
        Dataset folder; labels are neither needed nor looked at.
    event
        Row, counted from 0.
    out
        The picture.

    Raises
    ------
    InputError
        If the folder cannot be read, the event does not exist, or the suffix is of no known format.
    """
    out = Path(out)
    check_target(out, (".png", ".svg", ".pdf"))
    opened = Dataset.open(dataset, labels=False)
    (shower,) = read_showers(opened, [event])
    save_figure(event_picture(shower, f"event {event} of {opened.path.name}"), out)
    return out


def event_picture(shower: Shower, title: str = "") -> Figure:
    """Draw both channels' maps and the lateral distribution of a shower."""
    with drawing():
        figure = new_figure(HEIGHT_IN, placed=True)
        draw_maps(figure, shower, HEIGHT_IN)
        _lateral(figure.add_axes(LATERAL), shower)
        s, f = shower.scalars, shower.fit
        given, fitted = "", ""
        if shower.array.has_electron.any():
            given, fitted = (
                f"; lg Ne {_text(s['Ne'], 2)}",
                f"lg Ne {_text(f['fit_lg_ne'], 2)}, age {_text(f['fit_age'], 2)}, ",
            )
        if shower.array.has_muon.any():
            given += f"{',' if given else ';'} lg Nμ {_text(s['Nmu'], 2)}"
            fitted += f"lg Nμ {_text(f['fit_lg_nmu'], 2)}, "
        facts = (
            f"lg E {_text(s['E'], 2)}, zenith {_text(s['Ze'], 1)}°, azimuth {_text(s['Az'], 0)}°{given}\n"
            f"fit: {fitted}core ({_text(f['fit_core_x_m'], 0)}, {_text(f['fit_core_y_m'], 0)}) "
            f"± {_text(f['fit_core_err_m'], 1)} m"
        )
        figure.suptitle(
            f"{literal(title)}\n{facts}" if title else facts, fontsize=7.5, x=0.02, y=0.99, ha="left", va="top"
        )
    return figure


def draw_maps(figure: Figure, shower: Shower, height_in: float) -> None:
    """Draw the maps of the channels that the array has at the top of a figure of that height, below its title."""
    live = (shower.array.has_electron, shower.array.has_muon)
    channels = [channel for channel in (0, 1) if live[channel].any()]
    for channel, *pair in zip(channels, MAPS, SCALES, strict=False):  # the first map is at the left
        box, scale = (
            (left, (bottom + height_in - HEIGHT_IN) / height_in, width, height / height_in)
            for left, bottom, width, height in pair
        )
        _map(figure.add_axes(box, ylabel="y, m" if channel == channels[0] else ""), scale, shower, channel)


def _text(value: float, digits: int) -> str:
    """Return a number, without a sign on zero; a dash where it is undefined."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if np.isfinite(value) else "–"


def _powers(axis: Axis, *, between: bool = True) -> None:
    """Label decades of a logarithmic axis alone, with ticks ``between`` them at 2 and 5: each tick takes its time."""
    axis.set_major_formatter(PowerLabels())
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)) if between else NullLocator())


def _map(axes: Axes, scale: tuple[float, float, float, float], shower: Shower, channel: int) -> None:
    deposit, array = shower.grid[:, :, channel], shower.array
    live = array.has_electron if channel == 0 else array.has_muon
    hit, silent = live & (deposit > 0), live & (deposit <= 0)
    x_m, y_m = array.x_m[silent], array.y_m[silent]
    axes.scatter(x_m, y_m, s=3, facecolors="none", edgecolors=GREY, linewidths=0.4, rasterized=True)
    if hit.any():
        values = deposit[hit]
        low, high = max(float(values.min()), 1.0), max(float(values.max()), 10.0)
        if high < 20 * low:  # the scale must hold a labelled tick or two
            low, high = 10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high) + 0.01)
        norm = LogNorm(low, high)
        points = axes.scatter(
            *(array.x_m[hit], array.y_m[hit]),
            c=values,
            s=19,
            cmap=colour_map(),
            norm=norm,
            edgecolors=GREY,
            linewidths=0.2,
            rasterized=True,
        )
        bar = axes.figure.colorbar(points, cax=axes.figure.add_axes(scale), orientation="horizontal")
        bar.set_label("deposit, MeV", fontsize=7, labelpad=1)
        bar.ax.tick_params(labelsize=7)
        _powers(bar.ax.xaxis, between=False)
    core_x, core_y = shower.fit["fit_core_x_m"], shower.fit["fit_core_y_m"]
    if np.isfinite(core_x):
        axes.plot(core_x, core_y, "+", color=PALETTE[0], ms=11, mew=1.6)
        zenith, azimuth = shower.direction_deg
        length, azimuth = 45 * np.sin(np.radians(zenith)), np.radians(azimuth)
        axes.plot(
            [core_x, core_x + length * np.cos(azimuth)],
            [core_y, core_y + length * np.sin(azimuth)],
            color=PALETTE[0],
            lw=1.2,
        )
    edge = array.half_side_m + 4.0
    axes.set_xlim(-edge, edge)
    axes.set_ylim(-edge, edge)
    axes.set_aspect("equal")
    # 100 m at KASCADE; elsewhere the largest of 1, 2, 5 times a power of ten that lies within.
    power = 10.0 ** np.floor(np.log10(edge))
    tick = max(step * power for step in (1, 2, 5) if step * power <= edge)
    axes.set_xticks([-tick, 0, tick])
    axes.set_yticks([-tick, 0, tick])
    axes.set_xlabel("x, m", labelpad=0)
    axes.yaxis.labelpad = 0
    axes.set_title(("e/gamma", "muon")[channel], pad=3)
    axes.grid(False)


def _lateral(axes: Axes, shower: Shower) -> None:
    """Draw densities in the shower plane, as the stations measured them and as fitted; empty stations at the bottom."""
    fit = shower.fit
    if not np.isfinite(fit["fit_core_x_m"]):
        axes.text(0.5, 0.5, "no fit: too few stations were hit", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    array, station, unit_m = shower.array, shower.array.response, shower.array.fit_unit_m
    r_m = axis_distance(array.x_m, array.y_m, fit["fit_core_x_m"], fit["fit_core_y_m"], *shower.direction_deg)
    per_electron = station.electron_deposit_mev * energy_correction(r_m / unit_m, station, np)
    channels = (
        ("e/gamma", array.electron_area_m2, per_electron, PALETTE[4], "o"),
        ("muon", array.muon_area_m2, np.full(r_m.shape, station.muon_deposit_mev), PALETTE[0], "^"),
    )
    lowest, highest = [], []
    for channel, (name, area, unit, colour, marker) in enumerate(channels):
        live = area > 0
        if not live.any():
            continue
        rho = shower.grid[:, :, channel][live] / unit[live] / area[live]
        axes.plot(r_m[live][rho > 0], rho[rho > 0], ".", color=colour, ms=2, alpha=0.45, mew=0, rasterized=True)
        centre, mean, error = ring_means(r_m[live], rho)
        axes.errorbar(centre, mean, error, fmt=marker, color=colour, ms=4, lw=0.9, label=name)
        lowest += mean[mean > 0].tolist()
        highest += rho.tolist()
    farthest = max(FARTHEST_M, array.half_side_m)
    r = np.geomspace(1.0, farthest - 20.0, 120)
    of_fit, square = r / unit_m, unit_m**2
    electrons = muons = np.zeros(r.shape)
    if array.has_electron.any():
        age = min(fit["fit_age"], MAX_AGE)
        electrons = np.asarray(rho_electron(of_fit, 10 ** fit["fit_lg_ne"], age)) / square
    if array.has_muon.any():
        s_mu = fit["fit_muon_age"] if np.isfinite(fit["fit_muon_age"]) else station.muon_age_mean
        muons = np.asarray(rho_muon(of_fit, 10 ** fit["fit_lg_nmu"], min(s_mu, MAX_MUON_AGE))) / square
    if array.has_electron.any() and array.has_muon.any():
        # An e/gamma detector counts muons too, each as one particle; a muon detector sees electrons punch through.
        both = electrons + muons / energy_correction(of_fit, station, np)
        axes.plot(r, both, color=PALETTE[4], label="fit, electrons + muons")
    if array.has_electron.any():
        axes.plot(r, electrons, ":", color=PALETTE[4], lw=0.9, label="fit, electrons alone")
    if array.has_muon.any():
        axes.plot(r, muons, "--", color=PALETTE[0], label="fit, muons")
        punched = muons + electrons * station.punch_through * np.exp(-of_fit / station.punch_through_scale_m)
        axes.fill_between(r, muons, punched, color=PALETTE[0], alpha=0.25, lw=0, label="punch-through expected")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, farthest)
    bottom, top = max(min(lowest, default=1e-2) / 4, 1e-4), max([*highest, 1.0]) * 5
    axes.set_ylim(bottom, top * (top / bottom) ** ROOM_FOR_LEGEND)
    axes.set_xlabel("distance to the fitted axis, m")
    axes.set_ylabel("density, m⁻²")
    _powers(axes.xaxis)
    _powers(axes.yaxis, between=False)
    axes.legend(fontsize=6, ncols=2, loc="upper right")


def ring_means(r_m: np.ndarray, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean distance, mean density and its standard error in rings, stations without a signal counted as zero.

    Rings with fewer than 3 stations are left out.
    """
    ring = np.digitize(r_m, RING_EDGES_M)
    rows = []
    for k in range(1, len(RING_EDGES_M)):
        inside = ring == k
        n = int(inside.sum())
        if n >= 3:
            rows.append((r_m[inside].mean(), rho[inside].mean(), rho[inside].std(ddof=1) / np.sqrt(n)))
    centre, mean, error = np.array(rows).T if rows else np.empty((3, 0))
    return centre, mean, error
