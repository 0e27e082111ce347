"""How often do stated intervals, limits and p-values hold? Toys with known truth, a line each.

``python -m benchmarks.quality.interval_coverage`` takes minutes on one core and prints what is stated, what was found
with its binomial standard error, and in how many toys; ``--only WORDS`` runs the lines whose names hold the words,
``--share`` a share of the toys. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtri, stdtr

from showerstack.analysis.datacheck.p_values import histograms_differ, holm
from showerstack.analysis.datacheck.streamed import BINS, LEAST_EFFECTIVE
from showerstack.analysis.photons.background import Counts as RegionCounts
from showerstack.analysis.photons.background import Regions, Weighted, on_off
from showerstack.analysis.photons.events import HADRON, SearchEvents, SimulatedSearch
from showerstack.analysis.spectra.fluxes import spread_of_models
from showerstack.analysis.spectra.folding import Cells, Widths, make_movable, make_response
from showerstack.analysis.spectra.response import Simulated, binning
from showerstack.scoring.metrics.composition import class_fraction_errors, confusion_intervals, mixture_counts
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.intervals import share_interval
from showerstack.scoring.metrics.survival_bootstrap import survival_interval
from showerstack.showers.simulation.cascade import RARE

Draw = Callable[[np.random.Generator], bool | float]


@dataclass(frozen=True)
class Toy:
    """A statement, and an experiment whose truth is known."""

    name: str
    stated: float
    """Probability that the statement holds."""
    toys: int
    holds: Draw
    """Draws an experiment and says whether the statement held, or in which share of its bins."""

    def coverage(self, share: float = 1.0) -> tuple[float, float, int]:
        """Return how often it held, the standard error, and the number of toys."""
        n = max(2, round(self.toys * share))
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        held = np.array([float(self.holds(rng)) for _ in range(n)])
        # the binomial error of one more success and failure: none is not certain
        expected = (held.sum() + 1) / (n + 2)
        return float(held.mean()), float(np.sqrt(expected * (1 - expected) / n)), n


N_RARE = 20_000


def rare_hadrons(floor: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw hadrons as ``simulate --rare`` does: half of those beyond x = 9 survive, and of all a natural share."""
    x, weights = RARE.draw(rng.standard_exponential(N_RARE), rng.random(N_RARE))
    survives = ((x > 9) & (rng.random(N_RARE) < 0.5)) | (rng.random(N_RARE) < floor)
    return labelled(survives, weights)


def labelled(survives: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, scores and weights of hadrons (N,) beside a hundred gammas of a certain threshold."""
    labels = np.repeat([0, 1], [100, len(survives)])
    scores = np.concatenate([np.full(100, 0.5), survives.astype(float)])
    return labels, scores, np.concatenate([np.ones(100), weights])


def rare_truth(floor: float) -> float:
    """Return the survival of :func:`rare_hadrons`."""
    return float(0.5 * np.exp(-9) * (1 - floor) + floor)


def rare_limit(floor: float, rng: np.random.Generator) -> bool:
    """Say whether the upper limit of a weighted survival holds."""
    labels, scores, weights = rare_hadrons(floor, rng)
    result = hadron_survival(labels, scores, 0.75, weights).weights
    assert result is not None
    return result.limit() >= rare_truth(floor)


def rare_interval(floor: float, rng: np.random.Generator) -> bool:
    """Say whether the interval of a weighted survival holds."""
    labels, scores, weights = rare_hadrons(floor, rng)
    result = survival_interval(labels, scores, weights=weights, n_resamples=200)
    return result.low <= rare_truth(floor) <= result.high


def grouped_survival(showers: int, copies: int, truth: float, likeness: float, rng: np.random.Generator) -> bool:
    """Say whether the interval of a survival holds where each shower is used several times.

    With a probability, the likeness, all copies of a shower share one outcome.
    """
    shape = (showers, copies)
    alone, together = rng.random(shape) < truth, rng.random((showers, 1)) < truth
    survives = np.where(rng.random((showers, 1)) < likeness, together, alone).ravel()
    labels, scores, _ = labelled(survives, np.ones(showers * copies))
    groups = np.concatenate([np.arange(100), 1000 + np.repeat(np.arange(showers), copies)])
    result = survival_interval(labels, scores, groups, n_resamples=200)
    return result.low <= truth <= result.high


def weighted_share(truth: float, light: float, rng: np.random.Generator) -> bool:
    """Say whether the interval of a share holds, ten of 1,010 events having half of the weight."""
    weights = np.repeat([1.0, 100.0], [1000, 10])
    hits = rng.random(1010) < np.repeat([light, truth], [1000, 10])
    result = share_interval(hits, weights=weights)
    return result.low <= (light + truth) / 2 <= result.high


def confusion(recall: float) -> np.ndarray:
    """Return the probabilities (5, 5) of neighbours' labels at a recall."""
    matrix = np.eye(5) * recall
    for k in range(5):
        beside = [j for j in (k - 1, k + 1) if 0 <= j < 5]
        matrix[k, beside] = (1 - recall) / len(beside)
    return matrix


def class_errors(n_events: int, recall: float, which: str, rng: np.random.Generator) -> float:
    """Return the share of the fraction errors' intervals that hold, of the end classes or of all classes together."""
    truth = class_fraction_errors(confusion(recall))
    counts = np.array([rng.multinomial(n_events, row) for row in confusion(recall)])
    drawn = mixture_counts()
    tally = sum(rng.multinomial(drawn[:, k], counts[k] / n_events) for k in range(5))
    errors = np.abs(drawn - tally).mean(axis=0) / 5000
    overall, classes = confusion_intervals(counts, float(errors.mean()), errors, n_resamples=400)
    if which == "all":
        return float(overall.low <= truth.mean() <= overall.high)
    return float(np.mean([classes[k].low <= truth[k] <= classes[k].high for k in (0, 4)]))


def hadronic_model(n: int, rng: np.random.Generator) -> bool:
    """Say whether one standard deviation by n models holds a nature that is one more draw of their law."""
    *results, nature = rng.normal(size=(n + 1, 1))
    return bool(abs(nature[0] - np.mean(results)) < np.sqrt(spread_of_models(list(results))[0, 0]))


N_REUSED = 3_000


def reused_response(reuse: int, rng: np.random.Generator) -> float:
    """Return the share of cells whose stated error of the response holds the truth, each shower used several times.

    The cells are quarters of the mass summary, which is uniform and which copies of a shower share.
    """
    shower = np.repeat(np.arange(N_REUSED // reuse), reuse)
    y = rng.random(shower[-1] + 1)[shower]
    zero, kind = np.zeros(len(y)), np.zeros(len(y), dtype=np.int64)
    log_proba = np.log(np.stack([1 - y, y, *np.full((3, len(y)), 1e-9)], axis=1))
    events = Simulated(log_proba, kind, zero + 15.3, zero + 5, zero + 4.5, zero, kind, zero + 15.3, kind, shower)
    cells = Cells(binning((15.2, 15.4)), np.log(4.0) * np.array([0.25, 0.5, 0.75]))
    thrown = np.full((5, len(cells.bins.fine) - 1), float(len(y)))
    response = make_response(make_movable(events, cells.bins, Widths(0, 0, 0)), cells, thrown, scales=False)
    found, variance = response.probability[0].sum(axis=1), response.variance[0].sum(axis=1)
    # at a fixed number of showers the share of a cell varies less than a Poisson number
    return float(np.mean(np.abs(found - 0.25) < np.sqrt(0.75 * variance)))


def reused_hadrons(reuse: int, rng: np.random.Generator) -> bool:
    """Say whether a tenth above a threshold is found within the error of as many hadrons as they are said to be worth.

    Copies of a shower share its score.
    """
    shower = np.repeat(np.arange(2000 // reuse), reuse)
    score = rng.random(shower[-1] + 1)[shower]
    zero, kind = np.zeros(len(score)), np.zeros(len(score), dtype=np.int64)
    events = SimulatedSearch(
        **{name: zero for name in SearchEvents.__dataclass_fields__ if name != "score"}, score=score,
        labels=kind + HADRON, group=shower,
    )  # fmt: skip
    one = np.ones(1)
    regions = Regions(0.9 * one, 0.7 * one, 0.5 * one, {})
    counts = RegionCounts.of(regions, np.zeros(0, np.int64), np.zeros(0))
    k = on_off(regions, Weighted(events, kind, zero + 1, one), counts, np.ones(1, dtype=bool)).k[0]
    found = float((score >= 0.9).mean())
    return bool(abs(found - 0.1) < found * np.sqrt(0.9 / k))


N_FEATURES = 60


def alike_features(n_data: int, rng: np.random.Generator) -> bool:
    """Say whether features of one law raise no alarm.

    They follow the energy more or less; bins are quantiles of all, compared in the bins of energy that hold enough.
    """
    correlation = np.linspace(0, 0.98, N_FEATURES)

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        energy = rng.standard_normal(n)
        noise = rng.standard_normal((n, N_FEATURES))
        return np.digitize(energy, (0.3, 1.0, 1.6)), correlation * energy[:, None] + np.sqrt(1 - correlation**2) * noise

    (bins, data), (theirs, simulation) = drawn(n_data), drawn(30_000)
    p_values = []
    for f in range(N_FEATURES):
        edges = ndtri(np.arange(1, BINS) / BINS)
        for e in np.flatnonzero(np.bincount(bins) >= LEAST_EFFECTIVE):
            counts, sums = (
                np.bincount(np.searchsorted(edges, column[of == e, f]), minlength=BINS).astype(float)
                for column, of in ((data, bins), (simulation, theirs))
            )
            p_values.append(histograms_differ(counts, sums, sums)[0])
    return bool(holm(np.array(p_values)).min() > 0.05 / 4)


SURVIVALS = tuple(
    Toy(f"weighted survival, {expected:g} natural survivors expected: {what}", 0.95, toys, partial(of, floor))
    for floor, expected in ((0.0, 0), (5e-5, 1), (2e-5, 0.4), (1e-4, 2), (1.5e-4, 3), (3e-4, 6), (1e-3, 20), (3e-3, 60))
    for what, of, toys in (("limit", rare_limit, 1000), ("interval", rare_interval, 400))
)
GROUPED = tuple(
    Toy(
        f"survival of {showers} showers used {copies} times, likeness {likeness:g}, truth {truth:g}",
        0.95,
        1000,
        partial(grouped_survival, showers, copies, truth, likeness),
    )
    for showers, copies, likeness, truth in (
        (200, 10, 1.0, 0.005),
        (200, 10, 1.0, 0.01),
        (200, 10, 1.0, 0.015),
        (200, 10, 1.0, 0.05),
        (400, 5, 1.0, 0.006),
        (200, 10, 0.3, 0.01),
        (400, 5, 0.5, 0.004),
        (400, 5, 0.0, 0.004),
    )
)
SHARES = tuple(
    Toy(f"share, ten events have half of the weight: {words}", 0.95, 2000, partial(weighted_share, heavy, light))
    for words, heavy, light in (
        ("truth .01", 0.01, 0.01),
        ("truth .2 of the heavy alone", 0.2, 0.0),
        ("truth .5", 0.5, 0.5),
        ("truth .99", 0.99, 0.99),
    )
)
CLASSES = tuple(
    Toy(
        f"fraction error, {n} events a class, recall {recall:g}: {words}",
        0.95,
        1000,
        partial(class_errors, n, recall, of),
    )
    for n, recall in ((20, 0.95), (50, 0.98), (500, 0.95))
    for words, of in (("end classes", "end"), ("all together", "all"))
)
ONE_SIGMA = 0.6827


def one_of_models(n: int) -> float:
    """Return how often one error by n models is said to hold one more of them: Student's law of n - 1 degrees."""
    return float(2 * stdtr(n - 1, 1.0) - 1)


NO_ALARM = 1 - 0.05 / 4
"""Of one of the four tests that share an allowance of 5 %."""
ANALYSIS = (
    *(
        Toy(f"hadronic model, {n} models: one sigma", one_of_models(n), 4000, partial(hadronic_model, n))
        for n in (2, 3, 4)
    ),
    *(Toy(f"response, showers used {n} times: one sigma", ONE_SIGMA, 400, partial(reused_response, n)) for n in (1, 5)),
    *(
        Toy(
            f"photon background, showers used {n} times: one sigma",
            ONE_SIGMA,
            2000,
            partial(reused_hadrons, n),
        )
        for n in (1, 5)
    ),
    *(
        Toy(
            f"datacheck, {n:,} data of the simulation: features raise no alarm",
            NO_ALARM,
            300,
            partial(alike_features, n),
        )
        for n in (300, 1000, 3000)
    ),
)
ALL = SURVIVALS + GROUPED + SHARES + CLASSES + ANALYSIS


def main() -> None:
    """Print a line for each statement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the lines whose names hold these words")
    parser.add_argument("--share", type=float, default=1.0, help="of the toys")
    given = parser.parse_args()
    print("| what | stated | found | toys |\n|---|---|---|---|")
    for toy in ALL:
        if given.only in toy.name:
            found, error, n = toy.coverage(given.share)
            print(f"| {toy.name} | {toy.stated:.1%} | {found:.1%} ± {error:.1%} | {n} |", flush=True)


if __name__ == "__main__":
    main()
