"""Pictures of analyses: spectra and shares, fitted knees, limits on photons, data checks.

Spectra are drawn in the field's manner, flux times E^2.7 against energy; knees with the broken power laws and the
profiles of their positions; limits with their expected band, and scores of data beside simulation. A data check has
distributions beside the simulation's and the map of stations.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from showerstack.analysis.datacheck.streamed import BINS, CHANNELS, Difference, Histograms, StationHits
from showerstack.analysis.spectra.published import PublishedSpectrum
from showerstack.report.pictures.style import (
    INK,
    MARKERS,
    PALETTE,
    colour_map,
    drawing,
    literal,
    make_logarithmic,
    name_rows,
    new_figure,
    one_plot,
    places_of,
)
from showerstack.report.pictures.ticks import PowerLabels
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS

POWER = 2.7
BESIDE = 1.5
"""Factor in energy by which axes reach beyond the first and the last bin."""
LABEL = "J E²·⁷, m⁻² sr⁻¹ s⁻¹ eV¹·⁷"


def flux_picture(
    energy_ev: np.ndarray, flux: np.ndarray, statistical: np.ndarray, total: np.ndarray, names: tuple[str, ...],
    *, title: str = "",
) -> Figure:  # fmt: skip
    """Draw spectra (B, C) of C groups on one pair of axes: thick bars statistical, thin ones total errors.

    Fluxes are in m^-2 sr^-1 s^-1 eV^-1 at energies (B,); NaN is left out.
    """
    scale = energy_ev**POWER
    with one_plot(3.2) as (figure, axes):
        for k, (name, place) in enumerate(zip(names, places_of(names), strict=True)):
            colour = PALETTE[place]
            x = energy_ev * (1 + 0.06 * (k - (len(names) - 1) / 2))
            y = flux[:, k] * scale
            good = np.isfinite(y)
            for errors, width in ((total[:, k], 0.8), (statistical[:, k], 2.2)):
                axes.errorbar(x[good], y[good], (errors * scale)[good], fmt="none", ecolor=colour, elinewidth=width)
            axes.plot(x[good], y[good], MARKERS[place % len(MARKERS)], color=colour, label=name)
        _flux_axes(axes, energy_ev)
        _show_values(axes, flux * scale[:, None], statistical * scale[:, None])
        axes.set_title(title)
        if len(names) > 1:
            figure.legend(loc="outside upper center", ncols=len(names), columnspacing=0.8, handletextpad=0.2)
    return figure


def panel_pictures(
    energy_ev: np.ndarray, flux: np.ndarray, statistical: np.ndarray, total: np.ndarray, names: tuple[str, ...],
    published: tuple[PublishedSpectrum, ...] = (),
) -> list[Figure]:  # fmt: skip
    """Draw one picture for each group, beside what others published of it; arguments as for :func:`flux_picture`."""
    figures = []
    for k, name in enumerate(names):
        of_group, narrow, wide = (values[:, k : k + 1] for values in (flux, statistical, total))
        figure = flux_picture(energy_ev, of_group, narrow, wide, (name,), title=name)
        axes, others = figure.axes[0], [each for each in published if each.group == name]
        with drawing():
            for n, each in enumerate(others):
                scale = each.energy_ev**POWER
                axes.errorbar(
                    each.energy_ev, each.value * scale, each.error * scale, fmt=MARKERS[n % len(MARKERS)], mfc="none",
                    color=INK, alpha=0.5, ms=3, elinewidth=0.5, label=each.name,
                )  # fmt: skip
            if others:
                reach = np.concatenate([energy_ev, *(each.energy_ev for each in others)])
                axes.set_xlim(reach.min() / BESIDE, reach.max() * BESIDE)
                drawn = np.concatenate([each.value * each.energy_ev**POWER for each in others])
                _show_values(axes, drawn, np.zeros_like(drawn), axes.get_ylim())
                axes.legend(fontsize="x-small")
        figures.append(figure)
    return figures


def _energy_axis(axes: Axes) -> None:
    """Make the axis of energies logarithmic, with labels that do not run into each other."""
    make_logarithmic(axes, "x")
    low, high = axes.get_xlim()
    low = max(low, 1e-3 * high)  # without a point the axis begins below zero
    if np.floor(np.log10(high)) <= np.ceil(np.log10(low)):  # one power of ten alone is too few labels
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5) if high < 8 * low else (3,)))
        axes.xaxis.set_minor_formatter(PowerLabels(minor_thresholds=(np.inf, np.inf)))
    else:
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("energy, eV")


def _show_values(axes: Axes, values: np.ndarray, errors: np.ndarray, already: tuple[float, float] = (0.0, 0.0)) -> None:
    """Let the axis reach as far as values and their statistical errors do, beside what is shown already.

    Errors that are far larger run out of the picture instead of pressing all others to a line at zero.
    """
    good = np.isfinite(values) & np.isfinite(errors)
    if good.any():
        size = float(np.median(np.abs(values[good])))
        errors = np.minimum(errors[good], 3 * size)
        low, high = float((values[good] - errors).min()), float((values[good] + errors).max())
        axes.set_ylim(min(1.1 * low, already[0], -0.02 * high), max(1.1 * high, already[1]))


def _flux_axes(axes: Axes, energy_ev: np.ndarray) -> None:
    """Make axes for fluxes at energies (B,), which all are on them, with a result or without."""
    axes.axhline(0, color=INK, lw=0.6)
    axes.set_xlim(energy_ev.min() / BESIDE, energy_ev.max() * BESIDE)
    _energy_axis(axes)
    axes.set_ylabel(LABEL)


HIGHEST = 9.0
"""Difference of chi-square up to which profiles are drawn."""


def knee_picture(
    energy_ev: np.ndarray, flux: np.ndarray, errors: np.ndarray, names: tuple[str, ...],
    fitted: tuple[np.ndarray, np.ndarray],
) -> Figure:  # fmt: skip
    """Draw fluxes (B, C) with statistical errors, and the fitted ones as lines: energies (n,) and fluxes (n, C)."""
    scale, (at, lines) = energy_ev[:, None] ** POWER, fitted
    with one_plot(3.2) as (figure, axes):
        for k, (name, place) in enumerate(zip(names, places_of(names), strict=True)):
            axes.errorbar(
                energy_ev, (flux * scale)[:, k], (errors * scale)[:, k], fmt=MARKERS[place], color=PALETTE[place],
                label=name, elinewidth=1.2,
            )  # fmt: skip
            axes.plot(at, lines[:, k] * at**POWER, color=PALETTE[place], lw=1.0)
        _flux_axes(axes, energy_ev)
        figure.legend(loc="outside upper center", ncols=len(names), columnspacing=0.8, handletextpad=0.2)
    return figure


def profile_picture(profiles: list[tuple[str, np.ndarray, np.ndarray]]) -> Figure:
    """Draw chi-square above its minimum against the position: (name, lg E, difference); the last one is common."""
    with one_plot(3.0) as (figure, axes):
        places = places_of([name for name, _, _ in profiles])
        for k, (name, grid, difference) in enumerate(profiles):
            common = k == len(profiles) - 1
            colour, style = (INK, ":") if common else (PALETTE[places[k]], "-")
            axes.plot(grid, difference, style, color=colour, lw=1.8 if common else 1.2, label=name)
        for level in CHI_SQUARE_LEVELS:
            axes.axhline(level, color=INK, lw=0.6, ls="--")
        axes.set_ylim(0, HIGHEST)
        axes.set_xlabel("position of the knee, lg(E/eV); common: lg(R/V)")
        axes.set_ylabel("chi-square above minimum")
        figure.legend(loc="outside upper center", ncols=3, columnspacing=0.8, handletextpad=0.4)
    return figure


LARGEST_PULL = 3.0
"""Where the colours of pulls end."""


def cells_picture(cells: pl.DataFrame) -> Figure:
    """Draw the pulls of cells by energy and y (:func:`showerstack.analysis.spectra.sources.cells_table`)."""
    edges = np.unique(np.concatenate([cells["lg_energy_low_eV"].to_numpy(), cells["lg_energy_high_eV"].to_numpy()]))
    lows = cells["y_low"].fill_null(-np.inf).to_numpy()
    rows = np.unique(lows)
    pulls = np.full((len(rows), len(edges) - 1), np.nan)
    pulls[np.searchsorted(rows, lows), np.searchsorted(edges, cells["lg_energy_low_eV"].to_numpy())] = cells["pull"]
    with one_plot(2.4) as (figure, axes):
        drawn = axes.pcolormesh(
            edges, np.arange(len(rows) + 1), pulls, cmap=colour_map(), vmin=-LARGEST_PULL, vmax=LARGEST_PULL
        )
        axes.grid(False)
        axes.set_xlabel("reconstructed lg(E/eV)")
        axes.set_ylabel("bin of y, light to heavy")
        figure.colorbar(drawn, ax=axes, label="pull")
    return figure


def nuisances_picture(nuisances: pl.DataFrame, sums: tuple[str, ...]) -> Figure:
    """Draw fitted scales in their widths, and what they do to fluxes.

    The table is that of :func:`showerstack.analysis.spectra.sources.nuisances_table`, with impacts on ``sums``.
    """
    names = [name.replace("_", " ") for name in nuisances["nuisance"]]
    rows = np.arange(len(names))
    with drawing():
        figure = new_figure(1.2 + 0.5 * len(names))
        values, impacts = figure.subplots(1, 2, sharey=True)
        values.axvspan(-1, 1, color=PALETTE[2], alpha=0.25, lw=0, label="expected")
        values.errorbar(nuisances["value_in_widths"], rows, xerr=nuisances["error_in_widths"], fmt="o", color=INK)
        values.set_xlabel("scale, in its widths")
        reach = float((nuisances["value_in_widths"].abs() + nuisances["error_in_widths"]).max())  # type: ignore[arg-type]
        values.set_xlim(-max(1.5, 1.1 * reach), max(1.5, 1.1 * reach))
        for k, name in enumerate(sums):
            height = 0.8 / len(sums)
            at = rows + (k - (len(sums) - 1) / 2) * height
            impacts.barh(at, 100 * nuisances[f"impact_{name}"], height, color=PALETTE[k], label=name)
        impacts.axvline(0, color=INK, lw=0.6)
        impacts.set_xlabel("largest change of a flux, %")
        for axes in (values, impacts):
            name_rows(axes, names)
        figure.legend(loc="outside upper center", ncols=1 + len(sums), columnspacing=0.8, handletextpad=0.4)
    return figure


LEAST_SPAN = 3.0
"""Factor by which an axis of limits at least reaches."""
BANDS = ((0, 4, 0.18), (1, 3, 0.38))
"""Quantiles between which is shaded, and how much."""


def limit_picture(
    lg_edges: np.ndarray, limit: np.ndarray, expected: np.ndarray, label: str, *, integral: bool, level: float
) -> Figure:
    """Draw observed limits (R,) with the band of quantiles (R, 5) expected without photons.

    Energy ranges are lg(E/eV) (R, 2); integral ones are open above, and drawn at their lower ends.
    """
    with one_plot(3.2) as (figure, axes):
        x = 10.0 ** (lg_edges[:, 0] if integral else lg_edges.mean(axis=1))
        low = 10.0 ** lg_edges[:, 0]
        high = low * 10**0.1 if integral else 10.0 ** lg_edges[:, 1]
        with_width = np.flatnonzero(expected[:, 0] < expected[:, -1])[:1]  # of bands that nobody sees there is no label
        for k in range(len(limit)):
            for first, last, alpha in BANDS:
                axes.fill_between(
                    [low[k], high[k]], expected[k, first], expected[k, last], color=PALETTE[2], alpha=alpha, lw=0,
                    label=("expected, 95 %", "expected, 68 %")[alpha > 0.2] if k in with_width else None,
                )  # fmt: skip
            axes.plot([low[k], high[k]], [expected[k, 2]] * 2, color=INK, lw=0.9, ls="--",
                      label="expected, median" if k == 0 else None)  # fmt: skip
            axes.plot([low[k], high[k]], [limit[k]] * 2, color=PALETTE[0], lw=1.6, label="observed" if k == 0 else None)
        axes.plot(x if integral else np.sqrt(low * high), limit, "v", color=PALETTE[0], ms=5)
        make_logarithmic(axes, "y")
        bottom, top = axes.get_ylim()
        wider = max(LEAST_SPAN * bottom / top, 1.0) ** 0.5
        axes.set_ylim(bottom / wider, top * wider)
        _energy_axis(axes)
        if integral:
            axes.set_xlabel("from energy, eV")
        axes.set_ylabel(f"{label}, {100 * level:.0f} % limit")
        figure.legend(loc="outside upper center", ncols=2, columnspacing=1.0, handletextpad=0.5)
    return figure


def score_picture(
    data: np.ndarray,
    hadrons: tuple[np.ndarray, np.ndarray],
    photons: tuple[np.ndarray, np.ndarray],
    borders: tuple[float, float],
    title: str,
) -> Figure:
    """Draw how many events lie above each score: data (N,), simulated hadrons, and photons to scale.

    Of simulated events scores and weights are given; borders are the lower end of the sideband and the threshold.
    """
    with one_plot(3.0) as (figure, axes):
        n = len(data)
        drawn = [(data, np.ones(n), INK, "-", "data")]
        for (scores, weights), colour, style, name in (
            (hadrons, PALETTE[0], "--", "simulated hadrons"),
            (photons, PALETTE[4], ":", "photons, all data"),
        ):
            drawn.append((scores, weights * n / max(weights.sum(), 1e-300), colour, style, name))
        for scores, weights, colour, style, name in drawn:
            order = np.argsort(-scores)
            axes.step(scores[order], np.cumsum(weights[order]), style, color=colour, label=name, where="post", lw=1.3)
        axes.axvspan(*borders, color=PALETTE[1], alpha=0.2, lw=0)
        axes.axvline(borders[1], color=PALETTE[1], lw=1.2)
        make_logarithmic(axes, "y")
        axes.set_ylim(0.3, max(len(data), 10) * 1.5)
        shown = np.concatenate([photons[0], [borders[0] - 2.0]])
        axes.set_xlim(
            np.quantile(shown, 0.002) if len(shown) > 1 else borders[0] - 2, max(shown.max(), borders[1]) + 0.5
        )
        axes.set_xlabel("gamma score")
        axes.set_ylabel("events at or above")
        axes.set_title(title)
        figure.legend(loc="outside upper center", ncols=3, columnspacing=0.8, handletextpad=0.4)
    return figure


def distribution_picture(histograms: Histograms, difference: Difference) -> Figure:
    """Draw one feature in one energy bin: ratio of the data's share to the simulation's in each of its bins."""
    f, e = histograms.names.index(difference.feature), difference.energy_bin
    counts, sums, squares = histograms.counts[e, f], histograms.sums[e, f], histograms.squares[e, f]
    n_bins = len(histograms.edges[f]) + 1
    counts, sums, squares = counts[:n_bins], sums[:n_bins], squares[:n_bins]
    share, expected = counts / max(counts.sum(), 1), sums / sums.sum()
    good = expected > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = share / expected
        error = ratio * np.sqrt(1 / np.maximum(counts, 1) + squares / np.maximum(sums, 1e-30) ** 2)
    edges = histograms.edges[f]
    middle = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]]) if len(edges) else np.zeros(1)
    with one_plot(2.2) as (figure, axes):
        axes.axhline(1.0, color=INK, lw=0.7, ls="--")
        axes.errorbar(middle[good], ratio[good], error[good], fmt="o", color=PALETTE[4])
        # One bin with hardly a simulated shower would flatten all others.
        certain = good & (error < 1)
        axes.set_ylim(0.0, 1.1 * float(np.max((ratio + error)[certain], initial=2.0)))
        axes.set_xlabel(literal(difference.feature))
        axes.set_ylabel("data / simulation")
    return figure


def stations_picture(stations: StationHits) -> Figure:
    """Draw, for both channels, the share of events in which each station is hit, data over simulation."""
    with drawing():
        figure = new_figure(2.5)
        axes = figure.subplots(1, 2)
        for k, name in enumerate(CHANNELS):
            expected = stations.simulation[..., k]
            ratio = np.full(expected.shape, np.nan)
            np.divide(stations.data[..., k], expected, out=ratio, where=expected > 0)
            drawn = axes[k].imshow(ratio, origin="lower", cmap=colour_map(), vmin=0.7, vmax=1.3)
            axes[k].set_title(name)
            axes[k].grid(False)
            axes[k].set_xlabel("column")
        axes[0].set_ylabel("row")
        figure.colorbar(drawn, ax=axes, shrink=0.8, label="hit rate, data / simulation")
    return figure


def undefined_share(histograms: Histograms, difference: Difference) -> tuple[float, float]:
    """Return in which share of data and simulation the feature is undefined."""
    f, e = histograms.names.index(difference.feature), difference.energy_bin
    counts, sums = histograms.counts[e, f], histograms.sums[e, f]
    return counts[BINS] / max(counts.sum(), 1), sums[BINS] / sums.sum()
