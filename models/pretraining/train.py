"""Pretraining: background processes draw showers ahead of the network; killed at any moment, it goes on.

Showers come in rounds; after each round the state is written, and a run started again continues with the next round as
if it had never stopped. What it was asked to do is in a file beside its state. AdamW, warm-up, cosine, exponential
average of the weights: :mod:`showerstack.models.networks.loop`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from showerstack.models.base.inputs import LOGARITHM, OFTEN_MISSING, InputTransform
from showerstack.models.base.saving import plain
from showerstack.models.networks.loop import learning_rate
from showerstack.models.networks.modes import OwnDraws, torch_as_asked
from showerstack.models.networks.step import (
    Checkpoint,
    TrainingSettings,
    check_finite,
    optimiser_of,
    read_checkpoint,
    write_checkpoint,
)
from showerstack.models.pretraining.arrays import N_ARRAY
from showerstack.models.pretraining.network import Architecture, ShowerNetwork, pretraining_loss, told
from showerstack.models.pretraining.stream import (
    COLUMNS,
    N_WORLD,
    TASKS,
    Prepared,
    SimulatedBatch,
    batch_of,
    draw_portion,
    hide_ages,
)
from showerstack.models.pretraining.weights import (
    WEIGHTS_FILE,
    Pretrained,
    arrays_entry,
    read_pretrained,
    seeds_of,
    write_pretrained,
)
from showerstack.runtime.cluster import spread_over
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import CHECKSUM, is_as_written, locked, read_json, with_checksum, write_json
from showerstack.runtime.processes import end_with_parent, safe_path
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.showers.array import KASCADE, DetectorArray

PLAN_FILE = "pretraining.json"
PORTIONS_PER_ROUND = 8
"""About 120,000 showers of 160 worlds, 176,000 at other arrays than KASCADE: what is shuffled together, and what an
interruption loses at most."""
SHOWERS_PER_PORTION, ELSEWHERE = 15_000, 22_000
"""Roughly, at KASCADE and at other arrays; the schedule counts rounds, not showers."""
VALIDATION_PORTIONS = 2
LEAST_OF_A_CLASS = 20
"""Showers of each class to validate on; KASCADE has thousands."""
START_RATE = 0.35
"""Learning rate of weights that are gone on from, in units of that of random ones."""


@dataclass(frozen=True)
class PretrainSettings:
    """What decides the weights that pretraining ends with."""

    showers: int = 10_000_000
    """Drawn in all, about: rounds are whole."""
    seed: int = 1
    passes: int = 2
    """Times each shower is shown: drawing one costs more than looking at it twice."""
    batch_size: int = 512
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup: float = 0.02
    ema: float = 0.9995
    truth_weight: float = 0.1
    width: int = 256
    blocks: int = 4
    hidden: int = 512
    start: str = ""
    """Weights to go on from, as in :func:`showerstack.models.pretraining.weights.read_pretrained`; empty: random
    ones."""
    start_sha256: str = ""
    array: DetectorArray | None = KASCADE
    """The stations that see the showers; None: every block has an array of its own."""

    def __post_init__(self) -> None:
        if self.showers < 1:
            raise InputError(f"showers must be at least 1, got {self.showers}")
        if self.array is not None and not self.array.has_electron.any():
            raise InputError(f"the array {self.array.title} cannot be simulated: e/gamma detectors trigger")

    @cached_property
    def origin(self) -> Pretrained | None:
        """The weights to go on from; None for random ones."""
        return read_pretrained(self.start, self.start_sha256) if self.start else None

    @classmethod
    def of_batches(cls, batch_size: int, start: str = "", **changes: Any) -> Self:
        """Return settings for another batch size: learning rate by the square root, the averaged weights' memory kept.

        The root keeps the noise of a step with an adaptive optimiser (arXiv:2205.10287). Weights that are no longer
        random get :data:`START_RATE` of it.
        """
        times = batch_size / cls.batch_size
        rate, ema = cls.learning_rate * times**0.5 * (START_RATE if start else 1.0), cls.ema**times
        return cls(batch_size=batch_size, learning_rate=rate, ema=ema, start=start, **changes)

    @property
    def rounds(self) -> int:
        """Rounds of the whole training."""
        portion = SHOWERS_PER_PORTION if self.array == KASCADE else ELSEWHERE
        return max(1, round(self.showers / (PORTIONS_PER_ROUND * portion)))

    def portions(self, done: int) -> range:
        """Return the numbers of the portions that are left after ``done`` rounds."""
        return range(done * PORTIONS_PER_ROUND, self.rounds * PORTIONS_PER_ROUND)

    @property
    def training(self) -> TrainingSettings:
        """The same in the words of the training loop."""
        names = ("batch_size", "learning_rate", "weight_decay", "warmup", "ema")
        return TrainingSettings(**{name: getattr(self, name) for name in names})


def open_plan(folder: Path, settings: PretrainSettings) -> dict[str, Any]:
    """Return the plan in the folder, made there if it is new."""
    named = {one.name: getattr(settings, one.name) for one in fields(settings) if one.name != "array"}
    wanted = {"settings": named, "features_version": FEATURES_VERSION, **arrays_entry(settings.array)}
    identity = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    file = Path(folder) / PLAN_FILE
    if file.exists():
        plan: dict[str, Any] = read_json(file)
        if CHECKSUM in plan and not is_as_written(plan):
            raise InputError(f"{file} is damaged or was changed: give another folder, or restore it")
        plan.pop(CHECKSUM, None)
        if plan.get("identity") != identity:
            raise InputError(
                f"{file} is of a pretraining with other settings or another version of the features: "
                "give the settings in it, or another folder"
            )
        return plan
    if any(not entry.name.startswith(".") for entry in Path(folder).iterdir()):
        raise InputError(f"{folder} holds something else than a pretraining: choose a new folder")
    seeds: list[int] = []
    if origin := settings.origin:
        inputs = replace(origin.inputs, tail=LOGARITHM)
        if settings.array is None and origin.seen is None:
            inputs = replace(inputs, flagged=(*inputs.flagged, *_missing_elsewhere(settings, inputs)))
        seeds = seeds_of(origin.card)
        if settings.seed in seeds:
            raise InputError(
                f"the weights {settings.start} know the showers of --seed {settings.seed}: give another one"
            )
    else:
        first = validation_showers(settings)
        batch = batch_of(hide_ages(first.table, np.random.default_rng(settings.seed)))
        inputs = InputTransform.fit(batch, COLUMNS, tail=LOGARITHM)
    plan = {**wanted, "identity": identity, "inputs": plain(inputs.state()), "showers": 0}
    plan["seeds"] = [*seeds, settings.seed]
    plan |= {"cpu_hours": 0.0, "log_loss": {}}
    write_json(file, with_checksum(plan))
    return plan


def _missing_elsewhere(settings: PretrainSettings, inputs: InputTransform) -> tuple[str, ...]:
    """Return which columns other arrays often lack and KASCADE does not."""
    table = validation_showers(settings).table
    often = np.isnan(table).mean(axis=0) > OFTEN_MISSING
    return tuple(name for name, lacks in zip(COLUMNS, often, strict=True) if lacks and name not in inputs.flagged)


def validation_showers(settings: PretrainSettings) -> SimulatedBatch:
    """Return the showers on which pretraining is watched; no weight is learned from them."""
    showers = SimulatedBatch.joined(
        [draw_portion(settings.seed, number, "test", settings.array) for number in range(VALIDATION_PORTIONS)]
    )
    if settings.array is None:
        return showers
    for number, task in enumerate(TASKS):
        counts = np.bincount(showers.labels[(showers.task == number) & showers.in_evaluation], minlength=task.n_classes)
        if counts.min() < LEAST_OF_A_CLASS:
            raise InputError(
                f"the array {settings.array.title} records {counts.min()} simulated showers of class "
                f"{task.classes[counts.argmin()]!r}, fewer than {LEAST_OF_A_CLASS}: its stations are too few or too "
                "far apart for showers of 10^14 to 10^18 eV"
            )
    return showers


AHEAD = 8
"""Portions that may wait to be read, beside those being drawn: about 60 MB."""


def draw_ahead(
    seed: int, numbers: range, workers: int, draw: Callable[[int, int], Any], scheduler: str | None = None
) -> Generator[tuple[Any, float], None, None]:
    """Yield the portions with these numbers in order, and the processor time each took; drawn here or on a cluster."""
    if scheduler:
        made: dict[int, tuple[Any, float]] = {}
        asked = ((draw, seed, number) for number in numbers)
        with closing(spread_over(scheduler, _draw_numbered, asked, ahead=AHEAD)) as drawn:
            for number in numbers:
                while number not in made:
                    made |= next(drawn)
                yield made.pop(number)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))
    waiting: deque[Any] = deque()
    upcoming = iter(numbers)
    try:
        while True:
            while len(waiting) < workers + AHEAD and (following := next(upcoming, None)) is not None:
                with safe_path():
                    waiting.append(pool.submit(_draw_timed, draw, seed, following))
            if not waiting:
                return
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a process that draws showers was lost (killed, or out of memory): start the same command again"
        ) from None
    finally:
        pool.shutdown(wait=not waiting, cancel_futures=True)


def _draw_timed(draw: Callable[[int, int], Any], seed: int, number: int) -> tuple[Any, float]:
    before = time.process_time()
    return draw(seed, number), time.process_time() - before


def _draw_numbered(draw: Callable[[int, int], Any], seed: int, number: int) -> dict[int, tuple[Any, float]]:
    return {number: _draw_timed(draw, seed, number)}


STATE_FILE = "state.safetensors"
RATE_STEPS = 1000
"""Steps of the learning rate's schedule in a round."""


def pretrain(
    folder: Path,
    settings: PretrainSettings,
    *,
    workers: int = 1,
    threads: int = 1,
    device: str = "cpu",
    scheduler: str | None = None,
    bars: Bars = silent,
) -> Path:
    """Train the shower network, or go on where an earlier call in the same folder stopped.

    Parameters
    ----------
    folder
        Where the plan, the state and the weights are kept; made if needed.
    workers
        Processes that draw showers.
    threads
        Numerical threads of the training.
    device
        ``"cpu"`` or ``"cuda"``: where the network learns; showers are drawn on the CPU.
    scheduler
        Address of a Dask scheduler whose workers draw showers in place of processes here; the weights are the same.
    bars
        Opens a progress bar: showers seen per second, validation log-loss.

    Returns
    -------
    Path
        The weights' file, with its card beside it (:mod:`showerstack.models.pretraining.weights`); after every round
        it holds the averaged weights so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        locked(folder),
        torch_as_asked(device, threads, deterministic=False),
        bars("pretrain", "showers") as progress,
    ):
        plan = open_plan(folder, settings)
        inputs = InputTransform.from_state(plan["inputs"])
        state = _start_state(folder, settings, inputs, plan["identity"], device)
        valid = Prepared.of(validation_showers(settings), inputs, settings.seed, 0).to(device)
        draw = partial(draw_portion, array=settings.array)
        numbers = settings.portions(state.epoch)
        with closing(draw_ahead(settings.seed, numbers, workers, draw, scheduler)) as stream:
            for number in range(state.epoch, settings.rounds):
                before = time.process_time()
                drawn = [next(stream) for _ in range(PORTIONS_PER_ROUND)]
                showers = SimulatedBatch.joined([portion for portion, _ in drawn])
                events = Prepared.of(showers, inputs, settings.seed, number + 1).to(device)
                train_round(state, events, settings)
                loss = validate(state.averaged, valid)
                state.finish_epoch(loss["composition"])
                spent_s = time.process_time() - before + sum(seconds for _, seconds in drawn)
                counted = plan.get("rounds", 0) > number  # killed between plan and state: the same round is done again
                plan = {
                    **plan,
                    "rounds": number + 1,
                    "showers": plan["showers"] + (0 if counted else len(events)),
                    "cpu_hours": plan["cpu_hours"] + spent_s / 3600,
                    "log_loss": loss,
                }
                # The state last: killed before it is written, the whole round with all its files is done again.
                _write_weights(folder, state, inputs, plan, settings)
                write_json(folder / PLAN_FILE, with_checksum(plan))
                write_checkpoint(folder / STATE_FILE, state)
                expected = plan["showers"] * settings.rounds / (number + 1)
                progress(plan["showers"], expected, ", ".join(f"{name} {x:.4f}" for name, x in loss.items()))
    return folder / WEIGHTS_FILE


def _start_state(
    folder: Path, settings: PretrainSettings, inputs: InputTransform, identity: str, device: str
) -> Checkpoint:
    """Return the state to go on from: the one in the folder, or that before the first step."""
    n_world = N_WORLD + (N_ARRAY if settings.array is None else 0)
    with OwnDraws(settings.seed):
        network = ShowerNetwork(
            Architecture(inputs.n_inputs, settings.width, settings.blocks, settings.hidden, n_world)
        )
    if origin := settings.origin:
        known = replace(origin.network.sizes, n_inputs=inputs.n_inputs, n_world=n_world)
        if known != network.sizes:
            raise InputError(f"{settings.start}: weights of another size than the settings': {origin.network.sizes}")
        weights = origin.network.state_dict()
        if origin.seen is not None and settings.array is not None:
            weights |= told(weights, settings.array, "body.")
        network.load_state_dict(widened(weights, network.sizes))
    network.to(device)
    state = Checkpoint.start(network, optimiser_of(network, settings.training), identity)
    if (folder / STATE_FILE).exists():
        read_checkpoint(folder / STATE_FILE, state)
    return state


def widened(state: dict[str, torch.Tensor], sizes: Architecture) -> dict[str, torch.Tensor]:
    """Return weights for more inputs and numbers of the world at the end of the known ones: zeros, that change nothing.

    The last number of a world says whether it is known, and stays the last.
    """
    embed, world = state["body.embed.weight"], state["body.world.weight"]
    more = (sizes.n_inputs - embed.shape[1], sizes.n_world + 1 - world.shape[1])
    embed, zeros = functional.pad(embed, (0, more[0])), world.new_zeros(len(world), more[1])
    world = torch.cat([world[:, :-1], zeros, world[:, -1:]], dim=1)
    return {**state, "body.embed.weight": embed, "body.world.weight": world}


def _write_weights(
    folder: Path, state: Checkpoint, inputs: InputTransform, plan: dict[str, Any], settings: PretrainSettings
) -> None:
    network = state.averaged
    assert isinstance(network, ShowerNetwork)
    making = {key: plan[key] for key in ("settings", "features_version", "seeds", "showers", "cpu_hours", "log_loss")}
    making["rounds"] = state.epoch
    write_pretrained(folder / WEIGHTS_FILE, deepcopy(network).cpu(), inputs, making, settings.array)


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
        outputs = network(events.inputs[rows], events.world[rows])
        loss = pretraining_loss(
            outputs, events.task[rows], events.labels[rows], events.targets[rows], settings.truth_weight
        )
        total += loss.detach()
        state.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.training.clip_norm)
        state.optimiser.step()
        state.average(settings.ema)
    check_finite(total)


def validate(network: nn.Module, events: Prepared) -> dict[str, float]:
    """Return the log-loss of both tasks on showers that pass the cuts, in known and in unknown worlds."""
    network.eval()
    with torch.inference_mode():
        outputs = network(events.inputs, events.world)
    losses = {}
    for number, (name, logits) in enumerate((("composition", outputs.composition), ("gamma", outputs.gamma))):
        for known, where in ((1.0, name), (0.0, f"{name}, world unknown")):
            rows = events.in_evaluation & (events.task == number) & (events.world[:, -1] == known)
            losses[where] = float(functional.cross_entropy(logits[rows], events.labels[rows]))
    return losses
