"""What each group of features is worth to a good LightGBM and a small MLP, on simulated showers under the test's cuts.

    python -m benchmarks.learning.feature_value --train 60000 --out value --store

Each group is added to the reconstructed scalars, left out of the set ``fits`` or added to it. Differences are paired:
same test showers, 95 % intervals. Early stopping sees a split of the training showers; the test showers' labels are
read only to score. Each result is kept in OUT, in a folder named after its showers and the version of the feature code,
so a stopped run continues.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.features.build import build_table
from showerstack.features.catalogue import SETS, feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.context import Context, bar
from showerstack.runtime.files import write_npz
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.scoring.metrics.composition import fraction_error, paired_fraction_error
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.paired import paired_accuracy, paired_log_loss
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, Task

ADDED = ("size", "shape", "grid", "electron-fit", "muon-fit", "muon-electron", "profile", "asymmetry")
LEFT_OUT = ("derived", "electron-fit", "muon-fit", "muon-electron", "contrast")
ON_TOP = ("size", "shape", "grid", "profile", "asymmetry")
FITS = SETS["fits"]
VALID_SHARE = 0.15
LEARNERS: dict[str, dict[str, Any]] = {"lightgbm": {}, "mlp": {}}
HIGH_EFFICIENCY = 0.99
"""Where survival still has events in a world that is too easy at 75 %."""


@dataclass(frozen=True)
class Case:
    """One set of columns and what it is compared with."""

    name: str
    groups: tuple[str, ...]
    against: str


def cases() -> list[Case]:
    """Return everything that is trained, baselines first."""
    scalars = SETS["scalars"]
    return [
        Case("scalars", scalars, "scalars"),
        Case("fits", FITS, "scalars"),
        Case("published-grid", SETS["published-grid"], "scalars"),
        *(Case(f"scalars + {group}", (*scalars, group), "scalars") for group in ADDED if group != "grid"),
        *(Case(f"fits - {group}", tuple(g for g in FITS if g != group), "fits") for group in LEFT_OUT),
        *(Case(f"fits + {group}", (*FITS, group), "fits") for group in ON_TOP),
        Case("all", SETS["all"], "fits"),
    ]


def batches(task: Task, folder: Path, seed: int) -> tuple[Batch, Batch, Batch]:
    """Return training, validation and test events with all columns."""
    made = []
    for split in ("train", "test"):
        path = folder / f"{task.name}_{split}"
        table = build_table(path, ctx=Context(bars=bar))
        columns = feature_set("all", table.columns)
        labels = np.asarray(Dataset.open(path, task).labels, np.int64)
        made.append(Batch(np.arange(len(table)), table=table.matrix(columns), columns=columns, labels=labels))
    order = np.random.default_rng(seed).permutation(len(made[0]))
    n_valid = int(VALID_SHARE * len(order))
    return made[0].take(order[n_valid:]), made[0].take(order[:n_valid]), made[1]


def _select(batch: Batch, columns: tuple[str, ...]) -> Batch:
    assert batch.table is not None
    place = [batch.columns.index(name) for name in columns]
    table = np.asfortranarray(batch.table[:, place])
    return Batch(batch.index, table=table, columns=columns, labels=batch.labels)


def posterior(
    task: Task, learner: str, case: Case, data: tuple[Batch, Batch, Batch], results: Path, seed: int
) -> np.ndarray:
    """Return the (N, C) log-posteriors of the test events, trained once and kept."""
    train, valid, test = data
    columns = tuple(name for g in case.groups for name in feature_set(g, train.columns))
    kept = results / learner / f"{case.name.replace(' ', '')}.npz"
    if kept.exists():
        return np.load(kept, allow_pickle=False)["log_proba"]
    model = create(spec(learner), task.classes, threads=1, overrides=LEARNERS[learner])
    model.fit(_select(train, columns), _select(valid, columns), seed=seed, device="cpu")
    log_proba = model.predict_log_proba(Batch(test.index, table=_select(test, columns).table, columns=columns))
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_npz(kept, log_proba=log_proba)
    return log_proba


def _signed(difference: float, low: float, high: float, digits: int) -> str:
    return f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def composition_row(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[str]:
    """Return accuracy, log-loss, fraction error and the paired differences to b."""
    hard_a, hard_b = a.argmax(1), b.argmax(1)
    row = np.arange(len(labels))
    accuracy, loss = paired_accuracy(labels, hard_a, hard_b), paired_log_loss(labels, a, b)
    error = paired_fraction_error(labels, hard_a, hard_b)
    return [
        f"{np.mean(hard_a == labels):.4f}",
        f"{-a[row, labels].mean():.4f}",
        f"{fraction_error(labels, hard_a):.4f}",
        *(
            _signed(result.difference, result.interval.low, result.interval.high, 4)
            for result in (accuracy, loss, error)
        ),
    ]


def gamma_row(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[str]:
    """Return log-loss, survivals at 75 and 99 % and the paired differences to b."""
    score_a, score_b = a[:, 0] - a[:, 1], b[:, 0] - b[:, 1]
    row = np.arange(len(labels))
    loss = paired_log_loss(labels, a, b)
    cells = [f"{-a[row, labels].mean():.5f}"]
    for efficiency in (0.75, HIGH_EFFICIENCY):
        value = hadron_survival(labels, score_a, efficiency).hadron_survival
        interval = survival_interval(labels, score_a, efficiency=efficiency)
        cells.append(f"{value:.2e} [{interval.low:.1e}, {interval.high:.1e}]")
    high = paired_survival(labels, score_a, score_b, efficiency=HIGH_EFFICIENCY)
    cells.append(_signed(loss.difference, loss.interval.low, loss.interval.high, 5))
    return [*cells, _signed(high.difference, high.interval.low, high.interval.high, 4)]


HEADS = {
    COMPOSITION.name: [
        "accuracy",
        "log-loss",
        "fraction error",
        "accuracy, difference",
        "log-loss, difference",
        "fraction error, difference",
    ],
    GAMMA.name: [
        "log-loss",
        "survival at 75 %",
        "survival at 99 %",
        "log-loss, difference",
        "survival at 99 %, difference",
    ],
}


def run(task: Task, options: argparse.Namespace) -> str:
    """Train and score everything of one task; return the tables as Markdown."""
    folder = sample(
        task, options.out, n_train=options.train, n_test=options.test, seed=options.seed, workers=1, bars=bar
    )
    results = options.out / f"results-{folder.name}-{FEATURES_VERSION}"
    data = batches(task, folder, options.seed)
    labels = data[2].labels
    assert labels is not None
    pieces = [
        f"## {task.name.capitalize()}: {len(data[0]) + len(data[1]):,} training, {len(labels):,} test showers",
        "",
    ]
    for learner in options.learners.split(","):
        done: dict[str, np.ndarray] = {}
        pieces += [f"### {learner}", "", "| features | columns | against | " + " | ".join(HEADS[task.name]) + " |"]
        pieces.append("|---" * (3 + len(HEADS[task.name])) + "|")
        for case in cases():
            done[case.name] = posterior(task, learner, case, data, results, options.seed)
            row = (composition_row if task == COMPOSITION else gamma_row)(labels, done[case.name], done[case.against])
            n = sum(len(feature_set(group, data[0].columns)) for group in case.groups)
            pieces.append(f"| {case.name} | {n} | {case.against} | " + " | ".join(row) + " |")
            print(f"{task.name} {learner} {pieces[-1]}", flush=True)
        pieces.append("")
    return "\n".join(pieces)


def main() -> None:
    """Parse, run both tasks, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=60_000)
    parser.add_argument("--test", type=int, default=40_000)
    parser.add_argument("--tasks", default="composition,gamma")
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("value"), help="folder that keeps data and results")
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    chosen = [task for task in (COMPOSITION, GAMMA) if task.name in options.tasks.split(",")]
    pieces = [__doc__.split("\n\n", 2)[2].strip(), ""]
    pieces += [run(task, options) for task in chosen]
    if options.store:
        store("feature_value", "What each group of features is worth", "\n".join(pieces))


if __name__ == "__main__":
    main()
