"""From a run, measured events and an exposure to elemental spectra with errors: what ``cli.py spectra`` calls."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from analysis.reading import is_simulated, open_run
from analysis.spectra.estimation.errors import Widths, all_errors
from analysis.spectra.estimation.estimate import Setting, estimate
from analysis.spectra.estimation.goodness import goodness
from analysis.spectra.estimation.labels import by_labels
from analysis.spectra.inputs.events import Simulated, SpectrumEvents
from analysis.spectra.inputs.exposure import judge_exposure, parse_exposure
from analysis.spectra.inputs.reading import LG_NE_MIN, LG_NMU_MIN, read_measured, read_response, training_prior
from analysis.spectra.inputs.response import Binning, binning
from analysis.spectra.knees.broken_power_law import SHARPNESS
from analysis.spectra.knees.knee import fit_knees
from analysis.spectra.result import Spectra
from showers.datasets.dataset import Dataset
from showers.execution.progress import Bars, silent
from showers.schema import COMPOSITION, InputError
from stacking.run.provenance import git_revision, versions

EDGES = (15.15, 15.35, 15.55, 15.75, 15.95, 16.15, 16.35, 16.55, 16.75)
"""Borders of the energy bins, lg(E/eV): twice as wide as published ones, because errors of the response are counted."""
ZENITH_MAX_DEG = 18.0


@dataclass(frozen=True)
class SpectraOptions:
    """What the user asks for."""

    run: Path
    data: list[Path]
    exposure: str
    out: Path
    simulation: list[Path]
    edges: tuple[float, ...] = EDGES
    zenith_max_deg: float = ZENITH_MAX_DEG
    widths: Widths = field(default_factory=Widths)
    replicas: int = 100
    knee_toys: int = 100
    """Toy experiments a hypothesis; 0: no fit of knees."""
    knee_sharpness: float = SHARPNESS
    seed: int = 1
    anyway: bool = False
    trusted: bool = False


def measure_spectra(options: SpectraOptions, *, bars: Bars = silent) -> tuple[Spectra, list[str]]:
    """Measure fluxes and fractions by mass group and energy, write them, and return them with all remarks.

    Raises
    ------
    InputError
        For a run of another task, data that were trained on, an exposure that cannot be, bins without simulation.
    """
    exposure = parse_exposure(options.exposure)
    bins = binning(options.edges)
    if not 0 < options.zenith_max_deg <= 60:
        raise InputError(f"--zenith-max {options.zenith_max_deg:g}: give degrees above 0 and at most 60")
    if options.replicas < 20:
        raise InputError(f"--replicas {options.replicas}: at least 20, or errors of the simulation mean nothing")
    if options.knee_toys < 0 or not 0.5 <= options.knee_sharpness <= 100:
        raise InputError("--knee-toys must be 0 or more, --knee-sharpness between 0.5 and 100")
    bundle = open_run(options.run, COMPOSITION.name, "spectra", trusted=options.trusted)
    data, prints, remarks = read_measured(
        bundle, options.data, options.zenith_max_deg, anyway=options.anyway, bars=bars
    )
    response = read_response(
        bundle, options.simulation, prints, bins, options.zenith_max_deg, anyway=options.anyway, bars=bars
    )
    prior, said = training_prior(bundle, bins, options.zenith_max_deg, response)
    remarks += [*response.remarks, *([said] if said else []), *outside(data, response.events, bins)]
    setting = Setting(bins, exposure, prior)
    with bars("spectra", "steps") as progress:
        progress(0, 5, "fluxes")
        found = estimate(data, response.events, response.thrown, setting)
        simulated = all(is_simulated(Dataset.open(folder, labels=False)) for folder in options.data)
        remarks += judge_exposure(found.flux.sum(axis=1), bins.centres_ev, simulated=simulated)
        progress(1, 5, "errors")
        errors = all_errors(
            found, data, response.events, response.thrown,
            widths=options.widths, replicas=options.replicas, seed=options.seed,
        )  # fmt: skip
        progress(2, 5, "decided labels")
        hard = estimate(data, response.events, response.thrown, Setting(bins, exposure, prior, "label"))
        labels = by_labels(hard)
        progress(3, 5, "goodness of fit")
        fit = goodness(found, data, response.events, toys=2 * options.replicas)
        progress(4, 5, "knees")
        knees = (
            fit_knees(found, errors, sharpness=options.knee_sharpness, toys=options.knee_toys, seed=options.seed)
            if options.knee_toys
            else None
        )
        progress(5, 5)
    remarks += [*errors.remarks, *([knees] if isinstance(knees, str) else [])]
    result = Spectra(found, errors, labels, fit, None if isinstance(knees, str) else knees)
    provenance = {
        "run": options.run.resolve().name,
        "config_hash": bundle.chain.config_hash,
        "data_fingerprints": prints,
        "simulation": [folder.name for folder in options.simulation] or "held-out events of the run",
        "simulated_data": simulated,
        "exposure_m2_sr_s": exposure,
        "zenith_max_deg": options.zenith_max_deg,
        "cuts": f"Ze < {options.zenith_max_deg:g} deg, Ne > {LG_NE_MIN}, Nmu > {LG_NMU_MIN} (lg)",
        "corrected_for_efficiency": response.thrown is not None,
        "nuisance_widths": asdict(options.widths),
        "measured_events": len(data),
        "simulated_events": len(response.events),
        "replicas": options.replicas,
        "seed": options.seed,
        "remarks": remarks,
        "versions": versions(),
        "git_revision": git_revision(),
    }
    result.write(options.out, provenance)
    return result, remarks


def outside(data: SpectrumEvents, simulated: Simulated, bins: Binning) -> list[str]:
    """Return remarks on measured energies beyond the bins and beyond all simulated ones."""
    remarks = []
    beyond = int(((data.lg_energy < simulated.lg_energy.min()) | (data.lg_energy > simulated.lg_energy.max())).sum())
    if beyond:
        remarks.append(
            f"{beyond:,} measured events ({100 * beyond / len(data):.2g} %) have energies outside those of the "
            f"simulation, lg(E/eV) {simulated.lg_energy.min():.2f} to {simulated.lg_energy.max():.2f}"
        )
    left = int((bins.place(data.lg_energy) < 0).sum())
    if left:
        remarks.append(
            f"{left:,} of {len(data):,} measured events lie outside the energy bins, "
            f"lg(E/eV) {bins.edges[0]:g} to {bins.edges[-1]:g}"
        )
    used = np.bincount(bins.place(data.lg_energy)[bins.place(data.lg_energy) >= 0], minlength=bins.n_bins)
    empty = [f"{bins.edges[b]:g}-{bins.edges[b + 1]:g}" for b in np.flatnonzero(used == 0)]
    if empty:
        remarks.append(f"no measured event in the energy bins {', '.join(empty)} of lg(E/eV)")
    return remarks
