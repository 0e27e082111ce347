"""A run's learners as ONNX files: largest difference of a probability, size, and speed beside the learner itself.

    python benchmarks/speed/onnx_files.py --run runs/composition --data data/composition_test --write onnx.md

The first fit of each learner predicts the same events itself and through ONNX Runtime, one thread each, features
given, in rounds that take turns; rates are means with the standard error of the rounds. The difference is the largest
of any class and event.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from showerstack import stacking
from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch
from showerstack.models.onnx.graph import NotPortable
from showerstack.models.onnx.learners import graphs_of, space_of
from showerstack.models.registry import load as load_learner
from showerstack.stacking.exported import averaged, run_graph, session
from showerstack.stacking.inputs.events import ShowerEvents
from showerstack.stacking.run.read import Run

HEAD = ("learner", "files", "kB", "largest difference", "learner, events/s", "ONNX Runtime, events/s")


def _timed(predict: Callable[[], np.ndarray], rates: list[float]) -> np.ndarray:
    started = time.perf_counter()
    result = predict()
    rates.append(len(result) / (time.perf_counter() - started))
    return result


def _rate(rates: Sequence[float]) -> str:
    return f"{np.mean(rates):,.0f} ± {np.std(rates, ddof=1) / len(rates) ** 0.5:,.0f}"


def row(run: Run, name: str, batch: Batch, rounds: int) -> tuple[str, ...]:
    """Return a learner's row of the table, or why it has no ONNX form."""
    learner = load_learner(run.fits(name).folders[0], classes=run.task.classes)
    try:
        graphs = graphs_of(learner)
    except NotPortable as error:
        return name, "0", "", str(error), "", ""
    written = [graph.model.SerializeToString() for graph in graphs]
    opened = [session(one) for one in written]

    def through_files() -> np.ndarray:
        each = [run_graph(one, graph.columns, batch) for one, graph in zip(opened, graphs, strict=True)]
        return averaged(each, space_of(learner))

    own_rates: list[float] = []
    file_rates: list[float] = []
    differences = []
    for _ in range(rounds):
        own = _timed(lambda: learner.predict_log_proba(batch), own_rates)
        differences.append(np.abs(np.exp(_timed(through_files, file_rates)) - np.exp(own)).max())
    size = sum(map(len, written)) / 1e3
    return name, str(len(graphs)), f"{size:,.0f}", f"{max(differences):.1e}", _rate(own_rates), _rate(file_rates)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="your own run: its models are opened in this process")
    parser.add_argument("--data", type=Path, required=True, help="dataset folder")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = stacking.load(options.run)
    events = ShowerEvents(options.data, build_table(options.data).folder, run.task)
    rows = np.arange(min(options.events, len(events)))
    entries = []
    with threadpool_limits(1):
        for name in run.chain.learners:
            saved = run.fits(name)
            entries.append(row(run, name, events.batch(rows, saved.columns, grids=saved.needs_grid), options.rounds))
    table = [HEAD, ("---",) * len(HEAD), *entries]
    text = f"{len(rows):,} events, {options.rounds} rounds\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in table)
    print(text)
    if options.write:
        options.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
