"""Do stated errors cover? Known skies through the whole analysis of spectra, knees and photon limits.

``python benchmarks/physics/closure.py --work bench/closure --page docs/benchmarks/closure.md`` simulates training and
test sets, trains a quick run of each task, makes pseudo-experiments and re-simulated skies, and writes the page. Every
experiment is kept in ``WORK/experiments.jsonl`` as soon as it is done: started again, the benchmark goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analysis.events import open_run
from analysis.photons.events import read_simulation
from analysis.photons.search import SearchOptions
from analysis.spectra.errors import Widths, all_errors
from analysis.spectra.estimate import Setting, estimate, likelihood_ratios
from analysis.spectra.reading import Response, read_measured, read_response, training_prior
from analysis.spectra.response import binning
from benchmarks.physics.closure_page import write_page
from benchmarks.physics.pseudo_experiments import (
    PhotonPool,
    SpectraPool,
    covered,
    mixture_errors,
    photon_experiment,
    spectra_experiment,
)
from benchmarks.shared.samples import sample
from runtime.context import Context, bar
from showers.archives.measured import convert_measured
from showers.schema import COMPOSITION, GAMMA, Task
from showers.simulation.measured import simulate_measured
from showers.simulation.sky import Sky, load_sky
from stacking.run.config import StackConfig
from stacking.train import stack

BINS = binning((15.2, 15.4, 15.6, 15.8, 16.0, 16.3, 16.6))
PHOTON_BINS = binning((15.0, 15.3, 15.6, 16.0))
ZENITH_MAX_DEG = 30.0
SKY = Sky(sharpness=5.0)
EPOS = 1
SKY_FILE = """runs = 1
live_time_h = {hours}
model = "{model}"
cuts = "test"
lg_energy_min = 14.9
zenith_max_deg = {zenith}
sharpness = 5.0
"""
EVENTS_PER_HOUR = 270.0
"""Accepted events of the default sky."""
Experiment = Callable[[int], dict[str, Any]]


def main() -> None:
    """Do what is missing, as long as there is time, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/closure"))
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    parser.add_argument("--train", type=int, default=20_000, help="training showers of each task")
    parser.add_argument("--test", type=int, default=80_000, help="showers that simulation and skies are made from")
    parser.add_argument("--experiments", type=int, default=200, help="pseudo-experiments of spectra")
    parser.add_argument("--mismatched", type=int, default=40, help="of a sky of one hadronic model")
    parser.add_argument("--photons", type=int, default=50, help="pseudo-experiments of photons, each fraction")
    parser.add_argument("--skies", type=int, default=5, help="re-simulated skies of each hadronic model")
    parser.add_argument("--events", type=int, default=6_000, help="events of a sky")
    parser.add_argument("--learner", default="lightgbm")
    parser.add_argument("--note", default="", help="a sentence on how this came about, for the head of the page")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; start again to go on")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    stop = time.monotonic() + 60 * given.minutes
    given.work.mkdir(parents=True, exist_ok=True)
    file = given.work / "experiments.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    keys = {(one["kind"], one["seed"]) for one in done}
    with file.open("a", encoding="utf-8") as out:
        for kind, seed, experiment in _experiments(given, keys):
            if time.monotonic() > stop:
                print(f"stopped after {given.minutes:g} minutes: start again to go on")
                break
            started = time.perf_counter()
            entries = {"kind": kind, **experiment(seed), "seed": seed, "seconds": time.perf_counter() - started}
            done.append(entries)
            out.write(json.dumps(entries) + "\n")
            out.flush()
    if given.page:
        write_page(done, given.page, vars(given))
        print(f"wrote {given.page}")


def _experiments(given: argparse.Namespace, keys: set[tuple[str, int]]) -> Iterator[tuple[str, int, Experiment]]:
    """Yield what is still to be done, a little of every kind first."""
    numbers = {
        "mixtures": 1, "spectra": given.experiments, "epos": given.mismatched, "sky_mix": given.skies,
        "sky_sibyll": given.skies, "photons_0": given.photons, "photons_0.002": given.photons,
    }  # fmt: skip
    missing = [
        (seed / number, kind, seed)
        for kind, number in numbers.items()
        for seed in range(number)
        if (kind, seed) not in keys
    ]
    if not missing:
        return
    made: dict[str, Experiment] = {}
    if any(not kind.startswith("photons") for _, kind, _ in missing):
        made |= _composition(given)
    if any(kind.startswith("photons") for _, kind, _ in missing):
        made |= _photons(given)
    for _, kind, seed in sorted(missing):
        yield kind, seed, made[kind]


def _run(task: Task, given: argparse.Namespace) -> tuple[Path, Path]:
    """Return a quick run and the test set that it was not trained on."""
    sizes = {"n_train": given.train, "n_test": given.test}
    data = sample(task, given.work, **sizes, seed=61, workers=given.workers, bars=bar)
    run = given.work / f"run-{data.name}"
    config = {"task": task.name, "data": data, "run": run, "preset": "quick", "folds": 3, "device": "cpu"}
    stack(StackConfig(**config, learners=(given.learner,), workers=given.workers), Context(bars=bar))
    return run, data / f"{task.name}_test"


def _composition(given: argparse.Namespace) -> dict[str, Experiment]:
    run, test = _run(COMPOSITION, given)
    opened = open_run(run, COMPOSITION.name, "closure")
    response = read_response(opened, [test], [], BINS, ZENITH_MAX_DEG, Context(bars=bar, trusted=True))
    assert response.thrown is not None
    prior, _ = training_prior(opened, BINS, ZENITH_MAX_DEG, response)
    pool = SpectraPool(response.events, response.thrown)

    def spectra(seed: int) -> dict[str, Any]:
        return spectra_experiment(pool, SKY, BINS, prior, seed, events=given.events)

    def epos(seed: int) -> dict[str, Any]:
        return spectra_experiment(pool, SKY, BINS, prior, 10_000 + seed, events=given.events, model=EPOS)

    def mixed(seed: int) -> dict[str, Any]:
        events = pool.events
        place = BINS.place(events.lg_energy)
        ratios = likelihood_ratios(events.log_proba, prior[np.maximum(place, 0)])
        first = np.random.default_rng(seed).random(len(events)) < 0.5
        least = int(np.bincount(events.labels[~first], minlength=5).min())
        size = min(5_000, least)
        return {"events": size} | mixture_errors(ratios, events.decided, events.labels, first, size, seed)

    def sky(model: str) -> Experiment:
        return lambda seed: _resimulated(given, opened, response, prior, model, seed)

    return {"spectra": spectra, "epos": epos, "mixtures": mixed, "sky_mix": sky("mix"), "sky_sibyll": sky("sibyll")}


def _resimulated(
    given: argparse.Namespace, opened: Any, response: Response, prior: np.ndarray, model: str, seed: int
) -> dict[str, Any]:
    """Simulate a sky anew in the measured archive's form, convert and predict it, and measure its spectra."""
    place = given.work / f"sky-{model}-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    file = place / "sky.toml"
    hours = given.events / EVENTS_PER_HOUR
    file.write_text(SKY_FILE.format(hours=hours, model=model, zenith=ZENITH_MAX_DEG + 2), encoding="utf-8")
    sky = load_sky(file)
    simulate_measured(file, place / "raw", seed=700 + seed, workers=given.workers)
    folders = convert_measured(place / "raw", place / "runs").folders
    data, _, _ = read_measured(opened, folders, ZENITH_MAX_DEG)
    area = np.pi * sky.core_radius_m**2
    exposure = area * np.pi * np.sin(np.radians(ZENITH_MAX_DEG)) ** 2 * hours * 3600
    result = estimate(data, response.events, response.thrown, Setting(BINS, float(exposure), prior))
    errors = all_errors(result, data, response.events, response.thrown, widths=Widths(), replicas=40, seed=seed)
    truth = []
    for low, high in zip(BINS.edges[:-1], BINS.edges[1:], strict=True):
        energy = 10.0 ** np.linspace(low, high, 201)
        truth.append(np.trapezoid(sky.flux(np.log10(energy))[:5], energy, axis=1) / (energy[-1] - energy[0]))
    statistical = errors.total(("data", "simulation"))
    shutil.rmtree(place, ignore_errors=True)
    return {
        "events": len(data),
        **covered(result, np.array(truth), errors.total()),
        "statistical_only": covered(result, np.array(truth), statistical),
    }


def _photons(given: argparse.Namespace) -> dict[str, Experiment]:
    run, test = _run(GAMMA, given)
    opened = open_run(run, GAMMA.name, "closure")
    events, thrown, _ = read_simulation(
        opened, test, [], PHOTON_BINS.fine, ZENITH_MAX_DEG, Context(bars=bar, trusted=True)
    )
    assert thrown is not None
    pool = PhotonPool(events, thrown)
    options = SearchOptions(run, [test], "1", given.work)

    def experiment(fraction: float) -> Experiment:
        return lambda seed: photon_experiment(
            pool, PHOTON_BINS, options, seed, events=given.events, fraction=fraction
        )  # fmt: skip

    return {"photons_0": experiment(0.0), "photons_0.002": experiment(0.002)}


if __name__ == "__main__":
    main()
