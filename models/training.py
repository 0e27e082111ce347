"""The one training loop of all networks.

AdamW (or SAM on top of it), warm-up and cosine decay, gradient clipping, exponential average of the weights, bf16
autocast where the hardware has it, early stopping by the log-loss of the held-out events. Every epoch draws from its
own seed, so a run resumed from a checkpoint is the run that was interrupted.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from models.loading import EventTensors
from showers.progress import Progress
from showers.schema import InputError

VALIDATION_BATCH = 2048


class Output(NamedTuple):
    """What a network returns."""

    logits: torch.Tensor
    """(n, C)."""
    auxiliary: torch.Tensor | None = None
    """(n, C) logits of an auxiliary head that only training uses."""
    regression: torch.Tensor | None = None
    """(n,) estimate of a number that each class has, such as its lg A; only training uses it."""
    members: torch.Tensor | None = None
    """(n, K, C) logits of an ensemble inside the network; training then scores each member, not their mean."""


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
Judge = Callable[[torch.Tensor], float]
"""Log-loss (nats) of the validation events from their logits (n, C)."""


@dataclass
class History:
    """What training reports."""

    losses: list[float] = field(default_factory=list)
    """Validation log-loss after each epoch."""
    best_epoch: int = 0
    events_per_s: float = 0.0


def train(
    network: nn.Module,
    events: EventTensors,
    valid: EventTensors,
    judge: Judge,
    settings: TrainingSettings,
    *,
    seed: int,
    augment: Augment | None = None,
    class_weights: torch.Tensor | None = None,
    class_values: torch.Tensor | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    identity: str = "",
) -> History:
    """Train ``network`` in place; it ends with the (averaged) weights of its best epoch.

    Parameters
    ----------
    network
        Called with (grids or None, inputs), returns :class:`Output`.
    events, valid
        Labelled training events, and events to validate on.
    judge
        Validation log-loss of logits.
    settings
        See :class:`TrainingSettings`.
    seed
        Same seed, device and threads: same weights.
    augment
        Applied to every training batch.
    class_weights
        (C,) weight of each class's term of the cross-entropy.
    class_values
        (C,) target of the regression head by class.
    progress
        Called after every batch.
    checkpoint
        File in which the state is kept after every epoch; if it exists already, training continues from it.
    identity
        Names this run in the checkpoint; that of another run is refused.

    Raises
    ------
    FloatingPointError
        If the loss is not finite.
    """
    device = events.inputs.device
    state = Checkpoint.start(network, _optimiser(network, settings), identity)
    if checkpoint is not None and checkpoint.exists():
        read_checkpoint(checkpoint, state)
    called = torch.compile(network) if settings.compile else network
    trainer = _Trainer(called, state, settings, _autocast(device, settings.precision), augment)
    trainer.class_weights, trainer.class_values = class_weights, class_values
    n_batches = math.ceil(len(events) / settings.batch_size)
    total = settings.epochs * n_batches
    started, seen = time.monotonic(), 0
    for epoch in range(state.epoch, settings.epochs):
        if state.epoch - 1 - state.best_epoch >= settings.patience:
            break
        orders = _epoch_orders(len(events), n_batches, seed, epoch)
        generator = torch.Generator(device).manual_seed(_epoch_seed(seed, epoch, 1))
        network.train()
        with _seeded(_epoch_seed(seed, epoch, 2), device):
            for k, (rows, grids) in enumerate(events.batches(orders)):
                rate = learning_rate(settings, epoch * n_batches + k, total)
                trainer.step(events, rows, grids, rate, generator)
                seen += len(rows)
                if progress:
                    done = epoch * n_batches + k + 1
                    progress(done * len(events) / n_batches, total * len(events) / n_batches, _note(state))
        state.finish_epoch(judge(predict_logits(state.averaged, valid)))
        if checkpoint is not None:
            write_checkpoint(checkpoint, state)
    network.load_state_dict(state.best)
    network.eval()
    rate_per_s = seen / max(time.monotonic() - started, 1e-9)
    return History(list(state.losses), state.best_epoch, rate_per_s)


def predict_logits(network: nn.Module, events: EventTensors, batch_size: int = VALIDATION_BATCH) -> torch.Tensor:
    """Return (n, C) float32 logits on the CPU, computed in float32 and in batches of fixed borders."""
    network.eval()
    orders = [np.arange(k, min(k + batch_size, len(events))) for k in range(0, len(events), batch_size)]
    with torch.inference_mode():
        logits = [network(grids, events.inputs[rows]).logits.float().cpu() for rows, grids in events.batches(orders)]
    return torch.cat(logits)


def learning_rate(settings: TrainingSettings, step: int, total: int) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine down to ``final_rate``."""
    warm = max(1, round(settings.warmup * total))
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    phase = (step - warm) / max(1, total - warm)
    share = settings.final_rate + (1 - settings.final_rate) * 0.5 * (1 + math.cos(math.pi * phase))
    return settings.learning_rate * share


@dataclass
class _Trainer:
    network: Callable[..., Output]
    state: Checkpoint
    settings: TrainingSettings
    autocast: Callable[[], contextlib.AbstractContextManager[object]]
    augment: Augment | None
    class_weights: torch.Tensor | None = None
    class_values: torch.Tensor | None = None

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
            group["lr"] = rate
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
        loss = self._loss(output, labels, weights)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the training loss became {loss.item()}: lower the learning rate")
        loss.backward()

    def _loss(self, output: Output, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
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


def _optimiser(network: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """Return AdamW that decays matrices and kernels, not biases, norms and scales."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate)


def _autocast(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    if precision == "auto":
        native = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else _cpu_has_bf16()
        precision = "bf16" if native else "float32"
    if precision == "float32":
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def _cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


def _epoch_seed(seed: int, epoch: int, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0] >> 1)


def _epoch_orders(n_events: int, n_batches: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the epoch's batches: a fresh permutation in groups of equal size (within one)."""
    order = np.random.default_rng([seed, epoch, 0]).permutation(n_events)
    return np.array_split(order, n_batches)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (dropout uses them) and give them back afterwards as they were."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _note(state: Checkpoint) -> str:
    return f"log-loss {state.losses[-1]:.4f}, best {min(state.losses):.4f}" if state.losses else ""
