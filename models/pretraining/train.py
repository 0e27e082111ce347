"""Pretraining: background processes draw showers; killed at any moment, it goes on.

Showers come in rounds; after each round the state is written, and a run started again continues with the next round
as if it had never stopped. AdamW, warm-up, cosine, exponential average of the weights: :mod:`models.training`.
"""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.inputs import InputTransform
from models.pretraining.ahead import drawn_ahead
from models.pretraining.network import Architecture, ShowerNetwork, pretraining_loss
from models.pretraining.plan import (
    PLAN_FILE,
    PORTIONS_PER_ROUND,
    PretrainSettings,
    opened_plan,
    validation_showers,
)
from models.pretraining.prepared import Prepared
from models.pretraining.stream import Portion
from models.pretraining.weights import write_pretrained
from models.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from models.training.loop import learning_rate
from models.training.step import check_finite, optimiser_of
from showers.execution.progress import Bars, silent
from showers.storage.files import write_json
from showers.storage.locks import locked

STATE_FILE = "state.safetensors"
WEIGHTS_FILE = "showers.safetensors"
RATE_STEPS = 1000
"""Steps of the learning rate's schedule in a round."""


def pretrain(
    folder: Path,
    settings: PretrainSettings,
    *,
    workers: int = 1,
    threads: int = 1,
    device: str = "cpu",
    bars: Bars = silent,
) -> Path:
    """Train the shower network, or go on where an earlier call in the same folder stopped.

    Parameters
    ----------
    folder
        Where the plan, the state and the weights are kept; made if needed.
    settings
        See :class:`models.pretraining.plan.PretrainSettings`.
    workers
        Processes that draw showers.
    threads
        Numerical threads of the training.
    device
        ``"cpu"`` or ``"cuda"``: where the network learns; showers are drawn on the CPU.
    bars
        Opens a progress bar: showers seen per second, validation log-loss.

    Returns
    -------
    Path
        The weights' file, with its card beside it (:mod:`models.pretraining.weights`); after every round it holds the
        averaged weights so far.

    Raises
    ------
    InputError
        If the folder holds another pretraining (other settings or other code), another process works in it, or one
        that draws showers was lost.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    with locked(folder), bars("pretrain", "showers") as progress:
        plan = opened_plan(folder, settings)
        inputs = InputTransform.from_state(plan["inputs"])
        state = _state(folder, settings, inputs, plan["identity"], device)
        valid = Prepared.of(validation_showers(settings.seed), inputs, settings.seed, 0).to(device)
        stream = drawn_ahead(settings.seed, settings.portions(state.epoch), workers)
        for number in range(state.epoch, settings.rounds):
            before = time.process_time()
            drawn = [next(stream) for _ in range(PORTIONS_PER_ROUND)]
            showers = Portion.joined([portion for portion, _ in drawn])
            events = Prepared.of(showers, inputs, settings.seed, number + 1).to(device)
            train_round(state, events, settings)
            loss = validate(state.averaged, valid)
            state.finish_epoch(loss["composition"])
            spent_s = time.process_time() - before + sum(seconds for _, seconds in drawn)
            plan = {
                **plan,
                "showers": plan["showers"] + len(events),
                "cpu_hours": plan["cpu_hours"] + spent_s / 3600,
                "log_loss": loss,
            }
            write_json(folder / PLAN_FILE, plan)
            write_checkpoint(folder / STATE_FILE, state)
            _write_weights(folder, state, inputs, plan)
            progress(plan["showers"], settings.showers, ", ".join(f"{name} {x:.4f}" for name, x in loss.items()))
    return folder / WEIGHTS_FILE


def _state(folder: Path, settings: PretrainSettings, inputs: InputTransform, identity: str, device: str) -> Checkpoint:
    """Return the state to go on from: the one in the folder, or that before the first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = ShowerNetwork(Architecture(inputs.n_inputs, settings.width, settings.blocks, settings.hidden))
    network.to(device)
    state = Checkpoint.start(network, optimiser_of(network, settings.training), identity)
    if (folder / STATE_FILE).exists():
        read_checkpoint(folder / STATE_FILE, state)
    return state


def _write_weights(folder: Path, state: Checkpoint, inputs: InputTransform, plan: dict[str, Any]) -> None:
    network = state.averaged
    assert isinstance(network, ShowerNetwork)
    made = {key: plan[key] for key in ("settings", "feature_code", "showers", "cpu_hours", "log_loss")}
    write_pretrained(folder / WEIGHTS_FILE, deepcopy(network).cpu(), inputs, made | {"rounds": state.epoch})


def train_round(state: Checkpoint, events: Prepared, settings: PretrainSettings) -> None:
    """Show the network every shower of a round, in another order each time."""
    network = state.network
    network.train()
    rng = np.random.default_rng([settings.seed, state.epoch, 0])
    n_batches = max(1, len(events) // settings.batch_size)
    batches = [rows for _ in range(settings.passes) for rows in np.array_split(rng.permutation(len(events)), n_batches)]
    total = torch.zeros((), device=events.labels.device)
    for k, positions in enumerate(batches):
        done = state.epoch + k / len(batches)
        rate = learning_rate(settings.training, round(RATE_STEPS * done), RATE_STEPS * settings.rounds)
        for group in state.optimiser.param_groups:
            group["lr"] = rate
        rows = torch.from_numpy(positions).to(events.labels.device, non_blocking=True)
        answers = network(events.inputs[rows], events.world[rows])
        loss = pretraining_loss(
            answers, events.task[rows], events.labels[rows], events.targets[rows], settings.truth_weight
        )
        total += loss.detach()
        state.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.training.clip_norm)
        state.optimiser.step()
        state.average(settings.ema)
    check_finite(total)


def validate(network: nn.Module, events: Prepared) -> dict[str, float]:
    """Return the log-loss of both tasks (nats) on showers that pass the cuts, in known and in unknown worlds."""
    network.eval()
    with torch.inference_mode():
        answers = network(events.inputs, events.world)
    found = {}
    for number, (name, logits) in enumerate((("composition", answers.composition), ("gamma", answers.gamma))):
        for known, where in ((1.0, name), (0.0, f"{name}, world unknown")):
            rows = events.judged & (events.task == number) & (events.world[:, -1] == known)
            found[where] = float(functional.cross_entropy(logits[rows], events.labels[rows]))
    return found
