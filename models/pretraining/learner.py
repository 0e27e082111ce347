"""The pretrained network as a learner, fine-tuned on the user's showers, and its outputs as columns for others.

The world of these showers is one more thing to learn: its position in the priors of the randomised worlds starts at
their centre and moves fast, the body moves slowly, the head in between. The world of fewer than 2,000 showers is found
first (:mod:`showerstack.models.pretraining.world`), and they train only where that shows to help. Where the training
events carry true quantities, the heads for these learn too, from the body's output; how much of their gradient reaches
the body is the setting ``truth_weight``. The columns come from the network as it was pretrained: it is fixed, so that
no fold leaks into them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from showerstack.models.base.inputs import TARGETS, InputTransform, has_column
from showerstack.models.base.learner import Batch, check_training
from showerstack.models.base.posterior import event_log_loss
from showerstack.models.base.saving import plain
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.networks.loop import History, predict_logits, predict_outputs
from showerstack.models.networks.modes import torch_as_asked
from showerstack.models.networks.step import TRUTH_SHARE, Output
from showerstack.models.pretraining.arrays import check_seen
from showerstack.models.pretraining.network import Architecture, ShowerBody, told, truth_estimates
from showerstack.models.pretraining.stream import N_WORLD
from showerstack.models.pretraining.weights import RELEASED, SHIPPED, Pretrained, read_pretrained
from showerstack.models.pretraining.world import find_world
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.array import DetectorArray
from showerstack.showers.nuclei import nearest_of_five
from showerstack.showers.schema import COMPOSITION, GAMMA


def name_released(chosen: dict[str, Any]) -> None:
    """Set the hash of released weights: as that of a file's, it is part of a training's identity."""
    if chosen["weights"] in RELEASED:
        chosen["weights_sha256"] = RELEASED[chosen["weights"]][1]


SMALL_BATCH, FEWER_EPOCHS = 32, 0.3
"""Showers of a step where few showers train, and the share of the epochs that are tried first."""
LEAST_GAIN = 1.0
"""Standard errors by which more training must be better, to be done."""
FEW, MANY_ENOUGH = 2_000, 20_000
"""Showers of a fit, however often used, below which their world is found before anything is trained, and below which
none is kept back to stop early: some hundred say so wrongly now and then, which costs up to 0.01 in log-loss."""
MOST_EVENTS = 2_000
"""Events by which a world is found: uses of a shower beyond these tell little more."""
PARTS, PARTS_OF_MANY, MANY = 4, 2, 500
"""Into so many parts the showers of such a fit are divided to choose its training; from how many on fewer do."""
LEAST_KNOWN = 30
"""Training showers of which a true quantity must be known for its estimates to count as learned."""
TRUTH_WEIGHT = 0.3
"""Without it estimates fall behind a body that classes move; photons are then found less well."""


class FineTuned(nn.Module):
    """Body with a head for one task and one for true quantities, and the world of the showers that it is trained on."""

    def __init__(self, sizes: Architecture, n_classes: int, dropout: float, truth_weight: float = 0.0) -> None:
        super().__init__()
        self.gradient_share = truth_weight / TRUTH_SHARE
        self.body = ShowerBody(sizes, dropout)
        self.head = nn.Linear(sizes.width, n_classes)
        self.truth = nn.Linear(sizes.width, 2 * sizes.n_targets)
        self.world = nn.Parameter(torch.zeros(sizes.n_world))
        # The name stands in saved learners.
        self.register_buffer("taught", torch.zeros(sizes.n_targets, dtype=torch.int64))

    @property
    def with_targets(self) -> torch.Tensor:
        """(T,) int64: 1 where the head of true quantities has been trained."""
        return self.get_buffer("taught")

    def forward(self, grid: torch.Tensor | None, inputs: torch.Tensor) -> Output:
        """Return class logits and estimates of true quantities; ``grid`` is not used."""
        embedding = self.body(inputs, torch.cat([self.world, self.world.new_ones(1)]))
        # The same numbers, with a share of the gradient.
        for_truth = embedding.detach()
        if self.gradient_share:
            for_truth = for_truth + self.gradient_share * (embedding - for_truth)
        return Output(self.head(embedding), truth=truth_estimates(self.truth, for_truth))


class PretrainedLearner(NetworkLearner):
    """Fine-tuned shower network.

    Settings: ``weights``, ``shipped`` (KASCADE's), ``any-array`` or a ``.safetensors`` file whose SHA-256 is then
    ``weights_sha256``; ``dropout``; ``body_rate``, ``world_rate``, learning rates of body and world in units of the
    head's; ``truth_weight``, weight of the true quantities in what the body learns (their heads learn in any case), by
    default :data:`TRUTH_WEIGHT`, and 0 where photons are told from hadrons;
    ``width``, ``blocks``, ``hidden``, which are those of the weights; ``by_number``, whether fits of fewer than 20,000
    showers keep none back, and of fewer than 2,000 find their world first; ``masses``, mass numbers of the nuclei of
    each class, where classes are other mass groups than those of pretraining.
    """

    needs_table = True
    defaults: ClassVar[dict[str, Any]] = {
        "weights": SHIPPED,
        "weights_sha256": "",
        "masses": (),
        "dropout": 0.0,
        "body_rate": 0.1,
        "world_rate": 20.0,
        "truth_weight": None,
        "width": 256,
        "blocks": 4,
        "hidden": 512,
        "scalars": (),
        "augment": False,
        "epochs": 10,
        "batch_size": 256,
        "by_number": True,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "patience": 6,
    }

    def __init__(self, classes: tuple[str, ...], settings: dict[str, Any] | None = None, *, threads: int = 1) -> None:
        super().__init__(classes, settings, threads=threads)
        name_released(self.chosen)
        if self.truth_weight < 0:
            raise InputError(f"truth_weight must be at least 0, got {self.truth_weight}")
        if (groups := len(self.chosen["masses"])) not in (0, len(classes)):
            raise InputError(f"masses are of {groups} groups, but there are {len(classes)} classes: leave them out")
        self.usual = self.training
        self.after: int | None = None
        """Epochs of training after the world of the showers is found; None where it is learned with the rest."""
        self.found: tuple[torch.Tensor, torch.Tensor] | None = None
        """That world, and what is added to the logits."""
        self.near: torch.Tensor | None = None
        """A world of most of the showers."""
        self.by_truth = False
        """Whether training begins in the world that true quantities tell alone."""
        self.rate_factors = {"body.": self.chosen["body_rate"], "world": self.chosen["world_rate"]}

    def build(self, inputs: InputTransform, n_classes: int, array: DetectorArray) -> nn.Module:
        """Return the network with random weights."""
        chosen = self.chosen
        sizes = Architecture(inputs.n_inputs, chosen["width"], chosen["blocks"], chosen["hidden"], N_WORLD)
        return FineTuned(sizes, n_classes, chosen["dropout"], self.truth_weight)

    @property
    def truth_weight(self) -> float:
        """Weight of true quantities in what the body learns: as asked, else :data:`TRUTH_WEIGHT`, or 0 for photons."""
        usual = 0.0 if self.classes == GAMMA.classes else TRUTH_WEIGHT
        return usual if self.chosen["truth_weight"] is None else float(self.chosen["truth_weight"])

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Learn from ``train``, from its ``targets`` too if it has any; see
        :meth:`showerstack.models.base.learner.Learner.fit`."""
        known = np.zeros(len(TARGETS), dtype=bool)
        if train.targets is not None:
            check_targets(train.targets, len(train))
            showers = [np.unique(train.showers[one]).size for one in ~np.isnan(train.targets).T]
            known = np.array(showers) >= LEAST_KNOWN
        check_training(train, valid, self.classes, table=self.needs_table, grid=self.needs_grid)
        if self.chosen["by_number"]:
            self.training, self.after, self.found, self.near, self.by_truth = self.usual, None, None, None, False
            n_showers = sum(np.unique(part.showers).size for part in (train, valid))
            if n_showers < MANY_ENOUGH:
                train = valid = train.with_others(valid)
                self.training = replace(self.usual, patience=self.usual.epochs)
            undone = self.chosen["class_weights"] is not None or self.usual.label_smoothing > 0
            if n_showers < FEW and self.usual.batch_size > SMALL_BATCH and not undone:
                if self._known_rows() is None:  # a new head tells nothing of the world
                    self.training, self.by_truth = replace(self.training, batch_size=SMALL_BATCH), bool(known.any())
                else:
                    self._train_after_world(self._epochs_after(train, seed, device, progress))
        super().fit(train, valid, seed=seed, device=device, progress=progress)
        network = self.network_.network
        assert isinstance(network, FineTuned)
        network.with_targets.copy_(torch.from_numpy(known.astype(np.int64)))
        return self

    def _train_after_world(self, epochs: int) -> None:
        """Choose to train for some epochs, or none, in small steps after the world of the showers is found."""
        self.after = epochs
        self.training = replace(self.usual, batch_size=SMALL_BATCH, epochs=max(epochs, 1), patience=self.usual.epochs)

    def _epochs_after(self, events: Batch, seed: int, device: str, progress: Progress | None) -> int:
        """Return for how many epochs few showers train once their world is found: none, some or many.

        Where showers are like those of a world that the weights could have seen, training costs up to a hundredth in
        log-loss; where they are like none, it helps by a tenth. The showers tell which: fits of the others predict each
        part of them.
        """
        number = events.showers
        n_showers = int(number.max()) + 1
        n_parts = PARTS if n_showers < MANY else PARTS_OF_MANY
        part = np.random.default_rng(seed).permutation(n_showers)[number] % n_parts
        assert events.labels is not None
        inside = [len(np.unique(events.labels[part != k])) for k in range(n_parts)]
        if n_showers < 2 * n_parts or min(inside) < len(self.classes):  # a class is in one part alone
            return 0

        worlds: dict[int, Any] = {}

        def losses_after(epochs: int) -> np.ndarray:
            losses = np.zeros(len(events))
            for k in range(n_parts):
                settings = {**self.settings, "by_number": False}
                trial = type(self)(self.classes, settings, threads=self.threads)
                trial._train_after_world(epochs)
                trial.found, trial.near = worlds.get(k), self.near
                kept, others = events.take(part == k), events.take(part != k)
                trial.fit(others, others, seed=seed, device=device, progress=progress)
                worlds[k] = trial.found
                self.near = None if trial.found is None else trial.found[0]
                unlabelled = replace(kept, labels=None, weights=None, targets=None)
                assert kept.labels is not None
                losses[part == k] = event_losses(trial.predict_log_proba(unlabelled), kept.labels)
            return losses

        weights = np.ones(len(events)) if events.weights is None else events.weights
        best, losses = 0, losses_after(0)
        for more in (max(round(FEWER_EPOCHS * self.usual.epochs), 1), self.usual.epochs):
            found = losses_after(more)
            gain = np.bincount(number, weights * (losses - found))
            if gain.sum() <= LEAST_GAIN * np.sqrt(n_showers) * gain.std():
                break
            best, losses = more, found
        return best

    def _train(
        self, network: nn.Module, events: Batch, valid: Batch, seed: int, device: str, progress: Progress | None
    ) -> History:
        if self.after is not None or self.by_truth:
            tuned: Any = network.network
            number = np.unique(events.showers).size
            some = np.random.default_rng(seed).permutation(len(events))[:MOST_EVENTS]
            known = self._tensors(events.take(np.sort(some)), device)
            labels = None if self.by_truth else known.labels
            world, bias = self.found = self.found or find_world(
                tuned.body.eval(), tuned.head, tuned.truth, known.inputs, labels, number, weights=known.weights,
                targets=known.targets, near=self.near,
            )  # fmt: skip
            with torch.no_grad():
                tuned.world.copy_(world)
                tuned.head.bias += bias
            if self.after == 0:
                assert valid.labels is not None
                logits = predict_logits(network, self._tensors(valid, device))
                return History([event_log_loss(self._log_posterior(logits), valid.labels, valid.weights)], 0)
        return super()._train(network, events, valid, seed, device, progress)

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        return (
            super().predict_log_proba(_without_truth(batch)) if self.device_ != "cpu" else self.predict_both(batch)[0]
        )

    def predict_targets(self, batch: Batch) -> np.ndarray:
        return self.predict_both(batch)[1]

    def predict_both(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        self._check_fitted()
        if self.device_ == "cpu":
            return self._predictor().predict_both(batch)
        network = self.network_.network
        assert isinstance(network, FineTuned)
        targets = np.full((len(batch), len(TARGETS), 2), np.nan)
        known = network.with_targets.numpy().astype(bool)
        if not len(batch) or not known.any():
            return self.predict_log_proba(batch), targets
        with torch_as_asked(self.device_, self.threads, deterministic=bool(self.chosen["deterministic"])):
            on_device = self._move(self.network_, self.device_)
            outputs = predict_outputs(on_device, self._tensors(_without_truth(batch), self.device_), _both_of)
            self.network_ = on_device.to("cpu")
        logits, estimates = outputs[:, : len(self.classes)], outputs[:, len(self.classes) :]
        mean, log_width = estimates.double().numpy().reshape(len(batch), 2, -1).transpose(1, 0, 2)
        targets[:, known, 0], targets[:, known, 1] = mean[:, known], np.exp(log_width[:, known])
        return self._log_posterior(logits), targets

    @classmethod
    def averaged(cls, fits: Sequence[Self]) -> Self:
        """Return one network with the fits' mean weights; see :meth:`showerstack.models.base.learner.Learner.averaged`.

        A true quantity counts as learned where it does in all fits.
        """
        first = fits[0]
        for what, parts in (
            ("inputs", [plain(fit.inputs_.state()) if fit.inputs_ else None for fit in fits]),
            ("class weights", [plain(fit.class_weights_) for fit in fits]),
            ("settings", [fit.chosen for fit in fits]),
        ):
            if any(part != parts[0] for part in parts):
                raise InputError(f"fits with different {what} cannot be averaged in their weights")
        learner = cls(first.classes, first.settings, threads=first.threads)
        learner.inputs_, learner.array_, learner.class_weights_ = first.inputs_, first.array_, first.class_weights_
        learner.history_, learner.device_ = History([], 0), first.device_
        learner.precision_ = first.precision_
        learner.network_ = copy.deepcopy(first.network_).eval()
        states = [fit.network_.state_dict() for fit in fits]
        learner.network_.load_state_dict({name: _mean([state[name] for state in states]) for name in states[0]})
        return learner

    def _inputs_for(self, train: Batch) -> InputTransform:
        return inputs_of(read_pretrained(self.chosen["weights"], self.chosen["weights_sha256"]), train)

    def _initialise(self, network: nn.Module) -> None:
        assert isinstance(network, FineTuned)
        pretrained = read_pretrained(self.chosen["weights"], self.chosen["weights_sha256"])
        source, body = pretrained.network, pretrained.network.body.state_dict()
        if pretrained.seen is not None:
            body = told(body, self.array_)
        try:
            network.body.load_state_dict(body)
        except RuntimeError:
            sizes = ", ".join(f"{name} {getattr(source.sizes, name)}" for name in ("width", "blocks", "hidden"))
            raise InputError(f"these pretrained weights are of another architecture: set {sizes}") from None
        network.truth.load_state_dict(source.truth.state_dict())
        if (rows := self._known_rows()) is not None:
            head = source.gamma if self.classes == GAMMA.classes else source.composition
            means = {
                name: torch.stack([_mean([*weights[of_class]]) for of_class in rows])
                for name, weights in head.state_dict().items()
            }
            network.head.load_state_dict(means)

    def _known_rows(self) -> list[list[int]] | None:
        """Return which logits of pretraining each class starts from; None where it had no such classes.

        A group of other nuclei starts from the mean of those with the nearest ln A.
        """
        if self.chosen["masses"]:
            return nearest_of_five(self.chosen["masses"])
        task = GAMMA if self.classes == GAMMA.classes else COMPOSITION
        known = set(self.classes) <= set(task.classes)
        return [[task.classes.index(name)] for name in self.classes] if known else None


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of weights, or the least of whole numbers."""
    stacked = torch.stack(values)
    return stacked.double().mean(dim=0).to(stacked.dtype) if stacked.is_floating_point() else stacked.amin(dim=0)


def _both_of(output: Output) -> torch.Tensor:
    assert output.truth is not None
    return torch.cat([output.logits, output.truth], dim=1)


def _without_truth(batch: Batch) -> Batch:
    if batch.targets is not None:
        raise InputError("events to be predicted carry true quantities: these are for training alone")
    return batch


def check_targets(targets: np.ndarray, n_events: int) -> None:
    """Refuse standardised true quantities that nothing can be learned from; NaN (unknown) is fine."""
    if targets.shape != (n_events, len(TARGETS)):
        raise InputError(f"targets have shape {targets.shape}, expected ({n_events}, {len(TARGETS)})")
    bad = np.argwhere(np.isinf(targets))
    if bad.size:
        row, column = (int(k) for k in bad[0])
        raise InputError(f"targets: row {row}, {TARGETS[column].name} is infinite ({len(bad)} bad values)")
    if np.isnan(targets).all():
        raise InputError("targets are given, but none of them is known: leave them out")


def inputs_of(pretrained: Pretrained, events: Batch) -> InputTransform:
    """Return how the columns of these events become inputs of the pretrained network."""
    if pretrained.seen is not None:
        check_seen(events.array, pretrained.seen)
    elif pretrained.array is not None and not events.array.is_like(pretrained.array):
        raise InputError(
            f"the pretrained weights know showers of {pretrained.array.title} alone, these are of "
            f"{events.array.title}: give weights of this array"
        )
    inputs = pretrained.inputs
    absent = tuple(name for name in inputs.columns if not has_column(events, name))
    if len(absent) == len(inputs.columns):
        raise InputError(
            f"the events have none of the {len(absent)} features that the pretrained network reads: "
            f"{', '.join(absent[:5])} ..."
        )
    return replace(inputs, absent=absent)
