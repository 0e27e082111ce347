"""Networks that others trained on the real simulations: architecture, weights, view of the events; two-sample trees.

A public submission to the benchmark ``vvsotnikov/astro-bench`` (``opus-composition-mar14/matched_pipeline``): a small
convolutional network with channel attention beside a perceptron on six scalars, trained on the 268,483 events of the
matched protocol (QGSJet). A folder of them holds ``model_{name}_{remark}.pt`` (PyTorch state dicts) and
``posteriors_real.npz`` (``labels`` (N,) and one (N, 5) array of posteriors of the real test events per name).

Their batch norms keep means and variances of the real training events, with which those of simulated events are
compared. How well boosted trees tell two samples apart is the area under the ROC curve of events that they did not
learn from.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils.hooks import RemovableHandle

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.gamma import area_under_curve
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.level import LEVEL
from showerstack.showers.schema import COMPOSITION

POSTERIORS = "posteriors_real.npz"
N_SCALARS = 6
CACHED = 32
"""Events at once on a processor."""


class ChannelAttention(nn.Module):
    """Scales each channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(channels // 4, 8)
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Sequential(
            *pool, nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, channels, h, w)."""
        gate: torch.Tensor = self.fc(x)
        return x * gate[:, :, None, None]


class PublishedNetwork(nn.Module):
    """The published architecture; submodules are named as in its state dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            *_convolution(2, 32),
            *_convolution(32, 64),
            ChannelAttention(64),
            nn.MaxPool2d(2),
            *_convolution(64, 128),
            *_convolution(128, 128),
            ChannelAttention(128),
            nn.MaxPool2d(2),
            *_convolution(128, 256),
            ChannelAttention(256),
            nn.AdaptiveAvgPool2d(1),
        )
        self.feat_mlp = nn.Sequential(*_dense(N_SCALARS, 128, 0.2), *_dense(128, 128, 0.2))
        self.head = nn.Sequential(*_dense(384, 256, 0.3), *_dense(256, 128, 0.2), nn.Linear(128, COMPOSITION.n_classes))

    def forward(self, grids: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
        """Return the logits, (n, 5), of grids (n, 2, 16, 16) and scalars (n, 6) as :func:`inputs` makes them."""
        joined = torch.cat([self.cnn(grids).flatten(1), self.feat_mlp(scalars)], dim=1)
        result: torch.Tensor = self.head(joined)
        return result


def _convolution(n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()


def _dense(n_in: int, n_out: int, dropout: float) -> tuple[nn.Module, ...]:
    return nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU(), nn.Dropout(dropout)


@dataclass(frozen=True)
class Published:
    """A network and what it said of the real test events."""

    name: str
    network: PublishedNetwork
    labels: np.ndarray
    """(N,) int64 classes of the real test events."""
    posteriors: np.ndarray
    """(N, 5) float16 as published."""


def load_networks(folder: Path) -> list[Published]:
    """Load the networks of a folder, without executing anything that a file holds.

    Raises
    ------
    InputError
        If the folder lacks networks or posteriors, or a file is not what it should be.
    """
    try:
        with np.load(folder / POSTERIORS, allow_pickle=False) as result:
            real = {name: result[name] for name in result.files}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / POSTERIORS}: posteriors of the real test events cannot be read ({error}): "
            "download them together with the networks"
        ) from None
    files = sorted(folder.glob("model_*.pt"))
    if not files:
        raise InputError(f"{folder}: no model_*.pt in it: give the folder that holds the published networks")
    return [_loaded(file, real) for file in files]


def _loaded(file: Path, real: dict[str, np.ndarray]) -> Published:
    name = file.stem.split("_")[1]
    if not {name, "labels"} <= set(real):
        raise InputError(f"{file.parent / POSTERIORS}: lacks 'labels' or {name!r}, the posteriors of {file.name}")
    network = PublishedNetwork()
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except (RuntimeError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file}: not the state dict of the published architecture ({reason})") from None
    return Published(name, network.eval(), real["labels"].astype(np.int64), real[name])


def inputs(grids: np.ndarray, scalars: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the networks read: log1p of the grids and six standardised scalars.

    Parameters
    ----------
    grids
        (n, 16, 16, 2) MeV per station.
    scalars
        Columns E, Ze (degrees), Ne, Nmu, Age, (n,) each.
    """
    cells = torch.from_numpy(np.log1p(grids.astype(np.float32)).transpose(0, 3, 1, 2).copy())
    ne, nmu = scalars["Ne"], scalars["Nmu"]
    columns = (
        (ne - 5.31) / 0.5,
        (nmu - 4.3) / 0.42,
        scalars["Age"] - 1.0,
        scalars["Ze"] / 60.0,
        (ne - nmu - 0.8) / 0.3,
        scalars["E"] - 15.5,
    )
    return cells, torch.from_numpy(np.column_stack(columns).astype(np.float32))


@torch.no_grad()
def posteriors(network: PublishedNetwork, cells: torch.Tensor, scalars: torch.Tensor) -> np.ndarray:
    """Return the network's posteriors, (n, 5), rounded to float16 like the published ones."""
    network.eval()
    said = torch.softmax(logits(network, cells, scalars), dim=1)
    return np.asarray(said.numpy().astype(np.float16))


def logits(network: PublishedNetwork, cells: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    """Return the logits, (n, 5), in the mode that the network is in."""
    # Small batches with channels last stay in the cache: twice as fast on a processor.
    parts = [
        network(grids.contiguous(memory_format=torch.channels_last), own)
        for grids, own in zip(cells.split(CACHED), scalars.split(CACHED), strict=True)
    ]
    return torch.cat(parts)


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


FOLDS = 4


@dataclass(frozen=True)
class TwoSample:
    """An area under the ROC curve; 0.5 where nothing tells the samples apart."""

    area: float
    interval: Interval


def two_sample(a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> TwoSample:
    """Train trees to tell two samples apart and return the area that held-out events reach.

    Parameters
    ----------
    a, b
        (n, columns) and (m, columns).
    seed
        Seed of the folds.

    Returns
    -------
    TwoSample
        Mean area of the folds, with a normal interval from the folds' errors; scores of different folds need not be
        comparable.
    """
    x = np.concatenate([a, b]).astype(np.float32)
    second = np.repeat([False, True], [len(a), len(b)])
    entries = []
    # Where others use the processors too, threads of one fit wait for each other more than they help.
    with threadpool_limits(1, user_api="openmp"):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, second):
            trees = HistGradientBoostingClassifier(
                max_iter=150, learning_rate=0.06, max_leaf_nodes=15, min_samples_leaf=50, l2_regularization=1.0,
                early_stopping=False, random_state=seed,
            ).fit(x[train], second[train])  # fmt: skip
            entries.append(area_under_curve(second[test], trees.predict_proba(x[test])[:, 1]))
    areas, errors = np.array(entries).T
    area, error = float(areas.mean()), float(np.sqrt(np.square(errors).sum())) / FOLDS
    width = float(ndtri(0.5 + LEVEL / 2)) * error
    return TwoSample(area, Interval(area - width, area + width, LEVEL))
