"""The stack on tables of any origin beside boosted trees and logistic regression with their libraries' defaults.

``python -m benchmarks.learning.tables --work DIR --preset quick`` trains both on the same 60 % of each table and
compares log-losses on the other 40 %, row by row. Brackets are 95 % intervals of the test rows. With
``--seeds 3`` three splits of each table are compared one by one and together: a row that is tested in several splits is
one observation. Seconds are processor time, child processes included; importing libraries is not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars as pl
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBClassifier

from benchmarks.shared.tables import CHOICE, LABEL, PROOF, table
from showerstack.runtime.cost import cpu_seconds
from showerstack.scoring.metrics.paired import Paired, paired_mean
from showerstack.stacking.config import TableConfig
from showerstack.stacking.run import Run
from showerstack.stacking.train import stack

TRAIN_SHARE = 0.6
FLOOR = 1e-15
"""Probabilities of peers are not smaller, as scikit-learn's log-loss has it."""


def main() -> None:
    """Compare on every table; print a line each, write ``tables.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("bench/tables"), help="folder for tables and runs")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--sets", default="proof", help="choice, proof, all or names with commas")
    parser.add_argument("--seeds", type=int, default=1, help="splits of each table")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    groups = {"choice": list(CHOICE), "proof": list(PROOF), "all": [*CHOICE, *PROOF]}
    results: dict[str, Any] = {}
    for name in groups.get(options.sets, options.sets.split(",")):
        frame = table(name)
        if frame is None:
            print(f"{name}: its package is not installed", flush=True)
            continue
        results[name], splits = [], []
        for seed in range(1, options.seeds + 1):
            content, gaps = compared(name, frame, options, seed)
            results[name].append(content)
            splits.append(gaps)
            print(result_line(name, content), flush=True)
        if options.seeds > 1:
            print(
                f"{name:17s} {options.seeds} splits together, used minus",
                ", ".join(together(splits)),
                flush=True,
            )
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "tables.json").write_text(json.dumps(results, indent=1))


def compared(
    name: str, frame: pl.DataFrame, options: argparse.Namespace, seed: int
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Return log-losses on the test rows, differences with intervals; and those of each row, with its number."""
    rng = np.random.default_rng(seed)
    is_train = np.zeros(frame.height, dtype=bool)
    for label in frame[LABEL].unique().sort():
        rows = np.flatnonzero((frame[LABEL] == label).to_numpy())
        is_train[rng.permutation(rows)[: round(TRAIN_SHARE * len(rows))]] = True
    train, test = frame.filter(pl.Series(is_train)), frame.filter(pl.Series(~is_train))
    folder = options.work / f"{name}-{options.preset}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train.write_parquet(folder / "train.parquet")
    test.drop(LABEL).write_parquet(folder / "test.parquet")
    began = cpu_seconds()
    run = stack(
        TableConfig(
            run=folder / "run",
            table=folder / "train.parquet",
            test_table=folder / "test.parquet",
            label=LABEL,
            columns=tuple(name for name in train.columns if name != LABEL),
            categories=tuple(name for name, kind in train.schema.items() if kind == pl.String and name != LABEL),
            preset=options.preset,
            seed=seed,
            workers=options.workers,
            device="cpu",
        )
    )
    seconds = cpu_seconds() - began
    classes = tuple(run.manifest["classes"])
    labels = np.array([classes.index(value) for value in test[LABEL]])
    finished = Run.open(run.run)
    ours = {one: finished.test(one, "log_proba") for one in finished.systems}
    shipped = finished.shipped
    rows = np.arange(len(labels))
    losses = {one: -z[rows, labels] for one, z in ours.items()}
    peers, peer_seconds = peer_losses(train, test, classes, labels)
    gaps = {peer: losses[shipped] - loss for peer, loss in {"average": losses["average"], **peers}.items()}
    content = {
        "rows": [train.height, test.height],
        "columns": frame.width - 1,
        "classes": len(classes),
        "shipped": shipped,
        "chosen_pool": run.manifest["pool"]["chosen"],
        "temperature": temperature(run.run, shipped),
        "log_loss": {one: float(loss.mean()) for one, loss in {**losses, **peers}.items()},
        "difference": {peer: _numbers(paired_mean(gap)) for peer, gap in gaps.items()},
        "seconds": seconds,
        "peer_seconds": peer_seconds,
    }
    return content, pl.DataFrame({"row": np.flatnonzero(~is_train), **gaps})


def _numbers(result: Paired) -> list[float]:
    return [result.difference, result.interval.low, result.interval.high]


def together(splits: list[pl.DataFrame]) -> list[str]:
    """Return by peer the mean difference over the test rows of all splits; a row is one observation."""
    every = pl.concat(splits)
    results = {peer: paired_mean(every[peer].to_numpy(), every["row"].to_numpy()) for peer in every.columns[1:]}
    return ["{} {:+.4f} [{:+.4f}, {:+.4f}]".format(peer, *_numbers(result)) for peer, result in results.items()]


def temperature(run: Path, shipped: str) -> float:
    """Return the temperature of what is used."""
    return 1.0 / float(json.loads((run / "meta" / "calibration.json").read_text())[shipped])


def peer_losses(
    train: pl.DataFrame, test: pl.DataFrame, classes: tuple[str, ...], labels: np.ndarray
) -> tuple[dict[str, np.ndarray], float]:
    """Return per peer the log-losses (N,) with the library's defaults, categories given natively, and the time."""
    words = [name for name, kind in train.schema.items() if kind == pl.String and name != LABEL]
    x, y = _frame(train, words), np.array([classes.index(value) for value in train[LABEL]])
    new = _frame(test, words)
    for name in words:
        levels = pandas.CategoricalDtype(sorted(set(x[name].dropna())))
        x[name], new[name] = x[name].astype(levels), new[name].astype(levels)
    as_text, new_text = x.copy(), new.copy()
    for name in words:
        as_text[name] = x[name].astype(object).where(x[name].notna(), "missing").astype(str)
        new_text[name] = new[name].astype(object).where(new[name].notna(), "missing").astype(str)
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), words), remainder=make_pipeline(SimpleImputer(), StandardScaler())
    )
    began = cpu_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cat = CatBoostClassifier(verbose=0, thread_count=1, cat_features=words, allow_writing_files=False)
        result = {
            "CatBoost": cat.fit(as_text, y).predict_proba(new_text),
            "LightGBM": LGBMClassifier(verbosity=-1, n_jobs=1).fit(x, y).predict_proba(new),
            "XGBoost": XGBClassifier(n_jobs=1, enable_categorical=True).fit(x, y).predict_proba(new),
            "HistGB": HistGradientBoostingClassifier(categorical_features="from_dtype")
            .fit(_few_levels(x, words), y)
            .predict_proba(_few_levels(new, words)),
            "logistic": make_pipeline(encoder, LogisticRegression(max_iter=1000))
            .fit(as_text, y)
            .predict_proba(new_text),
        }
    rows = np.arange(len(labels))
    return (
        {name: -np.log(np.maximum(p[rows, labels], FLOOR)) for name, p in result.items()},
        cpu_seconds() - began,
    )


def _frame(table: pl.DataFrame, words: list[str]) -> pandas.DataFrame:
    plain = table.drop(LABEL).with_columns(pl.col(pl.Boolean).cast(pl.Int8))
    columns = {n: plain[n].to_list() if n in words else plain[n].cast(pl.Float64).to_numpy() for n in plain.columns}
    return pandas.DataFrame(columns)


def _few_levels(frame: pandas.DataFrame, words: list[str]) -> pandas.DataFrame:
    """Return the frame without columns of more levels than histogram boosting takes."""
    return frame.drop(columns=[name for name in words if len(frame[name].cat.categories) > 255])


def result_line(name: str, content: dict[str, Any]) -> str:
    """Return a line: log-loss of what is used, of the best other, their difference with its interval."""
    losses = content["log_loss"]
    best = min(set(content["difference"]) - {"average"}, key=losses.get)
    gap, low, high = content["difference"][best]
    to_average = "{:+.4f} [{:+.4f}, {:+.4f}]".format(*content["difference"]["average"])
    (n_train, n_test), shipped = content["rows"], content["shipped"]
    return (
        f"{name:17s} {n_train:5d}+{n_test:4d} rows {content['columns']:3d} col {content['classes']:2d} cl "
        f"| used: {shipped} {losses[shipped]:.4f} ({content['calibrator']}), stack {losses['stack']:.4f} "
        f"| best peer {best} {losses[best]:.4f} | difference {gap:+.4f} [{low:+.4f}, {high:+.4f}] "
        f"| used - average {to_average} "
        f"| {content['seconds']:.0f} s, peers {content['peer_seconds']:.0f} s"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
