"""What a pretraining is asked to do, and the file that says so beside its state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from features.source import feature_code_version
from models.inputs import InputTransform
from models.pretraining.prepared import batch_of, hide_ages
from models.pretraining.stream import COLUMNS, Portion, draw_portion
from models.saving import plain
from models.training.step import TrainingSettings
from showers.schema import InputError
from showers.storage.files import read_json, write_json

PLAN_FILE = "pretraining.json"
PORTIONS_PER_ROUND = 8
"""About 120,000 showers of 160 worlds: what is shuffled together, and what an interruption loses at most."""
SHOWERS_PER_PORTION = 15_000
"""Roughly; the schedule counts rounds, not showers."""
VALIDATION_PORTIONS = 2


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

    def __post_init__(self) -> None:
        if self.showers < 1:
            raise InputError(f"showers must be at least 1, got {self.showers}")

    @classmethod
    def of_batches(cls, batch_size: int, **changes: Any) -> Self:
        """Return settings for another batch size: learning rate by the square root, the averaged weights' memory kept.

        The root keeps the noise of a step with an adaptive optimiser (arXiv:2205.10287).
        """
        times = batch_size / cls.batch_size
        rate, ema = cls.learning_rate * times**0.5, cls.ema**times
        return cls(batch_size=batch_size, learning_rate=rate, ema=ema, **changes)

    @property
    def rounds(self) -> int:
        """Rounds of the whole training."""
        return max(1, round(self.showers / (PORTIONS_PER_ROUND * SHOWERS_PER_PORTION)))

    def portions(self, done: int) -> range:
        """Return the numbers of the portions that are left after ``done`` rounds."""
        return range(done * PORTIONS_PER_ROUND, self.rounds * PORTIONS_PER_ROUND)

    @property
    def training(self) -> TrainingSettings:
        """The same in the words of the training loop."""
        names = ("batch_size", "learning_rate", "weight_decay", "warmup", "ema")
        return TrainingSettings(**{name: getattr(self, name) for name in names})


def opened_plan(folder: Path, settings: PretrainSettings) -> dict[str, Any]:
    """Return the plan in the folder, made there if it is new."""
    wanted = {"settings": asdict(settings), "feature_code": feature_code_version()}
    identity = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    file = Path(folder) / PLAN_FILE
    if file.exists():
        plan: dict[str, Any] = read_json(file)
        if plan.get("identity") != identity:
            raise InputError(
                f"{file} is of a pretraining with other settings or other feature code: "
                "give the settings in it, or another folder"
            )
        return plan
    first = validation_showers(settings.seed)
    inputs = InputTransform.fit(batch_of(hide_ages(first.table, np.random.default_rng(settings.seed))), COLUMNS)
    plan = {**wanted, "identity": identity, "inputs": plain(inputs.state()), "showers": 0}
    plan |= {"cpu_hours": 0.0, "log_loss": {}}
    write_json(file, plan)
    return plan


def validation_showers(seed: int) -> Portion:
    """Return the showers on which pretraining is watched; no weight is learned from them."""
    return Portion.joined([draw_portion(seed, number, "test") for number in range(VALIDATION_PORTIONS)])
