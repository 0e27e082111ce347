"""Do stated errors cover? Known skies through the whole analysis of spectra, knees and photon limits.

``python -m benchmarks.physics.closure --work bench/closure --store`` simulates training and test sets, trains a quick
run of each task, makes pseudo-experiments and re-simulated skies, and stores the tables. Every experiment is kept in
``WORK/experiments.jsonl`` as soon as it is done: started again, the benchmark goes on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.physics.closure_page import tables
from benchmarks.physics.estimate import likelihood_ratios
from benchmarks.physics.pairs import PairedTruth, paired_pool
from benchmarks.physics.pseudo_experiments import (
    PhotonPool,
    SmoothTruth,
    mixture_errors,
    photon_experiment,
    spectra_experiment,
)
from benchmarks.shared.experiments import Experiments, add_minutes
from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.analysis.events import open_run
from showerstack.analysis.photons.events import read_simulation
from showerstack.analysis.photons.search import SearchOptions
from showerstack.analysis.spectra.reading import Response, plateau_primaries, read_response
from showerstack.analysis.spectra.response import Simulated, binning
from showerstack.analysis.spectra.run import EDGES, cell_binning
from showerstack.runtime.context import Context, bar
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation.sky import Sky
from showerstack.stacking.config import StackConfig
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.training.train import stack

BINS = cell_binning(EDGES)
PHOTON_BINS = binning((15.0, 15.3, 15.6, 16.0))
ZENITH_MAX_DEG = 30.0
SKY = Sky(flux_1_pev=6e-21, sharpness=5.0)
STEEP = SKY.model_copy(update={"index": 3.0, "index_above": 3.4})
AGAIN = {"again": (SKY, 1.0), "steep": (STEEP, 1.0), "large": (SKY, 8.0)}
"""Skies of showers simulated again, and how many times the pool's showers the analysis's simulation has."""
PAIRS_SEED = 71
"""Of the showers that are simulated five times."""
AGAIN_SEED = 20_000
"""Added to the seeds of skies of showers simulated again."""
DRAWN_SEED = 10_000
"""Added to the seeds of skies with drawn scales."""
Experiment = Callable[[int], dict[str, Any]]


def closure_parser(description: str) -> argparse.ArgumentParser:
    """Return the options by which a pool of simulated showers is made."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/closure"))
    parser.add_argument("--train", type=int, default=20_000, help="training showers of each task")
    parser.add_argument("--test", type=int, default=400_000, help="showers that simulation and skies are made from")
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000], help="of skies of spectra")
    parser.add_argument("--learner", default="quadratic_logit", help="smooth in its inputs, or shifts make jumps")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--store", action="store_true", help=HELP)
    add_minutes(parser)
    return parser


def main() -> None:
    """Do what is missing, as long as there is time, and store the tables."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--experiments", type=int, default=200, help="skies of spectra, scales drawn")
    parser.add_argument("--exact", type=int, default=50, help="skies of spectra, scales exact")
    parser.add_argument("--again", type=int, default=200, help="skies of showers simulated again with other scales")
    parser.add_argument("--pairs", type=int, default=60_000, help="showers of the pool that is simulated five times")
    parser.add_argument("--again-events", type=int, nargs="+", default=[6_000, 60_000, 10**6], help="of these skies")
    parser.add_argument("--again-more", type=int, default=66, help="of these skies, with a steep spectrum of 60,000 "
                        "events, and with a larger simulation of 1,000,000")  # fmt: skip
    parser.add_argument("--regressed", action="store_true", help="the analysis moves posteriors by the regression")
    parser.add_argument("--mixtures", type=int, default=1, help="0: without the grid of mixtures")
    parser.add_argument("--photons", type=int, default=50, help="pseudo-experiments of photons, each fraction")
    parser.add_argument("--photon-events", type=int, default=6_000, help="events of a sky with photons")
    parser.add_argument("--note", default="", help="a sentence on how this came about, for the head of the tables")
    given = parser.parse_args()
    experiments = Experiments(given.work / "experiments.jsonl", given.minutes)
    wanted = _wanted(given)
    made = _made(given, {one["kind"] for one in experiments.missing(wanted)})
    for one in experiments.each(wanted):
        started = time.perf_counter()
        found = made[one["kind"]](one["seed"])
        experiments.keep({**found, **one, "seconds": time.perf_counter() - started})
    if given.store:
        print(f"wrote {store('closure', 'Do stated errors cover?', tables(experiments.done, vars(given)))}")


def _wanted(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return kinds and seeds of all experiments, a little of every kind first."""
    numbers = {
        "mixtures": given.mixtures, "plateau": int(given.mixtures > 0),
        "photons_0": given.photons, "photons_0.002": given.photons,
    }  # fmt: skip
    for events in given.events:
        numbers |= {f"drawn_{events}": given.experiments, f"exact_{events}": given.exact}
    for events in given.again_events:
        numbers[f"again_{events}"] = given.again
    numbers |= {"steep_60000": given.again_more, "large_1000000": given.again_more}
    in_turn = sorted((seed / number, kind, seed) for kind, number in numbers.items() for seed in range(number))
    return [{"kind": kind, "seed": seed} for _, kind, seed in in_turn]


def _made(given: argparse.Namespace, kinds: set[str]) -> dict[str, Experiment]:
    """Return the experiments of these kinds by name; what they need is made."""
    made: dict[str, Experiment] = {}
    if any(kind.startswith(tuple(AGAIN)) for kind in kinds):
        made |= _again(given, kinds)
    if any(not kind.startswith(("photons", *AGAIN)) for kind in kinds):
        made |= _composition(given)
    if any(kind.startswith("photons") for kind in kinds):
        made |= _photons(given)
    return made


def trained(task: Task, given: argparse.Namespace) -> tuple[Path, Path]:
    """Return a quick run and the test set that it was not trained on."""
    sizes = {"n_train": given.train, "n_test": given.test}
    data = sample(task, given.work, **sizes, seed=61, workers=given.workers, bars=bar)
    run = given.work / f"run-{data.name}"
    config = {"task": task.name, "data": data, "run": run, "preset": "quick", "folds": 3, "device": "cpu"}
    stack(StackConfig(**config, learners=(given.learner,), workers=given.workers), Context(bars=bar))
    return run, data / f"{task.name}_test"


@dataclass(frozen=True)
class CompositionTruth:
    """A smooth truth and the simulated events behind it."""

    truth: SmoothTruth
    pool: Simulated
    thrown: np.ndarray
    """(K, T)."""


def composition_truth(given: argparse.Namespace) -> CompositionTruth:
    """Simulate and predict a pool of showers, or take the one that is there."""
    run, test = trained(COMPOSITION, given)
    opened, ctx = open_run(run, COMPOSITION.name, "closure"), Context(bars=bar)
    response = read_response(opened, [test], [], BINS, ZENITH_MAX_DEG, ctx, given.work / "predictions", moved=False)
    pool, thrown = response.events, response.thrown.counts.sum(axis=0, dtype=np.float64)
    return CompositionTruth(SmoothTruth.of(pool, thrown, BINS), pool, thrown)


def _composition(given: argparse.Namespace) -> dict[str, Experiment]:
    made = composition_truth(given)
    truth, pool, thrown = made.truth, made.pool, made.thrown

    def spectra(events: int, drawn: bool) -> Experiment:
        return lambda seed: spectra_experiment(
            truth, SKY, np.array(EDGES), seed + DRAWN_SEED * drawn, events=events, drawn=drawn
        )  # fmt: skip

    def mixed(seed: int) -> dict[str, Any]:
        place = BINS.bin_of(pool.lg_energy)
        prior = np.ones((BINS.n_bins, len(COMPOSITION.classes)))
        np.add.at(prior, (place[place >= 0], pool.labels[place >= 0]), 1.0)
        prior /= prior.sum(axis=1, keepdims=True)
        inside = pool.take(place >= 0)
        ratios = likelihood_ratios(inside.log_proba, prior[place[place >= 0]])
        first = np.random.default_rng(seed).random(len(inside)) < 0.5
        size = min(5_000, int(np.bincount(inside.labels[~first], minlength=5).min()))
        return {"events": size} | mixture_errors(ratios, inside.predicted, inside.labels, first, size, seed)

    def plateau(seed: int) -> dict[str, Any]:
        """Compare the primaries recovered from accepted events with those counted, from lg E = 15.3 to 17."""
        recovered = plateau_primaries(
            pool.take((pool.lg_ne > LG_NE_MIN) & (pool.lg_nmu > LG_NMU_MIN)), BINS
        ).counts.sum(axis=0)
        inside = (BINS.fine[:-1] > 15.3 - 1e-9) & (BINS.fine[1:] < 17 + 1e-9)
        ratio = recovered[:, inside].sum(axis=1) / thrown[:, inside].sum(axis=1)
        events = np.array([(pool.labels[pool.true_lg_energy > 15.6] == k).sum() for k in range(5)])
        return {"ratio": ratio.tolist(), "error": (ratio / np.sqrt(events)).tolist()}

    result: dict[str, Experiment] = {"mixtures": mixed, "plateau": plateau}
    for events in given.events:
        result |= {f"drawn_{events}": spectra(events, True), f"exact_{events}": spectra(events, False)}
    return result


NATURES: tuple[tuple[float, float, float] | None, ...] = (
    None, (0.0, 0.0, 0.0), None, (2.0, 0.0, 0.0), (0.0, 2.0, 0.0), None, (0.0, 0.0, 2.0), (-2.0, 0.0, 0.0),
    None, (0.0, -2.0, 0.0), (0.0, 0.0, -2.0),
)  # fmt: skip
"""Scales of energy, muons and electrons of skies of showers simulated again, in turn; None: all drawn."""


def _again(given: argparse.Namespace, kinds: set[str]) -> dict[str, Experiment]:
    opened: list[Run] = []

    def read(folder: Path) -> Response:
        """Predict a set by the run, which is trained where the first set is missing."""
        if not opened:
            opened.append(open_run(trained(COMPOSITION, given)[0], COMPOSITION.name, "closure"))
        return read_response(opened[0], [folder], [], BINS, ZENITH_MAX_DEG, Context(bars=bar), moved=False)

    pool = paired_pool(given.work, read, given.pairs, PAIRS_SEED, given.workers)
    truth = PairedTruth.of_pool(pool, BINS, pairs=not given.regressed)

    def experiment(kind: str) -> Experiment:
        name, _, events = kind.partition("_")
        sky, share = AGAIN[name]
        return lambda seed: spectra_experiment(
            truth, sky, np.array(EDGES), seed + AGAIN_SEED, events=int(events), drawn=True, share=share,
            at=NATURES[seed % len(NATURES)],
        )  # fmt: skip

    return {kind: experiment(kind) for kind in kinds if kind.startswith(tuple(AGAIN))}


def _photons(given: argparse.Namespace) -> dict[str, Experiment]:
    run, test = trained(GAMMA, given)
    opened = open_run(run, GAMMA.name, "closure")
    events, thrown, _ = read_simulation(opened, test, [], PHOTON_BINS.fine, ZENITH_MAX_DEG, Context(bars=bar))
    assert thrown is not None
    pool = PhotonPool(events, thrown)
    options = SearchOptions(run, [test], "1", given.work)

    def experiment(fraction: float) -> Experiment:
        return lambda seed: photon_experiment(
            pool, PHOTON_BINS, options, seed, events=given.photon_events, fraction=fraction
        )  # fmt: skip

    return {"photons_0": experiment(0.0), "photons_0.002": experiment(0.002)}


if __name__ == "__main__":
    main()
