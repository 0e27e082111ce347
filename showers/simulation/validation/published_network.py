"""Networks that others trained on the real simulations: their architecture, weights and view of the events.

A public submission to the benchmark ``vvsotnikov/astro-bench`` (``opus-composition-mar14/matched_pipeline``): a small
convolutional network with channel attention beside a perceptron on six scalars, trained on the 268,483 events of the
matched protocol (QGSJet). A folder of them holds ``model_{name}_{remark}.pt`` (PyTorch state dicts) and
``posteriors_real.npz`` (``labels`` (N,) and one (N, 5) array of posteriors of the real test events per name).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from showers.schema import COMPOSITION, InputError

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
        found: torch.Tensor = self.head(joined)
        return found


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
        with np.load(folder / POSTERIORS, allow_pickle=False) as found:
            real = {name: found[name] for name in found.files}
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
