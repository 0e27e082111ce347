"""The state of a training run, and the file from which it continues exactly (safetensors, no pickle)."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from models.saving import CheckpointError
from showers.storage.files import atomic_path


@dataclass
class Checkpoint:
    """Everything that changes while a network is trained."""

    network: nn.Module
    averaged: nn.Module
    """Exponential average of the network's weights; the network that validates."""
    optimiser: torch.optim.Optimizer
    best: dict[str, torch.Tensor]
    """Averaged weights of the best epoch."""
    identity: str = ""
    """Names the run: network, settings, seed, events. Another run's file is not continued."""
    epoch: int = 0
    """Epochs done."""
    step: int = 0
    best_epoch: int = -1
    losses: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, network: nn.Module, optimiser: torch.optim.Optimizer, identity: str = "") -> Self:
        """Return the state before the first step."""
        averaged = copy.deepcopy(network)
        averaged.requires_grad_(False)
        return cls(network, averaged, optimiser, _clone(averaged.state_dict()), identity)

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Move the averaged weights toward the network's; early steps forget faster."""
        self.step += 1
        keep = min(decay, (1 + self.step) / (10 + self.step)) if decay else 0.0
        target, source = self.averaged.state_dict(), self.network.state_dict()
        moving = [name for name, value in target.items() if value.is_floating_point()]
        torch._foreach_lerp_([target[k] for k in moving], [source[k] for k in moving], 1.0 - keep)
        for name in target.keys() - set(moving):
            target[name].copy_(source[name])

    def finish_epoch(self, loss: float) -> None:
        """Note an epoch's validation log-loss and keep its weights if it is the best so far."""
        if not self.losses or loss < min(self.losses):
            self.best_epoch, self.best = self.epoch, _clone(self.averaged.state_dict())
        self.losses.append(loss)
        self.epoch += 1


def write_checkpoint(file: Path, state: Checkpoint) -> None:
    """Write the state, atomically."""
    tensors = {f"network.{k}": v for k, v in state.network.state_dict().items()}
    tensors |= {f"averaged.{k}": v for k, v in state.averaged.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in state.best.items()}
    for number, values in state.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in values.items()}
    numbers = {
        "identity": state.identity,
        "epoch": state.epoch,
        "step": state.step,
        "best_epoch": state.best_epoch,
        "losses": [loss.hex() for loss in state.losses],
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"state": json.dumps(numbers), "sha256": _digest(tensors, numbers)}
    with atomic_path(file) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def read_checkpoint(file: Path, state: Checkpoint) -> None:
    """Continue from a file: fill the state of a run that was started alike.

    Raises
    ------
    CheckpointError
        If the file is damaged or belongs to another run.
    """
    try:
        with safe_open(file, framework="pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a mapping)
            metadata = content.metadata() or {}
        numbers = json.loads(metadata["state"])
        if _digest(tensors, numbers) != metadata["sha256"]:
            raise ValueError("damaged")
        if numbers["identity"] != state.identity:
            raise ValueError("other settings, seed or events")
        parts: dict[str, dict[str, torch.Tensor]] = {"network": {}, "averaged": {}, "best": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        state.network.load_state_dict(parts["network"])
        state.averaged.load_state_dict(parts["averaged"])
        optimiser = state.optimiser.state_dict()
        for name, tensor in parts["optimiser"].items():
            number, _, key = name.partition(".")
            optimiser["state"].setdefault(int(number), {})[key] = tensor
        state.optimiser.load_state_dict(optimiser)
        if parts["best"].keys() != parts["averaged"].keys():
            raise ValueError("weights of the best epoch are missing")
        device = next(state.network.parameters()).device
        state.best = {name: tensor.to(device) for name, tensor in parts["best"].items()}
        state.epoch, state.step, state.best_epoch = numbers["epoch"], numbers["step"], numbers["best_epoch"]
        state.losses = [float.fromhex(loss) for loss in numbers["losses"]]
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{file} is not a checkpoint of this run ({reason}): remove it to start afresh") from None


def _digest(tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(numbers, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _clone(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}
