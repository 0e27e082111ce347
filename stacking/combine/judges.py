"""What a choice is judged by: one small object a task, used by meta-learners, their nested choice and the gate."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from scoring.metrics.composition import confusion_matrix, expected_fraction_error
from scoring.metrics.gamma import GAMMA, HADRON
from scoring.uncertainty.paired import paired_log_loss
from stacking.combine.softmax import log_loss_per_event
from stacking.decide.gamma_scores import gamma_scores, mean_log_survival, paired_log_survival

HADRON_WEIGHT = 7.0
"""Weight of hadrons near the operating point in the fit of gamma meta-learners."""
NEAR_EFFICIENCY = 0.90
"""Hadrons above the threshold that keeps this share of the gammas are near the operating point."""


class Judge(ABC):
    """Orders sets of log-probabilities of the same labelled events; lower is better."""

    name: str
    veto: bool = False
    """Whether the stack must not be worse by this loss than its best learner, beyond the error, to ship."""

    @abstractmethod
    def loss(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the loss of (N, C) log-probabilities."""

    @abstractmethod
    def difference(self, a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Return loss(a) - loss(b) and its paired standard error."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the real metric, or what stands for it: what greedy selection minimises."""
        return self.loss(log_proba, labels)

    def weights(self, log_proba: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """Return the weights (N,) of events in fits of meta-learners, None for one each.

        Parameters
        ----------
        log_proba
            (L, N, C) of the learners.
        """
        return None


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


class OrderedJudge(LogLossJudge):
    """Bins of a quantity: log-loss decides; greedy selection minimises the ranked probability score."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean of (P(below) - below)^2 over borders (E. S. Epstein, J. Appl. Meteor. 8 (1969) 985)."""
        below = np.cumsum(np.exp(log_proba), axis=1)[:, :-1]
        return float(np.mean((below - (labels[:, None] <= np.arange(below.shape[1]))) ** 2))


class GammaJudge(Judge):
    """Mean ln of the hadron survival at gamma efficiencies 65..85 %."""

    name = "mean_log_survival"
    veto = True

    def loss(self, log_proba: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean ln survival."""
        return mean_log_survival(labels, gamma_scores(log_proba))

    def difference(self, a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Return the difference and its bootstrap standard error."""
        return paired_log_survival(labels, gamma_scores(a), gamma_scores(b))

    def weights(self, log_proba: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Let hadrons near the operating point count several times."""
        score = gamma_scores(log_proba.mean(axis=0))
        threshold = np.quantile(score[labels == GAMMA], 1 - NEAR_EFFICIENCY)
        return np.where((labels == HADRON) & (score >= threshold), HADRON_WEIGHT, 1.0)
