"""How well the lateral fits measure, against the simulation's truth and beside the standard reconstruction.

    python -m benchmarks.fits.resolution --events 15000 --store

Showers under the test's cuts are drawn with the fits' own constants (pulls prove the estimator there), in the default
world, in the harder one, and in the default world with a 30 % larger deposit of accompanying photons near the core. Per
quantity: bias (median deviation) and the half widths that hold 68 and 95 % of the deviations from it, with the 95 %
bootstrap interval of the 68 % width.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.fits.oracle import comparison
from benchmarks.fits.pulls import World, everything, half_width, measure, proof, pulls, swaps
from benchmarks.shared.results import HELP, store
from showerstack.showers.simulation import load_settings

LECF_FACTOR = 1.3
OWN, DEFAULT = "The fits' own constants", "Default world"
ENERGY_BINS = ((14.0, 15.0), (15.0, 15.5), (15.5, 16.0), (16.0, 16.5), (16.5, 18.0))
ZENITH_BINS = ((0.0, 10.0), (10.0, 20.0), (20.0, 30.0))
MIN_EVENTS = 50


def _width(deviation: np.ndarray, share: float, radial: bool) -> float:
    return float(np.quantile(deviation if radial else np.abs(deviation - np.median(deviation)), share))


def _cell(deviation: np.ndarray, radial: bool, rng: np.random.Generator) -> str:
    deviation = deviation[np.isfinite(deviation)]
    digits = 2 if radial else 4
    replicas = [_width(rng.choice(deviation, deviation.size), 0.68, radial) for _ in range(200)]
    low, high = np.quantile(replicas, (0.025, 0.975))
    bias = "" if radial else f"{np.median(deviation):+.{digits}f}; "
    widths = f"{_width(deviation, 0.68, radial):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{bias}{widths}; {_width(deviation, 0.95, radial):.{digits}f}"


def _rows(deviations: dict[str, tuple[np.ndarray, np.ndarray]], values: dict[str, np.ndarray]) -> list[str]:
    rng = np.random.default_rng(1)
    selections = [("all", np.ones(len(values["E"]), bool))]
    selections += [(f"lg E {a:g}..{b:g}", (values["E"] >= a) & (values["E"] < b)) for a, b in ENERGY_BINS]
    selections += [(f"zenith {a:g}..{b:g}", (values["Ze"] >= a) & (values["Ze"] < b)) for a, b in ZENITH_BINS]
    rows = []
    for name, mask in selections:
        if mask.sum() < MIN_EVENTS:
            rows.append(f"| {name} | {mask.sum()} | too few events | | |")
            continue
        for quantity, (fit, reconstruction) in deviations.items():
            cells = [_cell(sample[mask], quantity == "core, m", rng) for sample in (fit, reconstruction)]
            rows.append(f"| {name} | {mask.sum():,} | {quantity} | {cells[0]} | {cells[1]} |")
    return rows


def report(title: str, folder: Path) -> str:
    """Return one world's table as Markdown."""
    deviations, values = measure(folder)
    result = pulls(folder)
    described = ", ".join(f"{name} {np.median(p):+.2f} and {half_width(p):.2f}" for name, p in result.items())
    return "\n".join(
        [
            f"## {title}",
            "",
            f"Converged: {100 * np.nanmean(values['fit_converged']):.2f} %. Pulls of large showers, median and "
            f"width (half the central 68 %): {described}.",
            "",
            "| showers | events | quantity | fit: bias; 68 %; 95 % | reconstruction: bias; 68 %; 95 % |",
            "|---|---|---|---|---|",
            *_rows(deviations, values),
            "",
        ]
    )


def main() -> None:
    """Simulate all worlds, fit, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="showers per world (default 20000)")
    parser.add_argument("--swap-events", type=int, default=6_000, help="showers per swapped constant (default 6000)")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    default = load_settings("default")
    worlds = {
        OWN: default.changed(**everything()),
        DEFAULT: default,
        "Harder world": load_settings("harder"),
        f"Default world, lateral energy correction near the core times {LECF_FACTOR:g}": default.changed(
            detector__photon_share_core=LECF_FACTOR * default.detector.photon_share_core
        ),
    }
    pieces = [__doc__.split("\n\n", 2)[2].strip(), ""]
    with tempfile.TemporaryDirectory() as scratch:
        room, size, seed = Path(scratch), options.events, options.seed
        folders = {
            title: World(settings, room / str(k), size, seed).draw()
            for k, (title, settings) in enumerate(worlds.items())
        }
        pieces.append(proof(*(pulls(folders[title]) for title in (OWN, DEFAULT))))
        print(pieces[-1], flush=True)
        pieces.append(swaps(default, options.swap_events, seed, room))
        pieces.append(comparison(folders[DEFAULT], default))
        print(pieces[-1], flush=True)
        for title, folder in folders.items():
            pieces.append(report(title, folder))
            print(pieces[-1], flush=True)
    if options.store:
        store("resolution", "Resolution of the lateral fits", "\n".join(pieces), worlds=("default", "harder"))


if __name__ == "__main__":
    main()
