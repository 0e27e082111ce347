"""Commands of physics and of measured events: spectra, gamma-limit, datacheck, sky-map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from showerstack.analysis.blinding import Blinding
from showerstack.analysis.options import SearchOptions, SkyOptions, SpectraOptions
from showerstack.commands.app import (
    OverwriteOption,
    app,
    claimed,
    console,
    refuse_unused,
)
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import need
from showerstack.stacking.options import SeedOption, WorkersOption


def _refuse_unblind(context: typer.Context, blinding: Blinding) -> None:
    if blinding.open_share == 1.0:
        refuse_unused(context, "without --open-share", ("unblind",))


@app.command()
def spectra(context: typer.Context, options: SpectraOptions, overwrite: OverwriteOption = False) -> None:
    """Measure fluxes and fractions of mass groups by energy, with errors from every known source.

    Example: [bold]python cli.py spectra --run runs/composition --data kascade --simulation data/composition_test
    --exposure 6.7e11[/bold]
    """
    need("train", "report", "physics", what="spectra")
    from showerstack.analysis.spectra.files import SPECTRA_FILES, write_spectra
    from showerstack.analysis.spectra.run import fit_spectra, read_inputs
    from showerstack.report.spectra_page import SPECTRA_PAGE_FILE, knee_lines, spectra_text, write_spectra_page
    from showerstack.runtime.files import check_out_folder

    _refuse_unblind(context, options.blinding)
    check_out_folder(options.out)
    claimed(context, *(options.out / name for name in (SPECTRA_PAGE_FILE, *SPECTRA_FILES)))
    ctx = Context(bars=bar)
    inputs = read_inputs(options, ctx)
    result = fit_spectra(inputs, options, ctx)
    write_spectra(result, options.out)
    write_spectra_page(result, options.out)
    console.print(spectra_text(result))
    for line in knee_lines(result):
        console.print(line, soft_wrap=True)
    console.print(f"wrote {options.out / SPECTRA_PAGE_FILE} and tables beside it", soft_wrap=True)


@app.command(name="gamma-limit")
def gamma_limit(context: typer.Context, options: SearchOptions, overwrite: OverwriteOption = False) -> None:
    """Look for photons: candidates, background from simulation and data, limits on fraction and flux.

    Example: [bold]python cli.py gamma-limit --run runs/gamma --data kascade --simulation data/gamma_test
    --exposure 1.75e12[/bold]
    """
    need("train", "report", what="gamma-limit")
    from showerstack.analysis.photons.files import CANDIDATES_CSV, LIMITS_CSV, SEARCH_FILE, write_limits
    from showerstack.analysis.photons.result import PhotonResult
    from showerstack.analysis.photons.search import search_photons
    from showerstack.report.photons_page import PHOTONS_PAGE_FILE, excess_warning, limits_text, write_photon_page
    from showerstack.runtime.files import check_out_folder

    check_out_folder(options.out)
    _refuse_unblind(context, options.blinding)
    files = (PHOTONS_PAGE_FILE, LIMITS_CSV, CANDIDATES_CSV, SEARCH_FILE)
    claimed(context, *(options.out / name for name in files))
    photons = search_photons(options, Context(bars=bar))
    write_limits(PhotonResult(photons), options.out)
    write_photon_page(PhotonResult(photons), options.out)
    for line in excess_warning(photons):
        console.print(line, soft_wrap=True, markup=False)
    console.print(limits_text(photons))
    console.print(f"wrote {options.out / PHOTONS_PAGE_FILE} and tables beside it", soft_wrap=True)


@app.command()
def datacheck(
    context: typer.Context,
    run: Annotated[Path, typer.Option(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Dataset folder, or folder of runs; labels are neither needed nor read.")],
    out: Annotated[Path, typer.Option(help="Page to write; its numbers go beside it as .json.")] = Path(
        "datacheck.html"
    ),
    train: Annotated[Path | None, typer.Option(help="The run's training set, if it has moved.")] = None,
    alarms: Annotated[float, typer.Option(help="Rate of false alarms of the whole check.")] = 0.05,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
    overwrite: OverwriteOption = False,
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
    claimed(context, out, out.with_suffix(".json"))
    ctx = Context(bars=bar, workers=workers)
    result = check_data(run, data, train=train, seed=seed, alarms=alarms, ctx=ctx)
    console.print(verdict(result), soft_wrap=True)
    console.print(f"wrote {write_check(result, out)}", soft_wrap=True)
    raise typer.Exit(1 if result.raised else 0)


@app.command(name="sky-map")
def sky_map(context: typer.Context, options: SkyOptions, overwrite: OverwriteOption = False) -> None:
    """Map measured showers on the sky (HEALPix): counts, exposure from exchanged times, significance by Li and Ma.

    Needs the extra sky (astropy and astropy-healpix) and runs that were downloaded and converted with --times.

    Example: [bold]python cli.py sky-map --data data/measured --out sky_map[/bold]
    """
    need("sky", "report", *(("train",) if options.run else ()), what="sky-map")
    from showerstack.analysis.events import looked_at
    from showerstack.analysis.sky.map import MAP_CSV, MAP_FILE, MAP_FITS, MAP_PARQUET, write_map
    from showerstack.analysis.sky.map import sky_map as measure
    from showerstack.report.check_pages import PICTURE_FILE, describe_sky, write_sky_picture
    from showerstack.runtime.files import check_out_folder

    if options.run is None:
        refuse_unused(context, "without --run", ("share",))
    check_out_folder(options.out)
    claimed(context, *(options.out / name for name in (MAP_FITS, MAP_PARQUET, MAP_CSV, MAP_FILE, PICTURE_FILE)))
    _refuse_unblind(context, options.blinding)
    options = replace(options, data=looked_at(options.data, options.blinding))
    result = measure(options, Context(bars=bar))
    console.print(describe_sky(result), soft_wrap=True, highlight=False)
    write_map(result, options.out)
    console.print(f"wrote {write_sky_picture(result, options.out)} and tables beside it", soft_wrap=True)
