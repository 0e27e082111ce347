"""A network as a learner: prepares inputs, builds the architecture, trains, predicts, saves.

Torch is set up for it (GPU, threads, determinism) and given back afterwards as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from showerstack.models.base.inputs import LOGARITHM, InputTransform
from showerstack.models.base.learner import Batch, Learner, check_grids, check_settings, check_training
from showerstack.models.base.posterior import class_weight_vector, event_log_loss, log_softmax, undo_training_prior
from showerstack.models.base.saving import plain
from showerstack.models.networks import data
from showerstack.models.networks.data import EventTensors, GridSource
from showerstack.models.networks.layers import GridFront, fit_front
from showerstack.models.networks.loop import History, predict_logits, train
from showerstack.models.networks.modes import OwnDraws, one_drawing, torch_as_asked, torch_obstacle
from showerstack.models.networks.predictor import WEIGHTS_FILE, TablePredictor
from showerstack.models.networks.step import TrainingSettings, precision_on
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import AGE, SCALAR_NAMES

ALL_SCALARS = (*SCALAR_NAMES, AGE.name)
SIZES = ("Ne", "Nmu")
TRAINING_NAMES = tuple(field.name for field in dataclasses.fields(TrainingSettings))

INPUT_DEFAULTS: dict[str, Any] = {
    "scalars": ALL_SCALARS,
    "grid": "log1p",
    "augment": True,
    "size_jitter": 0.0,
    "channels_last": True,
    "deterministic": True,
    "class_weights": None,
}


class NetworkLearner(Learner):
    """Base of all networks.

    Settings common to all: the fields of :class:`showerstack.models.networks.step.TrainingSettings`; ``scalars``
    (reconstructed scalars that join the inputs, where the protocol has them and the table does not), ``grid``
    (``log1p`` standardised, or ``raw`` MeV), ``augment`` (the 8 symmetries), ``size_jitter`` (standard deviation, in
    lg, of a common random shift of Ne and Nmu in training), ``channels_last``, ``deterministic``, ``class_weights``.
    A subclass adds its own in ``defaults``, and its ``architecture`` takes these by name.
    """

    architecture: ClassVar[type[nn.Module]]
    """Called with the inputs, the number of classes, the array and the subclass's own settings."""

    needs_table = False
    gpu_expected = True
    predicts_on_gpu = True
    defaults: ClassVar[dict[str, Any]] = {}
    class_values: ClassVar[dict[str, float]] = {}
    """Target of the regression head by class name; empty without such a head."""
    rate_factors: Mapping[str, float] = MappingProxyType({})
    """Learning rates of weights in units of the schedule's, by the beginning of their names; 1 for all others."""

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        known = {**dataclasses.asdict(TrainingSettings()), **INPUT_DEFAULTS, **self.defaults}
        self.chosen = check_settings(type(self).__name__, self.settings, known)
        self.training = TrainingSettings(**{name: self.chosen[name] for name in TRAINING_NAMES})
        self.inputs_: InputTransform | None = None
        self.array_: DetectorArray = KASCADE
        self.class_weights_: np.ndarray | None = None
        self.history_: History | None = None
        self.device_ = "cpu"
        self.precision_: Literal["float32", "bf16"] | None = None
        """``float32`` or ``bf16``, in which it was trained; None where that was not noted."""

    network_: nn.Module

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the network: called with (grid (n, 2, rows, columns) float32 or None, inputs (n, S) float32)."""
        common = (*TRAINING_NAMES, *INPUT_DEFAULTS)
        own = {name: self.chosen[name] for name in self.defaults if name not in common}
        return self.architecture(inputs, n_classes, array, **own)

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return torch_obstacle()

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        check_training(train, valid, self.classes, table=self.needs_table, grid=self.needs_grid)
        self.array_ = train.array
        if self.needs_grid:
            check_grids(train, self.array_)
        assert train.labels is not None
        self.device_, self.precision_ = device, precision_on(torch.device(device), self.training.precision)
        self.inputs_ = self._inputs_for(train)
        self.class_weights_ = class_weight_vector(self.chosen["class_weights"], train.labels, self.classes)
        deterministic = bool(self.chosen["deterministic"])
        with one_drawing(), torch_as_asked(device, self.threads, deterministic=deterministic):
            with OwnDraws(seed):
                network = self._assemble(self.inputs_)
            self._initialise(network.network)
            if network.front is not None:
                fit_front(network.front, train)
            network = self._move(network, device)
            self.history_ = self._train(network, train, valid, seed, device, progress)
            self.losses_ = list(self.history_.losses)
            self.network_ = network.to("cpu")
        return self

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        self._check_fitted()
        if not len(batch):
            return np.empty((0, len(self.classes)))
        with torch_as_asked(self.device_, self.threads, deterministic=bool(self.chosen["deterministic"])):
            network = self._move(self.network_, self.device_)
            logits = predict_logits(network, self._tensors(batch, self.device_))
            self.network_ = network.to("cpu")
        return self._log_posterior(logits)

    def _predictor(self) -> TablePredictor:
        """Return what predicts by a residual network without torch."""
        assert self.inputs_ is not None
        network: nn.Module = self.network_.network  # type: ignore[assignment]
        tensors = {name: value.numpy() for name, value in network.state_dict().items()}
        how = (self.class_weights_, self.training.label_smoothing, self.threads)
        return TablePredictor.of(tensors, self.classes, self.inputs_, *how)

    def _log_posterior(self, logits: torch.Tensor) -> np.ndarray:
        log_q = log_softmax(logits.numpy())
        return undo_training_prior(log_q, self.class_weights_, self.training.label_smoothing)

    def _train(
        self, network: nn.Module, events: Batch, valid: Batch, seed: int, device: str, progress: Progress | None
    ) -> History:
        assert valid.labels is not None
        labels, weights = valid.labels, valid.weights
        class_values = None
        if self.class_values and set(self.classes) <= set(self.class_values):
            class_values = torch.tensor([self.class_values[name] for name in self.classes], device=device)
        class_weights = None
        if self.class_weights_ is not None:
            class_weights = torch.tensor(self.class_weights_, dtype=torch.float32, device=device)
        return train(
            network,
            self._tensors(events, device),
            self._tensors(valid, device),
            lambda logits: event_log_loss(self._log_posterior(logits), labels, weights),
            self.training,
            seed=seed,
            augment=self._augment if self._augments() else None,
            class_weights=class_weights,
            class_values=class_values,
            rate_factors={f"network.{start}": factor for start, factor in self.rate_factors.items()},
            progress=progress,
            checkpoint=None if self.checkpoint is None else self.checkpoint / "training.safetensors",
            identity=self._identity(events, valid, seed),
        )

    def _identity(self, events: Batch, valid: Batch, seed: int) -> str:
        """Return a hash of everything that decides what training gives, the content of the events apart."""
        assert self.inputs_ is not None
        parts = [type(self).__name__, self.classes, self.chosen, seed, self.threads, self.device_, self.inputs_.state()]
        parts.append(self.array_.digest)
        digest = hashlib.sha256(json.dumps(plain(parts), sort_keys=True).encode())
        for rows in (events.index, valid.index):
            digest.update(np.ascontiguousarray(rows, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def _inputs_for(self, train: Batch) -> InputTransform:
        """Return how columns become inputs, learned from training events."""
        return InputTransform.fit(train, self._columns(train), tail=LOGARITHM)

    def _initialise(self, network: nn.Module) -> None:
        """Change the weights that training starts from; the base class leaves them as they were drawn."""

    def _columns(self, batch: Batch) -> tuple[str, ...]:
        table = tuple(batch.columns) if batch.table is not None else ()
        scalars = tuple(name for name in self.chosen["scalars"] if name in batch.scalar_columns and name not in table)
        if batch.scalars is None:
            scalars = ()
        if not table + scalars:
            raise InputError(f"{type(self).__name__} needs scalars or feature columns, the events have neither")
        return table + scalars

    def _assemble(self, inputs: InputTransform) -> Assembled:
        front = GridFront(self.chosen["grid"]) if self.needs_grid else None
        return Assembled(front, self.build(inputs, len(self.classes), self.array_))

    def _move(self, network: Any, device: str) -> Any:
        network = network.to(device)
        if self.needs_grid and self.chosen["channels_last"]:
            network = network.to(memory_format=torch.channels_last)
        return network

    def _tensors(self, batch: Batch, device: str) -> EventTensors:
        assert self.inputs_ is not None
        target_device = torch.device(device)
        grids = None
        if self.needs_grid:
            grids = GridSource(check_grids(batch, self.array_), batch.index, target_device)
        labels = weights = None
        if batch.labels is not None:
            labels = torch.as_tensor(np.asarray(batch.labels, dtype=np.int64), device=target_device)
            weights = self._event_weights(batch)
        targets = None if batch.targets is None else torch.from_numpy(batch.targets).to(target_device)
        return EventTensors(
            torch.from_numpy(self.inputs_.apply(batch)).to(target_device), grids, labels, weights, targets
        )

    def _event_weights(self, batch: Batch) -> torch.Tensor | None:
        if batch.weights is None:
            return None
        return torch.as_tensor((batch.weights / batch.weights.mean()).astype(np.float32), device=self.device_)

    def _augments(self) -> bool:
        assert self.inputs_ is not None
        moves = self.chosen["augment"] and (self.needs_grid or bool(self.inputs_.pairs))
        return bool(moves or self.chosen["size_jitter"])

    def _augment(
        self, grids: torch.Tensor | None, inputs: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        assert self.inputs_ is not None
        if self.chosen["augment"]:
            n_symmetries = len(data.SYMMETRIES)
            symmetry = torch.randint(n_symmetries, (len(inputs),), generator=generator, device=inputs.device)
            inputs = data.move_vectors(inputs, self.inputs_.pairs, symmetry)
            grids = None if grids is None else data.move_grids(grids, symmetry, self.array_)
        if self.chosen["size_jitter"]:
            sizes = [(k, name) for name in SIZES if (k := self.inputs_.position(name)) is not None]
            scales = [self.chosen["size_jitter"] / self.inputs_.width[k] for k, _ in sizes]
            inputs = data.jitter_sizes(inputs, tuple(k for k, _ in sizes), tuple(scales), generator)
        return grids, inputs

    @property
    def precision(self) -> Literal["float32", "bf16"] | None:
        """What it multiplied in while it learned; None of one that learned before that was written down."""
        return self.precision_

    @property
    def n_parameters(self) -> int:
        """Number of trained weights."""
        self._check_fitted()
        return sum(parameter.numel() for parameter in self.network_.parameters())

    def save(self, folder: Path) -> None:
        self._check_fitted()
        assert self.inputs_ is not None
        assert self.history_ is not None
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(folder / WEIGHTS_FILE) as temporary:
            save_file({name: value.contiguous() for name, value in self.network_.state_dict().items()}, temporary)
        content = {
            "columns": self.inputs_.columns,
            "inputs": self.inputs_.state(),
            "class_weights": self.class_weights_,
            "device": self.device_,
            "precision": self.precision_,
            "array": None if self.array_ == KASCADE else self.array_.as_json(),
            "losses": self.history_.losses,
            "best_epoch": self.history_.best_epoch,
        }
        self.write_saved(folder, (WEIGHTS_FILE,), content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; it predicts on a GPU only if it was trained on one that still answers."""
        learner, header = cls.from_saved(Path(folder))
        learner.inputs_ = InputTransform.from_state(header["inputs"])
        if header.get("array"):
            learner.array_ = DetectorArray.from_json(header["array"])
        weights = header["class_weights"]
        learner.class_weights_ = None if weights is None else np.asarray(weights, dtype=np.float64)
        learner.history_ = History(header["losses"], header["best_epoch"])
        learner.device_ = header["device"] if torch.cuda.is_available() else "cpu"
        learner.precision_ = header.get("precision")
        with OwnDraws(0):  # weights that are about to be replaced
            network = learner._assemble(learner.inputs_)
        try:
            network.load_state_dict(load_file(Path(folder) / WEIGHTS_FILE))
        except (SafetensorError, RuntimeError) as error:
            raise InputError(f"{folder}/{WEIGHTS_FILE} does not fit this network: {error}") from None
        learner.network_ = learner._move(network, "cpu").eval()
        return learner

    def _check_fitted(self) -> None:
        if self.history_ is None:
            raise InputError(f"this {type(self).__name__} has not been trained yet")


class Assembled(nn.Module):
    """A network behind the preparation of its grids."""

    def __init__(self, front: GridFront | None, network: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.network = network

    def forward(self, grids: torch.Tensor | None, inputs: torch.Tensor) -> Any:
        """Return the network's :class:`showerstack.models.networks.step.Output` for raw grids and inputs (n, S)."""
        if self.front is not None:
            assert grids is not None
            return self.network(self.front(grids), inputs)
        return self.network(None, inputs)
