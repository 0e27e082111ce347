"""Features of this checkout against another one: processor time by stage, and whether they are equal.

Each checkout runs in a process of its own on the same events; stages are timed in turn, one process waiting for the
other. Called by ``feature_speed.py --against FOLDER``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
CHUNK = 512
STAGES = (
    "reading and decoding",
    "both fits",
    "sums that `fits` reads",
    "sums, all",
    "columns of the fits",
    "columns of muons",
    "other columns",
    "table of `fits`",
    "table, all columns",
)
LIMIT = "Limit of both fits under cuts: .53 Mflop an event, 4.5 us at one 512-bit operation a cycle of 3.6 GHz."
EQUAL = "dump"


def compare(folder: Path, dataset: Path, n: int, rounds: int, title: str) -> str:
    """Return a Markdown table of processor time by stage, of the checkout ``folder`` and of this one, and equality."""
    with tempfile.TemporaryDirectory() as scratch:
        sides = [_Side(root, dataset, n) for root in (folder.resolve(), HERE.parents[2])]
        lines = [
            f"## {title}",
            "",
            "| stage, us an event | before | now (range) | ratio (range) |",
            "|---|---|---|---|",
        ]
        for stage in STAGES:
            for side in sides:
                side.ask(stage)  # compiles, fills caches
            times = [[float(side.ask(stage)) for side in sides] for _ in range(rounds)]
            before, now = zip(*times, strict=True)
            ratios = sorted(b / a for a, b in times)
            lines.append(
                f"| {stage} | {statistics.median(before):.2f} | {statistics.median(now):.2f} ({min(now):.2f}.."
                f"{max(now):.2f}) | {statistics.median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f}) |"
            )
            print(lines[-1], flush=True)
        files = [Path(scratch) / f"{k}.npz" for k in range(2)]
        for side, file in zip(sides, files, strict=True):
            side.ask(f"{EQUAL} {file}")
            side.close()
        lines += ["", *differences(*(dict(np.load(file)) for file in files)), ""]
    print("\n".join(lines[-5:]), flush=True)
    return "\n".join(lines)


def differences(before: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> list[str]:
    """Return how far fits and columns differ, in quoted errors and in spreads of columns."""
    fitted = np.isfinite(before["parameters"][:, 0])
    assert np.array_equal(fitted, np.isfinite(now["parameters"][:, 0]))
    gap = np.abs(now["parameters"] - before["parameters"])[fitted] / before["errors"][fitted]
    median, far, most = np.median(gap, axis=0), np.quantile(gap, 0.999, axis=0), gap.max(axis=0)
    flags = int((before["converged"] != now["converged"])[fitted].sum())
    steps = int((before["steps"] != now["steps"])[fitted].any(axis=1).sum())
    a, b = (side["columns"].astype(np.float64) for side in (before, now))
    with np.errstate(invalid="ignore"):
        apart = np.nanquantile(np.abs(a - b) / np.where(np.nanstd(a, axis=0) > 0, np.nanstd(a, axis=0), 1), 0.999, 0)
    worst = np.argsort(-apart)[:3]
    names = ", ".join(f"{before['names'][k]} {apart[k]:.1e}" for k in worst)
    return [
        f"{fitted.sum():,} fits, |difference| / quoted error, worst of six parameters: median {median.max():.1e}, "
        f"99.9 % {far.max():.1e}, largest {most.max():.2g}; flags differ in {flags}, steps in {steps}.",
        f"Columns, 99.9 % of |difference| / spread: {names}; "
        f"NaN differs in {(np.isnan(a) != np.isnan(b)).sum()} cells.",
    ]


class _Side:
    """A process that computes with one checkout."""

    def __init__(self, root: Path, dataset: Path, n: int) -> None:
        command = [
            sys.executable,
            str(HERE),
            "--root",
            str(root),
            "--dataset",
            str(dataset.resolve()),
            "--events",
            str(n),
        ]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self.root = root
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
        )

    def ask(self, question: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"the process of {self.root} ended at {question!r}")
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def _product() -> SimpleNamespace:
    """Return what is timed, from this checkout's layout or from that of the commit it is compared with."""
    try:
        from showerstack.features import compute, groups
        from showerstack.features.device import decode_float16, namespace, on_device
        from showerstack.features.groups import deposits, lateral, muons, profile, published
        from showerstack.features.lateral.events import make_events
        from showerstack.showers.dataset import Dataset

        others = (deposits, published, profile)
    except ImportError:
        from showerstack.features import build as compute  # type: ignore[no-redef]
        from showerstack.features import fitted as groups  # type: ignore[attr-defined, no-redef]
        from showerstack.features.device import decode_float16, namespace  # type: ignore[attr-defined, no-redef]
        from showerstack.features.events import make_events  # type: ignore[import-not-found, no-redef]
        from showerstack.features.groups import (  # type: ignore[attr-defined, no-redef]
            asymmetry,
            deposits,
            lateral,
            moments,
            muons,
            profile,
            published,
        )
        from showerstack.features.transfer import on_device  # type: ignore[import-not-found, no-redef]
        from showerstack.showers.datasets.dataset import Dataset  # type: ignore[import-not-found, no-redef]

        others = (deposits, moments, published, profile, asymmetry)
    return SimpleNamespace(
        compute=compute, groups=groups, decode_float16=decode_float16, namespace=namespace, on_device=on_device,
        lateral=lateral, muons=muons, others=others, make_events=make_events, Dataset=Dataset,
    )  # fmt: skip


def _serve(root: Path, dataset: Path, n: int) -> None:
    """Answer stages with their processor time in microseconds an event, until the questions end."""
    from showerstack import features

    assert Path(str(features.__file__)).is_relative_to(root), f"features come from {features.__file__}, not from {root}"
    runs = _runs(dataset, n)
    for line in sys.stdin:
        question, _, file = line.strip().partition(f"{EQUAL} ")
        if file:
            _dump(dataset, n, Path(file))
            print("done", flush=True)
            continue
        run = runs[question]()
        started = time.process_time()
        run()
        print(1e6 * (time.process_time() - started) / n, flush=True)


def _batches(dataset: Path, n: int) -> list[Any]:
    it, batches = _product(), []
    for chunk in it.Dataset.open(dataset, labels=False).chunks(CHUNK, 0, n):
        cells = it.decode_float16(np.ascontiguousarray(chunk.matrices))
        batch = it.make_events(it.namespace("cpu"), cells, chunk.scalars)
        assert len(batch.cos_zenith) == len(batch.direction[0])
        batches.append(batch)
    return batches


def _runs(dataset: Path, n: int) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return what prepares each stage and returns what is timed."""
    import inspect

    from showerstack.features.catalogue import GROUPS, SETS

    it = _product()
    fitted = it.groups
    data, everything = it.Dataset.open(dataset, labels=False), frozenset(GROUPS)
    raws = [fitted.fit_showers(batch) for batch in _batches(dataset, n)]
    sums = [fitted.sum_stations(batch, raw) for batch, raw in zip(_batches(dataset, n), raws, strict=True)]
    by_parts = "parts" in inspect.signature(fitted.sum_stations).parameters

    def read() -> Any:
        for chunk, cells in it.on_device(data.chunks(CHUNK, 0, n), "cpu"):
            it.make_events(it.namespace("cpu"), cells, chunk.scalars)

    def summing(**parts: Any) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            batches = list(zip(_batches(dataset, n), raws, strict=True))
            return lambda: [fitted.sum_stations(*both, **parts) for both in batches]

        return prepare

    def columns(*modules: Any) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            given = [fitted.FittedEvents.given(*parts) for parts in zip(_batches(dataset, n), raws, sums, strict=True)]
            for events in given:
                events.columns.update(it.lateral.compute(events))
            return lambda: [[module.compute(events) for module in modules] for events in given]

        return prepare

    def fits() -> Callable[[], Any]:
        batches = _batches(dataset, n)
        return lambda: [fitted.fit_showers(batch) for batch in batches]

    prepared = (
        lambda: read,
        fits,
        summing(**({"parts": frozenset()} if by_parts else {})),
        summing(),
        columns(it.lateral),
        columns(it.muons),
        columns(*it.others),
        lambda: lambda: it.compute.compute_rows(data, 0, n, everything & frozenset(SETS["fits"])),
        lambda: lambda: it.compute.compute_rows(data, 0, n, everything),
    )
    return dict(zip(STAGES, prepared, strict=True))


def _dump(dataset: Path, n: int, file: Path) -> None:
    """Write parameters with their errors, flags, steps and all columns."""
    from showerstack.features.catalogue import GROUPS

    it = _product()
    raws = [it.groups.fit_showers(batch) for batch in _batches(dataset, n)]

    def joined(values: Callable[[Any], list[Any]]) -> np.ndarray:
        return np.concatenate([np.stack(values(raw), axis=1) for raw in raws]).astype(np.float64)

    def errors(triangles: np.ndarray, size: int) -> np.ndarray:
        matrices = np.zeros((len(triangles), size, size))
        rows, columns = np.tril_indices(size)
        matrices[:, rows, columns] = matrices[:, columns, rows] = triangles
        result = np.full((len(triangles), size), np.nan)
        good = np.isfinite(triangles).all(axis=1)
        result[good] = np.sqrt(np.diagonal(np.linalg.inv(matrices[good]), axis1=1, axis2=2))
        return result

    table = it.compute.compute_rows(it.Dataset.open(dataset, labels=False), 0, n, frozenset(GROUPS))
    np.savez(
        file,
        parameters=joined(lambda raw: [*raw.electron, *raw.muon]),
        errors=np.hstack(
            [errors(joined(lambda raw: raw.electron_fisher), 4), errors(joined(lambda raw: raw.muon_fisher), 2)]
        ),
        converged=joined(lambda raw: [raw.electron_converged, raw.muon_converged]),
        steps=joined(lambda raw: [raw.electron_steps, raw.muon_steps]),
        columns=table.to_numpy(),
        names=np.array(table.columns),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--events", type=int, required=True)
    chosen = parser.parse_args()
    _serve(chosen.root, chosen.dataset, chosen.events)
