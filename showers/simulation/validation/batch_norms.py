"""What a published network's batch norms saw of the real training events, and what they see of simulated ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from showers.simulation.validation.published_network import PublishedNetwork, logits

BATCH = 2048
"""Events at once, as in training."""
ROTATE, TURN, FLIP, CUT_OUT, NOISE = 0.5, 0.5, 0.5, 0.3, 0.3
"""Probabilities of the training's augmentations."""
WINDOW = 4
"""Side of the cut-out window, cells."""
NOISE_SD = 0.1
"""Gaussian noise in units of the grid's own standard deviation."""


def augmented(cells: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return grids (n, 2, 16, 16) after the training's augmentation: symmetries, cut-out window, noise."""
    n, _, side, _ = cells.shape
    dice = rng.random((5, n))
    x = cells.clone()
    rotate, turn, flip = (torch.from_numpy(dice[k] < p) for k, p in enumerate((ROTATE, TURN, FLIP)))
    x[rotate] = torch.rot90(x[rotate], 1, (2, 3))
    x[turn] = torch.rot90(x[turn], 2, (2, 3))
    x[flip] = torch.flip(x[flip], (2,))
    corner = rng.integers(0, side - WINDOW + 1, size=(2, n))
    line = np.arange(side)
    rows, columns = ((line >= c[:, None]) & (line < c[:, None] + WINDOW) for c in corner)
    hole = rows[:, :, None] & columns[:, None, :] & (dice[3] < CUT_OUT)[:, None, None]
    x *= torch.from_numpy(~hole)[:, None]
    noisy = torch.from_numpy(dice[4] < NOISE)
    noise = torch.from_numpy(rng.standard_normal((int(noisy.sum()), *x.shape[1:])).astype(np.float32))
    x[noisy] += NOISE_SD * x[noisy].std(dim=(1, 2, 3), keepdim=True) * noise
    return x


@dataclass(frozen=True)
class NormDeviation:
    """How a batch norm's inputs differ from those it saw in training; (channels,) each."""

    mean: np.ndarray
    """Deviation of the mean in real standard deviations."""
    ln_width: np.ndarray
    """Deviation of the logarithm of the standard deviation."""


@torch.no_grad()
def norm_deviations(
    network: PublishedNetwork, cells: torch.Tensor, scalars: torch.Tensor, *, seed: int = 0
) -> dict[str, NormDeviation]:
    """Return, per batch norm, how its inputs on these events differ from the training's running moments.

    The events are augmented and dropout is active, as in training; each norm goes on normalising with the real
    moments, so that what differs in one layer is seen in the next.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    moments = Moments(network)
    network.eval()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    try:
        with moments.gathering():
            for k in range(0, len(cells), BATCH):
                logits(network, augmented(cells[k : k + BATCH], rng), scalars[k : k + BATCH])
    finally:
        network.eval()
    return moments.deviations()


def _norms(network: nn.Module) -> Iterator[tuple[str, nn.BatchNorm1d | nn.BatchNorm2d]]:
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            yield name, module


class Moments:
    """Moments of every batch norm's inputs, gathered while the network runs."""

    def __init__(self, network: PublishedNetwork) -> None:
        self.norms = list(_norms(network))
        self.numbers = {name: 0.0 for name, _ in self.norms}
        self.sums = {name: np.zeros((2, norm.num_features)) for name, norm in self.norms}
        """Sums of the inputs and of their squares."""

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Add what passes the norms meanwhile."""

        def watch(name: str, norm: nn.Module) -> RemovableHandle:
            def note(_module: nn.Module, arguments: tuple[torch.Tensor]) -> None:
                x = arguments[0]
                over = (0, 2, 3)[: x.ndim - 1]
                self.numbers[name] += x.numel() / x.shape[1]
                self.sums[name] += np.stack([x.sum(dim=over).numpy(), x.square().sum(dim=over).numpy()])

            return norm.register_forward_pre_hook(note)

        hooks = [watch(name, norm) for name, norm in self.norms]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def deviations(self) -> dict[str, NormDeviation]:
        """Return deviations from the running moments."""
        return {name: _deviation(norm, self.sums[name] / self.numbers[name]) for name, norm in self.norms}


def _deviation(norm: nn.BatchNorm1d | nn.BatchNorm2d, moments: np.ndarray) -> NormDeviation:
    mean, square = moments
    real_mean, real_variance = (t.numpy() for t in (norm.running_mean, norm.running_var) if t is not None)
    deviation = (mean - real_mean) / np.sqrt(real_variance)
    return NormDeviation(deviation, 0.5 * np.log((square - mean**2) / real_variance))
