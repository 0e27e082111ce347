"""The acceptance test, which decides whether the stack predicts and whether a gain is claimed, and the leak test.

The stack predicts unless the holdout shows it to be worse than its best learner by one standard error, or it is worse
there than every learner: what is combined of few rows may be far worse than all of them, with errors as large. A
holdout of a tenth cannot show gains of a thousandth in log-loss that are there in the mean, and a stack that gains
nothing costs nearly nothing. A gain is claimed only where the holdout shows it by two standard errors.

A learner that is far surer of training events out-of-fold than of new ones may have learned from their labels. How sure
learners are of two samples differs also where the samples do, by their class mix for instance: then it differs for all
learners alike. So each learner is compared with the others. A suspicion becomes a remark: unlabelled events that are to
be predicted never choose which learner is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from showerstack.scoring.metrics.gamma import GAMMA_CLASS, HADRON, Survival, hadron_survival
from showerstack.scoring.metrics.intervals import resample_groups
from showerstack.scoring.metrics.losses import error_of_mean
from showerstack.scoring.metrics.survival_bootstrap import weighted_replicas
from showerstack.stacking.sample import MeanAndError, Sample

WORSE_SIGMA = 1.0
"""Standard errors by which the holdout must show the stack to be worse for its best learner to predict instead."""
CLAIM_SIGMA = 2.0
"""Standard errors by which the holdout must show a gain for it to be claimed: 2 of 100 that are none are claimed."""
ROUNDING = 1e-9
"""Log-losses closer than this are the same: a stack of one learner differs from it by last bits alone."""


@dataclass(frozen=True)
class Gate:
    """Whether the stack predicts, whether its gain is claimed, and why."""

    shipped: bool
    claimed: bool
    """Whether the stack is shown to be better than its best learner."""
    reason: str
    gain: float
    """Mean log-loss of ``best_learner`` minus that of the stack, both as they predict new events."""
    standard_error: float
    best_learner: str
    """What predicts where the stack does not."""
    log_survival: dict[str, float] | None = None
    """For gammas, the stack's mean ln survival minus that of the best learner, and its standard error."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)


def decide_gate(
    stacked: np.ndarray, learners: Mapping[str, np.ndarray], sample: Sample, *, survival: bool = False
) -> Gate:
    """Compare the stack with the best of its learners.

    Parameters
    ----------
    stacked
        (N, C) log-probabilities of the stack: the average of fits on the holdout, calibrated as for new events;
        without a holdout nested out-of-fold ones.
    learners
        Per learner, (N, C) log-probabilities of the same events, made in the same way.
    sample
        The N events.
    survival
        Whether the gate also closes where more hadrons survive, beyond the error.
    """
    losses = {name: sample.losses(z) for name, z in learners.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    gain = sample.mean_of(losses[best] - sample.losses(stacked))
    more_hadrons = log_survival_difference(stacked, learners[best], sample) if survival else None
    shipped, size = True, f"{abs(gain.mean):.5f} ± {gain.error:.5f}"
    is_last = float(sample.losses(stacked).mean()) > max(float(one.mean()) for one in losses.values()) + ROUNDING
    is_shown = gain.mean > max(CLAIM_SIGMA * gain.error, ROUNDING)
    if len(learners) == 1:
        shipped, reason = False, f"{best} is the only learner with all fits"
    elif gain.mean < -max(WORSE_SIGMA * gain.error, ROUNDING):
        shipped, reason = False, f"the log-loss of the stack is {size} higher than that of {best}"
    elif is_last:
        shipped, reason = (
            False,
            f"the log-loss of the stack is {size} higher than that of {best}, and than every learner's",
        )
    elif more_hadrons is not None and more_hadrons.mean > WORSE_SIGMA * more_hadrons.error:
        excess = f"{more_hadrons.mean:.3f} ± {more_hadrons.error:.3f}"
        shipped, reason = False, f"ln survival of the stack is {excess} higher than that of {best}"
    elif is_shown:
        reason = f"the log-loss of the stack is {size} lower than that of {best}"
    elif max(abs(gain.mean), gain.error) < 0.5e-5:
        reason = f"the log-losses of the stack and of {best} differ by less than 0.00001"
    elif gain.mean >= 0:
        reason = f"a lower log-loss of the stack than of {best} is not shown: {size}"
    else:
        reason = f"a lower log-loss of the stack than of {best} is not shown: it is {size} higher"
    log_survival = (
        {"difference": more_hadrons.mean, "standard_error": more_hadrons.error} if more_hadrons is not None else None
    )
    return Gate(shipped, shipped and is_shown, reason, gain.mean, gain.error, best, log_survival)


SCORED_EFFICIENCIES = (0.65, 0.70, 0.75, 0.80, 0.85)
"""Gamma efficiencies around the benchmark's 75 % over which ln(survival) is averaged."""
RESAMPLES = 100


def is_worse_in_survival(a: np.ndarray, b: np.ndarray, sample: Sample) -> bool:
    """Return whether more hadrons survive by (N, 2) log-probabilities ``a`` than by ``b``, beyond the error."""
    difference = log_survival_difference(a, b, sample)
    return difference.mean > WORSE_SIGMA * difference.error


def log_survival_difference(a: np.ndarray, b: np.ndarray, sample: Sample) -> MeanAndError:
    """Return the mean ln survival by (N, 2) log-probabilities ``a`` minus that by ``b``, with a paired bootstrap.

    It resamples events within classes, or whole groups; with importance weights all showers.
    """
    scores_a, scores_b = (z[:, GAMMA_CLASS] - z[:, HADRON] for z in (a, b))
    return MeanAndError(*paired_log_survival(sample.labels, scores_a, scores_b, sample.groups, sample.weights))


def log_survivals(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return ``ln((n + 0.5) / (N + 1))`` of surviving hadrons at each of :data:`SCORED_EFFICIENCIES`.

    The half survivor keeps "none left" finite. With importance weights (N,) n and N are sums of them, and in place of 1
    stands the weight of a survivor at the highest of these efficiencies.
    """
    if weights is not None:
        survivals = [hadron_survival(labels, scores, efficiency, weights) for efficiency in SCORED_EFFICIENCIES]
        return _weighted_log(np.array([survival.hadron_survival for survival in survivals]), survivals[-1])
    gammas, hadrons = np.sort(scores[labels == GAMMA_CLASS])[::-1], scores[labels == HADRON]
    return _log_survival(hadrons, gammas[_ranks(len(gammas))], len(hadrons))


def _weighted_log(survivals: np.ndarray, widest: Survival) -> np.ndarray:
    assert widest.weights is not None
    one_survivor = widest.weights.scale / widest.weights.total
    return np.asarray(np.log((survivals + 0.5 * one_survivor) / (1.0 + one_survivor)))


def mean_log_survival(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean of :func:`log_survivals` (lower is better)."""
    return float(log_survivals(labels, scores, weights).mean())


def paired_log_survival(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    n_samples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the difference of mean ln survival, a minus b, and its standard error from a paired bootstrap.

    It resamples events within classes, or whole groups (N,); with importance weights (N,) all showers.
    """
    if weights is not None:
        replicas = weighted_replicas(labels, (a, b), SCORED_EFFICIENCIES, weights, groups, n_samples, seed)
        widest = [hadron_survival(labels, scores, SCORED_EFFICIENCIES[-1], weights) for scores in (a, b)]
        logs_a, logs_b = map(_weighted_log, replicas, widest)
        difference = mean_log_survival(labels, a, weights) - mean_log_survival(labels, b, weights)
        return difference, float(np.std((logs_a - logs_b).mean(axis=0)))
    rng = np.random.default_rng(seed)
    if groups is not None:
        member, blocks = resample_groups(labels, groups, n_samples, rng)
        resampled = (np.repeat(np.arange(len(labels)), row[member].astype(int)) for drawn in blocks for row in drawn)
        differences = [
            mean_log_survival(labels[rows], a[rows]) - mean_log_survival(labels[rows], b[rows]) for rows in resampled
        ]
        return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(differences))
    gammas, hadrons = np.flatnonzero(labels == GAMMA_CLASS), np.flatnonzero(labels == HADRON)
    ranks = _ranks(len(gammas))
    replicas_of_gammas = [rng.choice(gammas, len(gammas)) for _ in range(n_samples)]
    thresholds_a, thresholds_b = (
        [np.sort(scores[rows])[::-1][ranks] for rows in replicas_of_gammas] for scores in (a, b)
    )
    # Hadrons below the lowest thresholds of both never survive: they enter as a number, not as a sort.
    near = hadrons[(a[hadrons] >= np.min(thresholds_a)) | (b[hadrons] >= np.min(thresholds_b))]
    differences = []
    for at_a, at_b in zip(thresholds_a, thresholds_b, strict=True):
        n_near = rng.binomial(len(hadrons), len(near) / len(hadrons))
        rows = rng.choice(near, n_near) if len(near) else near
        differences.append(
            _log_survival(a[rows], at_a, len(hadrons)).mean() - _log_survival(b[rows], at_b, len(hadrons)).mean()
        )
    return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(differences))


def _ranks(n_gamma: int) -> np.ndarray:
    """Return which of the descending gamma scores are the thresholds, counted from 0."""
    return np.ceil(np.array(SCORED_EFFICIENCIES) * n_gamma).astype(int) - 1


def _log_survival(hadrons: np.ndarray, thresholds: np.ndarray, n_hadrons: int) -> np.ndarray:
    surviving = len(hadrons) - np.searchsorted(np.sort(hadrons), thresholds, side="left")
    return np.asarray(np.log((surviving + 0.5) / (n_hadrons + 1.0)))


LEAK_SIGMA = 5.0
LEAK_SHARE = 0.15
"""A leak must be significant *and* large: a small difference may be an honest one."""
LEAK_EVENTS = 30
"""Fewer new events than this have no spread to measure a difference by."""


def entropy(log_proba: np.ndarray) -> np.ndarray:
    """Return the entropy of (..., C) log-probabilities, (...), with natural logarithms."""
    return -(np.exp(log_proba) * log_proba).sum(axis=-1)


def leak_remarks(entropies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, str]:
    """Return why learners are suspected of having learned from labels of what they predict, by learner.

    ``entropies`` holds, per learner, those of training events under the evaluation cuts, (N,) out-of-fold, and those of
    events to be predicted under them, (M,), both by single fits. One learner alone cannot be compared.
    """
    shifts = {name: float(new.mean() - known.mean()) for name, (known, new) in entropies.items()}
    remarks = {}
    for name, (known, new) in entropies.items():
        others = [shift for other, shift in shifts.items() if other != name]
        if not others or len(new) < LEAK_EVENTS:
            continue
        usual = float(np.median(others))
        excess = min(shifts[name], shifts[name] - usual)
        error = float(np.hypot(error_of_mean(known), error_of_mean(new)))
        if excess > LEAK_SIGMA * error and excess > LEAK_SHARE * new.mean():
            remarks[name] = (
                f"{name} is more certain of training events (entropy {known.mean():.3f}, out-of-fold) than of new "
                f"ones ({new.mean():.3f} ± {error:.3f}; the other learners differ by {usual:+.3f}): it may have seen "
                "their labels, look for events of the same shower in several folds"
            )
    return remarks
