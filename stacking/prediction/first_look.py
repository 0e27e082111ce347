"""A first look: showers of any array scored by the pretrained network, without any training.

The network is told the array, and that its world is unknown. What it says was never compared with showers of this
array: each output says so, by a configuration's hash that begins with :data:`showerstack.showers.schema.FIRST_LOOK`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from showerstack.features.build import build_table
from showerstack.features.catalogue import feature_set
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.logs import remark
from showerstack.showers.dataset import Dataset
from showerstack.showers.nuclei import nearest_of_five
from showerstack.showers.schema import COMPOSITION, FIRST_LOOK, GAMMA, Task
from showerstack.stacking.answers import stacking_of
from showerstack.stacking.chain import Predictions
from showerstack.stacking.events import ShowerEvents, unusable_remarks
from showerstack.stacking.prediction.predict import PredictionStream

if TYPE_CHECKING:
    from showerstack.models.base.learner import Batch
    from showerstack.models.pretraining.weights import Pretrained

LOG = logging.getLogger(__name__)
PIECE = 50_000
"""Events at once."""


def first_look(
    dataset: Path,
    task: Task,
    ctx: Context = Context(),
    *,
    weights: str = "any-array",
    features: Path | None = None,
    elsewhere: Path | None = None,
    anyway: bool = False,
) -> PredictionStream:
    """Predict showers by pretrained weights alone; labels are neither needed nor looked at.

    Parameters
    ----------
    dataset
        Dataset folder; its feature table is built if missing.
    task
        Gamma, or composition with two or more mass groups, the only ones that showers can then be of.
    ctx
        Device of the features, and threads at work at once.
    weights
        ``any-array`` or, at KASCADE, ``shipped``.
    features, elsewhere
        Folder of the feature table, and where it is kept if nothing can be written beside the dataset.
    anyway
        Whether showers unlike all that the weights have seen are predicted too; a remark then says so.

    Raises
    ------
    InputError
        For another task, an array or showers far outside of what the weights have seen
        (:mod:`showerstack.models.pretraining.distance`), or a folder that cannot be used.
    """
    need("sklearn", "torch", what="a first look")
    from showerstack.models.pretraining.arrays import outside
    from showerstack.models.pretraining.distance import LEAST, MOST, distance_of
    from showerstack.models.pretraining.stream import FEATURES
    from showerstack.models.pretraining.weights import RELEASED, read_pretrained

    if task.name not in (COMPOSITION.name, GAMMA.name):
        raise InputError(f"pretrained weights know composition and gamma, not {task.name}")
    if weights not in RELEASED:
        raise InputError(f"unknown weights {weights!r}: choose {' or '.join(RELEASED)}")
    data, pretrained = Dataset.open(dataset, labels=False), read_pretrained(weights)
    if not len(data):
        raise InputError(f"{dataset} holds no events")
    beyond = [] if pretrained.seen is None else outside(data.array, pretrained.seen)[0]
    remarks = (
        f"{FIRST_LOOK}: the weights were not trained at {data.array.title}, and nothing says how right they are there",
        *([f"{data.array.title} lies outside of what the weights have seen: {', '.join(beyond)}"] if beyond else []),
        *data.remarks,
        *unusable_remarks(data, strict=False),
    )
    remark(LOG, remarks)
    table = build_table(dataset, features, elsewhere=elsewhere, ctx=ctx)
    events, columns = ShowerEvents(dataset, table.folder, task), feature_set(FEATURES, table.columns)
    usable = np.random.default_rng(0).permutation(np.flatnonzero(data.usable))
    if data.groups is not None:  # uses of one shower say no more than one of them
        usable = usable[np.sort(np.unique(data.groups[usable], return_index=True)[1])]
    if len(usable) < LEAST:
        compared = f"fewer than {LEAST} showers: nobody knows whether the weights have seen such ones"
        remark(LOG, (compared,))
    else:
        batch = events.batch(np.sort(usable[:MOST]), columns, grids=False)
        distance = distance_of(pretrained, batch, GAMMA if task == GAMMA else COMPOSITION, ctx)
        compared = distance.words
        if distance.is_outside and not anyway:
            raise InputError(
                f"{dataset}: {compared}; what the weights say of them can be worse than nothing: train on some showers "
                "of this array, or give --anyway (from Python anyway=True)"
            )
        if distance.is_outside or distance.inclined:
            remark(LOG, (compared,))
    remarks += (compared,)

    def pieces() -> Iterator[Predictions]:
        fingerprint = events.events_fingerprint()
        for begin in range(0, len(data), PIECE):
            rows = np.arange(begin, min(begin + PIECE, len(data)))
            log_proba = posteriors(pretrained, events.batch(rows, columns, grids=False), task)
            log_proba[~data.usable[rows]] = -np.log(task.n_classes)
            arrays = stacking_of(task).arrays(None, log_proba, None)
            origin = f"{FIRST_LOOK}: {RELEASED[weights][1]}"
            yield Predictions(log_proba, arrays, origin, fingerprint, {})

    return PredictionStream(task, len(data), pieces(), remarks)


def posteriors(pretrained: Pretrained, batch: Batch, task: Task) -> np.ndarray:
    """Return log-posteriors (n, C) float64 of some events, their world unknown."""
    import torch

    from showerstack.models.networks.modes import torch_as_asked
    from showerstack.models.pretraining.arrays import description
    from showerstack.models.pretraining.learner import inputs_of
    from showerstack.models.pretraining.stream import N_WORLD

    inputs = inputs_of(pretrained, batch).apply(batch)
    world = torch.zeros(pretrained.network.sizes.n_world + 1)
    if pretrained.seen is not None:
        world[N_WORLD:-1] = torch.from_numpy(description(batch.array))
    with torch_as_asked("cpu", 1, deterministic=False), torch.inference_mode():
        outputs = pretrained.network(torch.from_numpy(inputs), world)
        logits = outputs.gamma.double()
        if task != GAMMA:  # a group of several has the mean of their probabilities
            of_five = [outputs.composition[:, five].double() for five in nearest_of_five(task.masses)]
            logits = torch.stack([one.logsumexp(dim=1) - math.log(one.shape[1]) for one in of_five], dim=1)
        return np.asarray(torch.log_softmax(logits, dim=1).numpy())
