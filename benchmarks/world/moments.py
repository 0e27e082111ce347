"""Does the simulated sky look like the real one? Every known fact beside its counterpart in simulated samples.

The samples are small and drawn from a world's settings; ``benchmarks/world/realism.py`` prints the comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from rich.table import Table

from benchmarks.world import facts
from benchmarks.world.facts import FACTS, TRADES
from showerstack.runtime.context import Bars, silent
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, passes_cuts
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.settings import Settings, load_settings

TRIM_SIGMA = 3.5
"""Events farther than this from their class' mean do not count in its core."""


@dataclass(frozen=True)
class Sizes:
    """How many events each sample holds."""

    matched: int = 60_000
    free: int = 60_000
    gamma: int = 120_000
    gamma_test: int = 30_000

    def times(self, factor: float) -> Sizes:
        """Return all sizes scaled."""
        return Sizes(*(max(int(factor * n), 200) for n in (self.matched, self.free, self.gamma, self.gamma_test)))


def sample_moments(
    settings: Settings,
    sizes: Sizes,
    *,
    seed: int = 1,
    workers: int | None = None,
    tasks: tuple[Task, ...] = (COMPOSITION, GAMMA),
    watch: Callable[[SimulatedEvents], None] | None = None,
    bars: Bars = silent,
) -> dict[tuple[str, str], float]:
    """Simulate the samples that the facts describe and return each fact's simulated value, by the fact's key.

    Parameters
    ----------
    settings
        The world.
    sizes
        Numbers of events.
    seed
        Same seed: same primaries and random streams for any settings (common random numbers).
    workers
        Threads.
    tasks
        Simulate the sets of these tasks only.
    watch
        Called with every portion of the events under the matched protocol's cuts.
    bars
        Progress.
    """
    values: dict[str, dict[str, float]] = {}
    if COMPOSITION in tasks:
        job = BlockJob(COMPOSITION, "train", seed, "qgs", "matched", settings)
        matched = _draw(job, sizes.matched, workers, bars, watch)
        free = _draw(BlockJob(COMPOSITION, "train", seed, "mix", "none", settings), sizes.free, workers, bars)
        values |= {facts.MATCHED: _matched(matched), facts.BY_ENERGY: _by_energy(matched), facts.FREE: _free(free)}
    if GAMMA in tasks:
        values |= _gamma_sets(settings, sizes, seed, workers, bars)
    return {(sample, name): float(v) for sample, result in values.items() for name, v in result.items()}


def _gamma_sets(
    settings: Settings, sizes: Sizes, seed: int, workers: int | None, bars: Bars
) -> dict[str, dict[str, float]]:
    even = settings.changed(spectrum__protons_per_photon=1.0)  # as many photons as protons: weighted back below
    weight = settings.spectrum.protons_per_photon
    gamma = _draw(BlockJob(GAMMA, "train", seed, "mix", "none", even), sizes.gamma, workers, bars)
    tested = _draw(BlockJob(GAMMA, "test", seed, "mix", "test", even), sizes.gamma_test, workers, bars)
    return {
        facts.PROTONS: _protons(gamma),
        facts.GAMMAS: _gammas(gamma, weight),
        facts.GAMMA_TEST: _gamma_test(tested, weight),
    }


def _draw(
    job: BlockJob, n: int, workers: int | None, bars: Bars, watch: Callable[[SimulatedEvents], None] | None = None
) -> dict[str, np.ndarray]:
    """Return columns of ``n`` events and, under ``cells``, of their grids."""
    parts: list[dict[str, np.ndarray]] = []
    done = 0
    with bars(f"{job.task.name}, {job.model}, {job.cuts} cuts", "events") as progress:
        for events in accepted_events(job, n, workers):
            parts.append(_columns(events, matched=job.cuts == "matched"))
            if watch is not None:
                watch(events)
            done += len(events)
            progress(done, n)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(events: SimulatedEvents, *, matched: bool) -> dict[str, np.ndarray]:
    e = events.event
    columns = {
        "E": e.lg_energy,
        "Ze": e.zenith_deg,
        "Ne": e.lg_ne,
        "Nmu": e.lg_nmu,
        "Age": e.age,
        "Ne-Nmu": e.lg_ne - e.lg_nmu,
        "label": events.labels.astype(np.int64),
        "model": events.showers.primaries.model[events.rows],
        "mass": events.showers.primaries.mass[events.rows],
        "passes": passes_cuts(e, "test"),
    }
    if matched:
        return columns | dict(_log_cells(events.grids))
    grids = events.grids
    return columns | {
        "sum e": grids[..., 0].sum(axis=(1, 2)),
        "sum mu": grids[..., 1].sum(axis=(1, 2)),
        "max": grids.max(axis=(1, 2, 3)),
        "non-zero": (grids > 0.0).mean(axis=(1, 2, 3)),
    }


def _log_cells(grids: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield per-event means of log1p of the cells, of their products, and shares of zero cells, (n,) each."""
    logs = np.log1p(grids)
    channels = {"e": logs[..., 0], "mu": logs[..., 1]}
    for name, cells in channels.items():
        yield f"mean log1p {name}", cells.mean(axis=(1, 2))
        yield f"mean log1p {name}, border rows", cells[:, [0, -1]].mean(axis=(1, 2))
        yield f"zero cells {name}", (cells == 0.0).mean(axis=(1, 2))
        yield f"product {name} {name}, lag 0", facts.CUT_OUT * (cells * cells).mean(axis=(1, 2))
        for lag in (1, 2):
            along = (cells[:, lag:] * cells[:, :-lag]).sum(axis=(1, 2))
            across = (cells[:, :, lag:] * cells[:, :, :-lag]).sum(axis=(1, 2))
            # The published products are sums over pairs divided by all 256 cells.
            yield f"product {name} {name}, lag {lag}", facts.CUT_OUT * 0.5 * (along + across) / cells[0].size
    yield "product e mu, lag 0", facts.CUT_OUT * (channels["e"] * channels["mu"]).mean(axis=(1, 2))


def _spread(columns: dict[str, np.ndarray], names: tuple[str, ...], weights: np.ndarray) -> dict[str, float]:
    result = {}
    for name in names:
        mean = np.average(columns[name], weights=weights)
        result[f"mean {name}"] = mean
        result[f"sd {name}"] = np.sqrt(np.average((columns[name] - mean) ** 2, weights=weights))
    return result


def _matched(c: dict[str, np.ndarray]) -> dict[str, float]:
    n = len(c["E"])
    result = _class_fractions(c)
    result |= _spread(c, ("Ne", "Nmu", "Age", "Ze", "Ne-Nmu", "E"), np.ones(n))
    for pair in ("Ne Nmu", "Ne Age", "Nmu Age", "Age Ze", "Ne E", "Nmu E", "Age E", "Ze E"):
        a, b = pair.split()
        result[f"corr {pair}"] = np.corrcoef(c[a], c[b])[0, 1]
    result |= {name: c[name].mean() for name in c if name.startswith(("mean log1p", "product", "zero cells"))}
    scalars = (c["Ne"], c["Nmu"], c["Ze"])
    result["discriminant accuracy, scalars"] = discriminant_accuracy(scalars, c["label"])
    result["discriminant accuracy, scalars and Age"] = discriminant_accuracy((*scalars, c["Age"]), c["label"])
    low = c["E"] < 15.0
    result["below lg E = 15"] = low.mean()
    result["below lg E = 15: fraction iron"] = (c["label"][low] == 4).mean() if low.any() else 0.0
    return result


def discriminant_accuracy(columns: tuple[np.ndarray, ...], label: np.ndarray) -> float:
    """Return the mean largest posterior of a quadratic discriminant: a smooth stand-in for a classifier's accuracy.

    Means and covariances are those of each class' core (two trimming passes): otherwise a few failed events would
    widen them, and the posteriors would promise less than a classifier reaches.
    """
    x = np.column_stack(columns)
    logs = []
    for k in np.unique(label):
        own = x[label == k]
        core = own
        for _ in range(3):
            mean, covariance = core.mean(axis=0), np.cov(core.T)
            core = own[_distance(own, mean, covariance) < TRIM_SIGMA**2]
        logs.append(np.log(len(own)) - 0.5 * (_distance(x, mean, covariance) + np.linalg.slogdet(covariance)[1]))
    posterior = np.exp(np.array(logs) - np.logaddexp.reduce(logs, axis=0))
    return float(posterior.max(axis=0).mean())


def _distance(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return squared distances in units of a covariance, (n,)."""
    apart = x - mean
    return np.einsum("ij,jk,ik->i", apart, np.linalg.inv(covariance), apart)


def _class_fractions(c: dict[str, np.ndarray]) -> dict[str, float]:
    counts = np.bincount(c["label"], minlength=COMPOSITION.n_classes) / len(c["label"])
    return {f"fraction {name}": counts[k] for k, name in enumerate(COMPOSITION.classes)}


def _free(c: dict[str, np.ndarray]) -> dict[str, float]:
    return _class_fractions(c) | {
        "pass Ze, Ne, Age cuts": c["passes"].mean(),
        "below lg E = 15": (c["E"] < 15.0).mean(),
        "pass Ze, Ne, Age cuts, QGSJet": c["passes"][c["model"] == 0].mean(),
        "pass Ze, Ne, Age cuts, EPOS": c["passes"][c["model"] == 1].mean(),
    }


def _by_energy(c: dict[str, np.ndarray]) -> dict[str, float]:
    result = {}
    for low, high in facts.CLASS_COUNTS:
        inside, name = (c["E"] >= low) & (c["E"] < high), f"lg E {low:g}-{high:g}"
        result[f"share in {name}"] = inside.mean()
        for k, fraction in enumerate(COMPOSITION.classes):
            result[f"{name}: fraction {fraction}"] = (c["label"][inside] == k).sum() / max(inside.sum(), 1)
    return result


def _protons(c: dict[str, np.ndarray]) -> dict[str, float]:
    c = _chosen(c, c["label"] == 1)
    return _spread(c, ("E", "Ne", "Nmu", "Ze"), np.ones(len(c["E"]))) | {
        "median sum e": np.median(c["sum e"]),
        "median sum mu": np.median(c["sum mu"]),
        "median max": np.median(c["max"]),
        "non-zero cells": c["non-zero"].mean(),
        "pass Ze, Ne, Age cuts": c["passes"].mean(),
    }


def _gammas(c: dict[str, np.ndarray], protons_per_photon: float) -> dict[str, float]:
    weights = np.where(c["mass"] == 0, 1.0, protons_per_photon)
    labelled = c["label"] == 0
    share = weights[labelled].sum() / weights.sum()
    c, weights = _chosen(c, labelled), weights[labelled]
    return _spread(c, ("E", "Ne", "Nmu", "Ze"), weights) | {
        "pass Ze, Ne, Age cuts": np.average(c["passes"], weights=weights),
        "share of all events": share,
    }


def _gamma_test(c: dict[str, np.ndarray], protons_per_photon: float) -> dict[str, float]:
    labelled = c["label"] == 0
    weights = np.where(c["mass"] == 0, 1.0, protons_per_photon)[labelled]
    gammas, hadrons = _chosen(c, labelled), _chosen(c, ~labelled)
    result = {f"gammas, median {name}": weighted_median(gammas[name], weights) for name in ("Nmu", "Ne-Nmu")}
    for low, high in itertools.pairwise(facts.ENERGY_EDGES):
        inside = (hadrons["E"] >= low) & (hadrons["E"] < high)
        result[f"hadrons in lg E {low:g}-{high:g}"] = inside.mean()
    return result


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the value below which half of the weight lies."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def _chosen(columns: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[which] for name, values in columns.items()}


def realism(
    settings: Settings | None = None,
    *,
    sizes: Sizes | None = None,
    seed: int = 1,
    workers: int | None = None,
    bars: Bars = silent,
) -> pl.DataFrame:
    """Simulate and compare with every known fact of the real data (:data:`benchmarks.world.facts.FACTS`).

    Parameters
    ----------
    settings
        The world; the default one if None.
    sizes
        Numbers of events simulated.
    seed
        Seed of the samples.
    workers
        Threads.
    bars
        Progress.

    Returns
    -------
    polars.DataFrame
        Columns ``sample``, ``quantity``, ``real``, ``simulated``, ``tolerance`` (absolute), ``deviation``
        (in tolerances, signed), ``ok`` (its size at most 1) and ``trade`` (for a fact outside: what meeting it
        would cost in the default world, where that is known).
    """
    result = sample_moments(settings or load_settings(), sizes or Sizes(), seed=seed, workers=workers, bars=bars)
    rows = []
    for fact in FACTS:
        deviation = (result[fact.key] - fact.real) / fact.tolerance
        ok = abs(deviation) <= 1.0
        trade = "" if ok else TRADES.get(fact.key, "")
        rows.append((*fact.key, fact.real, result[fact.key], fact.tolerance, deviation, ok, trade))
    schema = ["sample", "quantity", "real", "simulated", "tolerance", "deviation", "ok", "trade"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def rendered(table: pl.DataFrame) -> Table:
    """Return the comparison as a coloured table."""
    outside = int((~table["ok"]).sum())
    drawn = Table(title=f"Simulated against real: {table.height - outside} of {table.height} facts within tolerance")
    drawn.add_column("sample")
    drawn.add_column("quantity")
    for name in ("real", "simulated", "in tolerances"):
        drawn.add_column(name, justify="right")
    drawn.add_column("trade")
    before = None
    for row in table.iter_rows(named=True):
        size = abs(row["deviation"])
        colour = "green" if size <= 0.5 else "yellow" if size <= 1.0 else "red"
        sample = "" if row["sample"] == before else row["sample"]
        before = row["sample"]
        drawn.add_row(
            sample,
            row["quantity"],
            f"{row['real']:.4g}",
            f"{row['simulated']:.4g}",
            f"[{colour}]{row['deviation']:+.2f}{'' if row['ok'] else ' outside'}[/{colour}]",
            row["trade"],
        )
    return drawn
