"""The command that lists measured runs: runs."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from showerstack.commands.app import OverwriteOption, app, claimed, console


@app.command()
def runs(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of converted measured runs.")],
    out: Annotated[Path | None, typer.Option(help="Also write the list as .csv or .parquet.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """List measured runs: events, share of the live time, pass rates, means, and which runs are off.

    Example: [bold]python cli.py runs data/measured --out runs.parquet[/bold]
    """
    from showerstack.showers.archives.control import control_lines
    from showerstack.showers.archives.measured import measured_folders
    from showerstack.showers.archives.run_list import MEANS, run_list, write_run_list

    folders = measured_folders(folder)
    table = write_run_list(folders, claimed(context, out)) if out else run_list(folders)
    for line in control_lines(folders):
        console.print(f"control: {line}", soft_wrap=True)
    for row in table.iter_rows(named=True):
        share = "" if row["live_time_share"] is None else f", {100 * row['live_time_share']:.2f} % of the time"
        off = f"  OFF: {row['off']}" if row["off"] else ""
        cuts = row["evaluation_cuts"]
        rate = row[f"pass_{cuts}"]
        passed = "no usable event" if rate is None else f"{100 * rate:.2f} % pass the evaluation cuts ({cuts})"
        means = ", ".join(f"{name} {row[f'mean_{name}']:.3f}" for name in MEANS if not isnan(row[f"mean_{name}"]))
        shown = f"; means {means}" if means else ""
        console.print(f"{row['run']}: {row['events']:,} events{share}, {passed}{shown}{off}", soft_wrap=True)
