"""How the log-loss falls with the number of training showers, and how far it could: learners against an oracle.

    python benchmarks/learning/learning_curves.py --out pretraining --picture docs/pictures/learning_curves.png

The oracle is ``mlp`` on what really happened (true sizes, age, depth of maximum, zenith, distance of the core). Fits
are those of ``benchmarks/learning/pretraining.py`` and are shared with it: what is done in OUT is not done again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.learning.pretraining import ORACLE, Fit, Sets, done, sets_of
from report.pictures.style import MARKERS, PALETTE
from runtime.files import atomic_path
from showers.schema import TASKS

SYSTEMS = ("lightgbm", "catboost", "mlp", "pretrained", ORACLE)


def curves(
    world: str, task: str, sizes: list[int], systems: list[str], sets: Sets, out: Path
) -> dict[str, list[tuple[float, float]]]:
    """Return log-loss and its standard error by system and size."""
    labels = sets.test.labels
    assert labels is not None
    result: dict[str, list[tuple[float, float]]] = {}
    for system in systems:
        for n in sizes:
            log_p, _ = done(Fit(world, task, n, 1, system), sets, out)
            loss = -log_p[np.arange(len(labels)), labels]
            result.setdefault(system, []).append((float(loss.mean()), float(loss.std() / len(loss) ** 0.5)))
    return result


def table(content: dict[str, list[tuple[float, float]]], sizes: list[int]) -> str:
    """Return the curves as Markdown."""
    lines = [f"| system | {' | '.join(f'{n:,}' for n in sizes)} |", f"|{'---|' * (len(sizes) + 1)}"]
    for system, points in content.items():
        lines.append(f"| {system} | {' | '.join(f'{loss:.4f} ± {error:.4f}' for loss, error in points)} |")
    return "\n".join(lines)


def draw(content: dict[str, list[tuple[float, float]]], sizes: list[int], title: str, file: Path) -> None:
    """Draw the curves."""
    figure, axes = plt.subplots(figsize=(5.2, 3.6), dpi=150, layout="constrained")
    for (system, points), colour, marker in zip(content.items(), PALETTE, MARKERS, strict=False):
        axes.plot(sizes, [loss for loss, _ in points], color=colour, marker=marker, label=system)
    axes.set(xscale="log", xlabel="training showers", ylabel="log-loss, nats", title=title)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes], minor=False)
    axes.minorticks_off()
    axes.legend()
    with atomic_path(file) as temporary:
        figure.savefig(temporary)
    plt.close(figure)


def main() -> None:
    """Parse, train what is missing, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="composition")
    parser.add_argument("--world", default="harder")
    parser.add_argument("--sizes", default="5000,15000,60000")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--test", type=int, default=25_000)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [int(n) for n in options.sizes.split(",")]
    sets = sets_of(options.world, options.task, max(sizes), options.test, options.out / "data")
    result = curves(options.world, options.task, sizes, options.systems.split(","), sets, options.out)
    print(table(result, sizes))
    if options.picture:
        draw(result, sizes, f"{options.task}, world {options.world!r}, {options.test:,} test showers", options.picture)


if __name__ == "__main__":
    main()
