"""How many accepted showers have their core outside of the disc of 91 m that every exposure assumes?

``python benchmarks/physics/spill_in.py --events 400000`` throws cores to 120 m, cuts as the spectra do (reconstructed
cores within 91 m among them), and prints the share of accepted events from beyond 91 m and of those lost from within,
by group and energy, with 95 % intervals. An exposure of 91 m is right where the two are equal. The simulation smears
cores around the true ones by a law of the number of hit stations; it fits none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from showerstack.analysis.cuts import CORE, CORE_MAX_M
from showerstack.analysis.spectra.reading import spectra_cuts
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, simulate_block
from showerstack.showers.simulation.settings import Settings, load_settings

RADIUS_M = 120.0
EDGES = (15.0, 15.5, 16.0, 17.0)


def wider(settings: Settings, radius_m: float) -> Settings:
    """Return a world whose cores are thrown to another radius."""
    spectrum = settings.spectrum.model_copy(update={"core_radius_m": radius_m})
    trigger = settings.trigger.model_copy(update={"core_max_m": radius_m})
    return settings.model_copy(update={"spectrum": spectrum, "trigger": trigger})


@dataclass(frozen=True)
class Crossed:
    """Accepted events of one group and energy."""

    accepted: int
    from_outside: int
    """With true cores beyond 91 m."""
    lost: int
    """True cores within 91 m that only the cut on the reconstructed core takes away."""


def crossing(jobs: BlockJob, blocks: range) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for each block, labels, true lg E, and which events come from outside, are accepted, are lost (3, n)."""
    cuts = spectra_cuts(18.0)
    for block in blocks:
        events = simulate_block(jobs, block)
        e, truth = events.event, events.truth
        columns = {"Ze": e.zenith_deg, "Ne": e.lg_ne, "Nmu": e.lg_nmu, "Age": e.age}
        true = np.hypot(truth["core_x_m"].to_numpy(), truth["core_y_m"].to_numpy())
        core = np.hypot(e.core_x_m, e.core_y_m)
        others = cuts.mask(columns)
        accepted = cuts.mask(columns | {CORE: core})
        flags = np.stack([accepted & (true >= CORE_MAX_M), accepted, others & ~accepted & (true < CORE_MAX_M)])
        yield events.labels, truth["lg_energy"].to_numpy(), flags, true


def counts(job: BlockJob, n_blocks: int) -> list[list[Crossed]]:
    """Return what crossed the edge, by group and energy."""
    total = np.zeros((3, COMPOSITION.n_classes, len(EDGES) - 1), dtype=np.int64)
    for labels, lg_energy, flags, _ in crossing(job, range(n_blocks)):
        place = np.searchsorted(EDGES, lg_energy, side="right") - 1
        inside = (place >= 0) & (place < len(EDGES) - 1)
        for k, flag in enumerate(flags):
            np.add.at(total[k], (labels[flag & inside], place[flag & inside]), 1)
    return [
        [Crossed(int(total[1, g, b]), int(total[0, g, b]), int(total[2, g, b])) for b in range(len(EDGES) - 1)]
        for g in range(COMPOSITION.n_classes)
    ]


def main() -> None:
    """Print both shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=400_000, help="primaries thrown")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    job = BlockJob(COMPOSITION, "test", given.seed, "mix", "none", wider(load_settings("default"), RADIUS_M))
    rows = counts(job, -(-given.events // PRIMARIES_PER_BLOCK))
    for name, row in zip(COMPOSITION.classes, rows, strict=True):
        for (low, high), one in zip(pairwise(EDGES), row, strict=True):
            print(f"{name} {low:g}-{high:g}: {words(one)}", flush=True)
    print(f"all: {words(Crossed(*(sum(getattr(one, n) for row in rows for one in row) for n in vars(rows[0][0]))))}")


def words(one: Crossed) -> str:
    """Return both shares of the accepted events with their intervals."""
    parts = []
    for name, count in (("from beyond 91 m", one.from_outside), ("lost from within", one.lost)):
        interval = clopper_pearson(count, max(one.accepted, count, 1))
        parts.append(
            f"{name} {100 * count / max(one.accepted, 1):.2f} % ({100 * interval.low:.2f} to {100 * interval.high:.2f})"
        )
    return f"{one.accepted:,} accepted, {', '.join(parts)}"


if __name__ == "__main__":
    main()
