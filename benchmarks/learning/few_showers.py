r"""What a training shower is worth: the pretrained network fine-tuned on few of them, beside one trained from scratch.

    python -m benchmarks.learning.few_showers --choose
    python -m benchmarks.learning.few_showers --choose --ways "chosen/15 % kept back" --sizes 2000,5000 --seeds 1,2
    python -m benchmarks.learning.few_showers --choose --two --ways "chosen/3 epochs" --sizes 100,300
    python -m benchmarks.learning.few_showers --choose --ways "classes alone/classes and truth" --sizes 2000,5000
    python -m benchmarks.learning.few_showers --store
    python -m benchmarks.learning.few_showers --choose --drawn 8 --weights FILE
    python -m benchmarks.learning.few_showers --first-look --store
    python -m benchmarks.learning.few_showers --groups light=H+He,CNO=C+N+O,heavy=Si+Fe --seeds 1,2 --store

With ``--choose`` ways of fine-tuning are compared at drawn arrays and in drawn worlds, on which they are chosen: for
how many epochs, in what steps, and how far; with ``--weights`` the released weights with others. Without it the chosen
way is measured at KASCADE and the arrays of :mod:`benchmarks.learning.any_array`, where nothing is chosen. Showers and
losses are kept below OUT.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fits.arrays import cases
from benchmarks.learning.any_array import ARRAYS, DRAWN, FOREIGN_AT, N_TEST, SCRATCH, STARTED
from benchmarks.learning.pretraining import DATA_SEED, only
from benchmarks.shared.drawn import FOREIGN, RANDOM, drawn
from benchmarks.shared.results import HELP, store
from showerstack.features.catalogue import feature_set
from showerstack.models.base.inputs import targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.arrays import draw_array
from showerstack.models.pretraining.distance import distance_of
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.pretraining.weights import ANY, hash_of, read_pretrained
from showerstack.models.registry import create, spec
from showerstack.runtime.files import write_npz
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.schema import COMPOSITION, TASKS
from showerstack.stacking.prediction.first_look import posteriors

CHOSEN, HALFWAY, KEPT_BACK = "chosen", "10 epochs, halfway", "15 % kept back"
UNTAUGHT, AFTER = "world found without truth", "3 epochs after the world"
UNTRAINED = {"learning_rate": 1e-12, "epochs": 1, "by_number": False}
SMALL_STEPS: dict[str, Any] = {"batch_size": 32, "patience": 99, "by_number": False}
WAYS: dict[str, dict[str, Any]] = {
    CHOSEN: {},
    "none": UNTRAINED,
    "3 epochs": SMALL_STEPS | {"epochs": 3},
    "10 epochs": SMALL_STEPS | {"epochs": 10},
    "30 epochs": SMALL_STEPS | {"epochs": 30},
    "10 epochs, 256 a step": SMALL_STEPS | {"batch_size": 256},
    HALFWAY: SMALL_STEPS | {"epochs": 10},
    KEPT_BACK: {"by_number": False},
    "classes alone": {"truth_weight": 0.0},
    "classes and truth": {"truth_weight": 0.3},
    UNTAUGHT: {"by_number": False},
    AFTER: {"by_number": False},
}
"""Settings; halfway: the weights are the mean of those before and after; kept back: to stop early."""
VALID_SHARE, LEAST_VALID = 0.15, 20
CHOICE_SIZES, SIZES, SCRATCH_SIZES = (50, 100, 300, 1000), (100, 300, 1000, 5000), (1000, 5000, 17_000)
MOST = 20_000
BESIDE_SIZES = (0, 300, 2000)
TWO = (0, 4)
"""Proton and iron among the five."""


def loss(
    name: str, system: str, way: str, n: int, seed: int, sets: tuple[Batch, Batch], task: str, out: Path,
    weights: str = ANY, classes: tuple[str, ...] = (),
) -> float:  # fmt: skip
    """Return the mean log-loss of the test showers of one fit, made where it is not kept; 0 showers: no training."""
    start = hash_of(weights)
    name = name if weights == ANY else f"{name}-{start[:10]}"
    file = out / "losses" / f"{name}-{task}-{system}-{way}-{n}-{seed}.npz".replace(" ", "_").replace("/", "_")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = spec(system)
        assert isinstance(entry.features, str)
        columns = feature_set(entry.features, sets[0].columns)
        events, test = (only(batch, columns) for batch in sets)
        settings = WAYS.get(way, {}) | ({"weights": weights, "weights_sha256": start} if system == STARTED else {})
        settings |= {} if n else UNTRAINED
        rows = np.random.default_rng([n, seed]).permutation(len(events))[: n or 400]
        n_valid = max(round(VALID_SHARE * len(rows)), LEAST_VALID)
        parts = (rows[n_valid:], rows[:n_valid]) if way in (CHOSEN, KEPT_BACK) else (rows, rows)
        train, valid = (events.take(np.sort(part)) for part in parts)
        if way == UNTAUGHT:
            train = valid = replace(train, targets=None)
        learner = create(entry, classes or TASKS[task].classes, overrides=settings, n_rows=n)
        if way in (UNTAUGHT, AFTER):
            assert isinstance(learner, PretrainedLearner)
            learner._train_after_world(3 if way == AFTER else 0)
        learner.fit(train, valid, seed=seed)
        if way == HALFWAY:
            before = create(entry, TASKS[task].classes, overrides=settings | UNTRAINED, n_rows=n)
            before.fit(train, valid, seed=seed)
            ends: list[Any] = [vars(one)["network_"] for one in (before, learner)]
            start, end = (network.state_dict() for network in ends)
            ends[1].load_state_dict({name: (start[name] + end[name]) / 2 for name in start})
        assert test.labels is not None
        write_npz(file, loss=event_losses(learner.predict_log_proba(replace(test, labels=None)), test.labels))
    with np.load(file) as kept:
        return float(kept["loss"].mean())


def sets_of(world: str, task: str, array: DetectorArray, out: Path, seed: int = DATA_SEED) -> tuple[Batch, Batch]:
    """Return training showers, with true quantities, and test showers."""
    (train, truth), (test, _) = (
        drawn(world, task, n, seed=seed, split=split, data=out / "data", array=array, elsewhere=array != KASCADE)
        for n, split in ((MOST, "train"), (N_TEST, "test"))
    )
    targets = targets_of(truth, truth["fit_core_x_m"].to_numpy(), truth["fit_core_y_m"].to_numpy())
    return replace(train, targets=targets), test


def choose(
    ways: list[str], sizes: list[int], n_arrays: int, seeds: list[int], task: str, two: bool, out: Path
) -> list[str]:
    """Return a table of ways at drawn arrays in drawn worlds, means over both and the training seeds.

    Of composition also with ``two`` primaries alone, proton and iron.
    """
    losses = np.zeros((len(ways), len(sizes), n_arrays, len(seeds)))
    classes = tuple(COMPOSITION.classes[k] for k in TWO) if two else ()
    for k in range(n_arrays):
        sets = sets_of(RANDOM, task, draw_array(np.random.default_rng([DRAWN, k])), out, DATA_SEED + k)
        if two:
            train, test = (batch.take(np.isin(batch.labels, TWO)) for batch in sets)
            sets = tuple(replace(one, labels=np.searchsorted(TWO, one.labels)) for one in (train, test))
        for j, n in enumerate(sizes):
            for i, way in enumerate(ways):
                for s, seed in enumerate(seeds):
                    name = f"drawn {k}{', two' if two else ''}"
                    losses[i, j, k, s] = loss(name, STARTED, way, n, seed, sets, task, out, classes=classes)
        print(f"drawn {k} of {n_arrays}", flush=True)
    rows = [
        f"| training | {' | '.join(f'{n:,}' for n in sizes)} |",
        "|" + "---|" * (len(sizes) + 1),
    ]
    for i, way in enumerate(ways):
        gaps = (losses[i] - losses[0]).reshape(len(sizes), -1)
        cells = [f"{losses[0, j].mean():.4f}" if i == 0 else
                 f"{gaps[j].mean():+.4f} ± {gaps[j].std(ddof=1) / gaps.shape[1] ** 0.5:.4f}"
                 for j in range(len(sizes))]  # fmt: skip
        rows.append(f"| {way} | {' | '.join(cells)} |")
    return rows


def heads(words: str, n_arrays: int, seeds: list[int], out: Path) -> list[str]:
    """Return a table of log-losses of other mass groups at drawn arrays in drawn worlds, by two starts of the head."""
    groups = groups_asked(words)
    of_five = groups.class_of_mass([masses[0] for masses in COMPOSITION.masses])
    entry, losses = spec(STARTED), np.zeros((2, len(SIZES) - 1, n_arrays, len(seeds)))
    for k in range(n_arrays):
        sets = sets_of(RANDOM, "composition", draw_array(np.random.default_rng([DRAWN, k])), out, DATA_SEED + k)
        columns = feature_set(str(entry.features), sets[0].columns)
        events, test = (replace(only(batch, columns), labels=of_five[batch.labels]) for batch in sets)
        assert test.labels is not None
        for j, n in enumerate(SIZES[:-1]):
            for s, seed in enumerate(seeds):
                train = events.take(np.sort(np.random.default_rng([n, seed]).permutation(len(events))[:n]))
                for i, masses in enumerate((groups.masses, ())):
                    start = {"weights": ANY, "weights_sha256": hash_of(ANY), "masses": masses}
                    learner = create(entry, groups.classes, overrides=start, n_rows=n).fit(train, train, seed=seed)
                    found = event_losses(learner.predict_log_proba(replace(test, labels=None)), test.labels)
                    losses[i, j, k, s] = found.mean()
        print(f"drawn {k} of {n_arrays}", flush=True)
    rows = [f"| start | {' | '.join(f'{n:,}' for n in SIZES[:-1])} |", "|" + "---|" * len(SIZES)]
    gaps = (losses[1] - losses[0]).reshape(len(SIZES) - 1, -1)
    more = (f"{gap.mean():+.4f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.4f}" for gap in gaps)
    rows.append(f"| nearest of the five | {' | '.join(f'{one.mean():.4f}' for one in losses[0])} |")
    return [*rows, f"| a new head | {' | '.join(more)} |"]


def beside(weights: str, tasks: list[str], n_arrays: int, seed: int, out: Path) -> list[str]:
    """Return a table of what other weights change at drawn arrays in drawn worlds, ± one standard error over them."""
    rows = [f"| task | {' | '.join(f'{n:,} showers' for n in BESIDE_SIZES)} |", "|" + "---|" * (len(BESIDE_SIZES) + 1)]
    for task in tasks:
        gaps = np.zeros((n_arrays, len(BESIDE_SIZES)))
        for k in range(n_arrays):
            sets = sets_of(RANDOM, task, draw_array(np.random.default_rng([DRAWN, k])), out, DATA_SEED + k)
            for j, n in enumerate(BESIDE_SIZES):
                new, old = (
                    loss(f"drawn {k}", STARTED, CHOSEN, n, seed, sets, task, out, one) for one in (weights, ANY)
                )
                gaps[k, j] = new - old
        errors = gaps.std(axis=0, ddof=1) / n_arrays**0.5
        rows.append(
            f"| {task} | {' | '.join(f'{a:+.4f} ± {b:.4f}' for a, b in zip(gaps.mean(axis=0), errors, strict=True))} |"
        )
    return rows


def curve(tasks: list[str], worlds: list[str], seeds: list[int], out: Path, weights: str) -> list[str]:
    """Return a table of log-losses by array: no shower, few, and a network from scratch with more."""
    known = {case.name: case.array for case in cases()}
    heads = ["task", "world", "array", "none", *(f"{n:,}" for n in SIZES), *(f"`mlp` {n:,}" for n in SCRATCH_SIZES)]
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for task in tasks:
        for world in worlds:
            for name in FOREIGN_AT if world == FOREIGN else ARRAYS:
                sets = sets_of(world, task, known[name], out)
                cells = [f"{loss(f'{world} {name}', STARTED, CHOSEN, 0, 1, sets, task, out, weights):.4f}"]
                for system, sizes in ((STARTED, SIZES), (SCRATCH, SCRATCH_SIZES)):
                    for n in sizes:
                        asked = (sets, task, out, weights)
                        each = [loss(f"{world} {name}", system, CHOSEN, n, seed, *asked) for seed in seeds]
                        spread = np.std(each, ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.nan
                        cells.append(f"{np.mean(each):.4f} ± {spread:.4f}")
                rows.append(f"| {task} | {world} | {name} | {' | '.join(cells)} |")
                print(rows[-1], flush=True)
    return rows


def first_looks(worlds: list[str], n_arrays: int, out: Path) -> list[str]:
    """Return a table of log-losses without any training, the world unknown, beside those of the classes' shares, and
    how many of a hundred drawn worlds lie further from the others than 1,000 and 100 showers, and protons alone."""
    known, pretrained, task = {case.name: case.array for case in cases()}, read_pretrained(ANY), COMPOSITION
    places = [(world, name, known[name], DATA_SEED) for world in worlds for name in ARRAYS]
    places += [
        (RANDOM, f"drawn {k}", draw_array(np.random.default_rng([DRAWN, k])), DATA_SEED + k) for k in range(n_arrays)
    ]
    rows = [
        "| world | array | first look | shares of the classes | further: 1,000 | 100 | 1,000 protons |",
        "|" + "---|" * 7,
    ]
    for world, name, array, seed in places:
        test, _ = drawn(
            world, task.name, N_TEST, seed=seed, split="test", data=out / "data", array=array,
            elsewhere=array != KASCADE,
        )  # fmt: skip
        assert test.labels is not None
        test = only(test, feature_set("fits+profile", test.columns))
        losses = event_losses(posteriors(pretrained, test, task), test.labels)
        shares = np.bincount(test.labels) / len(test)
        everything, protons = np.arange(len(test)), np.flatnonzero(test.labels == 0)
        further = [
            distance_of(pretrained, replace(test.take(chosen[:n]), labels=None), task).further
            for chosen, n in ((everything, 1000), (everything, 100), (protons, 1000))
        ]
        rows.append(
            f"| {world} | {name} | {losses.mean():.3f} ± {losses.std() / len(losses) ** 0.5:.3f} "
            f"| {-shares @ np.log(shares):.3f} | {' | '.join(str(one) for one in further)} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Parse, fit what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/few_showers"), help="folder of showers and losses")
    parser.add_argument("--choose", action="store_true", help="compare ways at drawn arrays and worlds")
    parser.add_argument("--first-look", action="store_true", help="without training, at KASCADE and six other arrays")
    parser.add_argument("--drawn", type=int, default=8, help="arrays that are drawn")
    parser.add_argument("--ways", default="/".join(WAYS), help="with --choose, by /: the first is compared with")
    parser.add_argument("--sizes", default=",".join(map(str, CHOICE_SIZES)), help="with --choose: showers")
    parser.add_argument("--two", action="store_true", help="with --choose: of composition proton and iron alone")
    parser.add_argument("--groups", help="of one's own, such as light=H+He,CNO=C+N+O,heavy=Si+Fe, at drawn arrays")
    parser.add_argument("--weights", default=ANY, help="a .safetensors file in place of the released weights")
    parser.add_argument("--tasks", default="composition")
    parser.add_argument("--worlds", default=f"harder,{FOREIGN}")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.first_look:
        rows = first_looks(options.worlds.split(","), options.drawn, options.out)
        words = (
            f"Log-loss of {N_TEST:,} test showers, five mass groups, ± one standard error. Further: how many of 100 "
            "drawn worlds lie further from the others than so many showers; at 0 a first look refuses them.\n\n"
        )
        name, title = "first_look", "A first look without training"
    elif options.groups:
        rows = heads(options.groups, options.drawn, seeds, options.out)
        words = (
            f"Log-loss of {N_TEST:,} test showers, groups {options.groups}, at {options.drawn} drawn arrays in drawn "
        )
        words += (
            f"worlds, {len(seeds)} training seeds; the second line is a difference, ± one standard error over both.\n\n"
        )
        name, title = "own_groups", "Mass groups of one's own: where training starts"
    elif options.choose and options.weights != ANY:
        print("\n".join(beside(options.weights, options.tasks.split(","), options.drawn, seeds[0], options.out)))
        return
    elif options.choose:
        ways, sizes = options.ways.split("/"), [int(n) for n in options.sizes.split(",")]
        rows = choose(ways, sizes, options.drawn, seeds, options.tasks, options.two, options.out)
        words = f"Log-loss of {N_TEST:,} test showers at {options.drawn} drawn arrays in drawn worlds, {len(seeds)} "
        words += "training seeds; from the second line on differences to the first, ± one standard error over both.\n\n"
        name, title = "few_showers_choice", "How to fine-tune on few showers"
    else:
        rows = curve(options.tasks.split(","), options.worlds.split(","), seeds, options.out, options.weights)
        words = (
            f"Log-loss of {N_TEST:,} test showers, means of training seeds {options.seeds}, ± their standard error.\n\n"
        )
        name, title = "few_showers", "What a training shower is worth"
    print("\n".join(rows))
    if options.store:
        store(name, title, words + "\n".join(rows), worlds=(), weights="any-array")


if __name__ == "__main__":
    main()
