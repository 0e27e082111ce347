"""From a gamma run, measured events and an exposure to limits on photons: what ``cli.py gamma-limit`` calls.

The result on disk is tables with units in their columns' names, and provenance.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.events import open_run, refuse_shared_folders
from showerstack.analysis.exposure import Exposure, check_flux_of_exposure, exposure_of
from showerstack.analysis.options import SearchOptions
from showerstack.analysis.photons.background import (
    Backgrounds,
    Counts,
    Regions,
    Transfer,
    Weighted,
    backgrounds,
    choose_regions,
    measure_transfer,
    on_off,
    squared_weight,
)
from showerstack.analysis.photons.events import (
    HADRON,
    PHOTON,
    PhotonEnergy,
    SearchEvents,
    SimulatedSearch,
    read_data,
    read_simulation,
)
from showerstack.analysis.photons.limits import BAND, cls_limit
from showerstack.analysis.photons.on_off import Common, OnOff, signal_limits, significance
from showerstack.analysis.photons.workspace import workspace
from showerstack.analysis.spectra.response import Binning, Thrown, binning
from showerstack.runtime.code import git_revision, versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, write_json
from showerstack.runtime.logs import remark
from showerstack.showers.schema import GAMMA
from showerstack.showers.source import is_simulated, read_source

LOG = logging.getLogger(__name__)

HALVES = 17
"""Keeps the random halves of the simulation apart from other random numbers of the same seed."""
LEAK = 0.3
"""Share of a signal that lies in the sideband, of what lies above it, from which a remark says so."""
MANY_SIGMA = 3.0
"""Significance of all energies together from which a page says that a limit is not the result."""


@dataclass(frozen=True)
class Limit:
    """Limits in one energy range."""

    lg_energy_low: float
    lg_energy_high: float
    integral: bool
    """Walking up: all energies from ``lg_energy_low`` on."""
    measured: int
    candidates: int
    backgrounds: Backgrounds
    efficiency: float
    """Photons above the threshold per photon sent (accepted, where thrown ones are not known)."""
    efficiency_error: float
    limit: float
    """Events, by CLs with the background from data."""
    limit_simulation: float
    """The same with the background from simulation."""
    expected: np.ndarray
    """(5,) limits expected without photons, at the quantiles of :data:`showerstack.analysis.photons.limits.BAND`."""
    interval: tuple[float, float]
    """Events: the unified interval by the likelihood ratio, background from data."""
    significance: float
    """Of an excess, standard deviations; 0 for a deficit."""
    sent_per_flux: float
    """Photons sent for a flux of one m^-2 sr^-1 s^-1 (eV^-1 where not integral); NaN where it is not known."""
    hadrons_sent: float
    """Particles that the measured events stand for, in the exposure."""
    leak: float
    """Signal events in the sideband for one above the threshold, which the likelihood knows of."""
    counts: OnOff
    common: Common

    @property
    def flux_per_event(self) -> float:
        """By which events are multiplied to give fluxes."""
        return 1.0 / (self.efficiency * self.sent_per_flux) if self.efficiency > 0 else np.nan

    @property
    def fraction_per_event(self) -> float:
        """By which events are multiplied to give the share of photons in all particles of the same energy."""
        return 1.0 / (self.efficiency * self.hadrons_sent) if self.efficiency > 0 else np.nan


@dataclass(frozen=True)
class PhotonSearch:
    """All that a search found."""

    options: SearchOptions
    exposure: Exposure
    bins: Binning
    regions: Regions
    transfer: Transfer
    limits: tuple[Limit, ...]
    """First the bins that can be used, then the integral ones."""
    data: SearchEvents
    candidates: np.ndarray
    """Positions in :attr:`data`, highest score first."""
    measuring: Weighted
    energy: PhotonEnergy | None
    """None where true energies are not known: the hadrons' formula stands in."""
    efficiency_known: bool
    remarks: tuple[str, ...]
    fingerprints: tuple[str, ...]
    config_hash: str
    simulated_data: bool
    flow: dict[str, int] = field(default_factory=dict)
    """Measured events left after each cut."""


def search_photons(options: SearchOptions, ctx: Context = Context()) -> PhotonSearch:
    """Look for photons among measured events."""
    bins = binning(options.edges)
    _check(options)
    exposure = exposure_of(
        options.exposure, options.data, options.zenith_max_deg, options.dead_time_s, options.exposure_error
    )
    run = open_run(options.run, GAMMA.name, "gamma-limit")
    refuse_shared_folders(options.data, [options.simulation] if options.simulation else ())
    data, prints, remarks, flow = read_data(run, options.data, options.zenith_max_deg, ctx)
    simulated, thrown, new_remarks = read_simulation(
        run, options.simulation, prints, bins.fine, options.zenith_max_deg, ctx
    )
    remarks += [*new_remarks, *exposure.remarks]
    is_simulated_data = all(is_simulated(read_source(folder)) for folder in options.data)
    with ctx.bars("gamma-limit", "energies") as progress:
        search = search_events(
            data,
            simulated,
            thrown,
            bins,
            options,
            exposure,
            simulated_data=is_simulated_data,
            remarks=remarks,
            progress=progress,
        )
    remark(LOG, search.remarks)
    return PhotonSearch(
        **{name: value for name, value in vars(search).items()
           if name not in ("fingerprints", "config_hash", "flow")},
        flow=flow, fingerprints=tuple(prints), config_hash=run.chain.config_hash,
    )  # fmt: skip


def _check(options: SearchOptions) -> None:
    if not 0 < options.zenith_max_deg <= 60:
        raise InputError(f"--zenith-max {options.zenith_max_deg:g}: give degrees above 0 and at most 60")
    if not 0.5 <= options.level < 1:
        raise InputError(f"--level {options.level:g}: give a confidence level of at least 0.5 and below 1")
    if options.efficiency is not None and not 0 < options.efficiency < 1:
        raise InputError(f"--efficiency {options.efficiency:g}: give a share between 0 and 1")
    if options.toys < 100:
        raise InputError(f"--toys {options.toys}: at least 100, or limits are chance")
    if not 1 < options.index < 5:
        raise InputError(f"--index {options.index:g}: give a spectral index between 1 and 5")


def search_events(
    data: SearchEvents,
    simulated: SimulatedSearch,
    thrown: Thrown | None,
    bins: Binning,
    options: SearchOptions,
    exposure: Exposure,
    *,
    simulated_data: bool = True,
    remarks: list[str] | None = None,
    progress: object = None,
) -> PhotonSearch:
    """Do the search on events that have been read; see :func:`search_photons`."""
    new_remarks = list(remarks or [])
    if thrown is not None and simulated.true_lg_energy is None:
        thrown = None
    half = np.random.default_rng((options.seed, HALVES)).random(int(simulated.group.max()) + 1)[simulated.group] < 0.5
    energy = None
    if simulated.true_lg_energy is None or (half & (simulated.labels == PHOTON)).sum() < 10:
        new_remarks.append(
            "photons have the energy of KASCADE's formula for hadrons, too low for them: the simulated set has "
            "no true energies of photons"
        )
    else:
        energy = PhotonEnergy.fitted(simulated.take(half), options.index)
        data = replace(data, lg_energy=energy.of(data))
        simulated = replace(simulated, lg_energy=energy.of(simulated))
    choosing = Weighted.of(simulated.take(half), data, thrown, bins, options.index, 0.5)
    measuring = Weighted.of(simulated.take(~half), data, thrown, bins, options.index, 0.5)
    energy_bin = bins.bin_of(data.lg_energy)
    measured = np.bincount(energy_bin[energy_bin >= 0], minlength=bins.n_bins)
    regions = choose_regions(choosing, measured, options.level, options.efficiency).measurable(measuring)
    if not regions.usable.any():
        why = "; ".join(f"{bins.edges[b]:g}-{bins.edges[b + 1]:g}: {text}" for b, text in regions.why_not.items())
        raise InputError(
            f"{options.run}: no energy bin can be used, by a photon's energy of columns Ne and Ze ({why}): give "
            "wider --bins, more measured events in --data, or a larger labelled set by --simulation"
        )
    new_remarks += [
        f"lg(E/eV) {bins.edges[b]:g}-{bins.edges[b + 1]:g} is not used: {text}"
        for b, text in regions.why_not.items()
    ]  # fmt: skip
    outside = int((energy_bin < 0).sum())
    if outside:
        new_remarks.append(f"{outside:,} of {len(data):,} measured events lie outside lg(E/eV) {bins.edges[0]:g} to "
                    f"{bins.edges[-1]:g}")  # fmt: skip
    lowest, highest = simulated.lg_energy.min(), simulated.lg_energy.max()
    beyond = int(((data.lg_energy < lowest) | (data.lg_energy > highest)).sum())
    if beyond:
        new_remarks.append(
            f"{beyond:,} measured events have energies outside those of the simulation, lg(E/eV) {lowest:.2f} to "
            f"{highest:.2f}"
        )
    counts = Counts.of(regions, energy_bin, data.score)
    transfer = measure_transfer(regions, measuring, counts)
    if abs(transfer.closure_ratio - 1) > 3 * max(transfer.closure_error, 1e-9):
        new_remarks.append(
            f"within the sideband simulation fails: {transfer.closure_ratio:.2f} ± {transfer.closure_error:.2f} times "
            "the predicted events are seen in its upper half; the excess of that over its error counts as an error"
        )
    if np.isnan(transfer.models):
        new_remarks.append(
            "limits take hadronic models to agree on the step from sideband to signal region: fewer than two have "
            "enough events there, and their error is unknown (errors_complete is false)"
        )
    hadron_bin = bins.bin_of(data.lg_energy_hadron)
    hadrons = _hadrons_sent(measuring, thrown, bins, np.bincount(hadron_bin[hadron_bin >= 0], minlength=bins.n_bins))
    if thrown is not None:
        flux = hadrons / (exposure.m2_sr_s * bins.widths_ev)
        # At the edge of the cuts the few showers that pass say more of the simulation than of the exposure.
        passing = np.where(hadrons > 0, np.bincount(hadron_bin[hadron_bin >= 0], minlength=bins.n_bins), 0.0)
        passing /= np.where(hadrons > 0, hadrons, 1.0)
        inner = regions.usable & (passing > PLATEAU * np.nanmax(np.where(regions.usable, passing, np.nan)))
        new_remarks += check_flux_of_exposure(
            flux[inner],
            bins.centres_ev[inner],
            simulated=simulated_data,
            given=options.exposure is not None,
        )
    limits = []
    usable = [int(b) for b in np.flatnonzero(regions.usable)]
    above = int(counts.all[usable[-1] + 1 :].sum())
    if above:
        new_remarks.append(
            f"limits for all energies end at lg(E/eV) {bins.edges[usable[-1] + 1]:g}: {above:,} measured events above "
            "are left out, since too few photons or hadrons were simulated there"
        )
    ranges = [(b, b + 1, False) for b in usable]
    ranges += [(b, usable[-1] + 1, True) for b in usable]
    for number, (low, high, integral) in enumerate(ranges):
        in_range = np.zeros(bins.n_bins, dtype=bool)
        in_range[low:high] = True
        limit = _limit(
            in_range,
            integral,
            regions,
            measuring,
            counts,
            transfer,
            bins,
            options,
            exposure,
            hadrons,
            thrown is not None,
        )
        limits.append(limit)
        if limit.leak > LEAK:
            where = "and above" if limit.integral else f"to {limit.lg_energy_high:g}"
            new_remarks.append(
                f"lg(E/eV) {limit.lg_energy_low:g} {where}: for one photon above the threshold {limit.leak:.2g} lie in "
                "the sideband; limits allow for it"
            )
        if callable(progress):
            progress(number + 1, len(ranges), "limits")
    region = regions.of(energy_bin, data.score)
    candidates = np.flatnonzero(region == 2)
    candidates = candidates[np.argsort(-data.score[candidates], kind="stable")]
    return PhotonSearch(
        options, exposure, bins, regions, transfer, tuple(limits), data, candidates, measuring, energy,
        thrown is not None, tuple(new_remarks), (), "", simulated_data,
    )  # fmt: skip


def _hadrons_sent(measuring: Weighted, thrown: Thrown | None, bins: Binning, measured: np.ndarray) -> np.ndarray:
    """Return the particles (B,) that the measured events stand for: corrected for the hadrons' efficiency.

    Energies are those of hadrons here, ``measured`` (B,) is counted by them.
    """
    if thrown is None:
        return measured.astype(np.float64)
    events = measuring.events
    hadron_bin = bins.bin_of(events.lg_energy_hadron)
    hadron = (events.labels == HADRON) & (hadron_bin >= 0)
    assert events.true_lg_energy is not None
    lg_energy, bin_of_fine = (bins.fine[1:] + bins.fine[:-1]) / 2, bins.bins_of_fine()
    sent = 10.0 ** (-1.7 * (lg_energy - 15.0)) * np.diff(bins.fine)
    counts = thrown.counts[:, HADRON].sum(axis=0) / 2
    weight = np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)
    accepted = np.bincount(hadron_bin[hadron], weight[bins.fine_bin_of(events.true_lg_energy[hadron])], bins.n_bins)
    inside = np.bincount(bin_of_fine[bin_of_fine >= 0], sent[bin_of_fine >= 0], bins.n_bins)
    return measured * np.divide(inside, accepted, out=np.full(bins.n_bins, np.nan), where=accepted > 0)


def _limit(
    in_range: np.ndarray,
    integral: bool,
    regions: Regions,
    measuring: Weighted,
    counts: Counts,
    transfer: Transfer,
    bins: Binning,
    options: SearchOptions,
    exposure: Exposure,
    hadrons: np.ndarray,
    known: bool,
) -> Limit:
    """Return the limits in some bins together."""
    used = in_range & regions.usable
    events = measuring.events
    photon = (events.labels == PHOTON) & np.isin(measuring.energy_bin, np.flatnonzero(used))
    region = regions.of(measuring.energy_bin, events.score)
    kept = measuring.weight[photon & (region == 2)]
    sent = measuring.sent[in_range].sum() if known else measuring.sent[used].sum()
    kept_error = np.sqrt(squared_weight(measuring, photon & (region == 2)))
    efficiency, error = (float(x / sent) if sent > 0 else 0.0 for x in (kept.sum(), kept_error))
    relative = error / efficiency if efficiency > 0 else 0.0
    common = Common(transfer.relative, float(np.hypot(relative, exposure.relative_error)), options.toys, options.seed)
    pair = on_off(regions, measuring, counts, used)
    expected = backgrounds(regions, measuring, pair, transfer, used)
    edges = bins.edges[:-1][in_range].min(), bins.edges[1:][in_range].max()
    width = 1.0 if integral else float(10.0 ** edges[1] - 10.0 ** edges[0])
    n = int(pair.n.sum())
    signal = signal_limits(pair, options.level, common)
    return Limit(
        float(edges[0]), float(edges[1]), integral, int(counts.all[used].sum()), n, expected, efficiency, error,
        signal.limit, cls_limit(n, expected.simulation, options.level, efficiency_error=common.efficiency),
        signal.expected,
        signal.interval, significance(pair, transfer.relative), exposure.m2_sr_s * width if known else float("nan"),
        float(hadrons[used].sum()), float(pair.c.sum()), pair, common,
    )  # fmt: skip


PLATEAU = 0.7
"""Share of the largest efficiency for hadrons from which a bin tells of the exposure."""
LIMITS_CSV, CANDIDATES_CSV, SEARCH_FILE = "limits.csv", "candidates.csv", "gamma_limit.json"
WORKSPACES = "pyhf"
"""Folder of the models, a file an energy range."""


@dataclass(frozen=True)
class PhotonResult:
    """Tables of a search."""

    search: PhotonSearch

    def limits(self) -> pl.DataFrame:
        """Return one row per energy bin, then one per energy from which all are added up."""
        return pl.DataFrame([self._row(one) for one in self.search.limits], infer_schema_length=None).with_columns(
            pl.selectors.float().fill_nan(None)
        )

    def _row(self, limit: Limit) -> dict[str, Any]:
        background = limit.backgrounds
        flux = "photons_m2_sr_s" if limit.integral else "photons_m2_sr_s_eV"
        both = {"photons_m2_sr_s_eV": None, "photons_m2_sr_s": None}
        scales = {"fraction": limit.fraction_per_event} | both | {flux: limit.flux_per_event}
        row: dict[str, Any] = {
            "range": "above" if limit.integral else "bin",
            "lg_energy_low_eV": limit.lg_energy_low,
            "lg_energy_high_eV": limit.lg_energy_high,
            "measured_events": limit.measured,
            "candidates": limit.candidates,
            "background_data": background.data.mean,
            "background_data_error": background.data.error,
            "background_simulation": background.simulation.mean,
            "background_simulation_error": background.simulation.error,
            "sideband_events": background.side_seen,
            "sideband_events_simulation": background.side_expected,
            "transfer": background.transfer,
            "significance_sigma": limit.significance,
            "errors_complete": bool(np.isfinite(self.search.transfer.models)),
            "photon_efficiency": limit.efficiency,
            "photon_efficiency_error": limit.efficiency_error,
            "limit_events": limit.limit,
            "limit_events_background_simulation": limit.limit_simulation,
            "interval_low_events": limit.interval[0],
            "interval_high_events": limit.interval[1],
        }
        row |= {f"limit_events_expected_{share:g}": value for share, value in zip(BAND, limit.expected, strict=True)}
        for name, scale in scales.items():
            for what, value in (("limit", limit.limit), ("expected_limit", limit.expected[len(BAND) // 2])):
                row[f"{what}_{name}"] = None if scale is None else value * scale
        return row

    def candidates(self) -> pl.DataFrame:
        """Return the events above the threshold, highest score first."""
        search = self.search
        data = search.data.take(search.candidates)
        energy_bin = search.bins.bin_of(data.lg_energy)
        folders = [folder.name for folder in search.options.data]
        return pl.DataFrame(
            {
                "data": pl.Series([folders[k] for k in data.folder], dtype=pl.String),
                "row": data.row,
                "score": data.score,
                "score_above_threshold": data.score - search.regions.threshold[energy_bin],
                "lg_energy_eV": data.lg_energy,
                "lg_energy_hadron_eV": data.lg_energy_hadron,
                "zenith_deg": data.zenith_deg,
                "lg_ne": data.lg_ne,
                "lg_nmu": data.lg_nmu,
            }
        )

    def write(self, out: Path) -> None:
        """Write both tables, the models for pyhf and the provenance."""
        (out / WORKSPACES).mkdir(parents=True, exist_ok=True)
        for limit in self.search.limits:
            energy = (
                f"above_{limit.lg_energy_low:g}"
                if limit.integral
                else f"{limit.lg_energy_low:g}-{limit.lg_energy_high:g}"
            )
            if limit.efficiency > 0:
                write_json(out / WORKSPACES / f"{energy}.json", workspace(limit.counts, limit.efficiency, limit.common))
        for name, frame in ((LIMITS_CSV, self.limits()), (CANDIDATES_CSV, self.candidates())):
            with atomic_path(out / name) as temporary:
                frame.write_csv(temporary)
        search, options = self.search, self.search.options
        transfer = search.transfer
        write_json(
            out / SEARCH_FILE,
            {
                "run": options.run.resolve().name,
                "config_hash": search.config_hash,
                "data_fingerprints": list(search.fingerprints),
                "simulation": options.simulation.name if options.simulation else "held-out events of the run",
                "simulated_data": search.simulated_data,
                **search.exposure.as_json(options.zenith_max_deg),
                "data": [folder.name for folder in options.data],
                "zenith_max_deg": options.zenith_max_deg,
                "cut_flow": search.flow,
                "blinding": options.blinding.as_json(options.data),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "confidence_level": options.level,
                "photon_spectral_index": options.index,
                "photon_energy": None
                if search.energy is None
                else {
                    "of": ["1", "lg_ne - 5", "sec(zenith) - 1"],
                    "coefficients": search.energy.coefficients.tolist(),
                    "resolution_lg": search.energy.resolution,
                },
                "toys": options.toys,
                "efficiency_and_migration_known": search.efficiency_known,
                "thresholds": [
                    {
                        "lg_energy_low_eV": float(search.bins.edges[b]),
                        "threshold": float(search.regions.threshold[b]),
                        "sideband_from": float(search.regions.side[b]),
                        "sideband_middle": float(search.regions.middle[b]),
                    }
                    for b in np.flatnonzero(search.regions.usable)
                ],
                "errors_complete": bool(np.isfinite(transfer.models)),
                "transfer": {
                    "relative_error_models": None if np.isnan(transfer.models) else transfer.models,
                    "relative_error_closure": transfer.closure,
                    "closure_seen_over_predicted": transfer.closure_ratio,
                    "closure_error": transfer.closure_error,
                },
                "measured_events": len(search.data),
                "simulated_events_measuring": len(search.measuring.events),
                "limits": self.limits().to_dicts(),
                "seed": options.seed,
                "remarks": list(search.remarks),
                "versions": versions(),
                "git_revision": git_revision(),
            },
        )
