"""What comes after the learners, as one graph: average of fits, meta-learner, calibration, decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from models.portable.graph import LOG_PROBABILITY, NotPortable
from models.portable.networks import EXAMPLES, exported
from scoring.metrics.gamma import GAMMA, HADRON
from showers.schema import GAMMA as GAMMA_TASK
from stacking.combine.calibration import Calibrator
from stacking.combine.metas.calibrated_pool import CalibratedPool
from stacking.combine.metas.log_pool import LogPool
from stacking.combine.metas.logistic import Logistic
from stacking.decide.decision import Rule
from stacking.decide.gamma_scores import SCORE_OF_HALF
from stacking.decide.posterior_mean import PosteriorMean
from stacking.events import CONTEXT_SCALARS
from stacking.predict.chain import Chain

CONTEXT = "context"
"""Input (n, K) float32: quantities of the event beside the learners' log-probabilities."""


def context_columns(chain: Chain) -> tuple[str, ...]:
    """Return the K columns of the input ``context``; none where it is not wanted."""
    learns_from_it = isinstance(chain.meta, Logistic) and chain.shipped == "stack" and len(chain.meta.centre_) > 0
    counts_from_it = chain.task.target is not None and chain.task.target.reference is not None
    return CONTEXT_SCALARS if learns_from_it or counts_from_it else ()


def outputs_of(chain: Chain) -> dict[str, str]:
    """Return the outputs beside the log-probabilities, with what they mean."""
    if chain.task.target is not None:
        name, unit = chain.task.target.name, chain.task.target.unit
        return {name: f"estimate, {unit}, (n,) float32", f"{name}_error": "its standard deviation, (n,) float32"}
    if chain.task == GAMMA_TASK:
        return {"gamma_score": "ln(p_gamma / p_hadron) + 0.5, higher = more gamma-like, (n,) float32"}
    return {"prediction": "class number by the decision rule, (n,) int64"}


def combination_graph(chain: Chain) -> Any:
    """Return the graph as ``onnx.ModelProto``.

    Inputs are, by name of the learner, the (n, fits, C) float32 log-probabilities of all its fits; outputs are
    ``log_probability`` (n, C) float32 and those of :func:`outputs_of`.

    Raises
    ------
    NotPortable
        If the meta-learner has no such form.
    """
    module = _Combination(chain)
    n_classes = chain.task.n_classes
    start = torch.log_softmax(torch.linspace(0, 1, EXAMPLES * chain.n_fits * n_classes).reshape(EXAMPLES, -1), dim=1)
    examples = {name: start.reshape(EXAMPLES, chain.n_fits, n_classes) for name in chain.needed}
    columns = context_columns(chain)
    if columns:
        examples[CONTEXT] = torch.ones(EXAMPLES, len(columns))
    return exported(module, examples, [LOG_PROBABILITY, *outputs_of(chain)], in_one=True)


class _Combination(nn.Module):
    """See :func:`combination_graph`; numbers are float64 inside."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain
        self.names = chain.needed
        self.has_context = bool(context_columns(chain))
        if chain.shipped == "stack" and not isinstance(chain.meta, LogPool | Logistic):
            raise NotPortable(f"the meta-learner {chain.meta.name} has no ONNX form")

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return log-posteriors and what is decided from them."""
        context = given[-1].double() if self.has_context else None
        fits = given[: len(self.names)]
        averages = [torch.log_softmax(one.double().mean(dim=1), dim=1) for one in fits]
        log_proba = averages[0] if self.chain.shipped != "stack" else self._meta(averages, context)
        log_proba = _calibrated(self.chain.calibrators[self.chain.shipped], log_proba)
        return (log_proba.float(), *self._decided(log_proba, context))

    def _meta(self, averages: list[torch.Tensor], context: torch.Tensor | None) -> torch.Tensor:
        meta = self.chain.meta
        places = [meta.learners.index(name) for name in self.names]
        if isinstance(meta, LogPool):
            total = _number(meta.bias_)
            for place, average in zip(places, averages, strict=True):
                own = _calibrated(meta.calibrators_[place], average) if isinstance(meta, CalibratedPool) else average
                total = total + float(meta.weights_[place]) * own
            return torch.log_softmax(total, dim=1)
        assert isinstance(meta, Logistic)
        n_classes = len(meta.bias_)
        total = _number(meta.bias_)
        for place, average in zip(places, averages, strict=True):
            total = total + average @ _number(meta.matrix_[place * n_classes : (place + 1) * n_classes])
        if len(meta.centre_):
            assert context is not None
            scaled = (context - _number(meta.centre_)) / _number(meta.spread_)
            total = total + scaled @ _number(meta.matrix_[n_classes * len(meta.learners) :])
        raw = torch.log_softmax(total, dim=1)
        return torch.log_softmax(raw * _number(meta.scales_) + _number(meta.shift_), dim=1)

    def _decided(self, log_proba: torch.Tensor, context: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        chain = self.chain
        rule = chain.rules.get(chain.shipped)
        if isinstance(rule, PosteriorMean):
            return _estimate(rule, log_proba, context)
        if chain.task == GAMMA_TASK:
            return ((log_proba[:, GAMMA] - log_proba[:, HADRON] + SCORE_OF_HALF).float(),)
        if isinstance(rule, Rule):
            expected = (torch.exp(log_proba) / _number(rule.prior)) @ _number(rule.cost)
            return (torch.argmin(expected, dim=1),)
        return (torch.argmax(log_proba, dim=1),)


def _estimate(
    rule: PosteriorMean, log_proba: torch.Tensor, context: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    share = torch.softmax(log_proba, dim=1)
    estimate = share @ _number(rule.mean)
    square = share @ _number(rule.variance + rule.mean**2)
    error = rule.scale * torch.sqrt(torch.clamp(square - estimate * estimate, min=0.0))
    if context is not None:
        estimate = estimate + context[:, 0]
    return estimate.float(), error.float()


def _calibrated(calibrator: Calibrator, log_proba: torch.Tensor) -> torch.Tensor:
    if calibrator.kind == "identity":
        return log_proba
    return torch.log_softmax(log_proba @ _number(calibrator.matrix) + _number(calibrator.bias), dim=1)


def _number(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))
