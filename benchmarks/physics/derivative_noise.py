"""How well fluxes and scales are covered where scales are fitted, and what the noise of derivatives has to do with it.

``python benchmarks/physics/derivative_noise.py --work bench/closure`` draws skies with energy, muon and electron scales
as ``closure.py`` does, with the same seeds and from the same showers, and prints what the errors of fluxes cover

* as they are, the noise of derivatives taken out of the information
  (:func:`analysis.spectra.likelihood.inverse_without_noise`),
* with that noise left in, as before,
* with derivatives from the truth, which have no noise, and the noise left in (of a few skies: they take longer),
* of the fit of lowest -2 ln L among five that start at the first fit's scales and at one and two widths from them, up
  and down the direction that is known worst (of ``--starts`` skies).

Beside it stand the pulls of the scales: their root mean square, and what their median size says of the width, which
does not know the tails.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from analysis.spectra.fluxes import free_fluxes
from analysis.spectra.folding import FoldedResponse, Moves, make_response
from analysis.spectra.likelihood import INDEX_WIDTH, FoldedFit, FoldingProblem, Priors
from analysis.spectra.run import EDGES
from benchmarks.physics.closure import DRAWN_SEED, SKY, closure_parser, composition_truth
from benchmarks.physics.pseudo_experiments import Z68, Z95, SmoothTruth, mean_fluxes

AS_THEY_ARE, NOISE_LEFT_IN, FROM_THE_TRUTH = "as they are", "noise left in", "derivatives from the truth"
LOWEST = "lowest of five starts"


MEDIAN_OF_NORMAL = 0.6745
"""Median size of a standard normal number."""


@dataclass(frozen=True)
class ExactDerivatives(FoldedResponse):
    """A response that moves as another one does."""

    other: FoldedResponse | None = None

    def moves(self, particles: np.ndarray) -> Moves:
        """Return the other's."""
        assert self.other is not None
        return self.other.moves(particles)


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


def lowest(problem: FoldingProblem, fit: FoldedFit) -> FoldedFit:
    """Return the fit of lowest -2 ln L among one and four that start from other scales."""
    part = fit.likelihood.layout.scales
    worst = np.linalg.eigh(fit.covariance()[part, part])[1][:, -1]
    others = [problem.fit_from("rigidity", np.clip(fit.scales + step * worst, -4, 4)) for step in (1, -1, 2, -2)]
    return min(fit, *others, key=lambda one: one.cost)


Pulls = tuple[np.ndarray, np.ndarray]
"""(J, K) of fluxes, (3,) of scales."""


def one_sky(
    truth: SmoothTruth, true: np.ndarray, seed: int, events: int, *, exact: bool, starts: bool
) -> dict[str, Pulls]:
    """Draw a sky and return pulls by what errors and derivatives are."""
    rng = np.random.default_rng((seed + DRAWN_SEED, 5))
    scales = rng.normal(size=3)
    mean = truth.expected(SKY, scales)
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, 5))

    def respond(at: np.ndarray) -> FoldedResponse:
        return make_response(simulated, truth.cells, thrown, at)

    def respond_exactly(at: np.ndarray) -> FoldedResponse:
        own = vars(replace(respond(at), halves=()))
        return ExactDerivatives(**own, other=make_response(truth.copies, truth.cells, truth.thrown, at))

    problem = FoldingProblem(counts, respond, exposure, SKY.sharpness, priors)
    fit = problem.fit()
    fits = {AS_THEY_ARE: fit, NOISE_LEFT_IN: without_noise_known(fit)}
    if exact:
        fits[FROM_THE_TRUTH] = replace(problem, respond=respond_exactly).fit()
    if starts:
        fits[LOWEST] = lowest(problem, fit)
    return {name: (pulls(one, true), scale_pulls(one, scales)) for name, one in fits.items()}


def main() -> None:
    """Print a line for each number of events and kind of errors."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--skies", type=int, default=40)
    parser.add_argument("--exact", type=int, default=10, help="skies with derivatives from the truth, too")
    parser.add_argument("--starts", type=int, default=20, help="skies with five starts")
    given = parser.parse_args()
    truth, true = composition_truth(given).truth, mean_fluxes(SKY, np.array(EDGES))
    for events in given.events:
        skies = [
            one_sky(truth, true, seed, events, exact=seed < given.exact, starts=seed < given.starts)
            for seed in range(given.skies)
        ]
        for name in (AS_THEY_ARE, NOISE_LEFT_IN, FROM_THE_TRUTH, LOWEST):
            print_pulls(events, name, [one[name] for one in skies if name in one])
        print_pulls(
            events, f"{AS_THEY_ARE}, the skies of five starts", [one[AS_THEY_ARE] for one in skies if LOWEST in one]
        )


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
