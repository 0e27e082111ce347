"""How well the primary energy is estimated: the reconstruction's formula, and learners given the target in three ways.

    python -m benchmarks.learning.energy --train 20000 --test 8000 --work work --store

All estimates are of the same simulated test showers under the test's cuts, in one run: the reconstructed E, a formula
of lg Ne, lg Nmu and the zenith angle; the same formula refitted to the training showers; LightGBM with a squared loss
on what E leaves of lg E; LightGBM on classes that are bins of lg E, and on bins of what E leaves of it; with --run
those of a finished run on the same showers: posterior means of its learners and of what is used, an own estimate, and
their pool, which is used. Resolution is half the width of the central 68 % of estimate minus truth, with 95 % bootstrap
intervals; differences to the reconstructed E are paired. The width of (estimate - truth) / error should be 1.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import lightgbm
import numpy as np

from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.features.build import build_table
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.residuals import paired_resolution, residual_metrics
from showerstack.scoring.tasks.target import EDGES
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import ENERGY, SCALAR_NAMES, bins
from showerstack.stacking.estimates import PosteriorMean
from showerstack.stacking.events import CONTEXT_SCALARS
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.run import Run

VALID_SHARE = 0.15
ROUNDS = 2000
PATIENCE = 50
SQUARED = {"objective": "l2", "learning_rate": 0.05, "num_leaves": 15, "num_threads": 1, "verbosity": -1}
N_BINS = (6, 12, 24)
MEASURES = ("bias", "resolution", "rms")


def formula_columns(scalars: np.ndarray) -> np.ndarray:
    """Return the formula's terms, (N, 8): quadratic in lg Ne and lg Nmu, linear in sec(zenith)."""
    zenith, lg_ne, lg_nmu = (np.asarray(scalars[:, SCALAR_NAMES.index(name)], float) for name in ("Ze", "Ne", "Nmu"))
    secant = 1 / np.cos(np.radians(zenith))
    terms = (np.ones(len(lg_ne)), lg_ne, lg_nmu, lg_ne**2, lg_nmu**2, lg_ne * lg_nmu, secant, secant * lg_ne)
    return np.column_stack(terms)


def squared_loss(train: Batch, valid: Batch, test: Batch, values: list[np.ndarray]) -> np.ndarray:
    """Return the test estimates of LightGBM with a squared loss."""
    fitted = lightgbm.Dataset(train.table, values[0])
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    stopping = [lightgbm.Dataset(valid.table, values[1], reference=fitted)]
    booster = lightgbm.train(SQUARED, fitted, ROUNDS, valid_sets=stopping, callbacks=[stop])
    return np.asarray(booster.predict(test.table))


def by_bins(train: Batch, valid: Batch, test: Batch, values: list[np.ndarray], n_bins: int, seed: int) -> np.ndarray:
    """Return the test estimates of LightGBM on bins of equal counts."""
    edges = np.quantile(values[0], np.arange(1, n_bins) / n_bins)
    labels = [np.searchsorted(edges, v, side="right") for v in values]
    model = create(spec("lightgbm"), bins(n_bins), threads=1, preset="quick")
    parts = [
        Batch(b.index, table=b.table, columns=b.columns, labels=y) for b, y in zip((train, valid), labels, strict=True)
    ]
    model.fit(*parts, seed=seed, device="cpu")
    return PosteriorMean.of(values[0], labels[0], n_bins)(model.predict_log_proba(test))[0]


def estimates(folder: Path, seed: int, run: Path | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return every system's estimates and the truth, (N,) each, of the test showers."""
    data = [Dataset.open(folder / f"energy_{split}", ENERGY) for split in ("train", "test")]
    columns: tuple[str, ...] = ()
    batches = []
    for one in data:
        table = build_table(one.path, ctx=Context(workers=1, bars=bar))
        columns = feature_set("fits", table.columns)
        batches.append(Batch(np.arange(len(table)), table=table.matrix(columns), columns=columns))
    order = np.random.default_rng(seed).permutation(len(data[0]))
    n_valid = int(VALID_SHARE * len(order))
    rest, stop = order[n_valid:], order[:n_valid]
    train, valid, test = batches[0].take(rest), batches[0].take(stop), batches[1]
    truth, e_train = (np.asarray(d.labels, float) for d in reversed(data))
    known, new = (np.asarray(d.scalars[:, SCALAR_NAMES.index("E")], float) for d in data)
    left = [(e_train - known)[rows] for rows in (rest, stop)]
    refit = np.linalg.lstsq(formula_columns(data[0].scalars), e_train, rcond=None)[0]
    result = {
        "reconstructed E": new,
        "its formula, refitted": formula_columns(data[1].scalars) @ refit,
        "squared loss on lg E - E": new + squared_loss(train, valid, test, left),
    }
    plain = [e_train[rows] for rows in (rest, stop)]
    result[f"{N_BINS[1]} bins of lg E"] = by_bins(train, valid, test, plain, N_BINS[1], seed)
    for n_bins in N_BINS:
        result[f"{n_bins} bins of lg E - E"] = new + by_bins(train, valid, test, left, n_bins, seed)
    for name, (estimate, error) in (of_run(run, new) if run else {}).items():
        result[name] = estimate
        pull = residual_metrics((estimate - truth) / error)
        span = pull["intervals"]["resolution"]
        print(f"{name}, (estimate - truth) / error: {pull['resolution']:.3f} [{span['low']:.3f}, {span['high']:.3f}]")
    return result, truth


def of_run(folder: Path, reference: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return estimates and errors, (N,) each, of a finished run's test showers: what it combines, last what it uses.

    ``reference`` (N,) is the reconstructed E.
    """
    run = Run.open(folder)
    chain, context, result = run.chain, np.zeros((len(reference), len(CONTEXT_SCALARS))), {}
    context[:, CONTEXT_SCALARS.index("E")] = reference
    for name in dict.fromkeys((*run.learners, run.shipped)):
        log_proba = run.test(name, "log_proba")
        assert log_proba is not None
        estimate, error = chain.procedure.arrays(chain.rules[name], log_proba, context).values()
        result[f"posterior mean of {name}"] = estimate, error
    if chain.target_calibration:
        learner = chain.target_calibration.learner
        own = chain.target_calibration.arrays(
            RunFolder(run.folder).read_fits(learner, chain.fits(learner), estimates=True), None
        )
        result[f"own estimate of {learner}"] = own["lg_energy"], own["lg_energy_error"]
    with np.load(run.predictions, allow_pickle=False) as stored:
        result["what is used"] = stored["lg_energy"], stored["lg_energy_error"]
    return result


def rows(content: dict[str, np.ndarray], truth: np.ndarray) -> list[str]:
    """Return the table as Markdown."""
    lines = ["| estimate | bias | resolution | rms | resolution minus that of E |", "|---|---|---|---|---|"]
    base = content["reconstructed E"] - truth
    for name, estimate in content.items():
        measured = residual_metrics(estimate - truth)
        cells = [
            f"{measured[m]:.4f} [{s['low']:.4f}, {s['high']:.4f}]" for m in MEASURES if (s := measured["intervals"][m])
        ]
        paired = paired_resolution(estimate - truth, base)
        gap = f"{paired.difference:+.4f} [{paired.interval.low:+.4f}, {paired.interval.high:+.4f}]"
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if estimate is content['reconstructed E'] else gap} |")
    return lines


def by_energy(content: dict[str, np.ndarray], truth: np.ndarray) -> list[str]:
    """Return bias and resolution by true energy of the reconstructed E and of the last system."""
    last = list(content)[-1]
    edges = EDGES[ENERGY.name]
    lines = [f"| true lg E | events | E: bias, resolution | {last}: bias, resolution |", "|---|---|---|---|"]
    for low, high in pairwise(edges):
        inside = (truth >= low) & (truth < high)
        if inside.sum() < 50:
            continue
        cells = []
        for name in ("reconstructed E", last):
            measured = residual_metrics(content[name][inside] - truth[inside])
            span = measured["intervals"]["resolution"]
            cells.append(
                f"{measured['bias']:+.3f}, {measured['resolution']:.4f} [{span['low']:.4f}, {span['high']:.4f}]"
            )
        lines.append(f"| {low:g} to {high:g} | {inside.sum():,} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Simulate where needed, train, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--test", type=int, default=8_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("work"), help="keeps the simulated showers")
    parser.add_argument("--data", type=Path, help="folder with energy_train and energy_test, instead of simulating")
    parser.add_argument("--run", type=Path, help="finished run on the same showers (python cli.py stack --task energy)")
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    folder = options.data or sample(
        ENERGY, options.work, n_train=options.train, n_test=options.test, seed=options.seed, workers=1, bars=bar
    )
    result, truth = estimates(folder, options.seed, options.run)
    text = "\n".join([*rows(result, truth), "", *by_energy(result, truth), ""])
    print(text)
    if options.store:
        head = f"{__doc__.split('--store', 1)[1].strip()}\n\n{len(truth):,} test showers, seed {options.seed}.\n\n"
        store("energy", "Primary energy", head + text, weights="shipped" if options.run else "")


if __name__ == "__main__":
    main()
