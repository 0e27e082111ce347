"""Commands that turn predictions into physics: spectra, gamma-limit, robustness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from commands.options import SeedOption, WorkersOption
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
    bins: Annotated[str | None, typer.Option(help="Bin edges of lg(E/eV), separated by commas.")] = None,
    zenith_max: Annotated[float, typer.Option(help="Largest zenith angle (degrees), as in the exposure.")] = 18.0,
    energy_scale: Annotated[float, typer.Option(min=0, help="Uncertainty of the energy scale, in lg E.")] = 0.04,
    muon_scale: Annotated[float, typer.Option(min=0, help="Uncertainty of the muon number scale, in lg Nmu.")] = 0.02,
    replicas: Annotated[int, typer.Option(help="Repetitions for errors of the finite simulation.")] = 100,
    knee_toys: Annotated[
        int, typer.Option(help="Toy experiments for each hypothesis on the knees; 0: no fit of knees.")
    ] = 100,
    knee_sharpness: Annotated[float, typer.Option(help="How sharp knees are.")] = 5.0,
    seed: SeedOption = 1,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict even if the feature code has changed since.")
    ] = False,
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


@app.command(name="gamma-limit")
def gamma_limit(
    run: Annotated[Path, typer.Option(help="Finished gamma run.")],
    data: Annotated[list[Path], typer.Option(help="Dataset folder of measured events; may be given several times.")],
    exposure: Annotated[str, typer.Option(help="Area times solid angle times live time, m2 sr s, such as 6.2e12.")],
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
    seed: SeedOption = 1,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict even if the feature code has changed since.")
    ] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Look for photons: candidates, background from simulation and data, limits on fraction and flux.

    Example: [bold]python cli.py gamma-limit --run runs/gamma --data kascade --simulation data/gamma_test
    --exposure 1.7e13[/bold]
    """
    from analysis.photons.result import PhotonResult
    from analysis.photons.search import EDGES, SearchOptions, search_photons
    from report.photons import limits_text, write_photon_page

    options = SearchOptions(
        run, data, exposure, out, simulation, edges=EDGES if bins is None else numbers(bins, "--bins"),
        zenith_max_deg=zenith_max, level=level, efficiency=efficiency, index=index, seed=seed, anyway=anyway,
        trusted=trusted,
    )  # fmt: skip
    found = search_photons(options, bars=bar)
    console.print(limits_text(found))
    for remark in found.remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    result = PhotonResult(found)
    result.write(out)
    console.print(f"wrote {write_photon_page(result, out)} and tables beside it", soft_wrap=True)


@app.command()
def robustness(
    out: Annotated[Path, typer.Option(help="Folder for showers, fits, tables and page.")] = Path("robustness"),
    places: Annotated[
        str | None, typer.Option(help="world/model, separated by commas; the first is the reference.")
    ] = None,
    train: Annotated[int, typer.Option(help="Training showers of each place.")] = 12_000,
    test: Annotated[int, typer.Option(help="Test showers of each place.")] = 10_000,
    learner: Annotated[str, typer.Option(help="A learner that needs no grid.")] = "lightgbm",
    left_out: Annotated[int, typer.Option(help="Number of most different features to leave out.")] = 5,
    jitter: Annotated[float, typer.Option(help="Standard deviation of the random change of sizes, in lg.")] = 0.03,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
) -> None:
    """Train on one hadronic model or world and test on the others: scores, biases of fractions, and what helps.

    Example: [bold]python cli.py robustness --places default/qgs,default/epos,harder/mix[/bold]
    """
    from analysis.robustness.places import PLACES, parse_places
    from analysis.robustness.result import RobustnessOptions
    from analysis.robustness.study import study
    from report.robustness import robustness_text, write_robustness_page

    chosen = parse_places(",".join(PLACES) if places is None else places)
    options = RobustnessOptions(
        chosen, out, train=train, test=test, learner=learner, left_out=left_out, jitter=jitter, seed=seed,
        workers=workers,
    )  # fmt: skip
    found = study(options, bars=bar)
    console.print(robustness_text(found), soft_wrap=True, markup=False, highlight=False)
    console.print(f"wrote {write_robustness_page(found)} and tables beside it", soft_wrap=True)
