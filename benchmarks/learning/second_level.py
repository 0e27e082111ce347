"""What the second level is worth beside that of another checkout, on the same fits, and what rules of the gate lose.

    OMP_NUM_THREADS=1 python -m benchmarks.learning.second_level --against FOLDER --work bench/second_level

FOLDER is a checkout of another version, such as 9b19344. Its ``cli.py`` simulates the showers, trains the learners and
finds its own stack. Here the stack of this version is found from the very same predictions of the fits, and both
predict the test showers, whose labels are read last. A second table lets every subset of two or more learners choose
what predicts by four rules, and says what that loses against the better of stack and best learner in hindsight.
``waves``
is a table of numbers, three fifths of its rows to train on. With ``--store`` both tables go to ``benchmarks/results/``.

Differences are this version minus the other, with one standard error, log-loss in thousandths of a nat.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.learning.stack import markdown
from benchmarks.shared.results import HELP, store
from benchmarks.shared.tables import LABEL, table
from showerstack.models.base.posterior import log_softmax
from showerstack.scoring.metrics.composition import paired_fraction_error
from showerstack.scoring.metrics.gamma import GAMMA, HADRON, hadron_survival
from showerstack.scoring.metrics.survival_bootstrap import weighted_replicas
from showerstack.showers.schema import TASKS
from showerstack.stacking.calibration import calibrated, scaled
from showerstack.stacking.folds import assign_folds
from showerstack.stacking.gate import Gate, decide_gate
from showerstack.stacking.pools import fit_stack
from showerstack.stacking.sample import Sample

LEARNERS = "lightgbm,xgboost,catboost,mlp,lenet_fits,quadratic_logit"
WORLDS = {"harder": "composition", "default": "composition", "gammas": "gamma", "waves": "table"}
SIZES = {"composition": (24_000, 40_000), "gamma": (30_000, 60_000)}
"""Training and test showers by task."""
OF_SHOWERS = ("lenet_fits", "pretrained")
"""Learners that cannot learn from a table."""
RULES = {"better by two errors": 2.0, "better by one error": 1.0, "not worse by one error": -1.0, "always": -np.inf}
"""By rule, the standard errors of the gain from which the stack is used."""
EFFICIENCIES = (0.75, 0.90)
RESAMPLES = 300
TINY = 1e-9
"""Survival that stands for none."""


@dataclass(frozen=True)
class Fits:
    """What the fits of a run say of labelled showers, by learner: (n, C) log-probabilities."""

    task: str
    inner: Mapping[str, np.ndarray]
    """Out-of-fold."""
    inner_sample: Sample
    outer: Mapping[str, np.ndarray]
    """Of the holdout, averaged over fits."""
    outer_sample: Sample
    test: Mapping[str, np.ndarray]
    """Averaged over fits."""
    test_sample: Sample

    @classmethod
    def of(cls, run: Path, data: Path, task: str) -> Fits:
        """Read the arrays that the fits left in a run folder, and the labels of both sets."""
        folds, counted = np.load(run / "folds.npy")[0], np.load(run / "in_evaluation.npy")
        inner, outer = counted & (folds >= 0), counted & (folds < 0)
        sets = {}
        for split in ("train", "test"):
            labels, weights = _truth(data, task, split)
            sets[split] = Sample(labels, folds if split == "train" else np.zeros(len(labels), int), None, weights)
        holdout = sets["train"].take(outer)
        holdout = Sample(holdout.labels, assign_folds(holdout.labels, 5, seed=1), None, holdout.weights)
        parts: dict[str, dict[str, np.ndarray]] = {"inner": {}, "outer": {}, "test": {}}
        for learner in sorted(path.name for path in (run / "learners").iterdir()):
            folders = sorted((run / "learners" / learner).glob("fold-*"))
            z = np.full((len(folds), int(sets["train"].labels.max()) + 1), np.nan)
            for k, folder in enumerate(folders):
                z[(folds == k) & counted] = np.load(folder / "held_out.npz")["log_proba"]
            parts["inner"][learner] = z[inner]
            for name in ("outer", "test"):
                each = np.stack([np.load(folder / f"{name}.npz")["log_proba"] for folder in folders])
                parts[name][learner] = log_softmax(each.mean(axis=0))
        return cls(
            task, parts["inner"], sets["train"].take(inner), parts["outer"], holdout, parts["test"], sets["test"]
        )


def _truth(data: Path, task: str, split: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (N,) int64 class numbers, and weights if there are any."""
    if task not in TASKS:
        return pl.read_parquet(data / f"{split}.parquet", glob=False)[LABEL].to_numpy().astype(np.int64), None
    folder = data / f"{task}_{split}"
    weights = np.load(folder / "weight.npy").astype(float) if (folder / "weight.npy").exists() else None
    return np.load(folder / str(TASKS[task].label_file)).astype(np.int64), weights


@dataclass(frozen=True)
class SecondLevel:
    """A second level of this version."""

    gate: Gate
    pool: str
    kept: tuple[str, ...]
    stack: np.ndarray
    """(M, C) of the test showers."""
    best: np.ndarray
    """The same of the learner that is best on the holdout."""

    @property
    def shipped(self) -> np.ndarray:
        """(M, C) of what is used."""
        return self.stack if self.gate.shipped else self.best


def outcome(fits: Fits, learners: tuple[str, ...], **options: Any) -> SecondLevel:
    """Find the stack of these learners, calibrate, decide, predict the test showers."""
    survival = fits.task == "gamma"
    inner, outer, test = ({name: part[name] for name in learners} for part in (fits.inner, fits.outer, fits.test))
    stack = fit_stack(inner, fits.inner_sample, survival=survival, **options)
    systems, scales = {}, {}
    for name, z in (outer | {"stack": stack.pool(outer)}).items():
        scales[name], systems[name] = calibrated(z, fits.outer_sample)
    stacked = systems.pop("stack")
    gate = decide_gate(stacked, systems, fits.outer_sample, survival=survival)
    best = scaled(test[gate.best_learner], scales[gate.best_learner])
    return SecondLevel(gate, stack.pool.name, stack.pool.needed, scaled(stack.pool(test), scales["stack"]), best)


def beside(fits: Fits, run: Path) -> Iterator[tuple[str, Any]]:
    """Yield a row of the first table: this version's second level beside the one in the run."""
    manifest = json.loads((run / "manifest.json").read_text())
    ours, sample = outcome(fits, tuple(fits.test)), fits.test_sample
    theirs = {name: np.load(run / "test" / f"{name}.npz")["log_proba"] for name in ("stack", *fits.test, "average")}
    gate = manifest["gate"]
    shipped = theirs["stack"] if gate["shipped"] else theirs[gate["best_learner"]]
    yield "pool here; there", f"{ours.pool} of {len(ours.kept)}; {manifest['meta']['chosen']}"
    yield "used here; there", f"{_shipped(ours.gate)}; {'stack' if gate['shipped'] else gate['best_learner']}"
    for name, a, b in (("stack", ours.stack, theirs["stack"]), ("what is used", ours.shipped, shipped)):
        gain = sample.losses(a) - sample.losses(b)
        yield f"log-loss of {name}", f"{1e3 * gain.mean():+.2f} ± {1e3 * sample.error(gain):.2f}"
        if fits.task == "composition":
            paired = paired_fraction_error(sample.labels, a.argmax(axis=1), b.argmax(axis=1))
            yield f"fraction error of {name}", f"{paired.difference:+.5f} ± {paired.standard_error:.5f}"
        elif fits.task == "gamma":
            scores = [z[:, GAMMA] - z[:, HADRON] for z in (a, b)]
            for efficiency in EFFICIENCIES:
                yield f"ln survival of {name} at {100 * efficiency:.0f} %", _survival(sample, *scores, efficiency)


def _shipped(gate: Gate) -> str:
    return f"stack{', gain claimed' if gate.claimed else ''}" if gate.shipped else gate.best_learner


def _survival(sample: Sample, a: np.ndarray, b: np.ndarray, efficiency: float) -> str:
    here, there = (hadron_survival(sample.labels, one, efficiency, sample.weights).hadron_survival for one in (a, b))
    replicas = weighted_replicas(sample.labels, (a, b), (efficiency,), sample.weights, None, RESAMPLES, 0)
    first, second = (np.log(np.maximum(one[0], TINY)) for one in replicas)
    return f"{np.log(max(here, TINY) / max(there, TINY)):+.3f} ± {np.std(first - second):.3f}"


def regrets(fits: Fits) -> dict[str, np.ndarray]:
    """Return by rule what it loses with every subset of two or more learners, in log-loss."""
    lost: dict[str, list[float]] = {rule: [] for rule in RULES}
    names = tuple(fits.test)
    for learners in (some for n in range(2, len(names) + 1) for some in combinations(names, n)):
        one = outcome(fits, learners, tolerance=0.0)
        losses = {name: float(fits.test_sample.losses(z).mean()) for name, z in (("s", one.stack), ("b", one.best))}
        for rule, sigma in RULES.items():
            ships = one.gate.gain > sigma * one.gate.standard_error
            lost[rule].append(losses["s" if ships else "b"] - min(losses.values()))
    return {rule: np.array(values) for rule, values in lost.items()}


def made(against: Path, work: Path, world: str, seed: int, learners: str) -> tuple[Path, Path]:
    """Let the other checkout simulate, train and find its stack, unless it has; return data and run."""
    task = WORLDS[world]
    data, run = work / f"{world}-{seed}", work / f"run-{world}-{seed}"
    if not (run / "checksums.json").exists():
        settings = work / "settings.toml"
        settings.write_text("fast = false\n")
        options = ["--run", run, "--preset", "quick", "--folds", 3, "--seed", seed, "--quiet", "--workers", 1]
        if task in TASKS:
            _simulate(against, data, world, seed)
            options += ["--task", task, "--data", data, "--learners", learners]
        else:
            train, test = _split(data, world, seed)
            able = [name for name in learners.split(",") if name not in OF_SHOWERS]
            options += ["--table", train, "--test-table", test, "--label", LABEL, "--learners", ",".join(able)]
        _in(against, "stack", "--config", settings, *options)
    return data, run


def _simulate(against: Path, data: Path, world: str, seed: int) -> None:
    task = WORLDS[world]
    if (data / f"{task}_test").exists():
        return
    n_train, n_test = SIZES[task]
    numbers = ["--train", n_train, "--test", n_test, "--world", world, "--seed", seed]
    more = ["--rare"] if task == "gamma" else []
    _in(against, "simulate", "--task", task, "--out", data, *numbers, "--train-cuts", "test", "--overwrite", *more)


def _split(data: Path, name: str, seed: int) -> tuple[Path, Path]:
    """Write training and test rows of a table; the test labels are left in and not read."""
    frame = table(name)
    assert frame is not None
    rows = frame.sample(fraction=1.0, shuffle=True, seed=seed)
    n_train = 3 * frame.height // 5
    data.mkdir(exist_ok=True)
    for split, part in (("train", rows[:n_train]), ("test", rows[n_train:])):
        part.write_parquet(data / f"{split}.parquet")
    return data / "train.parquet", data / "test.parquet"


def _in(folder: Path, *words: object) -> None:
    subprocess.run([sys.executable, "cli.py", *map(str, words)], cwd=folder, check=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="checkout of another version")
    parser.add_argument("--work", type=Path, default=Path("bench/second_level"), help="folder for showers and runs")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--learners", default=LEARNERS)
    parser.add_argument("--store", metavar="NAME", help=f"{HELP}NAME.md")
    parser.add_argument("--no-rules", action="store_true", help="leave out the second table, which takes longer")
    given = parser.parse_args()
    work, rows, lost = given.work.absolute(), [], []
    work.mkdir(parents=True, exist_ok=True)
    for world in given.worlds.split(","):
        by_rule: dict[str, list[np.ndarray]] = {rule: [] for rule in RULES}
        for seed in map(int, given.seeds.split(",")):
            data, run = made(given.against.absolute(), work, world, seed, given.learners)
            fits = Fits.of(run, data, WORLDS[world])
            for quantity, value in beside(fits, run):
                rows.append([world, str(seed), quantity, value])
                print(*rows[-1], flush=True)
            for rule, values in ({} if given.no_rules else regrets(fits)).items():
                by_rule[rule].append(1e3 * values)
        for rule, each in by_rule.items():
            if each:
                means, largest = [one.mean() for one in each], max(one.max() for one in each)
                lost.append([world, rule, ", ".join(f"{one:.2f}" for one in means), f"{largest:.2f}"])
    texts = [markdown(["world", "seed", "this version minus the other", "value"], rows)]
    if lost:
        texts.append(markdown(["world", "stack if", "lost in the mean, by seed, 0.001", "largest"], lost))
    print("\n\n".join(texts))
    if given.store:
        simulated = [world for world in given.worlds.split(",") if WORLDS[world] in TASKS]
        store(
            given.store,
            "The second level beside that of another version",
            "\n\n".join(texts),
            worlds=simulated,
            pretrained="pretrained" in given.learners,
        )


if __name__ == "__main__":
    main()
