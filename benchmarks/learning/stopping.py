"""Which epoch of fine-tuning is kept: by the few validation showers under the cuts, by all of them, or the last.

    python -m benchmarks.learning.stopping --work W --showers 20000 --test 40000

A stack stops early by validation showers that pass the test's cuts, about 8 % of a training set without cuts. Folds of
``pretrained`` are fitted for all epochs (world ``harder``, training sets without cuts), and each rule then chooses from
the same epochs. Judged on test showers are single fits, and the network with the mean of the folds' weights, which is
what ships; each seed has other training showers. Log-loss minus that of the rule of a stack, paired; ± is one standard
error, of test showers and seeds.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.learning.peers import events
from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.networks.step import Checkpoint
from showerstack.models.registry import create, learner_class, spec
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate

VALID_SHARE = 0.1
RULES = ("under cuts", "all", "last")


def prepared(work: Path, seed: int, n_train: int, n_test: int) -> Path:
    """Return a folder with simulated sets and their tables."""
    folder = work / f"{n_train}-{n_test}-{seed}"
    if not (folder / "done").exists():
        simulate(COMPOSITION, folder, n_train=n_train, n_test=n_test, seed=seed, world="harder", overwrite=True)
        for split in ("train", "test"):
            build_table(folder / f"{COMPOSITION.name}_{split}", ctx=Context(device="cpu"))
        (folder / "done").touch()
    return folder


def epochs_of(train: Batch, valid: Batch, seed: int) -> tuple[Learner, list[dict[str, torch.Tensor]]]:
    """Return a fit without early stopping, and its averaged weights after each epoch."""
    kept: list[dict[str, torch.Tensor]] = []
    finish = Checkpoint.finish_epoch

    def noting(state: Checkpoint, loss: float) -> None:
        kept.append(deepcopy(state.averaged.state_dict()))
        finish(state, loss)

    learner = create(
        spec("pretrained"), COMPOSITION.classes, n_rows=len(train), preset="good", overrides={"patience": 100}
    )
    with patch.object(Checkpoint, "finish_epoch", noting):
        learner.fit(train, valid, seed=seed)
    return learner, kept


def with_weights(learner: Learner, weights: dict[str, torch.Tensor]) -> Learner:
    """Return the fit as it was after an epoch."""
    other = deepcopy(learner)
    other.network_.load_state_dict(weights)  # type: ignore[attr-defined]
    return other


def of_seed(folder: Path, seed: int, n_folds: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the losses (N,) of single fits (mean over folds) and of the mean network by rule."""
    source = events(folder, COMPOSITION, "train", labelled=True)
    columns = source.columns_for(spec("pretrained"))
    inside = source.passes_evaluation_cuts()
    everything = replace(source.batch(np.arange(len(source)), columns, grids=False), labels=source.known().labels)
    new = events(folder, COMPOSITION, "test", labelled=True)
    test = new.batch(np.arange(len(new)), columns, grids=False)
    truth = new.known().labels
    rng = np.random.default_rng(seed)
    folds = rng.integers(n_folds, size=len(source))
    single: dict[str, list[np.ndarray]] = {rule: [] for rule in RULES}
    chosen: dict[str, list[Learner]] = {rule: [] for rule in RULES}
    for fold in range(n_folds):
        rows = rng.permutation(np.flatnonzero(folds != fold))
        n_valid = round(VALID_SHARE * len(rows))
        stopping, fitted = np.sort(rows[:n_valid]), np.sort(rows[n_valid:])
        valid = everything.take(stopping)
        learner, kept = epochs_of(everything.take(fitted), valid, seed=10 * seed + fold)
        unlabelled = replace(valid, labels=None)
        losses = np.array(
            [
                event_losses(with_weights(learner, one).predict_log_proba(unlabelled), np.asarray(valid.labels))
                for one in kept
            ]
        )
        under = inside[stopping]
        epochs = {
            "under cuts": int(losses[:, under].mean(axis=1).argmin()),
            "all": int(losses.mean(axis=1).argmin()),
            "last": len(kept) - 1,
        }
        print(f"seed {seed}, fold {fold}: {under.sum()} of {len(under)} under cuts, epochs {epochs}", flush=True)
        for rule, epoch in epochs.items():
            one = with_weights(learner, kept[epoch])
            chosen[rule].append(one)
            single[rule].append(event_losses(one.predict_log_proba(test), truth))
    network = learner_class(spec("pretrained").learner)
    return (
        {rule: np.mean(losses, axis=0) for rule, losses in single.items()},
        {
            rule: event_losses(network.averaged(fits).predict_log_proba(test), truth)  # type: ignore[attr-defined]
            for rule, fits in chosen.items()
        },
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for simulated showers")
    parser.add_argument("--showers", type=int, default=20_000)
    parser.add_argument("--test", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        of_seed(prepared(options.work, 30 + seed, options.showers, options.test), seed, options.folds)
        for seed in range(1, options.seeds + 1)
    ]
    print("| epoch kept by | single fits | mean network |\n|---|---|---|")
    for rule in RULES:
        cells = []
        for which in range(2):
            losses = np.array([one[which][rule] for one in found])
            gaps = losses - np.array([one[which][RULES[0]] for one in found])
            of_events = np.sqrt((gaps.var(axis=1, ddof=1) / gaps.shape[1]).sum()) / len(gaps)
            error = np.hypot(of_events, gaps.mean(axis=1).std(ddof=1) / len(gaps) ** 0.5)
            cells.append(f"{losses.mean():.5f}" if rule == RULES[0] else f"{gaps.mean():+.5f} ± {error:.5f}")
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
