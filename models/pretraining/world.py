"""The world of few showers: the position in the priors that explains them best, found instead of trained.

Pretraining told the network of each shower in which world it was simulated: shifts of depths, sizes and responses in
widths of their priors, and the hadronic model. Of showers whose world nobody knows the most probable one is found, by
quasi-Newton steps in these some thirty numbers: a hundred showers tell them, but not the network's half a million.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import chdtri
from torch.nn import functional

from showerstack.models.networks.step import truth_losses
from showerstack.models.pretraining.network import ShowerBody, truth_estimates

OF_TRUTH = ((2, 5), (0.02, 0.2))
"""Weight of true quantities beside that of two and of five classes, between them linear: less than 1, since errors are
not independent, and little where two classes are told apart easily (``few_showers --choose``, at drawn arrays)."""
BIAS_PRECISION = 3.0
"""Inverse variance of what is added to logits where classes have other shares than in pretraining."""
CHANCE = 1e-3
"""How seldom shares of classes that are as in pretraining are taken for others."""
SMALL_STEP = 1e-4
"""Share of the cost by which a step must lower it: float32 tells no smaller ones."""


def find_world(
    body: ShowerBody,
    head: torch.nn.Linear,
    truth: torch.nn.Linear,
    inputs: torch.Tensor,
    labels: torch.Tensor | None,
    n_showers: int,
    *,
    weights: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    near: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most probable world (W,) of labelled events, and what is to be added to the logits (C,).

    The logarithm of the posterior is minus the cross-entropy of all showers and :data:`OF_TRUTH` of the deviance of
    their true quantities, minus half the square of the world's position, whose priors are normal.

    Parameters
    ----------
    body, head, truth
        Parts of a network; nothing of them is changed.
    inputs
        (n, F).
    labels
        (n,) classes; None where the head is new and tells nothing of the world: true quantities then do alone.
    n_showers
        Of so many different ones: a shower that is used several times counts once.
    weights
        (n,) with mean 1, or none.
    targets
        (n, T) standardised true quantities, NaN where unknown, or none.
    near
        (W,) where the search begins; the centre of the priors if None.
    """
    n_classes, with_bias = head.out_features, False
    weight = torch.ones(len(inputs), device=inputs.device) if weights is None else weights
    if labels is not None:
        share = torch.bincount(labels.cpu(), weight.cpu(), minlength=n_classes).numpy() / len(labels)
        distance = n_showers * n_classes * float(((share - 1 / n_classes) ** 2).sum())  # Pearson's chi square
        with_bias = distance > chdtri(n_classes - 1, CHANCE)
    n_world = body.world.in_features - 1
    total, of_truth = n_showers / len(inputs), float(np.interp(n_classes, *OF_TRUTH))

    def cost(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(numbers, dtype=torch.float32, device=inputs.device, requires_grad=True)
        world, bias = at[:n_world], at[n_world:]
        embedding = body(inputs, torch.cat([world, world.new_ones(1)]))
        loss = embedding.new_zeros(())
        if labels is not None:
            logits = head(embedding) + (bias if with_bias else 0.0)
            loss = total * (functional.cross_entropy(logits, labels, reduction="none") * weight).sum()
        if targets is not None:
            losses, _ = truth_losses(truth_estimates(truth, embedding), targets)
            loss = loss + total * of_truth * (losses.sum(dim=1) * weight).sum()
        loss = loss + 0.5 * (world.square().sum() + BIAS_PRECISION * bias.square().sum())
        (slope,) = torch.autograd.grad(loss, at)
        return float(loss.detach()), slope.cpu().numpy().astype(np.float64)

    start = np.zeros(n_world + n_classes * with_bias)
    if near is not None:
        start[:n_world] = near.cpu().numpy()
    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"ftol": SMALL_STEP}).x
    at = torch.tensor(found, dtype=torch.float32, device=inputs.device)
    return at[:n_world], at[n_world:] if with_bias else at.new_zeros(n_classes)
