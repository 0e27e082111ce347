"""Pictures of gamma/hadron separation: survival against efficiency, scores, survival by energy and zenith."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import INK, MARKERS, PALETTE, drawing, literal, new_figure
from report.public.published import SURVIVAL_CURVE
from scoring.metrics.gamma import GAMMA, HADRON, KEY_EFFICIENCY
from scoring.separation import BinAtThreshold
from scoring.uncertainty.intervals import clopper_pearson


def roc_picture(labels: np.ndarray, scores: dict[str, np.ndarray], metrics: dict[str, Any]) -> Figure:
    """Draw hadron survival (logarithmic) against gamma efficiency of several systems, the operating point marked.

    Parameters
    ----------
    labels
        (N,) 0 gamma, 1 hadron.
    scores
        Name to (N,) scores; the last one is the scored system and drawn boldest, with its interval as a band.
    metrics
        Metrics of the scored system with intervals.
    """
    n_hadron = int((labels == HADRON).sum())
    with drawing():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        for k, (name, values) in enumerate(scores.items()):
            efficiency, surviving = survival_curve(labels, values)
            last = k == len(scores) - 1
            style: dict[str, Any] = (
                {"color": INK, "lw": 1.8} if last else {"color": PALETTE[5 + k % 2], "lw": 0.9, "ls": "--"}
            )
            axes.step(efficiency, np.maximum(surviving, 0.5) / n_hadron, where="post", label=literal(name), **style)
            if last:
                spans = [clopper_pearson(int(n), n_hadron) for n in surviving]
                axes.fill_between(
                    efficiency,
                    [max(span.low, 0.3 / n_hadron) for span in spans],
                    [span.high for span in spans],
                    color=INK,
                    alpha=0.2,
                    lw=0,
                )
        rate = metrics["survival_rates"]["75%"]
        span = rate["interval"]
        axes.plot([KEY_EFFICIENCY] * 2, [max(span["low"], 0.3 / n_hadron), span["high"]], color=INK)
        axes.plot(KEY_EFFICIENCY, max(rate["hadron_survival"], 0.5 / n_hadron), "o", color=INK, label="75 % of gammas")
        axes.plot(list(SURVIVAL_CURVE), list(SURVIVAL_CURVE.values()), MARKERS[5], color=PALETTE[2], label="published*")
        axes.set_yscale("log")
        axes.set_ylim(0.25 / n_hadron, 1.5)
        axes.set_xlim(0.4, 1.005)
        axes.set_xlabel("gamma efficiency")
        axes.set_ylabel("hadron survival")
        axes.legend(fontsize=7)
    return figure


def survival_curve(labels: np.ndarray, scores: np.ndarray, n_points: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return gamma efficiencies and the number of surviving hadrons at them, (n,) each."""
    gammas = np.sort(scores[labels == GAMMA])[::-1]
    hadrons = np.sort(scores[labels == HADRON])
    rank = np.unique(np.linspace(1, len(gammas), min(n_points, len(gammas))).astype(int))
    surviving = len(hadrons) - np.searchsorted(hadrons, gammas[rank - 1], side="left")
    return rank / len(gammas), surviving


def scores_picture(labels: np.ndarray, scores: np.ndarray, threshold: float) -> Figure:
    """Draw the distribution of scores of gammas and hadrons and the threshold at 75 % efficiency."""
    low, high = (float(edge) for edge in (scores.min(), scores.max()))
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with drawing():
        figure = new_figure(2.7)
        axes = figure.add_subplot()
        for k, (name, value) in enumerate((("gamma", GAMMA), ("hadron", HADRON))):
            mine = scores[labels == value]
            colour = PALETTE[(0, 4)[k]]
            style = ("-", "--")[k]
            axes.hist(
                mine,
                bins=edges.tolist(),
                histtype="step",
                color=colour,
                ls=style,
                lw=1.3,
                label=f"{name} ({len(mine):,})",
            )
        axes.axvline(threshold, color=INK, lw=0.8, ls=":")
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        axes.set_xlabel("score, logit + 0.5 (threshold dotted)")
        axes.set_ylabel("events per bin")
        axes.legend()
    return figure


def survival_by_bin_picture(
    binned: dict[str, Any], label: str, n_hadron: int, at_one: Sequence[BinAtThreshold] = ()
) -> Figure:
    """Draw the survival at 75 % by energy or zenith: own threshold with intervals, and one threshold for all.

    Thin bins are left out.
    """
    with drawing():
        figure = new_figure(2.7)
        axes = figure.add_subplot()
        for name, row in binned.items():
            if row.get("too_few_events"):
                continue
            low, high = (float(edge) for edge in name.split("-"))
            span, middle = row["interval"], (low + high) / 2
            floor = 0.3 / n_hadron
            axes.plot([middle, middle], [max(span["low"], floor), span["high"]], color=INK)
            if row["hadron_surviving"]:
                axes.plot([low, high], [row["hadron_survival"]] * 2, color=INK)
            else:
                axes.plot(middle, span["high"], "v", color=INK)
            note = f"{row['n_gamma']:,}\n{row['n_hadron']:,}"
            axes.annotate(note, (middle, span["high"]), (0, 3), textcoords="offset points", ha="center", fontsize=6.5)
        for bin_ in at_one:
            if bin_.n_hadron and bin_.n_surviving and not binned.get(bin_.name, {}).get("too_few_events", True):
                low, high = (float(edge) for edge in bin_.name.split("-"))
                share = bin_.n_surviving / bin_.n_hadron
                axes.plot(low + 0.3 * (high - low), share, MARKERS[3], color=PALETTE[5], ms=4.5)
        axes.set_yscale("log")
        axes.margins(y=0.25)
        axes.set_xlabel(label)
        axes.set_ylabel("hadron survival at 75 %")
    return figure
