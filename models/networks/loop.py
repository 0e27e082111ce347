"""The one training loop of all networks.

AdamW (or SAM on top of it), warm-up and cosine decay, gradient clipping, exponential average of the weights, bf16
autocast where the hardware has it, early stopping by the log-loss of the validation events. Every epoch draws from its
own seed, so a run resumed from a checkpoint is the run that was interrupted.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from showerstack.models.base.learner import Enough
from showerstack.models.networks.data import EventTensors
from showerstack.models.networks.step import (
    Augment,
    Checkpoint,
    Output,
    Stepper,
    TrainingSettings,
    autocast_of,
    optimiser_of,
    precision_on,
    read_checkpoint,
    write_checkpoint,
)
from showerstack.runtime.context import Progress

PREDICTED_AT_ONCE = {"cpu": 256, "cuda": 2048}
"""Events in a batch that is only predicted. On a CPU larger ones leave its caches, and the system spends time on giving
memory and taking it back (the share of it is printed by ``benchmarks/speed/predict_speed.py``)."""

CHECKPOINT_EVERY_S = 2.0
"""Seconds of training after which an epoch that ends is kept: one of few events takes less time than its file."""
BLOCK_EVENTS, BLOCKS_AT_ONCE = 4096, 64
"""Events read one after the other from a disk, and such runs in memory at once: 4 MB and 270 MB of grids."""
Scorer = Callable[[torch.Tensor], float]
"""Log-loss of the validation events from their logits (n, C)."""


@dataclass
class History:
    """What training reports."""

    losses: list[float] = field(default_factory=list)
    """Validation log-loss after each epoch."""
    best_epoch: int = 0


def train(
    network: nn.Module,
    events: EventTensors,
    valid: EventTensors,
    scorer: Scorer,
    settings: TrainingSettings,
    *,
    seed: int,
    augment: Augment | None = None,
    class_weights: torch.Tensor | None = None,
    class_values: torch.Tensor | None = None,
    rate_factors: Mapping[str, float] | None = None,
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
    scorer
        Validation log-loss of logits.
    seed
        Same seed, device and threads: same weights.
    augment
        Applied to every training batch.
    class_weights
        (C,) weight of each class's term of the cross-entropy.
    class_values
        (C,) target of the regression head by class.
    rate_factors
        See :func:`showerstack.models.networks.step.optimiser_of`.
    progress
        Called after every batch; where it raises :class:`showerstack.models.base.learner.Enough`, the epoch ends there
        and is the last.
    checkpoint
        File in which the state is kept after an epoch, every :data:`CHECKPOINT_EVERY_S` seconds; if it exists already,
        training continues from it.
    identity
        Names this run in the checkpoint; that of another run is refused.
    """
    device = events.inputs.device
    in_bf16 = precision_on(device, settings.precision) == "bf16"
    state = Checkpoint.start(network, optimiser_of(network, settings, rate_factors, fused=in_bf16), identity)
    if checkpoint is not None and checkpoint.exists():
        read_checkpoint(checkpoint, state)
    callable_network = torch.compile(network) if settings.compile else network
    trainer = Stepper(callable_network, state, settings, autocast_of(device, settings.precision), augment)
    trainer.class_weights, trainer.class_values = class_weights, class_values
    n_batches = math.ceil(len(events) / settings.batch_size)
    total, saved_at = settings.epochs * n_batches, time.monotonic()
    for epoch in range(state.epoch, settings.epochs):
        if state.epoch - 1 - state.best_epoch >= settings.patience:
            break
        orders = _epoch_orders(events, n_batches, seed, epoch)
        generator = torch.Generator(device).manual_seed(_epoch_seed(seed, epoch, 1))
        network.train()
        enough = False
        with _seeded(_epoch_seed(seed, epoch, 2), device):
            for k, (rows, grids) in enumerate(events.batches(orders)):
                rate = learning_rate(settings, epoch * n_batches + k, total)
                trainer.step(events, rows, grids, rate, generator)
                done = epoch * n_batches + k + 1
                try:
                    if progress:
                        progress(done * len(events) / n_batches, total * len(events) / n_batches, _note(state))
                except Enough:
                    enough = True
                    break
        trainer.check()
        state.finish_epoch(scorer(predict_logits(state.averaged, valid)))
        if enough:
            break
        if checkpoint is not None and time.monotonic() - saved_at >= CHECKPOINT_EVERY_S:
            write_checkpoint(checkpoint, state)
            saved_at = time.monotonic()
    network.load_state_dict(state.best)
    network.eval()
    return History(list(state.losses), state.best_epoch)


def predict_logits(network: nn.Module, events: EventTensors) -> torch.Tensor:
    """Return (n, C) float32 logits on the CPU, computed in float32 and in batches of fixed borders."""
    return predict_outputs(network, events, lambda output: output.logits)


def predict_outputs(network: nn.Module, events: EventTensors, part: Callable[[Output], torch.Tensor]) -> torch.Tensor:
    """Return a part of what the network says, (n, ...) float32 on the CPU, in batches of fixed borders."""
    network.eval()
    batch_size = PREDICTED_AT_ONCE[events.inputs.device.type]
    orders = [np.arange(k, min(k + batch_size, len(events))) for k in range(0, len(events), batch_size)]
    with torch.inference_mode():
        parts = [part(network(grids, events.inputs[rows])).float().cpu() for rows, grids in events.batches(orders)]
    return torch.cat(parts)


def learning_rate(settings: TrainingSettings, step: int, total: int) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine down to ``final_rate``."""
    warm = max(1, round(settings.warmup * total))
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    phase = (step - warm) / max(1, total - warm)
    share = settings.final_rate + (1 - settings.final_rate) * 0.5 * (1 + math.cos(math.pi * phase))
    return settings.learning_rate * share


def _epoch_seed(seed: int, epoch: int, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0] >> 1)


def _epoch_orders(events: EventTensors, n_batches: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the epoch's batches: a fresh permutation in groups of equal size (within one)."""
    rng = np.random.default_rng([seed, epoch, 0])
    order = rng.permutation(len(events)) if events.in_memory else shuffled_in_blocks(len(events), rng)
    return np.array_split(order, n_batches)


def shuffled_in_blocks(n_events: int, rng: np.random.Generator) -> np.ndarray:
    """Return a permutation (n,) that visits the disk block by block: grids that memory cannot hold are read in runs.

    Blocks of :data:`BLOCK_EVENTS` consecutive events come in random order, :data:`BLOCKS_AT_ONCE` of them at a time,
    whose events are mixed at random.
    """
    blocks = rng.permutation(-(-n_events // BLOCK_EVENTS))
    parts = []
    for first in range(0, len(blocks), BLOCKS_AT_ONCE):
        starts = blocks[first : first + BLOCKS_AT_ONCE] * BLOCK_EVENTS
        together = np.concatenate([np.arange(k, min(k + BLOCK_EVENTS, n_events)) for k in starts])
        parts.append(rng.permutation(together))
    return np.concatenate(parts)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (dropout uses them) and give them back afterwards as they were."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _note(state: Checkpoint) -> str:
    return f"log-loss {state.losses[-1]:.4f}, best {min(state.losses):.4f}" if state.losses else ""
