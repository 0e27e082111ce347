"""How many primaries a simulated set was selected from: thrown again from its seed, which takes seconds.

A dataset folder holds accepted events only. For sets of the embedded simulation the primaries follow from
``source.json``; that they are the right ones is checked on the energies in ``truth.parquet``, event by event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from analysis.spectra.inputs.events import Thrown
from showers.schema import InputError, task_named
from showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, generator
from showers.simulation.settings import load_settings
from showers.simulation.spectrum import MODELS, throw_primaries

GENERATOR = "showers.simulation"
UNKNOWN = "how many primaries were thrown is not known"


def thrown_primaries(
    source: Mapping[str, Any], truth: pl.DataFrame, lg_energy_edges: np.ndarray, zenith_max_deg: float
) -> Thrown:
    """Count the primaries behind a simulated set.

    Parameters
    ----------
    source
        Content of ``source.json``.
    truth
        ``truth.parquet`` with the columns shower and lg_energy, in the order of the set.
    lg_energy_edges
        (T + 1,) borders of the true lg(E/eV).
    zenith_max_deg
        Primaries beyond this true zenith angle are not counted; the exposure's limit.

    Raises
    ------
    InputError
        If the set is not of the embedded simulation, of a world that is no longer there, or does not fit.
    """
    if source.get("generator") != GENERATOR:
        raise InputError(f"{UNKNOWN}: source.json does not name the embedded simulation")
    settings = load_settings(str(source["world"]))
    if settings.digest() != source.get("settings_hash"):
        raise InputError(f"{UNKNOWN}: the simulated world {source['world']!r} has been changed since")
    task = task_named(str(source["task"]))
    job = BlockJob(
        task, str(source["split"]), int(source["seed"]), str(source["model"]), str(source["cuts"]), settings,
        int(source["reuse"]),
    )  # fmt: skip
    shower = truth["shower"].to_numpy()
    energy = truth["lg_energy"].to_numpy()
    counts = np.zeros((len(MODELS), task.n_classes, len(lg_energy_edges) - 1))
    last = int(shower.max())
    n_showers = -(-PRIMARIES_PER_BLOCK // job.reuse)
    for block in range(last // PRIMARIES_PER_BLOCK + 1):
        primaries = throw_primaries(task, n_showers, job.model, settings.spectrum, generator(job, block))
        first = block * PRIMARIES_PER_BLOCK
        here = (shower >= first) & (shower < first + PRIMARIES_PER_BLOCK)
        if not np.allclose(primaries.lg_energy[shower[here] - first], energy[here], atol=1e-5, rtol=0):
            raise InputError(f"{UNKNOWN}: the simulation's code has been changed since the set was made")
        number = np.arange(n_showers)
        times = np.bincount(np.repeat(number, job.reuse)[:PRIMARIES_PER_BLOCK], minlength=n_showers)
        counted = (first + number <= last) & (primaries.zenith_deg < zenith_max_deg)
        fine = np.searchsorted(lg_energy_edges, primaries.lg_energy, side="right") - 1
        counted &= (fine >= 0) & (fine < counts.shape[2])
        where = (primaries.model[counted], primaries.label[counted], fine[counted])
        np.add.at(counts, where, times[counted])
    return Thrown(np.asarray(lg_energy_edges), counts)
