"""How much do two epochs of the same network differ in the same sky? A floor for areas between two skies.

The published weights are those of a training's last epoch, the posteriors of real events those of an earlier one. Trees
that tell simulated from real posteriors see both differences, that of the skies and that of the epochs. Here there is
one sky only: a published network is trained on for some epochs on simulated showers (AdamW, labels smoothed by 0.05,
classes weighted as published, quarter turns), and trees tell what one epoch said of some showers from what the next one
said of others.

    python -m benchmarks.world.epochs --networks DIR --rates 1e-4,1e-5
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from benchmarks.world.comparison import without_rare
from benchmarks.world.networks import Published, PublishedNetwork, TwoSample, inputs, load_networks, two_sample
from benchmarks.world.networks import posteriors as said_by
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.settings import load_settings

BATCH = 512
SMOOTHING = 0.05

Events = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Grids, scalars, classes."""


def events(n: int, seed: int) -> Events:
    """Simulate events of the default world's matched protocol, QGSJet."""
    parts = list(accepted_events(BlockJob(COMPOSITION, "test", seed, "qgs", "matched", load_settings()), n, None))
    names = {"E": "lg_energy", "Ze": "zenith_deg", "Ne": "lg_ne", "Nmu": "lg_nmu", "Age": "age"}
    scalars = {name: np.concatenate([getattr(part.event, own) for part in parts]) for name, own in names.items()}
    labels = np.concatenate([part.labels for part in parts]).astype(np.int64)
    return (*inputs(np.concatenate([part.grids for part in parts]), scalars), torch.from_numpy(labels))


def weights(labels: torch.Tensor) -> torch.Tensor:
    """Return inverse frequencies of the classes, that of protons 1."""
    result = len(labels) / (COMPOSITION.n_classes * torch.bincount(labels).float())
    result[0] = 1.0
    return result


def epochs(published: Published, training: Events, rate: float, n: int) -> Iterator[PublishedNetwork]:
    """Train on, and yield the network after each epoch."""
    torch.manual_seed(1)
    network = copy.deepcopy(published.network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-4)
    grids, scalars, labels = training
    weight = weights(labels)
    for _ in range(n):
        network.train()
        for rows in torch.randperm(len(labels)).split(BATCH):
            turned = torch.rot90(grids[rows], int(torch.randint(4, ())), (2, 3))
            loss = functional.cross_entropy(
                network(turned, scalars[rows]), labels[rows], weight=weight, label_smoothing=SMOOTHING
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        yield network.eval()


def areas(first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> list[TwoSample]:
    """Tell posteriors of the first half of the events from those of the second, class by class."""
    half = len(labels) // 2
    return [
        two_sample(first[:half][labels[:half] == k], second[half:][labels[half:] == k])
        for k in range(COMPOSITION.n_classes)
    ]


def main() -> None:
    """Train on and print the areas between neighbouring epochs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rates", default="1e-4,1e-5", help="learning rates, one training each")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train", type=int, default=40_000)
    parser.add_argument("--test", type=int, default=34_000)
    parser.add_argument("--seed", type=int, default=31)
    options = parser.parse_args()
    published = load_networks(options.networks)[0]
    every = events(options.train + options.test, options.seed)
    cut = options.train
    training = tuple(part[:cut] for part in every)
    grids, scalars, labels = (part[cut:] for part in every)
    truth = labels.numpy()
    table = Table(title=f"Network {published.name}: one epoch's posteriors against the next one's, same sky (95 %)")
    for name in ("learning rate", "epochs", "posteriors", *COMPOSITION.classes, "accuracy"):
        table.add_column(name)
    for rate in options.rates.split(","):
        before: np.ndarray | None = None
        for epoch, network in enumerate(epochs(published, training, float(rate), options.epochs), start=1):
            said = said_by(network, grids, scalars)
            if before is not None:
                for name, read in (("all", lambda x: x), ("without rare", without_rare)):
                    result = (
                        f"{a.area:.3f} ± {a.interval.high - a.area:.3f}" for a in areas(read(before), read(said), truth)
                    )
                    accuracy = f"{(said.argmax(axis=1) == truth).mean():.4f}"
                    table.add_row(rate, f"{epoch - 1}, {epoch}", name, *result, accuracy)
            before = said
            print(f"learning rate {rate}: epoch {epoch} of {options.epochs}", flush=True)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
