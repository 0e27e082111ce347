"""What networks trained on the real data make of simulated showers, beside the real ones: numbers and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from benchmarks.world.networks import (
    NormDeviation,
    Published,
    TwoSample,
    inputs,
    norm_deviations,
    posteriors,
    two_sample,
)
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.composition import confusion_matrix, row_normalised
from showerstack.scoring.metrics.intervals import Interval, clopper_pearson
from showerstack.scoring.metrics.level import LEVEL
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.settings import Settings

EVENTS = 40_000
NORM_EVENTS = 16_384
"""Of these, the batch norms are compared on the first ones."""
RARE = 0.02
"""Smaller posteriors are left out where only decisions are compared. Trained with labels smoothed by 0.05, the networks
give a class that they exclude about 0.01, and what is left there depends on the epoch of a training."""


@dataclass(frozen=True)
class Comparison:
    """One network on simulated and on real events of the matched protocol."""

    name: str
    n: int
    """Simulated events."""
    accuracy: tuple[float, Interval]
    real_accuracy: tuple[float, Interval]
    log_loss: tuple[float, Interval]
    real_log_loss: tuple[float, Interval]
    confusion: np.ndarray
    """(5, 5) shares of each class' simulated events."""
    real_confusion: np.ndarray
    spread: np.ndarray
    """(5,) standard deviation of the mean class number within each class."""
    real_spread: np.ndarray
    norms: dict[str, NormDeviation]
    areas: dict[str, TwoSample]
    """Simulated against real posteriors: ``all``, and class by class."""
    coarse: dict[str, TwoSample]
    """The same with posteriors below :data:`RARE` left out."""
    floors: dict[str, TwoSample]
    """The same for one half of the real posteriors against the other."""
    labels: np.ndarray
    """(n,) classes of the simulated events."""
    said: np.ndarray
    """(n, 5) posteriors of the simulated events."""

    @property
    def row_deviation(self) -> float:
        """Sum of a confusion row's absolute deviations, mean of the rows."""
        return float(np.abs(self.confusion - self.real_confusion).sum(axis=1).mean())


def compare(
    networks: list[Published],
    settings: Settings,
    *,
    n: int = EVENTS,
    seed: int = 1,
    workers: int | None = None,
    bars: Bars = silent,
) -> Iterator[Comparison]:
    """Simulate QGSJet events of the matched protocol and yield each network's view of them.

    Parameters
    ----------
    networks
        Networks with their posteriors of the real test events.
    settings
        The world.
    n
        Simulated events.
    seed
        Seed of the simulation, of augmentation and dropout, and of the trees' folds.
    workers
        Threads of the simulation.
    bars
        Progress.
    """
    job = BlockJob(COMPOSITION, "test", seed, "qgs", "matched", settings)
    grids = np.empty((n, *job.array.grid_shape), dtype=np.float32)
    scalars: dict[str, list[np.ndarray]] = {name: [] for name in ("E", "Ze", "Ne", "Nmu", "Age")}
    entries: list[np.ndarray] = []
    done = 0
    with bars("composition, matched protocol", "events") as progress:
        for events in accepted_events(job, n, workers):
            e = events.event
            grids[done : done + len(events)] = events.grids
            for name, values in zip(scalars, (e.lg_energy, e.zenith_deg, e.lg_ne, e.lg_nmu, e.age), strict=True):
                scalars[name].append(values)
            entries.append(events.labels.astype(np.int64))
            done += len(events)
            progress(done, n)
    labels = np.concatenate(entries)
    read = inputs(grids, {name: np.concatenate(parts) for name, parts in scalars.items()})
    for published in networks:
        with bars(f"network {published.name}", "comparisons") as progress:
            said = posteriors(published.network, *read)
            progress(1, 3)
            norms = norm_deviations(published.network, *(part[:NORM_EVENTS] for part in read), seed=seed)
            progress(2, 3)
            yield _comparison(published, labels, said, norms, seed)
            progress(3, 3)


def _comparison(
    published: Published, labels: np.ndarray, said: np.ndarray, norms: dict[str, NormDeviation], seed: int
) -> Comparison:
    real = (published.labels, published.posteriors)
    return Comparison(
        name=published.name,
        n=len(labels),
        accuracy=_accuracy(labels, said),
        real_accuracy=_accuracy(*real),
        log_loss=_log_loss(labels, said),
        real_log_loss=_log_loss(*real),
        confusion=_confusion(labels, said),
        real_confusion=_confusion(*real),
        spread=_spread(labels, said),
        real_spread=_spread(*real),
        norms=norms,
        areas=_areas((labels, said), real, seed),
        coarse=_areas(_coarse((labels, said)), _coarse(real), seed),
        floors=_floors(real, seed),
        labels=labels,
        said=said,
    )


def joint_areas(
    networks: list[Published], comparisons: list[Comparison], *, seed: int = 1
) -> tuple[dict[str, TwoSample], dict[str, TwoSample], dict[str, TwoSample]]:
    """Return how well trees that see all networks' posteriors at once tell simulated from real; the same with
    posteriors below :data:`RARE` left out; and the real halves.

    Raises
    ------
    InputError
        If the networks' posteriors are not of the same real events in the same order.
    """
    labels = networks[0].labels
    for other in networks[1:]:
        if not np.array_equal(labels, other.labels):
            raise InputError(f"posteriors of {networks[0].name} and {other.name} are of different real events")
    real = (labels, np.hstack([one.posteriors for one in networks]))
    simulated = (comparisons[0].labels, np.hstack([one.said for one in comparisons]))
    return _areas(simulated, real, seed), _areas(_coarse(simulated), _coarse(real), seed), _floors(real, seed)


def _coarse(sample: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return sample[0], without_rare(sample[1])


def without_rare(said: np.ndarray) -> np.ndarray:
    """Return posteriors (n, 5 k) of k networks, those below :data:`RARE` set to 0, each network's others to sum 1."""
    each = said.astype(np.float32).reshape(len(said), -1, COMPOSITION.n_classes)
    kept = np.where(each < RARE, 0.0, each)
    return np.asarray(kept / kept.sum(axis=2, keepdims=True)).reshape(said.shape)


def _floors(real: tuple[np.ndarray, np.ndarray], seed: int) -> dict[str, TwoSample]:
    half = np.random.default_rng(seed).permutation(len(real[0]))
    first, second = ((real[0][part], real[1][part]) for part in np.array_split(half, 2))
    return _areas(first, second, seed)


def _areas(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], seed: int) -> dict[str, TwoSample]:
    """Return how well trees tell two sets of (labels, posteriors) apart: all events, and class by class."""
    result = {"all": two_sample(a[1], b[1], seed=seed)}
    for k, name in enumerate(COMPOSITION.classes):
        result[name] = two_sample(*(said[labels == k] for labels, said in (a, b)), seed=seed)
    return result


def _accuracy(labels: np.ndarray, said: np.ndarray) -> tuple[float, Interval]:
    predicted = said.argmax(axis=1)
    return float((predicted == labels).mean()), clopper_pearson(int((predicted == labels).sum()), len(labels))


def _log_loss(labels: np.ndarray, said: np.ndarray) -> tuple[float, Interval]:
    own = said[np.arange(len(labels)), labels].astype(np.float64)
    loss = -np.log(np.maximum(own, np.finfo(np.float16).smallest_subnormal))
    value, error = float(loss.mean()), 1.96 * float(loss.std()) / np.sqrt(len(loss))
    return value, Interval(value - error, value + error, LEVEL)


def _confusion(labels: np.ndarray, said: np.ndarray) -> np.ndarray:
    return row_normalised(confusion_matrix(labels, said.argmax(axis=1)))


def _spread(labels: np.ndarray, said: np.ndarray) -> np.ndarray:
    index = said.astype(np.float64) @ np.arange(COMPOSITION.n_classes)
    return np.array([index[labels == k].std() for k in range(COMPOSITION.n_classes)])


def network_tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a network's tables: quality, confusion, two-sample areas, batch norms."""
    quality = Table(title=f"Network {comparison.name}: {comparison.n:,} simulated events, intervals of 95 %")
    for name in ("", "real", "simulated"):
        quality.add_column(name, justify="right" if name else "left")
    quality.add_row("accuracy", _within(*comparison.real_accuracy), _within(*comparison.accuracy))
    quality.add_row("log-loss", _within(*comparison.real_log_loss), _within(*comparison.log_loss))
    for name, k in (("silicon", 3), ("iron", 4)):
        quality.add_row(
            f"{name} called proton", f"{comparison.real_confusion[k, 0]:.4f}", f"{comparison.confusion[k, 0]:.4f}"
        )
    for name, real, value in zip(COMPOSITION.classes, comparison.real_spread, comparison.spread, strict=True):
        quality.add_row(f"spread of the class number, {name}", f"{real:.3f}", f"{value:.3f}")
    yield quality

    confusion = Table(title=f"Confusion, simulated (real); sum of a row's deviations {comparison.row_deviation:.3f}")
    confusion.add_column("is / called")
    for name in COMPOSITION.classes:
        confusion.add_column(name, justify="right")
    for name, row, real_row in zip(COMPOSITION.classes, comparison.confusion, comparison.real_confusion, strict=True):
        confusion.add_row(name, *(f"{v:.3f} ({r:.3f})" for v, r in zip(row, real_row, strict=True)))
    yield confusion

    yield areas_table("posteriors", comparison.areas, comparison.coarse, comparison.floors)

    norms = Table(title="Inputs of batch norms: rms deviation from the real training's")
    for name in ("layer", "means / real sd", "ln widths"):
        norms.add_column(name, justify="right" if name != "layer" else "left")
    for name, norm in comparison.norms.items():
        norms.add_row(name, *(f"{np.sqrt(np.mean(v**2)):.3f}" for v in (norm.mean, norm.ln_width)))
    yield norms


def areas_table(
    what: str, areas: dict[str, TwoSample], coarse: dict[str, TwoSample], floors: dict[str, TwoSample]
) -> Table:
    """Return the table of two-sample areas, ``what`` being what the trees see."""
    table = Table(title=f"Trees that tell simulated from real {what}: area under the ROC curve")
    below = f"posteriors below {RARE} left out"
    for name in ("events", "simulated against real", below, "two real halves"):
        table.add_column(name, justify="right" if name != "events" else "left")
    for name, area in areas.items():
        table.add_row(name, *(_area(one) for one in (area, coarse[name], floors[name])))
    return table


def _within(value: float, interval: Interval) -> str:
    return f"{value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def _area(result: TwoSample) -> str:
    return f"{result.area:.3f} [{result.interval.low:.3f}, {result.interval.high:.3f}]"
