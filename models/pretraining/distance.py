"""How far the showers of a set, whose classes nobody knows, lie from those that pretrained weights have seen.

Worlds are drawn at the array of the set as pretraining draws them. From each, as many showers are taken, of the same
sizes and zenith angles as those of the set: which primaries and what spectrum it has makes little difference. What is
compared are the means of the network's inputs, less what sizes and angles make of them, by the covariance of the
worlds' means (Ledoit and Wolf 2004, J. Multivar. Anal. 88, 365): along what worlds differ in, a set may lie far out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression

from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.learner import inputs_of
from showerstack.models.pretraining.stream import COLUMNS, batch_of, draw_at
from showerstack.models.pretraining.weights import Pretrained
from showerstack.runtime.context import Context
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.showers.schema import Task

WORLDS = 100
MOST, LEAST = 1_000, 50
"""Showers that are compared, at most and at least."""
SIZES = ("fit_lg_ne", "fit_lg_nmu", "sec_zenith", "fit_core_edge_m", "fit_core_r_m")
"""Columns in which showers of the worlds are made like those of the set; those that it lacks are all alike."""
FAR = 4.0
"""Widths beyond which an input counts as no further away."""
LEAST_EFFECTIVE, LEAST_WORLDS = 60, 20
"""Effective number of showers of the same sizes that a world must have to be compared, and how many worlds must."""
LARGEST_LOG_WEIGHT = 3.0
LEAST_WIDTH, ROUNDING = 1e-4, 0.02
"""Columns whose means differ less from world to world are constant; added to what a difference is divided by."""


@dataclass(frozen=True)
class Distance:
    """Distance of a set, beside those of each drawn world from all others."""

    value: float
    of_worlds: np.ndarray
    """(W,) float64."""
    furthest: tuple[str, ...]
    """The columns in which the set lies furthest out, and by how many standard deviations of the worlds' means."""
    inclined: str = ""
    """How many showers are more inclined than any of the worlds, in words; they are not compared."""

    @property
    def further(self) -> int:
        """Number of worlds that lie at least as far out."""
        return int((self.of_worlds >= self.value).sum())

    @property
    def words(self) -> str:
        """What it means, in a line."""
        unlike = "these showers are unlike all that the weights have seen"
        if not self.is_outside:
            found = (
                f"{self.further} of {len(self.of_worlds)} drawn worlds lie further from the others than these showers"
            )
        elif not len(self.of_worlds):
            found = f"{unlike}: of other sizes and zenith angles"
        else:
            low, high = np.quantile(self.of_worlds, (0.5, 1.0))
            found = (
                f"{unlike}: distance {self.value:.2f}, of drawn worlds {low:.2f} (median) to {high:.2f}, furthest in "
                f"{', '.join(self.furthest)} standard deviations"
            )
        return f"{found}; {self.inclined}" if self.inclined else found

    @property
    def is_outside(self) -> bool:
        """Whether no world lies as far out; of sets that are like the worlds one in a hundred is."""
        return not self.further


def distance_of(pretrained: Pretrained, events: Batch, task: Task, ctx: Context = Context()) -> Distance:
    """Return the distance of some showers, (n,) of one array, from drawn worlds at that array.

    Parameters
    ----------
    pretrained
        Weights that were trained at this array or at any.
    events
        At least :data:`LEAST` showers with the columns that the network reads.
    task
        Whose showers the worlds have.
    ctx
        Threads that draw worlds, and progress.
    """
    inputs = inputs_of(pretrained, events)
    most_deg = 0.0

    def plain(batch: Batch) -> np.ndarray:
        return np.clip(inputs.apply(batch)[:, : len(inputs.plain)].astype(np.float64), -FAR, FAR)

    def world(number: int) -> tuple[np.ndarray, float]:
        table = draw_at(events.array, task, number).table
        zenith_deg = float(table[:, COLUMNS.index("Ze")].max(initial=0.0))
        table[:, [COLUMNS.index(name) for name in inputs.absent]] = np.nan
        return plain(replace(batch_of(table), array=events.array)), zenith_deg

    worlds: list[np.ndarray] = []
    with ctx.bars("compare", "worlds") as progress:
        for drawn, zenith_deg in in_threads(world, ((k,) for k in range(WORLDS)), workers=ctx.workers or cores()):
            worlds.append(drawn)
            most_deg = max(most_deg, zenith_deg)
            progress(len(worlds), WORLDS)
    n, inclined = len(events), np.zeros(len(events), dtype=bool)
    if events.table is not None and "Ze" in events.columns:
        inclined = events.table[:, events.columns.index("Ze")] > most_deg
    if not inclined.any():
        return compare(plain(events), worlds, inputs.plain)
    words = (
        f"{inclined.sum():,} of {n:,} compared have zenith angles above {most_deg:.0f} deg, of which the weights know "
        "little, and were left out"
    )
    like = events.take(np.flatnonzero(~inclined))
    if len(like) < LEAST:
        return Distance(np.inf, np.empty(0), (), words)
    return replace(compare(plain(like), worlds, inputs.plain), inclined=words)


def compare(own: np.ndarray, worlds: list[np.ndarray], columns: tuple[str, ...]) -> Distance:
    """Return the distance of a set's inputs (n, F) from those of worlds, (m, F) each; ``columns`` are their names."""
    places, rng = [columns.index(name) for name in SIZES if name in columns], np.random.default_rng(0)
    every = np.concatenate(worlds)
    basis, own_basis = _quadratic(every[:, places]), _quadratic(own[:, places])
    centre, width = own_basis.mean(axis=0), basis.std(axis=0) + ROUNDING
    basis, own_basis = ((one - centre) / width for one in (basis, own_basis))
    some = rng.permutation(len(basis))[: 20 * MOST]
    of_set = np.repeat([0, 1], [len(some), len(own)])
    told_apart = LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000)
    told_apart.fit(np.concatenate([basis[some], own_basis]), of_set)
    weights = np.exp(np.minimum(told_apart.decision_function(basis), LARGEST_LOG_WEIGHT))
    chosen = []
    for rows in np.split(np.arange(len(every)), np.cumsum([len(one) for one in worlds])[:-1]):
        share = weights[rows] / weights[rows].sum()
        if len(rows) and 1 / (share @ share) >= LEAST_EFFECTIVE:
            chosen.append(rows[rng.choice(len(rows), len(own), p=share)])
    if len(chosen) < LEAST_WORLDS:
        return Distance(np.inf, np.empty(0), ())
    pool = np.concatenate(chosen)
    basis, own_basis = (np.column_stack([np.ones(len(one)), one]) for one in (basis, own_basis))
    expected = np.linalg.lstsq(basis[pool], every[pool], rcond=None)[0]
    means = np.array([(every[rows] - basis[rows] @ expected).mean(axis=0) for rows in chosen])
    own_mean, width = (own - own_basis @ expected).mean(axis=0), means.std(axis=0)
    varies = np.flatnonzero(width > LEAST_WIDTH)
    own_mean, means = (one[..., varies] / (width[varies] + ROUNDING) for one in (own_mean, means))
    of_worlds = np.array([_distance(means[k], np.delete(means, k, axis=0)) for k in range(len(means))])
    out = own_mean - means.mean(axis=0)
    furthest = tuple(f"{columns[varies[k]]} {out[k]:+.1f}" for k in np.argsort(-np.abs(out))[:3])
    return Distance(_distance(own_mean, means), of_worlds, furthest)


def _quadratic(values: np.ndarray) -> np.ndarray:
    """Return the values and their products, (n, F (F + 3) / 2)."""
    first, second = np.triu_indices(values.shape[1])
    return np.column_stack([values, values[:, first] * values[:, second]])


def _distance(one: np.ndarray, others: np.ndarray) -> float:
    """Return the Mahalanobis distance of a mean from those of worlds, over the root of their number of columns."""
    away = one - others.mean(axis=0)
    return float(np.sqrt(away @ np.linalg.solve(LedoitWolf().fit(others).covariance_, away) / len(away)))
