"""Fluxes by folding beside those of pyunfold, an iterative Bayesian unfolding, on the same toys.

``python -m benchmarks.physics.unfolding --work bench/closure`` draws skies from the showers of ``closure.py`` (scales
exact, the simulation drawn anew for each) and gives both methods the same counts and the same simulated events: protons
alone in bins of energy, and five groups in bins of energy and of the summary of posteriors, whose groups are stacked as
causes. It prints bias, scatter and what stated errors cover of the fluxes in the wide bins of true energy, with 95 %
intervals over skies.

Causes of one group are .1 wide in lg E, added up to the wide bins; of five groups they are the wide bins themselves,
for pyunfold's memory grows as the square of causes times cells. The response inside a cause and the start are those of
E^-2.7, all groups alike. pyunfold stops by its own rule (Kolmogorov and Smirnov, .01), or at .0001 or after 100
iterations. Its errors are those of counts and of finite simulation.
``pip install --constraint constraints.txt pyunfold``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from benchmarks.physics.closure import SKY, closure_parser, composition_truth
from benchmarks.physics.pseudo_experiments import Z68, Z95, SmoothTruth, mean_fluxes
from showerstack.analysis.spectra.fluxes import free_fluxes
from showerstack.analysis.spectra.folding import FoldedResponse, make_response
from showerstack.analysis.spectra.likelihood import INDEX_WIDTH, FoldingProblem, Priors
from showerstack.analysis.spectra.run import EDGES
from showerstack.runtime.errors import InputError

try:
    from pyunfold.mix import Mixer
    from pyunfold.teststat import get_ts
except ImportError:
    raise InputError("pyunfold is not installed: pip install --constraint constraints.txt pyunfold") from None

WIDE = np.array([14.5, 14.9, *EDGES, 18.0])
NARROW = np.array([*np.arange(145, 172) / 10, 18.0])
"""Borders of the causes, lg(E/eV)."""
INDEX = 2.7
STOPS = {"pyunfold, its own stop": 0.01, "pyunfold, stopped at .0001": 0.0001}
MOST_ITERATIONS = 100
OURS = "folded (ours)"


@dataclass(frozen=True)
class Causes:
    """Probabilities (C, K J) of cells by causes, efficiencies (K J,) and their errors, and the prior (K J,)."""

    response: np.ndarray
    efficiency: np.ndarray
    error: np.ndarray
    prior: np.ndarray

    @classmethod
    def of(cls, response: FoldedResponse, borders: np.ndarray) -> Causes:
        """Weight simulated events inside causes to the spectrum; groups are stacked."""
        fine = response.cells.bins.fine
        middle = (fine[1:] + fine[:-1]) / 2
        spectrum = 10.0 ** ((1 - INDEX) * (middle - 15)) * np.diff(fine)
        columns, errors, prior = [], [], []
        for probability, variance in zip(response.probability, response.variance, strict=True):
            for low, high in pairwise(borders):
                weight = np.where((middle > low) & (middle < high), spectrum, 0.0)
                columns.append(probability @ weight / weight.sum())
                errors.append(np.sqrt(variance.sum(axis=0) @ weight**2) / weight.sum())
                prior.append(weight.sum())
        matrix = np.array(columns).T
        return cls(matrix, matrix.sum(axis=0), np.array(errors), np.array(prior) / np.sum(prior))


def unfolded(counts: np.ndarray, causes: Causes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by stopping rule counts (K J,) of causes by pyunfold and their covariance."""
    mixer = Mixer(
        data=counts, data_err=np.sqrt(counts), efficiencies=causes.efficiency, efficiencies_err=causes.error,
        response=causes.response, response_err=np.zeros_like(causes.response), cov_type="multinomial",
    )  # fmt: skip
    rules = {name: get_ts("ks")(tol=stop, num_causes=len(causes.prior)) for name, stop in STOPS.items()}
    values, done, result = counts.sum() * causes.prior, 0, {}
    while len(result) < len(rules):
        before, values, done = values, mixer.smear(values), done + 1
        for name, rule in rules.items():
            rule.calc(values, before)
            if name not in result and (rule.pass_tol() or done == MOST_ITERATIONS):
                result[name] = values, mixer.get_cov()
    return result


def first_groups(truth: SmoothTruth, groups: int) -> tuple[SmoothTruth, np.ndarray]:
    """Return the truth of the first groups alone, one group in bins of energy alone, and expected counts (C,)."""
    copies = truth.copies.take(truth.copies.labels < groups)
    cells = truth.cells if groups > 1 else replace(truth.cells, borders=np.array([]))
    part = SmoothTruth(cells, copies, truth.thrown[:groups])
    response = make_response(copies, cells, part.thrown, scales=False)
    return part, np.einsum("kct,kt->c", response.probability, truth.particles(SKY)[:groups])


def one_sky(truth: SmoothTruth, mean: np.ndarray, seed: int, events: int) -> dict[str, np.ndarray]:
    """Return by method (2, J, K): fluxes over the true ones, and their errors over the true ones."""
    rng = np.random.default_rng((seed, 8))
    cells, groups = truth.cells, len(truth.thrown)
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, groups))
    problem = FoldingProblem(
        counts, lambda at: make_response(simulated, cells, thrown, at, scales=False), exposure, SKY.sharpness, priors
    )
    true = mean_fluxes(SKY, np.array(EDGES))[:, :groups]
    fluxes = free_fluxes(problem.fit(), np.array(EDGES))
    error = np.sqrt(np.diag(sum(fluxes.covariance.values()))).reshape(true.shape)
    result = {OURS: np.stack([fluxes.flux, error]) / true}
    borders = WIDE if groups > 1 else NARROW
    low, edges = borders[:-1] + 1e-9, np.array(EDGES)
    inside = ((low > edges[:-1, None]) & (low < edges[1:, None])) / (exposure * np.diff(10.0**edges))[:, None]
    for name, (values, covariance) in unfolded(counts, Causes.of(problem.nominal, borders)).items():
        flux = inside @ values.reshape(groups, -1).T
        variance = covariance.reshape(groups, len(low), groups, len(low))
        error = np.sqrt(np.einsum("jt,ktku,ju->jk", inside, variance, inside))
        result[name] = np.stack([flux, error]) / true
    return result


def main() -> None:
    """Print a line for each sky and method."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--skies", type=int, default=200, help="of protons")
    parser.add_argument("--stacked", type=int, default=100, help="skies of five groups, 5 s each")
    parser.set_defaults(events=[100_000])
    given = parser.parse_args()
    truth = composition_truth(given).truth
    for groups, sky, number in ((1, "protons", given.skies), (5, "five groups", given.stacked)):
        part, mean = first_groups(truth, groups)
        for events in given.events:
            skies = [one_sky(part, mean, seed, events) for seed in range(number)]
            for name in (OURS, *STOPS):
                print(f"{sky}, {events:,} events, {number} skies, {name}: {words(skies, name)}", flush=True)


def words(skies: list[dict[str, np.ndarray]], name: str) -> str:
    """Return bias, scatter and coverage of one method."""
    value, error = (np.array([one[name][k] for one in skies]) for k in (0, 1))
    away = value - 1
    size = np.abs(away.mean(axis=0))
    scatter = away.std(axis=0, ddof=1)
    chance = scatter * np.sqrt(2 / np.pi / len(skies))
    draws = np.random.default_rng(1).integers(0, len(skies), (1000, len(skies)))
    rms = np.quantile([np.sqrt((away[rows] ** 2).mean(axis=0)).mean() for rows in draws], (0.025, 0.975))
    covers = [_interval(100 * (np.abs(away / error) < z).mean(axis=(1, 2))) for z in (Z68, Z95)]
    distance = np.sqrt((away**2).mean(axis=0)).mean()
    return (
        f"bias (mean of its size over bins) {100 * size.mean():.2f} % (by chance alone {100 * chance.mean():.2f}), "
        f"worst bin {100 * size.max():.1f} %, distance from the truth (rms) {100 * distance:.2f} "
        f"[{100 * rms[0]:.2f}, {100 * rms[1]:.2f}] %, scatter {100 * scatter.mean():.2f} %, "
        f"stated {100 * error.mean():.2f} %, covers 68 %: {covers[0]}, 95 %: {covers[1]}"
    )


def _interval(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {Z95 * values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    main()
