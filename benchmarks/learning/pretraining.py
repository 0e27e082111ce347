r"""What the pretrained network gains over training from scratch, in worlds that its pretraining has not seen.

    python -m benchmarks.learning.pretraining --out pretraining --sizes 5000,15000,60000 --seeds 1,2,3
    python -m benchmarks.learning.pretraining --out pretraining --task gamma --sizes 15000,60000
    python -m benchmarks.learning.pretraining --out pretraining --sizes 15000 --worlds harder --seeds 1,2,3 \
        --systems "mlp,catboost,mlp + its answers,catboost + its answers"

Every learner is trained on the same showers of a world and judged on the same test showers of that world, under the
test's cuts; nothing is chosen there. Each fit that is done is kept below OUT, so that a killed run continues; the table
with paired differences (±: standard errors) is printed and, with ``--doc FILE``, written as Markdown.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.shared.drawn import FOREIGN, drawn
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.models.pretraining.learner import inputs_of
from showerstack.models.pretraining.weights import SHIPPED_SHA256, read_pretrained
from showerstack.models.registry import create, spec
from showerstack.runtime.files import atomic_path, write_npz
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.scoring.metrics.survival_bootstrap import survival_interval
from showerstack.showers.schema import GAMMA, TASKS

ZERO_SHOT = "zero-shot"
POOLS = {"pool of mlp, catboost": ("mlp", "catboost"), "pool of all three": ("pretrained", "mlp", "catboost")}
"""Log-posteriors averaged with equal weights: what a stack can expect."""
SYSTEMS = ("pretrained", "mlp", "catboost", "lightgbm", ZERO_SHOT)
STARTED = ("pretrained", ZERO_SHOT)
"""Systems that know the pretrained weights."""
WORLDS = ("harder", FOREIGN)
VALID_SHARE = 0.1
"""Share of the training events that serves early stopping."""
MOST_TRAINING = 60_000
"""Training showers drawn at least, so that smaller sets are parts of one."""
DATA_SEED = 11


@dataclass(frozen=True)
class Fit:
    """One system, trained on one set."""

    world: str
    task: str
    n: int
    seed: int
    system: str

    def file(self, out: Path) -> Path:
        """Return where its predictions are kept."""
        name = f"{self.task}-{self.world}-{self.n}-{self.seed}-{self.system.replace(' ', '_')}"
        if self.system in STARTED:
            name += f"-{SHIPPED_SHA256[:8]}"
        return out / "results" / f"{name}.npz"


class Sets(NamedTuple):
    """Showers of a world."""

    train: Batch
    test: Batch


def sets_of(world: str, task: str, most: int, n_test: int, data: Path) -> Sets:
    """Return the showers of a world, drawn where they are not kept."""
    train, _ = drawn(world, task, max(most, MOST_TRAINING), seed=DATA_SEED, split="train", data=data)
    test, _ = drawn(world, task, n_test, seed=DATA_SEED, split="test", data=data)
    return Sets(train, test)


def done(fit: Fit, sets: Sets, out: Path) -> tuple[np.ndarray, float]:
    """Return log-posteriors of the test showers and the training's CPU seconds, computed where they are not kept."""
    file = fit.file(out)
    if not file.exists():
        started = time.process_time()
        log_p = zero_shot(fit.task, sets.test) if fit.system == ZERO_SHOT else trained(fit, sets)
        write_npz(file, log_p=log_p.astype(np.float32), cpu_s=np.array(time.process_time() - started))
        print(f"{file.stem}: {time.process_time() - started:.0f} s CPU", flush=True)
    with np.load(file) as result:
        return result["log_p"].astype(np.float64), float(result["cpu_s"])


def trained(fit: Fit, sets: Sets) -> np.ndarray:
    """Train a registered learner with the settings of preset ``good`` on its own columns and predict."""
    events, test = sets
    entry = spec(fit.system)
    assert isinstance(entry.features, str)
    columns = feature_set(entry.features, events.columns)
    rows = np.random.default_rng([fit.n, fit.seed]).permutation(len(events))[: fit.n]
    n_valid = max(1, round(VALID_SHARE * fit.n))
    train, valid = (only(events.take(np.sort(part)), columns) for part in (rows[n_valid:], rows[:n_valid]))
    learner = create(entry, TASKS[fit.task].classes)
    learner.fit(train, valid, seed=fit.seed)
    return learner.predict_log_proba(replace(only(test, columns), labels=None))


def only(batch: Batch, columns: Sequence[str]) -> Batch:
    """Return the batch with some of its columns."""
    assert batch.table is not None
    picked = batch.table[:, [batch.columns.index(name) for name in columns]]
    return replace(batch, table=np.asfortranarray(picked), columns=tuple(columns))


def zero_shot(task: str, test: Batch) -> np.ndarray:
    """Return what the shipped network says of showers from a world that it is told nothing about."""
    pretrained = read_pretrained()
    inputs = torch.from_numpy(inputs_of(pretrained, test).apply(test))
    with torch.inference_mode():
        answers = pretrained.network(inputs, torch.zeros(pretrained.network.sizes.n_world + 1))
    return log_softmax((answers.gamma if task == GAMMA.name else answers.composition).double().numpy())


def row_of(fit: Fit, log_p: np.ndarray, reference: np.ndarray, labels: np.ndarray, cpu_s: float) -> str:
    """Return a line of the table; differences are against the best learner trained from scratch."""
    loss = event_losses(log_p, labels)
    paired = paired_log_loss(labels, log_p, reference)
    cells = [
        fit.world,
        f"{fit.n:,}",
        str(fit.seed),
        fit.system,
        f"{loss.mean():.4f}",
        "" if log_p is reference else f"{paired.difference:+.4f} ± {paired.standard_error:.4f}",
    ]
    if fit.task == GAMMA.name:
        scores = log_p[:, 0] - log_p[:, 1]
        for efficiency in (0.75, 0.9):
            value = hadron_survival(labels, scores, efficiency).hadron_survival
            interval = survival_interval(labels, scores, efficiency=efficiency)
            cells.append(f"{value:.2e} [{interval.low:.1e}, {interval.high:.1e}]")
    else:
        cells.append(f"{(log_p.argmax(axis=1) == labels).mean():.4f}")
    return f"| {' | '.join([*cells, f'{cpu_s:.0f}'])} |"


def pools(group: list[tuple[Fit, np.ndarray, float]]) -> list[tuple[Fit, np.ndarray, float]]:
    """Return the pools whose members are all there."""
    said = {fit.system: (log_p, cpu_s) for fit, log_p, cpu_s in group}
    result = []
    for name, members in POOLS.items():
        if set(members) <= set(said):
            mean = log_softmax(np.mean([said[member][0] for member in members], axis=0))
            result.append((replace(group[0][0], system=name), mean, sum(said[member][1] for member in members)))
    return result


def table(fits: list[Fit], worlds: dict[str, Sets], out: Path) -> str:
    """Return the table of all fits, those of one training set together, the worst news first within each."""
    gamma = fits[0].task == GAMMA.name
    head = ["world", "showers", "seed", "system", "log-loss", "against the best from scratch"]
    head += ["survival at 75 %", "survival at 90 %"] if gamma else ["accuracy"]
    lines = [f"| {' | '.join([*head, 'CPU s'])} |", f"|{'---|' * (len(head) + 1)}"]
    for key in dict.fromkeys((fit.world, fit.n, fit.seed) for fit in fits):
        sets = worlds[key[0]]
        labels = sets.test.labels
        assert labels is not None
        group = [(fit, *done(fit, sets, out)) for fit in fits if (fit.world, fit.n, fit.seed) == key]
        group += pools(group)
        losses = {fit.system: event_losses(log_p, labels).mean() for fit, log_p, _ in group}
        others = (*STARTED, *POOLS)
        scratch = {name: loss for name, loss in losses.items() if name not in others}
        best = min(scratch or losses, key=lambda name: losses[name])
        reference = next(log_p for fit, log_p, _ in group if fit.system == best)
        for fit, log_p, cpu_s in sorted(group, key=lambda one: -losses[one[0].system]):
            lines.append(row_of(fit, log_p, reference, labels, cpu_s))
    return "\n".join(lines)


def summary(fits: list[Fit], worlds: dict[str, Sets], out: Path) -> str:
    """Return one line a world, size and system: means over seeds, each against the best from scratch of its seed.

    The error is that of the test showers, of differences averaged over seeds; beside it the range over seeds.
    """
    lines = ["| world | showers | system | log-loss | against the best from scratch | seeds |", f"|{'---|' * 6}"]
    for world, n in dict.fromkeys((fit.world, fit.n) for fit in fits):
        labels = worlds[world].test.labels
        assert labels is not None
        rows = np.arange(len(labels))
        losses: dict[str, list[np.ndarray]] = {}
        for fit in fits:
            if (fit.world, fit.n) == (world, n):
                losses.setdefault(fit.system, []).append(-done(fit, worlds[world], out)[0][rows, labels])
        scratch = [name for name in losses if name not in STARTED]
        best = [min(each, key=lambda loss: float(loss.mean())) for each in zip(*map(losses.get, scratch), strict=True)]
        for system, seeds in sorted(losses.items(), key=lambda one: -float(np.mean(one[1]))):
            gaps = np.stack([loss - reference for loss, reference in zip(seeds, best, strict=True)])
            mean, error = gaps.mean(), gaps.mean(axis=0).std() / len(labels) ** 0.5
            each = [f"{gap:+.4f}" for gap in sorted(gaps.mean(axis=1))]
            cells = [world, f"{n:,}", system, f"{np.mean(seeds):.4f}", f"{mean:+.4f} ± {error:.4f}"]
            lines.append(f"| {' | '.join([*cells, f'{each[0]} to {each[-1]}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, train what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/pretraining"), help="folder for results")
    parser.add_argument("--task", choices=TASKS, default="composition")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--sizes", default="5000,15000,60000")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--test", type=int, default=25_000)
    parser.add_argument("--doc", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(1)
    sizes, seeds = ([int(x) for x in text.split(",")] for text in (options.sizes, options.seeds))
    names = options.worlds.split(",")
    worlds = {world: sets_of(world, options.task, max(sizes), options.test, options.out / "data") for world in names}
    fits = [
        Fit(world, options.task, n, seed, system)
        for world in names
        for n in sizes
        for seed in seeds
        for system in options.systems.split(",")
    ]
    for fit in fits:
        done(fit, worlds[fit.world], options.out)
    text = table(fits, worlds, options.out)
    if len(seeds) > 1:
        text = f"{summary(fits, worlds, options.out)}\n\n{text}"
    print(text)
    if options.doc:
        with atomic_path(options.doc) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
