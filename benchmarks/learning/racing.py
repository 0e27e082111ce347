"""What racing over the first fold costs in log-loss, and what it saves.

    python -m benchmarks.learning.racing --work W --store

Every learner of a preset is fitted in full, once a seed; from the same fits follow what a stack predicts that keeps all
learners, one that leaves out by its rule after all fits, and one that leaves out after the first fold and then by the
rule. Judged on test showers, whose labels are read at the end: log-loss minus that of the rule after all fits, paired,
± one standard error of test showers and seeds, and the share of the fits' processor time. Training sets without cuts
have too few showers under the cuts for a holdout where they are small, those under the cuts (``--cuts test``) have one;
killed, it goes on.

With ``--subsets`` also what is gained where a pool that is no better than its best learner gives way to it: over all
sets of two, three, four or all of the learners, the mean difference of what ships in log-loss of test showers, the
smallest and the largest, and the same against the best learner.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.learning.peers import events
from benchmarks.shared.results import HELP, store
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.stacking.answers import stacking_of
from showerstack.stacking.config import StackConfig
from showerstack.stacking.events import Data
from showerstack.stacking.folds import Folds, make_folds
from showerstack.stacking.layout import OWN_FOLD
from showerstack.stacking.options import TOLERANCE
from showerstack.stacking.second_level import FIRST_FOLD, average_of, combine, combined, leaving, scaled
from showerstack.stacking.training.fits import FoldTask
from showerstack.stacking.training.plan import Plan
from showerstack.stacking.training.train import Collected, collect, stack

RULE, RACED, ALL, ALONE = "left out after all fits", "after one fold", "all learners", "best learner alone"


class Finished(NamedTuple):
    """A run with all fits of all learners, opened for other second levels."""

    folder: Path
    """Of the sets."""
    data: Data
    folds: Folds
    tasks: list[FoldTask]
    collected: Collected


def finished(work: Path, n_train: int, n_test: int, seed: int, preset: str, cuts: str) -> Finished:
    """Train a run with all fits, or open it."""
    folder = work / f"{n_train}-{n_test}-{seed}{'' if cuts == 'none' else f'-{cuts}'}"
    if not (folder / "done").exists():
        simulate(COMPOSITION, folder, n_train=n_train, n_test=n_test, seed=seed, train_cuts=cuts, overwrite=True)
        (folder / "done").touch()
    config = StackConfig(
        task=COMPOSITION.name, data=folder, run=folder / "run", preset=preset, race="off", prune=0, workers=1,
        device="cpu", seed=seed,
    )  # fmt: skip
    stack(config)
    plan = Plan.of(config, Context())
    data = plan.data
    folds = make_folds(
        data.train.known(), data.task.classes, n_folds=config.n_folds, repeats=config.repeats, holdout=config.holdout,
        least=config.min_holdout, seed=config.seed,
    )  # fmt: skip
    tasks = plan.tasks()
    return Finished(folder, data, folds, tasks, collect(folds, tasks, [], (), None))


def predicted(run: Finished, names: Collection[str], tolerance: float) -> tuple[np.ndarray, str]:
    """Return the test posteriors (N, C) of what ships if only these learners have all fits, and what it is."""
    config, classes = run.data.config, stacking_of(run.data.task)
    part = {name: z for name, z in run.collected.out_of_fold.items() if name in names}
    held = run.collected.holdout
    found = combine(
        run.folds, part, None if held is None else {name: held[name] for name in part}, {}, tolerance=tolerance,
        pools=config.pools, survival=classes.survival, seed=config.seed, energy=run.data.train.known().energy,
        step=lambda _: nullcontext(),
    )  # fmt: skip
    fits = range(config.n_folds * config.repeats)
    folder = run.tasks[0].run
    averages = {
        name: average_of(folder.read_fits(name, (None,) if name in run.collected.networks else fits)) for name in part
    }
    systems = {name: scaled(z, found.scales[name]) for name, z in combined(averages, found.stack.pool).items()}
    return systems[found.shipped], f"{found.shipped}: {', '.join(found.needed)}"


def of_seed(run: Finished, n_classes: int) -> tuple[Mapping[str, np.ndarray], Mapping[str, str], float]:
    """Return test posteriors and what they are of by way, and the share of the fits' time that racing needs."""
    folder, every = run.tasks[0].run, run.collected.names
    first = {name: folder.fit(name, FIRST_FOLD).read(OWN_FOLD) for name in every}
    of_first = run.folds.out_of_fold & (run.folds.partitions[0] == FIRST_FOLD)
    gone = leaving(
        first, run.folds.sample(of_first), n_classes, TOLERANCE, run.data.config.seed,
        survival=stacking_of(run.data.task).survival,
    )  # fmt: skip
    left = {learner.name for learner in gone}
    kept = [name for name in every if name not in left]
    sample = run.folds.sample(run.folds.out_of_fold)
    best = min(every, key=lambda name: float(sample.losses(run.collected.out_of_fold[name]).mean()))
    ways = {RULE: (every, TOLERANCE), RACED: (kept, TOLERANCE), ALL: (every, 0.0), ALONE: ([best], 0.0)}
    found = {way: predicted(run, *what) for way, what in ways.items()}
    times = {(task.name, task.fold): cost.cpu_s for task in run.tasks if (cost := task.saved.record().cost)}
    needed = sum(s for (name, fold), s in times.items() if name in kept or fold == FIRST_FOLD)
    return (
        {way: z for way, (z, _) in found.items()},
        {way: what for way, (_, what) in found.items()},
        needed / sum(times.values()),
    )


def of_subsets(run: Finished, labels: np.ndarray) -> str:
    """Return the row of a seed."""
    sample, names = run.folds.sample(run.folds.out_of_fold), run.collected.names
    alone = {name: float(event_losses(predicted(run, [name], 0.0)[0], labels).mean()) for name in names}
    known = {name: float(sample.losses(run.collected.out_of_fold[name]).mean()) for name in names}
    now, before, best = [], [], []
    for number in sorted({2, 3, 4, len(names)}):
        for some in itertools.combinations(names, number):
            now.append(float(event_losses(predicted(run, some, TOLERANCE)[0], labels).mean()))
            with patch("showerstack.stacking.second_level.best_alone", lambda stack, *_, **__: stack):
                before.append(float(event_losses(predicted(run, some, TOLERANCE)[0], labels).mean()))
            best.append(alone[min(some, key=known.__getitem__)])
    gaps = [np.array(now) - np.array(other) for other in (before, best)]
    cells = [f"{gap.mean():+.5f} ({gap.min():+.5f}..{gap.max():+.5f})" for gap in gaps]
    holdout = "none" if run.collected.holdout is None else f"{run.folds.holdout.sum():,}"
    return f"{len(sample):,} | {holdout} | {len(now)} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for simulated showers and runs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000], help="training showers")
    parser.add_argument("--cuts", choices=("none", "test"), default="none", help="of the training showers")
    parser.add_argument("--test", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="good")
    parser.add_argument("--subsets", action="store_true")
    parser.add_argument("--store", nargs="?", const="racing", metavar="NAME", help=f"{HELP}NAME.md (racing)")
    options = parser.parse_args()
    lines = ["| training showers | way | log-loss | minus the first row | what ships, by seed | fits' time |"]
    lines.append("|---|---|---|---|---|---|")
    print("\n".join(lines), flush=True)
    subsets = ["", "| training showers | judged | holdout | sets | minus without the step | minus the best learner |",
               "|---|---|---|---|---|---|"]  # fmt: skip
    for size in options.sizes:
        losses: dict[str, list[np.ndarray]] = {}
        ships: dict[str, list[str]] = {}
        shares = []
        for seed in range(1, options.seeds + 1):
            run = finished(options.work, size, options.test, seed, options.preset, options.cuts)
            posteriors, what, share = of_seed(run, COMPOSITION.n_classes)
            labels = events(run.folder, COMPOSITION, "test", labelled=True).known().labels
            for way, log_proba in posteriors.items():
                losses.setdefault(way, []).append(event_losses(log_proba, labels))
                ships.setdefault(way, []).append(what[way])
            shares.append(share)
            if options.subsets:
                subsets.append(f"| {size:,}, seed {seed} | {of_subsets(run, labels)}")
                print(subsets[-1], flush=True)
        for way, of_seeds in losses.items():
            gaps = np.array(of_seeds) - np.array(losses[RULE])
            of_events = np.sqrt((gaps.var(axis=1, ddof=1) / gaps.shape[1]).sum()) / len(gaps)
            of_training = gaps.mean(axis=1).std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
            gap = "" if way == RULE else f"{gaps.mean():+.5f} ± {np.hypot(of_events, of_training):.5f}"
            time = f"{np.mean(shares):.2f} ({min(shares):.2f}..{max(shares):.2f})" if way == RACED else "1"
            lines.append(
                f"| {size:,} | {way} | {np.mean(of_seeds):.5f} | {gap} | {'; '.join(ships[way])} "
                f"| {time if way in (RULE, RACED, ALL) else ''} |"
            )
            print(lines[-1], flush=True)
    lines += subsets if options.subsets else []
    if options.store:
        store(options.store, "Racing over the first fold", "\n".join(lines), weights="shipped")


if __name__ == "__main__":
    main()
