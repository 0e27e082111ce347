"""Fit the coefficients of all models and place them where the simulation reads them.

``python -m benchmarks.world.cascade.ship --work bench/cascade`` takes the showers that ``python -m
benchmarks.world.cascade`` has left there and writes ``showers/simulation/cascade_{model}.json``. At KASCADE's depth
Sibyll-2.3d keeps the coefficients that the worlds are fitted with. At other depths it has those plus the difference of
the new ones to the new ones there. Another model has those of Sibyll-2.3d plus the difference of the two for
vertical photons, protons and iron; nuclei between have what lies between in ln A.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.world.cascade.__main__ import CascadeJob, configurations, content, samples
from benchmarks.world.cascade.coefficients import Table, coefficients_of, combined
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, read_json
from showerstack.showers.simulation import monte_carlo
from showerstack.showers.simulation.monte_carlo import AT_KASCADE, CASCADES, FITTED, GROUND_DEPTH

FOLDER = Path(monte_carlo.__file__).parent
NEW = ("hM",)
"""Quantities that the earlier run does not have."""
CURVED = "n0"
"""The earlier run has two angles alone, and a straight line through them: moved to other depths, that makes mean lg Ne
0.04 to 0.08 too large at 42 degrees and 0.14 to 0.29 at 50."""
EARLIER_DEG = 30.0
"""The larger of the two."""
SOURCE = (
    "one-dimensional hadronic cascade Monte Carlo (benchmarks/world/cascade): {title} above 70 GeV and UrQMD 3.4 below "
    "through chromo 0.11.0, US-standard atmosphere, muons above 230 MeV; nuclei by wounded nucleons and spectators; "
    "photons with photonuclear interactions and muon pairs"
)
USE = (
    "P = a + b e + c e^2 + d S + f e S + g S^2 with e = lg(E/eV) - 15.5 and S = sec(zenith) - 1; one row for each of "
    "the depths (g/cm2), by mass number, 0 = photon; lN0 and lK are added to the soft and hard part of a photon's lg "
    "Nmu, hM is the mean height above the ground, km, at which counted muons are made"
)
RANGE = (
    "Monte Carlo points at e = -1.5 to 2 for 0, 1, 56 and -1 to 1 for 4, 12, 28; zenith 0, 30 and 42 deg; outside "
    "means are extrapolated linearly, widths and shapes held constant"
)
ANCHOR = (
    "at 1023 g/cm2 Sibyll-2.3d has the coefficients of an earlier run with more showers (zenith 0 and 30 deg); all "
    "others are these plus differences within the later run; those between models are of vertical photons, protons and "
    "iron; n0 goes with the zenith angle as in a third run, at 1023 g/cm2 through the earlier one's 0 and 30 deg"
)


def job_in(work: Path, model: str) -> CascadeJob:
    """Return the job that left a model's showers in a folder.

    Raises
    ------
    InputError
        If there are none.
    """
    file = work / model / "settings.json"
    if not file.exists():
        raise InputError(f"{file} does not exist: run python -m benchmarks.world.cascade --model {model} first")
    made = read_json(file)
    return CascadeJob(model, np.array(made["depths"]), work, made["scale"], made["seed"])


def earlier() -> Table:
    """Return what the worlds are fitted with, as if it were of all depths: rows of shape (1, 6)."""
    kept = {key: rows for key, rows in AT_KASCADE.rows.items() if key not in NEW}
    return {key: {mass: row[None, :] for mass, row in rows.items()} for key, rows in kept.items()}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/cascade"))
    work = parser.parse_args().work
    mine = list(samples(job_in(work, FITTED)))
    depths, fitted = coefficients_of(mine)
    ground = int(np.flatnonzero(depths == GROUND_DEPTH)[0])
    at_ground = {key: {mass: rows[ground] for mass, rows in by_mass.items()} for key, by_mass in fitted.items()}
    known = earlier()
    base = combined({key: fitted[key] for key in known}, (at_ground, -1.0), (known, 1.0))
    for key, by_mass in known.items():
        for mass, rows in by_mass.items():
            base[key][mass][ground] = rows[0]
    for mass, rows in fitted[CURVED].items():
        base[CURVED][mass][:, 3:] = rows[:, 3:]
        constant, slope, curvature = known[CURVED][mass][0, 3], known[CURVED][mass][0, 4], rows[ground, 5]
        chord = 1.0 / np.cos(np.radians(EARLIER_DEG)) - 1.0
        base[CURVED][mass][ground, 3:] = constant - curvature * chord, slope, curvature
    base |= {key: fitted[key] for key in NEW}
    some = set(configurations(full=False))
    reference = coefficients_of(one for one in mine if (one.zenith_deg, one.mass, one.lg_energy) in some)[1]
    for model in CASCADES:
        table = base
        if model != FITTED:
            job = job_in(work, model)
            if job.grounds.tolist() != depths.tolist():
                raise InputError(f"{job.folder} has other depths than {FITTED}")
            table = combined(base, (coefficients_of(samples(job))[1], 1.0), (reference, -1.0))
        origin = {"source": SOURCE.format(title=CASCADES[model]), "use": USE, "range": RANGE, "anchor": ANCHOR}
        with atomic_path(FOLDER / f"cascade_{model}.json") as temporary:
            text = json.dumps(origin | content(model, depths, table), separators=(",", ":"))
            temporary.write_text(text.replace('"parameters"', '\n"parameters"').replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
