"""Training in every place and testing in every other: scores, biases of fractions, and what helps; as tables and files.

The first place is home. The biases show how wrong shares are when nature is one place and the simulation another.
Beside the matrix, for home: the price of leaving out the features by which a classifier tells home's showers from those
of the other places, training with jittered sizes, and training on a mix of places. A mix has as many training showers
as home. For a test abroad it leaves the tested place out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.physics.classifier import classify
from benchmarks.physics.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from benchmarks.physics.places import Place, PlaceShowers, batch_of, jittered, showers_of
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.code import git_revision, source_hash, versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, write_json, write_npz
from showerstack.scoring.metrics.intervals import accuracy_interval
from showerstack.scoring.metrics.paired import Paired, paired_mean
from showerstack.showers.schema import COMPOSITION

LEAST_SHARE = 0.02
"""No class is given less at the expansion point: weights of events stay bounded."""


def share_bias(
    log_proba: np.ndarray, labels: np.ndarray, response: list[tuple[np.ndarray, np.ndarray]], prior: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return found minus true shares (C,), and their errors from both samples' statistics.

    Parameters
    ----------
    log_proba, labels
        The place that is tested.
    response
        Posteriors and labels of the training places' test showers. Where it is the tested place itself, the bias is
        zero by construction and says nothing; halves are then used for either.
    prior
        (C,) shares of the training events.
    """
    theirs, true = (np.concatenate(parts) for parts in zip(*response, strict=True))
    if len(response) == 1 and response[0][0] is log_proba:
        half = np.random.default_rng(seed).random(len(labels)) < 0.5
        theirs, true, log_proba, labels = theirs[half], true[half], log_proba[~half], labels[~half]
    ours = likelihood_ratios(log_proba, prior)
    at = np.maximum(maximum_likelihood(ours), LEAST_SHARE)
    at /= at.sum()
    g, s = estimating_functions(ours, at), estimating_functions(likelihood_ratios(theirs, prior), at)
    n_classes = len(at)
    truth = np.bincount(labels, minlength=n_classes) / len(labels)
    mixing = np.stack([s[true == k].mean(axis=0) for k in range(n_classes)], axis=1)
    result = np.linalg.solve(mixing, g.mean(axis=0))
    inverse = np.linalg.inv(mixing)
    # The tested shares are those of the very events: only the scatter of g within each class counts.
    within = np.concatenate([g[labels == k] - g[labels == k].mean(axis=0) for k in range(n_classes)])
    spread = within.T @ within / len(g) ** 2
    for k in range(n_classes):
        spread = spread + result[k] ** 2 * np.cov(s[true == k], rowvar=False) / max((true == k).sum(), 1)
    return result - truth, np.sqrt(np.diag(inverse @ spread @ inverse.T))


MATRIX_CSV, STUDY_FILE = "robustness.csv", "robustness.json"


@dataclass(frozen=True)
class RobustnessOptions:
    """What the user asks for."""

    places: tuple[Place, ...]
    out: Path
    train: int = 12_000
    test: int = 10_000
    learner: str = "lightgbm"
    preset: str = "quick"
    left_out: int = 5
    """Features to be left out."""
    jitter: float = 0.03
    """Width of the jitter of sizes, in lg."""
    seed: int = 1
    threads: int = 1


@dataclass(frozen=True)
class Cell:
    """One training tested in one place."""

    training: str
    trained_on: str
    tested_on: str
    events: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    log_loss: Paired
    """Mean over events, as a difference to nothing."""
    against_home: Paired
    """Log-loss less that of the home training alone, same events."""
    accuracy_against_home: Paired
    bias: np.ndarray
    """(C,) found minus true shares, by the likelihood checked with the training places' own test showers."""
    bias_error: np.ndarray


@dataclass(frozen=True)
class Robustness:
    """All that the study found."""

    options: RobustnessOptions
    cells: tuple[Cell, ...]
    auc: dict[str, tuple[float, float, float]]
    """Area under the curve of a classifier between home and each other place, with its confidence interval."""
    differing: tuple[str, ...]
    """The features that are left out."""

    def table(self) -> pl.DataFrame:
        """Return one row per training and place."""
        rows = []
        for one in self.cells:
            rows.append(
                {
                    "training": one.training, "trained_on": one.trained_on, "tested_on": one.tested_on,
                    "events": one.events, "accuracy": one.accuracy, "accuracy_low_95": one.accuracy_interval[0],
                    "accuracy_high_95": one.accuracy_interval[1], "log_loss_nats": one.log_loss.difference,
                    "log_loss_error": one.log_loss.standard_error,
                    "log_loss_minus_home": one.against_home.difference,
                    "log_loss_minus_home_low_95": one.against_home.interval.low,
                    "log_loss_minus_home_high_95": one.against_home.interval.high,
                    "accuracy_minus_home": one.accuracy_against_home.difference,
                    "accuracy_minus_home_low_95": one.accuracy_against_home.interval.low,
                    "accuracy_minus_home_high_95": one.accuracy_against_home.interval.high,
                }
                | {f"share_bias_{name}": one.bias[k] for k, name in enumerate(COMPOSITION.classes)}
                | {f"share_error_{name}": one.bias_error[k] for k, name in enumerate(COMPOSITION.classes)}
            )  # fmt: skip
        return pl.DataFrame(rows)

    def write(self) -> None:
        """Write the table and where it comes from."""
        out, options = self.options.out, self.options
        with atomic_path(out / MATRIX_CSV) as temporary:
            self.table().write_csv(temporary)
        write_json(
            out / STUDY_FILE,
            {
                "places": [place.name for place in options.places],
                "training_showers": options.train,
                "test_showers": options.test,
                "learner": options.learner,
                "preset": options.preset,
                "jitter_lg": options.jitter,
                "seed": options.seed,
                "left_out": list(self.differing),
                "classifier_auc_to_home": {name: list(value) for name, value in self.auc.items()},
                "cells": self.table().to_dicts(),
                "versions": versions(),
                "git_revision": git_revision(),
            },
        )


ALONE, WITHOUT, JITTER, MIX = "alone", "without differing features", "jittered sizes", "mix"
VALID_SHARE = 0.1


def study(options: RobustnessOptions, ctx: Context = Context()) -> Robustness:
    """Do the study; showers and fits that are there already are kept.

    Raises
    ------
    InputError
        For places, sizes or a learner that cannot be used.
    """
    chosen = spec(options.learner)
    if chosen.needs_grid:
        raise InputError(f"--learner {options.learner}: give one that needs no grid, such as lightgbm")
    if options.train < 500 or options.test < 500:
        raise InputError("train and test: at least 500 showers each")
    if options.left_out < 1 or not 0 < options.jitter < 1:
        raise InputError("left_out must be at least 1, jitter between 0 and 1")
    work = options.out / "showers"
    entries = [
        showers_of(
            place, chosen, work, train=options.train, test=options.test, seed=options.seed + 100 * k,
            ctx=ctx,
        )
        for k, place in enumerate(options.places)
    ]  # fmt: skip
    home = entries[0]
    auc, differing = _differences(entries, options)
    copy = jittered(
        work / home.place.folder / "composition_train", work / f"{home.place.folder}-jitter-{options.jitter:g}",
        options.jitter, options.seed,
    )  # fmt: skip
    shaken = batch_of(copy, chosen, ctx)
    kept = np.array([name not in differing for name in home.train.columns])
    trainings: list[tuple[str, str, Batch, list[PlaceShowers], np.ndarray | None, list[PlaceShowers]]] = [
        (ALONE, one.place.name, one.train, [one], None, entries) for one in entries
    ]
    trainings.append((WITHOUT, home.place.name, home.train, [home], kept, entries))
    trainings.append((JITTER, home.place.name, _joined([home.train, shaken]), [home], None, entries))
    for tested in entries:
        sources = entries if tested is home else [one for one in entries if one is not tested]
        if len(sources) > 1:
            name = "all places" if tested is home else "all but the tested"
            trainings.append((MIX, name, _mixed(sources, options), sources, None, [tested]))
    fits = _Fits(options)
    cells: list[Cell] = []
    with ctx.bars("robustness", "fits") as progress:
        reference: dict[str, np.ndarray] = {}
        for number, (kind, name, train, sources, columns, tested_in) in enumerate(trainings):
            wanted = {one.place.name: one.test for one in (*sources, *tested_in)}
            answers = fits(kind, name, train, wanted, columns)
            if number == 0:
                reference = answers
            response = [(answers[one.place.name], _labels(one.test)) for one in sources]
            for place in tested_in:
                mine, base = answers[place.place.name], reference[place.place.name]
                cells.append(_cell(kind, name, place, mine, base, response, train, options))
            progress(number + 1, len(trainings), f"{kind}, {name}")
    result = Robustness(options, tuple(cells), auc, differing)
    result.write()
    return result


def _labels(batch: Batch) -> np.ndarray:
    assert batch.labels is not None
    return batch.labels


def _table(batch: Batch) -> np.ndarray:
    assert batch.table is not None
    return batch.table


def _differences(
    place_showers: list[PlaceShowers], options: RobustnessOptions
) -> tuple[dict[str, tuple[float, float, float]], tuple[str, ...]]:
    """Return how well home is told from each other place, and the features that give most of it away."""
    home, gain, auc = place_showers[0], dict.fromkeys(place_showers[0].test.columns, 0.0), {}
    for other in place_showers[1:]:
        test = classify(
            home.test.columns, _table(other.test), _table(home.test), np.ones(len(home.test)),
            np.arange(len(home.test)), seed=options.seed, threads=options.threads,
        )  # fmt: skip
        auc[other.place.name] = (test.auc, test.low, test.high)
        for name, share in test.giving_away:
            gain[name] += share * max(test.low - 0.5, 0.0)
    order = sorted((name for name, value in gain.items() if value > 0), key=lambda name: -gain[name])
    return auc, tuple(order[: options.left_out])


def _joined(parts: list[Batch]) -> Batch:
    """Return the events of several batches as one."""
    first = parts[0]
    return replace(
        first,
        index=np.arange(sum(len(part) for part in parts)),
        table=np.asfortranarray(np.concatenate([_table(part) for part in parts])),
        scalars=None,
        labels=np.concatenate([_labels(part) for part in parts]),
        grids=None,
    )


def _mixed(sources: list[PlaceShowers], options: RobustnessOptions) -> Batch:
    """Return as many training events as home has, in equal parts from several places."""
    rng = np.random.default_rng(options.seed)
    size = options.train // len(sources)
    return _joined([one.train.take(np.sort(rng.permutation(len(one.train))[:size])) for one in sources])


@dataclass(frozen=True)
class _Fits:
    """Fits whose answers are kept on disk."""

    options: RobustnessOptions

    def __call__(
        self, kind: str, name: str, train: Batch, tests: dict[str, Batch], columns: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return (N, C) log-posteriors for each test."""
        options = self.options
        parts = [_hashed(train), *(f"{place}:{_hashed(batch)}" for place, batch in sorted(tests.items()))]
        identity = [kind, name, options.learner, options.preset, options.seed, parts,
                    None if columns is None else columns.tolist(), _code()]  # fmt: skip
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        file = options.out / "fits" / f"{key}.npz"
        if file.exists():
            with np.load(file, allow_pickle=False) as stored:
                return {place: stored[place.replace("/", "|")] for place in tests}
        learner = create(
            spec(options.learner), COMPOSITION.classes, threads=options.threads, preset=options.preset
        )  # fmt: skip
        pick: Callable[[Batch], Batch] = lambda batch: batch  # noqa: E731
        if columns is not None:
            kept = np.flatnonzero(columns)
            names = tuple(np.array(train.columns)[kept].tolist())
            pick = lambda batch: replace(  # noqa: E731
                batch, table=np.asfortranarray(_table(batch)[:, kept]), columns=names
            )
        # A shower and its jittered copy, a whole training set later, are on the same side.
        valid = (np.random.default_rng(options.seed).random(options.train) < VALID_SHARE)[train.index % options.train]
        learner.fit(pick(train.take(~valid)), pick(train.take(valid)), seed=options.seed)
        answers = {place: learner.predict_log_proba(pick(batch)) for place, batch in tests.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_npz(file, **{place.replace("/", "|"): value for place, value in answers.items()})
        return answers


def _code() -> str:
    return source_hash([Path(__file__)], ("lightgbm", "scikit-learn", "numpy"))


def _hashed(batch: Batch) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(_table(batch)).tobytes())
    digest.update(_labels(batch).tobytes())
    return digest.hexdigest()[:16]


def _cell(
    kind: str, name: str, place: PlaceShowers, mine: np.ndarray, base: np.ndarray,
    response: list[tuple[np.ndarray, np.ndarray]], train: Batch, options: RobustnessOptions,
) -> Cell:  # fmt: skip
    labels = _labels(place.test)
    rows = np.arange(len(labels))
    loss, home_loss = -mine[rows, labels], -base[rows, labels]
    hits, home_hits = mine.argmax(axis=1) == labels, base.argmax(axis=1) == labels
    interval = accuracy_interval(labels, mine.argmax(axis=1))
    prior = np.bincount(_labels(train), minlength=mine.shape[1]) / len(train)
    bias, error = share_bias(mine, labels, response, prior, options.seed)
    return Cell(
        kind, name, place.place.name, len(labels), float(hits.mean()), (interval.low, interval.high),
        paired_mean(loss), paired_mean(loss - home_loss), paired_mean(hits.astype(float) - home_hits), bias, error,
    )  # fmt: skip
