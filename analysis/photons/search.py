"""From a gamma run, measured events and an exposure to limits on photons: what ``cli.py gamma-limit`` calls."""

from __future__ import annotations

import logging
from dataclasses import replace

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
        options, bins, regions, transfer, tuple(limits), data, candidates, measuring, energy,
        thrown is not None, tuple(new_remarks),
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
