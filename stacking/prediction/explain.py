"""Why a run prefers one class to another for one event: what each group of features adds, for every learner and all.

``ln p(c) / p(d)`` of two classes is explained as a sum. Boosters give their margins by TreeSHAP (S. Lundberg et al.,
Nature Machine Intelligence 2 (2020) 56). For any other learner groups are exchanged with those of other events in
random orders (Shapley values by permutations, E. Strumbelj, I. Kononenko, Knowl. Inf. Syst. 41 (2014) 647), its
detector grid as one group. Fits are averaged, learners enter with their weights in the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from showerstack.features.catalogue import CATALOGUE
from showerstack.models.base.learner import Batch, Predictor
from showerstack.models.registry import load
from showerstack.models.tables.lightgbm_trees import LightGBMPredictor
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import limited_threads
from showerstack.showers.schema import GAMMA
from showerstack.stacking.estimates import Posterior
from showerstack.stacking.events import Events
from showerstack.stacking.prediction.predict import open_events
from showerstack.stacking.prediction.predictable import Predictable, SavedFit
from showerstack.stacking.prediction.run import Run

STATIONS = "stations"
"""The detector grid as a group."""
SCALARS = "reconstruction"
"""Group of the reconstructed scalars, which networks on grids take beside it."""
N_OTHERS = 16
"""Other events, chosen at random, from which exchanged groups come."""
N_ORDERS = 4
"""Random orders of the groups; each is also taken backwards."""
ROWS = 8192
"""Events with exchanged groups that a learner predicts at once."""


@runtime_checkable
class _Additive(Protocol):
    """A learner that gives itself what each of its columns adds."""

    columns_: tuple[str, ...]

    def contributions(self, batch: Batch) -> np.ndarray:
        """Return (n, C, F + 1)."""


@dataclass(frozen=True)
class Share:
    """The score of one learner for the event, explained."""

    probability: float
    """Of the first class, calibrated as the run's tables are."""
    score: float
    """``ln p(c) / p(d)``, the mean of its fits: base plus groups."""
    base: float
    """The score of a typical event."""
    groups: Mapping[str, float]
    """What each group of features adds."""


@dataclass(frozen=True)
class Explanation:
    """The score of one event, explained."""

    event: int
    classes: tuple[str, str]
    """The explained class, and the one that it is compared with."""
    probability: float
    """Of the first class, as predicted."""
    score: float
    """``ln p(c) / p(d)`` as predicted: base plus groups."""
    base: float
    groups: Mapping[str, float]
    """What each group of features adds to the score, the largest first."""
    learners: Mapping[str, Share]


def explain(
    run: Predictable, data: str | Path | Events, event: int, ctx: Context = Context(), *, seed: int = 1
) -> Explanation:
    """Explain the prediction of one event; see :func:`explain_events`."""
    return explain_events(run, data, [event], ctx, seed=seed)[0]


def explain_events(
    run: Predictable, data: str | Path | Events, which: Sequence[int], ctx: Context = Context(), *, seed: int = 1
) -> list[Explanation]:
    """Explain predictions: the most probable class against the next, gammas against hadrons.

    Parameters
    ----------
    run
        What :func:`showerstack.stacking.prediction.run.load` returns.
    data
        Events as :func:`showerstack.stacking.prediction.predict.predict` takes them, two or more.
    which
        Positions of the events to explain, from 0.
    seed
        Of the other events and the orders in which groups are exchanged.

    Raises
    ------
    InputError
        For an export, a run that estimates a quantity, an event that does not exist or cannot be used.
    """
    if not isinstance(run, Run):
        raise InputError(f"{run.folder} is an export, which cannot be explained: give the run that it was made of")
    if run.task.target is not None:
        raise InputError(f"{run.folder} estimates a quantity: only a choice between classes can be explained")
    fits = [run.fits(name) for name in run.chain.needed]
    events = open_events(run, data, tuple(dict.fromkeys(name for saved in fits for name in saved.columns)), ctx)
    usable = events.usable()
    for event in which:
        if not 0 <= event < len(events):
            raise InputError(f"there is no event {event}: expected 0..{len(events) - 1}")
        if usable is not None and not usable[event]:
            raise InputError(f"event {event} cannot be used: it was given the training prior")
    others = np.arange(len(events)) if usable is None else np.flatnonzero(usable)
    with limited_threads(run.threads):
        learners = {saved.name: [_opened(fit) for fit in saved.fits] for saved in fits}
        explanations = []
        for event in which:
            rows = _rows(event, others, seed)
            batches = {saved.name: events.batch(rows, saved.columns, grids=saved.needs_grid) for saved in fits}
            explanations.append(_explain_first(run, learners, batches, event, seed))
    return explanations


def _opened(fit: SavedFit) -> Predictor:
    """Return a fit without its library, unless it is the library that says what each column adds."""
    predictor = fit.open()
    return load(fit.place) if isinstance(predictor, LightGBMPredictor) else predictor


def _explain_first(
    run: Run, learners: Mapping[str, list[Predictor]], batches: Mapping[str, Batch], event: int, seed: int
) -> Explanation:
    """Explain the first event of the batches."""
    first_event = np.array([0])
    log_proba = {
        name: Posterior(np.stack([fit.predict_log_proba(batches[name].take(first_event)) for fit in fits]))
        for name, fits in learners.items()
    }
    posteriors = run.chain.posteriors(log_proba)
    final = posteriors[run.chain.shipped][0]
    first, second = (0, 1) if run.task == GAMMA else map(int, np.argsort(-final, kind="stable")[:2])
    shares = {}
    for name, fits in learners.items():
        of_fits = [_contributions(fit, batches[name], first, second, seed) for fit in fits]
        groups = {group: float(np.mean([of_fit[group] for of_fit in of_fits])) for group in of_fits[0]}
        said = log_proba[name].log_proba
        assert said is not None
        score = float(np.mean(said[:, 0, first] - said[:, 0, second]))
        probability = float(np.exp(posteriors[name][0, first]))
        shares[name] = Share(probability, score, score - sum(groups.values()), groups)
    total: dict[str, float] = {}
    for name, weight in _weights(run, first, second).items():
        for group, value in shares[name].groups.items():
            total[group] = total.get(group, 0.0) + weight * value
    score = float(final[first] - final[second])
    ordered = dict(sorted(total.items(), key=lambda item: -abs(item[1])))
    names = run.task.classes[first], run.task.classes[second]
    base = score - sum(total.values())
    return Explanation(event, names, float(np.exp(final[first])), score, base, ordered, shares)


def _rows(event: int, others: np.ndarray, seed: int) -> np.ndarray:
    """Return the event and some others, all of them where there are few."""
    shuffled = np.random.default_rng(seed).permutation(others)
    chosen = shuffled[shuffled != event][:N_OTHERS]
    if not len(chosen):
        raise InputError("an event is explained by comparing it with others: the data hold no other that can be used")
    return np.concatenate([[event], np.sort(chosen)])


def _weights(run: Run, first: int, second: int) -> dict[str, float]:
    """Return the weights of the learners' scores in the score of the shipped system; constants join the base."""
    chain, sharpness = run.chain, float(run.chain.scales[run.chain.shipped])
    if chain.shipped != "stack":
        return {chain.shipped: sharpness}
    pool = chain.pool
    scales = (pool.scales[:, first] + pool.scales[:, second]) / 2
    weights = zip(pool.learners, sharpness * pool.weights * scales, strict=True)
    return {name: float(weight) for name, weight in weights if name in pool.needed}


def group_of(column: str) -> str:
    """Return the catalogue's group of a column; a column of another table is a group of its own."""
    return CATALOGUE[column].group if column in CATALOGUE else column


def _contributions(learner: Predictor, batch: Batch, first: int, second: int, seed: int) -> dict[str, float]:
    """Return what each group adds to ``ln p(first) / p(second)`` of the first event of a batch."""
    if isinstance(learner, _Additive):
        try:
            by_class = learner.contributions(batch.take(np.array([0])))[0]
        except InputError:  # linear trees have none
            return exchanged(learner, batch, first, second, seed)
        groups: dict[str, float] = {}
        for column, value in zip(learner.columns_, by_class[first] - by_class[second], strict=False):
            groups[group_of(column)] = groups.get(group_of(column), 0.0) + float(value)
        return groups
    return exchanged(learner, batch, first, second, seed)


def exchanged(learner: Predictor, batch: Batch, first: int, second: int, seed: int) -> dict[str, float]:
    """Return Shapley values of the groups of a batch's first event, whose groups replace those of the other events.

    They sum to its ``ln p(first) / p(second)`` less the mean of the others'.
    """
    places: dict[str, list[int]] = {}
    for k, column in enumerate(batch.columns):
        places.setdefault(group_of(column), []).append(k)
    names = list(places)
    if learner.needs_grid:
        names += [STATIONS, *([] if SCALARS in places else [SCALARS])]
    rng = np.random.default_rng(seed)
    orders = [way for _ in range(N_ORDERS) for way in _both_ways(rng.permutation(len(names)))]
    ways = [[frozenset(names[k] for k in order[:n]) for n in range(len(order) + 1)] for order in orders]
    values = _values(learner, batch, list(dict.fromkeys(kept for way in ways for kept in way)), places, (first, second))
    shapley = dict.fromkeys(names, 0.0)
    for order, way in zip(orders, ways, strict=True):
        for k, kept, more in zip(order, way, way[1:], strict=False):
            shapley[names[k]] += (values[more] - values[kept]) / (2 * N_ORDERS)
    return shapley


def _both_ways(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return order, order[::-1]


def _values(
    learner: Predictor,
    batch: Batch,
    choices: Sequence[frozenset[str]],
    places: Mapping[str, list[int]],
    classes: tuple[int, int],
) -> dict[frozenset[str], float]:
    """Return the mean score of the others of a batch with some groups taken from its first event, for each choice.

    The learner is asked about many choices at once: asked about one after the other, a network waits for itself.
    """
    first, second = classes
    values, n = dict[frozenset[str], float](), len(batch) - 1
    at_once = max(ROWS // n, 1)
    for start in range(0, len(choices), at_once):
        chosen = choices[start : start + at_once]
        log_proba = learner.predict_log_proba(_mix(batch, chosen, places))
        scores = (log_proba[:, first] - log_proba[:, second]).reshape(len(chosen), n)
        values |= {kept: float(np.mean(of_choice)) for kept, of_choice in zip(chosen, scores, strict=True)}
    return values


def _mix(batch: Batch, choices: Sequence[frozenset[str]], places: Mapping[str, list[int]]) -> Batch:
    """Return the other events of a batch once for each choice of groups, which are those of its first event."""
    n = len(batch) - 1
    mixed = batch.take(np.tile(np.arange(1, len(batch)), len(choices)))
    for k, kept in enumerate(choices):
        rows = slice(k * n, (k + 1) * n)
        columns = [column for group in kept for column in places.get(group, ())]
        if mixed.table is not None and columns:
            assert batch.table is not None
            mixed.table[rows, columns] = batch.table[0, columns]
        if SCALARS in kept and mixed.scalars is not None:
            assert batch.scalars is not None
            mixed.scalars[rows] = batch.scalars[0]
        if STATIONS in kept:
            mixed.index[rows] = batch.index[0]
    return mixed
