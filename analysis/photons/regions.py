"""Where photons are looked for: a threshold for each energy, chosen on simulation, and a sideband below it.

The threshold is that of the smallest expected limit on the number of photons sent, from one half of the simulated
showers and from the *number* of measured events alone: their scores are not looked at. The other half gives
efficiency and background.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.photons.events import HADRON, PHOTON, SearchEvents, SimulatedSearch
from analysis.photons.limits import Background, expected_limits
from analysis.spectra.inputs.events import Thrown
from analysis.spectra.inputs.response import Binning

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
    place: np.ndarray
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
        events
            Simulated events.
        thrown
            Primaries; without them photons keep the spectrum that they were accepted with.
        index
            Spectral index of the photons.
        share
            Share of the thrown primaries that ``events`` come from.
        """
        place = bins.place(events.lg_energy)
        weight = np.zeros(len(events))
        hadron = (events.labels == HADRON) & (place >= 0)
        theirs = _tenth(events.lg_energy)
        measured = np.bincount(_tenth(data.lg_energy), minlength=TENTHS)
        simulated = np.bincount(theirs[hadron], minlength=TENTHS)
        ratio = np.divide(measured, simulated, out=np.zeros(TENTHS), where=simulated > 0)
        weight[hadron] = ratio[theirs[hadron]]
        # Where no simulated hadron stands for measured ones, all of the bin do.
        found = bins.place(data.lg_energy)
        total = np.bincount(found[found >= 0], minlength=bins.n_bins)
        held = np.bincount(place[hadron], weight[hadron], bins.n_bins)
        weight[hadron] *= np.divide(total, held, out=np.zeros(bins.n_bins), where=held > 0)[place[hadron]]
        photon = (events.labels == PHOTON) & (place >= 0)
        if thrown is None or events.true_lg_energy is None:
            weight[photon] = 1.0
            return cls(events, place, weight, np.bincount(place[photon], minlength=bins.n_bins).astype(float))
        lg, mine = (bins.fine[1:] + bins.fine[:-1]) / 2, bins.bins_of_fine()
        sent = 10.0 ** ((1 - index) * (lg - 15.0)) * np.diff(bins.fine)
        counts = thrown.counts[:, PHOTON].sum(axis=0) * share
        per_event = np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)
        weight[photon] = per_event[bins.place_fine(events.true_lg_energy[photon])]
        return cls(events, place, weight, np.bincount(mine[mine >= 0], sent[mine >= 0], bins.n_bins))


TENTHS = 60


def _tenth(lg_energy: np.ndarray) -> np.ndarray:
    """Return which tenth of lg(E/eV), from 13 on."""
    return np.clip((10 * (lg_energy - 13.0)).astype(np.int64), 0, TENTHS - 1)


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

    def of(self, place: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Return 2 above the threshold, 1 and 0 in the near and the far sideband, -1 elsewhere."""
        borders = [np.where(np.isnan(edge), np.inf, edge)[place] for edge in (self.side, self.middle, self.threshold)]
        found = sum((score >= border).astype(int) for border in borders) - 1
        return np.asarray(np.where(place >= 0, found, -1))


def choose_regions(chosen: Weighted, measured: np.ndarray, level: float, efficiency: float | None) -> Regions:
    """Choose thresholds and sidebands.

    Parameters
    ----------
    chosen
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
        mine = chosen.place == b
        photon, hadron = mine & (chosen.events.labels == PHOTON), mine & (chosen.events.labels == HADRON)
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
        gammas, weights = chosen.events.score[photon], chosen.weight[photon]
        scores, events = chosen.events.score[hadron], chosen.weight[hadron]
        tried = EFFICIENCIES if efficiency is None else np.array([efficiency])
        order = np.argsort(-gammas)
        reached = np.cumsum(weights[order]) / max(weights.sum(), 1e-300)
        best = np.inf
        for share in tried:
            at = gammas[order][min(np.searchsorted(reached, share), len(order) - 1)]
            background = survivors(scores >= at, events)
            limit = expected_limits(background, level, shares=(0.5,))[0] / share
            if limit < best:
                best, threshold[b] = limit, at
        side[b], middle[b] = _sideband(scores, events, float(threshold[b]))
    return Regions(threshold, middle, side, why_not)


def survivors(kept: np.ndarray, weights: np.ndarray) -> Background:
    """Return the weighted number of simulated events that survive, half an event more, and its error.

    The half keeps "none left" from meaning "none expected": it is the mean of the posterior for Jeffreys' prior.
    """
    mean_weight = weights.mean() if len(weights) else 0.0
    total = weights[kept].sum() + mean_weight / 2
    return Background(float(total), float(np.sqrt((weights[kept] ** 2).sum() + mean_weight**2 / 2)))


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
