"""The interface every base learner has, and the events it is given.

A learner sees a table, grids or both; it returns log-probabilities with natural priors. Boosters, forests,
linear models and networks all fit behind these four methods, so the out-of-fold engine knows only this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from showers.array import DetectorArray
from showers.execution.progress import Progress
from showers.kascade import KASCADE


@dataclass(frozen=True)
class Batch:
    """Events handed to a learner.

    ``grids`` is the memory map of the *whole* dataset: event ``k`` of the batch is ``grids[index[k]]``,
    so that a fold never copies the grids. All other arrays have one row per event of the batch.
    """

    index: np.ndarray
    """(n,) int64: rows of the dataset (and of ``grids``)."""
    table: np.ndarray | None = None
    """(n, F) float32, Fortran-ordered; NaN where a feature is undefined."""
    columns: tuple[str, ...] = ()
    """Names of the F columns."""
    categories: tuple[str, ...] = ()
    """Those of them that hold codes of categories instead of quantities."""
    grids: np.ndarray | None = None
    """(N, rows, columns, 2) float16 or float32 memory map, MeV per station."""
    scalars: np.ndarray | None = None
    """(n, S) float32: the reconstructed scalars that the protocol has, for networks on grids."""
    scalar_columns: tuple[str, ...] = ()
    """Names of the S scalars: E, Ze, Az, Ne, Nmu and, where the protocol has it, Age."""
    labels: np.ndarray | None = None
    """(n,) int64 class numbers; None for events to be predicted."""
    weights: np.ndarray | None = None
    """(n,) float64 event weights; None means one each."""
    soft_labels: np.ndarray | None = None
    """(n, C) probabilities that networks learn from instead of ``labels``, which then only judge; None for none."""
    targets: np.ndarray | None = None
    """(n, T) float32: true quantities of training events as :mod:`models.pretraining.targets` standardises them, NaN
    where unknown; None for events to be predicted."""
    array: DetectorArray = KASCADE
    """The stations that the grids' cells belong to."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: np.ndarray) -> Self:
        """Return the events at the given positions of this batch (integer array or boolean mask)."""

        def pick(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[rows]

        return replace(
            self,
            index=self.index[rows],
            table=None if self.table is None else np.asfortranarray(self.table[rows]),
            scalars=pick(self.scalars),
            labels=pick(self.labels),
            weights=pick(self.weights),
            soft_labels=pick(self.soft_labels),
            targets=pick(self.targets),
        )


class Learner(ABC):
    """A classifier of events.

    Constructor arguments are stored untouched; what is learned ends in an underscore.

    Parameters
    ----------
    classes
        Class names in label order.
    settings
        The learner's own settings; unknown names are refused with :class:`~showers.schema.InputError`.
    threads
        Numerical threads it may use.
    """

    needs_grid: ClassVar[bool] = False
    needs_table: ClassVar[bool] = True
    gpu_expected: ClassVar[bool] = False
    """Whether a run that asks for ``cuda`` is refused where this learner cannot have it, and not trained on the CPU."""

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        self.classes = tuple(classes)
        self.settings = dict(settings or {})
        self.threads = threads
        self.checkpoint: Path | None = None
        """Folder in which a long fit may keep its state and from which it continues; None for neither."""

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        """Return why it cannot train on a GPU here, None if it can; asked only where a driver answers."""
        return "it has no GPU training"

    @abstractmethod
    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Learn from ``train``; ``valid`` (cut from the same training folds) serves early stopping only.

        Parameters
        ----------
        train, valid
            Labelled events.
        seed
            Same seed, same device, same number of threads: same learner.
        device
            ``"cpu"`` or ``"cuda"``, already resolved (never ``"auto"``).
        progress
            Called with (rounds or epochs done, total, validation log-loss).

        Raises
        ------
        InputError
            If a class has no event, a needed input is missing, or all weights are zero.
        """

    @abstractmethod
    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return the (n, C) float64 natural logarithm of the posterior; finite, rows sum to one after exp."""

    def predict_truth(self, batch: Batch) -> np.ndarray:
        """Return what a learner of true quantities estimates.

        Returns
        -------
        (n, T, 2) float64: standardised estimate and its error for each target, NaN where it was not taught.

        Raises
        ------
        TypeError
            If this learner estimates classes alone.
        """
        raise TypeError(f"{type(self).__name__} estimates no true quantities")

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the fitted learner into ``folder`` (made if needed) without pickle."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; predictions are bit-identical to those of the saved learner."""

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted parameters (weights of a network, leaves of trees), where that means something."""
        return None

    def importances(self) -> dict[str, float] | None:
        """Gain of each table column, summing to one, where the learner has such a thing."""
        return None
