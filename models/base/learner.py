"""The interface every base learner has, the events it is given, and the checks that refuse unusable ones in one line.

A learner sees a table, grids or both; it returns log-probabilities with natural priors. Boosters, forests, linear
models and networks all fit behind its four methods, so the out-of-fold engine knows only this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from showerstack.models.base.saving import read_header, write_header
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray


class Enough(Exception):
    """Raised by what a learner reports its progress to: it ends here, and keeps the best that it has learned."""


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
    targets: np.ndarray | None = None
    """(n, T) float32: true quantities of training events as :mod:`showerstack.models.base.inputs` standardises them,
    NaN where unknown; None for events to be predicted."""
    array: DetectorArray = KASCADE
    """The stations that the grids' cells belong to."""
    groups: np.ndarray | None = None
    """(n,) int64, equal value = same simulated shower; None: each is its own."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def showers(self) -> np.ndarray:
        """(n,) number of each event's shower, from 0: those of one group are one."""
        return np.unique(self.index if self.groups is None else self.groups, return_inverse=True)[1]

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
            targets=pick(self.targets),
            groups=pick(self.groups),
        )

    def with_others(self, other: Self) -> Self:
        """Return these events and others of the same dataset, in the order of its rows."""

        def joined(one: np.ndarray | None, more: np.ndarray | None) -> np.ndarray | None:
            return None if one is None or more is None else np.concatenate([one, more])

        names = ("table", "scalars", "labels", "weights", "targets", "groups")
        parts = {name: joined(getattr(self, name), getattr(other, name)) for name in names}
        both = replace(self, index=np.concatenate([self.index, other.index]), **parts)  # type: ignore[arg-type]
        return both.take(np.argsort(both.index, kind="stable"))


class Predictor(ABC):
    """What predicts events: a fitted learner, or what opens a saved one for predictions alone."""

    needs_grid: ClassVar[bool] = False
    classes: tuple[str, ...]
    """Class names in label order."""

    @abstractmethod
    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return the (n, C) float64 natural logarithm of the posterior; finite, rows sum to one after exp."""

    def predict_targets(self, batch: Batch) -> np.ndarray:
        """Return what a learner of true quantities estimates.

        Returns
        -------
        (n, T, 2) float64: standardised estimate and its error for each target, NaN where the training had none.

        Raises
        ------
        TypeError
            If this learner estimates classes alone.
        """
        raise TypeError(f"{type(self).__name__} estimates no true quantities")

    def predict_both(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return what :meth:`predict_log_proba` and :meth:`predict_targets` return, in one pass where that can be."""
        return self.predict_log_proba(batch), self.predict_targets(batch)


class Learner(Predictor):
    """A classifier of events.

    Constructor arguments are stored untouched; what is learned ends in an underscore.

    Parameters
    ----------
    classes
        Class names in label order.
    settings
        The learner's own settings; unknown names are refused with :class:`~showerstack.runtime.errors.InputError`.
    threads
        Numerical threads it may use.
    """

    needs_table: ClassVar[bool] = True
    gpu_expected: ClassVar[bool] = False
    """Whether a run that asks for ``cuda`` is refused where this learner cannot have it, and not trained on the CPU."""

    predicts_on_gpu: ClassVar[bool] = False
    """Whether it also predicts on the GPU on which it was trained; boosters predict on the CPU."""

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        self.classes = tuple(classes)
        self.settings = dict(settings or {})
        self.threads = threads
        self.checkpoint: Path | None = None
        """Folder in which a long fit may keep its state and from which it continues; None for neither."""
        self.losses_: list[float] = []
        """Log-loss of the validation events after each round or epoch of the fit; empty where there is no such thing,
        and after :meth:`load`."""

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
            Called with (rounds or epochs done, total, validation log-loss). Where it raises :class:`Enough`, the fit
            ends with the best so far.

        Raises
        ------
        InputError
            If a class has no event, a needed input is missing, or all weights are zero.
        """

    @classmethod
    def averaged(cls, fits: Sequence[Self]) -> Self:
        """Return one learner whose weights are the means of those of fitted learners.

        Raises
        ------
        TypeError
            If fits of this learner do not start from the same weights.
        InputError
            If the fits do not prepare their inputs or undo their training priors in the same way.
        """
        raise TypeError(f"fits of {cls.__name__} do not start from the same weights")

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the fitted learner into ``folder`` (made if needed) without pickle."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; predictions are bit-identical to those of the saved learner."""

    def write_saved(self, folder: Path, files: tuple[str, ...], content: dict[str, Any]) -> None:
        """Write ``learner.json`` beside the learner's files: what makes it again, then what it has learned."""
        made_by = {"classes": self.classes, "settings": self.settings, "threads": self.threads}
        write_header(folder, type(self).__name__, files, {**made_by, **content})

    @classmethod
    def from_saved(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Return the untrained learner that a folder's ``learner.json`` describes, and what that file holds."""
        header = read_header(folder, cls.__name__)
        return cls(tuple(header["classes"]), header["settings"], threads=header["threads"]), header

    @property
    def precision(self) -> Literal["float32", "bf16"] | None:
        """What a network multiplied in while it learned; None of other learners."""
        return None

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted parameters (weights of a network, leaves of trees), where that means something."""
        return None

    def importances(self) -> dict[str, float] | None:
        """Gain of each table column, summing to one, where the learner has such a thing."""
        return None


def check_settings(owner: str, settings: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return ``known`` updated by ``settings``; refuse names that are not in ``known``."""
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"{owner} has no setting {', '.join(map(repr, unknown))}: it knows {', '.join(sorted(known))}")
    return {**known, **settings}


def check_training(train: Batch, valid: Batch, classes: Sequence[str], *, table: bool, grid: bool) -> None:
    """Refuse events from which nothing can be learned."""
    for name, batch in (("training", train), ("validation", valid)):
        if not len(batch):
            raise InputError(f"no {name} events")
        if batch.labels is None:
            raise InputError(f"the {name} events have no labels")
        labels = batch.labels
        bad = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if bad.size:
            raise InputError(
                f"{name} labels: row {bad[0]} holds {labels[bad[0]]}, expected 0..{len(classes) - 1} ({bad.size} bad)"
            )
        _check_weights(name, batch)
        if table:
            if batch.table is None or not batch.columns:
                raise InputError(f"this learner needs a feature table, the {name} events have none")
            check_finite_or_missing(batch)
        if grid and batch.grids is None:
            raise InputError(f"this learner needs detector grids, the {name} events have none")
    if valid.columns != train.columns:
        raise InputError("training and validation events have different table columns")
    assert train.labels is not None
    weights = np.ones(len(train)) if train.weights is None else train.weights
    mass = np.bincount(train.labels, weights=weights, minlength=len(classes))
    empty = [name for name, total in zip(classes, mass, strict=True) if total <= 0]
    if empty:
        raise InputError(f"no training event (of positive weight) of class {', '.join(empty)}")
    if table:
        assert train.table is not None
        if not usable_columns(train.table).any():
            raise InputError(f"none of the {len(train.columns)} features varies: all are constant or missing")


def usable_columns(table: np.ndarray) -> np.ndarray:
    """Return which columns of (n, F) hold at least two different values, missing counting as a value; (F,) bool."""
    usable = np.zeros(table.shape[1], dtype=bool)
    for k in range(table.shape[1]):
        column = table[:, k]
        missing = np.isnan(column)
        if missing.all():
            continue
        usable[k] = bool(missing.any()) or bool(column.min() < column.max())
    return usable


def check_finite_or_missing(batch: Batch) -> None:
    """Refuse infinite values in the table; NaN means a missing value and is fine."""
    assert batch.table is not None
    if batch.table.shape != (len(batch), len(batch.columns)):
        raise InputError(
            f"the table has shape {batch.table.shape}, expected ({len(batch)}, {len(batch.columns)}) for its columns"
        )
    for k, name in enumerate(batch.columns):
        bad = np.flatnonzero(np.isinf(batch.table[:, k]))
        if bad.size:
            raise InputError(
                f"feature {name!r}: row {int(batch.index[bad[0]])} is infinite, expected a number or NaN "
                f"({bad.size} bad rows)"
            )


def select_table(batch: Batch, columns: tuple[str, ...]) -> np.ndarray:
    """Return the (n, F) float32 table with exactly these columns in this order, wherever they stand in the batch."""
    if batch.table is None:
        raise InputError("this learner needs a feature table, the events have none")
    if batch.columns == columns:
        check_finite_or_missing(batch)
        return batch.table
    position = {name: k for k, name in enumerate(batch.columns)}
    missing = [name for name in columns if name not in position]
    if missing:
        raise InputError(
            f"the events lack {len(missing)} of the {len(columns)} features this learner was trained on: "
            f"{', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
        )
    check_finite_or_missing(batch)
    return np.asfortranarray(batch.table[:, [position[name] for name in columns]])


def check_grids(batch: Batch, array: DetectorArray) -> np.ndarray:
    """Return the batch's grids after checking that they are of the given array."""
    if batch.grids is None:
        raise InputError("this learner needs detector grids, the events have none")
    if batch.grids.shape[1:] != array.grid_shape:
        raise InputError(f"grids have shape {batch.grids.shape[1:]}, expected {array.grid_shape} of array {array.name}")
    if batch.array != array:
        raise InputError(f"the events are of array {batch.array.name}, this learner was trained on {array.name}")
    return batch.grids


def _check_weights(name: str, batch: Batch) -> None:
    if batch.weights is None:
        return
    if batch.weights.shape != (len(batch),):
        raise InputError(f"{name} weights have shape {batch.weights.shape}, expected ({len(batch)},)")
    bad = np.flatnonzero(~np.isfinite(batch.weights) | (batch.weights < 0))
    if bad.size:
        raise InputError(f"{name} weights: row {bad[0]} holds {batch.weights[bad[0]]}, expected a number from 0 up")
    if not batch.weights.any():
        raise InputError(f"all {name} weights are zero")
