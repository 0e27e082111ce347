"""Commands on measured events: list of runs, check, sky map; and what download, convert and simulate do for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import app, console
from commands.options import SeedOption, WorkersOption
from showers.execution.progress import bar
from showers.schema import InputError

RunsOption = Annotated[
    str | None, typer.Option("--runs", help="Measured: comma-separated names of runs; default: all.")
]
DeleteRawOption = Annotated[
    bool, typer.Option("--delete-raw", help="Measured: delete each run's raw grids once its folder is complete.")
]
TimesOption = Annotated[bool, typer.Option("--times", help="Measured: also the events' times.")]


def names_of(runs: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, None where nothing was said.

    Raises
    ------
    InputError
        If the list is empty.
    """
    if runs is None:
        return None
    names = [name.strip() for name in runs.split(",") if name.strip()]
    if not names:
        raise InputError("--runs: expected comma-separated names of runs, at least one")
    return names


def fetch_measured(out: Path, base_url: str | None, runs: str | None, times: bool) -> None:
    """Download measured runs."""
    from showers.archives.measured_download import BUCKET, download_measured

    folder = out / "measured_raw"
    names = download_measured(folder, runs=names_of(runs), times=times, base_url=base_url or BUCKET, bars=bar)
    console.print(f"complete: {len(names)} runs in {folder}", soft_wrap=True)


def convert_measured(
    raw: Path, out: Path, protocol: str, runs: str | None, times: bool, delete_raw: bool = False
) -> None:
    """Convert measured runs, list them, and say what was left out."""
    from showers.archives.measured import convert_measured as convert
    from showers.archives.measured_summary import write_run_list

    folder = out / "measured"
    found = convert(raw, folder, runs=names_of(runs), protocol=protocol, times=times, delete_raw=delete_raw, bars=bar)
    for left_out in found.left_out:
        console.print(f"left out: run {left_out.run}: {left_out.reason}", soft_wrap=True)
    for remark in found.remarks:
        console.print(f"remark: {remark}", soft_wrap=True)
    if not found.folders:
        raise InputError(f"{raw}: none of its {len(found.left_out)} runs can be used")
    table = write_run_list(found.folders, folder / "runs.csv")
    for run, off in table.filter(table["off"] != "").select("run", "off").iter_rows():
        console.print(f"off: run {run} differs from the others in {off}", soft_wrap=True)
    console.print(f"wrote {len(found.folders)} runs to {folder}, listed in {folder / 'runs.csv'}", soft_wrap=True)


def predict_measured(raw: Path, out: Path, run: Path, trusted: bool, **options: Any) -> None:
    """Convert and predict measured runs one by one, list them, and say what was left out."""
    from showers.archives.measured_summary import write_run_list
    from stacking.measured_runs import predict_measured as predict

    folder = out / "predicted" / run.resolve().name
    found = predict(raw, folder, run, trusted=trusted, bars=bar, **options)
    for left_out in found.left_out:
        console.print(f"left out: run {left_out.run}: {left_out.reason}", soft_wrap=True)
    for remark in found.remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    if not found.folders:
        raise InputError(f"{raw}: none of its {len(found.left_out)} runs can be used")
    write_run_list(found.folders, folder / "runs.csv")
    console.print(f"wrote predictions of {len(found.folders)} runs to {folder}, no grids are kept", soft_wrap=True)


def simulate_sky(spectrum: Path | None, out: Path, seed: int, workers: int | None, overwrite: bool) -> None:
    """Simulate measured runs of a known sky."""
    if spectrum is None:
        raise InputError("say which sky to measure: --spectrum FILE (a TOML file; see docs/physics/measured.md)")
    from showers.simulation.measured import simulate_measured

    folder = out / "measured_raw"
    files = simulate_measured(spectrum, folder, seed=seed, workers=workers, overwrite=overwrite, bars=bar)
    console.print(f"wrote {len(files)} runs to {folder}; the truth is in {folder / 'truth'}", soft_wrap=True)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of converted measured runs.")],
    out: Annotated[Path | None, typer.Option(help="Also write the list as .csv or .parquet.")] = None,
) -> None:
    """List measured runs: events, share of the live time, pass rates, means, and which runs are off.

    Example: [bold]python cli.py runs data/measured --out runs.parquet[/bold]
    """
    from showers.archives.measured import measured_folders
    from showers.archives.measured_summary import run_list, write_run_list

    folders = measured_folders(folder)
    table = write_run_list(folders, out) if out else run_list(folders)
    for row in table.iter_rows(named=True):
        share = "" if row["live_time_share"] is None else f", {100 * row['live_time_share']:.2f} % of the time"
        off = f"  OFF: {row['off']}" if row["off"] else ""
        rate = 100 * row["pass_test_age"]
        console.print(f"{row['run']}: {row['events']:,} events{share}, {rate:.2f} % pass the cuts{off}", soft_wrap=True)


@app.command()
def datacheck(
    run: Annotated[Path, typer.Option(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Dataset folder, or folder of runs; labels are neither needed nor read.")],
    out: Annotated[Path, typer.Option(help="Page to write; its numbers go beside it as .json.")] = Path(
        "datacheck.html"
    ),
    train: Annotated[Path | None, typer.Option(help="The run's training set, if it has moved.")] = None,
    alarms: Annotated[float, typer.Option(help="Rate of false alarms of the whole check.")] = 0.05,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Say whether events look like the simulation that a run was trained on, and what share should not be trusted.

    The exit code is 1 where there is an alarm.

    Example: [bold]python cli.py datacheck --run runs/composition --data data/measured[/bold]
    """
    from analysis.datacheck.check import check_data
    from analysis.datacheck.words import verdict
    from report.datacheck import write_check

    found = check_data(run, data, train=train, seed=seed, alarms=alarms, workers=workers, trusted=trusted, bars=bar)
    for remark in found.remarks:
        console.print(f"remark: {remark}", soft_wrap=True)
    console.print(verdict(found), soft_wrap=True)
    console.print(f"wrote {write_check(found, out)}", soft_wrap=True)
    raise typer.Exit(1 if found.raised else 0)


@app.command(name="sky-map")
def sky_map(
    data: Annotated[
        list[Path], typer.Option(help="Dataset folder with event times, or folder of runs; may be given several times.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the map, its picture and provenance.")] = Path("sky_map"),
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle (degrees).")] = 30.0,
    pixel: Annotated[float, typer.Option(help="Size of the pixels (degrees).")] = 1.5,
    scrambles: Annotated[int, typer.Option(help="How often times are exchanged for the exposure.")] = 20,
    window: Annotated[float, typer.Option(help="Times are exchanged within about so many hours.")] = 24.0,
    azimuth_of_north: Annotated[float, typer.Option(help="Stored azimuth of showers from the north (degrees).")] = 0.0,
    clockwise: Annotated[
        bool, typer.Option("--clockwise/--counter-clockwise", help="Azimuths grow from north over east, or over west.")
    ] = True,
    run: Annotated[Path | None, typer.Option(help="Gamma run: map only events with the highest scores.")] = None,
    share: Annotated[float, typer.Option(help="With --run: share of the events that is kept.")] = 0.01,
    seed: SeedOption = 1,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict even if the feature code has changed since.")
    ] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Map measured showers on the sky: counts, exposure from exchanged times, significance by Li and Ma.

    Needs astropy (pip install 'showerstack[sky]') and runs that were downloaded and converted with --times.

    Example: [bold]python cli.py sky-map --data data/measured --out sky_map[/bold]
    """
    from analysis.sky.coordinates import Azimuth
    from analysis.sky.result import write_map
    from analysis.sky.sky_map import SkyOptions
    from analysis.sky.sky_map import sky_map as measure
    from report.sky import sky_words, write_sky_picture
    from showers.archives.measured import measured_folders

    options = SkyOptions(
        [folder for path in data for folder in measured_folders(path)], zenith_max, pixel, scrambles, window,
        Azimuth(azimuth_of_north, clockwise), run, share, seed, anyway, trusted,
    )  # fmt: skip
    found = measure(options, bars=bar)
    for remark in found.remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    console.print(sky_words(found), soft_wrap=True, highlight=False)
    write_map(found, out)
    console.print(f"wrote {write_sky_picture(found, out)} and tables beside it", soft_wrap=True)
