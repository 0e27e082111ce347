"""Make the coefficients of a hadronic model again.

``python -m benchmarks.world.cascade --model sibyll23d --depths 550,600,1023 --out coefficients.json`` needs chromo
0.11.0 (``pip install chromo==0.11.0``) as long as interactions are missing. What is done is kept in the folder --work:
started again, it goes on. At full statistics a model takes an hour of one processor, the library of low energies (once
for all models) a quarter.
"""

from __future__ import annotations

import argparse
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.world.cascade import library
from benchmarks.world.cascade.coefficients import Table, coefficients_of
from benchmarks.world.cascade.showers import CascadeSample, Tables, production_depths, sample_of, tables_at, throw
from benchmarks.world.cascade.transport import Library, greisen_table, site_at
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json, write_npz
from showerstack.showers.simulation.monte_carlo import FITTED

LOG = logging.getLogger(__name__)
WIDE = (0, 1, 56)
"""Photons, protons and iron are simulated from 10^14 eV to 10^17.5 eV, other nuclei at a decade around 10^15.5 eV."""
WIDE_LG_ENERGIES = (14.0, 14.75, 15.5, 16.5, 17.5)
NARROW = (4, 12, 28)
NARROW_LG_ENERGIES = (14.5, 15.5, 16.5)
ZENITHS_DEG = (0.0, 30.0, 42.0)
DEPTHS = (550.0, 600.0, 660.0, 720.0, 790.0, 860.0, 940.0, 1023.0, 1040.0)
SHOWERS = {0: 250, 1: 400, 4: 300, 12: 200, 28: 150, 56: 150}
"""Showers of each energy and angle, by mass number: what fluctuates more needs more."""
TABLE_SHOWERS = 800
"""Showers of each entry of the tables."""


@dataclass(frozen=True)
class CascadeJob:
    """What decides every number."""

    model: str
    grounds: np.ndarray
    work: Path
    scale: float = 1.0
    """Times these numbers."""
    seed: int = 1

    @property
    def folder(self) -> Path:
        """Tables and showers of the model."""
        return self.work / self.model

    def library(self) -> Library:
        """Return the interactions, made if they are missing."""
        high, low = self.work / "interactions" / self.model, self.work / "interactions" / "urqmd34"
        library.make(library.LOW_ENERGY, low, min(self.scale, 1.0), self.seed)
        library.make(library.GENERATORS[self.model], high, min(self.scale, 1.0), self.seed)
        return library.load(high, low)


def configurations(full: bool) -> Iterator[tuple[float, int, float]]:
    """Yield zenith angle, mass number and lg(E/eV) of all samples; fewer where only differences are wanted."""
    every = ((WIDE, WIDE_LG_ENERGIES), (NARROW, NARROW_LG_ENERGIES)) if full else ((WIDE, WIDE_LG_ENERGIES[::2]),)
    for zenith_deg in ZENITHS_DEG if full else ZENITHS_DEG[:1]:
        for masses, energies in every:
            for mass in masses:
                for lg_energy in energies:
                    yield zenith_deg, mass, lg_energy


def samples(job: CascadeJob) -> Iterator[CascadeSample]:
    """Yield all samples; those on disk are read."""
    _check(job)
    interactions: Library | None = None
    tables: tuple[float, Tables] | None = None
    for zenith_deg, mass, lg_energy in configurations(job.model == FITTED):
        site = site_at(zenith_deg, job.grounds, production_depths(job.grounds))
        file = job.folder / f"showers_{zenith_deg:g}_{lg_energy:g}_{mass}.npz"
        if not file.exists():
            if interactions is None:
                interactions = job.library()
            if tables is None or tables[0] != zenith_deg:
                tables = zenith_deg, tables_of(job, zenith_deg, interactions)
            number = zlib.crc32(file.name.encode()) + job.seed
            outputs, hardest = throw(
                site, interactions, tables[1], mass=mass, lg_energy=lg_energy, showers=round(job.scale * SHOWERS[mass]),
                seed=number % 2**32,
            )  # fmt: skip
            write_npz(file, outputs=outputs, hardest=hardest)
            LOG.info("%s", file.name)
        with np.load(file, allow_pickle=False) as stored:
            yield sample_of(stored["outputs"], stored["hardest"], site, mass, lg_energy, zenith_deg)


def tables_of(job: CascadeJob, zenith_deg: float, interactions: Library) -> Tables:
    """Return the tables of an angle, made where they are missing."""
    file = job.folder / f"tables_{zenith_deg:g}.npz"
    site = site_at(zenith_deg, job.grounds, production_depths(job.grounds))
    if not file.exists():
        made = tables_at(site, interactions, round(job.scale * TABLE_SHOWERS), job.seed)
        write_npz(file, hadrons=made.hadrons, photons=made.photons)
        LOG.info("%s", file.name)
    with np.load(file, allow_pickle=False) as stored:
        return Tables(0.0, 0.125, stored["hadrons"].shape[1], stored["hadrons"], stored["photons"], greisen_table())


def _check(job: CascadeJob) -> None:
    """Refuse a folder whose content was made with other settings."""
    settings = {"model": job.model, "depths": job.grounds.tolist(), "scale": job.scale, "seed": job.seed}
    file = job.folder / "settings.json"
    if file.exists() and read_json(file) != settings:
        raise InputError(f"{file} has other depths, statistics or seed: give another --work, or remove {job.folder}")
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(file, settings)


def content(model: str, grounds: np.ndarray, table: Table) -> dict[str, Any]:
    """Return coefficients as they are written."""
    rows = {
        key: {str(mass): [[float(f"{v:.5g}") for v in row] for row in values] for mass, values in by_mass.items()}
        for key, by_mass in table.items()
    }
    return {"model": model, "depths": grounds.tolist(), "parameters": rows}


def main() -> None:
    """Make what is missing, and write the coefficients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(library.GENERATORS), required=True)
    parser.add_argument("--depths", default=",".join(f"{x:g}" for x in DEPTHS), help="grounds, g/cm2, increasing")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("bench/cascade"))
    parser.add_argument("--scale", type=float, default=1.0, help="times the numbers of showers and interactions")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    grounds = np.array([float(x) for x in given.depths.split(",")])
    if not (np.diff(grounds) > 0).all() or grounds[0] < 300 or grounds[-1] > 1100:
        raise InputError(f"--depths {given.depths}: give increasing depths from 300 to 1,100 g/cm2")
    job = CascadeJob(given.model, grounds, given.work, given.scale, given.seed)
    grounds, table = coefficients_of(samples(job))
    write_json(given.out, content(given.model, grounds, table))


if __name__ == "__main__":
    main()
