"""What the pretrained network says of a shower as columns for other learners: fixed, so that no fold leaks into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from features.catalogue import feature_set
from models.base import Batch
from models.catalogue.average import LearnerAverage
from models.checks import check_training
from models.inputs import InputTransform
from models.posterior import log_softmax
from models.pretraining.learner import inputs_of
from models.pretraining.network import Architecture, ShowerNetwork
from models.pretraining.targets import TARGETS
from models.pretraining.weights import SHIPPED, SHIPPED_SHA256, read_pretrained
from models.saving import read_header, write_header
from models.training.environment import torch_as_asked
from showers.execution.progress import Progress
from showers.schema import COMPOSITION, GAMMA, InputError
from showers.storage.files import atomic_path

NETWORK_FILE = "network.safetensors"
AT_ONCE = 8192


class PretrainedFeatures(LearnerAverage):
    """Learners on a table to which the answers of the pretrained network are added; the network does not learn.

    Added columns: logarithms of its posteriors of both tasks, its estimates of the true quantities, and the leading
    principal components of its embedding, taken from the training events. It is told nothing about their world.

    Settings: those of :class:`models.catalogue.average.LearnerAverage`; ``table``, feature set that the members see
    beside them; ``components``, how many; ``weights``, ``weights_sha256`` as for ``pretrained``.
    """

    needs_table = True
    defaults: ClassVar[dict[str, Any]] = {
        **LearnerAverage.defaults,
        "table": "fits",
        "components": 16,
        "weights": SHIPPED,
        "weights_sha256": "",
    }

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        if self.chosen["weights"] == SHIPPED:
            # Part of the identity of a training, as the setting is where the weights come from a file.
            self.chosen["weights_sha256"] = SHIPPED_SHA256
        if self.chosen["components"] < 0:
            raise InputError(f"components must be at least 0, got {self.chosen['components']}")

    network_: ShowerNetwork
    inputs_: InputTransform
    basis_: torch.Tensor
    """(1 + components, width) float32: mean of the embedding, then directions in it."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Train the members on the larger table."""
        check_training(train, valid, self.classes, table=True, grid=False)
        pretrained = read_pretrained(self.chosen["weights"], self.chosen["weights_sha256"])
        self.network_, self.inputs_ = pretrained.network, inputs_of(pretrained, train)
        embedding, _ = self._said(train)
        mean = embedding.mean(axis=0)
        spread = np.cov(embedding - mean, rowvar=False)
        directions = np.linalg.eigh(spread)[1].T[::-1][: self.chosen["components"]]
        self.basis_ = torch.from_numpy(np.ascontiguousarray(np.vstack([mean, directions]), dtype=np.float32))
        return super().fit(self._extended(train), self._extended(valid), seed=seed, device=device, progress=progress)

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64 log-posteriors with natural priors."""
        self._check_fitted()
        return super().predict_log_proba(self._extended(batch))

    def _said(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the embedding (n, width) and the answers (n, A), float64."""
        embeddings, answers = [], []
        unknown = torch.zeros(self.network_.sizes.n_world + 1)
        inputs = torch.from_numpy(self.inputs_.apply(batch))
        for part in inputs.split(AT_ONCE):
            with torch_as_asked("cpu", self.threads, deterministic=True), torch.inference_mode():
                embeddings.append(self.network_.body(part, unknown).double().numpy())
                said = self.network_(part, unknown)
            logits = (said.composition.double().numpy(), said.gamma.double().numpy())
            answers.append(np.column_stack([*(log_softmax(z) for z in logits), said.mean.double().numpy()]))
        return np.concatenate(embeddings), np.concatenate(answers)

    def _extended(self, batch: Batch) -> Batch:
        """Return the events with the members' columns: their own feature set and the network's answers."""
        if batch.table is None:
            raise InputError("this learner needs a feature table, the events have none")
        own = feature_set(self.chosen["table"], batch.columns)
        names = [*own, *(f"pretrained_{name}" for name in (*COMPOSITION.classes, *GAMMA.classes))]
        names += [f"pretrained_{target.name}" for target in TARGETS]
        names += [f"pretrained_{k}" for k in range(len(self.basis_) - 1)]
        picked = batch.table[:, [batch.columns.index(name) for name in own]]
        if not len(batch):
            table = np.empty((0, len(names)), dtype=np.float32, order="F")
            return replace(batch, table=table, columns=tuple(names))
        embedding, answers = self._said(batch)
        basis = self.basis_.double().numpy()
        table = np.column_stack([picked, answers, (embedding - basis[0]) @ basis[1:].T])
        return replace(batch, table=np.asfortranarray(table, dtype=np.float32), columns=tuple(names))

    def save(self, folder: Path) -> None:
        """Write the network, each member into a folder of its own, then the header."""
        self._check_fitted()
        folder = Path(folder)
        for k, member in enumerate(self.members):
            member.save(folder / f"member-{k}")
        tensors = {name: value.contiguous() for name, value in self.network_.state_dict().items()}
        with atomic_path(folder / NETWORK_FILE) as temporary:
            save_file({**tensors, "basis": self.basis_}, temporary)
        content = {
            "classes": self.classes,
            "settings": self.settings,
            "threads": self.threads,
            "sizes": self.network_.sizes.as_json(),
            "inputs": self.inputs_.state(),
        }
        write_header(folder, type(self).__name__, (NETWORK_FILE,), content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        learner = super().load(folder)
        header = read_header(Path(folder), cls.__name__)
        learner.inputs_ = InputTransform.from_state(header["inputs"])
        learner.network_ = ShowerNetwork(Architecture(**header["sizes"])).eval()
        try:
            tensors = load_file(Path(folder) / NETWORK_FILE)
            learner.basis_ = tensors.pop("basis")
            learner.network_.load_state_dict(tensors)
        except (SafetensorError, RuntimeError, KeyError) as error:
            raise InputError(f"{folder}/{NETWORK_FILE} does not fit this network: {error}") from None
        return learner
