"""What a choice is judged by: one small object a task, used by meta-learners, their nested choice and the gate."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from scoring.composition import confusion_matrix, expected_fraction_error
from scoring.paired import paired_log_loss
from showers.schema import COMPOSITION, GAMMA, Task
from stacking.combine.softmax import log_loss_per_event
from stacking.decide.gamma_scores import gamma_scores, mean_log_survival, paired_log_survival


class Judge(ABC):
    """Orders sets of log-probabilities of the same labelled events; lower is better."""

    name: str

    @abstractmethod
    def loss(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the loss of (N, C) log-probabilities."""

    @abstractmethod
    def difference(self, a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Return loss(a) - loss(b) and its paired standard error."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the real metric, or what stands for it: what greedy selection minimises."""
        return self.loss(log_proba, labels)


class LogLossJudge(Judge):
    """Mean ``-log p`` of the true class, nats."""

    name = "log_loss"

    def loss(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean log-loss."""
        return float(log_loss_per_event(log_proba, labels).mean())

    def difference(self, a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Return the paired difference and its standard error."""
        found = paired_log_loss(labels, a, b)
        return found.difference, found.standard_error


class CompositionJudge(LogLossJudge):
    """Log-loss decides; greedy selection minimises the closed form of the fraction error."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the expected fraction error of ``argmax p / prior``."""
        n_classes = log_proba.shape[1]
        prior = np.bincount(labels, minlength=n_classes) / len(labels)
        predicted = np.argmax(log_proba - np.log(np.maximum(prior, 1e-12)), axis=1)
        return expected_fraction_error(confusion_matrix(labels, predicted, n_classes))


class GammaJudge(Judge):
    """Mean ln of the hadron survival at gamma efficiencies 65..85 %."""

    name = "mean_log_survival"

    def loss(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean ln survival."""
        return mean_log_survival(labels, gamma_scores(log_proba))

    def difference(self, a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Return the difference and its bootstrap standard error."""
        return paired_log_survival(labels, gamma_scores(a), gamma_scores(b))


def judge_for(task: Task) -> Judge:
    """Return the judge of a task."""
    if task.name == GAMMA.name:
        return GammaJudge()
    return CompositionJudge() if task.name == COMPOSITION.name else LogLossJudge()
