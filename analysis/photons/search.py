"""From a gamma run, measured events and an exposure to limits on photons: what ``cli.py gamma-limit`` calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from showerstack.analysis.events import looked_at, open_run, refuse_shared_folders
from showerstack.analysis.exposure import Exposure, check_flux_of_exposure, exposure_of
from showerstack.analysis.options import SearchOptions
from showerstack.analysis.photons.background import (
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
from showerstack.analysis.photons.limits import cls_limit
from showerstack.analysis.photons.on_off import Common, signal_limits, significance
from showerstack.analysis.photons.result import Limit, PhotonSearch
from showerstack.analysis.provenance import Provenance
from showerstack.analysis.spectra.response import Binning, Thrown, binning
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.logs import remark
from showerstack.showers.schema import GAMMA

LOG = logging.getLogger(__name__)

HALVES = 17
"""Keeps the random halves of the simulation apart from other random numbers of the same seed."""
LEAK = 0.3
"""Share of a signal that lies in the sideband, of what lies above it, from which a remark says so."""


def search_photons(options: SearchOptions, ctx: Context = Context()) -> PhotonSearch:
    """Look for photons among measured events."""
    bins = binning(options.edges)
    options = replace(options, data=looked_at(options.data, options.blinding))
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
    provenance = Provenance.of(
        options,
        run,
        exposure,
        options.zenith_max_deg,
        options.simulation.name if options.simulation else "",
        prints,
        flow,
    )
    with ctx.bars("gamma-limit", "energies") as progress:
        search = search_events(
            data,
            simulated,
            thrown,
            bins,
            options,
            exposure,
            simulated_data=provenance.simulated_data,
            remarks=remarks,
            progress=progress,
        )
    remark(LOG, search.remarks)
    return replace(search, provenance=provenance)


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
    thrown = None if simulated.true_lg_energy is None else thrown
    half = np.random.default_rng((options.seed, HALVES)).random(int(simulated.group.max()) + 1)[simulated.group] < 0.5
    data, simulated, energy, said = _with_photon_energies(data, simulated, half, options)
    choosing, measuring = (
        Weighted.of(simulated.take(part), data, thrown, bins, options.index, 0.5) for part in (half, ~half)
    )
    energy_bin, hadron_bin = bins.bin_of(data.lg_energy), bins.bin_of(data.lg_energy_hadron)
    measured, measured_hadrons = (
        np.bincount(places[places >= 0], minlength=bins.n_bins) for places in (energy_bin, hadron_bin)
    )
    regions = choose_regions(choosing, measured, options.level, options.efficiency).measurable(measuring)
    said += _remarks_on_energies(regions, data, simulated, bins, options)
    counts = Counts.of(regions, energy_bin, data.score)
    transfer = measure_transfer(regions, measuring, counts)
    said += _remarks_on_transfer(transfer)
    hadrons = _hadrons_sent(measuring, thrown, bins, measured_hadrons)
    usable = [int(b) for b in np.flatnonzero(regions.usable)]
    if thrown is not None:
        flux = hadrons / (exposure.m2_sr_s * bins.widths_ev)
        # At the edge of the cuts the few showers that pass say more of the simulation than of the exposure.
        passing = np.where(hadrons > 0, measured_hadrons, 0.0) / np.where(hadrons > 0, hadrons, 1.0)
        inner = regions.usable & (passing > PLATEAU * np.nanmax(np.where(regions.usable, passing, np.nan)))
        given = options.exposure is not None
        said += check_flux_of_exposure(flux[inner], bins.centres_ev[inner], simulated=simulated_data, given=given)
    if above := int(counts.all[usable[-1] + 1 :].sum()):
        said.append(
            f"limits for all energies end at lg(E/eV) {bins.edges[usable[-1] + 1]:g}: {above:,} measured events above "
            "are left out, since too few photons or hadrons were simulated there"
        )
    basis = _LimitBasis(options, exposure, bins, regions, measuring, counts, transfer, hadrons, thrown is not None)
    limits, ranges = list[Limit](), [*((b, b + 1, False) for b in usable), *((b, usable[-1] + 1, True) for b in usable)]
    for low, high, integral in ranges:
        limit = basis.limit(low, high, integral)
        limits.append(limit)
        if limit.leak > LEAK:
            where = "and above" if limit.integral else f"to {limit.lg_energy_high:g}"
            said.append(
                f"lg(E/eV) {limit.lg_energy_low:g} {where}: for one photon above the threshold {limit.leak:.2g} lie in "
                "the sideband; limits allow for it"
            )
        if callable(progress):
            progress(len(limits), len(ranges), "limits")
    candidates = np.flatnonzero(regions.of(energy_bin, data.score) == 2)
    candidates = candidates[np.argsort(-data.score[candidates], kind="stable")]
    return PhotonSearch(
        options, bins, regions, transfer, tuple(limits), data, candidates, measuring, energy,
        thrown is not None, (*(remarks or ()), *said),
    )  # fmt: skip


def _with_photon_energies(
    data: SearchEvents, simulated: SimulatedSearch, half: np.ndarray, options: SearchOptions
) -> tuple[SearchEvents, SimulatedSearch, PhotonEnergy | None, list[str]]:
    """Return the events with energies of photons, fitted to a half (N,) of the simulated ones that tell them."""
    if simulated.true_lg_energy is None or (half & (simulated.labels == PHOTON)).sum() < 10:
        words = (
            "photons have the energy of KASCADE's formula for hadrons, too low for them: the simulated set has "
            "no true energies of photons"
        )
        return data, simulated, None, [words]
    energy = PhotonEnergy.fitted(simulated.take(half), options.index)
    return replace(data, lg_energy=energy.of(data)), replace(simulated, lg_energy=energy.of(simulated)), energy, []


def _remarks_on_energies(
    regions: Regions, data: SearchEvents, simulated: SimulatedSearch, bins: Binning, options: SearchOptions
) -> list[str]:
    """Return which bins and events are of no use; refuse to go on where no bin is."""
    if not regions.usable.any():
        why = "; ".join(f"{bins.edges[b]:g}-{bins.edges[b + 1]:g}: {text}" for b, text in regions.why_not.items())
        raise InputError(
            f"{options.run}: no energy bin can be used, by a photon's energy of columns Ne and Ze ({why}): give "
            "wider --bins, more measured events in --data, or a larger labelled set by --simulation"
        )
    said = [f"lg(E/eV) {bins.edges[b]:g}-{bins.edges[b + 1]:g} is not used: {text}"
            for b, text in regions.why_not.items()]  # fmt: skip
    if outside := int((bins.bin_of(data.lg_energy) < 0).sum()):
        said.append(f"{outside:,} of {len(data):,} measured events lie outside lg(E/eV) {bins.edges[0]:g} to "
                    f"{bins.edges[-1]:g}")  # fmt: skip
    lowest, highest = simulated.lg_energy.min(), simulated.lg_energy.max()
    if beyond := int(((data.lg_energy < lowest) | (data.lg_energy > highest)).sum()):
        said.append(
            f"{beyond:,} measured events have energies outside those of the simulation, lg(E/eV) {lowest:.2f} to "
            f"{highest:.2f}"
        )
    return said


def _remarks_on_transfer(transfer: Transfer) -> list[str]:
    said = []
    if abs(transfer.closure_ratio - 1) > 3 * max(transfer.closure_error, 1e-9):
        said.append(
            f"within the sideband simulation fails: {transfer.closure_ratio:.2f} ± {transfer.closure_error:.2f} times "
            "the predicted events are seen in its upper half; the excess of that over its error counts as an error"
        )
    if np.isnan(transfer.models):
        said.append(
            "limits take hadronic models to agree on the step from sideband to signal region: fewer than two have "
            "enough events there, and their error is unknown (errors_complete is false)"
        )
    return said


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


@dataclass(frozen=True)
class _LimitBasis:
    """What limits are made of."""

    options: SearchOptions
    exposure: Exposure
    bins: Binning
    regions: Regions
    measuring: Weighted
    counts: Counts
    transfer: Transfer
    hadrons: np.ndarray
    """(B,) particles that the measured events stand for."""
    has_fluxes: bool

    def limit(self, low: int, high: int, integral: bool) -> Limit:
        """Return the limits in the bins from one to before another together."""
        in_range = np.zeros(self.bins.n_bins, dtype=bool)
        in_range[low:high] = True
        regions, measuring, options = self.regions, self.measuring, self.options
        used = in_range & regions.usable
        events = measuring.events
        photon = (events.labels == PHOTON) & np.isin(measuring.energy_bin, np.flatnonzero(used))
        region = regions.of(measuring.energy_bin, events.score)
        kept = measuring.weight[photon & (region == 2)]
        sent = measuring.sent[in_range if self.has_fluxes else used].sum()
        kept_error = np.sqrt(squared_weight(measuring, photon & (region == 2)))
        efficiency, error = (float(x / sent) if sent > 0 else 0.0 for x in (kept.sum(), kept_error))
        relative = float(np.hypot(error / efficiency if efficiency > 0 else 0.0, self.exposure.relative_error))
        common = Common(self.transfer.relative, relative, options.toys, options.seed)
        pair = on_off(regions, measuring, self.counts, used)
        expected = backgrounds(regions, measuring, pair, self.transfer, used)
        edges = float(self.bins.edges[low]), float(self.bins.edges[high])
        width = 1.0 if integral else float(10.0 ** edges[1] - 10.0 ** edges[0])
        n = int(pair.n.sum())
        signal = signal_limits(pair, options.level, common)
        return Limit(
            *edges, integral, int(self.counts.all[used].sum()), n, expected, efficiency, error,
            signal.limit, cls_limit(n, expected.simulation, options.level, efficiency_error=common.efficiency),
            signal.expected, signal.interval, significance(pair, self.transfer.relative),
            self.exposure.m2_sr_s * width if self.has_fluxes else float("nan"),
            float(self.hadrons[used].sum()), float(pair.c.sum()), pair, common,
        )  # fmt: skip


PLATEAU = 0.7
"""Share of the largest efficiency for hadrons from which a bin tells of the exposure."""
