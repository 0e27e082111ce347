"""Pictures of the tasks: confusion and fraction errors, survival and scores, residuals of estimates, plane of sizes.

The plane is that of reconstructed electron and muon numbers, coloured by the posterior of what ships.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from showerstack.report.pictures.style import (
    INK,
    MARKERS,
    PALETTE,
    colour_map,
    drawing,
    literal,
    make_logarithmic,
    new_figure,
    one_plot,
    places_of,
)
from showerstack.scoring.metrics.bins import Bin, bins_with_events
from showerstack.scoring.metrics.classes import BinAtThreshold, balanced_accuracy
from showerstack.scoring.metrics.gamma import KEY_EFFICIENCY, hadron_survival
from showerstack.scoring.metrics.intervals import clopper_pearson, share_interval
from showerstack.scoring.metrics.level import LEVEL, standard_errors
from showerstack.scoring.tasks.published import SURVIVAL_CURVE
from showerstack.showers.schema import GAMMA_CLASS, HADRON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

N_RELIABILITY_BINS = 10
MIN_BIN_EVENTS = 10
"""Bins with fewer events say nothing and are not drawn."""
ABOVE: dict[str, Any] = {
    "xytext": (0, 4), "textcoords": "offset points", "va": "bottom", "ha": "center", "fontsize": 6.5,
}  # fmt: skip
"""How the number of events stands above the end of an interval."""


def _draw_confusion(axes: Axes, matrix: np.ndarray, digits: int, **text: Any) -> AxesImage:
    """Draw P(predicted | true) in per cent of counts (C, C), row = true class; of no events nothing."""
    totals = matrix.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * matrix, totals, out=np.full(matrix.shape, np.nan), where=totals > 0)
    shown = axes.imshow(share, vmin=0, vmax=100, cmap=colour_map())
    for (row, column), value in np.ndenumerate(share):
        if np.isfinite(value):
            ink = "#000000" if value > 55 else "#ffffff"
            axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=ink, **text)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return shown


def confusion_picture(matrix: np.ndarray, classes: tuple[str, ...], title: str = "") -> Figure:
    """Draw P(predicted | true) in per cent of counts (C, C), row = true class; rows without events are empty."""
    with one_plot(3.3, 3.6) as (figure, axes):
        _draw_confusion(axes, matrix, 1)
        labels = [f"{name}\n{int(n):,}" for name, n in zip(classes, matrix.sum(axis=1), strict=True)]
        axes.set_xticks(range(len(classes)), classes, rotation=30, ha="right")
        axes.set_yticks(range(len(classes)), labels)
        axes.set_xlabel("predicted, % of the true class")
        axes.set_ylabel("true class, events")
        axes.set_title(title)
    return figure


SYMBOLS = {"proton": "p", "helium": "He", "carbon": "C", "silicon": "Si", "iron": "Fe"}
"""Of the composition's classes, where a whole name has no room."""


def confusions_picture(matrices: dict[str, np.ndarray], classes: tuple[str, ...]) -> Figure:
    """Draw P(predicted | true) of several selections, one or more, as small multiples on one scale.

    By title, the counts (C, C), row = true class.
    """
    columns = min(3, len(matrices))
    rows = -(-len(matrices) // columns)
    short = [SYMBOLS.get(name, name[:3]) for name in classes]
    with drawing():
        figure = new_figure(1.55 * rows + 0.75)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes, (title, matrix) in zip(grid.flat, matrices.items(), strict=False):
            shown = _draw_confusion(axes, matrix, 0, fontsize=6)
            axes.set_title(f"{title}\n{int(matrix.sum()):,} events", fontsize=7)
            axes.set_xticks(range(len(classes)), short, fontsize=6.5)
            axes.set_yticks(range(len(classes)), short, fontsize=6.5)
            axes.tick_params(length=0)  # marks would run into the titles of the next row
        for axes in grid.flat[len(matrices) :]:
            axes.set_axis_off()
        bar = figure.colorbar(shown, ax=grid, location="bottom", shrink=0.7, aspect=40, pad=0.02)
        bar.set_label("predicted, % of the true class", fontsize=7)
        bar.ax.tick_params(labelsize=6.5)
    return figure


def _draw_bin(axes: Axes, where: Bin, value: float, low: float, high: float, count: int) -> None:
    """Draw a value over a bin, its interval [low, high], and above it how many events there are."""
    axes.plot([where.low, where.high], [value, value], color=INK)
    axes.plot([where.middle, where.middle], [low, high], color=INK)
    axes.annotate(f"{count:,}", (where.middle, high), **ABOVE)


def _label_energies(axes: Axes, metrics: dict[str, Any], label: str) -> None:
    shown = [one for one, _ in bins_with_events(metrics["energy_binned"])]
    # KASCADE's energies, or those of another array where they lie elsewhere.
    axes.set_xlim(min([14.0, *(one.low for one in shown)]), max([18.0, *(one.high for one in shown)]))
    axes.set_xlabel("reconstructed energy, lg(E/eV)")
    axes.set_ylabel(label)


def balanced_by_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the mean recall of the classes by energy bin with confidence intervals and its value for random labels."""
    with one_plot(2.7) as (figure, axes):
        axes.axhline(1 / len(metrics["per_class"]), color=INK, lw=0.8, ls="--")
        for one, row in bins_with_events(metrics["energy_binned"]):
            result = balanced_accuracy(np.array(row["confusion_matrix"]))
            _draw_bin(axes, one, result.value, result.interval.low, result.interval.high, row["count"])
        axes.margins(y=0.2)
        axes.set_ylim(bottom=0)
        _label_energies(axes, metrics, "balanced accuracy")
    return figure


def error_by_class_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error of each class with its confidence interval."""
    names, mean = list(metrics["per_class"]), metrics["mean_fraction_error"]
    values = metrics["fraction_error_details"]["per_class_fraction_error"]
    spans = metrics["intervals"]["per_class_fraction_error"]
    with one_plot(2.6) as (figure, axes):
        for k, (value, span, place) in enumerate(zip(values, spans, places_of(names), strict=True)):
            axes.plot([k, k], [span["low"], span["high"]], color=PALETTE[place])
            axes.plot(k, value, MARKERS[place], color=PALETTE[place], ms=5)
        axes.axhline(mean, color=INK, lw=0.8, ls="--")
        axes.annotate("mean", (len(names) - 0.55, mean), va="bottom", ha="right", fontsize=7.5)
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("fraction error")
    return figure


def by_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error by energy bin with confidence intervals; thin bins are left out."""
    key = "mean_fraction_error"
    with one_plot(2.7) as (figure, axes):
        for one, row in bins_with_events(metrics["energy_binned"]):
            span = row["intervals"][key]
            _draw_bin(axes, one, row["fraction_error"][key], span["low"], span["high"], row["count"])
        axes.margins(y=0.2)
        _label_energies(axes, metrics, "fraction error")
    return figure


def by_class_and_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error of each class in each energy bin with confidence intervals; thin bins are left out."""
    names = list(metrics["per_class"])
    with one_plot(3.2) as (figure, axes):
        for k, (name, place) in enumerate(zip(names, places_of(names), strict=True)):
            x, y = [], []
            for one, row in bins_with_events(metrics["energy_binned"]):
                span = row["intervals"]["per_class_fraction_error"][k]
                x.append(one.middle + 0.05 * (k - (len(names) - 1) / 2))
                y.append(row["fraction_error"]["per_class_fraction_error"][k])
                axes.plot([x[-1]] * 2, [span["low"], span["high"]], color=PALETTE[place], lw=1.0)
            axes.plot(x, y, MARKERS[place], color=PALETTE[place], ls=":", lw=0.6, label=name)
        axes.set_ylim(bottom=0)
        _label_energies(axes, metrics, "fraction error")
        figure.legend(loc="outside upper center", ncols=5, columnspacing=0.8, handletextpad=0.2)
    return figure


def reliability_picture(
    labels: np.ndarray, log_proba: np.ndarray, classes: tuple[str, ...], groups: np.ndarray | None = None
) -> Figure:
    """Draw, for each class, how often it is true against the probability it was given, with binomial intervals.

    Events of one group (N,) are one observation.
    """
    with one_plot(3.3) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=INK, lw=0.7, ls="--")
        edges = np.linspace(0, 1, N_RELIABILITY_BINS + 1)
        for k, (name, place) in enumerate(zip(classes, places_of(classes), strict=True)):
            given = np.exp(log_proba[:, k])
            member = np.clip(np.digitize(given, edges) - 1, 0, N_RELIABILITY_BINS - 1)
            for b in range(N_RELIABILITY_BINS):
                inside = member == b
                if inside.sum() < MIN_BIN_EVENTS:
                    continue
                hits, n = int((labels[inside] == k).sum()), int(inside.sum())
                of_rows = None if groups is None else groups[inside]
                span = share_interval(labels[inside] == k, of_rows)
                x = given[inside].mean() + 0.006 * (k - (len(classes) - 1) / 2)
                axes.plot([x, x], [span.low, span.high], color=PALETTE[place], lw=0.9)
                axes.plot(x, hits / n, MARKERS[place], color=PALETTE[place], ms=3.5, label=name)
        handles, names = axes.get_legend_handles_labels()
        unique = dict(zip(names, handles, strict=True))
        axes.legend(unique.values(), unique.keys(), loc="upper left")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("probability given")
        axes.set_ylabel("frequency observed")
    return figure


def roc_picture(
    labels: np.ndarray, scores: dict[str, np.ndarray], metrics: dict[str, Any], weights: np.ndarray | None = None,
    *, published: bool = True,
) -> Figure:  # fmt: skip
    """Draw hadron survival (logarithmic) against gamma efficiency of several systems, the operating point marked.

    Scores (N,) stand by name; the last one is the scored system, whose ``metrics`` are given, and is drawn boldest
    with its interval as a band. The best published systems are marked on KASCADE's showers.
    """
    n_hadron = int((labels == HADRON).sum())
    least = 1.0 / n_hadron
    if weights is not None:
        least = min(least, *(row["upper_limit"] / 3.0 for row in metrics["survival_rates"].values()))
    with one_plot(3.4) as (figure, axes):
        for k, (name, values) in enumerate(scores.items()):
            efficiency, surviving = survival_curve(labels, values)
            share = surviving / n_hadron
            if weights is not None:
                share, low, high = weighted_curve(labels, values, efficiency, weights)
            last = k == len(scores) - 1
            colour, width, line = (INK, 1.8, "-") if last else (PALETTE[5 + k % 2], 0.9, "--")
            shown = np.maximum(share, 0.5 * least)
            axes.step(efficiency, shown, where="post", label=literal(name), color=colour, lw=width, ls=line)
            if last:
                if weights is None:
                    spans = [clopper_pearson(int(n), n_hadron) for n in surviving]
                    low, high = np.array([(span.low, span.high) for span in spans]).T
                axes.fill_between(efficiency, np.maximum(low, 0.3 * least), high, color=INK, alpha=0.2, lw=0)
        rate = metrics["survival_rates"]["75%"]
        span = rate["interval"]
        axes.plot([KEY_EFFICIENCY] * 2, [max(span["low"], 0.3 * least), span["high"]], color=INK)
        axes.plot(KEY_EFFICIENCY, max(rate["hadron_survival"], 0.5 * least), "o", color=INK, label="75 % of gammas")
        if published:
            points = list(SURVIVAL_CURVE), list(SURVIVAL_CURVE.values())
            axes.plot(*points, MARKERS[5], color=PALETTE[2], label="published*")
        make_logarithmic(axes, "y")
        axes.set_ylim(0.25 * least, 1.5)
        axes.set_xlim(0.4, 1.005)
        axes.set_xlabel("gamma efficiency")
        axes.set_ylabel("hadron survival")
        axes.legend(fontsize=7)
    return figure


def survival_curve(labels: np.ndarray, scores: np.ndarray, n_points: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return gamma efficiencies and the number of surviving hadrons at them, (n,) each."""
    gammas = np.sort(scores[labels == GAMMA_CLASS])[::-1]
    hadrons = np.sort(scores[labels == HADRON])
    rank = np.unique(np.linspace(1, len(gammas), min(n_points, len(gammas))).astype(int))
    surviving = len(hadrons) - np.searchsorted(hadrons, gammas[rank - 1], side="left")
    return rank / len(gammas), surviving


def weighted_curve(
    labels: np.ndarray, scores: np.ndarray, efficiencies: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weighted hadron survivals at gamma efficiencies (n,), and their confidence band at sharp thresholds."""
    results = [hadron_survival(labels, scores, float(share), weights) for share in efficiencies]
    values = np.array([one.hadron_survival for one in results])
    sure = [one.weights for one in results if one.weights is not None]
    half = standard_errors() * np.array([one.error for one in sure])
    return values, values - half, np.maximum(values + half, [one.limit(0.5 + LEVEL / 2) for one in sure])


def scores_picture(labels: np.ndarray, scores: np.ndarray, threshold: float) -> Figure:
    """Draw the distribution of scores of gammas and hadrons and the threshold at 75 % efficiency."""
    low, high = (float(edge) for edge in (scores.min(), scores.max()))
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with one_plot(2.7) as (figure, axes):
        for name, value, colour, line in (
            ("gamma", GAMMA_CLASS, PALETTE[0], "-"),
            ("hadron", HADRON, PALETTE[4], "--"),
        ):
            own = scores[labels == value]
            label = f"{name} ({len(own):,})"
            axes.hist(own, bins=edges.tolist(), histtype="step", color=colour, ls=line, lw=1.3, label=label)
        axes.axvline(threshold, color=INK, lw=0.8, ls=":")
        make_logarithmic(axes, "y")
        axes.set_ylim(bottom=0.5)
        axes.set_xlabel("score, logit + 0.5 (threshold dotted)")
        axes.set_ylabel("events per bin")
        axes.legend()
    return figure


def survival_by_bin_picture(
    binned: dict[str, Any], label: str, n_hadron: int, at_one: Sequence[BinAtThreshold]
) -> Figure:
    """Draw the survival at 75 % by energy or zenith: own threshold with intervals, and one threshold for all.

    Thin bins are left out.
    """
    with one_plot(2.7) as (figure, axes):
        for one, row in bins_with_events(binned):
            span, middle = row["interval"], one.middle
            floor = 0.1 * span["high"] if span.get("is_limit") else 0.3 / n_hadron
            axes.plot([middle, middle], [max(span["low"], floor), span["high"]], color=INK)
            if row["hadron_surviving"] and not span.get("is_limit"):
                axes.plot([one.low, one.high], [row["hadron_survival"]] * 2, color=INK)
            else:
                axes.plot(middle, span["high"], "v", color=INK)
            axes.annotate(f"{row['n_gamma']:,}\n{row['n_hadron']:,}", (middle, span["high"]), **ABOVE)
        counts = {count.name: count for count in at_one}
        for one, _ in bins_with_events(binned):
            count = counts.get(one.name)
            if count and count.n_surviving:
                axes.plot(one.low + 0.3 * (one.high - one.low), count.survival, MARKERS[3], color=PALETTE[5], ms=4.5)
        make_logarithmic(axes, "y")
        axes.margins(y=0.25)
        axes.set_xlabel(label)
        axes.set_ylabel("hadron survival at 75 %")
    return figure


SPREADS = 4.0
"""Half the height of the plane of residuals, in resolutions."""


def by_bin_picture(binned: dict[str, Any], name: str, label: str) -> Figure:
    """Draw one metric, ``bias`` or ``resolution``, by bin of the true value with its confidence interval.

    Bins with too few events are left out.
    """
    with one_plot(2.6) as (figure, axes):
        shown = {where: row for where, row in binned.items() if not row["too_few_events"]}
        for k, row in enumerate(shown.values()):
            span = row["intervals"][name]
            axes.plot([k, k], [span["low"], span["high"]], color=PALETTE[4])
            axes.plot(k, row[name], MARKERS[0], color=PALETTE[4], ms=4)
            axes.annotate(f"{row['count']:,}", (k, span["high"]), **ABOVE)
        if name == "bias":
            axes.axhline(0.0, color=INK, lw=0.8, ls="--")
        axes.set_xticks(range(len(shown)), list(shown), rotation=30, ha="right")
        axes.set_xlabel(label)
        axes.set_ylabel(name)
    return figure


def residual_picture(truth: np.ndarray, estimate: np.ndarray, label: str) -> Figure:
    """Draw estimate minus truth against the truth, (N,) each, as numbers of events in cells."""
    from showerstack.report.pictures.ticks import PowerLabels

    residuals = estimate - truth
    middle, reach = float(np.median(residuals)), SPREADS * max(float(np.std(residuals)), 1e-6)
    with one_plot(3.2) as (figure, axes):
        inside = np.abs(residuals - middle) < reach
        cells = axes.hexbin(
            truth[inside], residuals[inside], gridsize=45, mincnt=1, bins="log", cmap=colour_map(), linewidths=0.1
        )
        cells.set_rasterized(True)
        axes.axhline(0.0, color=INK, lw=0.8, ls="--")
        bar = figure.colorbar(cells, ax=axes, location="top", shrink=0.8, aspect=40)
        bar.set_label("events")
        bar.formatter = bar.minorformatter = PowerLabels()
        axes.set_xlabel(f"true {label}")
        axes.set_ylabel("estimated - true")
    return figure


MIN_EVENTS = 3
"""Cells with fewer events stay empty."""


def plane_picture(
    n_e: np.ndarray, n_mu: np.ndarray, value: np.ndarray, label: str, limits: tuple[float, float]
) -> Figure:
    """Draw the mean of a value (N,) in cells of the plane of lg Ne and lg Nmu (N,)."""
    with one_plot(3.4) as (figure, axes):
        cells = axes.hexbin(
            n_e, n_mu, C=value, gridsize=45, mincnt=MIN_EVENTS if len(value) > 500 else 1, cmap=colour_map(),
            vmin=limits[0], vmax=limits[1], linewidths=0.1,
        )  # fmt: skip
        cells.set_rasterized(True)
        for values, limit in ((n_e, axes.set_xlim), (n_mu, axes.set_ylim)):
            low, high = np.quantile(values, [0.001, 0.999])
            limit(float(low) - 0.1, float(high) + 0.1)
        bar = figure.colorbar(cells, ax=axes, location="top", shrink=0.8, aspect=40)
        bar.set_label(label)
        axes.set_xlabel("electron number, lg Ne")
        axes.set_ylabel("muon number, lg Nμ")
    return figure
