"""One metrics dictionary as a readable summary on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from showers.schema import COMPOSITION, Task


def with_interval(value: float, interval: dict[str, Any] | None, form: str) -> str:
    """Return ``value [low, high]`` in the given format, or the value alone where there is no interval."""
    if interval is None:
        return format(value, form)
    return f"{value:{form}} [{interval['low']:{form}}, {interval['high']:{form}}]"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    return table


def summarise(metrics: dict[str, Any], task: Task) -> Iterator[RenderableType]:
    """Yield what ``verify.py`` prints: the headline, then tables, then warnings.

    Parameters
    ----------
    metrics
        What :func:`scoring.score.score_file` returned.
    """
    yield from (_composition if task.name == COMPOSITION.name else _gamma)(metrics)
    for note in metrics["warnings"]:
        yield Text(f"warning: {note}", style="yellow")


def _composition(metrics: dict[str, Any]) -> Iterator[RenderableType]:
    intervals = metrics.get("intervals", {})
    yield Text.assemble(
        ("fraction error ", "bold"),
        (with_interval(metrics["mean_fraction_error"], intervals.get("mean_fraction_error"), ".4f"), "bold green"),
        f", {metrics['n_events']:,} events{', [95 % interval]' if intervals else ''}",
    )
    yield Text(
        f"accuracy {with_interval(metrics['accuracy'], intervals.get('accuracy'), '.4f')}, "
        f"macro F1 {metrics['macro_f1']:.4f}, weighted F1 {metrics['weighted_f1']:.4f}"
    )
    table = _table("by class", "", "events", "recall", "precision", "F1", "fraction error")
    errors = metrics["fraction_error_details"]["per_class_fraction_error"]
    spans = intervals.get("per_class_fraction_error", [None] * len(errors))
    for k, (name, row) in enumerate(metrics["per_class"].items()):
        table.add_row(
            name,
            f"{row['support']:,.0f}",
            with_interval(row["recall"], intervals.get("recall", {}).get(name), ".3f"),
            f"{row['precision']:.3f}",
            f"{row['f1']:.3f}",
            with_interval(errors[k], spans[k], ".3f"),
        )
    yield table
    names = list(metrics["per_class"])
    table = _table("confusion, events (row: true, column: predicted)", "", *names)
    for name, counts in zip(names, metrics["confusion_matrix"], strict=True):
        table.add_row(name, *(f"{count:,}" for count in counts))
    yield table
    table = _table("by energy, lg(E/eV)", "bin", "events", "accuracy", "fraction error")
    for name, row in metrics["energy_binned"].items():
        inside = row.get("intervals", {})
        error = row.get("fraction_error")
        if row.get("too_few_events") or error is None:
            accuracy = fraction = "too few events"
        else:
            accuracy = with_interval(row["accuracy"], inside.get("accuracy"), ".4f")
            fraction = with_interval(error["mean_fraction_error"], inside.get("mean_fraction_error"), ".4f")
        table.add_row(name, f"{row['count']:,}", accuracy, fraction)
    yield table
    if "zenith_binned" in metrics:
        yield _by_zenith(metrics["zenith_binned"])


def _by_zenith(binned: dict[str, Any]) -> Table:
    table = _table("by zenith, deg (fraction error: closed form)", "bin", "events", "accuracy", "fraction error")
    for name, row in binned.items():
        if row["too_few_events"]:
            accuracy = fraction = "too few events"
        else:
            accuracy = with_interval(row["accuracy"], row["intervals"]["accuracy"], ".4f")
            fraction = with_interval(row["expected_fraction_error"], row["intervals"]["expected_fraction_error"], ".4f")
        table.add_row(name, f"{row['count']:,}", accuracy, fraction)
    return table


def _gamma(metrics: dict[str, Any]) -> Iterator[RenderableType]:
    rates = metrics["survival_rates"]
    spans = "interval" in rates["75%"]
    yield Text.assemble(
        ("hadron survival ", "bold"),
        (with_interval(metrics["key_metric"], rates["75%"].get("interval"), ".2e"), "bold green"),
        f" at 75 % gamma efficiency, {metrics['n_gamma']:,} gammas, {metrics['n_hadron']:,} hadrons"
        f"{', 95 % intervals in brackets' if spans else ''}",
    )
    table = _table("by gamma efficiency", "wanted", "reached", "threshold", "hadrons left", "hadron survival")
    for name, row in rates.items():
        table.add_row(
            name,
            f"{row['gamma_efficiency']:.4f}",
            f"{row['threshold']:.5g}",
            f"{row['hadron_surviving']:,}",
            with_interval(row["hadron_survival"], row.get("interval"), ".2e"),
        )
    yield table
    for title, key in (("by energy, lg(E/eV), at 75 %", "energy_binned"), ("by zenith, deg, at 75 %", "zenith_binned")):
        table = _table(title, "bin", "gammas", "hadrons", "hadrons left", "hadron survival")
        for name, row in metrics[key].items():
            few = row.get("too_few_events", False)
            survival = with_interval(row["hadron_survival"], row.get("interval"), ".2e")
            table.add_row(
                name,
                f"{row['n_gamma']:,}",
                f"{row['n_hadron']:,}",
                f"{row['hadron_surviving']:,}",
                "too few events" if few else survival,
            )
        yield table
