"""What does a training lose in another hadronic model or world, how wrong are the shares then, and what helps?

``python -m benchmarks.physics.robustness --work bench/robustness --store`` simulates all places, trains, and stores the
tables. Showers and fits are kept: started again, it goes on.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.physics.places import PLACES, parse_places
from benchmarks.physics.robustness_study import ALONE, MIX, Cell, Robustness, RobustnessOptions, study
from benchmarks.shared.results import HELP, store
from showerstack.runtime.context import Context, bar
from showerstack.showers.schema import COMPOSITION

SEEN = 3.0
"""Errors by which a bias counts as seen."""


def main() -> None:
    """Do the study and store the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/robustness"))
    parser.add_argument("--store", action="store_true", help=HELP)
    parser.add_argument("--places", default=",".join(PLACES), help="world/model, the first is the reference")
    parser.add_argument("--train", type=int, default=16_000, help="training showers of each condition")
    parser.add_argument("--test", type=int, default=20_000, help="test showers of each condition")
    parser.add_argument("--learner", default="lightgbm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    started = time.perf_counter()
    options = RobustnessOptions(
        parse_places(given.places), given.work, train=given.train, test=given.test, learner=given.learner,
        seed=given.seed,
    )  # fmt: skip
    result = study(options, Context(bars=bar, workers=given.workers))
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(part.ru_utime + part.ru_stime for part in parts)
    text = "\n".join(tables(result, cpu / 60, (time.perf_counter() - started) / 60))
    print(text)
    if given.store:
        worlds = sorted({place.name.split("/")[0] for place in options.places})
        store("robustness", "Trained in one simulation, tested in another", text, worlds=worlds)


def tables(robustness: Robustness, cpu_min: float, wall_min: float) -> list[str]:
    """Return the tables as lines of Markdown."""
    options = robustness.options
    alone = [one for one in robustness.cells if one.training == ALONE]
    return [
        f"{options.train:,} training and {options.test:,} test",
        f"showers of each condition, learner `{options.learner}`, preset `{options.preset}`, one seed;",
        f"{cpu_min:.1f} minutes of processor time ({wall_min:.1f} by the clock).",
        "Brackets: 95 % intervals over test showers; the scatter from training to training is not in them.",
        "",
        *_summary(robustness, alone),
        "## Shares: largest bias of a group",
        "",
        "Found minus true share, in per cent ± one standard error, of the group that is furthest off in standard",
        f"errors; bold beyond {SEEN:g}. On the diagonal, where nothing is wrong, halves of the showers are compared:",
        "what chance does.",
        "",
        *_matrix(alone, _bias),
        "## Log-loss minus that of the reference's training, on the same showers",
        "",
        *_matrix(alone, _loss),
        "## Accuracy in per cent",
        "",
        *_matrix(alone, _accuracy),
        f"## What helps a training at {options.places[0].name}",
        "",
        "Log-loss minus that of the plain training in the reference (below zero: better), and the bias as above.",
        "A mixture leaves the tested condition out, except in the reference.",
        "",
        *_helps(robustness),
        f"## How well {options.places[0].name} is distinguished from other conditions",
        "",
        "| condition | area under the ROC curve |",
        "|---|---|",
        *(f"| {name} | {value:.3f} [{low:.3f}, {high:.3f}] |" for name, (value, low, high) in robustness.auc.items()),
        "",
        "The features that distinguish conditions best, which were left out: "
        f"{', '.join(f'`{name}`' for name in robustness.differing)}.",
    ]  # fmt: skip


def _summary(robustness: Robustness, alone: list[Cell]) -> list[str]:
    """Return what the tables come to, worst first."""
    home = robustness.options.places[0].name
    abroad = [one for one in alone if one.trained_on != one.tested_on]
    at_home = [one for one in alone if one.trained_on == one.tested_on]
    worst = max(abroad, key=lambda one: float(np.abs(one.bias / one.bias_error).max()))
    loss = max(abroad, key=lambda one: one.against_home.difference)
    rows = [
        f"* A share is off by more than {SEEN:g} standard errors in {sum(map(_seen, abroad))} of {len(abroad)}",
        "  pairs of different conditions,",
        f"  and in {sum(map(_seen, at_home))} of {len(at_home)} where nothing differs.",
        f"  The clearest: {_bias(worst)} %, trained in {worst.trained_on} and measured in {worst.tested_on}.",
        f"* Largest increase of the log-loss over the reference's training: {_loss(loss)},",
        f"  trained in {loss.trained_on}, tested in {loss.tested_on}.",
    ]
    for kind in dict.fromkeys(one.training for one in robustness.cells if one.training != ALONE):
        every = [one for one in robustness.cells if one.training == kind]
        there = [one for one in every if one.tested_on != home]
        better = sum(one.against_home.interval.high < 0 for one in there)
        worse = sum(one.against_home.interval.low > 0 for one in there)
        cost = "".join(f"; in the reference {_loss(one)}" for one in every if one.tested_on == home)
        rows += [
            f"* {kind[0].upper()}{kind[1:]}: log-loss better in {better} and worse in {worse}",
            f"  of {len(there)} other conditions,",
            f"  a share off in {sum(map(_seen, there))}{cost}.",
        ]
    return [*rows, ""]


def _seen(one: Cell) -> bool:
    return bool((np.abs(one.bias / one.bias_error) > SEEN).any())


def _bias(one: Cell) -> str:
    pulls = np.abs(one.bias / one.bias_error)
    k = int(pulls.argmax())
    text = f"{COMPOSITION.classes[k]} {100 * one.bias[k]:+.1f} ± {100 * one.bias_error[k]:.1f}"
    return f"**{text}**" if pulls[k] > SEEN else text


def _loss(one: Cell) -> str:
    interval = one.against_home.interval
    return f"{one.against_home.difference:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def _accuracy(one: Cell) -> str:
    low, high = one.accuracy_interval
    return f"{100 * one.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _matrix(cells: list[Cell], shown: Callable[[Cell], str]) -> list[str]:
    """Return a table with a row for each training and a column for each tested place."""
    trained, tested = (list(dict.fromkeys(getattr(one, name) for one in cells)) for name in ("trained_on", "tested_on"))
    by_pair = {(one.trained_on, one.tested_on): one for one in cells}
    return [
        f"| trained in | {' | '.join(tested)} |",
        f"|---|{'---|' * len(tested)}",
        *(f"| {row} | {' | '.join(shown(by_pair[row, column]) for column in tested)} |" for row in trained),
        "",
    ]


def _helps(robustness: Robustness) -> list[str]:
    lines = ["| training | tested in | log-loss | bias |", "|---|---|---|---|"]
    for one in robustness.cells:
        if one.training != ALONE:
            name = f"{one.training} of {one.trained_on}" if one.training == MIX else one.training
            lines.append(f"| {name} | {one.tested_on} | {_loss(one)} | {_bias(one)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
