"""Pictures of a search for photons: limits with their expected band, and scores of data beside simulation."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import INK, PALETTE, drawing, new_figure

BANDS = ((0, 4, 0.18), (1, 3, 0.38))
"""Quantiles between which is shaded, and how much."""


def limit_picture(
    lg_edges: np.ndarray, limit: np.ndarray, expected: np.ndarray, label: str, *, integral: bool, level: float
) -> Figure:
    """Draw observed limits with the band expected without photons.

    Parameters
    ----------
    lg_edges
        (R, 2) energy ranges, lg(E/eV).
    limit
        (R,) observed, in the units of ``label``.
    expected
        (R, 5) quantiles.
    integral
        Ranges are open above: drawn at their lower ends.
    """
    with drawing():
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        x = 10.0 ** (lg_edges[:, 0] if integral else lg_edges.mean(axis=1))
        low = 10.0 ** lg_edges[:, 0]
        high = low * 10**0.1 if integral else 10.0 ** lg_edges[:, 1]
        for k in range(len(limit)):
            for first, last, alpha in BANDS:
                axes.fill_between(
                    [low[k], high[k]], expected[k, first], expected[k, last], color=PALETTE[2], alpha=alpha, lw=0,
                    label=("expected, 95 %", "expected, 68 %")[alpha > 0.2] if k == 0 else None,
                )  # fmt: skip
            axes.plot([low[k], high[k]], [expected[k, 2]] * 2, color=INK, lw=0.9, ls="--",
                      label="expected, median" if k == 0 else None)  # fmt: skip
            axes.plot([low[k], high[k]], [limit[k]] * 2, color=PALETTE[0], lw=1.6, label="observed" if k == 0 else None)
        axes.plot(x if integral else np.sqrt(low * high), limit, "v", color=PALETTE[0], ms=5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("from energy, eV" if integral else "energy, eV")
        axes.set_ylabel(f"{label}, {level:.0%} limit")
        figure.legend(loc="outside upper center", ncols=2, columnspacing=1.0, handletextpad=0.5)
    return figure


def score_picture(
    data: np.ndarray,
    hadrons: tuple[np.ndarray, np.ndarray],
    photons: tuple[np.ndarray, np.ndarray],
    borders: tuple[float, float],
    title: str,
) -> Figure:
    """Draw how many events lie above each score: data, simulated hadrons, and photons to scale.

    Parameters
    ----------
    data
        (N,) scores of measured events.
    hadrons, photons
        Scores and weights of simulated events; photons are scaled to all data.
    borders
        Lower end of the sideband, and the threshold.
    """
    with drawing():
        figure = new_figure(3.0)
        axes = figure.add_subplot()
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
        axes.set_yscale("log")
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
