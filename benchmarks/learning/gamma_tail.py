"""Learners for the few hadrons that look like photons: what lowers the weighted survival of boosted trees.

    python -m benchmarks.learning.gamma_tail --work bench/gamma_tail

Rare hadrons of one world (``simulate --rare``), the columns of the set ``fits``, training sets of three seeds, one test
set. Per library and seed the same trees learn

* ``plain``: with the showers' weights, as ``stack`` trains them;
* ``uniform``: without any weights;
* ``tempered``: with the square root of the weights, so that rare hadrons count more than their number;
* ``hard``: with the weights times S^-1/2, where S is the survival at the hadron's own out-of-fold score: the gradient
  of ln S at one efficiency gives a survivor 1/S;
* ``cascade``: a second booster that learned from the events above the out-of-fold score that keeps 90 % of the gammas
  orders these; all others stay as ``plain`` has them below it.

``mean of logs`` and ``mean of ranks`` pool both libraries' ``plain``. A system is compared with its library's
``plain``, pools with CatBoost's, on the same test showers: ln of the ratio of survivals, mean over the seeds; its error
is that of the showers drawn again (the same draws for all) and of the seeds. ``--others`` are trained with the showers'
weights, and a second table has every system beside each published one among them. ``--plain`` trains the boosters in
that way alone. Killed and started again, it continues.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from benchmarks.shared.drawn import FOREIGN, foreign_detector
from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.registry import create, spec
from showerstack.runtime.context import Context
from showerstack.runtime.files import atomic_path
from showerstack.scoring.metrics.classes import gamma_scores
from showerstack.scoring.metrics.gamma import hadron_survival, weighted_threshold
from showerstack.scoring.metrics.survival_bootstrap import weighted_replicas
from showerstack.showers import schema
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA_CLASS, HADRON
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.cascade import RARE
from showerstack.stacking.events import ShowerEvents

LIBRARIES = ("lightgbm", "catboost")
VARIANTS = ("plain", "uniform", "tempered", "hard", "cascade")
POOLS = ("mean of logs", "mean of ranks")
EFFICIENCIES = (0.50, 0.75, 0.90)
FOLDS = 3
FIRST_STAGE = 0.90
"""Share of the gammas that the first stage of a cascade keeps."""
LEAST_SURVIVAL = 1e-4
"""Below it hadrons are not made to count more."""
VALID_SHARE = 0.15
PIECE = 20_000
"""Events predicted at once."""
REPLICAS = 300


def place_of(options: argparse.Namespace) -> Path:
    """Return the folder of sets and scores of a world and these sizes."""
    place: Path = options.work / f"{options.world}-{options.train}-{options.test}"
    return place


def folder_of(options: argparse.Namespace, seed: int) -> Path:
    """Return the folder with the training set of a seed; that of the first seed also holds the test set."""
    folder = place_of(options) / f"seed-{seed}"
    n_test = options.test if seed == 1 else 1
    foreign = options.world == FOREIGN
    with foreign_detector() if foreign else contextlib.nullcontext():
        simulate(
            schema.GAMMA, folder, n_train=options.train, n_test=n_test, seed=seed, train_cuts="test",
            world="default" if foreign else options.world, workers=1, proposal=RARE,
        )  # fmt: skip
    return folder


def batch_of(folder: Path, name: str = LIBRARIES[0]) -> Batch:
    """Return the events of a set as a learner sees them, with labels, weights and, of training sets, the truth."""
    data = Dataset.open(folder, schema.GAMMA)
    known = folder.name.endswith("train")
    events = ShowerEvents(folder, build_table(folder, ctx=Context(workers=1)).folder, schema.GAMMA, labelled=known)
    rows, kind = np.arange(len(data)), spec(name)
    batch = events.batch(rows, events.columns_for(kind), grids=kind.needs_grid)
    assert data.labels is not None
    targets = events.targets(rows) if kind.uses_truth and known else None
    labels = np.asarray(data.labels, dtype=np.int64)
    return replace(batch, labels=labels, weights=data.weights, targets=targets)


def fitted(library: str, train: Batch, seed: int, options: argparse.Namespace) -> Learner:
    """Return a booster, stopped early on a part of its training events."""
    valid = np.random.default_rng(seed).random(len(train)) < VALID_SHARE
    learner = create(spec(library), schema.GAMMA.classes, preset=options.preset, n_rows=len(train))
    return learner.fit(train.take(~valid), train.take(valid), seed=seed)


def scores_of(learner: Learner, events: Batch) -> np.ndarray:
    """Return gamma scores (n,)."""
    pieces = [np.arange(begin, min(begin + PIECE, len(events))) for begin in range(0, len(events), PIECE)]
    return np.concatenate([gamma_scores(learner.predict_log_proba(events.take(rows))) for rows in pieces])


def out_of_fold(library: str, train: Batch, seed: int, options: argparse.Namespace) -> np.ndarray:
    """Return the scores (n,) of training events by fits that did not learn from them."""
    fold = np.random.default_rng([seed, 1]).integers(0, FOLDS, len(train))
    scores = np.empty(len(train))
    for k in range(FOLDS):
        scores[fold == k] = scores_of(fitted(library, train.take(fold != k), seed, options), train.take(fold == k))
    return scores


def survivals_at(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted share of hadrons that score at least as high as each event, (n,)."""
    hadron = labels == HADRON
    order = np.argsort(-scores[hadron])
    reached = np.cumsum(weights[hadron][order]) / weights[hadron].sum()
    place = np.searchsorted(-scores[hadron][order], -scores, side="right")
    return np.asarray(np.concatenate([[0.0], reached])[place])


def learned(library: str, seed: int, train: Batch, test: Batch, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the test scores of every variant of a library."""
    assert train.labels is not None
    assert train.weights is not None
    labels, weights = train.labels, train.weights
    first = out_of_fold(library, train, seed, options)
    hardness = np.where(labels == HADRON, np.maximum(survivals_at(first, labels, weights), LEAST_SURVIVAL) ** -0.5, 1.0)
    plain = fitted(library, train, seed, options)
    result = {"plain": scores_of(plain, test)}
    for name, other in (("uniform", None), ("tempered", weights**0.5), ("hard", weights * hardness)):
        result[name] = scores_of(fitted(library, replace(train, weights=other), seed, options), test)
    gamma = labels == GAMMA_CLASS
    threshold = weighted_threshold(first[gamma], weights[gamma], FIRST_STAGE)
    second = fitted(library, train.take(first >= threshold), seed, options)
    above = result["plain"] >= threshold
    order = result["plain"].copy()
    ranked = scores_of(second, test.take(above))
    order[above] = ranked - ranked.min() + float(order[~above].max(initial=threshold)) + 1.0
    return result | {"cascade": order}


def all_scores(options: argparse.Namespace, seeds: list[int]) -> dict[str, list[np.ndarray]]:
    """Return the test scores of every system, one array a seed; what is there already is read."""
    systems: dict[str, list[np.ndarray]] = {}
    for seed in seeds:
        plain = {}
        for learner in (*LIBRARIES, *options.others):
            variants = VARIANTS if learner in LIBRARIES and not options.plain else VARIANTS[:1]
            file = place_of(options) / f"scores-{learner}-{seed}-{options.preset}-{len(variants)}.npz"
            if not file.exists():
                started = time.process_time()
                train = batch_of(folder_of(options, seed) / "gamma_train", learner)
                test = batch_of(folder_of(options, 1) / "gamma_test", learner)
                if len(variants) > 1:
                    content = learned(learner, seed, train, test, options)
                else:
                    content = {"plain": scores_of(fitted(learner, train, seed, options), test)}
                with atomic_path(file) as temporary, temporary.open("wb") as stream:
                    np.savez(stream, **content)
                print(f"{learner}, seed {seed}: {time.process_time() - started:.0f} s of processor time", flush=True)
            with np.load(file) as content:
                for name in variants:
                    systems.setdefault(f"{learner}, {name}", []).append(content[name])
            if learner in LIBRARIES:
                plain[learner] = systems[f"{learner}, plain"][-1]
        ranks = [rankdata(scores) for scores in plain.values()]
        systems.setdefault(POOLS[0], []).append(np.mean(list(plain.values()), axis=0))
        systems.setdefault(POOLS[1], []).append(np.mean(ranks, axis=0))
    return systems


def reference_of(name: str) -> str:
    """Return the system that another one is compared with."""
    library = name.split(",")[0]
    return f"{library if library in LIBRARIES else 'catboost'}, plain"


def table(systems: dict[str, list[np.ndarray]], test: Batch) -> list[str]:
    """Return the lines of both tables."""
    assert test.labels is not None
    assert test.weights is not None
    n_seeds = len(systems[POOLS[0]])
    every = [scores for parts in systems.values() for scores in parts]
    drawn = weighted_replicas(test.labels, every, EFFICIENCIES, test.weights, n_resamples=REPLICAS)
    drawn = np.log(np.maximum(drawn, 1e-12)).reshape(len(systems), n_seeds, len(EFFICIENCIES), -1)
    results = [[[hadron_survival(test.labels, scores, e, test.weights) for e in EFFICIENCIES] for scores in parts]
               for parts in systems.values()]  # fmt: skip
    value = np.log(np.maximum([[[r.hadron_survival for r in row] for row in parts] for parts in results], 1e-12))
    names = list(systems)

    def ratio(place: int, base: int, k: int) -> str:
        gain = value[place, :, k] - value[base, :, k]
        by_showers = float((drawn[place, :, k] - drawn[base, :, k]).mean(axis=0).std())
        by_seeds = float(gain.std(ddof=1)) / n_seeds**0.5 if n_seeds > 1 else 0.0
        return "" if place == base else f"{gain.mean():+.3f} ± {np.hypot(by_showers, by_seeds):.3f}"

    heads = [f"{e:.0%}: hadrons left (n_eff) | ln of the ratio" for e in EFFICIENCIES]
    lines = [f"| learner | {' | '.join(heads)} |", "|---" * (1 + 2 * len(EFFICIENCIES)) + "|"]
    for place, name in enumerate(names):
        cells = [name]
        for k in range(len(EFFICIENCIES)):
            effective = float(np.mean([one.weights.n_effective for one in (row[k] for row in results[place])]))  # type: ignore[union-attr]
            cells.append(f"{np.exp(value[place, :, k].mean()):.2e} ({effective:,.0f})")
            cells.append(ratio(place, names.index(reference_of(name)), k))
        lines.append(f"| {' | '.join(cells)} |")
    published = [place for place, name in enumerate(names) if name.startswith("published.")]
    if published:
        heads = [f"{e:.0%}: over {names[base].split(',')[0]}" for e in EFFICIENCIES for base in published]
        lines += ["", f"| learner, ln of the ratio | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
        for place, name in enumerate(names):
            cells = [ratio(place, base, k) for k in range(len(EFFICIENCIES)) for base in published]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/gamma_tail"), help="folder for showers and scores")
    parser.add_argument("--world", default="gammas", help=f"or {FOREIGN}: other lateral forms and uneven gains")
    parser.add_argument("--train", type=int, default=60_000, help="training events a seed, under the test's cuts")
    parser.add_argument("--test", type=int, default=400_000, help="test events")
    parser.add_argument("--preset", default="good", help="settings of the learners")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--others", default="mlp,pretrained,published.gamma_rf,published.gamma_mlp517",
                        help="further learners, as they are")  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="without the other ways to train the boosters")
    options = parser.parse_args()
    options.others = tuple(filter(None, options.others.split(",")))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    test = batch_of(folder_of(options, 1) / "gamma_test")
    lines = table(all_scores(options, seeds), test)
    print(f"{options.train:,} training events a seed ({len(seeds)} seeds), {options.test:,} test events, world "
          f"{options.world}, preset {options.preset}\n")  # fmt: skip
    print("\n".join(lines))
    print(f"\n{time.process_time():.0f} s of processor time in this run")


if __name__ == "__main__":
    main()
