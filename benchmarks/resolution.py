"""How well the lateral fits measure, against the simulation's truth and beside the standard reconstruction.

    python benchmarks/resolution.py --events 20000 --write docs/resolution.md

Showers under the test's cuts are drawn in the default world, in the harder one, and in the default world with 30 % more
lateral energy correction near the core than the fits assume. Per quantity: bias (median deviation) and the half
widths that hold 68 and 95 % of the deviations from it, with the 95 % bootstrap interval of the 68 % width.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from features.extract import build_table
from features.table import FeatureTable
from showers.dataset import TRUTH_FILE
from showers.progress import bar
from showers.schema import COMPOSITION
from showers.simulation import load_settings, simulate

LECF_FACTOR = 1.3
ENERGY_BINS = ((14.0, 15.0), (15.0, 15.5), (15.5, 16.0), (16.0, 16.5), (16.5, 18.0))
ZENITH_BINS = ((0.0, 10.0), (10.0, 20.0), (20.0, 30.0))
MIN_EVENTS = 50
COLUMNS = (
    "E",
    "Ze",
    "Ne",
    "Nmu",
    "e_hits",
    "fit_converged",
    "fit_core_x_m",
    "fit_core_y_m",
    "fit_lg_ne",
    "fit_age",
    "fit_lg_nmu",
)
ERRORS = {"lg Ne": "fit_lg_ne_err", "age": "fit_age_err", "lg Nmu": "fit_lg_nmu_err"}


def measure(folder: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]:
    """Return deviations from the truth (fit, reconstruction) per quantity, and the table's columns by name."""
    table: FeatureTable = build_table(folder, bars=bar)
    names = [*COLUMNS, *ERRORS.values()]
    values = dict(zip(names, table.matrix(names).T, strict=True))
    truth = {name: column.to_numpy() for name, column in pl.read_parquet(folder / TRUTH_FILE).to_dict().items()}
    x, y = truth["core_x_m"], truth["core_y_m"]
    deviations = {
        "core, m": (
            np.hypot(values["fit_core_x_m"] - x, values["fit_core_y_m"] - y),
            np.hypot(truth["reconstructed_core_x_m"] - x, truth["reconstructed_core_y_m"] - y),
        ),
        "lg Ne": (values["fit_lg_ne"] - truth["lg_ne"], values["Ne"] - truth["lg_ne"]),
        "age": (values["fit_age"] - truth["age"], truth["reconstructed_age"] - truth["age"]),
        "lg Nmu": (values["fit_lg_nmu"] - truth["lg_nmu"], values["Nmu"] - truth["lg_nmu"]),
    }
    return deviations, values


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
    many = values["e_hits"] > 40
    pulls = {name: deviations[name][0][many] / values[error][many] for name, error in ERRORS.items()}
    described = ", ".join(f"{name} {np.nanmedian(p):+.2f} and {_half_width(p):.2f}" for name, p in pulls.items())
    return "\n".join(
        [
            f"## {title}",
            "",
            f"Converged: {100 * np.nanmean(values['fit_converged']):.2f} %. Pulls above 40 hit stations, median and "
            f"width (half the central 68 %): {described}.",
            "",
            "| showers | events | quantity | fit: bias; 68 %; 95 % | reconstruction: bias; 68 %; 95 % |",
            "|---|---|---|---|---|",
            *_rows(deviations, values),
            "",
        ]
    )


def _half_width(pull: np.ndarray) -> float:
    low, high = np.nanquantile(pull, (0.16, 0.84))
    return float(high - low) / 2


def main() -> None:
    """Simulate the three worlds, fit, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="showers per world (default 20000)")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--write", type=Path, help="Markdown file to write, such as docs/resolution.md")
    options = parser.parse_args()
    default = load_settings("default")
    worlds = {
        "Default world": default,
        "Harder world": load_settings("harder"),
        f"Default world, lateral energy correction near the core times {LECF_FACTOR:g}": default.changed(
            detector__photon_share_core=LECF_FACTOR * default.detector.photon_share_core
        ),
    }
    pieces = ["# Resolution of the lateral fits", "", __doc__.split("\n\n", 2)[2].strip(), ""]
    pieces += [f"Made by `python benchmarks/resolution.py --events {options.events} --seed {options.seed}`.", ""]
    with tempfile.TemporaryDirectory() as scratch:
        for k, (title, settings) in enumerate(worlds.items()):
            folder = Path(scratch) / str(k)
            train, _ = simulate(
                COMPOSITION, folder, n_train=options.events, n_test=1, seed=options.seed, train_cuts="test",
                settings=settings, bars=bar,
            )  # fmt: skip
            pieces.append(report(title, train))
            print(pieces[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(pieces), encoding="utf-8")


if __name__ == "__main__":
    main()
