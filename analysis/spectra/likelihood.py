r"""One likelihood of all counts: groups, energies, knee and scales together, by forward folding.

Each group k has the flux ``J_k = A_k J0 (E/E0)^-g_k [1 + (E/E_k)^s]^(-d/s)`` with E0 = 10^15.5 eV and the sharpness s
stated, not fitted. The position E_k of its knee obeys one of these hypotheses (charge and mass are those of the group's
representative nucleus); ``A_k`` may be negative, and ``g_k`` is expected at 2.7 +- .2.

=============  ==============================================
``rigidity``   E_k = Z_k R
``mass``       E_k = A_k M
``constant``   the same for all groups
``free``       each group has its own
``none``       no group has a knee
=============  ==============================================

Expected counts are ``mu_c = sum_k f_kc sum_t R_kct phi_kt`` (:mod:`showerstack.analysis.spectra.folding`) with the
particles ``phi_kt(x) = X J_k(E') E' ln10 dlgE``, ``E' = E_t 10^(-w x)``: the energy scale x, of width w, moves true
energies, and is known by its prior alone where fluxes are power laws. The finite
simulation has one factor per cell with a Poisson constraint (R. Barlow, C. Beeston, Comput. Phys. Commun. 77 (1993)
219; H. Dembinski, A. Abdelmotteleb, Eur. Phys. J. C 82 (2022) 1043): with ``tau = mu^2 / V``, the simulated events
that a cell is worth, and ``beta = (n + tau) / (mu + tau)``,

``-2 ln L = 2 sum_c [n ln(n/mu) - (n + tau) ln(1 + (n - mu)/(mu + tau))] + sum ((p - p0) / width)^2``.

tau is held while Minuit minimises, and made anew: left free, fits run off to groups of opposite signs, where every cell
is cheap. Response and scales are made anew where the fit has moved the scales.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from iminuit import Minuit
from scipy.special import expit, xlogy

from showerstack.analysis.spectra.folding import SCALES, FoldedResponse, Moves
from showerstack.analysis.spectra.response import FIVE, MassGroups

LG_REFERENCE = 15.5
"""lg(E/eV) at which the groups' heights are fluxes."""
HYPOTHESES = ("rigidity", "mass", "constant", "free", "none")
SHARPNESS, SHARPNESS_RANGE = 5.0, (2.0, 20.0)
"""Sharpness s of the knee, and the range within which it is varied as a systematic error."""
INDEX, INDEX_WIDTH = 2.7, 0.2
"""Indices below the knees: direct measurements below 0.1 PeV lie between 2.5 and 2.8. Without this, a group with no
knee in the data could as well have one below them."""
CHANGE_RANGE, KNEE_RANGE = (0.0, 2.5), (14.9, 17.2)
CHANGE, CHANGE_WIDTH = 0.5, 0.3
"""Expected change of the index where there are few events: it is degenerate with the knee's position then."""
FEW_EVENTS = 50_000
LEAST_HEIGHT = 0.03
"""No group counts as less where tau and the moves by scales are made."""
LEAST_MEAN, LEAST_SHARE = 0.01, 0.1
"""Below .01 max(1, n/10) an expectation goes on as an exponential, which stays positive."""
TAU_ROUNDS = 2
"""How often tau is made anew before the response is."""
MOVED, REMAKES = 0.25, 6
"""How far scales may move, in widths, before the response is made anew, and how often that is done."""
LARGEST_SCALE, CHI2_WIDTHS = 3.5, 6.0
"""Fits with a scale beyond, or chi-square beyond ndf + 6 sqrt(2 ndf), are refused."""
LARGEST_EXPONENT = 100.0
LARGEST_SHIFT = LARGEST_EXPONENT / np.log(10.0)
"""Minuit's first steps may be far too long; beyond these, powers of the energy and its scale (decades) stand still."""
LEAST_OVER_NOISE = 2.0
"""What data tell of a combination of scales counts from so many times the noise of its derivatives on."""
DRAWS = 2000
"""Draws of the counts for the p-value of chi-square."""


@dataclass(frozen=True)
class ParameterLayout:
    """Which parameters a hypothesis has, in order: heights, indices, change of index, knees, scales."""

    hypothesis: str = "rigidity"
    groups: MassGroups = FIVE

    @property
    def n_groups(self) -> int:
        """K."""
        return len(self.groups)

    @cached_property
    def n_knees(self) -> int:
        """Number of positions of knees."""
        return {"free": self.n_groups, "none": 0}.get(self.hypothesis, 1)

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        groups = range(self.n_groups)
        change = ["d"] if self.n_knees else []
        knees = [f"lg_r{k}" for k in range(self.n_knees)]
        return [*(f"a{k}" for k in groups), *(f"g{k}" for k in groups), *change, *knees, *SCALES]

    @cached_property
    def heights(self) -> slice:
        return slice(0, self.n_groups)

    @cached_property
    def indices(self) -> slice:
        return slice(self.n_groups, 2 * self.n_groups)

    @cached_property
    def knees(self) -> slice:
        first = 2 * self.n_groups + (1 if self.n_knees else 0)
        return slice(first, first + self.n_knees)

    @cached_property
    def scales(self) -> slice:
        return slice(self.knees.stop, self.knees.stop + len(SCALES))

    def lg_knees(self, parameters: np.ndarray) -> np.ndarray:
        """Return the groups' lg(E_k/eV), (K,); NaN without knees."""
        if not self.n_knees:
            return np.full(self.n_groups, np.nan)
        scales = {"rigidity": self.groups.charges, "mass": self.groups.mass_numbers}
        return np.asarray(parameters[self.knees] + np.log10(scales.get(self.hypothesis, np.ones(self.n_groups))))


@dataclass(frozen=True)
class Priors:
    """Normal expectations of parameters."""

    index: np.ndarray | float = INDEX
    """(K,), or one number for all groups."""
    index_width: float = INDEX_WIDTH
    change: tuple[float, float] | None = None
    """Mean and width of the change of the index; None: free within its range."""


def shape(lg_energy: np.ndarray, index: np.ndarray, change: float, lg_knee: np.ndarray, sharpness: float) -> np.ndarray:
    """Return (E/E0)^-g_k [1 + (E/E_k)^s]^(-d/s), (K, T)."""
    x = np.log(10.0) * (lg_energy - LG_REFERENCE)
    if not np.isfinite(lg_knee).all():
        return np.asarray(np.exp(-index[:, None] * x))
    above = sharpness * np.log(10.0) * (lg_energy - lg_knee[:, None])
    return np.asarray(np.exp(-index[:, None] * x - change * np.logaddexp(0.0, above) / sharpness))


@dataclass
class FoldedLikelihood:
    """-2 ln L of counts, and its derivatives."""

    counts: np.ndarray
    """n (C,)."""
    response: FoldedResponse
    exposure_m2_sr_s: float
    unit_flux: float
    """J0, m^-2 sr^-1 s^-1 eV^-1: flux of a group of height one at :data:`LG_REFERENCE`."""
    layout: ParameterLayout = field(default_factory=ParameterLayout)
    sharpness: float = SHARPNESS
    priors: Priors = field(default_factory=Priors)
    finite: bool = True
    """False: as if the simulation were infinite."""

    tau: np.ndarray = field(init=False)
    moves: Moves = field(init=False)

    def __post_init__(self) -> None:
        fine = self.response.cells.bins.fine
        self.lg_energy = (fine[1:] + fine[:-1]) / 2
        self.probability, self.variance = self.response.probability, self.response.variance
        self.simulated = self.probability.any(axis=(0, 2))
        self.per_flux = self.exposure_m2_sr_s * 10.0**self.lg_energy * np.log(10.0) * np.diff(fine)
        self.floor = LEAST_MEAN * np.maximum(1.0, LEAST_SHARE * self.counts)
        self.hold(self.start())

    def start(self, lg_knee: float = 15.6, change: float = 0.4) -> np.ndarray:
        """Return parameters to begin with."""
        n = self.layout.n_groups
        parameters = np.concatenate(
            [np.ones(n), np.full(n, self.priors.index), np.zeros(len(self.layout.names) - 2 * n)]
        )
        if self.layout.n_knees:
            parameters[2 * n] = change
            parameters[self.layout.knees] = np.clip(lg_knee, *KNEE_RANGE)
        parameters[self.layout.scales] = self.response.at
        return parameters

    def particles(
        self, parameters: np.ndarray, heights: np.ndarray | None = None, energy: float | None = None
    ) -> np.ndarray:
        """Return phi (K, T), particles of each group in each fine bin, with other heights and energy scale if given."""
        layout = self.layout
        change = float(parameters[layout.knees.start - 1]) if layout.n_knees else 0.0
        shift = self._shift(float(parameters[layout.scales.start]) if energy is None else energy)
        index, knees = parameters[layout.indices], layout.lg_knees(parameters)
        shapes = shape(self.lg_energy - shift, index, change, knees, self.sharpness)
        heights = parameters[layout.heights] if heights is None else heights
        return np.asarray(heights[:, None] * self.unit_flux * shapes * (self.per_flux * 10.0**-shift))

    def _shift(self, energy: float) -> float:
        """Return by how much, in lg E, showers look like those of higher energies at an energy scale in widths."""
        shift = self.response.energy_width * energy
        return min(max(shift, -LARGEST_SHIFT), LARGEST_SHIFT)

    def energy_slope(self, parameters: np.ndarray, energy: float) -> np.ndarray:
        """Return d ln phi / dx (K, T) of the energy scale x, there."""
        layout = self.layout
        slope = np.repeat(parameters[layout.indices, None] - 1.0, len(self.lg_energy), axis=1)
        if layout.n_knees:
            away = self.lg_energy - self._shift(energy) - layout.lg_knees(parameters)[:, None]
            slope = slope + parameters[layout.knees.start - 1] * expit(self.sharpness * np.log(10.0) * away)
        return np.asarray(self.response.energy_width * np.log(10.0) * slope)

    def flux(self, parameters: np.ndarray, lg_energy: np.ndarray) -> np.ndarray:
        """Return the groups' fluxes (K, n) at energies, m^-2 sr^-1 s^-1 eV^-1."""
        layout = self.layout
        change = float(parameters[layout.knees.start - 1]) if layout.n_knees else 0.0
        shapes = shape(lg_energy, parameters[layout.indices], change, layout.lg_knees(parameters), self.sharpness)
        return np.asarray(parameters[layout.heights][:, None] * self.unit_flux * shapes)

    def hold(self, parameters: np.ndarray) -> None:
        """Make tau and the moves by scales for these parameters, and hold them."""
        heights = np.maximum(parameters[self.layout.heights], LEAST_HEIGHT)
        phi = self.particles(parameters, heights)
        self.moves = self.response.moves(phi)
        factors, _ = self.moves.factors(parameters[self.layout.scales] - self.response.at)
        mean = np.sum(factors * np.einsum("kct,kt->kc", self.probability, phi), axis=0)
        spread = np.sum(factors**2 * np.einsum("kct,kt->kc", self.variance, phi**2), axis=0)
        if self.finite:
            self.tau = np.divide(mean**2, spread, out=np.ones_like(mean), where=spread > 0)
        else:
            self.tau = np.full_like(mean, 1e15)

    def mean(self, parameters: np.ndarray) -> np.ndarray:
        """Return mu (C,)."""
        return self._expected(parameters, slopes=False)[0]

    def expectation(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mu (C,) and its derivatives by all parameters (P, C)."""
        return self._expected(parameters, slopes=True)

    def _expected(self, parameters: np.ndarray, *, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
        layout = self.layout
        heights, index = parameters[layout.heights], parameters[layout.indices]
        n, n_parameters = layout.n_groups, len(parameters)
        energy = float(parameters[layout.scales.start])
        shift = self._shift(energy)
        x = np.log(10.0) * (self.lg_energy - shift - LG_REFERENCE)
        columns = [np.exp(np.clip(-index[:, None] * x, -LARGEST_EXPONENT, LARGEST_EXPONENT))]
        if layout.n_knees:
            change = parameters[layout.knees.start - 1]
            above = self.sharpness * np.log(10.0) * (self.lg_energy - shift - layout.lg_knees(parameters)[:, None])
            bend = np.logaddexp(0.0, above) / self.sharpness
            columns[0] = columns[0] * np.exp(-change * bend)
            if slopes:
                columns += [-x * columns[0], -bend * columns[0], change * np.log(10.0) * expit(above) * columns[0]]
        elif slopes:
            columns.append(-x * columns[0])
        if slopes:
            columns.append(self.energy_slope(parameters, energy) * columns[0])
        # All columns even without slopes: with fewer, the product would round differently.
        phi = np.zeros((*columns[0].shape, 5 if layout.n_knees else 3))
        for k, column in enumerate(columns):
            phi[:, :, k] = column * (self.unit_flux * self.per_flux * 10.0**-shift)
        factors, by_scale = self.moves.factors(parameters[layout.scales] - self.response.at)
        folded = factors[:, :, None] * (self.probability @ phi)  # (K, C, columns)
        mean = heights[:, None] * folded[:, :, 0]
        derivatives = np.zeros((n_parameters, len(self.counts)))
        if slopes:
            derivatives[layout.heights] = folded[:, :, 0]
            derivatives[layout.indices] = heights[:, None] * folded[:, :, 1]
            if layout.n_knees:
                derivatives[2 * n] = heights @ folded[:, :, 2]
                by_knee = heights[:, None] * folded[:, :, 3]
                derivatives[layout.knees] = by_knee if layout.n_knees == n else by_knee.sum(axis=0)
            derivatives[layout.scales] = np.einsum("jkc,kc->jc", by_scale, mean)
            derivatives[layout.scales.start] = heights @ folded[:, :, -1]
        return mean.sum(axis=0), derivatives

    def _soft(self, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return expectations above zero and their derivatives by what they were."""
        small = mean < self.floor
        slope = np.where(small, np.exp(np.minimum(mean / self.floor, 1.0) - 1.0), 1.0)
        return np.maximum(np.where(small, self.floor * slope, mean), 1e-300), slope

    def _penalties(self, parameters: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the value, the gradient (P,) and the inverse variances (P,) of what is expected of parameters."""
        mean, weight = np.zeros(len(parameters)), np.zeros(len(parameters))
        mean[self.layout.indices], weight[self.layout.indices] = self.priors.index, self.priors.index_width**-2
        weight[self.layout.scales] = 1.0
        if self.priors.change and self.layout.n_knees:
            change_position = self.layout.knees.start - 1
            mean[change_position], weight[change_position] = self.priors.change[0], self.priors.change[1] ** -2
        away = parameters - mean
        return float(np.sum(weight * away**2)), 2 * weight * away, weight

    def terms(self, parameters: np.ndarray) -> np.ndarray:
        """Return the cells' parts of -2 ln L, (C,), without the priors'."""
        mean = self._soft(self.mean(parameters))[0]
        return np.where(self.simulated, deviance(self.counts, mean, self.tau), 0.0)

    def value(self, parameters: np.ndarray) -> float:
        """Return -2 ln L with the priors."""
        parameters = np.asarray(parameters)
        return float(self.terms(parameters).sum()) + self._penalties(parameters)[0]

    def gradient(self, parameters: np.ndarray) -> np.ndarray:
        """Return its derivatives, (P,)."""
        parameters = np.asarray(parameters)
        mean, slopes = self.expectation(parameters)
        mean, soft = self._soft(mean)
        beta = (self.counts + self.tau) / (mean + self.tau)
        each = np.where(self.simulated, 2 * (beta - self.counts / mean) * soft, 0.0)
        return np.asarray(slopes @ each + self._penalties(parameters)[1])

    def information(self, parameters: np.ndarray, *, simulation: bool = True) -> np.ndarray:
        """Return the inverse covariance (P, P) of all parameters, without the errors of the simulation if asked."""
        mean, slopes = self.expectation(parameters)
        mean = np.maximum(mean, self.floor)
        weight = self.simulated / (mean + (mean**2 / self.tau if simulation else 0.0))
        return np.asarray((slopes * weight) @ slopes.T + np.diag(self._penalties(parameters)[2]))

    def derivative_noise(self, parameters: np.ndarray) -> np.ndarray:
        """Return how much information on the scales the noise of derivatives pretends, (3, 3)."""
        heights = np.maximum(parameters[self.layout.heights], LEAST_HEIGHT)
        phi = self.particles(parameters, heights)
        factors, _ = self.moves.factors(parameters[self.layout.scales] - self.response.at)
        expected = factors * np.einsum("kct,kt->kc", self.probability, phi)
        noise = np.einsum("sjkc,kc->sjc", self.response.noise(phi), expected)
        mean = np.maximum(expected.sum(axis=0), self.floor)
        weight = self.simulated / (mean + mean**2 / self.tau)
        return np.asarray(np.einsum("sjc,c,slc->jl", noise, weight, noise) / len(noise))

    def free(self) -> np.ndarray:
        """Return which parameters are free, (P,) bool: scales that were not moved are exact."""
        is_free = np.ones(len(self.layout.names), dtype=bool)
        scales = np.zeros(len(SCALES), dtype=bool)
        scales[list(self.response.active)] = True
        is_free[self.layout.scales] = scales
        return is_free


def deviance(counts: np.ndarray, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """Return -2 ln L of each cell: n counted, mu expected, tau simulated events that mu is worth."""
    ratio = (counts - mean) / (mean + tau)
    # 1 + ratio is lost to rounding where far more is expected than counted.
    logarithm = np.where(ratio > -0.5, np.log1p(np.maximum(ratio, -0.5)), np.log((counts + tau) / (mean + tau)))
    likely = xlogy(counts, np.where(counts > 0, counts, 1.0) / mean)
    return np.asarray(2 * (likely - (counts + tau) * logarithm))


def pseudo_inverse(information: np.ndarray) -> np.ndarray:
    """Return the inverse of a symmetric matrix (P, P) on the directions that it determines, 0 on the others."""
    return np.asarray(np.linalg.pinv(information, hermitian=True))


def inverse_without_noise(
    information: np.ndarray,
    noise: np.ndarray,
    scale: np.ndarray,
    inverse: Callable[[np.ndarray], np.ndarray] = pseudo_inverse,
) -> np.ndarray:
    """Return the covariance (P, P) of a fit whose derivatives by scales are noisy.

    Derivatives by scales come from simulated events that cross borders of cells. Their noise N adds to the information
    I, but data do not follow it: the response at the fitted scales has noise of its own. With B = I + N as computed,
    the estimates scatter as ``I^-1 B I^-1``. Undercoverage of this kind: C. Alexe, J. Bendavid, L. Bianchini, D.
    Bruschini, arXiv:2401.10542. Data never tell less than nothing: of the scales, at least what is expected of them
    (width one) is known; and no more than that along directions where what data seem to tell is below
    :data:`LEAST_OVER_NOISE` times its noise.

    Parameters
    ----------
    information
        B (P, P).
    noise
        N (P, P), zero but for the scales.
    scale
        (P,) bool: which parameters are scales.
    inverse
        Of a symmetric matrix. A pseudo-inverse takes what hardly is determined as exact: where such a parameter's own
        error is asked for, it is ``np.linalg.inv``.
    """
    if not scale.any() or not noise.any():
        return np.asarray(inverse(information))
    rest, both = ~scale, np.ix_(~scale, scale)
    inner = inverse(information[np.ix_(rest, rest)])
    slope = inner @ information[both]
    whole = information[np.ix_(scale, scale)] - information[both].T @ slope
    size, axes, told = told_directions(whole, noise[np.ix_(scale, scale)])
    known = (axes / np.maximum(size, 1.0))[:, told]
    of_scales = known @ (axes[:, told].T @ whole @ axes[:, told]) @ known.T + axes[:, ~told] @ axes[:, ~told].T
    covariance = np.empty_like(information)
    covariance[np.ix_(scale, scale)] = of_scales
    covariance[both] = -slope @ of_scales
    covariance[np.ix_(scale, rest)] = covariance[both].T
    covariance[np.ix_(rest, rest)] = inner + slope @ of_scales @ slope.T
    return covariance


def told_directions(whole: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return information (S,) on combinations of scales without its noise, the combinations (S, S) in columns, and
    along which data tell more than :data:`LEAST_OVER_NOISE` times the noise, (S,) bool."""
    size, axes = np.linalg.eigh(whole - noise)
    pretended = np.einsum("pi,pq,qi->i", axes, noise, axes)
    return size, axes, size + pretended - 1.0 >= LEAST_OVER_NOISE * pretended


@dataclass(frozen=True)
class FoldedFit:
    """A fit."""

    likelihood: FoldedLikelihood
    parameters: np.ndarray
    cost: float
    """-2 ln L with the priors."""
    chi2: float
    """-2 ln L of the cells."""
    ndf: int
    valid: bool
    """Whether Minuit converged."""

    @cached_property
    def scales(self) -> np.ndarray:
        """(3,) in widths."""
        return self.parameters[self.likelihood.layout.scales]

    @property
    def refusal(self) -> str:
        """Why the fit must not be used, empty where it may."""
        largest = self.ndf + CHI2_WIDTHS * np.sqrt(2 * self.ndf)
        if not np.isfinite(self.chi2) or self.chi2 > largest:
            return f"chi-square {self.chi2:.0f} for {self.ndf} degrees: the simulation does not describe the data"
        far = int(np.abs(self.scales).argmax())
        if abs(self.scales[far]) > LARGEST_SCALE:
            return f"the {SCALES[far]} scale is {self.scales[far]:+.1f} of its stated widths away from the simulation's"
        return ""

    def covariance(self, *, simulation: bool = True, scales: bool = True) -> np.ndarray:
        """Return the covariance (P, P) of the parameters; 0 for those that are held."""
        information = self.likelihood.information(self.parameters, simulation=simulation)
        free = self.likelihood.free()
        if not scales:
            free[self.likelihood.layout.scales] = False
        noise = np.zeros_like(information)
        if simulation and scales:
            part = self.likelihood.layout.scales
            noise[part, part] = self.likelihood.derivative_noise(self.parameters)
        used, result = np.ix_(free, free), np.zeros_like(information)
        scale = np.zeros(len(free), dtype=bool)
        scale[self.likelihood.layout.scales] = True
        result[used] = inverse_without_noise(information[used], noise[used], scale[free])
        return result

    @property
    def tells_scales(self) -> bool:
        """Whether data tell all scales that move events, above the noise of what the response says of them."""
        moving = np.zeros(len(self.parameters), dtype=bool)
        moving[self.likelihood.layout.scales.start + np.array(self.likelihood.response.moving, dtype=int)] = True
        rest = self.likelihood.free() & ~moving
        information = self.likelihood.information(self.parameters)
        both = information[np.ix_(rest, moving)]
        whole = information[np.ix_(moving, moving)] - both.T @ pseudo_inverse(information[np.ix_(rest, rest)]) @ both
        noise = self.likelihood.derivative_noise(self.parameters)
        places = list(self.likelihood.response.moving)
        return bool(told_directions(whole, noise[np.ix_(places, places)])[2].all())

    def p_value(self, seed: int = 3) -> float:
        """Return the probability of a larger chi-square, of counts drawn as the fit expects them.

        Draws are not fitted again: chi-square is compared as if each fitted parameter had made it smaller by one.
        """
        rng = np.random.default_rng(seed)
        likelihood = self.likelihood
        mean = likelihood._soft(likelihood.mean(self.parameters))[0][likelihood.simulated]
        tau = likelihood.tau[likelihood.simulated]
        drawn = rng.poisson(mean * rng.gamma(np.minimum(tau, 1e12), size=(DRAWS, len(tau))) / np.minimum(tau, 1e12))
        chi2 = deviance(drawn, mean, tau).sum(axis=1)
        fitted = int(likelihood.simulated.sum()) - self.ndf
        return float((1 + np.count_nonzero(chi2 >= self.chi2 + fitted)) / (DRAWS + 1))

    def profile(self, name: str, value: float, start: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """Return the cost and the parameters with one parameter held at a value."""
        start = (self.parameters if start is None else start).copy()
        start[self.likelihood.layout.names.index(name)] = value
        return minimise(self.likelihood, start, fixed=(name,))[:2]


def minimise(
    likelihood: FoldedLikelihood, start: np.ndarray, fixed: tuple[str, ...] = ()
) -> tuple[float, np.ndarray, bool]:
    """Minimise with Minuit from one start.

    Returns
    -------
    The cost, the parameters (P,), whether it converged.
    """
    names = likelihood.layout.names
    minuit = Minuit(likelihood.value, np.asarray(start), grad=likelihood.gradient, name=names)
    minuit.errordef, minuit.strategy, minuit.tol = Minuit.LEAST_SQUARES, 0, 0.01
    for name, free in zip(names, likelihood.free(), strict=True):
        minuit.errors[name] = 0.05 if name.startswith("lg_r") else 0.1
        minuit.fixed[name] = not free or name in fixed
        if name == "d":
            minuit.limits[name] = CHANGE_RANGE
        elif name.startswith("lg_r"):
            minuit.limits[name] = KNEE_RANGE
    minuit.migrad()
    return float(minuit.fval or 0.0), np.array(minuit.values), bool(minuit.valid)


@dataclass(frozen=True)
class FoldingProblem:
    """All that a fit is made from; the response can be made anew at other scales."""

    counts: np.ndarray
    respond: Callable[[np.ndarray], FoldedResponse]
    """From scales (3,) to the response there."""
    exposure_m2_sr_s: float
    sharpness: float = SHARPNESS
    priors: Priors = field(default_factory=Priors)
    finite: bool = True

    @cached_property
    def nominal(self) -> FoldedResponse:
        """The response at the simulation's own scales."""
        return self.respond(np.zeros(len(SCALES)))

    @cached_property
    def unit_flux(self) -> float:
        """J0, with which groups of equal heights of one make as many events as were measured."""
        start = FoldedLikelihood(self.counts, self.nominal, self.exposure_m2_sr_s, 1.0, self._layout())
        expected = float(start.mean(start.start()).sum())
        return float(self.counts.sum()) / max(expected, 1e-300)

    def _layout(self, hypothesis: str = "rigidity") -> ParameterLayout:
        return ParameterLayout(hypothesis, self.nominal.cells.groups)

    @property
    def few(self) -> bool:
        """Whether the change of the index needs an expectation."""
        return float(self.counts.sum()) < FEW_EVENTS

    def likelihood(self, response: FoldedResponse, hypothesis: str = "rigidity") -> FoldedLikelihood:
        """Return the likelihood with one response."""
        priors = self.priors
        if self.few and priors.change is None:
            priors = replace(priors, change=(CHANGE, CHANGE_WIDTH))
        return FoldedLikelihood(
            self.counts, response, self.exposure_m2_sr_s, self.unit_flux,
            self._layout(hypothesis), self.sharpness, priors, self.finite,
        )  # fmt: skip

    def fit(self, hypothesis: str = "rigidity") -> FoldedFit:
        """Fit; if the fit is to be refused, again from scales of +-1.5 widths."""
        best = self.fit_from(hypothesis, np.zeros(len(SCALES)))
        for sign in (1.0, -1.0):
            if not best.refusal or not best.likelihood.response.moving:
                break
            start = np.zeros(len(SCALES))
            start[list(best.likelihood.response.moving)] = 1.5 * sign
            best = min(best, self.fit_from(hypothesis, start), key=lambda one: (bool(one.refusal), one.cost))
        return best

    def fit_from(self, hypothesis: str, at: np.ndarray) -> FoldedFit:
        """Fit with the response made at scales (3,) first."""
        likelihood = self.likelihood(self.respond(at) if at.any() else self.nominal, hypothesis)
        knees = (15.35, 15.65, 16.0) if self.few else (15.5, 15.8)
        starts = [likelihood.start(lg) for lg in (knees if likelihood.layout.n_knees else knees[:1])]
        fits = [fit_once(likelihood, start) for start in starts]
        best = min(fits, key=lambda one: one.cost)
        for _ in range(REMAKES):
            away = (best.scales - best.likelihood.response.at)[list(best.likelihood.response.moving)]
            if np.abs(away).max(initial=0.0) < MOVED:
                break
            anew = self.likelihood(self.respond(np.clip(best.scales, -5, 5)), hypothesis)
            best = fit_once(anew, best.parameters)
        return best


def fit_once(likelihood: FoldedLikelihood, start: np.ndarray) -> FoldedFit:
    """Minimise from one start with one response; tau and the moves by scales are made anew in rounds."""
    parameters = np.asarray(start)
    for _ in range(TAU_ROUNDS + 1):
        likelihood.hold(parameters)
        cost, parameters, valid = minimise(likelihood, parameters)
    held = copy(likelihood)  # the next fit makes a tau of its own
    chi2 = float(held.terms(parameters).sum())
    n_fitted = len(held.layout.names) - len(SCALES)
    return FoldedFit(held, parameters, cost, chi2, max(int(held.simulated.sum()) - n_fitted, 1), valid)
