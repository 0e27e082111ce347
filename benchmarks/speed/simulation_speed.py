"""How fast the simulator makes triggered events, uncut and under the test's cuts.

    python benchmarks/speed/simulation_speed.py --workers 2

Wall-clock rates mean something on an idle machine only; events per processor-second hold on a busy one too.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob, simulate_block
from showerstack.showers.simulation.datasets import accepted


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--events", type=int, default=200_000, help="uncut events; a tenth of that under cuts")
    options = parser.parse_args()
    table = Table(title=f"Simulation speed, {options.workers} workers")
    for name in ("set", "events", "events/s", "events per CPU-second"):
        table.add_column(name, justify="left" if name == "set" else "right")
    for task in (COMPOSITION, GAMMA):
        for cuts, share in (("none", 1.0), ("test", 0.1)):
            job = BlockJob(task, "train", 1, "mix", cuts, load_settings())
            simulate_block(job, 0)  # compiles
            wall, cpu, n = time.perf_counter(), time.process_time(), 0
            for events in accepted(job, int(share * options.events), options.workers):
                n += len(events)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            table.add_row(f"{task.name}, {cuts} cuts", f"{n:,}", f"{n / wall:,.0f}", f"{n / cpu:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
