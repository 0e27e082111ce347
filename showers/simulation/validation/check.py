"""Does the simulated sky look like the real one? Every known fact beside its simulated value."""

from __future__ import annotations

import polars as pl
from rich.table import Table

from showers.execution.progress import Bars, silent
from showers.simulation.settings import Settings, load_settings
from showers.simulation.validation.facts import FACTS, TRADES
from showers.simulation.validation.moments import Sizes, sample_moments


def realism(
    settings: Settings | None = None,
    *,
    sizes: Sizes | None = None,
    seed: int = 1,
    workers: int | None = None,
    bars: Bars = silent,
) -> pl.DataFrame:
    """Simulate and compare with every known fact of the real data (:data:`showers.simulation.validation.facts.FACTS`).

    Parameters
    ----------
    settings
        The world; the default one if None.
    sizes
        Numbers of events simulated.
    seed
        Seed of the samples.
    workers
        Threads.
    bars
        Progress.

    Returns
    -------
    polars.DataFrame
        Columns ``sample``, ``quantity``, ``real``, ``simulated``, ``tolerance`` (absolute), ``deviation``
        (in tolerances, signed), ``ok`` (its size at most 1) and ``trade`` (for a fact outside: what meeting it
        would cost in the default world, where that is known).
    """
    found = sample_moments(settings or load_settings(), sizes or Sizes(), seed=seed, workers=workers, bars=bars)
    rows = []
    for fact in FACTS:
        deviation = (found[fact.key] - fact.real) / fact.tolerance
        ok = abs(deviation) <= 1.0
        trade = "" if ok else TRADES.get(fact.key, "")
        rows.append((*fact.key, fact.real, found[fact.key], fact.tolerance, deviation, ok, trade))
    schema = ["sample", "quantity", "real", "simulated", "tolerance", "deviation", "ok", "trade"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def rendered(table: pl.DataFrame) -> Table:
    """Return the comparison as a coloured table."""
    outside = int((~table["ok"]).sum())
    drawn = Table(title=f"Simulated against real: {table.height - outside} of {table.height} facts within tolerance")
    drawn.add_column("sample")
    drawn.add_column("quantity")
    for name in ("real", "simulated", "in tolerances"):
        drawn.add_column(name, justify="right")
    drawn.add_column("trade")
    before = None
    for row in table.iter_rows(named=True):
        size = abs(row["deviation"])
        colour = "green" if size <= 0.5 else "yellow" if size <= 1.0 else "red"
        sample = "" if row["sample"] == before else row["sample"]
        before = row["sample"]
        drawn.add_row(
            sample,
            row["quantity"],
            f"{row['real']:.4g}",
            f"{row['simulated']:.4g}",
            f"[{colour}]{row['deviation']:+.2f}{'' if row['ok'] else ' outside'}[/{colour}]",
            row["trade"],
        )
    return drawn
