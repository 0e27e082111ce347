r"""The response by which fluxes are folded: from group and true energy to cells of measured energy and mass.

A cell c is a bin of the reconstructed energy and one of the summary :math:`y = \sum_k P_k \ln A_k` of an event's
posteriors, cut at quantiles of simulated events. With m accepted simulated events of N thrown in a fine bin t of true
energy, ``R_kct = m_kct / N_kt`` is the probability of a particle of group k to be counted in cell c, and
``W_kct = sum_s m_skct^2 / N_kt^2`` its variance, where shower s has m_s copies there: one, unless showers are used
again. Nothing is smoothed, and no weights are given inside a fine bin.

There are three scales, in units of their widths; positive: the data measure more. The energy scale moves true energies:
showers of E look like those of E 10^(w x), so that the flux below the response moves and the response does not
(:mod:`showerstack.analysis.spectra.likelihood`). Energies are a formula of sizes; data cannot differ in them alone.
Muon and electron numbers move simulated events: their energy by KASCADE's formula, their posteriors, and the cuts in lg
Ne and lg Nmu. With x their distances from where R was made, expectations are multiplied by ``f_kc = exp(sum_j a_jkc x_j
+ sum_jl q_jlkc x_j x_l)``, whose coefficients come from events binned again as moved by :data:`STEP`; they are smooth
in energy, not in y.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.counting import count_moved
from showerstack.analysis.spectra.response import FIVE, Binning, MassGroups, Simulated, SpectrumEvents
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.errors import InputError
from showerstack.runtime.rows import Rows
from showerstack.showers.kascade import corrected_sizes

SUMMARIES = 8
"""Bins of y; fewer than groups and one more leave them undetermined."""
SCALES = ("energy", "muon", "electron")
STEP = 1.5
"""How far simulated events are moved for the derivatives, in widths."""
ENERGY_DEGREE, CURVATURE_DEGREE = 6, 2
"""Degrees in the number of the energy bin of the first and second derivatives by scales: with fewer, derivatives are
wrong near the threshold, with more they are noisier (docs/benchmarks/closure.md)."""
CUT_MARGIN = 0.15
"""How far below the cuts in lg Ne and lg Nmu simulated events are kept: they may pass them when moved."""
MOVE = 0.04
"""How far sizes are moved, in lg, where events are predicted again."""
PARTS, SPLITS = 20, 10
"""Parts into which simulated events are counted, and random splits of them in halves, which tell how noisy derivatives
are."""


def mass_summary(log_proba: np.ndarray, groups: MassGroups = FIVE) -> np.ndarray:
    """Return y = sum_k P_k ln A_k, (N,), of log-posteriors (N, K)."""
    return np.asarray(np.exp(log_proba) @ groups.ln_masses)


@dataclass(frozen=True)
class Cells:
    """Cells in which events are counted."""

    bins: Binning
    borders: np.ndarray
    """(S - 1,) inner borders of y."""
    groups: MassGroups = FIVE

    @property
    def n_summaries(self) -> int:
        """S."""
        return len(self.borders) + 1

    @property
    def n_cells(self) -> int:
        """C = B S; the cell of energy bin b and summary s is b S + s."""
        return self.bins.n_bins * self.n_summaries

    def cell_of(self, lg_energy: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the cell of each event, (N,), -1 outside the energy bins."""
        energy = self.bins.bin_of(lg_energy)
        return np.where(energy >= 0, energy * self.n_summaries + np.searchsorted(self.borders, y, side="right"), -1)

    def counts(self, events: SpectrumEvents) -> np.ndarray:
        """Return n (C,), measured events."""
        cell = self.cell_of(events.lg_energy, mass_summary(events.log_proba, self.groups))
        return np.bincount(cell[cell >= 0], minlength=self.n_cells).astype(np.float64)


def make_cells(bins: Binning, simulated: Simulated, summaries: int = SUMMARIES) -> Cells:
    """Return cells whose borders in y are quantiles of the simulated events in the energy bins."""
    y = mass_summary(simulated.log_proba[bins.bin_of(simulated.lg_energy) >= 0], simulated.groups)
    if not len(y):
        raise InputError("no simulated event lies in the energy bins: give other --bins or another --simulation")
    return Cells(bins, np.quantile(y, np.arange(1, summaries) / summaries), simulated.groups)


@dataclass(frozen=True)
class MovableEvents(Rows):
    """Simulated events as they are and as scales move them."""

    EVENTS_AXIS = -1
    labels: np.ndarray
    """(N,) groups."""
    fine: np.ndarray
    """(N,) fine bins of the true energy."""
    lg_energy: np.ndarray
    measured: np.ndarray
    """(2, N) lg Ne and lg Nmu, which are cut."""
    sizes: np.ndarray
    """(2, N) lg Ne and lg Nmu corrected to the reference zenith angle."""
    y: np.ndarray
    y_moved: np.ndarray
    """(4, N) coefficients of x and x^2 of the muon scale, then of the electron scale."""
    mirrored: np.ndarray
    """(2, N) bool: events of a set without showers below the cut in lg Ne, in lg Nmu."""
    widths: Widths
    least: tuple[float, float]
    """Cuts in lg Ne and lg Nmu."""
    model: np.ndarray | None = None
    group: np.ndarray | None = None
    """(N,) equal value = same simulated shower; None: all different."""


def make_movable(
    simulated: Simulated, bins: Binning, widths: Widths, least: tuple[float, float] = (-np.inf, -np.inf)
) -> MovableEvents:
    """Prepare simulated events for being moved by scales.

    How y moves with the sizes is taken from the events as predicted again (``simulated.y_again``); where they were not,
    from a regression (:func:`regressed_moves`).
    """
    if simulated.true_lg_energy is None:
        raise InputError("--simulation: a simulated set without truth.parquet has no true energies to fold with")
    y = mass_summary(simulated.log_proba, simulated.groups)
    lg_widths = np.array([widths.lg_muon, widths.lg_electron])
    known = simulated.y_again is not None and np.isfinite(simulated.y_again).reshape(-1, 2, 2).any(axis=2).all()
    moved = np.zeros((4, len(y))) if known else regressed_moves(simulated, lg_widths)
    if simulated.y_again is not None:
        down, up = simulated.y_again.reshape(-1, 2, 2).transpose(2, 1, 0)  # (2, N) each
        both = np.isfinite(down) & np.isfinite(up)
        # One side alone is known of showers that the other move takes below the cut.
        slope = np.where(both, up - down, np.where(np.isfinite(up), 2 * (up - y), 2 * (y - down))) / (2 * MOVE)
        bend = np.where(both, (up + down) / 2 - y, 0.0 * slope) / MOVE**2
        again = np.stack([slope * lg_widths[:, None], bend * lg_widths[:, None] ** 2], axis=1).reshape(4, -1)
        moved = np.where(np.isfinite(again), again, moved)
    mirrored = np.zeros((2, len(y)), dtype=bool) if simulated.mirrored is None else simulated.mirrored.T
    return MovableEvents(
        np.asarray(simulated.labels, dtype=np.int64), bins.fine_bin_of(simulated.true_lg_energy), simulated.lg_energy,
        np.stack([simulated.lg_ne, simulated.lg_nmu]),
        np.stack(corrected_sizes(simulated.lg_ne, simulated.lg_nmu, simulated.zenith_deg)), y, moved, mirrored, widths,
        least, simulated.model, numbers_of_copied_showers(simulated.group),
    )  # fmt: skip


def models_spread(simulated: Simulated, bins: Binning) -> np.ndarray:
    """Return how far hadronic models differ in mean lg Nmu and lg Ne at equal group and true energy, (2,).

    Standard deviations over models of events on the plateau, where cuts take none away; 0 where there is one model.
    """
    if simulated.model is None or simulated.true_lg_energy is None:
        return np.zeros(2)
    plateau = np.flatnonzero(simulated.true_lg_energy > PLATEAU_LG_ENERGY)
    models, model = np.unique(simulated.model[plateau], return_inverse=True)
    if len(models) < 2:
        return np.zeros(2)
    fine = bins.fine_bin_of(simulated.true_lg_energy[plateau])
    place = np.asarray(simulated.labels)[plateau] * len(bins.fine) + fine
    n = np.maximum(np.bincount(place), 1)
    result = []
    for size in (simulated.lg_nmu, simulated.lg_ne):
        away = size[plateau] - (np.bincount(place, size[plateau]) / n)[place]
        result.append(np.std(np.bincount(model, away) / np.bincount(model), ddof=1))
    return np.array(result)


def regressed_moves(simulated: Simulated, lg_widths: np.ndarray) -> np.ndarray:
    """Return coefficients (4, N) by which y moves, of the muon scale's x and x^2, then the electron scale's.

    They follow from a quadratic regression of the log-posteriors on lg Ne, lg Nmu and zenith over the simulated events:
    features that see sizes otherwise are taken to move along. That makes derivatives up to 27 % too small or 21 % too
    large, by group and scale.

    Parameters
    ----------
    lg_widths
        (2,) in lg Nmu and lg Ne.
    """
    e, m, z = simulated.lg_ne - 5.0, simulated.lg_nmu - 4.5, simulated.zenith_deg / 30.0
    design = np.stack([np.ones_like(e), e, m, z, e * e, e * m, m * m], axis=1)
    centred = np.clip(simulated.log_proba - simulated.log_proba.mean(axis=1, keepdims=True), -30, 30)
    # Seven columns of numbers near one: their normal equations lose nothing that counts and take a tenth of the time.
    by = np.linalg.lstsq(design.T @ design, design.T @ centred, rcond=None)[0]
    columns = design[:, :3]
    slopes = (columns @ np.stack([by[2], by[5], 2 * by[6]]), columns @ np.stack([by[1], 2 * by[4], by[5]]))
    y, coefficients = mass_summary(simulated.log_proba, simulated.groups), []
    for slope, width in zip(slopes, lg_widths, strict=True):
        down, up = (
            mass_summary(log_softmax(simulated.log_proba + sign * width * slope), simulated.groups) for sign in (-1, 1)
        )
        coefficients += [(up - down) / 2, (up + down) / 2 - y]
    return np.array(coefficients)


def numbers_of_copied_showers(groups: np.ndarray | None) -> np.ndarray | None:
    """Return the showers' numbers (N,), or None where none is used twice."""
    if groups is None:
        return None
    names, number = np.unique(groups, return_inverse=True)
    return number if len(names) < len(groups) else None


def count_parts(
    events: MovableEvents,
    cells: Cells,
    x: np.ndarray,
    n_groups: int = len(FIVE),
    cell: np.ndarray | None = None,
    parts: int = PARTS,
) -> np.ndarray:
    """Return m (P, K, C, T) float32 of parts of the simulated events, accepted at scales x (3,).

    The energy scale moves no event. ``cell`` (N,) is set to the cell of each event, -1 outside all.
    """
    x = np.asarray(x, dtype=np.float64)[[2, 1]]
    counts = np.zeros((parts, n_groups, cells.n_cells, len(cells.bins.fine) - 1), dtype=np.float32)
    count_moved(
        events.labels, events.fine, events.lg_energy, events.measured, events.sizes, events.y, events.y_moved,
        events.mirrored, x, x * events.widths.values[[2, 1]], np.array(events.least), cells.bins.edges, cells.borders,
        counts, np.empty(len(events.labels), np.int64) if cell is None else cell,
    )  # fmt: skip
    return counts


@dataclass(frozen=True)
class Moves:
    """ln f of the scales: f_kc = exp(sum_j a_j x_j + sum_jl q_jl x_j x_l)."""

    linear: np.ndarray
    """a (3, K, C)."""
    quadratic: np.ndarray
    """q (3, 3, K, C), symmetric."""

    def factors(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f (K, C) and d ln f / dx (3, K, C)."""
        half = np.einsum("jlkc,l->jkc", self.quadratic, x)
        exponent = np.einsum("jkc,j->kc", self.linear + half, x)
        return np.exp(np.clip(exponent, -20, 20)), self.linear + 2 * half


@dataclass(frozen=True)
class FoldedResponse:
    """R and W at one point of the scales, and R as moved away from it."""

    cells: Cells
    at: np.ndarray
    """(3,) scales at which it was made, in widths."""
    accepted: np.ndarray
    """m (K, C, T)."""
    thrown: np.ndarray
    """N (K, T)."""
    moved: dict[tuple[int, ...], np.ndarray]
    """m as moved by :data:`STEP` of some scales, by the numbers of :data:`SCALES` plus one; negative: downwards."""
    parts: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)
    """The same of parts of the simulated events (P, K, C, T), and under () as they are, where scales are free."""
    squares: np.ndarray | None = None
    """(K, C, T) sums over showers of their squared copies; None: no shower is used twice, and they are m."""
    energy_width: float = 0.0
    """Width of the energy scale, in lg E; 0: exact."""

    def noise(self, particles: np.ndarray) -> np.ndarray:
        """Return estimates of the noise of a, (S, 3, K, C): of random splits, half the difference of the halves."""
        if not self.parts:
            return np.zeros((1, 3, *self.accepted.shape[:2]))
        weight = self._weight(particles)
        sums = {key: np.einsum("pkct,kt->pkc", m, weight) for key, m in self.parts.items()}
        events = self.parts[()].sum(axis=3, dtype=np.float64)
        rng, result = np.random.default_rng(0), []
        for _ in range(SPLITS):
            order = rng.permutation(len(events))
            halves = (order[: len(order) // 2], order[len(order) // 2 :])
            one, other = (
                self._moves({key: values[half].sum(axis=0) for key, values in sums.items()}, events[half].sum(axis=0))
                for half in halves
            )
            result.append((one.linear - other.linear) / 2)
        return np.array(result)

    def _weight(self, particles: np.ndarray) -> np.ndarray:
        return np.divide(particles, self.thrown, out=np.zeros_like(particles), where=self.thrown > 0)

    @property
    def active(self) -> tuple[int, ...]:
        """Numbers of the scales that are free."""
        return (*((0,) if self.energy_width else ()), *self.moving)

    @property
    def moving(self) -> tuple[int, ...]:
        """Numbers of the free scales that move events."""
        return tuple(sorted(key[0] - 1 for key in self.moved if len(key) == 1 and key[0] > 0))

    @property
    def probability(self) -> np.ndarray:
        """R (K, C, T); 0 where nothing was thrown."""
        return np.divide(self.accepted, self.thrown[:, None], out=np.zeros_like(self.accepted), where=self._known)

    @property
    def variance(self) -> np.ndarray:
        """W (K, C, T)."""
        square = self.thrown[:, None] ** 2
        copies = self.accepted if self.squares is None else self.squares
        return np.divide(copies, square, out=np.zeros_like(copies), where=self._known)

    @property
    def _known(self) -> np.ndarray:
        return np.broadcast_to(self.thrown[:, None] > 0, self.accepted.shape)

    def moves(self, particles: np.ndarray) -> Moves:
        """Return how expectations move with the scales that move events, for particles (K, T) per fine bin."""
        weight = self._weight(particles)
        sums = {key: np.einsum("kct,kt->kc", m, weight) for key, m in {**self.moved, (): self.accepted}.items()}
        return self._moves(sums, self.accepted.sum(axis=2))

    def _moves(self, sums: dict[tuple[int, ...], np.ndarray], events: np.ndarray) -> Moves:
        """Return how sums (K, C) of weights move, of so many events (K, C) as they are."""
        shape, base = events.shape, sums[()]
        linear, quadratic = np.zeros((3, *shape)), np.zeros((3, 3, *shape))
        if not self.moving:
            return Moves(linear, quadratic)
        everywhere = base.sum(axis=1, keepdims=True) / np.maximum(events.sum(axis=1, keepdims=True), 1.0)
        half = 0.5 * np.where(events > 0, base / np.maximum(events, 1.0), everywhere)
        # A group without events, or with those of energies at which none was thrown, tells nothing of how it moves.
        known = base + half > 0
        ln = {key: np.log(np.divide(m + half, base + half, out=np.ones(shape), where=known)) for key, m in sums.items()}
        for j in self.moving:
            up, down = ln[j + 1,], ln[-j - 1,]
            linear[j] = self._smooth((up - down) / (2 * STEP), events, ENERGY_DEGREE)
            quadratic[j, j] = self._smooth((up + down) / (2 * STEP**2), events, CURVATURE_DEGREE)
        for j, k in combinations(self.moving, 2):
            both = (ln[j + 1, k + 1] - ln[j + 1,] - ln[k + 1,]) / (2 * STEP**2)
            quadratic[j, k] = quadratic[k, j] = self._smooth(both, events, CURVATURE_DEGREE)
        return Moves(linear, quadratic)

    def _smooth(self, values: np.ndarray, events: np.ndarray, degree: int) -> np.ndarray:
        """Replace values (K, C) of each group and summary by a polynomial in the energy bin, weighted by events."""
        n_bins, n_summaries = self.cells.bins.n_bins, self.cells.n_summaries
        grid = np.linspace(-1.0, 1.0, n_bins)
        design = np.vander(grid, min(degree, n_bins - 1) + 1)
        values, weight = (one.reshape(-1, n_bins, n_summaries) for one in (values, events + 0.5))
        normal = np.einsum("bi,kbs,bj->ksij", design, weight, design) + 1e-9 * np.eye(design.shape[1])
        right = np.einsum("bi,kbs,kbs->ksi", design, weight, values)
        fitted = np.einsum("bi,ksi->kbs", design, np.linalg.solve(normal, right[..., None])[..., 0])
        return np.asarray(fitted.reshape(len(values), -1))


def make_response(
    events: MovableEvents, cells: Cells, thrown: np.ndarray, at: np.ndarray | None = None, *, scales: bool = True
) -> FoldedResponse:
    """Bin simulated events at a point of the scales and around it.

    Parameters
    ----------
    thrown
        N (K, T).
    at
        (3,) scales in widths; None: as simulated.
    scales
        False: scales are exact, and events are binned once.
    """
    at = np.zeros(3) if at is None else np.array(at, dtype=np.float64)
    at[0] = 0.0  # the energy scale moves fluxes, not the response
    free = [j for j in (1, 2) if scales and events.widths.values[j] > 0]
    parts: dict[tuple[int, ...], np.ndarray] = {}
    for key in [*((sign * (j + 1),) for j in free for sign in (1, -1)),
                *((j + 1, other + 1) for j, other in combinations(free, 2))]:  # fmt: skip
        x = at.copy()
        for one in key:
            x[abs(one) - 1] += STEP * np.sign(one)
        parts[key] = count_parts(events, cells, x, len(thrown))
    place = np.empty(len(events.labels), np.int64)
    parts[()] = count_parts(events, cells, at, len(thrown), place)
    moved = {key: counts.sum(axis=0, dtype=np.float64) for key, counts in parts.items()}
    accepted = moved.pop(())
    squares = None
    if events.group is not None:
        rows = np.flatnonzero(place >= 0)
        keys = np.stack([events.group[rows], events.labels[rows], place[rows], events.fine[rows]])
        (_, label, cell_number, fine), copies = np.unique(keys, axis=1, return_counts=True)
        squares = np.zeros(accepted.shape)
        np.add.at(squares, (label, cell_number, fine), copies.astype(np.float64) ** 2)
    width = events.widths.lg_energy if scales else 0.0
    return FoldedResponse(cells, at, accepted, thrown, moved, parts if moved else {}, squares, width)


PLATEAU_LG_ENERGY, STEP_LG_ENERGY = 15.6, 16.0
"""From where on all showers under the cuts are accepted alike, and where the public composition sets have a step."""
PLATEAU_EFFICIENCY = (0.993, 0.991, 0.986, 0.982, 0.978)
"""Accepted share of each group on the plateau (zenith < 18 deg, lg Ne > 4.8, lg Nmu > 3.6)."""
EFFICIENCY_ERROR = 0.002


def plateau_thrown(
    labels: np.ndarray,
    true_lg_energy: np.ndarray,
    fine: np.ndarray,
    groups: MassGroups = FIVE,
    showers: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Recover the primaries of a set of which only accepted events are known, thrown as E^-2.

    Zenith angles (sin^2 uniform) and cores (uniform in the disc) cancel. Each group is normalised on its plateau; above
    lg E = 16, where public composition sets have fewer, one common factor is fitted.

    Parameters
    ----------
    labels, true_lg_energy
        (N,) of the accepted events under the cuts, whatever their reconstructed energy.
    fine
        (T + 1,) borders of the true lg(E/eV).
    showers
        (N,) equal value = same simulated shower; None: all different.

    Returns
    -------
    N (K, T), 0 for groups without an event on the plateau; and what one standard deviation of each independent number
    changes in it, (K + 1, K, T): of the groups' events on the plateau, and of the share of them above the step.
    """
    middle = (fine[1:] + fine[:-1]) / 2
    law = 10.0 ** -(middle - 15.0) * np.diff(fine)
    counts = np.stack(
        [np.histogram(true_lg_energy[labels == k], fine)[0] for k in range(len(groups))]
    ).astype(np.float64)  # fmt: skip
    used = counts.sum(axis=0).cumsum() < counts.sum()  # up to the highest true energy but one
    low = (fine[:-1] > PLATEAU_LG_ENERGY - 1e-9) & (fine[1:] < STEP_LG_ENERGY + 1e-9)
    high = (fine[:-1] > STEP_LG_ENERGY - 1e-9) & used
    usable = counts[:, low].sum(axis=1) > 0
    below, above = counts[:, low].sum(), counts[:, high].sum()
    factor = above / below * law[low].sum() / law[high].sum() if high.any() and below else 1.0
    law = np.where(middle > STEP_LG_ENERGY, factor * law, law)
    plateau = low | high
    events = np.where(usable, counts[:, plateau].sum(axis=1), 0.0)
    efficiency = groups.means_of_five(PLATEAU_EFFICIENCY)
    thrown = (events / law[plateau].sum() / efficiency)[:, None] * law
    changes = np.zeros((len(groups) + 1, *thrown.shape))
    each = np.arange(len(groups))
    copies = np.ones(len(labels), dtype=np.int64)
    if showers is not None:
        _, number, together = np.unique(showers, return_inverse=True, return_counts=True)
        copies = together[number]
    squares = np.stack([np.histogram(true_lg_energy[labels == k], fine, weights=copies[labels == k])[0] for k in each])
    # of copies count as many as there are showers of equal numbers of them
    independent = events**2 / np.maximum(squares[:, plateau].sum(axis=1), 1.0)
    changes[each, each] = thrown / np.sqrt(np.maximum(independent, 1.0))[:, None]
    if high.any() and above and below:
        # The step's height moves what lies above it against what lies below, at the same number of events.
        share = above / (above + below)
        error = np.sqrt(squares[:, high].sum() / above / above + squares[:, low].sum() / below / below)
        changes[-1] = thrown * np.where(middle > STEP_LG_ENERGY, 1 - share, -share) * error
    return np.asarray(thrown), changes
