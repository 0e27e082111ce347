"""Pictures of a data check: distributions beside the simulation's, shares beyond quantiles, the map of stations."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from analysis.datacheck.distributions import BINS, Difference, Histograms
from analysis.datacheck.stations import CHANNELS, StationHits
from report.pictures.style import INK, MAP, PALETTE, drawing, literal, new_figure


def distribution_picture(found: Histograms, difference: Difference) -> Figure:
    """Draw one feature in one energy bin: ratio of the data's share to the simulation's in each of its bins."""
    f, e = found.names.index(difference.feature), difference.energy_bin
    counts, sums, squares = found.counts[e, f], found.sums[e, f], found.squares[e, f]
    n_bins = len(found.edges[f]) + 1
    counts, sums, squares = counts[:n_bins], sums[:n_bins], squares[:n_bins]
    share, expected = counts / max(counts.sum(), 1), sums / sums.sum()
    good = expected > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = share / expected
        error = ratio * np.sqrt(1 / np.maximum(counts, 1) + squares / np.maximum(sums, 1e-30) ** 2)
    edges = found.edges[f]
    middle = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]]) if len(edges) else np.zeros(1)
    with drawing():
        figure = new_figure(2.2)
        axes = figure.add_subplot()
        axes.axhline(1.0, color=INK, lw=0.7, ls="--")
        axes.errorbar(middle[good], ratio[good], error[good], fmt="o", color=PALETTE[4])
        axes.set_xlabel(literal(difference.feature))
        axes.set_ylabel("data / simulation")
    return figure


def tails_picture(quantiles: list[float], expected: list[float], seen: list[float]) -> Figure:
    """Draw the share of the data beyond the simulation's quantiles beside the expected one."""
    with drawing():
        figure = new_figure(1.8)
        axes = figure.add_subplot()
        place = np.arange(len(quantiles))
        axes.plot(100 * np.array(expected), place, "s", color=INK, label="expected", mfc="none")
        axes.plot(100 * np.array(seen), place, "o", color=PALETTE[0], label="data")
        axes.set_yticks(place, [f"{100 * q:g} %" for q in quantiles])
        axes.set_ylim(-0.5, len(quantiles) - 0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of events beyond the quantile, %")
        axes.set_ylabel("quantile of the simulation")
        figure.legend(loc="outside upper right", ncols=2)
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
            drawn = axes[k].imshow(ratio, origin="lower", cmap=MAP, vmin=0.7, vmax=1.3)
            axes[k].set_title(name)
            axes[k].grid(False)
            axes[k].set_xlabel("column")
        axes[0].set_ylabel("row")
        figure.colorbar(drawn, ax=axes, shrink=0.8, label="hit rate, data / simulation")
    return figure


def undefined_share(found: Histograms, difference: Difference) -> tuple[float, float]:
    """Return in which share of data and simulation the feature is undefined."""
    f, e = found.names.index(difference.feature), difference.energy_bin
    counts, sums = found.counts[e, f], found.sums[e, f]
    return counts[BINS] / max(counts.sum(), 1), sums[BINS] / sums.sum()
