"""Fluxes in wide bins of the true energy without an assumed form, from the counts and the response of a fit.

Factors ``c_kj`` multiply a fit's particles of group k in wide bin j, so that expected counts are linear in them; they
and the scales come by least squares, each cell weighted by the counts that the fit with a form expects there. Weights
by the factors' own expectations end at the maximum of the likelihood, but with some hundred events they run away: cells
of which hardly anything is expected then rule, and neighbouring fluxes become -2 and 3 times the true ones. Energies
below and above the wide bins have factors of their own, expected at that of the bin beside them +- .3: a common factor
of all fluxes, as the energy scale makes it, costs nothing. The energy scale itself is held: a power law has it as such
a factor, and data know nothing of it.

What groups and scales make of counts is itself simulated, and its noise adds to the information: with B as it comes and
N of the noise, estimates are pulled towards zero and stated errors are too small (errors in variables: W. A. Fuller,
Measurement Error Models, 1987; C. Alexe, J. Bendavid, L. Bianchini, D. Bruschini, arXiv:2401.10542). Estimates are
multiplied by ``(B - N)^-1 B``, and have the covariance ``(B - N)^-1 B (B - N)^-1``. Covariances hold all groups and
energies:

==================  ==================================================================================================
source              how
==================  ==================================================================================================
data                Poisson counts, scales and response exact
simulation          what finite simulation adds (the likelihood's tau, and recovered numbers of primaries)
scales              what muon and electron scales add, free within their widths, and the noise of their derivatives; and
                    what one width of the energy scale does to each flux, of which data know nothing
hadronic_model      what is left between the results of each model's response alone, all fitted with the scales, less
                    what the noise of these responses explains, as if nature were one more model (a guess); NaN where
                    there is one model only
exposure            its relative error, common to all fluxes; shares have none
==================  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from showerstack.analysis.spectra.likelihood import LEAST_HEIGHT, LEAST_OVER_NOISE, FoldedFit, pseudo_inverse
from showerstack.showers.kascade import LN_MASSES

STEPS = 6
"""Steps of the least squares, in which the scales' effect is linear."""
MARGIN_WIDTH = 0.3
LEAST_KNOWN = 0.2
"""Noise never takes more than all but this part of the information on any combination."""
SOURCES = ("data", "simulation", "scales", "hadronic_model", "exposure")
STATISTICAL = ("data", "simulation")


@dataclass(frozen=True)
class JointFit:
    """Factors and scales together, as they were fitted: P numbers, of which those of fluxes are ``inner``."""

    information: np.ndarray
    """(P, P) inverse covariance without what noise pretends."""
    prior: np.ndarray
    """(P, P) inverse covariance before data."""
    covariance: np.ndarray
    """(P, P)."""
    inner: slice
    unit: np.ndarray
    """(J, K) fluxes of factors of one."""
    active: np.ndarray
    """Numbers of the free scales that move events, which are the last of the P."""


@dataclass(frozen=True)
class FreeFluxes:
    """Fluxes of one response."""

    edges: np.ndarray
    """(J + 1,) lg(E/eV)."""
    flux: np.ndarray
    """(J, K) means over the bins, m^-2 sr^-1 s^-1 eV^-1."""
    covariance: dict[str, np.ndarray]
    """(J K, J K) by source, in the order of ``flux.ravel()``; without the hadronic model's and the exposure's."""
    scales: np.ndarray
    """(3,) in widths; 0 where data tell less of one than is expected of it, or less than twice what noise pretends."""
    events: np.ndarray
    """(J, K) measured events that come from each group and true energy."""
    simulated: np.ndarray
    """(J, K) accepted simulated events behind them."""
    per_width: np.ndarray
    """(3, J, K) change of the fluxes where a scale is held one width higher than it was fitted; 0 of exact scales."""
    scale_errors: np.ndarray
    """(3,) standard deviations of the scales after the fit, in widths; 0 of exact scales."""
    joint: JointFit
    of_response: np.ndarray
    """(J K, J K) covariance of results from the same counts with other responses of as many simulated events, scales
    free."""

    @property
    def free_scales(self) -> tuple[int, ...]:
        """Numbers of the scales that are not exact."""
        return tuple(np.flatnonzero(self.scale_errors > 0).tolist())


def free_fluxes(fit: FoldedFit, edges: np.ndarray, changes: Sequence[np.ndarray] = ()) -> FreeFluxes:
    """Estimate fluxes in bins of the true energy.

    Parameters
    ----------
    fit
        A fit, whose response, fluxes and tau are taken.
    edges
        (J + 1,) lg(E/eV), a subset of the borders of the fine bins.
    changes
        (K, T) each: what one standard deviation of each source of error changes in the thrown primaries.
    """
    likelihood, layout = fit.likelihood, fit.likelihood.layout
    n_wide, n_groups = len(edges) + 1, layout.n_groups
    heights = np.maximum(fit.parameters[layout.heights], LEAST_HEIGHT)
    active = np.array(likelihood.response.moving, dtype=int)
    n = n_wide * n_groups
    prior = margin_prior(n_wide, n_groups, len(active))
    factors, scales = np.ones((n_wide, n_groups)), fit.scales.copy()
    inside = wide_bins(likelihood.lg_energy, edges)
    phi = likelihood.particles(fit.parameters, heights)
    parts = folded(phi, inside, likelihood.probability)
    mean = np.maximum(likelihood.mean(np.concatenate([heights, fit.parameters[n_groups:]])), likelihood.floor)
    weight = likelihood.simulated / (mean + mean**2 / likelihood.tau)
    for _ in range(STEPS):
        f, by_scale = likelihood.moves.factors(scales - likelihood.response.at)
        design = (f * parts).reshape(n, -1)
        moved = np.einsum("jkc,wk,wkc->jc", by_scale[active], factors, f * parts)
        columns = np.concatenate([design, moved])
        target = likelihood.counts + scales[active] @ moved
        matrix = (columns * weight) @ columns.T + prior
        solved = np.linalg.solve(matrix, columns @ (weight * target))
        factors = solved[:n].reshape(n_wide, n_groups)
        scales[active] = np.clip(solved[n:], -5, 5)
    spread = folded(phi**2, inside, likelihood.variance)
    finite = float(likelihood.finite)
    of_simulation = mean**2 / likelihood.tau
    of_moves = np.einsum(
        "sjkc,kc->sjc", likelihood.response.noise(phi)[:, active], np.einsum("wk,wkc->kc", factors, f * parts)
    )
    inverse = {}
    for name, used, extra in (
        ("data", design, 0.0), ("simulation", design, of_simulation), ("scales", columns, of_simulation)
    ):  # fmt: skip
        weight, m = likelihood.simulated / (mean + extra), len(used)
        information = (used * weight) @ used.T + prior[:m, :m]
        noise = np.zeros_like(information)
        if name != "data":
            noise = finite * design_noise(factors, f, by_scale[active], spread, weight)[:m, :m]
        if name == "scales":
            noise[n:, n:] += np.einsum("sjc,c,slc->jl", of_moves, weight, of_moves) / len(of_moves)
        less = without_noise(information, noise, prior[:m, :m])
        inverse_information = np.linalg.inv(less)
        sandwich = inverse_information @ information @ inverse_information
        inverse[name] = sandwich[:n, :n]
    # What the noise of templates pulls towards zero, once: repeated, it runs away where simulation is scarce.
    step = inverse_information @ (information - less)[:, :n] @ factors.ravel()
    factors = factors + step[:n].reshape(n_wide, n_groups)
    scales[active] += step[n:]
    widths = np.diff(10.0**edges)
    sent = (likelihood.particles(fit.parameters, heights, 0.0) @ inside.T).T[1:-1]
    unit = sent / (likelihood.exposure_m2_sr_s * widths[:, None])
    inner = slice(n_groups, n - n_groups)
    scale = np.outer(unit.ravel(), unit.ravel())
    cumulative = {name: scale * matrix[inner, inner] for name, matrix in inverse.items()}
    covariance = {
        "data": cumulative["data"],
        "simulation": added_covariance(cumulative["simulation"], cumulative["data"]),
        "scales": added_covariance(cumulative["scales"], cumulative["simulation"]),
    }
    # A flux is proportional to the primaries behind its simulated events.
    thrown = likelihood.response.thrown
    held = np.maximum((phi @ inside.T).T[1:-1], 1e-300)
    for change in changes:
        relative = phi * np.divide(change, thrown, out=np.zeros_like(thrown), where=thrown > 0)
        moved = (relative @ inside.T).T[1:-1] / held
        error = (factors[1:-1] * unit * moved).ravel()
        covariance["simulation"] += np.outer(error, error)
    events = (factors[:, :, None] * f * parts).sum(axis=2)[1:-1]
    simulated = (likelihood.response.accepted.sum(axis=1) @ inside.T).T[1:-1]
    per_width, scale_errors = np.zeros((3, *unit.shape)), np.zeros(3)
    by_width = -np.linalg.solve(less[:n, :n], less[:n, n:])
    per_width[active] = (by_width.T[:, inner] * unit.ravel()).reshape(len(active), *unit.shape)
    # What data seem to tell of each scale, with and without noise; where noise makes most of it, 0 +- 1 is known.
    seems, tells = (1 / np.diag(np.linalg.inv(one))[n:] - 1.0 for one in (information, less))
    told = np.zeros(3, dtype=bool)
    told[active] = seems >= LEAST_OVER_NOISE * (seems - tells)
    scale_errors[active] = np.sqrt(np.diag(sandwich)[n:])
    told &= scale_errors < 1.0
    scales = np.where(told, scales, 0.0)
    scale_errors[active] = np.where(told, scale_errors, 1.0)[active]
    if likelihood.response.energy_width:
        slope = phi * likelihood.energy_slope(fit.parameters, float(fit.scales[0]))
        per_width[0] = -factors[1:-1] * unit * (slope @ inside.T).T[1:-1] / held
        scale_errors[0] = 1.0
        covariance["scales"] += np.outer(per_width[0].ravel(), per_width[0].ravel())
    joint = JointFit(less, prior, sandwich, inner, unit, active)
    # Scores of the noise of the response: in what is expected, and in the derivatives that weight the counts' noise.
    scores = (columns * weight**2 * of_simulation) @ columns.T
    scores += finite * design_noise(factors, f, by_scale[active], spread, weight**2 * mean)
    of_response = scale * (inverse_information @ scores @ inverse_information)[inner, inner]
    return FreeFluxes(
        edges, factors[1:-1] * unit, covariance, scales, events, simulated, per_width, scale_errors, joint, of_response
    )


def wide_bins(lg_energy: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return which energies (T,) lie below, in each of, and above the wide bins, (J + 2, T) bool."""
    wide = np.searchsorted(edges, lg_energy, side="right")
    return np.asarray(np.arange(len(edges) + 1)[:, None] == wide)


def folded(values: np.ndarray, inside: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return what values (K, T) give in each cell (J', K, C), by wide bins that fine ones are ``inside`` (J', T)."""
    return np.asarray(np.moveaxis(response @ (values[:, :, None] * inside.T), 2, 0))


def undetermined(fit: FoldedFit, edges: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return which shares (J, S) data of this number and this simulation cannot tell, whatever they are.

    Errors of shares are those expected where all groups are equally frequent, as many events as measured in all, with
    scales exact. What the noise of the simulated cells could make as well counts as unknown. A share is undetermined
    where that error is no smaller than the scatter of shares of mixtures drawn at random: with g of K groups in the
    sum, ``sqrt(a (1 - a) / (K + 1))``, a = g / K (Dirichlet's law), 16 % for one of five.

    Parameters
    ----------
    edges
        (J + 1,) lg(E/eV), as in :func:`free_fluxes`.
    sums
        (S, K) of zeros and ones: the groups in each sum.
    """
    likelihood = fit.likelihood
    n_wide, n_groups = len(edges) + 1, likelihood.layout.n_groups
    inside = wide_bins(likelihood.lg_energy, edges)
    phi = likelihood.particles(likelihood.start(), energy=0.0)
    parts, spread = folded(phi, inside, likelihood.probability), folded(phi**2, inside, likelihood.variance)
    ratio = likelihood.counts.sum() / max(float(parts.sum()), 1e-300)
    phi, parts, spread = ratio * phi, ratio * parts, ratio**2 * spread
    design, ones = parts.reshape(n_wide * n_groups, -1), np.ones((n_wide, n_groups))
    mean = np.maximum(design.sum(axis=0), likelihood.floor)
    weight = likelihood.simulated / (mean + spread.sum(axis=(0, 1)))
    prior = margin_prior(n_wide, n_groups, 0)
    information = (design * weight) @ design.T + prior
    noise = design_noise(ones, np.ones_like(parts[0]), np.zeros((0, *parts.shape[1:])), spread, weight)
    covariance = np.linalg.inv(without_noise(information, float(likelihood.finite) * noise, prior, least=1e-6))
    sent = (phi @ inside.T).T[1:-1]
    inner = slice(n_groups, -n_groups)
    of_shares = share_covariance(sent, np.outer(sent, sent) * covariance[inner, inner])
    result = []
    for groups in sums:
        variance = np.diag(covariance_of_sums(of_shares, np.tile(groups, (len(sent), 1))))
        a = groups.mean()
        result.append(variance >= a * (1 - a) / (n_groups + 1))
    return np.array(result).T


def margin_prior(n_wide: int, n_groups: int, n_scales: int) -> np.ndarray:
    """Return the inverse covariance (P, P) of what is expected of factors and scales before data.

    Factors of the margins are expected at those of the wide bins beside them, +- :data:`MARGIN_WIDTH`; scales at 0.
    """
    n = n_wide * n_groups
    prior = np.diag(np.concatenate([np.zeros(n), np.ones(n_scales)]) + 1e-12)
    for margin, beside in ((0, 1), (n_wide - 1, n_wide - 2)):
        for k in range(n_groups):
            both = np.array([margin, beside]) * n_groups + k
            prior[np.ix_(both, both)] += np.array([[1.0, -1.0], [-1.0, 1.0]]) / MARGIN_WIDTH**2
    return prior


def added_covariance(more: np.ndarray, less: np.ndarray) -> np.ndarray:
    """Return what one covariance adds to another; 0 where, by :data:`LEAST_KNOWN`, it would be less than nothing."""
    unit = np.sqrt(np.maximum(np.diag(more), np.diag(less)))
    unit = np.where(unit > 0, unit, 1.0)
    size, axes = np.linalg.eigh((more - less) / np.outer(unit, unit))
    return np.asarray((axes * np.maximum(size, 0.0)) @ axes.T * np.outer(unit, unit))


def design_noise(
    factors: np.ndarray, f: np.ndarray, by_scale: np.ndarray, spread: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return what the noise of a finite simulation adds to the information (P, P) on factors and scales.

    Parameters
    ----------
    factors
        (J', K).
    f, by_scale
        (K, C) of the scales, and (S, K, C) derivatives of its logarithm.
    spread
        (J', K, C) variances of what each group and wide bin is expected to give in each cell.
    weight
        (C,) inverse variances of counts less expectations.
    """
    variance_weight = f**2 * spread * weight
    n, n_scales = factors.size, len(by_scale)
    noise = np.zeros((n + n_scales, n + n_scales))
    noise[np.arange(n), np.arange(n)] = variance_weight.sum(axis=2).ravel()
    both = np.einsum("skc,wkc->swk", by_scale, variance_weight) * factors
    noise[n:, :n] = both.reshape(n_scales, n)
    noise[:n, n:] = noise[n:, :n].T
    noise[n:, n:] = np.einsum(
        "skc,rkc,kc->sr", by_scale, by_scale, np.einsum("wk,wkc->kc", factors**2, variance_weight)
    )
    return noise


def without_noise(
    information: np.ndarray, noise: np.ndarray, prior: np.ndarray, least: float = LEAST_KNOWN
) -> np.ndarray:
    """Return the information (P, P) less its noise, but nowhere less than a part of it or than what is expected.

    ``prior`` (P, P) is the information before data, ``least`` the part.
    """
    unit = np.sqrt(np.diag(information))
    size, axes = np.linalg.eigh(information / np.outer(unit, unit))
    size = np.sqrt(np.maximum(size, 1e-12))
    root, inverse = unit[:, None] * axes * size, (axes / size).T / unit
    size, axes = np.linalg.eigh(inverse @ (information - noise) @ inverse.T)
    columns = inverse.T @ axes
    lowest = np.clip(np.einsum("pi,pq,qi->i", columns, prior, columns), least, 1.0)
    return np.asarray(root @ (axes * np.clip(size, lowest, 1.0)) @ axes.T @ root.T)


def another_model_factor(n: int) -> float:
    """Return by how much the standard deviation of n models' results is to be multiplied for one more model's distance.

    Nature and the models are taken as draws from one normal law, and the result is the models' mean: its distance has
    ``(n + 1) / (n - 1)`` times their variance (of n, not n - 1) in the mean. That they are exchangeable is a guess, and
    so few models tell the law's width badly: one such error holds 50, 58, 61 % of natures with two, three, four models
    (Student's law), and not 68 %. The scales, whose widths are at least the models' spread, hold what models do to
    muon and electron numbers.
    """
    return float(np.sqrt((n + 1) / (n - 1)))


def spread_of_models(values: Sequence[np.ndarray], noise: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Return the covariance that results of several hadronic models make likely (:func:`another_model_factor`).

    Each model's response is simulated, and its noise makes results differ where models do not. With M results of n
    numbers, V the mean of their noise and ``Q = sum_m (x_m - mean)' V^-1 (x_m - mean)``, equal models have
    Q = (M - 1) n in the mean. The spread is taken times ``max(0, 1 - (M - 1) n / Q)``, the part of it that noise does
    not explain (I^2 of J. Higgins, S. Thompson, Stat. Med. 21 (2002) 1539, after R. DerSimonian, N. Laird, Control.
    Clin. Trials 7 (1986) 177; for several numbers D. Jackson, I. White, R. Riley, Stat. Med. 31 (2012) 3805). All
    numbers together tell that part much better than each alone: four models of 20 fluxes have 60 degrees of freedom,
    one flux has three.

    Parameters
    ----------
    values
        M results (n,), or of any shape with n numbers.
    noise
        M covariances (n, n) of what the noise of their own responses makes of them
        (:attr:`FreeFluxes.of_response`); none: as if responses were exact.
    """
    each = np.stack([np.ravel(value) for value in values])
    away = each - each.mean(axis=0)
    spread = another_model_factor(len(each)) ** 2 * np.asarray(away.T @ away / len(each))
    mean = np.mean(noise, axis=0) if len(noise) else np.zeros_like(spread)
    if not mean.any():
        return spread
    unit = np.sqrt(np.diag(mean))
    unit = np.where(unit > 0, unit, 1.0)
    inverse = pseudo_inverse(mean / np.outer(unit, unit)) / np.outer(unit, unit)
    q = float(np.sum(inverse * (away.T @ away)))
    explained = (len(each) - 1) * float(np.sum(inverse * mean))
    return spread * max(0.0, 1.0 - explained / max(q, 1e-300))


def shares(values: np.ndarray) -> np.ndarray:
    """Return shares (J, K) of the sum over groups in each bin."""
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def share_covariance(values: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the covariance of the shares, (J K, J K), by linear propagation.

    Parameters
    ----------
    values
        (J, K) fluxes.
    covariance
        (J K, J K) theirs.
    """
    n_bins, n_groups = values.shape
    jacobian = np.zeros((n_bins * n_groups, n_bins * n_groups))
    for j, share in enumerate(shares(values)):
        of_bin = slice(j * n_groups, (j + 1) * n_groups)
        jacobian[of_bin, of_bin] = (np.eye(n_groups) - share[:, None]) / values[j].sum()
    return np.asarray(jacobian @ covariance @ jacobian.T)


def covariance_of_sums(covariance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the covariance (J, J) of sums over groups, weighted by (J, K)."""
    n_bins, n_groups = weights.shape
    return np.asarray(
        np.einsum("iakb,ia,kb->ik", covariance.reshape(n_bins, n_groups, n_bins, n_groups), weights, weights)
    )


def mean_ln_mass(values: np.ndarray, ln_masses: np.ndarray = LN_MASSES) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean ln A of each bin, (J,), and its derivatives by the fluxes, (J, K), of groups of ln A (K,)."""
    mean = shares(values) @ ln_masses
    return mean, (ln_masses - mean[:, None]) / values.sum(axis=1, keepdims=True)


def variance_of_ln_mass(values: np.ndarray, ln_masses: np.ndarray = LN_MASSES) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance of ln A in each bin, (J,), and its derivatives by the fluxes, (J, K).

    It is that between the groups: nuclei of one group count as alike. Of a pure beam it is 0, of half protons and half
    iron (ln 56 / 2)^2 = 4.05 (Pierre Auger Collaboration, JCAP 02 (2013) 026).
    """
    away = ln_masses - mean_ln_mass(values, ln_masses)[0][:, None]
    variance = np.sum(shares(values) * away**2, axis=1)
    return variance, (away**2 - variance[:, None]) / values.sum(axis=1, keepdims=True)
