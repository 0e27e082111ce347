"""Why fluxes were covered too little where scales are fitted: the noise of derivatives by scales.

``python benchmarks/physics/derivative_noise.py --work bench/closure`` draws skies with energy, muon and electron scales
as ``closure.py`` does, with the same seeds and from the same showers, and prints what the errors of fluxes cover

* as they are, the noise of derivatives taken out of the information
  (:func:`analysis.spectra.likelihood.inverse_without_noise`),
* with that noise left in, as before,
* with derivatives from the truth, which have no noise, and the noise left in (of a few skies: they take longer).
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


def one_sky(truth: SmoothTruth, true: np.ndarray, seed: int, events: int, *, exact: bool) -> dict[str, np.ndarray]:
    """Draw a sky and return pulls by what errors and derivatives are."""
    rng = np.random.default_rng((seed + DRAWN_SEED, 5))
    mean = truth.expected(SKY, rng.normal(size=3))
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, 5))

    def respond(at: np.ndarray) -> FoldedResponse:
        return make_response(simulated, truth.cells, thrown, at)

    def respond_exactly(at: np.ndarray) -> FoldedResponse:
        own = vars(replace(respond(at), halves=()))
        return ExactDerivatives(**own, other=make_response(truth.copies, truth.cells, truth.thrown, at))

    fit = FoldingProblem(counts, respond, exposure, SKY.sharpness, priors).fit()
    result = {"as they are": pulls(fit, true), "noise left in": pulls(without_noise_known(fit), true)}
    if exact:
        fit = FoldingProblem(counts, respond_exactly, exposure, SKY.sharpness, priors).fit()
        result["derivatives from the truth"] = pulls(fit, true)
    return result


def main() -> None:
    """Print a line for each number of events and kind of errors."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--skies", type=int, default=40)
    parser.add_argument("--exact", type=int, default=10, help="skies with derivatives from the truth, too")
    given = parser.parse_args()
    truth, true = composition_truth(given).truth, mean_fluxes(SKY, np.array(EDGES))
    for events in given.events:
        skies = [one_sky(truth, true, seed, events, exact=seed < given.exact) for seed in range(given.skies)]
        for name in ("as they are", "noise left in", "derivatives from the truth"):
            pull = np.array([one[name] for one in skies if name in one])
            if len(pull) > 1:
                words = [_interval(100 * (np.abs(pull) < z).mean(axis=(1, 2))) for z in (Z68, Z95)]
                width = np.sqrt((pull**2).mean())
                print(
                    f"{events:,} events, {len(pull)} skies, {name}: fluxes within 68 % {words[0]}, 95 % {words[1]}, "
                    f"width of pulls {width:.2f}",
                    flush=True,
                )


def _interval(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {Z95 * values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    main()
