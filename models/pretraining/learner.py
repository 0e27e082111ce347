"""The pretrained network as a learner: fine-tuned on the user's training showers.

The world of these showers is one more thing to learn: its position in the priors of the randomised worlds starts at
their centre and moves fast, the body moves slowly, the head in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from models.base import Batch
from models.inputs import InputTransform, has_column
from models.networks.learner import NetworkLearner
from models.pretraining.network import Architecture, ShowerBody
from models.pretraining.weights import SHIPPED, SHIPPED_SHA256, Pretrained, read_pretrained
from models.pretraining.worlds import N_WORLD
from models.training.step import Output
from showers.array import DetectorArray
from showers.schema import COMPOSITION, GAMMA, InputError


class FineTuned(nn.Module):
    """Body with a head for one task, and the world of the showers that it is trained on."""

    def __init__(self, sizes: Architecture, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.body = ShowerBody(sizes, dropout)
        self.head = nn.Linear(sizes.width, n_classes)
        self.world = nn.Parameter(torch.zeros(sizes.n_world))

    def forward(self, grid: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        """Return class logits; ``grid`` is not used."""
        return Output(self.head(self.body(inputs, torch.cat([self.world, self.world.new_ones(1)]))))


class PretrainedLearner(NetworkLearner):
    """Fine-tuned shower network.

    Settings: ``weights``, ``shipped`` or a ``.safetensors`` file whose SHA-256 is then ``weights_sha256``; ``dropout``;
    ``body_rate``, ``world_rate``, learning rates of body and world in units of the head's; ``width``, ``blocks``,
    ``hidden``, which are those of the weights.
    """

    needs_table = True
    defaults: ClassVar[dict[str, Any]] = {
        "weights": SHIPPED,
        "weights_sha256": "",
        "dropout": 0.1,
        "body_rate": 0.3,
        "world_rate": 20.0,
        "width": 256,
        "blocks": 4,
        "hidden": 512,
        "scalars": (),
        "augment": False,
        "epochs": 10,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "patience": 6,
        "precision": "float32",
    }

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        if self.chosen["weights"] == SHIPPED:
            # Part of the identity of a training, as the setting is where the weights come from a file.
            self.chosen["weights_sha256"] = SHIPPED_SHA256
        self.rate_factors = {"body.": self.chosen["body_rate"], "world": self.chosen["world_rate"]}

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the network with random weights."""
        chosen = self.chosen
        sizes = Architecture(inputs.n_inputs, chosen["width"], chosen["blocks"], chosen["hidden"], N_WORLD)
        return FineTuned(sizes, n_classes, chosen["dropout"])

    def _inputs_for(self, train: Batch) -> InputTransform:
        return inputs_of(read_pretrained(self.chosen["weights"], self.chosen["weights_sha256"]), train)

    def _initialise(self, network: nn.Module) -> None:
        assert isinstance(network, FineTuned)
        source = read_pretrained(self.chosen["weights"], self.chosen["weights_sha256"]).network
        heads = {COMPOSITION.classes: source.composition, GAMMA.classes: source.gamma}
        try:
            network.body.load_state_dict(source.body.state_dict())
        except RuntimeError:
            sizes = ", ".join(f"{name} {getattr(source.sizes, name)}" for name in ("width", "blocks", "hidden"))
            raise InputError(f"these pretrained weights are of another architecture: set {sizes}") from None
        if self.classes in heads:
            network.head.load_state_dict(heads[self.classes].state_dict())


def inputs_of(pretrained: Pretrained, events: Batch) -> InputTransform:
    """Return how the columns of these events become inputs of the pretrained network.

    Raises
    ------
    InputError
        If the events have none of its columns.
    """
    inputs = pretrained.inputs
    absent = tuple(name for name in inputs.columns if not has_column(events, name))
    if len(absent) == len(inputs.columns):
        raise InputError(
            f"the events have none of the {len(absent)} features that the pretrained network reads: "
            f"{', '.join(absent[:5])} ..."
        )
    return replace(inputs, absent=absent)
