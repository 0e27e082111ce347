"""Pulls of the lateral fits when a constant that fits and simulation have in common is moved in the simulation.

    python benchmarks/fits/shared_constants.py --events 4000 --write docs/benchmarks/shared_constants.md

The fits import no constant of the simulation, but share things with it. The same code gives the forms of both lateral
distributions and the positions and areas of the stations. The law of the mean muon age is the same in both (1.3, with
slopes -0.094 in lg N_mu and 0.45 in sec(zenith)). Other constants of the fits were taken from the same public facts as
the values in ``showers/simulation/settings.py``, from which the fitted default world has moved away since: the further
deposit per electron near the core (1.30 exp(-r / 8.5 m); default world 1.49 and 18 m), the variance over mean of a
muon's deposit (1.17 in the muon detector, 1.2 in the e/gamma detector; 1.22 and 1.13) and the mean deposit of a
punch-through particle (12 MeV; 10.7 MeV). Agreement makes the fits look better than real showers would. Here each such
constant is moved in a world that otherwise has the fits' own: mean and width of the pulls (deviation over stated error)
within 5, with 95 % bootstrap intervals, of the same showers. The two slopes are no settings of the simulation; an
offset of 0.1 is what a slope of zero makes of the muon age one decade from lg N_mu = 4.5.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.fits.pulls import MANY_HITS, MEAN_PUNCH_MEV, SAFE_LG_NE, World, everything, pulls, with_interval
from showerstack.features.lateral.response import PUBLISHED
from showerstack.showers.simulation import load_settings

QUANTITIES = ("lg Ne", "age", "lg Nmu")
FLUCTUATION = "fluctuation of a deposit, variance over mean"


def moves() -> dict[str, dict[str, float]]:
    """Return what is moved, by what a reader calls it: changes of the settings of a world of the fits' constants."""
    r, own = PUBLISHED, everything()
    heavier = 18.0
    return {
        "nothing": {},
        "deposit near the core, 1.30 -> 1.69": {"detector__photon_share_core": 1.3 * r.core_excess},
        "deposit near the core, 1.30 -> 0.91": {"detector__photon_share_core": 0.7 * r.core_excess},
        "its range, 8.5 -> 11 m": {"detector__photon_core_m": 11.0},
        "muon age + 0.1": {"shape__muon_age_offset": 0.1},
        "muon age - 0.1": {"shape__muon_age_offset": -0.1},
        f"{FLUCTUATION}, electron, {r.electron_dispersion:g} -> 2.6": {"detector__electron_shape": 1.0 / 1.6},
        f"{FLUCTUATION}, muon in e/gamma, {r.muon_in_electron_dispersion:g} -> 1.5": {
            "detector__muon_in_electron_shape": 1.0 / 0.5
        },
        f"{FLUCTUATION}, muon, {r.muon_dispersion:g} -> 1.5": {"detector__muon_shape": 1.0 / 0.5},
        f"punch-through, {MEAN_PUNCH_MEV:g} -> {heavier:g} MeV each": {"detector__punch_mev": heavier},
        f"the same at the same sum: {MEAN_PUNCH_MEV:g} -> {heavier:g} MeV, fewer": {
            "detector__punch_mev": heavier,
            "detector__punch": own["detector__punch"] * MEAN_PUNCH_MEV / heavier,
        },
    }


def table(events: int, seed: int) -> str:
    """Simulate and fit every world; return the table as Markdown."""
    own, rng = load_settings("default").changed(**everything()), np.random.default_rng(3)
    rows, showers = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for k, (label, changes) in enumerate(moves().items()):
            result = pulls(World(own.changed(**changes), Path(scratch) / str(k), events, seed).draw())
            showers = showers or result["lg Ne"].size
            cells = [
                "; ".join(with_interval(result[q], statistic, rng)[1] for statistic in ("mean", "width"))
                for q in QUANTITIES
            ]
            rows.append(f"| {label} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    head = [
        f"{showers:,} showers, more than {MANY_HITS} hit stations, true lg Ne above {SAFE_LG_NE:g}; mean; width.",
        "",
        f"| moved in the simulation | {' | '.join(QUANTITIES)} |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def main() -> None:
    """Simulate, fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=4_000, help="showers under the test's cuts per world")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    made = f"Made by `python benchmarks/fits/shared_constants.py --events {options.events} --seed {options.seed}`."
    pieces = ["# Constants that fits and simulation share", "", __doc__.split("\n\n", 2)[2].strip(), "", made, ""]
    text = "\n".join([*pieces, table(options.events, options.seed)])
    if options.write:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
