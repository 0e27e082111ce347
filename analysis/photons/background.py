"""Where photons are looked for, and the background there, from simulation and from the data's own sideband.

For each energy a threshold is chosen on simulation, with a sideband below it. The threshold is that of the smallest
expected limit on the number of photons sent, from one half of the simulated showers and from the *number* of measured
events alone: their scores are not looked at. The other half gives efficiency and background.

Background from simulation: simulated hadrons weighted to the measured energies. It is wrong by as much as the simulated
scores are: 13 % in a published search. From data: measured events in the sideband times the simulated ratio of the two
regions, in which much of that cancels. Its error includes the statistics of sideband and simulation, the scatter of the
hadronic models' ratios, and how far the same step fails within the sideband, from its far to its near half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from showerstack.analysis.photons.events import HADRON, PHOTON, SearchEvents, SimulatedSearch
from showerstack.analysis.photons.limits import Background, expected_limits
from showerstack.analysis.photons.on_off import OnOff
from showerstack.analysis.spectra.response import Binning, Thrown

EFFICIENCIES = np.arange(0.1, 0.96, 0.05)
"""Shares of a bin's photons above the thresholds that are tried."""
MIN_PHOTONS = 40
"""Simulated photons that an energy bin needs to be used: half of them choose, half measure."""
MIN_HADRONS = 40
"""Simulated hadrons, likewise."""
SIDE_FACTOR, SIDE_EVENTS, SIDE_SHARE = 10.0, 60.0, 0.3
"""The sideband holds so many times the background expected above the threshold, at least so many events, and at most
this share of all hadrons."""


@dataclass(frozen=True)
class Weighted:
    """Simulated events with what each stands for."""

    events: SimulatedSearch
    energy_bin: np.ndarray
    """(N,) bin of the reconstructed energy, -1 outside."""
    weight: np.ndarray
    """(N,) hadrons: measured events that each stands for; photons: those sent, in units of :attr:`sent`."""
    sent: np.ndarray
    """(B,) photons sent in each bin; where nobody knows, those accepted."""

    @classmethod
    def of(
        cls,
        events: SimulatedSearch,
        data: SearchEvents,
        thrown: Thrown | None,
        bins: Binning,
        index: float,
        share: float = 1.0,
    ) -> Weighted:
        """Weight hadrons to the measured energies, photons to a power law of the true energy.

        Parameters
        ----------
        thrown
            Primaries; without them the photons sent are those accepted.
        index
            Spectral index of the photons.
        share
            Share of the thrown primaries that ``events`` come from.
        """
        energy_bin = bins.bin_of(events.lg_energy)
        weight = np.zeros(len(events))
        hadron = (events.labels == HADRON) & (energy_bin >= 0)
        tenth = _tenth_of_lg(events.lg_energy)
        measured = np.bincount(_tenth_of_lg(data.lg_energy), minlength=N_TENTHS)
        simulated = np.bincount(tenth[hadron], minlength=N_TENTHS)
        ratio = np.divide(measured, simulated, out=np.zeros(N_TENTHS), where=simulated > 0)
        weight[hadron] = ratio[tenth[hadron]]
        # Where no simulated hadron stands for some of the measured ones, the others of the bin do.
        bin_of_data = bins.bin_of(data.lg_energy)
        total = np.bincount(bin_of_data[bin_of_data >= 0], minlength=bins.n_bins)
        weight_by_bin = np.bincount(energy_bin[hadron], weight[hadron], bins.n_bins)
        weight[hadron] *= np.divide(total, weight_by_bin, out=np.zeros(bins.n_bins), where=weight_by_bin > 0)[
            energy_bin[hadron]
        ]
        photon = (events.labels == PHOTON) & (energy_bin >= 0)
        if thrown is None or events.true_lg_energy is None:
            # All simulated photons are thrown as E^-2.
            steeper = (2 - index) * (0.0 if events.true_lg_energy is None else events.true_lg_energy - 15.0)
            weight[photon] = (10.0**steeper * events.weight)[photon]
            return cls(events, energy_bin, weight, np.bincount(energy_bin[photon], weight[photon], bins.n_bins))
        lg_energy, bin_of_fine = (bins.fine[1:] + bins.fine[:-1]) / 2, bins.bins_of_fine()
        sent = 10.0 ** ((1 - index) * (lg_energy - 15.0)) * np.diff(bins.fine)
        counts = thrown.counts[:, PHOTON].sum(axis=0) * share
        per_event = np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)
        weight[photon] = per_event[bins.fine_bin_of(events.true_lg_energy[photon])] * events.weight[photon]
        return cls(
            events, energy_bin, weight, np.bincount(bin_of_fine[bin_of_fine >= 0], sent[bin_of_fine >= 0], bins.n_bins)
        )


def shower_squares(energy_bin: np.ndarray, weight: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """Return (n,) sums of squared weights of the showers in each bin: copies of one shower are added before.

    Parameters
    ----------
    energy_bin, weight, group
        (N,) of events inside the bins.
    """
    names, number = np.unique(group, return_inverse=True)
    if len(names) == len(group):
        return np.bincount(energy_bin, weight**2, n)
    key, number = np.unique(energy_bin * len(names) + number, return_inverse=True)
    return np.bincount(key // len(names), np.bincount(number, weight) ** 2, n)


N_TENTHS = 60


def _tenth_of_lg(lg_energy: np.ndarray) -> np.ndarray:
    """Return which tenth of lg(E/eV), from 13 on."""
    return np.clip((10 * (lg_energy - 13.0)).astype(np.int64), 0, N_TENTHS - 1)


@dataclass(frozen=True)
class Regions:
    """Thresholds by energy bin; NaN where a bin is not used."""

    threshold: np.ndarray
    """(B,) photons are looked for at scores from here."""
    middle: np.ndarray
    """(B,) border between the near and the far half of the sideband."""
    side: np.ndarray
    """(B,) lower end of the sideband."""
    why_not: dict[int, str]

    @property
    def usable(self) -> np.ndarray:
        """(B,) bool."""
        return np.isfinite(self.threshold)

    def of(self, energy_bin: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Return 2 above the threshold, 1 and 0 in the near and the far sideband, -1 elsewhere."""
        borders = [
            np.where(np.isnan(edge), np.inf, edge)[energy_bin] for edge in (self.side, self.middle, self.threshold)
        ]
        region = sum((score >= border).astype(int) for border in borders) - 1
        return np.asarray(np.where(energy_bin >= 0, region, -1))

    def measurable(self, measuring: Weighted) -> Regions:
        """Return these regions without bins in which the measuring half cannot tell efficiency or background."""
        region, events = self.of(measuring.energy_bin, measuring.events.score), measuring.events
        n, why_not, threshold = len(self.threshold), dict(self.why_not), self.threshold.copy()
        photons = np.bincount(measuring.energy_bin[(events.labels == PHOTON) & (region == 2)], minlength=n)
        beside = (events.labels == HADRON) & (measuring.weight > 0) & ((region == 0) | (region == 1))
        hadrons = np.bincount(measuring.energy_bin[beside], minlength=n)
        for b in np.flatnonzero(self.usable & ((photons == 0) | (hadrons == 0))):
            which = "photons above the threshold" if not photons[b] else "hadrons in the sideband"
            why_not[int(b)] = f"the half of the simulation that measures has no {which}"
            threshold[b] = np.nan
        return replace(self, threshold=threshold, why_not=why_not)


def choose_regions(choosing: Weighted, measured: np.ndarray, level: float, efficiency: float | None) -> Regions:
    """Choose thresholds and sidebands.

    Parameters
    ----------
    choosing
        The half of the simulation that chooses, its hadrons weighted to all measured events.
    measured
        (B,) numbers of measured events.
    level
        Confidence level of the limit.
    efficiency
        Share of the photons above the threshold; None: of the smallest expected limit.
    """
    n = len(measured)
    threshold, middle, side = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    why_not = {}
    for b in range(n):
        in_bin = choosing.energy_bin == b
        photon, hadron = in_bin & (choosing.events.labels == PHOTON), in_bin & (choosing.events.labels == HADRON)
        for name, count, least in (
            ("photons", photon.sum(), MIN_PHOTONS // 2),
            ("hadrons", hadron.sum(), MIN_HADRONS // 2),
        ):
            if count < least:
                why_not[b] = f"{2 * count} simulated {name}, {2 * least} are needed"
        if not measured[b]:
            why_not[b] = "no measured event"
        if b in why_not:
            continue
        gammas, weights = choosing.events.score[photon], choosing.weight[photon]
        scores, events = choosing.events.score[hadron], choosing.weight[hadron]
        tried = EFFICIENCIES if efficiency is None else np.array([efficiency])
        order = np.argsort(-gammas)
        reached = np.cumsum(weights[order]) / max(weights.sum(), 1e-300)
        best = np.inf
        for share in tried:
            tried_threshold = gammas[order][min(np.searchsorted(reached, share), len(order) - 1)]
            background = _guess_background(scores >= tried_threshold, events)
            limit = expected_limits(background, level, shares=(0.5,))[0] / share
            if limit < best:
                best, threshold[b] = limit, tried_threshold
        side[b], middle[b] = _sideband(scores, events, float(threshold[b]))
    return Regions(threshold, middle, side, why_not)


def _guess_background(survives: np.ndarray, weights: np.ndarray) -> Background:
    """Return the background by which a threshold is chosen: surviving simulated hadrons and half of one more.

    The half keeps thresholds from being drawn to where by chance none is left. What is measured there has none.
    """
    mean_weight = weights.mean()
    total = weights[survives].sum() + mean_weight / 2
    return Background(float(total), float(np.sqrt((weights[survives] ** 2).sum() + mean_weight**2 / 2)))


def _sideband(scores: np.ndarray, weights: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return the lower end of a sideband and the border between its halves."""
    order = np.argsort(-scores)
    order = order[scores[order] < threshold]
    if len(order) < 2:
        return threshold - 1.0, threshold - 0.5
    total, above = weights.sum(), weights[scores >= threshold].sum()
    wanted = min(max(SIDE_FACTOR * above, SIDE_EVENTS), SIDE_SHARE * total)
    reached = np.cumsum(weights[order])
    last = max(min(np.searchsorted(reached, wanted), len(order) - 1), 1)
    half = min(np.searchsorted(reached, reached[last] / 2), last - 1)
    return float(scores[order][last]), float(scores[order][half])


MIN_MODEL = 5.0
"""Simulated events of one hadronic model in the signal region from which its ratio is compared."""


@dataclass(frozen=True)
class Counts:
    """Measured events by bin, (B,) each."""

    on: np.ndarray
    near: np.ndarray
    far: np.ndarray
    all: np.ndarray

    @property
    def side(self) -> np.ndarray:
        """(B,) in the whole sideband."""
        return self.near + self.far

    @classmethod
    def of(cls, regions: Regions, energy_bin: np.ndarray, score: np.ndarray) -> Counts:
        """Count events."""
        n = len(regions.threshold)
        region = regions.of(energy_bin, score)
        on, near, far = (np.bincount(energy_bin[region == k], minlength=n) for k in (2, 1, 0))
        return cls(on, near, far, np.bincount(energy_bin[energy_bin >= 0], minlength=n))


@dataclass(frozen=True)
class Backgrounds:
    """Expected events above the threshold for a set of bins together."""

    simulation: Background
    """From simulated hadrons alone; 0 where none is left."""
    data: Background
    """From the sideband: the likeliest value and its error."""
    side_expected: float
    """Events that simulation expects in the sideband."""
    side_seen: int
    transfer: float
    """Mean ratio of signal region to sideband."""


@dataclass(frozen=True)
class Transfer:
    """What is common to all energies."""

    models: float
    """Relative scatter of the hadronic models' ratios of the regions, beyond statistics; NaN where it is not known."""
    closure: float
    """Relative failure of the step from the far to the near half of the sideband, beyond statistics."""
    closure_ratio: float
    """Seen over predicted in the near half, all energies."""
    closure_error: float

    @property
    def relative(self) -> float:
        """Relative error of every transfer factor, as far as it is known."""
        return float(np.hypot(np.nan_to_num(self.models), self.closure))


def measure_transfer(regions: Regions, measuring: Weighted, counts: Counts) -> Transfer:
    """Compare hadronic models, and try the step from sideband to signal region within the sideband."""
    usable = regions.usable
    hadron = measuring.events.labels == HADRON
    region = np.where(hadron, regions.of(measuring.energy_bin, measuring.events.score), -1)
    n = len(usable)
    sums = [np.bincount(measuring.energy_bin[region == k], measuring.weight[region == k], n) for k in range(3)]
    squares = [
        shower_squares(
            measuring.energy_bin[in_region], measuring.weight[in_region], measuring.events.group[in_region], n
        )
        for in_region in (region == k for k in range(3))
    ]
    good = usable & (sums[0] > 0) & (sums[1] > 0)
    predicted = (counts.far[good] * sums[1][good] / sums[0][good]).sum()
    variance = (
        (counts.far[good] * sums[1][good] / sums[0][good]) ** 2
        * (1 / np.maximum(counts.far[good], 1) + squares[0][good] / sums[0][good] ** 2
           + squares[1][good] / sums[1][good] ** 2)
    ).sum()  # fmt: skip
    observed = counts.near[good].sum()
    ratio, error = 1.0, 0.0
    if predicted > 0:
        ratio = float(observed / predicted)
        error = float(np.sqrt(variance / predicted**2 + max(observed, 1) / predicted**2))
    return Transfer(
        _scatter_of_models(measuring, region), float(np.sqrt(max((ratio - 1) ** 2 - error**2, 0.0))), ratio, error
    )  # fmt: skip


def _scatter_of_models(measuring: Weighted, where: np.ndarray) -> float:
    """Return the relative scatter of the models' ratios of signal region to sideband beyond statistics.

    NaN where fewer than two models have enough events in both regions.
    """
    model = measuring.events.model
    if model is None:
        return float("nan")
    ratios, errors = [], []
    for number in np.unique(model):
        of_model = model == number
        regions = of_model & (where == 2), of_model & ((where == 0) | (where == 1))
        on, side = (float(measuring.weight[region].sum()) for region in regions)
        if min(np.count_nonzero(region) for region in regions) >= MIN_MODEL:
            ratio = on / side
            ratios.append(ratio)
            squares = [squared_weight(measuring, region) for region in regions]
            errors.append(ratio**2 * (squares[0] / on**2 + squares[1] / side**2))
    if len(ratios) < 2:
        return float("nan")
    return float(np.sqrt(max(float(np.var(ratios, ddof=1) - np.mean(errors)), 0.0)) / np.mean(ratios))


def squared_weight(measuring: Weighted, chosen: np.ndarray) -> float:
    """Return the sum over showers of the squared weight of chosen events, (N,) bool."""
    weight, group = measuring.weight[chosen], measuring.events.group[chosen]
    return float(shower_squares(np.zeros(len(weight), np.int64), weight, group, 1)[0])


def on_off(regions: Regions, measuring: Weighted, counts: Counts, bins: np.ndarray) -> OnOff:
    """Return the counts of some bins, with the shares of a signal.

    Parameters
    ----------
    bins
        (B,) bool, of which the usable ones are taken.
    """
    events, used = measuring.events, np.flatnonzero(bins & regions.usable)
    region = regions.of(measuring.energy_bin, events.score)
    hadron, photon = events.labels == HADRON, events.labels == PHOTON

    def sums(chosen: np.ndarray) -> np.ndarray:
        return np.bincount(measuring.energy_bin[chosen], measuring.weight[chosen], len(regions.threshold))[used]

    def squares_of(chosen: np.ndarray) -> np.ndarray:
        energy_bin, weight, group = (
            column[chosen] for column in (measuring.energy_bin, measuring.weight, events.group)
        )
        return shower_squares(energy_bin, weight, group, len(regions.threshold))[used]

    above, beside, inside = region == 2, (region == 0) | (region == 1), measuring.energy_bin >= 0
    # Simulated showers of equal weight that say as much, and how many of them stand for one measured event.
    whole = sums(hadron & inside) / squares_of(hadron & inside)
    (k, on), (l, side) = (  # noqa: E741
        (np.where(total > 0, total**2 / np.maximum(squares, 1e-300), 0.0),
         np.where(total > 0, total / np.maximum(squares, 1e-300), whole))
        for total, squares in ((sums(hadron & r), squares_of(hadron & r)) for r in (above, beside))
    )  # fmt: skip
    signal = sums(photon & above)
    total = max(float(signal.sum()), 1e-300)
    return OnOff(
        counts.on[used].astype(float), counts.side[used].astype(float), k, l, side / on, signal / total,
        sums(photon & beside) / total,
    )  # fmt: skip


def backgrounds(
    regions: Regions, measuring: Weighted, counts: OnOff, transfer: Transfer, bins: np.ndarray
) -> Backgrounds:
    """Return the background expected in some bins together."""
    events = measuring.events
    hadron = (events.labels == HADRON) & np.isin(measuring.energy_bin, np.flatnonzero(bins & regions.usable))
    region = regions.of(measuring.energy_bin, events.score)
    weights, whole = measuring.weight[hadron & (region == 2)], measuring.weight[hadron]
    # None left: the error is that which the likelihood of 0 allows, half an event.
    none = 0.5 * whole.mean() if len(whole) else 0.0
    scatter = np.sqrt(squared_weight(measuring, hadron & (region == 2))) if len(weights) else none
    simulated, models = float(weights.sum()), np.nan_to_num(transfer.models)
    mean = float(counts.background.sum())
    error = np.hypot(np.sqrt((counts.background_error**2).sum()), transfer.relative * mean)
    return Backgrounds(
        Background(simulated, float(np.hypot(scatter, models * simulated))),
        Background(mean, float(error)),
        float(measuring.weight[hadron & ((region == 0) | (region == 1))].sum()),
        int(counts.m.sum()),
        float(np.mean(counts.g * counts.k / counts.l)) if len(counts.l) else 0.0,
    )
