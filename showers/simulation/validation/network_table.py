"""Tables of what published networks make of the simulated sky."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table

from scoring.uncertainty.resampling import Interval
from showers.schema import COMPOSITION
from showers.simulation.validation.networks import RARE, Comparison
from showers.simulation.validation.two_sample import TwoSample


def network_tables(found: Comparison) -> Iterator[Table]:
    """Yield a network's tables: quality, confusion, two-sample areas, batch norms."""
    quality = Table(title=f"Network {found.name}: {found.n:,} simulated events, intervals of 95 %")
    for name in ("", "real", "simulated"):
        quality.add_column(name, justify="right" if name else "left")
    quality.add_row("accuracy", _within(*found.real_accuracy), _within(*found.accuracy))
    quality.add_row("log-loss", _within(*found.real_log_loss), _within(*found.log_loss))
    for name, k in (("silicon", 3), ("iron", 4)):
        quality.add_row(f"{name} called proton", f"{found.real_confusion[k, 0]:.4f}", f"{found.confusion[k, 0]:.4f}")
    for name, real, value in zip(COMPOSITION.classes, found.real_spread, found.spread, strict=True):
        quality.add_row(f"spread of the class number, {name}", f"{real:.3f}", f"{value:.3f}")
    yield quality

    confusion = Table(title=f"Confusion, simulated (real); sum of a row's deviations {found.row_deviation:.3f}")
    confusion.add_column("is / called")
    for name in COMPOSITION.classes:
        confusion.add_column(name, justify="right")
    for name, row, real_row in zip(COMPOSITION.classes, found.confusion, found.real_confusion, strict=True):
        confusion.add_row(name, *(f"{v:.3f} ({r:.3f})" for v, r in zip(row, real_row, strict=True)))
    yield confusion

    yield areas_table("posteriors", found.areas, found.coarse, found.floors)

    norms = Table(title="Inputs of batch norms: rms deviation from the real training's")
    for name in ("layer", "means / real sd", "ln widths"):
        norms.add_column(name, justify="right" if name != "layer" else "left")
    for name, norm in found.norms.items():
        norms.add_row(name, *(f"{np.sqrt(np.mean(v**2)):.3f}" for v in (norm.mean, norm.ln_width)))
    yield norms


def areas_table(
    what: str, areas: dict[str, TwoSample], coarse: dict[str, TwoSample], floors: dict[str, TwoSample]
) -> Table:
    """Return the table of two-sample areas, ``what`` being what the trees see."""
    table = Table(title=f"Trees that tell simulated from real {what}: area under the ROC curve")
    below = f"posteriors below {RARE} left out"
    for name in ("events", "simulated against real", below, "two real halves"):
        table.add_column(name, justify="right" if name != "events" else "left")
    for name, area in areas.items():
        table.add_row(name, *(_area(one) for one in (area, coarse[name], floors[name])))
    return table


def _within(value: float, interval: Interval) -> str:
    return f"{value:.4f} ({interval.low:.4f} .. {interval.high:.4f})"


def _area(found: TwoSample) -> str:
    return f"{found.area:.3f} ({found.interval.low:.3f} .. {found.interval.high:.3f})"
