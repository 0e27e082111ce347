"""Commands that make or fetch data: simulate, features, download, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from showerstack.commands.app import (
    MEASURED,
    OutputFormat,
    Protocol,
    SetName,
    app,
    console,
    refuse_unused,
)
from showerstack.commands.simulation import SimulateOptions
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.options import ConvertOptions, names_of
from showerstack.showers.schema import task_named
from showerstack.stacking.options import DeviceOption, SchedulerOption, WorkersOption

RunsOption = Annotated[
    str | None, typer.Option("--runs", help="Measured: comma-separated names of runs; default: all.")
]


TimesOption = Annotated[bool, typer.Option("--times", help="Measured: also the events' times.")]


@app.command()
def simulate(
    context: typer.Context,
    task: Annotated[SetName, typer.Option(help="What to simulate; measured: runs from known fluxes.")],
    options: SimulateOptions,
) -> None:
    """Simulate a training and a test set in the benchmark's file format.

    With --raw the public data's raw archives are written instead, with arrival times, all columns and no cuts.
    With --rare gamma sets hold many muon-poor hadrons, and weight.npy says how many ordinary ones each stands for. In
    --world gammas hadrons survive as in the public simulation.
    With --task measured OUT/measured_raw gets runs in the form of the measured archive, from the fluxes in --spectrum.

    Example: [bold]python cli.py simulate --task gamma --out data --train 20000 --test 5000 --train-cuts test[/bold]
    """
    simulated = None if task == MEASURED else task_named(task)
    for why, unused in options.without_effect(simulated):
        refuse_unused(context, why, unused)
    for line in options.simulate(simulated, bar):
        console.print(line, soft_wrap=True)


@app.command()
def features(
    context: typer.Context,
    dataset: Annotated[Path | None, typer.Argument(help="Dataset folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Feature table; default: DATASET.features.")] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    list_features: Annotated[bool, typer.Option("--list", help="List the features instead.")] = False,
    group: Annotated[str | None, typer.Option(help="With --list: only this group.")] = None,
    format: Annotated[str, typer.Option(help="With --list: table or md.")] = "table",
    *,
    output: OutputFormat,
) -> None:
    """Build the feature table of a dataset, or list what is in one.

    Example: [bold]python cli.py features data/gamma_train[/bold]
    """
    if list_features:
        used = ("list_features", "group", "format", "quiet", "as_json")
        refuse_unused(context, "with --list", all_but=used)
        if output.as_json:
            refuse_unused(context, "with --json", ("format",))
        from showerstack.features.catalogue import as_records, listing

        output.show(lambda: listing(group, format), lambda: as_records(group))
        return
    refuse_unused(context, "without --list", ("group", "format"))
    from showerstack.features.build import build_table

    if dataset is None:
        raise InputError("say which dataset folder: python cli.py features DATASET (or --list)")
    table = build_table(dataset, out, ctx=output.context(device=device, workers=workers, scheduler=scheduler))
    output.show(
        lambda: f"{len(table):,} events, {len(table.columns)} columns in {table.folder}",
        lambda: {"folder": table.folder, "events": len(table), "columns": list(table.columns)},
    )


@app.command()
def download(
    context: typer.Context,
    task: Annotated[SetName, typer.Option(help="Which sets to fetch; measured: the measured runs.")],
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")] = Path("data"),
    protocol: Annotated[Protocol, typer.Option(help="v2 is published ready-made; others are converted.")] = "v2",
    base_url: Annotated[str | None, typer.Option(help="Another address with the same layout.")] = None,
    runs: RunsOption = None,
    times: TimesOption = False,
) -> None:
    """Fetch the public benchmark's own files (several GB); an interrupted download is continued.

    The sets of the protocols matched and 2026 are published as raw archives only: these are fetched into OUT/raw and
    converted, which takes the space of both.
    With --task measured OUT/measured_raw gets the archives of the measured runs.

    Example: [bold]python cli.py download --task gamma --out data[/bold]

    What is scored since April 2026: [bold]python cli.py download --task composition --protocol 2026[/bold]
    """
    if task == MEASURED:
        refuse_unused(context, "with --task measured", ("protocol",))
        fetch_measured(out, base_url, runs, times)
        return
    refuse_unused(context, "without --task measured", ("runs", "times"))
    if protocol != "v2":
        from showerstack.showers.archives.convert import convert as write_sets
        from showerstack.showers.archives.download import download_raw

        chosen, raw = task_named(str(task)), out / "raw"
        download_raw(chosen, raw, protocol, base_url=base_url, bars=bar)
        for folder in write_sets(raw, out, chosen, protocol=protocol, ctx=Context(bars=bar)):
            console.print(f"wrote {folder}", soft_wrap=True)
        return
    from showerstack.showers.archives.download import BUCKET
    from showerstack.showers.archives.download import download as fetch_sets

    for folder in fetch_sets(task_named(task), out, base_url=base_url or BUCKET, bars=bar):
        console.print(f"complete: {folder}", soft_wrap=True)


@app.command()
def convert(
    context: typer.Context,
    options: ConvertOptions,
    path: Annotated[
        Path | None,
        typer.Argument(help="Raw archives, measured runs, station lists, KCDC, HiSPARC, Auger, CORSIKA's DAT files."),
    ] = None,
    raw: Annotated[Path | None, typer.Option(help="PATH, which must be raw archives of the simulation.")] = None,
    measured: Annotated[Path | None, typer.Option(help="PATH, which must be archives of measured runs.")] = None,
    foreign: Annotated[Path | None, typer.Option("--from", help="PATH, of any other format.")] = None,
) -> None:
    """Turn files of any known format into dataset folders of one of the benchmark's protocols.

    Measured runs become OUT/measured, a dataset folder a run, without labels, and runs.csv.

    v2: two or three models, no age. matched: QGSJet alone, with age. 2026: split as since April 2026, all in float32.
    Rows of v2 and matched are shuffled, since raw files are ordered by class (order.npy holds the published order for
    submit); those of 2026 are permuted already. Rows that cannot be used are listed in left_out.csv. A line for each
    set says how many events were read, were left by each cut, were written, and can be used.

    DAT000001 (or a folder of CORSIKA's particle files): each shower is thrown onto --array at --uses places.

    Example: [bold]python cli.py convert raw --out data[/bold]
    """
    from showerstack.showers.archives.formats import convert_path, format_of, formats, options_taken

    places = {name: one for name, one in (("path", path), ("raw", raw), ("measured", measured), ("foreign", foreign))
              if one is not None}  # fmt: skip
    if len(places) != 1:
        raise InputError("say what to convert, once: a folder or file, such as python cli.py convert raw --out data")
    ((how, place),) = places.items()
    found = format_of(place)
    wanted = {"raw": "raw archives of simulated modes", "measured": "raw archives of measured runs"}.get(how)
    if wanted is not None and found is not None and found.name != wanted:
        raise InputError(f"{place} holds {found.name}, not {wanted}: leave --{how} out, convert knows the format")
    found = found or next((one for one in formats() if one.name == wanted), None)
    if found is not None:
        known = f"with --{how}" if wanted else f"with {found.name}"
        refuse_unused(context, known, all_but=(how, "out", "config", *options_taken(found)))
    for line in convert_path(place, found, options, Context(bars=bar)):
        console.print(line, soft_wrap=True)


def fetch_measured(out: Path, base_url: str | None, runs: str | None, times: bool) -> None:
    """Download measured runs."""
    from showerstack.showers.archives.download import MEASURED_BUCKET, download_measured

    folder = out / "measured_raw"
    names = download_measured(folder, runs=names_of(runs), times=times, base_url=base_url or MEASURED_BUCKET, bars=bar)
    console.print(f"complete: {len(names)} runs in {folder}", soft_wrap=True)
