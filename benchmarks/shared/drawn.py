"""Simulated showers under the test's cuts as learners are given them, features computed in memory, kept in one file.

Worlds: those of the simulation, and ``foreign``, written for tests of transfer alone: electrons follow the standard
Nishimura-Kamata-Greisen function with the Moliere radius instead of KASCADE's modified one, muons follow Greisen's,
and every detector has a gain of its own that calibration does not know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
from scipy.special import gammaln

from showerstack.features.catalogue import CATALOGUE, feature_set
from showerstack.features.compute import column_names, compute_events
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.arrays import in_clusters
from showerstack.models.pretraining.stream import draw_world, quantities_of, suited
from showerstack.runtime.versions import FEATURES_VERSION, SIMULATION_VERSION
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.lateral import ELECTRON_ALPHA, MUON_R0_M
from showerstack.showers.schema import AGE, TASKS
from showerstack.showers.simulation import blocks, detector, load_settings
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import accepted_events

FOREIGN = "foreign"
RANDOM = "random"
"""A world drawn from the priors of pretraining; another one for every seed."""
COLUMNS = feature_set("fits+profile", [name for name in CATALOGUE if name not in ("Age", "fit_minus_age")])
"""Columns of the table, as in the v2 protocol: the reconstructed age is not there."""
CORE = ("fit_core_x_m", "fit_core_y_m")
"""Columns of the fitted core, beside what really happened."""
GROUPS = frozenset(CATALOGUE[name].group for name in (*COLUMNS, *CORE))
MOLIERE_M = 89.0
GREISEN_M = 320.0
RANDOM_WORLDS = 771
"""Part of the seed of random worlds."""
GAIN_SPREAD = 0.08
"""Standard deviation of ln(gain) of each detector."""


def drawn(
    world: str,
    task: str,
    n: int,
    *,
    seed: int,
    split: str,
    data: Path,
    model: str = "mix",
    array: DetectorArray = KASCADE,
    elsewhere: bool = False,
) -> tuple[Batch, pl.DataFrame]:
    """Return ``n`` labelled showers and what really happened (with the fitted core), simulated where not kept yet.

    Parameters
    ----------
    world
        ``default``, ``harder``, ``easier``, :data:`FOREIGN` or :data:`RANDOM`.
    task, n, seed
        Which showers; sets of the same seed share their first ones.
    split
        ``train`` or ``test``: streams that share no shower.
    data
        Folder where sets are kept.
    model
        Hadronic model, as for ``simulate``.
    array
        The stations that see them.
    elsewhere
        Energies and cores follow the array and none of KASCADE's cuts is made, as in pretraining for any array; the
        table has the columns that the array can have.
    """
    if world == RANDOM:
        base, _ = draw_world(np.random.default_rng([seed, RANDOM_WORLDS]))
    else:
        base = load_settings("default" if world == FOREIGN else world)
    whole = {"world": world, "task": task, "n": n, "seed": seed, "split": split, "settings": base.digest()}
    whole |= {} if model == "mix" else {"model": model}
    whole |= {} if array == KASCADE else {"array": array.digest}
    whole |= {"elsewhere": True} if elsewhere else {}
    whole |= {"simulation": SIMULATION_VERSION, "features": FEATURES_VERSION}
    columns = columns_at(array) if elsewhere else COLUMNS
    key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:10]
    file = data / f"{task}-{world}-{split}-{n}-{key}.npz"
    if not file.exists():
        data.mkdir(parents=True, exist_ok=True)
        triggering = in_clusters(array) if elsewhere else array
        if elsewhere:
            base = suited(base, list(TASKS).index(task), triggering, np.random.default_rng(seed))
        job = BlockJob(TASKS[task], split, seed, model, "none" if elsewhere else "test", base, array=triggering)
        table, labels, truth = _simulated(world, n, job, columns)
        truth.write_parquet(file.with_suffix(".parquet"))
        temporary = file.with_suffix(".partial.npz")
        np.savez(temporary, table=table, labels=labels)
        temporary.rename(file)
    with np.load(file) as result:
        batch = Batch(
            index=np.arange(n), table=np.asfortranarray(result["table"]), columns=columns, labels=result["labels"],
            array=array,
        )  # fmt: skip
    return batch, pl.read_parquet(file.with_suffix(".parquet"), glob=False)


def columns_at(array: DetectorArray) -> tuple[str, ...]:
    """Return those of :data:`COLUMNS` that an array can have."""
    quantities = tuple(name for name in quantities_of(array) if name != AGE.name)
    there = column_names(GROUPS, array, quantities)
    return tuple(name for name in COLUMNS if name in there)


def _simulated(
    world: str, n: int, job: BlockJob, columns: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, pl.DataFrame]:
    tables, labels, truths = [], [], []
    with foreign_detector() if world == FOREIGN else contextlib.nullcontext():
        for events in accepted_events(job, n, 1):
            grids = events.grids.astype(np.float16).astype(np.float32)
            scalars = events.scalars.astype(np.float16).astype(np.float32)
            result = compute_events(grids, scalars, None, GROUPS, job.array)
            tables.append(result.select(columns).to_numpy())
            labels.append(events.labels)
            truths.append(events.truth.hstack(result.select(CORE)))
    return np.concatenate(tables), np.concatenate(labels).astype(np.int64), pl.concat(truths)


@contextlib.contextmanager
def foreign_detector() -> Iterator[None]:
    """Let the simulation use other lateral forms and detectors of unequal gains."""
    read_out = detector.read_out

    def uneven(*arguments: Any, **options: Any) -> Any:
        readings = read_out(*arguments, **options)
        n = readings.array.n_stations
        gains = np.exp(GAIN_SPREAD * np.random.default_rng(2026).standard_normal((2, n))).astype(np.float32)
        caps = arguments[2].detector
        return replace(
            readings,
            electron=np.minimum(readings.electron * gains[0], caps.electron_cap_mev),
            muon=np.minimum(readings.muon * gains[1], caps.muon_cap_mev),
        )

    with (
        mock.patch.object(detector, "density", foreign_density),
        mock.patch.object(blocks, "read_out", uneven),
    ):
        yield


def foreign_density(
    r_m: np.ndarray, number: np.ndarray, age: np.ndarray, r0_m: float, alpha: float, beta: float
) -> np.ndarray:
    """Return the standard function's density in place of KASCADE's electrons, Greisen's in place of its muons."""
    return standard_nkg(r_m, number, age) if alpha == ELECTRON_ALPHA else greisen(r_m, number, age, r0_m)


def standard_nkg(r_m: np.ndarray, n_e: np.ndarray, age: np.ndarray) -> np.ndarray:
    """Return the standard function's density; ``age`` is KASCADE's, translated so that slopes agree at 40 m."""
    s = np.clip(1.217 + 1.145 * (age - 1.0), 0.3, 2.0)
    log_c = gammaln(4.5 - s) - gammaln(s) - gammaln(4.5 - 2.0 * s)
    x = np.maximum(r_m, 1.0) / np.float32(MOLIERE_M)
    c = np.exp(log_c) / (2.0 * math.pi * MOLIERE_M**2)
    return (n_e * c * x ** (s - 2.0) * (1.0 + x) ** (s - 4.5)).astype(np.float32)


def greisen(r_m: np.ndarray, n_mu: np.ndarray, age: np.ndarray, r0_m: float = MUON_R0_M) -> np.ndarray:
    """Return Greisen's muon density, r^-a (1 + r/320 m)^-2.5; a = 0.75, less 0.5 times the shape's excess over 1.3."""
    a = 0.75 - 0.5 * (age - 1.3)
    log_c = gammaln(2.5) - gammaln(2.0 - a) - gammaln(0.5 + a)
    scale = GREISEN_M * r0_m / MUON_R0_M
    x = np.maximum(r_m, 1.0) / np.float32(scale)
    c = np.exp(log_c) / (2.0 * math.pi * scale**2)
    return (n_mu * c * x**-a * (1.0 + x) ** -2.5).astype(np.float32)
