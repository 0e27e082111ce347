"""One optimiser step of a network: its outputs, their loss, the settings of training, and the state on disk.

Training continues from that file exactly; it is in safetensors, no pickle.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from showerstack.models.base.saving import CheckpointError
from showerstack.models.networks.data import EventTensors
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path


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
    # One entry: the library writes several in any order, and equal states are to be equal bytes.
    metadata = {"state": json.dumps({"numbers": numbers, "sha256": _digest(tensors, numbers)})}
    with atomic_path(file) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def read_checkpoint(file: Path, state: Checkpoint) -> None:
    """Continue from a file: fill the state of a run that was started alike."""
    try:
        with safe_open(file, framework="pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a mapping)
            metadata = content.metadata() or {}
        stored = json.loads(metadata["state"])
        numbers = stored["numbers"]
        if _digest(tensors, numbers) != stored["sha256"]:
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
        trained = [parameter for group in state.optimiser.param_groups for parameter in group["params"]]
        for name, tensor in parts["optimiser"].items():
            number, _, key = name.partition(".")
            like = trained[int(number)]
            if tensor.shape == like.shape:
                # Fused updates take moments and weights by their place in memory, whatever their strides say.
                tensor = torch.empty_like(like, device="cpu").copy_(tensor)
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


class Output(NamedTuple):
    """What a network returns."""

    logits: torch.Tensor
    """(n, C)."""
    auxiliary: torch.Tensor | None = None
    """(n, C) logits of an auxiliary head that only training uses."""
    regression: torch.Tensor | None = None
    """(n,) estimate of a number that each class has, such as its lg A; only training uses it."""
    truth: torch.Tensor | None = None
    """(n, 2 T) estimates of standardised true quantities, then the logarithms of their errors."""
    members: torch.Tensor | None = None
    """(n, K, C) logits of an ensemble inside the network; training then scores each member, not their mean."""


TRUTH_SHARE = 0.1
"""Weight of the true quantities in the loss; how much of it reaches the body is the network's own setting."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; every field is a setting of every network."""

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    warmup: float = 0.05
    """Share of all steps during which the learning rate rises."""
    final_rate: float = 0.01
    """Learning rate at the end of the cosine, in units of ``learning_rate``."""
    optimiser: str = "adamw"
    """``adamw``, or ``sam``: sharpness-aware minimisation (arXiv:2010.01412) with AdamW as base."""
    sam_radius: float = 0.05
    clip_norm: float = 1.0
    ema: float = 0.995
    """Decay per step of the averaged weights that validate and predict; 0 for none."""
    patience: int = 8
    """Epochs without a better validation log-loss."""
    label_smoothing: float = 0.0
    auxiliary_weight: float = 0.0
    regression_weight: float = 0.0
    precision: str = "auto"
    """``float32``, ``bf16``, or ``auto``: bf16 where the hardware multiplies it natively."""
    compile: bool = False
    """Compile the network first (worth it on a GPU)."""

    def __post_init__(self) -> None:
        if self.optimiser not in ("adamw", "sam"):
            raise InputError(f"optimiser {self.optimiser!r}: choose adamw or sam")
        if self.precision not in ("auto", "float32", "bf16"):
            raise InputError(f"precision {self.precision!r}: choose auto, float32 or bf16")
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.label_smoothing < 1 or not 0 <= self.ema < 1:
            raise InputError("label_smoothing and ema lie between 0 and 1 (1 excluded)")


Augment = Callable[[torch.Tensor | None, torch.Tensor, torch.Generator], tuple[torch.Tensor | None, torch.Tensor]]
"""Turns (grids, inputs) of a training batch into an equally plausible batch."""


@dataclass
class Stepper:
    """Takes optimiser steps: augmentation, loss, gradient, SAM's climb, averaging."""

    network: Callable[..., Output]
    state: Checkpoint
    settings: TrainingSettings
    autocast: Callable[[], contextlib.AbstractContextManager[object]]
    augment: Augment | None
    class_weights: torch.Tensor | None = None
    class_values: torch.Tensor | None = None
    total: torch.Tensor | float = 0.0
    """Sum of the losses on a GPU, for :meth:`check`."""

    def check(self) -> None:
        """Refuse weights that a loss which is not a number has made."""
        if isinstance(self.total, torch.Tensor):
            check_finite(self.total)

    def step(
        self,
        events: EventTensors,
        rows: torch.Tensor,
        grids: torch.Tensor | None,
        rate: float,
        generator: torch.Generator,
    ) -> None:
        """Take one optimiser step."""
        inputs = events.inputs[rows]
        if self.augment is not None:
            grids, inputs = self.augment(grids, inputs, generator)
        optimiser = self.state.optimiser
        for group in optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self._backward(events, rows, grids, inputs)
        if self.settings.optimiser == "sam":
            ascent = self._climb()
            self._backward(events, rows, grids, inputs)
            with torch.no_grad():
                for parameter, moved in ascent:
                    parameter.sub_(moved)
        nn.utils.clip_grad_norm_(self.state.network.parameters(), self.settings.clip_norm)
        optimiser.step()
        self.state.average(self.settings.ema)

    def _backward(
        self, events: EventTensors, rows: torch.Tensor, grids: torch.Tensor | None, inputs: torch.Tensor
    ) -> None:
        assert events.labels is not None
        self.state.optimiser.zero_grad(set_to_none=True)
        with self.autocast():
            output = self.network(grids, inputs)
        labels = events.labels[rows]
        weights = None if events.weights is None else events.weights[rows]
        targets = None if events.targets is None else events.targets[rows]
        loss = self._loss(output, labels, weights, targets)
        if loss.device.type == "cpu":
            check_finite(loss)
        else:
            # Looked at once an epoch: asking a GPU now would wait until it is done.
            self.total = self.total + loss.detach()
        loss.backward()

    def _loss(
        self,
        output: Output,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        settings = self.settings

        def entropy(logits: torch.Tensor, smoothing: float) -> torch.Tensor:
            return functional.cross_entropy(
                logits.float(), labels, weight=self.class_weights, reduction="none", label_smoothing=smoothing
            )

        each = entropy(output.logits, settings.label_smoothing)
        if output.members is not None:
            scores = [entropy(member, settings.label_smoothing) for member in output.members.unbind(1)]
            each = torch.stack(scores).mean(dim=0)
        if output.auxiliary is not None and settings.auxiliary_weight:
            each = each + settings.auxiliary_weight * entropy(output.auxiliary, 0.0)
        if output.regression is not None and settings.regression_weight and self.class_values is not None:
            error = output.regression.float() - self.class_values[labels]
            each = each + settings.regression_weight * error.square()
        if output.truth is not None and targets is not None:
            losses, known = truth_losses(output.truth.float(), targets)
            each = each + TRUTH_SHARE * losses.sum(dim=1) / known.sum(dim=1).clamp_min(1)
        if weights is None:
            return each.mean()
        return (each * weights).sum() / weights.sum().clamp_min(1e-12)

    def _climb(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Move the weights to the worst point within ``sam_radius``; return the moves."""
        with torch.no_grad():
            having = [p for p in self.state.network.parameters() if p.grad is not None]
            gradients = [p.grad for p in having if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            scale = self.settings.sam_radius / (norm + 1e-12)
            moves: list[tuple[torch.Tensor, torch.Tensor]] = [
                (p, g * scale) for p, g in zip(having, gradients, strict=True)
            ]
            for parameter, move in moves:
                parameter.add_(move)
        return moves


def truth_losses(estimates: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return negative logarithms of normal densities, without constant, and which of them count; (n, T) each.

    ``estimates`` (n, 2 T) are means, then logarithms of the errors; a target (n, T) that is NaN counts not.
    """
    mean, log_width = estimates.chunk(2, dim=1)
    known = ~torch.isnan(targets)
    residual = (torch.where(known, targets, 0.0) - mean) * torch.exp(-log_width)
    return (0.5 * residual.square() + log_width) * known, known


def check_finite(loss: torch.Tensor) -> None:
    """Refuse a loss that is not a number; a GPU is waited for."""
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the training loss became {loss.item()}: lower the learning rate")


class EagerAdamW(torch.optim.AdamW):
    """AdamW without torch's compiler, which its methods import: .9 s and 70 MB of every process that trains."""

    add_param_group, zero_grad, state_dict, load_state_dict = (
        inspect.unwrap(getattr(torch.optim.AdamW, name))
        for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    )
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def optimiser_of(
    network: nn.Module,
    settings: TrainingSettings,
    factors: Mapping[str, float] | None = None,
    *,
    fused: bool = False,
) -> EagerAdamW:
    """Return AdamW that decays matrices and kernels, not biases, norms and scales.

    ``factors`` are learning rates in units of the schedule's, by the beginning of parameters' names; 1 for all others.
    ``fused`` updates all weights in one pass, with other last bits.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            factor = next((value for start, value in (factors or {}).items() if name.startswith(start)), 1.0)
            groups.setdefault((factor, parameter.ndim > 1), []).append(parameter)
    order = sorted(groups, key=lambda key: (-key[0], not key[1]))
    return EagerAdamW(
        [
            {"params": groups[key], "weight_decay": settings.weight_decay if key[1] else 0.0, "factor": key[0]}
            for key in order
        ],
        lr=settings.learning_rate,
        fused=fused,
    )


def precision_on(device: torch.device, precision: str) -> Literal["float32", "bf16"]:
    """Return which of them a network with this setting is trained in on a device."""
    if precision == "auto":
        native = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else _cpu_has_bf16()
        return "bf16" if native else "float32"
    return "bf16" if precision == "bf16" else "float32"


def autocast_of(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    if precision_on(device, precision) == "float32":
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def _cpu_has_bf16() -> bool:
    """Return whether the processor multiplies bf16 (AVX-512 BF16 or AMX), and torch has not been told to use less."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return any(getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
