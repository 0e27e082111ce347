"""Predictions of ``pretrained`` and ``mlp`` on a CPU without torch, from a learner in memory or from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from showerstack.models.base.inputs import TARGETS, InputTransform
from showerstack.models.base.learner import Batch, Predictor
from showerstack.models.base.posterior import log_softmax, undo_training_prior
from showerstack.models.base.saving import HEADER_FILE, read_header
from showerstack.models.networks.forward import ResidualForward, read_tensors
from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import limited_threads

WEIGHTS_FILE = "network.safetensors"
IN_FILE = "network."
"""Begins the names of the weights in it."""
LOG_WIDTH_RANGE = (-5.0, 3.0)
"""Limits of the logarithm of an estimated error, in units of a target's width."""
TAUGHT = "taught"
"""(T,) int64 among the weights: 1 where the head of true quantities has been trained."""


@dataclass(frozen=True)
class TablePredictor(Predictor):
    """A fitted residual network on a table, which can predict and nothing else."""

    classes: tuple[str, ...]
    inputs: InputTransform
    class_weights: np.ndarray | None
    """(C,) float64 of the training, undone in the posterior."""
    label_smoothing: float
    forward: ResidualForward
    taught: np.ndarray
    """(T,) bool: true quantities that it estimates."""
    threads: int = 1
    """Numerical threads: those of the training."""

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, np.ndarray],
        classes: tuple[str, ...],
        inputs: InputTransform,
        class_weights: np.ndarray | None,
        label_smoothing: float,
        threads: int = 1,
    ) -> Self:
        """Return the predictor with these weights by name; with those of a head of true quantities it estimates them.

        Raises
        ------
        InputError
            If the weights are of another network.
        """
        if TAUGHT in tensors:
            forward = ResidualForward.of(tensors, ("head", "truth"), "body.")
            taught = tensors[TAUGHT].astype(bool)
            n_outputs = len(classes) + 2 * len(taught)
        else:
            forward, taught, n_outputs = ResidualForward.of(tensors), np.zeros(len(TARGETS), bool), len(classes)
        if (len(forward.embed.weight), len(forward.heads.bias)) != (inputs.n_inputs, n_outputs):
            raise InputError(f"these weights are of no network of {inputs.n_inputs} inputs and {n_outputs} outputs")
        return cls(classes, inputs, class_weights, label_smoothing, forward, taught, threads)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a saved learner."""
        header = read_header(folder)
        try:
            inputs = InputTransform.from_state(header["inputs"])
            weights = header["class_weights"]
            class_weights = None if weights is None else np.asarray(weights, dtype=np.float64)
            smoothing = float(header["settings"].get("label_smoothing", 0.0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{folder / HEADER_FILE} cannot be read: {error!r}") from None
        tensors = read_tensors(folder / WEIGHTS_FILE)
        named = {name.removeprefix(IN_FILE): values for name, values in tensors.items()}
        try:
            return cls.of(named, tuple(header["classes"]), inputs, class_weights, smoothing, header["threads"])
        except InputError as error:
            raise InputError(f"{folder / WEIGHTS_FILE} does not fit this network: {error}") from None

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64 log-posteriors."""
        return self.predict_both(batch)[0]

    def predict_targets(self, batch: Batch) -> np.ndarray:
        """Return (n, T, 2) float64: standardised estimates of true quantities and their errors, NaN where unknown."""
        return self.predict_both(batch)[1]

    def predict_both(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return log-posteriors and estimates of true quantities, from one pass.

        Raises
        ------
        InputError
            For events that lack columns or carry true quantities.
        """
        if batch.targets is not None:
            raise InputError("events to be predicted carry true quantities: these are for training alone")
        with limited_threads(self.threads, "blas"):
            outputs = self.forward(self.inputs.apply(batch))
        log_q = log_softmax(outputs[:, : len(self.classes)]) if len(batch) else np.empty((0, len(self.classes)))
        targets = np.full((len(batch), len(self.taught), 2), np.nan)
        if self.taught.any():
            mean, log_width = np.split(outputs[:, len(self.classes) :].astype(np.float64), 2, axis=1)
            targets[:, self.taught, 0] = mean[:, self.taught]
            targets[:, self.taught, 1] = np.exp(log_width.clip(*LOG_WIDTH_RANGE)[:, self.taught])
        return undo_training_prior(log_q, self.class_weights, self.label_smoothing), targets
