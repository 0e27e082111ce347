"""Commands that turn predictions into physics: spectra, gamma-limit, robustness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from commands.options import SeedOption
from showers.execution.progress import bar
from showers.schema import InputError


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Return comma-separated numbers.

    Raises
    ------
    InputError
        If one is none.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r}: give numbers with commas between, such as 15.2,15.4,15.6") from None


@app.command()
def spectra(
    run: Annotated[Path, typer.Option(help="Finished composition run.")],
    data: Annotated[list[Path], typer.Option(help="Dataset folder of measured events; may be given several times.")],
    exposure: Annotated[str, typer.Option(help="Area times solid angle times live time, m2 sr s, such as 6.2e12.")],
    out: Annotated[Path, typer.Option(help="Folder for tables and provenance.")] = Path("spectra"),
    simulation: Annotated[
        list[Path] | None,
        typer.Option(help="Labelled simulated set, not trained on, for the response; default: held-out events."),
    ] = None,
    bins: Annotated[str | None, typer.Option(help="Borders of lg(E/eV), with commas.")] = None,
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle, degrees; the exposure's.")] = 18.0,
    energy_scale: Annotated[float, typer.Option(min=0, help="Width of the energy scale, in lg E.")] = 0.04,
    muon_scale: Annotated[float, typer.Option(min=0, help="Width of the muon number's scale, in lg Nmu.")] = 0.02,
    replicas: Annotated[int, typer.Option(help="Repetitions for errors of the finite simulation.")] = 100,
    knee_toys: Annotated[
        int, typer.Option(help="Toy experiments for each hypothesis on the knees; 0: no fit of knees.")
    ] = 100,
    knee_sharpness: Annotated[float, typer.Option(help="How sharp knees are.")] = 5.0,
    seed: SeedOption = 1,
    anyway: Annotated[bool, typer.Option("--anyway", help="Even if the feature code has changed since.")] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Measure fluxes and fractions of five mass groups by energy, with errors from every known source.

    Example: [bold]python cli.py spectra --run runs/composition --data kascade --simulation data/composition_test
    --exposure 6.2e12[/bold]
    """
    from analysis.spectra.estimation.errors import Widths
    from analysis.spectra.run import EDGES, SpectraOptions, measure_spectra
    from report.spectra import knee_lines, spectra_text, write_spectra_page

    options = SpectraOptions(
        run, data, exposure, out, simulation or [],
        edges=EDGES if bins is None else numbers(bins, "--bins"), zenith_max_deg=zenith_max,
        widths=Widths(energy_scale, muon_scale), replicas=replicas, knee_toys=knee_toys,
        knee_sharpness=knee_sharpness, seed=seed, anyway=anyway, trusted=trusted,
    )  # fmt: skip
    found, remarks = measure_spectra(options, bars=bar)
    console.print(spectra_text(found))
    for line in knee_lines(found):
        console.print(line, soft_wrap=True)
    for remark in remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    console.print(f"wrote {write_spectra_page(found, out, remarks)} and tables beside it", soft_wrap=True)
