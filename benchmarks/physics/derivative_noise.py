"""What makes fluxes and scales be covered too little where scales are fitted: three causes, on the same skies.

``python benchmarks/physics/derivative_noise.py --work bench/closure`` prints first, for degrees of the polynomials by
which derivatives by scales are smoothed over energy, how much of the information on the scales the smoothing loses
(with an infinite simulation) and how much the noise of a simulation pretends; along the three directions in which the
scales are known worst to best beside free fluxes. Then it draws skies with energy, muon and electron scales as
``closure.py`` does, with the same seeds and from the same showers, and prints what errors cover

* as they are,
* with the noise of derivatives left in the information,
* with derivatives smoothed by polynomials of degree 3, as before,
* with energies rounded to float16, as they are stored (of ``--rounded`` skies).

Beside it stand the pulls of the scales: their root mean square, and what their median size says of the width, which
does not know the tails.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from benchmarks.physics.closure import BINS, DRAWN_SEED, SKY, closure_parser, composition_truth
from benchmarks.physics.pseudo_experiments import Z68, Z95, SmoothTruth, mean_fluxes
from showerstack.analysis.spectra.fluxes import MARGIN_WIDTH, free_fluxes
from showerstack.analysis.spectra.folding import CURVATURE_DEGREE, ENERGY_DEGREE, STEP, FoldedResponse, make_response
from showerstack.analysis.spectra.likelihood import INDEX_WIDTH, FoldedFit, FoldingProblem, Priors
from showerstack.analysis.spectra.run import EDGES

AS_THEY_ARE, NOISE_LEFT_IN = "as they are", "noise of derivatives left in"
FEW_DEGREES, ROUNDED = "derivatives of degree 3", "energies rounded to float16"
EARLIER_DEGREE = 3
MEDIAN_OF_NORMAL = 0.6745
"""Median size of a standard normal number."""


class FewDegrees(FoldedResponse):
    """A response whose derivatives are smoothed by polynomials of the earlier degree."""

    def _smooth(self, values: np.ndarray, events: np.ndarray, degree: int) -> np.ndarray:
        return super()._smooth(values, events, min(degree, EARLIER_DEGREE))

    @classmethod
    def of(cls, response: FoldedResponse) -> FewDegrees:
        """Return a response, and its halves, with other polynomials."""
        return cls(**vars(response) | {"halves": tuple(cls(**vars(half)) for half in response.halves)})


def without_noise_known(fit: FoldedFit) -> FoldedFit:
    """Return a fit whose errors know nothing of the noise of derivatives."""
    likelihood = copy(fit.likelihood)
    likelihood.response = replace(likelihood.response, halves=())
    return replace(fit, likelihood=likelihood)


def pulls(fit: FoldedFit, true: np.ndarray) -> np.ndarray:
    """Return (J, K)."""
    fluxes = free_fluxes(fit, np.array(EDGES))
    return np.asarray((fluxes.flux - true) / np.sqrt(np.diag(sum(fluxes.covariance.values()))).reshape(true.shape))


def scale_pulls(fit: FoldedFit, scales: np.ndarray) -> np.ndarray:
    """Return (3,)."""
    part = fit.likelihood.layout.scales
    return np.asarray((fit.scales - scales) / np.sqrt(np.diag(fit.covariance())[part]))


Pulls = tuple[np.ndarray, np.ndarray]
"""(J, K) of fluxes, (3,) of scales."""


def one_sky(truth: SmoothTruth, true: np.ndarray, seed: int, events: int) -> dict[str, Pulls]:
    """Draw a sky and return pulls by what derivatives and errors are."""
    rng = np.random.default_rng((seed + DRAWN_SEED, 5))
    scales = rng.normal(size=3)
    mean = truth.expected(SKY, scales)
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, 5))

    def respond(at: np.ndarray) -> FoldedResponse:
        return make_response(simulated, truth.cells, thrown, at)

    problem = FoldingProblem(counts, respond, exposure, SKY.sharpness, priors)
    fit = problem.fit()
    fits = {
        AS_THEY_ARE: fit,
        NOISE_LEFT_IN: without_noise_known(fit),
        FEW_DEGREES: replace(problem, respond=lambda at: FewDegrees.of(respond(at))).fit(),
    }
    return {name: (pulls(one, true), scale_pulls(one, scales)) for name, one in fits.items()}


def print_degrees(truth: SmoothTruth, events: int, simulations: int = 6) -> None:
    """Print what derivatives smoothed by polynomials lose and pretend, in information on the scales."""
    phi = truth.particles(SKY) * events / float(truth.expected(SKY, np.zeros(3)).sum())
    whole = make_response(truth.copies, truth.cells, truth.thrown)
    expected = np.einsum("kct,kt->kc", whole.probability, phi)
    mean = expected.sum(axis=0)
    weight = 1 / (mean + 9 * np.einsum("kct,kt->c", whole.variance, phi**2))
    wide = np.searchsorted(EDGES, (BINS.fine[1:] + BINS.fine[:-1]) / 2, side="right")
    flux = np.concatenate(
        [np.einsum("kct,kt->kc", whole.probability, phi * (wide == j)) for j in range(len(EDGES) + 1)]
    )
    margins = np.zeros(len(flux))
    margins[:5] = margins[-5:] = MARGIN_WIDTH**-2
    inner = np.linalg.inv((flux * weight) @ flux.T + np.diag(margins + 1e-9))

    def raw(response: FoldedResponse) -> tuple[np.ndarray, np.ndarray]:
        """Return derivatives (3, K, C) of ln f as they are counted, and events (K, C)."""
        part = np.divide(phi, response.thrown, out=np.zeros_like(phi), where=response.thrown > 0)
        accepted = response.accepted.sum(axis=2)
        half = 0.5 * part.max(axis=1, keepdims=True)
        up, down = (
            np.log(np.stack([np.einsum("kct,kt->kc", response.moved[sign * j,], part) for j in (1, 2, 3)]) + half)
            for sign in (1, -1)
        )
        return (up - down) / (2 * STEP), accepted

    def projected(columns: np.ndarray) -> np.ndarray:
        both = (flux * weight) @ columns.T
        return np.asarray((columns * weight) @ columns.T - both.T @ inner @ both)

    exact, many = raw(whole)
    counted = np.einsum("zkc,kc->zc", exact, expected)
    size, axes = np.linalg.eigh(projected(counted))
    print(f"{events:,} events: information on the scales {_words(size)}")
    drawn = []
    for seed in range(simulations):
        simulated, thrown = truth.simulation(np.random.default_rng((seed, 77)))
        drawn.append(raw(make_response(simulated, truth.cells, thrown)))
    for degree in (3, 4, 5, 6, 7, 8, 10, BINS.n_bins - 1):
        smooth = np.stack([whole._smooth(one, many / 9, degree) for one in exact])
        lost = projected(np.einsum("zkc,kc->zc", smooth, expected) - counted)
        noise = np.zeros((3, 3))
        for one, number in drawn:
            away = np.stack([whole._smooth(each, number, degree) for each in one]) - smooth
            columns = np.einsum("zkc,kc->zc", away, expected)
            noise += (columns * weight) @ columns.T / simulations
        values = [np.diag(axes.T @ matrix @ axes) for matrix in (lost, noise)]
        print(f"degree {degree}: lost {_words(values[0])}, pretended {_words(values[1])}", flush=True)


def _words(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def main() -> None:
    """Print both."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--skies", type=int, default=40)
    parser.add_argument("--rounded", type=int, default=20, help="skies with rounded energies, too")
    given = parser.parse_args()
    made, true = composition_truth(given), mean_fluxes(SKY, np.array(EDGES))
    print(f"degree in use: {ENERGY_DEGREE}, of second derivatives {CURVATURE_DEGREE}")
    print_degrees(made.truth, max(given.events))
    for events in given.events:
        skies = [one_sky(made.truth, true, seed, events) for seed in range(given.skies)]
        for name in (AS_THEY_ARE, NOISE_LEFT_IN, FEW_DEGREES):
            print_pulls(events, name, [one[name] for one in skies])
        if given.rounded:
            short = made.pool.lg_energy.astype(np.float16).astype(np.float64)
            rounded = SmoothTruth.of(replace(made.pool, lg_energy=short), made.thrown, BINS)
            several = [one_sky(rounded, true, seed, events) for seed in range(given.rounded)]
            print_pulls(events, ROUNDED, [one[AS_THEY_ARE] for one in several])
            print_pulls(events, f"{ROUNDED}, {FEW_DEGREES}", [one[FEW_DEGREES] for one in several])


def print_pulls(events: int, name: str, every: list[Pulls]) -> None:
    """Print a line on the pulls of several skies, if there are."""
    if len(every) < 2:
        return
    flux, scales = (np.array([one[k] for one in every]) for k in (0, 1))
    words = [_interval(100 * (np.abs(flux) < z).mean(axis=(1, 2))) for z in (Z68, Z95)]
    draws = np.random.default_rng(1).integers(0, len(every), (1000, len(every)))
    shown = []
    for width in (lambda p: np.sqrt((p**2).mean()), lambda p: np.median(np.abs(p)) / MEDIAN_OF_NORMAL):
        low, high = np.quantile([width(scales[rows]) for rows in draws], (0.025, 0.975))
        shown.append(f"{width(scales):.2f} [{low:.2f}, {high:.2f}]")
    print(
        f"{events:,} events, {len(every)} skies, {name}: fluxes within 68 % {words[0]}, 95 % {words[1]}, "
        f"width of pulls {np.sqrt((flux**2).mean()):.2f}; "
        f"pulls of the scales: rms {shown[0]}, by their median {shown[1]}",
        flush=True,
    )


def _interval(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {Z95 * values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    main()
