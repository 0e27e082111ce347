"""How often intervals hold: of the knee, with scales free and with those held that data do not tell; of ln A's moments.

``python -m benchmarks.physics.knees --store`` draws skies of showers that the analysis's simulation does not hold, with
all three scales drawn, and fits each; with ``--masses`` only mean and variance of ln A are looked at. Experiments are
kept in ``WORK/knees-EVENTS.jsonl``: started again, the benchmark goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.physics.closure import (
    AGAIN_SEED,
    BINS,
    PAIRS_SEED,
    SKY,
    ZENITH_MAX_DEG,
    closure_parser,
    trained,
)
from benchmarks.physics.pairs import PairedTruth, paired_pool
from benchmarks.physics.pseudo_experiments import lg_knee, mass_counts, mean_fluxes
from benchmarks.shared.experiments import Experiments
from benchmarks.shared.results import store
from showerstack.analysis.events import open_run
from showerstack.analysis.spectra.fluxes import free_fluxes
from showerstack.analysis.spectra.folding import make_response
from showerstack.analysis.spectra.knees import HeldScales, profile_knee
from showerstack.analysis.spectra.likelihood import INDEX_WIDTH, FoldingProblem, Priors
from showerstack.analysis.spectra.reading import Response, read_response
from showerstack.analysis.spectra.run import EDGES
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS
from showerstack.showers.schema import COMPOSITION

WAYS = ("free", "held")


def experiment(truth: PairedTruth, seed: int, events: int, *, masses: bool = False) -> dict[str, Any]:
    """Return how far above its minimum the profile is at the true knee, and where that minimum is, both ways.

    With ``masses``: how often one and 1.96 errors of mean and variance of ln A hold, without the knee.
    """
    rng = np.random.default_rng((seed + AGAIN_SEED, 5))
    mean = truth.expected(SKY, rng.normal(size=3))
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng, 1.0)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, 5))
    problem = FoldingProblem(
        counts, lambda at: make_response(simulated, truth.cells, thrown, at), exposure, SKY.sharpness, priors
    )
    free = problem.fit()
    if masses:
        edges = np.array(EDGES)
        fluxes = free_fluxes(free, edges)
        covariance = np.asarray(sum(fluxes.covariance.values()))
        return {"seed": seed, **mass_counts(fluxes.flux, mean_fluxes(SKY, edges), covariance)}
    held = HeldScales.of(problem, free)
    result: dict[str, Any] = {"seed": seed, "is_held": bool(held.moved)}
    for way, (_, (grid, profile)) in zip(WAYS, (profile_knee(free, 0), held.profile(held.fit, 0)), strict=True):
        result[f"off_{way}"] = float(grid[profile.argmin()]) - lg_knee(SKY)
        result[f"above_{way}"] = float(np.interp(lg_knee(SKY), grid, profile, left=1e6, right=1e6))
    return result


def table(done: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Return coverage with its binomial errors, by size of the sky and way."""
    rows = ["| events | skies | scales | 68 % hold, % | 95 % hold, % | rms of lg R | held in, % |", "|" + "---|" * 7]
    for events, skies in done.items():
        for way in WAYS:
            above = np.array([one[f"above_{way}"] for one in skies])
            shares = [float((above < level).mean()) for level in CHI_SQUARE_LEVELS]
            holds = [f"{100 * p:.0f} ± {100 * (p * (1 - p) / len(skies)) ** 0.5:.0f}" for p in shares]
            rms = np.std([one[f"off_{way}"] for one in skies])
            held = 100 * np.mean([one["is_held"] for one in skies]) if way == "held" else 0
            rows.append(f"| {events:,} | {len(skies)} | {way} | {holds[0]} | {holds[1]} | {rms:.3f} | {held:.0f} |")
    return rows


def table_of_masses(done: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Return coverage, mean and width of pulls over all bins, by size of the sky and moment; errors over skies."""
    rows = ["| events | skies | of ln A | 68 % hold, % | 95 % hold, % | mean pull | rms pull |", "|" + "---|" * 7]
    for events, skies in done.items():
        for name in ("mean", "variance"):
            counts = [one[f"{name}_ln_a" if name == "mean" else f"{name}_of_ln_a"] for one in skies]
            cells = []
            for key, digits, factor in (("in68", 0, 100), ("in95", 0, 100), ("pull", 2, 1)):
                each = factor * np.array([one[key] / one["n"] for one in counts])
                cells.append(f"{each.mean():.{digits}f} ± {each.std(ddof=1) / len(each) ** 0.5:.{digits}f}")
            width = np.mean([one["pull2"] / one["n"] for one in counts]) ** 0.5
            rows.append(f"| {events:,} | {len(skies)} | {name} | {' | '.join(cells)} | {width:.2f} |")
    return rows


def main() -> None:
    """Do what is missing, as long as there is time, and print the table."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[6_000, 60_000, 10**6], help="events of skies")
    parser.add_argument("--skies", type=int, default=200, help="of each size")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first")
    parser.add_argument("--pairs", type=int, default=50_000, help="showers of the pool that is simulated five times")
    parser.add_argument("--masses", action="store_true", help="mean and variance of ln A instead of the knee")
    given = parser.parse_args()

    def read(folder: Path) -> Response:
        run = open_run(trained(COMPOSITION, given)[0], COMPOSITION.name, "knees")
        return read_response(run, [folder], [], BINS, ZENITH_MAX_DEG, Context(bars=bar), moved=False)

    truth = PairedTruth.of_pool(paired_pool(given.work, read, given.pairs, PAIRS_SEED, given.workers), BINS)
    kind, wanted = "masses" if given.masses else "knees", range(given.first, given.first + given.skies)
    kept = {events: Experiments(given.work / f"{kind}-{events}.jsonl", given.minutes) for events in given.sizes}
    for events, skies in kept.items():
        for one in skies.each({"seed": seed} for seed in wanted):
            skies.keep(experiment(truth, one["seed"], events, masses=given.masses))
    done = {events: skies.done for events, skies in kept.items()}
    rows = table_of_masses(done) if given.masses else table(done)
    print("\n".join(rows))
    if given.store:
        words = "Skies of showers simulated again, all scales drawn; ± one standard error.\n\n"
        of = "mean and variance of ln A" if given.masses else "the knee"
        store(kind, f"How often intervals of {of} hold", words + "\n".join(rows))


if __name__ == "__main__":
    main()
