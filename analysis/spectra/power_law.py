r"""Smoothly broken power laws fitted to the groups' fluxes, under a hypothesis on where their knees are.

Each group k has ``J_k(E) = A_k E^-g_k [1 + (E/E_k)^s]^(-d/s)``, averaged over each energy bin: an index g_k of its
own below the knee, one change d of the index for all groups, and the sharpness s, which is stated and not fitted. Of
the positions E_k one of these holds (the charge is that of the group's representative nucleus):

=============  ==============================================
``rigidity``   E_k = Z_k R
``mass``       E_k = A_k M
``constant``   the same for all groups
``free``       each group has its own
``none``       no group has a knee
=============  ==============================================

Chi-square holds the statistics of data and simulation only. Systematic errors move all fluxes together, and
measured normalisations in a covariance pull fits down (R. Peelle's puzzle; G. D'Agostini, Nucl. Instrum. Meth. A 346
(1994) 306): instead each source's fluxes are fitted again as moved by one standard deviation. The part of
the data's covariance is scaled to the number of events fitted, so that bins that happen to have few do not weigh more.
Minimisation is Minuit's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from iminuit import Minuit
from scipy.special import expit

from analysis.spectra.errors import STATISTICAL, Errors
from analysis.spectra.estimate import SpectrumEstimate

CHARGES = (1, 2, 6, 14, 26)
MASSES = (1, 4, 12, 28, 56)
HYPOTHESES = ("rigidity", "mass", "constant", "free", "none")
SHARPNESS, SHARPNESS_RANGE = 5.0, (2.0, 20.0)
"""Sharpness s of the knee, and the range within which it is varied as a systematic error."""
LEAST_BINS = 5
"""Energies from which knees are fitted: each group has three parameters."""
LEAST_EVENTS = 25
"""Measured events from which a bin enters the fit: with fewer its covariance says little."""
INDEX, INDEX_WIDTH = 2.7, 0.2
"""Indices below the knees and how far they may stray from this where the fluxes say little: direct measurements below
0.1 PeV lie between 2.5 and 2.8. Without it, a group with no knee in the data could as well have one below them."""
INDEX_RANGE, CHANGE_RANGE = (1.0, 5.0), (0.0, 3.0)
BEYOND = 0.5
"""How far beyond the fitted energies a knee is looked for, in lg E."""
ROUNDS = 3
"""How often the data's covariance is scaled to the fit."""
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True)
class KneeData:
    """Fluxes that are fitted."""

    edges: np.ndarray
    """(B, 2) borders of the bins used, lg(E/eV)."""
    flux: np.ndarray
    """(B, C) m^-2 sr^-1 s^-1 eV^-1."""
    data_covariance: np.ndarray
    """(B, C, C) from the measured events' statistics."""
    simulation_covariance: np.ndarray
    """(B, C, C) from the finite simulation; bins are taken as independent."""
    events_per_flux: np.ndarray
    """(B, C) accepted events for a unit of flux."""
    measured: np.ndarray
    """(B,) measured events."""
    sharpness: float = SHARPNESS

    @cached_property
    def unit(self) -> np.ndarray:
        """(B,) fluxes by which all others are divided: numbers near one, whatever the energy."""
        return np.asarray(np.abs(self.flux).sum(axis=1))

    @cached_property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Energies in units of the middle one, and weights of the mean over each bin, (B, N) each."""
        low, high = self.edges.T[:, :, None]
        lg = (low + high) / 2 + (high - low) / 2 * NODES
        weight = NODE_WEIGHTS * 10.0 ** (lg - lg.mean(axis=1, keepdims=True))
        return np.log(10.0) * (lg - self.middle), weight / weight.sum(axis=1, keepdims=True)

    @property
    def middle(self) -> float:
        """lg(E/eV) in the middle of all."""
        return float(self.edges.mean())

    def shapes(self, index: np.ndarray, change: float, lg_knee: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fluxes (B, C) for a height of one at the middle energy, and their derivatives (3, B, C).

        The derivatives are by the index, the change of the index, and lg of the knee's energy.
        """
        terms, above, bend = self._terms(index, change, lg_knee)
        by_knee = np.log(10.0) * change * terms * expit(above)
        x = self.nodes[0][..., None]
        slopes = np.stack([(-x * terms).sum(axis=1), (-bend * terms).sum(axis=1), by_knee.sum(axis=1)])
        return np.asarray(terms.sum(axis=1)), slopes

    def shape(self, index: np.ndarray, change: float, lg_knee: np.ndarray) -> np.ndarray:
        """Return the fluxes of :meth:`shapes` alone, in half the time."""
        return np.asarray(self._terms(index, change, lg_knee)[0].sum(axis=1))

    def _terms(
        self, index: np.ndarray, change: float, lg_knee: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, weight = self.nodes
        x = x[..., None]
        above = self.sharpness * (x - np.log(10.0) * (np.asarray(lg_knee) - self.middle))
        bend = np.logaddexp(0.0, above) / self.sharpness
        return weight[..., None] * np.exp(-index * x - change * bend), above, bend

    def scaled(self, fitted: np.ndarray) -> np.ndarray:
        """Return the covariance (B, C, C) with the data's part as large as the fitted number of events makes it."""
        expected = np.maximum((fitted * self.events_per_flux).sum(axis=1), 1.0)
        share = np.clip(expected / np.maximum(self.measured, 1), 0.2, 5.0)
        return self.data_covariance * share[:, None, None] + self.simulation_covariance


@dataclass(frozen=True)
class KneeFit:
    """One hypothesis fitted."""

    hypothesis: str
    chi2: float
    lg_knee: np.ndarray
    """(C,) lg(E/eV); NaN without knees."""
    index: np.ndarray
    """(C,)"""
    change: float
    flux: np.ndarray
    """(B, C) fitted."""
    covariance: np.ndarray
    """(B, C, C) with which chi-square was made."""
    parameters: tuple[float, ...]
    valid: bool


def knee_data(spectrum_estimate: SpectrumEstimate, errors: Errors, sharpness: float = SHARPNESS) -> KneeData | str:
    """Return what is fitted, or why nothing can be; bins whose statistical errors are not known are left out."""
    bins = spectrum_estimate.setting.bins
    n_bins, n_classes = spectrum_estimate.flux.shape
    every = np.arange(n_bins)
    blocks = {
        source: errors.flux[source].reshape(n_bins, n_classes, n_bins, n_classes)[every, :, every, :]
        for source in STATISTICAL
    }
    known = [np.isfinite(values).all(axis=(1, 2)) for values in blocks.values()]
    used = (
        spectrum_estimate.usable
        & (spectrum_estimate.measured >= LEAST_EVENTS)
        & np.isfinite(spectrum_estimate.flux).all(axis=1)
        & np.all(known, axis=0)
    )
    if used.sum() < LEAST_BINS:
        return (
            f"knees were not fitted: {int(used.sum())} energy bins have {LEAST_EVENTS} measured events, enough "
            f"simulated ones and known errors, {LEAST_BINS} are needed"
        )
    data, simulation = (blocks[source][used] for source in STATISTICAL)
    edges = np.stack([bins.edges[:-1], bins.edges[1:]], axis=1)[used]
    return KneeData(
        edges, spectrum_estimate.flux[used], data, simulation, 1.0 / spectrum_estimate.flux_per_event[used],
        spectrum_estimate.measured[used].astype(float), sharpness,
    )  # fmt: skip


def fit(data: KneeData, hypothesis: str, start: KneeFit | None = None) -> KneeFit:
    """Fit one hypothesis from several positions of the knee; or from an earlier fit, with its covariance."""
    if start is not None:
        return fit_from(data, hypothesis, start.parameters, start.covariance)
    low, high = data.edges.min(), data.edges.max()
    n_classes = data.flux.shape[1]
    n_knees = _n_knees(hypothesis, n_classes)
    heights = np.tile(low + np.linspace(0.1, 0.9, 4) * (high - low), (n_classes, 1)).T
    starts = [row[:n_knees] for row in heights]
    if hypothesis == "free":
        starts += [_position("rigidity", np.array([lg]), n_classes) for lg in heights[:, 0]]
    entries = [
        fit_from(data, hypothesis, (*(INDEX,) * n_classes, *((0.5, *knees) if n_knees else ())))
        for knees in starts[: 1 if n_knees == 0 else None]
    ]
    return min(entries, key=lambda one: one.chi2)


def _n_knees(hypothesis: str, n_classes: int) -> int:
    return {"free": n_classes, "none": 0}.get(hypothesis, 1)


def _position(hypothesis: str, values: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the groups' lg E_k, (C,), from the parameters of a hypothesis."""
    if hypothesis == "none":
        return np.full(n_classes, np.nan)
    scale = {"rigidity": CHARGES, "mass": MASSES}.get(hypothesis, (1,) * n_classes)
    return np.asarray(values + np.log10(scale[:n_classes]))


def parameter_names(hypothesis: str, n_classes: int) -> list[str]:
    n = _n_knees(hypothesis, n_classes)
    return [*(f"g{k}" for k in range(n_classes)), *(["d"] if n else []), *(f"k{k}" for k in range(n))]


def fit_from(
    data: KneeData, hypothesis: str, start: tuple[float, ...], covariance: np.ndarray | None = None
) -> KneeFit:
    """Minimise from one start; without a covariance, with one that is scaled to the fit in rounds."""
    used = data.scaled(data.flux) if covariance is None else covariance
    minuit, problem = start_minuit(data, hypothesis, used, start)
    minuit.migrad()
    for _ in range(0 if covariance is not None else ROUNDS - 1):
        used = data.scaled(problem.fluxes(np.array(minuit.values)))
        minuit, problem = start_minuit(data, hypothesis, used, tuple(minuit.values))
        minuit.migrad()
    start = tuple(minuit.values)
    n_classes = data.flux.shape[1]
    rest = np.array(start[n_classes:])
    return KneeFit(
        hypothesis, float(minuit.fval or 0.0), _position(hypothesis, rest[1:], n_classes),
        np.array(start[:n_classes]), float(rest[0]) if len(rest) else 0.0, problem.fluxes(np.array(start)), used,
        start, bool(minuit.valid),
    )  # fmt: skip


@dataclass
class _Problem:
    """Chi-square of one hypothesis; the groups' heights are solved for, because fluxes are linear in them."""

    data: KneeData
    hypothesis: str
    root: np.ndarray
    """(B, C, C) Cholesky factors of the inverse covariances, in units of :attr:`KneeData.unit`."""
    y: np.ndarray
    """(B C,) whitened fluxes."""
    unit: np.ndarray
    """(B, 1) :attr:`KneeData.unit`."""
    ridge: np.ndarray
    """(C, C) what keeps heights of vanishing shapes finite."""

    @classmethod
    def of(cls, data: KneeData, hypothesis: str, covariance: np.ndarray) -> _Problem:
        unit = data.unit[:, None]
        root = np.linalg.cholesky(np.linalg.inv(covariance / (unit[:, None] * unit[:, :, None])))
        y = np.einsum("bij,bi->bj", root, data.flux / unit).ravel()
        return cls(data, hypothesis, root, y, unit, 1e-12 * np.eye(data.flux.shape[1]))

    def _shape_parameters(self, parameters: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        """Return the groups' indices, their change, and lg of the knees' energies."""
        n_classes = self.data.flux.shape[1]
        rest = parameters[n_classes:]
        knees = _position(self.hypothesis, rest[1:], n_classes) if len(rest) else np.full(n_classes, 30.0)
        return parameters[:n_classes], rest[0] if len(rest) else 0.0, knees

    def _solved(self, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return whitened residuals, heights, and what the shapes (B, C) were divided by."""
        n_bins, n_classes = shapes.shape
        shapes = shapes / self.unit
        scale = shapes.max(axis=0)
        shapes = shapes / scale
        design = (self.root.transpose(0, 2, 1) * shapes[:, None, :]).reshape(n_bins * n_classes, n_classes)
        height = np.linalg.solve(design.T @ design + self.ridge, design.T @ self.y)
        return self.y - design @ height, height, scale

    def fluxes(self, parameters: np.ndarray) -> np.ndarray:
        """Return fitted fluxes, (B, C)."""
        shapes = self.data.shape(*self._shape_parameters(parameters))
        _, height, scale = self._solved(shapes)
        return np.asarray(shapes / self.unit / scale * height * self.unit)

    def value(self, parameters: np.ndarray) -> float:
        """Return chi-square, with what is expected of the indices."""
        parameters = np.asarray(parameters)
        residual = self._solved(self.data.shape(*self._shape_parameters(parameters)))[0]
        index = parameters[: self.data.flux.shape[1]]
        return float((residual**2).sum() + (((index - INDEX) / INDEX_WIDTH) ** 2).sum())

    def slope(self, parameters: np.ndarray) -> np.ndarray:
        """Return its derivatives: at the best heights those of the heights do not matter."""
        parameters = np.asarray(parameters)
        shapes, slopes = self.data.shapes(*self._shape_parameters(parameters))
        residual, height, scale = self._solved(shapes)
        slopes = slopes / self.unit / scale
        n_bins, n_classes = self.data.flux.shape
        back = np.einsum("bij,bj->bi", self.root, residual.reshape(n_bins, n_classes))
        each = -2 * (back * height * slopes).sum(axis=1)  # (3, C)
        index = each[0] + 2 * (parameters[:n_classes] - INDEX) / INDEX_WIDTH**2
        n = _n_knees(self.hypothesis, n_classes)
        if not n:
            return np.asarray(index)
        return np.concatenate([index, [each[1].sum()], each[2] if n == n_classes else [each[2].sum()]])


def start_minuit(
    data: KneeData, hypothesis: str, covariance: np.ndarray, start: tuple[float, ...]
) -> tuple[Minuit, _Problem]:
    """Return Minuit at its start, and what it minimises."""
    problem = _Problem.of(data, hypothesis, covariance)
    names = parameter_names(hypothesis, data.flux.shape[1])
    minuit = Minuit(problem.value, np.asarray(start), grad=problem.slope, name=names)
    minuit.errordef = Minuit.LEAST_SQUARES
    minuit.strategy = 0
    low, high = data.edges.min() - BEYOND, data.edges.max() + BEYOND
    for name in names:
        minuit.limits[name] = {"g": INDEX_RANGE, "d": CHANGE_RANGE, "k": (low, high)}[name[0]]
        minuit.errors[name] = 0.1
    return minuit, problem
