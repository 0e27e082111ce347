"""Commands of physics and of measured events: spectra, gamma-limit, runs, data checks, sky-map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from showerstack.commands.app import SeedOption, WorkersOption, app, console, refuse_unused
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError, need
from showerstack.stacking.options import Limits, OptionGroup

if TYPE_CHECKING:
    from showerstack.analysis.blinding import Blinding


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Return comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r}: give numbers with commas between, such as 15.2,15.4,15.6") from None


class ExposureOptions(OptionGroup):
    """How long and how well the sky was watched."""

    exposure: str | None = None
    """Area times solid angle times live time, m2 sr s, such as 6.7e11; default: of the runs' own live time."""
    dead_time: Annotated[float, Limits(0)] = 0.0
    """Seconds after each event without another one, for the runs' live time."""
    exposure_error: Annotated[float, Limits(0, 1)] = 0.05
    """Relative error of the exposure, common to all fluxes and limits."""


class BlindOptions(OptionGroup):
    """Which runs are looked at."""

    open_share: float | None = None
    """Analyse only this share of the runs, chosen by their names; the others stay blinded."""
    unblind: Annotated[bool, "--unblind"] = False
    """Also analyse the blinded runs; the output records it."""

    def blinding(self, context: typer.Context) -> Blinding:
        """Return what the options ask for."""
        from showerstack.analysis.blinding import Blinding

        if self.open_share is None:
            refuse_unused(context, "without --open-share", ("unblind",))
            return Blinding()
        return Blinding(self.open_share, self.unblind)


@app.command()
def spectra(
    context: typer.Context,
    run: Annotated[Path, typer.Option(help="Finished composition run.")],
    data: Annotated[
        list[Path], typer.Option(help="Measured events: a dataset folder or a folder of runs; may be repeated.")
    ],
    watched: ExposureOptions,
    blinds: BlindOptions,
    out: Annotated[Path, typer.Option(help="Folder for tables and provenance.")] = Path("spectra"),
    simulation: Annotated[
        list[Path] | None,
        typer.Option(help="Labelled simulated set, not trained on, for the response; default: held-out events."),
    ] = None,
    bins: Annotated[str | None, typer.Option(help="Bin edges of lg(E/eV), separated by commas.")] = None,
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle (degrees), as in the exposure.")] = 18.0,
    energy_scale: Annotated[float, typer.Option(min=0, help="Uncertainty of the energy scale, in lg E.")] = 0.04,
    muon_scale: Annotated[float, typer.Option(min=0, help="Uncertainty of the muon number scale, in lg Nmu.")] = 0.02,
    electron_scale: Annotated[float, typer.Option(min=0, help="The same of the electron number, in lg Ne.")] = 0.02,
    knee_sharpness: Annotated[float, typer.Option(help="How sharp knees are.")] = 5.0,
    seed: SeedOption = 1,
) -> None:
    """Measure fluxes and fractions of five mass groups by energy, with errors from every known source.

    Example: [bold]python cli.py spectra --run runs/composition --data kascade --simulation data/composition_test
    --exposure 6.7e11[/bold]
    """
    need("train", "report", "physics", what="spectra")
    from showerstack.analysis.spectra.folding import Widths
    from showerstack.analysis.spectra.run import EDGES, SpectraOptions, measure_spectra
    from showerstack.report.physics_pages import knee_lines, spectra_text, write_spectra_page
    from showerstack.runtime.files import check_out

    check_out(out)
    blinding = blinds.blinding(context)
    options = SpectraOptions(
        run, blinding.chosen(_folders(data)), watched.exposure, out, simulation or [],
        edges=EDGES if bins is None else numbers(bins, "--bins"), zenith_max_deg=zenith_max,
        widths=Widths(energy_scale, muon_scale, electron_scale),
        knee_sharpness=knee_sharpness, blinding=blinding, seed=seed,
        dead_time_s=watched.dead_time, exposure_error=watched.exposure_error,
    )  # fmt: skip
    result, remarks = measure_spectra(options, Context(bars=bar))
    console.print(spectra_text(result))
    for line in knee_lines(result):
        console.print(line, soft_wrap=True)
    console.print(f"wrote {write_spectra_page(result, out, remarks)} and tables beside it", soft_wrap=True)


def _folders(data: list[Path]) -> list[Path]:
    """Return the dataset folders that are meant: each itself, or every run in a folder of runs."""
    from showerstack.showers.archives.measured import measured_folders

    return [folder for path in data for folder in measured_folders(path)]


@app.command(name="gamma-limit")
def gamma_limit(
    context: typer.Context,
    run: Annotated[Path, typer.Option(help="Finished gamma run.")],
    data: Annotated[
        list[Path], typer.Option(help="Measured events: a dataset folder or a folder of runs; may be repeated.")
    ],
    watched: ExposureOptions,
    blinds: BlindOptions,
    out: Annotated[Path, typer.Option(help="Folder for tables, provenance and page.")] = Path("gamma_limit"),
    simulation: Annotated[
        Path | None, typer.Option(help="Labelled simulated set, not trained on; default: the run's held-out events.")
    ] = None,
    bins: Annotated[str | None, typer.Option(help="Bin edges of lg(E/eV), separated by commas.")] = None,
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle (degrees), as in the exposure.")] = 30.0,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.9,
    efficiency: Annotated[
        float | None, typer.Option(help="Share of photons above the threshold; default: of the best expected limit.")
    ] = None,
    index: Annotated[float, typer.Option(help="Spectral index assumed for the photons.")] = 2.7,
    toys: Annotated[int, typer.Option(help="Experiments drawn for each signal that is tried.")] = 1000,
    seed: SeedOption = 1,
) -> None:
    """Look for photons: candidates, background from simulation and data, limits on fraction and flux.

    Example: [bold]python cli.py gamma-limit --run runs/gamma --data kascade --simulation data/gamma_test
    --exposure 1.75e12[/bold]
    """
    need("train", "report", what="gamma-limit")
    from showerstack.analysis.photons.search import EDGES, PhotonResult, SearchOptions, search_photons
    from showerstack.report.physics_pages import excess_warning, limits_text, write_photon_page
    from showerstack.runtime.files import check_out

    check_out(out)
    blinding = blinds.blinding(context)
    options = SearchOptions(
        run, blinding.chosen(_folders(data)), watched.exposure, out, simulation,
        edges=EDGES if bins is None else numbers(bins, "--bins"), zenith_max_deg=zenith_max, level=level,
        efficiency=efficiency, index=index, toys=toys, blinding=blinding, seed=seed,
        dead_time_s=watched.dead_time, exposure_error=watched.exposure_error,
    )  # fmt: skip
    photons = search_photons(options, Context(bars=bar))
    for line in excess_warning(photons):
        console.print(line, soft_wrap=True, markup=False)
    console.print(limits_text(photons))
    result = PhotonResult(photons)
    result.write(out)
    console.print(f"wrote {write_photon_page(result, out)} and tables beside it", soft_wrap=True)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of converted measured runs.")],
    out: Annotated[Path | None, typer.Option(help="Also write the list as .csv or .parquet.")] = None,
) -> None:
    """List measured runs: events, share of the live time, pass rates, means, and which runs are off.

    Example: [bold]python cli.py runs data/measured --out runs.parquet[/bold]
    """
    from showerstack.showers.archives.measured import measured_folders, run_list, write_run_list

    folders = measured_folders(folder)
    table = write_run_list(folders, out) if out else run_list(folders)
    for row in table.iter_rows(named=True):
        share = "" if row["live_time_share"] is None else f", {100 * row['live_time_share']:.2f} % of the time"
        off = f"  OFF: {row['off']}" if row["off"] else ""
        cuts = row["evaluation_cuts"]
        passed = f"{100 * row[f'pass_{cuts}']:.2f} % pass the evaluation cuts ({cuts})"
        console.print(f"{row['run']}: {row['events']:,} events{share}, {passed}{off}", soft_wrap=True)


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
) -> None:
    """Say whether events look like the simulation that a run was trained on, and where they do not.

    The exit code is 1 where there is an alarm.

    Example: [bold]python cli.py datacheck --run runs/composition --data data/measured[/bold]
    """
    need("train", "report", what="datacheck")
    from showerstack.analysis.datacheck.check import check_data, verdict
    from showerstack.report.check_pages import write_check
    from showerstack.runtime.files import check_target

    check_target(out, (".html", ".htm"))
    ctx = Context(bars=bar, workers=workers)
    result = check_data(run, data, train=train, seed=seed, alarms=alarms, ctx=ctx)
    console.print(verdict(result), soft_wrap=True)
    console.print(f"wrote {write_check(result, out)}", soft_wrap=True)
    raise typer.Exit(1 if result.raised else 0)


@app.command(name="sky-map")
def sky_map(
    context: typer.Context,
    data: Annotated[
        list[Path], typer.Option(help="Dataset folder with event times, or folder of runs; may be given several times.")
    ],
    blinds: BlindOptions,
    out: Annotated[Path, typer.Option(help="Folder for the map, its picture and provenance.")] = Path("sky_map"),
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle (degrees).")] = 30.0,
    nside: Annotated[int, typer.Option(help="HEALPix resolution: 32 are pixels of 1.8 degrees, 64 of 0.9.")] = 32,
    scrambles: Annotated[int, typer.Option(help="How often times are exchanged for the exposure.")] = 20,
    window: Annotated[float, typer.Option(help="Times are exchanged within about so many hours.")] = 24.0,
    azimuth_of_north: Annotated[
        float | None,
        typer.Option(help="Stored azimuth of showers from the north (degrees); default: as found."),
    ] = None,
    clockwise: Annotated[
        bool | None,
        typer.Option("--clockwise/--counter-clockwise", help="Azimuths grow from north over east, or over west."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Gamma run: map only events with the highest scores.")] = None,
    share: Annotated[float, typer.Option(help="With --run: share of the events that is kept.")] = 0.01,
    seed: SeedOption = 1,
) -> None:
    """Map measured showers on the sky (HEALPix): counts, exposure from exchanged times, significance by Li and Ma.

    Needs the extra sky (astropy and astropy-healpix) and runs that were downloaded and converted with --times.

    Example: [bold]python cli.py sky-map --data data/measured --out sky_map[/bold]
    """
    need("sky", "report", *(("train",) if run else ()), what="sky-map")
    from showerstack.analysis.sky.coordinates import Azimuth
    from showerstack.analysis.sky.map import SkyOptions, write_map
    from showerstack.analysis.sky.map import sky_map as measure
    from showerstack.report.check_pages import sky_words, write_sky_picture

    if run is None:
        refuse_unused(context, "without --run", ("share",))
    from showerstack.runtime.files import check_out

    check_out(out)
    blinding = blinds.blinding(context)
    said = azimuth_of_north is not None or clockwise is not None
    azimuth = Azimuth(azimuth_of_north or 0.0, clockwise is not False) if said else None
    options = SkyOptions(
        blinding.chosen(_folders(data)), zenith_max, nside, scrambles, window, azimuth,
        run, share, seed, blinding,
    )  # fmt: skip
    result = measure(options, Context(bars=bar))
    console.print(sky_words(result), soft_wrap=True, highlight=False)
    write_map(result, out)
    console.print(f"wrote {write_sky_picture(result, out)} and tables beside it", soft_wrap=True)
