"""Pictures of the composition task: confusion, fraction error by class and energy, reliability."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import INK, MAP, MARKERS, PALETTE, drawing, new_figure
from scoring.separation import balanced_accuracy
from scoring.uncertainty.intervals import clopper_pearson

N_RELIABILITY_BINS = 10
MIN_BIN_EVENTS = 10
"""Bins with fewer events say nothing and are not drawn."""


def confusion_picture(matrix: np.ndarray, classes: tuple[str, ...], title: str = "") -> Figure:
    """Draw P(predicted | true) in per cent; a class without events has an empty row.

    Parameters
    ----------
    matrix
        (C, C) integer counts, row = true class.
    """
    totals = matrix.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * matrix, totals, out=np.full(matrix.shape, np.nan), where=totals > 0)
    with drawing():
        figure = new_figure(3.3, 3.6)
        axes = figure.add_subplot()
        axes.imshow(share, vmin=0, vmax=100, cmap=MAP)
        for (row, column), value in np.ndenumerate(share):
            if np.isfinite(value):
                ink = "#000000" if value > 55 else "#ffffff"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink)
        labels = [f"{name}\n{int(n):,}" for name, n in zip(classes, totals[:, 0], strict=True)]
        axes.set_xticks(range(len(classes)), classes, rotation=30, ha="right")
        axes.set_yticks(range(len(classes)), labels)
        axes.set_xlabel("predicted, % of the true class")
        axes.set_ylabel("true class, events")
        axes.set_title(title)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def confusions_picture(matrices: dict[str, np.ndarray], classes: tuple[str, ...]) -> Figure:
    """Draw P(predicted | true) of several selections as small multiples on one scale.

    Parameters
    ----------
    matrices
        Title to (C, C) integer counts, row = true class.
    """
    columns = min(3, len(matrices))
    rows = -(-len(matrices) // columns)
    short = [name[:2].capitalize() if len(name) > 1 else name for name in classes]
    with drawing():
        figure = new_figure(1.55 * rows + 0.75)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        shown = None
        for axes, (title, matrix) in zip(grid.flat, matrices.items(), strict=False):
            totals = matrix.sum(axis=1, keepdims=True)
            share = np.divide(100.0 * matrix, totals, out=np.full(matrix.shape, np.nan), where=totals > 0)
            shown = axes.imshow(share, vmin=0, vmax=100, cmap=MAP)
            for (row, column), value in np.ndenumerate(share):
                if np.isfinite(value):
                    ink = "#000000" if value > 55 else "#ffffff"
                    axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=6)
            axes.set_title(f"{title}\n{int(matrix.sum()):,} events", fontsize=7)
            axes.set_xticks(range(len(classes)), short, fontsize=6.5)
            axes.set_yticks(range(len(classes)), short, fontsize=6.5)
            axes.grid(False)
            axes.spines[:].set_visible(False)
        for axes in grid.flat[len(matrices) :]:
            axes.set_axis_off()
        if shown is not None:
            bar = figure.colorbar(shown, ax=grid, location="bottom", shrink=0.7, aspect=40, pad=0.02)
            bar.set_label("predicted, % of the true class", fontsize=7)
            bar.ax.tick_params(labelsize=6.5)
    return figure


def balanced_by_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the mean recall of the classes by energy bin with 95 % intervals and its value for random labels."""
    n_classes = len(metrics["per_class"])
    with drawing():
        figure = new_figure(2.7)
        axes = figure.add_subplot()
        axes.axhline(1 / n_classes, color=INK, lw=0.8, ls="--")
        for name, row in metrics["energy_binned"].items():
            if row.get("too_few_events"):
                continue
            low, high = (float(edge) for edge in name.split("-"))
            found, middle = balanced_accuracy(np.array(row["confusion_matrix"])), (low + high) / 2
            axes.plot([low, high], [found.value] * 2, color=INK)
            axes.plot([middle] * 2, [found.interval.low, found.interval.high], color=INK)
            place = (middle, found.interval.high)
            axes.annotate(f"{row['count']:,}", place, va="bottom", ha="center", fontsize=7)
        axes.set_xlim(14, 18)
        axes.margins(y=0.2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("reconstructed energy, lg(E/eV)")
        axes.set_ylabel("balanced accuracy")
    return figure


def error_by_class_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error of each class with its 95 % interval."""
    names = list(metrics["per_class"])
    values = metrics["fraction_error_details"]["per_class_fraction_error"]
    spans = metrics["intervals"]["per_class_fraction_error"]
    with drawing():
        figure = new_figure(2.6)
        axes = figure.add_subplot()
        for k, (value, span) in enumerate(zip(values, spans, strict=True)):
            axes.plot([k, k], [span["low"], span["high"]], color=PALETTE[k])
            axes.plot(k, value, MARKERS[k], color=PALETTE[k], ms=5)
        axes.axhline(metrics["mean_fraction_error"], color=INK, lw=0.8, ls="--")
        axes.annotate(
            "mean", (len(names) - 0.55, metrics["mean_fraction_error"]), va="bottom", ha="right", fontsize=7.5
        )
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("fraction error")
    return figure


def by_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error by energy bin with 95 % intervals; thin bins are left out."""
    key = "mean_fraction_error"
    with drawing():
        figure = new_figure(2.7)
        axes = figure.add_subplot()
        for name, row in metrics["energy_binned"].items():
            if row.get("too_few_events") or key not in row["intervals"]:
                continue
            low, high = (float(edge) for edge in name.split("-"))
            value, span, middle = row["fraction_error"][key], row["intervals"][key], (low + high) / 2
            axes.plot([low, high], [value, value], color=INK)
            axes.plot([middle, middle], [span["low"], span["high"]], color=INK)
            axes.annotate(f"{row['count']:,}", (middle, span["high"]), va="bottom", ha="center", fontsize=7)
        axes.set_xlim(14, 18)
        axes.margins(y=0.2)
        axes.set_xlabel("reconstructed energy, lg(E/eV)")
        axes.set_ylabel("fraction error")
    return figure


def by_class_and_energy_picture(metrics: dict[str, Any]) -> Figure:
    """Draw the fraction error of each class in each energy bin with 95 % intervals; thin bins are left out."""
    with drawing():
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        for k, name in enumerate(metrics["per_class"]):
            x, y = [], []
            for edges, row in metrics["energy_binned"].items():
                if row.get("too_few_events") or "fraction_error" not in row:
                    continue
                low, high = (float(edge) for edge in edges.split("-"))
                span = row["intervals"]["per_class_fraction_error"][k]
                x.append((low + high) / 2 + 0.05 * (k - 2))
                y.append(row["fraction_error"]["per_class_fraction_error"][k])
                axes.plot([x[-1]] * 2, [span["low"], span["high"]], color=PALETTE[k], lw=1.0)
            axes.plot(x, y, MARKERS[k], color=PALETTE[k], ls=":", lw=0.6, label=name)
        axes.set_xlim(14, 18)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("reconstructed energy, lg(E/eV)")
        axes.set_ylabel("fraction error")
        figure.legend(loc="outside upper center", ncols=5, columnspacing=0.8, handletextpad=0.2)
    return figure


def reliability_picture(labels: np.ndarray, log_proba: np.ndarray, classes: tuple[str, ...]) -> Figure:
    """Draw, for each class, how often it is true against the probability it was given, with binomial intervals.

    Parameters
    ----------
    labels
        (N,) integer class numbers.
    log_proba
        (N, C) natural logarithms of posteriors.
    """
    with drawing():
        figure = new_figure(3.3)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=INK, lw=0.7, ls="--")
        edges = np.linspace(0, 1, N_RELIABILITY_BINS + 1)
        for k, name in enumerate(classes):
            given = np.exp(log_proba[:, k])
            member = np.clip(np.digitize(given, edges) - 1, 0, N_RELIABILITY_BINS - 1)
            for b in range(N_RELIABILITY_BINS):
                inside = member == b
                if inside.sum() < MIN_BIN_EVENTS:
                    continue
                hits, n = int((labels[inside] == k).sum()), int(inside.sum())
                span = clopper_pearson(hits, n)
                x = given[inside].mean() + 0.006 * (k - (len(classes) - 1) / 2)
                axes.plot([x, x], [span.low, span.high], color=PALETTE[k], lw=0.9)
                axes.plot(x, hits / n, MARKERS[k], color=PALETTE[k], ms=3.5, label=name)
        handles, names = axes.get_legend_handles_labels()
        unique = dict(zip(names, handles, strict=True))
        axes.legend(unique.values(), unique.keys(), loc="upper left")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("probability given")
        axes.set_ylabel("frequency observed")
    return figure
