"""Hadrons that survive gamma/hadron separation, down to one in ten million: survival by efficiency and world.

    python -m benchmarks.physics.rare_gammas
    python -m benchmarks.physics.rare_gammas --worlds gammas --natural --test 100000

Boosted trees learn from rare hadrons with their weights (``simulate --rare``), on 19 simple quantities: zenith, lg Ne,
lg Nmu, age, and electrons, muons and stations with muons in five rings about the reconstructed core. A survival is
quoted where the weights allow it, with its 95 % interval by showers; elsewhere its upper limit stands. With
``--natural`` the same trees are also tested on showers thrown without weights, and on those of another proposal:
all three must agree wherever natural showers survive.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import pairwise

import lightgbm
import numpy as np

from showerstack.scoring.metrics.gamma import EFFICIENCIES, SurvivorWeights, efficiency_name, hadron_survival
from showerstack.scoring.metrics.survival_bootstrap import survival_interval
from showerstack.showers.array import KASCADE
from showerstack.showers.lateral import axis_distance
from showerstack.showers.schema import GAMMA
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents
from showerstack.showers.simulation.cascade import RARE, Proposal
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.settings import load_settings

PUBLISHED = {0.50: "3e-5 (1 event)", 0.75: "2.6e-4 to 5e-4", 0.90: ".017", 0.95: ".29", 0.99: ".78 to .80"}
"""Best systems on the public test set (vvsotnikov/astro-bench)."""
RINGS_M = (0.0, 15.0, 30.0, 50.0, 80.0, 300.0)
OTHER = Proposal(share=0.5, mean=3.0)
SETTINGS = {
    "objective": "binary", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 50, "lambda_l2": 1.0,
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1, "seed": 1,
}  # fmt: skip
ROUNDS = 300

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Quantities (N, 19), labels (N,) and weights (N,)."""


def quantities(events: SimulatedEvents) -> np.ndarray:
    """Return the 19 quantities of events, (n, 19) float32."""
    e = events.event
    core = (values[:, None, None] for values in (e.core_x_m, e.core_y_m, e.zenith_deg, e.azimuth_deg))
    r_m = axis_distance(KASCADE.x_m, KASCADE.y_m, *core)
    columns = [e.zenith_deg, e.lg_ne, e.lg_nmu, e.age]
    for low, high in pairwise(RINGS_M):
        inside = (r_m >= low) & (r_m < high)
        electrons, muons = (np.where(inside, events.grids[..., k], 0.0) for k in (0, 1))
        columns += [np.log1p(electrons.sum(axis=(1, 2))), np.log1p(muons.sum(axis=(1, 2)))]
        columns.append(np.count_nonzero(muons, axis=(1, 2)))
    return np.column_stack(columns).astype(np.float32)


def sample(job: BlockJob, n: int, workers: int) -> Sample:
    """Return the first ``n`` events of a job."""
    parts = []
    for events in accepted_events(job, n, workers):
        weights = np.ones(len(events)) if events.weight is None else events.weight.astype(np.float64)
        parts.append((quantities(events), events.labels.astype(int), weights))
    x, labels, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return x, labels, weights


def learned(train: Sample) -> lightgbm.Booster:
    """Return boosted trees that have learned which events are gammas."""
    x, labels, weights = train
    return lightgbm.train(SETTINGS, lightgbm.Dataset(x, labels == 0, weight=weights), num_boost_round=ROUNDS)


def lines(world: str, name: str, trees: lightgbm.Booster, test: Sample) -> list[str]:
    """Return a row of the table for each efficiency."""
    x, labels, weights = test
    scores = np.asarray(trees.predict(x, raw_score=True, num_threads=1))
    rows = []
    for efficiency in EFFICIENCIES:
        result = hadron_survival(labels, scores, efficiency, weights)
        interval = survival_interval(labels, scores, weights=weights, efficiency=efficiency)
        certain: SurvivorWeights | None = result.weights
        assert certain is not None
        text = f"{result.hadron_survival:.1e} [{interval.low:.1e}, {interval.high:.1e}]"
        if interval.is_limit:
            text = f"< {interval.high:.1e} ({result.hadron_survival:.0e})"
        cells = (world, name, efficiency_name(efficiency), text, f"{certain.n_effective:,.0f}")
        rows.append(f"| {' | '.join((*cells, f'{certain.largest:.3f}', PUBLISHED[efficiency]))} |")
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="default,gammas")
    parser.add_argument("--train", type=int, default=50_000, help="events under the test's cuts to learn from")
    parser.add_argument("--test", type=int, default=300_000, help="the same to test on")
    parser.add_argument("--natural", action="store_true", help="also unweighted showers and another proposal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    print("| world | tested on | gammas kept | hadrons left, 95 % | n_eff | largest weight | public simulation |")
    print("|---|---|---|---|---|---|---|")
    for world in arguments.worlds.split(","):
        rare = BlockJob(GAMMA, "train", arguments.seed, "mix", "test", load_settings(world), proposal=RARE)
        trees = learned(sample(rare, arguments.train, arguments.workers))
        tests = {"rare": RARE} | ({"natural": None, "other proposal": OTHER} if arguments.natural else {})
        for name, proposal in tests.items():
            job = replace(rare, split="test", proposal=proposal)
            for line in lines(world, name, trees, sample(job, arguments.test, arguments.workers)):
                print(line, flush=True)
    learned_from = f"{arguments.train:,} events learned from, {arguments.test:,} tested on, seed {arguments.seed}"
    print(f"\n{learned_from}; {time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()
