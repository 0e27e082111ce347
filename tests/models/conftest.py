"""Events with known posteriors: Gaussian classes in a table, and toy showers whose width tells the class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.showers.array import KASCADE
from showerstack.showers.schema import SCALAR_NAMES

COLUMNS = ("Ne", "Nmu", "Ze", "noise", "constant", "gap")
CLASSES = ("proton", "helium", "carbon", "silicon", "iron")


@dataclass(frozen=True)
class Known:
    """Events and the logarithm of their true posterior."""

    batch: Batch
    log_posterior: np.ndarray


def gaussian_events(n: int, seed: int, priors: np.ndarray | None = None) -> Known:
    """Return events whose first two columns are Gaussian with a class-dependent mean; one column has gaps."""
    rng = np.random.default_rng(seed)
    n_classes = len(CLASSES) if priors is None else len(priors)
    priors = np.full(n_classes, 1 / n_classes) if priors is None else priors
    labels = rng.choice(n_classes, size=n, p=priors)
    means = np.column_stack([np.linspace(0.6, -0.6, n_classes), np.linspace(-1, 1, n_classes)])
    values = means[labels] + rng.normal(size=(n, 2)) * [1.0, 0.6]
    table = np.empty((n, len(COLUMNS)), dtype=np.float32, order="F")
    table[:, :2] = values
    table[:, 2:4] = rng.normal(size=(n, 2))
    table[:, 4] = 3.0
    table[:, 5] = np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n))
    distance = (((values[:, None, :] - means) / [1.0, 0.6]) ** 2).sum(axis=2)
    batch = Batch(index=np.arange(n), table=table, columns=COLUMNS, labels=labels.astype(np.int64))
    return Known(batch, log_softmax(np.log(priors) - 0.5 * distance))


def toy_showers(n: int, seed: int, n_classes: int = 5) -> Batch:
    """Return showers on the array: the heavier the class, the flatter and the richer in muons."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    core = rng.uniform(-50, 50, size=(n, 2))
    r_m = np.hypot(KASCADE.x_m - core[:, 0, None, None], KASCADE.y_m - core[:, 1, None, None])
    size = 10 ** rng.uniform(2.0, 3.0, size=n)
    scale_m = 20.0 + 6.0 * labels
    electrons = rng.poisson(size[:, None, None] * np.exp(-r_m / scale_m[:, None, None])) * KASCADE.has_station
    muons = rng.poisson(0.3 * (1 + labels[:, None, None]) * np.exp(-r_m / 60)) * KASCADE.has_muon
    grids = np.stack([9.5 * electrons, 8.4 * muons], axis=-1).astype(np.float16)
    zenith, azimuth = rng.uniform(0, 30, size=n), rng.uniform(0, 360, size=n)
    lg_size, lg_muons = np.log10(size) + 3, np.log10(muons.sum(axis=(1, 2)) + 10) + 2
    scalars = np.column_stack([0.5 * (lg_size + lg_muons) + 10, zenith, azimuth, lg_size, lg_muons]).astype(np.float32)
    return Batch(
        index=np.arange(n), grids=grids, scalars=scalars, scalar_columns=SCALAR_NAMES, labels=labels.astype(np.int64)
    )


@pytest.fixture(scope="session")
def gaussians() -> tuple[Known, Known, Known]:
    """Training, validation and test events of five Gaussian classes."""
    return gaussian_events(3000, 1), gaussian_events(600, 2), gaussian_events(1500, 3)


@pytest.fixture(scope="session")
def rare_gammas() -> tuple[Known, Known, Known]:
    """The same with two classes, the first of them 6 % of all."""
    priors = np.array([0.06, 0.94])
    return gaussian_events(4000, 4, priors), gaussian_events(1500, 5, priors), gaussian_events(3000, 6, priors)


@pytest.fixture(scope="session")
def showers() -> tuple[Batch, Batch]:
    """Training and validation toy showers."""
    return toy_showers(400, 7), toy_showers(100, 8)
